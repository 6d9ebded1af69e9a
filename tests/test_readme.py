"""What README.md and docs/ say is so: commands parse, links lead somewhere, pages are listed."""

import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from denserk.commands.app import app, register
from denserk.config.encoding import Representation, RepresentationSettings
from tests.conftest import PASSAGES, QRELS, QUERIES, VOCABULARY, write_toy
from tests.tiny_models import write_tiny, write_tiny_aggretriever

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
TWO_COMMANDS = ("bash docs/quickstart.sh", "bash tests/run.sh")


def shown(page):
    """The lines of a page's shell blocks, fenced or indented, continued lines joined."""
    text = page.read_text("utf-8")
    blocks = re.findall(r"^```(?:sh|bash)?\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    blocks += re.findall(r"\n\n((?:    .*\n)+)", re.sub(r"(?ms)^```.*?^```", "", text))
    return [line.strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()]


def commands(page):
    """The arguments of every denserk command on a page, each part of a pipeline on its own."""
    for line in shown(page):
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


SHOWN = [
    pytest.param(arguments, id=f"{page.relative_to(ROOT)}: {' '.join(arguments)}")
    for page in PAGES
    for arguments in commands(page)
]


def parse(arguments, command=None, name="denserk", parent=None):
    """Has the command line read a command and its settings, and run nothing."""
    register()
    command = command or typer.main.get_group(app)
    context = command.make_context(name, [*arguments], parent=parent)
    if hasattr(command, "resolve_command"):
        name, chosen, rest = command.resolve_command(context, [*arguments])
        parse(rest, chosen, name, context)
    else:
        given = {setting.partition("=")[0] for setting in context.params.get("set_") or ()}
        assert {name.replace("-", "_") for name in given} <= command.rare.keys()


@pytest.mark.parametrize("arguments", SHOWN)
def test_shown_commands_parse(arguments, capsys):
    parse(arguments)


def anchors(page):
    """The anchors of a page's headings, as they are made of their words."""
    heads = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text("utf-8"))
    broken = [
        f"{path}#{anchor}"
        for path, anchor in links
        if not (target := page.parent / path if path else page).exists()
        or (anchor and anchor not in anchors(target))
    ]
    assert not broken


# Lines that prepare a machine; `.ci/run` runs the two commands.
INSTALLING = (*TWO_COMMANDS, "pip install", "python3.11 -m venv", ".venv/bin/pip install")


def needs(line):
    """The absent tool that a line needs, or None."""
    if "trec_eval" in line and shutil.which("trec_eval") is None:
        return "trec_eval"
    module = re.match(r"python -m (pyserini[\w.]*)", line)
    if module:  # absent too where it finds no Java, or an older one than it needs
        found = [sys.executable, "-c", f"import {module[1]}"]
        if subprocess.run(found, capture_output=True, check=False).returncode:
            return module[1]
    return None


def write_collection(folder):
    """Write what the README assumes: a collection, and training data."""
    corpus = write_toy(folder) / "corpus.jsonl"
    # a batch of `pretrain` takes 256 texts; all are judged relevant, so that any model passes --min
    more = [f"x{number}" for number in range(300)]
    with corpus.open("a") as out:
        out.writelines(f'{{"_id": "{d}", "text": "the boat {d} on the river"}}\n' for d in more)
    with (folder / "qrels.txt").open("a") as out:
        out.writelines(f"{qid} 0 {d} 1\n" for qid in QUERIES for d in more)
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress(corpus.read_bytes()))
    (folder / "collection.tsv").write_text(
        "".join(f"{number}\t{text}\n" for number, (_, text) in enumerate(PASSAGES.values()))
    )

    def passages(ids):
        return [dict(zip(("docid", "title", "text"), (d, *PASSAGES[d]), strict=True)) for d in ids]

    with (folder / "train.jsonl").open("w") as out:
        for number, qid in enumerate([*QUERIES] * 8):  # the presets' batches take 8 queries
            chosen = {
                "query_id": f"t{number}",
                "query": QUERIES[qid],
                "positive_passages": passages(QRELS[qid]),
                "negative_passages": passages(PASSAGES.keys() - QRELS[qid].keys()),
            }
            out.write(json.dumps(chosen) + "\n")


def write_hub(cache):
    """The hub's cache with tiny random models under the names that the README uses."""

    def snapshot(name):
        folder = cache / f"models--{name.replace('/', '--')}"
        (folder / "refs").mkdir(parents=True)
        (folder / "refs" / "main").write_text("0" * 40)
        return folder / "snapshots" / ("0" * 40)

    def tiny(name, kind, *, head=True):
        return write_tiny(snapshot(name), kind, VOCABULARY, head=head, positions=512)

    tiny("distilbert-base-uncased", "distilbert")
    bert = tiny("bert-base-uncased", "bert")
    tiny("sentence-transformers/all-MiniLM-L6-v2", "bert", head=False)
    agg = RepresentationSettings(Representation.AGG, agg_dim=20, cls_dim=6)
    write_tiny_aggretriever(snapshot("castorini/aggretriever-cocondenser"), bert, agg)


@pytest.mark.slow
def test_the_readme_runs_as_written(tmp_path):
    """Every line, in order, from a folder that holds a collection and nothing else."""
    write_hub(tmp_path / "hub")
    work, tools = tmp_path / "work", tmp_path / "bin"
    tools.mkdir()
    write_collection(work)
    (tools / "denserk").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m denserk "$@"\n')
    (tools / "denserk").chmod(0o755)
    path = f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {
        **os.environ,
        "PATH": path,
        "PYTHONPATH": str(ROOT),
        "HF_HUB_CACHE": str(tmp_path / "hub"),
        "HF_HUB_OFFLINE": "1",
    }
    lines = [line for line in shown(ROOT / "README.md") if line]
    lines = [line for line in lines if not line.startswith(INSTALLING)]
    ran, absent = 0, {}
    for line in lines:
        if tool := needs(line):
            absent[line] = tool
            continue
        command = ["bash", "-o", "pipefail", "-c", line]
        done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
        ran += 1
    assert ran + len(absent) == len(lines) > 15
    assert len(absent) <= 3
    for line, tool in absent.items():
        print(f"not run, {tool} is absent: {line}")  # noqa: T201
