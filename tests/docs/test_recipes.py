"""Recipes: commands are valid, run once, resume after an interruption, and end in a table."""

import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from denserk.commands.app import register, run
from denserk.config.benchmarks import Paper
from denserk.evaluation.benchmarks import figures
from tests.docs.test_readme import ROOT, parse

FOLDER = ROOT / "docs" / "recipes"
RECIPES = sorted(path.stem for path in FOLDER.glob("*.sh") if path.stem != "common")
FIGURES = [line.split("\t") for line in (FOLDER / "paper.tsv").read_text().splitlines()]
MASTERS = ("--queries-model", "asks", "--continuation-model", "writes")
STAND_IN = """#!/usr/bin/env bash
# A denserk that only creates its output.
echo "$*" >>"$CALLS"
if [[ $1 == eval ]]; then
  for run in "${@:2}"; do
    [[ $run != *.trec ]] || printf '%s\\tRR@10\\t0.5\\n' "$(basename "$run" .trec)"
  done
elif [[ $1 == convert ]]; then
  printf 'q1\\tred boat\\n' >"$3"
else
  while [[ $1 != --output ]]; do shift; done
  [[ $2 == *.trec || $2 == *.jsonl ]] && touch "$2" || mkdir -p "$2"
fi
"""


# Modules that the commands of recipes import when they run.
WORK = (
    "build_index",
    "convert",
    "encode",
    "finetune",
    "fuse",
    "generate",
    "mine_negatives",
    "pretrain",
    "rerank",
    "search",
)


class Reached(BaseException):
    """A command has accepted all its options and starts its work."""


def recipe(name, *options, **variables):
    """Run a recipe in the shell."""
    command = ["bash", str(FOLDER / f"{name}.sh"), *options]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, cwd=ROOT, env=variables or None
    )


@cache
def commands(name, scale):
    """Return the arguments of every denserk command of a recipe, ablations included."""
    corpus = ("--untitled",) if scale == "full" else ("--data", "D")
    process = recipe(name, "--scale", scale, *corpus, "--ablations", "--dry-run", *MASTERS)
    assert process.returncode == 0, process.stderr
    lines = [line[2:] for line in process.stdout.splitlines() if line.startswith("$ ")]
    return [shlex.split(line)[1:] for line in lines]


def alike(steps):
    """Return the first of the commands that differ only in their paths."""
    step_by_words: dict[tuple[str, ...], list[str]] = {}
    for step in steps:
        words_without_paths = tuple(word for word in step if "/" not in word)
        step_by_words.setdefault(words_without_paths, step)
    return step_by_words.values()


@pytest.fixture
def idle(monkeypatch):
    """Stop every task at its start."""

    def reached(*_, **__):
        raise Reached

    for name in WORK:
        module = ModuleType(f"denserk.tasks.{name}")
        vars(module)["__getattr__"] = lambda _: reached
        monkeypatch.setitem(sys.modules, module.__name__, module)
    # models that earlier commands of a recipe train are not there
    monkeypatch.setattr("denserk.models.sentence_transformers_folder.look_for_encoder", reached)
    monkeypatch.setattr("denserk.io.model_files.look_for_model", reached)


@pytest.mark.parametrize("name", RECIPES)
def test_every_command_is_accepted(name, idle, capsys):
    *small, last = commands(name, "small")
    *full, _ = commands(name, "full")
    register()
    parse(last)
    assert last[0] == "eval"  # looks at its files first
    for arguments in alike([*small, *full]):
        with pytest.raises(Reached):
            run(arguments)


@pytest.mark.parametrize(
    "row", [row for row in FIGURES if row[3] != "-"], ids=lambda row: "-".join(row[:2])
)
def test_the_papers_print_these_figures(row):
    recipe, _, _, reciprocal_rank, recall, source = row
    paper, _, table = source.rpartition("Table ")
    name = paper.removesuffix("'s ").lower() or recipe
    printed = {
        (figure["metric"], float(figure["value"]))
        for figure in figures(Paper(name.replace("cocondenser", "condenser")))
        if figure["label"] == "MARCO Dev" and figure["table"].startswith(f"T{table}.")
    }
    assert ("RR@10", float(reciprocal_rank)) in printed
    assert recall == "-" or ("R@1K", float(recall)) in printed


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Write a collection and a denserk that only creates outputs; return options and variables."""
    (tmp_path / "denserk").write_text(STAND_IN)
    (tmp_path / "denserk").chmod(0o755)
    data = tmp_path / "data"
    (data / "qrels").mkdir(parents=True)
    for name in ("corpus.jsonl", "queries.jsonl.gz"):
        (data / name).touch()
    for split in ("train", "test"):
        (data / "qrels" / f"{split}.tsv").write_text("qid\tdocid\tscore\nq1\td1\t1\n")
    options = ("--data", str(data), "--work", str(tmp_path / "work"), "--model", "weights")
    variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", "CALLS": str(tmp_path / "calls")}
    return options, variables


def calls(variables):
    """Return the calls of the stand-in so far."""
    return Path(variables["CALLS"]).read_text().splitlines()


@pytest.mark.parametrize("name", RECIPES)
def test_a_second_run_measures_alone(name, stand_in):
    options, variables = stand_in
    first_run = recipe(name, *options, **variables)
    assert first_run.returncode == 0, first_run.stderr
    before = calls(variables)
    assert recipe(name, *options, **variables).stdout.endswith(
        first_run.stdout[first_run.stdout.index("| stage |") :]
    )
    assert [call.split()[0] for call in calls(variables)[len(before) :]] == ["eval"]


@pytest.mark.parametrize("name", RECIPES)
def test_full_scale_asks_for_titles(name):
    process = recipe(name, "--scale", "full", "--dry-run")
    if name == "aggretriever":  # its paper reads no titles
        assert process.returncode == 0
        return
    assert process.returncode == 2
    assert "add --corpus titled.tsv" in process.stderr
    assert "--untitled" in process.stderr


@pytest.mark.parametrize("corpus", [("--untitled",), ("--corpus", "titled.tsv")])
def test_the_table_says_that_an_untitled_corpus_does_not_compare(corpus, stand_in, tmp_path):
    options, variables = stand_in
    process = recipe("mlr", "--scale", "full", *corpus, *options, **variables)
    assert process.returncode == 0, process.stderr
    table = (tmp_path / "work/mlr/table.md").read_text()
    assert process.stdout.endswith(table)
    assert ("Not comparable" in table) is (corpus == ("--untitled",))
