"""Collections, cells and tables of docs/results.sh, which calls this.

    python docs/results.py prepare|write|check DATA RUNS
    python docs/results.py cells

`prepare` draws queries; `write` measures the runs, and writes results.csv and the table of
results.md; `check` compares results.csv with the runs, and exits with 1 where a cell differs.
"""

import csv
import hashlib
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from denserk.config.evaluation import EvaluationSettings
from denserk.evaluation.significance import interval
from denserk.io.files import write_lines
from denserk.io.manifest import file_sha256
from denserk.io.qrels import read_qrels_map
from denserk.tasks.evaluate import evaluate

HERE = Path(__file__).parent
CELLS, PAGE = HERE / "results.csv", HERE / "results.md"
START, END = "<!-- from docs/results.sh -->", "<!-- to here -->"
COMMAND = "bash docs/results.sh --data DATA --runs RUNS"
MEASURE, ALPHA = "nDCG@10", 0.05
QUERIES, TRAINING = 300, 2000  # at most so many of each collection


class Collection(NamedTuple):
    """Folders of passages, the first of which has the queries, and the split that is judged."""

    name: str
    folders: tuple[str, ...]
    split: str
    trained: bool = False


COLLECTIONS = (
    Collection("squad", ("squad",), "dev", trained=True),
    Collection("nq-qed", ("nq-qed",), "dev", trained=True),
    Collection("wikipedia", ("nq-qed", "squad", "wiki-extra"), "dev"),
    Collection("fairytaleqa", ("fairytaleqa",), "test"),
    Collection("scifact", ("scifact",), "test"),
    Collection("cranfield", ("cranfield",), "test"),
    Collection("cacm", ("cacm",), "test"),
    Collection("marco-dl19", ("marco-dl19",), "test"),
)
# system -> how far its value may be from the table's on another machine
SYSTEMS = {"bm25": 0.0005, "minilm": 0.002, "hybrid": 0.002}
TRAINED = dict.fromkeys(("finetuned", "cls", "agg", "mlr", "rerank"), 0.02)
ALL = {**SYSTEMS, **TRAINED}


def cells() -> Iterator[tuple[Collection, str]]:
    """Yield collections and systems, row by row."""
    for collection in COLLECTIONS:
        for system in ALL if collection.trained else SYSTEMS:
            yield collection, system


