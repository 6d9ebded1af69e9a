"""Collections, cells and tables of docs/results.sh, which calls this.

    python docs/results.py prepare|write|check DATA RUNS
    python docs/results.py cells

`prepare` draws queries; `write` measures the runs, and writes results.csv and the tables of
results.md; `check` compares results.csv with the runs, and exits with 1 where a cell differs.
"""

import csv
import hashlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from denserk.config.evaluation import EvaluationSettings
from denserk.evaluation.significance import interval
from denserk.io.files import write_lines
from denserk.io.manifest import file_sha256
from denserk.io.qrels import read_qrels_map
from denserk.tasks.evaluate import evaluate

HERE = Path(__file__).parent
CELLS = HERE / "results.csv"
PAGE = HERE / "results.md"
START = "<!-- from docs/results.sh: {} -->"
END = "<!-- to here -->"
COMMAND = "bash docs/results.sh --data DATA --runs RUNS"
MEASURE = "nDCG@10"
ALPHA = 0.05
MOST_QUERIES = 300  # of each collection that are searched
TRAINING_QUERIES = 2000  # of each collection that models are trained on
ROUNDING = 5e-5  # the table has four places


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
    Collection("nfcorpus", ("nfcorpus",), "test"),
    Collection("cranfield", ("cranfield",), "test"),
    Collection("cacm", ("cacm",), "test"),
    Collection("marco-dl19", ("marco-dl19",), "test"),
)
# system -> how far its value may be from the table's on another machine
UNTRAINED = {"bm25": 0.0005, "minilm": 0.002, "hybrid": 0.002}
TRAINED = {"finetuned": 0.02, "cls": 0.02, "agg": 0.02, "mlr": 0.02, "rerank": 0.02}
TOLERANCES = {**UNTRAINED, **TRAINED}

Row = dict[str, str]  # of results.csv


def cells() -> Iterator[tuple[Collection, str]]:
    """Yield collections and systems, row by row."""
    for collection in COLLECTIONS:
        for system in TOLERANCES if collection.trained else UNTRAINED:
            yield collection, system


# Collections


