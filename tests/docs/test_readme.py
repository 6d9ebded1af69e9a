"""What README.md and docs/ say is so: commands parse, links lead somewhere, every block runs.

A page's ```sh and ```python blocks run from top to bottom in a copy of one toy folder, which the
fixture `prepared` makes. To run one page: pytest tests/docs/test_readme.py -k 'runs and finetune'

A word after the language leaves a block to the parse test: network, gpu, cluster, and java where
Pyserini or its Java is absent. A prepared output (vectors/, index/, bm25/, run.trec, bm25.trec,
train.trec, runs/agg) is removed before the first block that writes it with --output.
"""

import gzip
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
from functools import cache
from pathlib import Path

import pytest
import typer

from denserk.commands.app import app, register
from denserk.config.encoding import PUBLISHED, Representation, RepresentationSettings
from tests.support import tiny_models
from tests.support.toy import PASSAGES, QUERIES, VOCABULARY, WORDS, write_toy

ROOT = Path(__file__).parents[2]
CHANGES = ROOT / "CHANGELOG.md"
EXTENDING, NOTEBOOK = ROOT / "docs/extending.md", ROOT / "docs/notebook.ipynb"
PAGES = [ROOT / "README.md", CHANGES, *sorted((ROOT / "docs").rglob("*.md"))]
# tests/docs/test_extending.py runs the examples of new commands and options
DONE = [page for page in PAGES if page not in (CHANGES, EXTENDING)]
LANGUAGES = {"sh", "python", "text", "json", "yaml", "bibtex"}
MARKS = {"network", "gpu", "cluster", "java"}
# Lines that prepare a machine, or take long; `.ci/run` runs the quickstart and tests/run.sh, and
# tests/docs/test_recipes.py the recipes.
INSTALLING = (
    *("bash docs/", "bash tests/", "pip install", "python -m pip", "python3.11 -m venv"),
    *(".venv/bin/pip install", "source .venv/bin/activate", "git clone", "cd denserk"),
)
BLOCK = re.compile(r"^(?P<indent> *)```(?P<kind>.*)\n(?P<code>(?s:.*?))^ *```", re.MULTILINE)


def by_page(pages):
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in pages]


def blocks(page):
    """Line number, language, words after it and code of every fenced block of a page."""
    text = page.read_text("utf-8")
    if page == NOTEBOOK:
        cells = (c for c in json.loads(text)["cells"] if c["cell_type"] == "code")
        text = "".join(f"```python\n{''.join(c['source'])}\n```\n" for c in cells)
    for found in BLOCK.finditer(text):
        language, *words = found["kind"].split() or [""]
        code = re.sub(rf"(?m)^{found['indent']}", "", found["code"])
        yield text[: found.start()].count("\n") + 2, language, words, code


def commands(page):
    """The arguments of every denserk command on a page, each part of a pipeline on its own."""
    shells = [code for _, language, _, code in blocks(page) if language in ("sh", "bash", "")]
    for line in "".join(shells).replace("\\\n", " ").splitlines():
        line = line.strip()
        if not re.search(r"(?:^|[|&] |-m )(?:\$ )?denserk ", line) or " ... " in line:
            continue
        line = re.sub(r"\$(\([^)]*\)|[A-Z_]+)", "0", line.removeprefix("$ "))  # by a shell
        words = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
        words.whitespace_split = True
        part: list[str] = []
        for word in [*words, "|"]:
            if set(word) <= set("|&;<>"):
                if part[:1] == ["denserk"] or "-m denserk " in " ".join(part):
                    yield part[part.index("denserk") + 1 :]
                part = []
            else:
                part.append(word)


def parse(arguments, command=None, name="denserk", parent=None):
    """Has the command line read a command and its settings, and run nothing."""
    command = command or typer.main.get_group(app)
    context = command.make_context(name, [*arguments], parent=parent)
    if hasattr(command, "resolve_command"):
        name, chosen, rest = command.resolve_command(context, [*arguments])
        parse(rest, chosen, name, context)
    else:
        given = {setting.partition("=")[0] for setting in context.params.get("set_") or ()}
        assert {name.replace("-", "_") for name in given} <= command.page.settings.keys()