def draw(source: Path, target: Path, count: int) -> None:
    """Write the qrels of `count` queries, evenly spread over the sorted ids."""
    judged = read_qrels_map(str(source))
    qids, count = sorted(judged), min(count, len(judged))
    kept = [qids[place * len(qids) // count] for place in range(count)]
    lines = (f"{qid} 0 {docid} {grade}\n" for qid in kept for docid, grade in judged[qid].items())
    write_lines(str(target), lines)


def link(source: Path, target: Path) -> None:
    """Link to a file, in place of an earlier link."""
    target.unlink(missing_ok=True)
    target.symlink_to(source)


def prepare(data: Path, runs: Path) -> None:
    """Write the qrels of each collection, and link its corpus and queries."""
    needed = {folder for collection in COLLECTIONS for folder in collection.folders}
    if lacking := sorted(each for each in needed if not [*(data / each).glob("corpus.jsonl*")]):
        sys.exit(f"error: {data} has no {', '.join(lacking)}: folders in BEIR layout are expected")
    for name, folders, split, trained in COLLECTIONS:
        target, source = runs / name, data / folders[0]
        target.mkdir(exist_ok=True)
        if target.joinpath("qrels.txt").exists():
            continue
        (queries,) = source.glob("queries.jsonl*")
        link(queries, target / queries.name)
        corpora = {folder: next((data / folder).glob("corpus.jsonl*")) for folder in folders}
        if len(folders) > 1:
            (target / "corpus").mkdir(exist_ok=True)
        for folder, corpus in corpora.items():
            ending = corpus.name.removeprefix("corpus")
            link(corpus, target / (f"corpus/{folder}{ending}" if len(folders) > 1 else corpus.name))
        if trained:
            draw(source / "qrels" / "train.tsv", target / "train-qrels.txt", TRAINING)
        draw(source / "qrels" / f"{split}.tsv", target / "qrels.txt", QUERIES)


def digest(folder: Path) -> str:
    """Return the SHA-256 over those of a collection's corpus, queries and qrels."""
    files = [*sorted(folder.glob("corpus/*")), *sorted(folder.glob("corpus.jsonl*"))]
    files += [*folder.glob("queries.jsonl*"), folder / "qrels.txt"]
    return hashlib.sha256("".join(map(file_sha256, files)).encode()).hexdigest()


def measure(folder: Path, system: str) -> tuple[float, float, float]:
    """Return the mean of a run, and its interval of Student's t over the queries."""
    run, qrels = folder / f"{system}.trec", folder / "qrels.txt"
    result = evaluate([str(run)], str(qrels), EvaluationSettings(measures=(MEASURE,)))
    (one,) = result.runs
    return (one.summary[MEASURE], *interval(one, result.measures[0], ALPHA))


def measured(runs: Path) -> Iterator[dict[str, str]]:
    """Yield the row of results.csv of each cell that has a run."""
    digest_of = cache(digest)
    for collection, system in cells():
        folder = runs / collection.name
        if (run := folder / f"{system}.trec").exists():
            value, low, high = measure(folder, system)
            yield {
                "collection": collection.name,
                "system": system,
                MEASURE: f"{value:.4f}",
                "low": f"{low:.4f}",
                "high": f"{high:.4f}",
                "run": file_sha256(run),
                "data": digest_of(folder),
                "command": f"{COMMAND} {collection.name}/{system}",
            }


def recorded() -> list[dict[str, str]]:
    """Return the rows of results.csv."""
    if not CELLS.exists():
        return []
    with CELLS.open(newline="") as handle:
        return [*csv.DictReader(handle)]


def table(rows: list[dict[str, str]]) -> Iterator[str]:
    """Yield the lines of the page's table."""
    found = {(row["collection"], row["system"]): row for row in rows}
    yield "| | " + " | ".join(f"`{system}`" for system in ALL) + " |"
    yield "|" + "---|" * (1 + len(ALL))
    for name in dict.fromkeys(row["collection"] for row in rows):
        texts = []
        for system in ALL:
            row = found.get((name, system))
            texts.append(f"{row[MEASURE]} <small>{row['low']}–{row['high']}</small>" if row else "")
        yield f"| {name} | " + " | ".join(texts) + " |"


def write(runs: Path) -> None:
    """Write results.csv, and the table of the page; cells without a run here stay as they are."""
    known = {(row["collection"], row["system"]): row for row in [*recorded(), *measured(runs)]}
    places = ((collection.name, system) for collection, system in cells())
    rows = [known[place] for place in places if place in known]
    with CELLS.open("w", newline="") as handle:
        out = csv.DictWriter(handle, rows[0], lineterminator="\n")
        out.writeheader()
        out.writerows(rows)
    before, _, rest = PAGE.read_text().partition(START)
    after = rest.partition(END)[2]
    PAGE.write_text("\n".join([before + START, "", *table(rows), "", END + after]))


def check(runs: Path) -> int:
    """Print how each cell of results.csv compares with its run; return how many differ."""
    wrong, digest_of = 0, cache(digest)
    for row in recorded():
        folder, system = runs / row["collection"], row["system"]
        said = f"absent: {row['command']}"
        if (run := folder / f"{system}.trec").exists():
            value, allowed = measure(folder, system)[0], ALL[system]
            same, apart = file_sha256(run) == row["run"], abs(value - float(row[MEASURE]))
            said = "equal bytes" if same else f"{value:.4f}, within {allowed}"
            if digest_of(folder) != row["data"]:
                said, wrong = "other passages, queries or qrels", wrong + 1
            elif apart > allowed + 5e-5:  # the table has four places
                said, wrong = f"{value:.4f} differs by {apart:.4f}, allowed {allowed}", wrong + 1
        sys.stdout.write(f"{row['collection']:12} {system:10} {row[MEASURE]}  {said}\n")
    return wrong


if __name__ == "__main__":
    task, *paths = sys.argv[1:]
    if task == "cells":
        sys.stdout.writelines(f"{collection.name}/{system}\n" for collection, system in cells())
    elif task == "prepare":
        prepare(*map(Path, paths))
    elif task == "write":
        write(Path(paths[1]))
    else:
        sys.exit(min(1, check(Path(paths[1]))))