def draw(source: Path, target: Path, most_queries: int) -> None:
    """Write the qrels of at most so many queries, evenly spread over the sorted ids."""
    judged = read_qrels_map(str(source))
    qids = sorted(judged)
    count = min(most_queries, len(qids))
    lines = []
    for place in range(count):
        qid = qids[place * len(qids) // count]
        for docid, grade in judged[qid].items():
            lines.append(f"{qid} 0 {docid} {grade}\n")
    write_lines(str(target), lines)


def link(source: Path, target: Path) -> None:
    """Link to a file, in place of an earlier link."""
    target.unlink(missing_ok=True)
    target.symlink_to(source)


def corpus_in(folder: Path) -> Path | None:
    """Return the corpus of a folder in BEIR layout, plain or compressed."""
    return next(folder.glob("corpus.jsonl*"), None)


def refuse_missing(data: Path) -> None:
    """Exit with an error if a folder of a collection has no corpus."""
    missing_folders = set()
    for collection in COLLECTIONS:
        for folder in collection.folders:
            if corpus_in(data / folder) is None:
                missing_folders.add(folder)
    if missing_folders:
        names = ", ".join(sorted(missing_folders))
        sys.exit(f"error: {data} has no {names}: folders in BEIR layout are expected")


def prepare(data: Path, runs: Path) -> None:
    """Write the qrels of each collection, and link its corpus and queries."""
    refuse_missing(data)
    for collection in COLLECTIONS:
        target = runs / collection.name
        target.mkdir(exist_ok=True)
        if not (target / "qrels.txt").exists():
            prepare_collection(collection, data, target)


def prepare_collection(collection: Collection, data: Path, target: Path) -> None:
    """Write the qrels of a collection last: they say that the folder is complete."""
    source = data / collection.folders[0]
    (queries,) = source.glob("queries.jsonl*")
    link(queries, target / queries.name)
    for folder in collection.folders:
        corpus = corpus_in(data / folder)
        assert corpus is not None
        if len(collection.folders) == 1:
            link(corpus, target / corpus.name)
        else:
            (target / "corpus").mkdir(exist_ok=True)
            link(corpus, target / "corpus" / corpus.name.replace("corpus", folder, 1))
    if collection.trained:
        draw(source / "qrels" / "train.tsv", target / "train-qrels.txt", TRAINING_QUERIES)
    draw(source / "qrels" / f"{collection.split}.tsv", target / "qrels.txt", MOST_QUERIES)


def digest(folder: Path) -> str:
    """Return the SHA-256 over those of a collection's corpus, queries and qrels."""
    files = sorted(folder.glob("corpus/*"))
    files += sorted(folder.glob("corpus.jsonl*"))
    files += folder.glob("queries.jsonl*")
    files.append(folder / "qrels.txt")
    digests = "".join(file_sha256(file) for file in files)
    return hashlib.sha256(digests.encode()).hexdigest()


# Cells


class Measured(NamedTuple):
    """The mean of a run, and its interval of Student's t over the queries."""

    value: float
    low: float
    high: float


def measure(folder: Path, system: str) -> Measured:
    """Evaluate the run of a system."""
    run = folder / f"{system}.trec"
    settings = EvaluationSettings(measures=(MEASURE,))
    result = evaluate([str(run)], str(folder / "qrels.txt"), settings)
    (run_result,) = result.runs
    low, high = interval(run_result, result.measures[0], ALPHA)
    return Measured(run_result.summary[MEASURE], low, high)


def measured_rows(runs: Path) -> Iterator[Row]:
    """Yield the row of results.csv of each cell that has a run."""
    for collection, system in cells():
        folder = runs / collection.name
        run = folder / f"{system}.trec"
        if not run.exists():
            continue
        measured = measure(folder, system)
        yield {
            "collection": collection.name,
            "system": system,
            MEASURE: f"{measured.value:.4f}",
            "low": f"{measured.low:.4f}",
            "high": f"{measured.high:.4f}",
            "run": file_sha256(run),
            "data": digest(folder),
            "command": f"{COMMAND} {collection.name}/{system}",
        }


def recorded_rows() -> list[Row]:
    """Return the rows of results.csv."""
    if not CELLS.exists():
        return []
    with CELLS.open(newline="") as file:
        return list(csv.DictReader(file))


def write(runs: Path) -> None:
    """Write results.csv, and the tables of the page; cells without a run here stay as they are."""
    row_of_cell = {}
    for row in [*recorded_rows(), *measured_rows(runs)]:
        row_of_cell[row["collection"], row["system"]] = row
    rows = []
    for collection, system in cells():
        if (collection.name, system) in row_of_cell:
            rows.append(row_of_cell[collection.name, system])
    with CELLS.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    page = PAGE.read_text()
    for name, lines in tables(rows).items():
        page = with_table(page, name, lines)
    PAGE.write_text(page)


def check(runs: Path) -> int:
    """Print how each cell of results.csv compares with its run; return how many differ."""
    wrong_count = 0
    for row in recorded_rows():
        verdict, is_wrong = compare(row, runs)
        wrong_count += is_wrong
        place = f"{row['collection']:12} {row['system']:10}"
        sys.stdout.write(f"{place} {row[MEASURE]}  {verdict}\n")
    return wrong_count


def compare(row: Row, runs: Path) -> tuple[str, bool]:
    """Return how a cell compares with its run, in words, and whether that is wrong."""
    folder = runs / row["collection"]
    system = row["system"]
    run = folder / f"{system}.trec"
    if not run.exists():
        return f"absent: {row['command']}", False
    if digest(folder) != row["data"]:
        return "other passages, queries or qrels", True
    value = measure(folder, system).value
    allowed = TOLERANCES[system]
    difference = abs(value - float(row[MEASURE]))
    if difference > allowed + ROUNDING:
        return f"{value:.4f} differs by {difference:.4f}, allowed {allowed}", True
    if file_sha256(run) == row["run"]:
        return "equal bytes", False
    return f"{value:.4f}, within {allowed}", False


# Tables of the page


def tables(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Return the lines of the tables by name: collections by systems, or the other way round."""
    row_of_cell = {(row["collection"], row["system"]): row for row in rows}
    names = list(dict.fromkeys(row["collection"] for row in rows))
    trained_names = list(
        dict.fromkeys(row["collection"] for row in rows if row["system"] in TRAINED)
    )
    untrained = ["| | " + " | ".join(f"`{system}`" for system in UNTRAINED) + " |"]
    untrained.append("|" + "---|" * (1 + len(UNTRAINED)))
    for name in names:
        texts = [cell_text(row_of_cell.get((name, system))) for system in UNTRAINED]
        untrained.append(f"| {name} | " + " | ".join(texts) + " |")
    trained = ["| | " + " | ".join(trained_names) + " |"]
    trained.append("|" + "---|" * (1 + len(trained_names)))
    for system in TOLERANCES:
        texts = [cell_text(row_of_cell.get((name, system))) for name in trained_names]
        trained.append(f"| `{system}` | " + " | ".join(texts) + " |")
    return {"untrained": untrained, "trained": trained}


def cell_text(row: Row | None) -> str:
    """Return what a table shows of a cell: the mean with its interval."""
    if row is None:
        return ""
    return f"{row[MEASURE]} <small>{row['low']}–{row['high']}</small>"


def with_table(page: str, name: str, lines: Sequence[str]) -> str:
    """Return a page with a table in the place that has its name."""
    start = START.format(name)
    before, _, rest = page.partition(start)
    _, _, after = rest.partition(END)
    return "\n".join([before + start, "", *lines, "", END + after])


if __name__ == "__main__":
    task, *paths = sys.argv[1:]
    if task == "cells":
        sys.stdout.writelines(f"{collection.name}/{system}\n" for collection, system in cells())
    elif task == "prepare":
        prepare(Path(paths[0]), Path(paths[1]))
    elif task == "write":
        write(Path(paths[1]))
    else:
        sys.exit(min(1, check(Path(paths[1]))))