@pytest.mark.parametrize("page", by_page([CHANGES, *DONE]))
def test_shown_commands_parse(page, capsys):
    register()
    wrong = []
    for arguments in commands(page):
        try:
            parse(arguments)
        except (typer.TyperException, AssertionError, typer.Exit) as error:
            if getattr(error, "exit_code", 1):
                wrong.append(f"denserk {shlex.join(arguments)}: {error}")
    assert not wrong, "\n".join(wrong)


def anchors(page):
    """The anchors of a page's headings, as they are made of their words."""
    heads = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", by_page(PAGES))
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text("utf-8"))
    broken = [
        f"{path}#{anchor}"
        for path, anchor in links
        if not (target := page.parent / path if path else page).exists()
        or (anchor and anchor not in anchors(target))
    ]
    assert not broken


def write_collection(folder):
    """Write what every page finds: a collection of 306 passages, and training data."""
    corpus, drawn = write_toy(folder) / "corpus.jsonl", random.Random(7)

    def write(name, rows, mode="w"):
        with (folder / name).open(mode) as out:
            out.writelines((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows)

    texts = {f"x{i}": " ".join(drawn.choices(WORDS, k=12)) for i in range(300)}
    added = {d: {"title": text.split()[0], "text": text} for d, text in texts.items()}
    write("corpus.jsonl", ({"_id": d, **passage} for d, passage in added.items()), "a")
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress(corpus.read_bytes()))
    judged = (f"{qid} 0 {docid} 1" for qid in QUERIES for docid in texts)
    write("qrels.txt", judged, "a")  # so that the random models pass --min
    write("collection.tsv", (f"{i}\t{text}" for i, (_, text) in enumerate(PASSAGES.values())))
    asked = {f"t{i}": (f"x{i}", " ".join(texts[f"x{i}"].split()[3:7])) for i in range(64)}
    write("train-queries.tsv", (f"{qid}\t{query}" for qid, (_, query) in asked.items()))
    write("train-qrels.txt", (f"{qid} 0 {docid} 1" for qid, (docid, _) in asked.items()))
    train, triples = [], []
    for qid, (docid, query) in asked.items():
        drawn_ids = drawn.sample(sorted(texts.keys() - {docid}), 7)
        positive, *negatives = [{"docid": each, **added[each]} for each in (docid, *drawn_ids)]
        sides = {"positive_passages": [positive], "negative_passages": negatives}
        train.append({"query_id": qid, "query": query, **sides})
        pair = {"positive": texts[docid], "negative": texts[drawn_ids[0]]}
        triples.append({"query": query, **pair})
    write("train.jsonl", train)
    write("triples.jsonl", triples)
    answers = zip(QUERIES.items(), ("cat", "river", "moon"), strict=True)
    write("answers.jsonl", ({"_id": i, "question": q, "answers": [a]} for (i, q), a in answers))


