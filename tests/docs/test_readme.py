"""What README.md and docs/ say is so: commands parse, links lead somewhere, every block runs.

A page's ```sh and ```python blocks run from top to bottom in a copy of one toy folder, which the
fixture `prepared` makes. To run one page: pytest tests/docs/test_readme.py -k 'runs and finetune'

A word after the language leaves a block to the parse test: network, gpu, cluster, java where
Pyserini or its Java is absent, and peer, which tests/docs/test_frameworks.py and test_pipelines.py
run in environments of their own. A prepared output (vectors/, index/, bm25/, run.trec, bm25.trec,
train.trec, runs/agg) is removed before the first block that writes it with --output.
"""

import gzip
import itertools
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import typer

from denserk.commands.app import app, register
from denserk.config.encoding import PUBLISHED, Representation, RepresentationSettings
from tests.support import tiny_models
from tests.support.toy import PASSAGES, QUERIES, VOCABULARY, WORDS, write_toy

ROOT = Path(__file__).parents[2]
CHANGES = ROOT / "CHANGELOG.md"
EXTENDING = ROOT / "docs/extending.md"
NOTEBOOK = ROOT / "docs/notebook.ipynb"
PAGES = [ROOT / "README.md", CHANGES, *sorted((ROOT / "docs").rglob("*.md"))]
# tests/docs/test_extending.py runs the examples of new commands and options
PAGES_THAT_RUN = [page for page in PAGES if page not in (CHANGES, EXTENDING)]
LANGUAGES = {"sh", "python", "text", "json", "yaml", "bibtex", "make"}
MARKS = {"network", "gpu", "cluster", "java", "peer"}
# Lines that prepare a machine, or take long; `.ci/run` runs the quickstart and tests/run.sh, and
# tests/docs/test_recipes.py the recipes.
INSTALLING = (
    "bash docs/",
    "bash tests/",
    "pip install",
    "python -m pip",
    "python3.11 -m venv",
    ".venv/bin/pip install",
    "source .venv/bin/activate",
    "git clone",
    "cd denserk",
)
BLOCK = re.compile(r"^(?P<indent> *)```(?P<kind>.*)\n(?P<code>(?s:.*?))^ *```", re.MULTILINE)


def by_page(pages):
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in pages]


class Block(NamedTuple):
    """A fenced block of a page."""

    line: int  # of its first line of code
    language: str
    marks: list[str]  # the words after the language
    code: str


def blocks(page):
    """Yield the fenced blocks of a page, or the cells of code of the notebook.

    A directive of the site, such as ```{toctree}, is none.
    """
    text = page.read_text("utf-8")
    if page == NOTEBOOK:
        text = as_page(json.loads(text))
    for match in BLOCK.finditer(text):
        language, *marks = match["kind"].split() or [""]
        if language.startswith("{"):
            continue
        code = re.sub(rf"(?m)^{match['indent']}", "", match["code"])
        yield Block(text[: match.start()].count("\n") + 2, language, marks, code)


def as_page(notebook):
    """Return the cells of code of a notebook as fenced blocks."""
    text = ""
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            text += f"```python\n{''.join(cell['source'])}\n```\n"
    return text


def commands(page):
    """Yield the arguments of every denserk command on a page, also of those within a pipeline."""
    for line in lines_of_shell(page):
        for command in split_line(line):
            is_module = "-m denserk " in " ".join(command)
            if command[:1] == ["denserk"] or is_module:
                yield command[command.index("denserk") + 1 :]


def lines_of_shell(page):
    """Yield the lines with a denserk command, what a shell would fill in as 0."""
    shells = [block.code for block in blocks(page) if block.language in ("sh", "bash", "")]
    for line in "".join(shells).replace("\\\n", " ").splitlines():
        command = line.strip()
        names_denserk = re.search(r"(?:^|[|&] |-m )(?:\$ )?denserk ", command)
        if names_denserk and " ... " not in command:
            yield re.sub(r"\$(\([^)]*\)|[A-Z_]+)", "0", command.removeprefix("$ "))


