"""What the command line must not load: no help is worth a second of waiting for torch."""

import os
import subprocess
import sys

import pytest
import typer

from denserk.commands.app import COMMANDS, app, register, run

DRIVER = """
import sys
from denserk.commands.app import run

for arguments in {lines!r}:
    assert run(arguments) == 0, arguments
sys.stderr.write("loaded: " + " ".join(sorted(sys.modules.keys() & {heavy!r})))
"""


def loaded(*lines, heavy=("faiss", "torch", "transformers")):
    """Which heavy modules a fresh process has loaded after it ran these command lines."""
    script = DRIVER.format(lines=lines, heavy=set(heavy))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stderr.rpartition("loaded: ")[2].split()


def test_help_loads_nothing_heavy():
    assert {"convert", "encode", "eval", "index", "search"} <= set(COMMANDS)
    assert not loaded(["--help"], *([name, "--help"] for name in COMMANDS))


def test_the_lines_of_the_help_are_the_commands_own():
    register()
    group = typer.main.get_group(app)
    assert {
        name: str(command.help).partition("\n")[0] for name, command in group.commands.items()
    } == COMMANDS


def test_eval_does_without_torch(toy):
    run_file = toy / "run.trec"
    run_file.write_text("q1 Q0 d3 1 2.0 x\nq2 Q0 d5 1 2.0 x\nq3 Q0 d1 1 1.0 x\n")
    heavy = {"faiss", "torch", "transformers", "scipy", "pandas", "rich", "yaml"}
    heavy |= {"filelock", "jsonlines", "matplotlib", "numpy.ma", "pyarrow", "regex"}
    assert not loaded(["eval", str(run_file), str(toy / "qrels.txt")], heavy=heavy)


def test_vectors_and_models_alone_load_torch(toy, tmp_path):
    """Search terms or an approximate index, fuse, convert, mine and measure: torch stays out."""
    queries, rows = (
        tmp_path / "q.jsonl",
        "".join(f'{{"id": "{n}", "vector": [1, 2]}}\n' for n in "abc"),
    )
    queries.write_text(rows)
    index = ["index", "--input", queries, "--factory", "HNSW8", "--output", toy / "hnsw"]
    assert run([str(word) for word in index]) == 0
    topics, bm25, runs = ["--topics", toy / "queries.tsv"], toy / "bm25", [toy / "a", toy / "b"]
    corpus = ["--corpus", toy / "corpus.jsonl"]
    lines = [
        ["index", "--type", "bm25", *corpus, "--output", bm25],
        ["index", "--input", queries, "--output", toy / "flat"],
        *(["search", "--index", bm25, *topics, "--output", name] for name in runs),
        ["search", "--index", toy / "hnsw", "--encoded-queries", queries, "--output", toy / "c"],
        ["fuse", *runs, "--output", toy / "fused"],
        ["convert", toy / "fused", toy / "fused.tsv", "--to", "msmarco"],
        [
            *("mine-negatives", "--run", toy / "fused", *topics, "--qrels", toy / "qrels.txt"),
            *(*corpus, "--output", toy / "train.jsonl"),
        ],
        ["eval", toy / "fused", toy / "qrels.txt"],
    ]
    every = [[str(word) for word in line] for line in lines]
    assert not loaded(*every, heavy=("torch", "transformers"))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "PASSIVE None 4"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE None 4"),
        ({"GOMP_SPINCOUNT": "9", "OPENBLAS_THREAD_TIMEOUT": "20"}, "None 9 20"),
    ],
)
def test_idle_threads_sleep_unless_the_user_chose_otherwise(given, expected):
    """The variables are read once, when torch is loaded: the entry point sets them before."""
    script = """
import os, sys
from denserk.__main__ import main
sys.argv = ["denserk", "--version"]
try:
    main()
finally:
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OPENBLAS_THREAD_TIMEOUT")
    print("torch" in sys.modules, "numpy" in sys.modules, *map(os.environ.get, names))
"""
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OPENBLAS_THREAD_TIMEOUT")
    env = {name: value for name, value in os.environ.items() if name not in names} | given
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == f"False False {expected}"