def write_hub(cache):
    """The hub's cache with tiny random models under the names that pages use."""

    def snapshot(name):
        folder = cache / f"models--{name.replace('/', '--')}"
        (folder / "refs").mkdir(parents=True)
        (folder / "refs" / "main").write_text("0" * 40)
        return folder / "snapshots" / ("0" * 40)

    def tiny(name, kind, *, head=True):
        return tiny_models.write_tiny(snapshot(name), kind, VOCABULARY, head=head, positions=512)

    distilbert = tiny("distilbert-base-uncased", "distilbert")
    bert = tiny("bert-base-uncased", "bert")
    tiny(PUBLISHED["cocondenser"], "bert", head=False)
    minilm = tiny(PUBLISHED["minilm"], "bert", head=False)
    (minilm / "1_Pooling").mkdir()
    (minilm / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    parts = ("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")
    kind = "sentence_transformers.models"
    modules = [{"idx": i, "path": p, "type": f"{kind}.{t}"} for i, (p, t) in enumerate(parts)]
    (minilm / "modules.json").write_text(json.dumps(modules))
    agg = RepresentationSettings(Representation.AGG, agg_dim=20, cls_dim=6)
    tiny_models.write_tiny_aggretriever(snapshot(PUBLISHED["agg"]), bert, agg)
    tiny_models.write_tiny_aggretriever(snapshot(PUBLISHED["agg-distilbert"]), distilbert, agg)
    cross = "cross-encoder/ms-marco-MiniLM-L-6-v2"
    tiny_models.write_tiny_classifier(snapshot(cross), "bert", VOCABULARY)
    tiny("google/electra-base-discriminator", "electra")
    tiny_models.write_writer(snapshot("castorini/doc2query-t5-base-msmarco"), "t5", VOCABULARY)


MADE = {  # by the commands below, once
    "vectors": "encode --model minilm --corpus corpus.jsonl",
    "index": "index --input vectors",
    "bm25": "index --type bm25 --corpus corpus.jsonl",
    "run.trec": "search --index index --topics queries.tsv",
    "bm25.trec": "search --index bm25 --topics queries.tsv",
    "train.trec": "search --index bm25 --topics train-queries.tsv",
    "runs/agg": "finetune --model distilbert-base-uncased --representation agg --agg-dim 20"
    " --cls-dim 6 --train-data train.jsonl --batch-size 8 --max-steps 4",
}
PAGE = """
import re, shutil, subprocess, sys
from pathlib import Path

names, made = {"__name__": "__main__"}, MADE
for line, language, code in BLOCKS:
    if language == "python":
        exec(compile("\\n" * (line - 1) + code, PAGE, "exec"), names)
        continue
    for name in [each for each in made if re.search(rf"--output {each}/?(\\s|$)", code)]:
        made.remove(name)
        shutil.rmtree(name) if Path(name).is_dir() else Path(name).unlink()
        shutil.rmtree(f"{name}.training", ignore_errors=True)
    sys.stdout.flush()
    if status := subprocess.run(["bash", "-xeuo", "pipefail", "-c", code]).returncode:
        sys.exit(f"{PAGE}: exit status {status} in the block at line {line}")
"""


def run(arguments, folder, environment):
    done = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """The folder that pages start from, and variables with a fast `denserk` on PATH."""
    top = tmp_path_factory.mktemp("pages")
    write_collection(top / "toy")
    write_hub(top / "hub")
    tools = Path(tempfile.mkdtemp(prefix="denserk-"))  # the path of a socket is short
    environment = {
        **os.environ,
        "PATH": f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HF_HUB_CACHE": str(top / "hub"),
        "CUDA_VISIBLE_DEVICES": "",
    }
    server = [sys.executable, "-m", "tests.support.warm", str(tools)]
    with subprocess.Popen(server, cwd=ROOT, env=environment, stdin=subprocess.PIPE) as warm:
        while not os.access(tools / "denserk", os.X_OK):
            assert warm.poll() is None
            time.sleep(0.05)
        for output, command in MADE.items():
            run(["denserk", *command.split(), "--output", output], top / "toy", environment)
        yield top / "toy", environment
    shutil.rmtree(tools)


@cache
def has_java():
    """Whether Pyserini runs here; it needs a newer Java than some machines have."""
    found = [sys.executable, "-c", "import pyserini.search.faiss"]
    return not subprocess.run(found, capture_output=True, check=False).returncode


def chosen(page):
    """The blocks of a page that run here, without the lines that install."""
    has_trec_eval = shutil.which("trec_eval") is not None
    for line, language, words, code in blocks(page):
        assert language in LANGUAGES and {*words} <= MARKS, f"{page}, line {line}"  # noqa: PT018
        if language not in ("sh", "python") or {*words} - {"java"}:
            continue
        if "java" in words and not has_java():
            continue
        if language == "sh":
            lines = code.replace("\\\n", " ").splitlines(keepends=True)
            kept = (each for each in lines if not each.startswith(INSTALLING))
            code = "".join(each for each in kept if has_trec_eval or "trec_eval" not in each)
        yield line, language, code


@pytest.mark.slow
@pytest.mark.parametrize("page", by_page([*DONE, NOTEBOOK]))
def test_every_block_runs(page, prepared, tmp_path):
    toy, environment = prepared
    shutil.copytree(toy, tmp_path / "work")
    (tmp_path / "demo").symlink_to("work")  # the notebook's name for the folder
    program = f"PAGE, MADE = {page.name!r}, {[*MADE]!r}\nBLOCKS = {[*chosen(page)]!r}"
    (tmp_path / "page.py").write_text(program + PAGE)
    run(["python-warm", str(tmp_path / "page.py")], tmp_path / "work", environment)