def split_line(line):
    """Return the commands of a line, which pipes, lists and redirections separate.

    >>> split_line("denserk encode --output - | gzip > out.gz")
    [['denserk', 'encode', '--output', '-'], ['gzip'], ['out.gz']]
    """
    words = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    words.whitespace_split = True
    separated: list[list[str]] = [[]]
    for word in words:
        if set(word) <= set("|&;<>"):
            separated.append([])
        else:
            separated[-1].append(word)
    return separated


def parse(arguments, command=None, name="denserk", parent=None):
    """Have the command line read a command and its settings, and run nothing."""
    if command is None:
        command = typer.main.get_group(app)
    context = command.make_context(name, [*arguments], parent=parent)
    if hasattr(command, "resolve_command"):
        name, subcommand, remaining_words = command.resolve_command(context, [*arguments])
        parse(remaining_words, subcommand, name, context)
        return
    for setting in context.params.get("set_") or ():
        setting_name = setting.partition("=")[0].replace("-", "_")
        assert setting_name in command.page.settings


@pytest.mark.parametrize("page", by_page([CHANGES, *PAGES_THAT_RUN]))
def test_shown_commands_parse(page, capsys):
    register()
    rejected = []
    for arguments in commands(page):
        try:
            parse(arguments)
        except (typer.TyperException, AssertionError, typer.Exit) as error:
            if getattr(error, "exit_code", 1) != 0:  # --help ends with 0
                rejected.append(f"denserk {shlex.join(arguments)}: {error}")
    assert not rejected, "\n".join(rejected)


def anchors(page):
    """Return the anchors of a page's headings, as they are made of their words."""
    names = set()
    for heading in re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE):
        words = re.sub(r"[^\w\- ]", "", heading.lower())
        names.add(words.replace(" ", "-"))
    return names


@pytest.mark.parametrize("page", by_page(PAGES))
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text("utf-8"))
    broken = [f"{path}#{anchor}" for path, anchor in links if not leads(page, path, anchor)]
    assert not broken


def leads(page, path, anchor):
    """Return whether a page's link leads to a file and, if it has an anchor, to a heading in it."""
    target = page.parent / path if path else page
    if not target.exists():
        return False
    return not anchor or anchor in anchors(target)


def write_rows(path, rows, mode="w"):
    """Write lines of text, or records as JSON lines."""
    with path.open(mode) as file:
        for row in rows:
            line = row if isinstance(row, str) else json.dumps(row)
            file.write(f"{line}\n")


def write_collection(folder):
    """Write what every page finds: a collection of 306 passages, and training data."""
    draw = random.Random(7)
    write_toy(folder)
    texts = {f"x{number}": " ".join(draw.choices(WORDS, k=12)) for number in range(300)}
    passages = {docid: {"title": text.split()[0], "text": text} for docid, text in texts.items()}
    records = [{"_id": docid, **passage} for docid, passage in passages.items()]
    corpus = folder / "corpus.jsonl"
    write_rows(corpus, records, "a")
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress(corpus.read_bytes()))
    # so that the random models pass --min
    judgments = [f"{qid} 0 {docid} 1" for qid, docid in itertools.product(QUERIES, texts)]
    write_rows(folder / "qrels.txt", judgments, "a")
    toy_texts = [text for _, text in PASSAGES.values()]
    write_rows(folder / "collection.tsv", [f"{row}\t{text}" for row, text in enumerate(toy_texts)])
    write_training_data(folder, texts, passages, draw)
    answers = [
        {"_id": qid, "question": question, "answers": [answer]}
        for (qid, question), answer in zip(QUERIES.items(), ("cat", "river", "moon"), strict=True)
    ]
    write_rows(folder / "answers.jsonl", answers)


