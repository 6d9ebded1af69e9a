"""What the command line must not load: no help is worth a second of waiting for torch."""

import os
import subprocess
import sys

from denserk.commands.app import COMMANDS, run

DRIVER = """
import sys
from denserk.commands.app import run

for arguments in {lines!r}:
    assert run(arguments) == 0, arguments
sys.stderr.write("loaded: " + " ".join(sorted(sys.modules.keys() & {heavy!r})))
"""


def loaded(*lines, heavy=("faiss", "torch", "transformers")):
    """Which heavy modules a fresh process has loaded after it ran these command lines."""
    script = DRIVER.format(lines=[list(map(str, line)) for line in lines], heavy=set(heavy))
    process = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    return process.stderr.rpartition("loaded: ")[2].split()


def test_help_loads_nothing_heavy():
    heavy = ("faiss", "numpy", "pydantic", "torch", "transformers", "mcp", "starlette", "uvicorn")
    assert not loaded(["--help"], *([name, "--help"] for name in COMMANDS), heavy=heavy)


def test_eval_does_without_torch(toy):
    (toy / "run.trec").write_text("q1 Q0 d3 1 2.0 x\nq2 Q0 d5 1 2.0 x\nq3 Q0 d1 1 1.0 x\n")
    heavy = {"faiss", "torch", "transformers", "scipy", "pandas", "rich", "yaml"}
    heavy |= {"filelock", "jsonlines", "matplotlib", "numpy.ma", "pyarrow", "regex"}
    assert not loaded(["eval", toy / "run.trec", toy / "qrels.txt"], heavy=heavy)


def test_vectors_and_models_alone_load_torch(toy, monkeypatch):
    """Search terms or an approximate index, fuse, convert, mine and measure: torch stays out."""
    monkeypatch.chdir(toy)
    rows = (f'{{"id": "{name}", "vector": [1, 2]}}\n' for name in "abc")
    (toy / "v.jsonl").write_text("".join(rows))
    (toy / "judged").write_text("q1 0 d10 1\nq2 0 d10 1\nq3 0 d10 1\n")
    assert run(["index", "--input", "v.jsonl", "--factory", "HNSW8", "--output", "hnsw"]) == 0
    lines = (
        "index --type bm25 --corpus corpus.jsonl --output bm25",
        "index --input v.jsonl --output flat",
        "search --index bm25 --topics queries.tsv --output a",
        "search --index bm25 --topics queries.tsv --output b",
        "search --index hnsw --encoded-queries v.jsonl --output c",
        "fuse a b --output fused",
        "convert fused fused.tsv --to msmarco",
        "mine-negatives --run fused --topics queries.tsv --qrels judged --corpus corpus.jsonl "
        "--output train.jsonl",
        "eval fused qrels.txt",
    )
    assert not loaded(*map(str.split, lines), heavy=("torch", "transformers"))


def test_threads_of_python_programs_sleep_while_they_wait():
    assert wait_policy({}) == "PASSIVE"
    assert wait_policy({"OMP_WAIT_POLICY": "ACTIVE"}) == "ACTIVE"


def wait_policy(variables):
    """Return how threads wait in a Python program of a user who has set some variables."""
    program = "import os, denserk; denserk.Encoder; print(os.environ['OMP_WAIT_POLICY'])"
    environment = dict(variables)
    for name, value in os.environ.items():
        if not name.startswith(("OMP_", "GOMP")):
            environment[name] = value
    process = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    return process.stdout.strip()