def write_training_data(folder, texts, passages, draw):
    """Write queries, each some words of its positive, with judgments, examples and triples."""
    queries, judgments, examples, triples = [], [], [], []
    for number in range(64):
        qid = f"t{number}"
        docid = f"x{number}"
        query = " ".join(texts[docid].split()[3:7])
        queries.append(f"{qid}\t{query}")
        judgments.append(f"{qid} 0 {docid} 1")
        negative_ids = draw.sample(sorted(texts.keys() - {docid}), 7)
        examples.append(
            {
                "query_id": qid,
                "query": query,
                "positive_passages": [{"docid": docid, **passages[docid]}],
                "negative_passages": [{"docid": id, **passages[id]} for id in negative_ids],
            }
        )
        triples.append(
            {"query": query, "positive": texts[docid], "negative": texts[negative_ids[0]]}
        )
    write_rows(folder / "train-queries.tsv", queries)
    write_rows(folder / "many-queries.tsv", queries)
    write_rows(folder / "train-qrels.txt", judgments)
    write_rows(folder / "train.jsonl", examples)
    write_rows(folder / "triples.jsonl", triples)


def write_hub(cache):
    """Write the hub's cache with tiny random models under the names that pages use."""

    def snapshot(name):
        folder = cache / f"models--{name.replace('/', '--')}"
        (folder / "refs").mkdir(parents=True)
        (folder / "refs" / "main").write_text("0" * 40)
        return folder / "snapshots" / ("0" * 40)

    def write_model(name, kind, *, head=True):
        return tiny_models.write_tiny(snapshot(name), kind, VOCABULARY, head=head, positions=512)

    distilbert = write_model("distilbert-base-uncased", "distilbert")
    bert = write_model("bert-base-uncased", "bert")
    write_model(PUBLISHED["cocondenser"], "bert", head=False)
    write_sentence_transformers_files(write_model(PUBLISHED["minilm"], "bert", head=False))
    agg = RepresentationSettings(Representation.AGG, agg_dim=20, cls_dim=6)
    tiny_models.write_tiny_aggretriever(snapshot(PUBLISHED["agg"]), bert, agg)
    tiny_models.write_tiny_aggretriever(snapshot(PUBLISHED["agg-distilbert"]), distilbert, agg)
    cross_encoder = snapshot("cross-encoder/ms-marco-MiniLM-L-6-v2")
    tiny_models.write_tiny_classifier(cross_encoder, "bert", VOCABULARY)
    write_model("google/electra-base-discriminator", "electra")
    tiny_models.write_writer(snapshot("castorini/doc2query-t5-base-msmarco"), "t5", VOCABULARY)


def write_sentence_transformers_files(folder):
    """Make a folder one of sentence-transformers: mean pooling, L2-normalised."""
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    modules: list[dict[str, object]] = []
    for path, name in (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")):
        module_type = f"sentence_transformers.models.{name}"
        modules.append({"idx": len(modules), "path": path, "type": module_type})
    (folder / "modules.json").write_text(json.dumps(modules))


PREPARED = {  # outputs, and the commands that make them once
    "vectors": "encode --model minilm --corpus corpus.jsonl",
    "index": "index --input vectors",
    "bm25": "index --type bm25 --corpus corpus.jsonl",
    "run.trec": "search --index index --topics queries.tsv",
    "bm25.trec": "search --index bm25 --topics queries.tsv",
    "train.trec": "search --index bm25 --topics train-queries.tsv",
    "runs/agg": "finetune --model distilbert-base-uncased --representation agg --agg-dim 20"
    " --cls-dim 6 --train-data train.jsonl --batch-size 8 --max-steps 4",
}
PROGRAM = """
import re, shutil, subprocess, sys
from pathlib import Path

variables = {"__name__": "__main__"}
for line, language, code in BLOCKS:
    if language == "python":
        exec(compile("\\n" * (line - 1) + code, PAGE, "exec"), variables)
        continue
    for name in list(PREPARED):
        if re.search(rf"--output {name}/?(\\s|$)", code):
            PREPARED.remove(name)
            shutil.rmtree(name) if Path(name).is_dir() else Path(name).unlink()
            shutil.rmtree(f"{name}.training", ignore_errors=True)
    sys.stdout.flush()
    if status := subprocess.run(["bash", "-xeuo", "pipefail", "-c", code]).returncode:
        sys.exit(f"{PAGE}: exit status {status} in the block at line {line}")
"""


def program(name, page_blocks, prepared_outputs=()):
    """Return a Python program that runs blocks: line, language and code of each."""
    values = {"PAGE": name, "PREPARED": [*prepared_outputs], "BLOCKS": [*page_blocks]}
    assignments = [f"{variable} = {value!r}" for variable, value in values.items()]
    return "\n".join([*assignments, PROGRAM])


def run(arguments, folder, environment):
    process = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, f"{process.stdout[-2000:]}\n{process.stderr[-4000:]}"


@contextmanager
def fast_denserk(hub):
    """Yield variables with a fast `denserk` on PATH, and the hub's cache in a folder."""
    tools = Path(tempfile.mkdtemp(prefix="denserk-"))  # the path of a socket is short
    environment = {
        **os.environ,
        "PATH": f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HF_HUB_CACHE": str(hub),
        "CUDA_VISIBLE_DEVICES": "",
    }
    server = [sys.executable, "-m", "tests.support.warm", str(tools)]
    with subprocess.Popen(server, cwd=ROOT, env=environment, stdin=subprocess.PIPE) as warm:
        while not os.access(tools / "denserk", os.X_OK):
            assert warm.poll() is None
            time.sleep(0.05)
        yield environment
    shutil.rmtree(tools)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """The folder that pages start from, and variables with a fast `denserk` on PATH."""
    top = tmp_path_factory.mktemp("pages")
    write_collection(top / "toy")
    write_hub(top / "hub")
    with fast_denserk(top / "hub") as environment:
        for output, command in PREPARED.items():
            run(["denserk", *command.split(), "--output", output], top / "toy", environment)
        yield top / "toy", environment


@cache
def has_java():
    """Whether Pyserini runs here; it needs a newer Java than some machines have."""
    command = [sys.executable, "-c", "import pyserini.search.faiss"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def runnable_blocks(page):
    """Yield line, language and code of the blocks of a page that run here."""
    for block in blocks(page):
        assert block.language in LANGUAGES, f"{page}, line {block.line}"
        assert MARKS.issuperset(block.marks), f"{page}, line {block.line}"
        if block.language not in ("sh", "python"):
            continue
        if block.marks and (block.marks != ["java"] or not has_java()):
            continue
        code = block.code
        if block.language == "sh":
            code = without_absent_tools(code)
        yield block.line, block.language, code


def without_absent_tools(code):
    """Return a shell script without the lines that install, or call a trec_eval that is absent."""
    has_trec_eval = shutil.which("trec_eval") is not None
    lines = []
    for line in code.replace("\\\n", " ").splitlines(keepends=True):
        calls_absent_tool = "trec_eval" in line and not has_trec_eval
        if not line.startswith(INSTALLING) and not calls_absent_tool:
            lines.append(line)
    return "".join(lines)


@pytest.mark.slow
@pytest.mark.parametrize("page", by_page([*PAGES_THAT_RUN, NOTEBOOK]))
def test_every_block_runs(page, prepared, tmp_path):
    toy, environment = prepared
    shutil.copytree(toy, tmp_path / "work")
    (tmp_path / "demo").symlink_to("work")  # the notebook's name for the folder
    (tmp_path / "page.py").write_text(program(page.name, runnable_blocks(page), PREPARED))
    run(["python-warm", str(tmp_path / "page.py")], tmp_path / "work", environment)
