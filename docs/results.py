"""Collections, cells and tables of docs/results.sh, which calls this.

    python docs/results.py cells
    python docs/results.py prepare DATA RUNS
    python docs/results.py write RUNS
    python docs/results.py check RUNS

`prepare` draws queries; it exits with 1 if RUNS has another draw. `write` measures the runs, and
writes results.csv and the tables of results.md. `check` compares results.csv with the runs, and
exits with 1 where a cell differs, or if no run is there.

A cell is a system on a collection, such as squad/bm25. Its run is RUNS/squad/bm25.trec, and
RUNS/squad/bm25.commands has the commands of docs/results.sh that made it. `write` leaves out a run
without them, unless it is the one that results.csv has.
"""

import argparse
import csv
import hashlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pages import markdown_table, text_with_tables

from denserk.config.evaluation import EvaluationSettings
from denserk.errors import DenserkError
from denserk.evaluation.significance import interval
from denserk.io.manifest import file_sha256
from denserk.io.qrels import read_qrels_map
from denserk.io.written_files import write_lines, write_rows
from denserk.tasks.evaluate import evaluate

HERE = Path(__file__).parent
RESULTS = HERE / "results.csv"
PAGE = HERE / "results.md"
UNTRAINED_MARK = "<!-- from docs/results.sh: untrained -->"
TRAINED_MARK = "<!-- from docs/results.sh: trained -->"
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

Record = dict[str, str]  # a line of results.csv, by its columns


class Cell(NamedTuple):
    """A system on a collection: a figure of the tables."""

    collection: str
    system: str

    @property
    def name(self) -> str:
        """The name on the command line."""
        return f"{self.collection}/{self.system}"


def all_cells() -> Iterator[Cell]:
    """Yield the cells, collection after collection."""
    for collection in COLLECTIONS:
        for system in TOLERANCES if collection.trained else UNTRAINED:
            yield Cell(collection.name, system)


# Collections


def drawn_lines(source: Path, most_queries: int) -> list[str]:
    """Return the qrels of at most so many queries, evenly spread over the sorted ids."""
    judged = read_qrels_map(str(source))
    qids = sorted(judged)
    count = min(most_queries, len(qids))
    lines = []
    for place in range(count):
        qid = qids[place * len(qids) // count]
        for docid, grade in judged[qid].items():
            lines.append(f"{qid} 0 {docid} {grade}\n")
    return lines


def write_draw(source: Path, target: Path, most_queries: int) -> None:
    """Write the qrels of drawn queries; exit if a file of another draw is there.

    Runs are of the queries of that file.
    """
    lines = drawn_lines(source, most_queries)
    if not target.exists():
        write_lines(str(target), lines)
    elif target.read_text("utf-8") != "".join(lines):
        sys.exit(
            f"error: {target} is not what is drawn from {source} now\n"
            f"  move {target.parent} away, with its runs, or give another --runs"
        )


def link(source: Path, target: Path) -> None:
    """Link to a file, in place of an earlier link."""
    if target.is_symlink():
        target.unlink()
    elif target.exists():
        sys.exit(f"error: {target} is no link: move it away, or give another --runs")
    target.symlink_to(source)


def beir_file(folder: Path, stem: str) -> Path:
    """Return the corpus or the queries of a folder in BEIR layout, plain or compressed."""
    files = sorted(folder.glob(f"{stem}.jsonl*"))
    if len(files) != 1:
        names = ", ".join(file.name for file in files) or "none"
        sys.exit(f"error: {folder} needs one {stem}.jsonl, plain or compressed; found {names}")
    return files[0]


def reject_missing(data: Path) -> None:
    """Exit with an error if a folder of a collection has no corpus."""
    missing_folders = set()
    for collection in COLLECTIONS:
        for folder in collection.folders:
            if not list((data / folder).glob("corpus.jsonl*")):
                missing_folders.add(folder)
    if missing_folders:
        names = ", ".join(sorted(missing_folders))
        sys.exit(f"error: {data} has no {names}: folders in BEIR layout are expected")


def prepare(data: Path, runs: Path) -> None:
    """Link the corpus and the queries of each collection, and write its qrels."""
    reject_missing(data)
    for collection in COLLECTIONS:
        target = runs / collection.name
        target.mkdir(exist_ok=True)
        prepare_collection(collection, data, target)


def prepare_collection(collection: Collection, data: Path, target: Path) -> None:
    """Link the corpus and the queries of a collection, and write its qrels."""
    source = data / collection.folders[0]
    queries = beir_file(source, "queries")
    link(queries, target / queries.name)
    for folder in collection.folders:
        corpus = beir_file(data / folder, "corpus")
        if len(collection.folders) == 1:
            link(corpus, target / corpus.name)
        else:
            (target / "corpus").mkdir(exist_ok=True)
            link(corpus, target / "corpus" / corpus.name.replace("corpus", folder, 1))
    if collection.trained:
        write_draw(source / "qrels" / "train.tsv", target / "train-qrels.txt", TRAINING_QUERIES)
    qrels = source / "qrels" / f"{collection.split}.tsv"
    write_draw(qrels, target / "qrels.txt", MOST_QUERIES)


def digest(folder: Path) -> str:
    """Return the SHA-256 over those of a collection's corpus, queries and qrels."""
    files = sorted(folder.glob("corpus/*"))
    files += sorted(folder.glob("corpus.jsonl*"))
    files += folder.glob("queries.jsonl*")
    files.append(folder / "qrels.txt")
    digests = "".join(file_sha256(file) for file in files)
    return hashlib.sha256(digests.encode()).hexdigest()


# Runs and results.csv


class Measured(NamedTuple):
    """The mean of a run, and its interval of Student's t over the queries."""

    value: float
    low: float
    high: float

    @property
    def texts(self) -> tuple[str, str, str]:
        """The three as results.csv has them."""
        return f"{self.value:.4f}", f"{self.low:.4f}", f"{self.high:.4f}"


class Runs:
    """The folder of runs; what is read of a collection is read once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._digest_by_collection: dict[str, str] = {}

    def run(self, cell: Cell) -> Path:
        """Return the path of a cell's run, which may be there or not."""
        return self._folder / cell.collection / f"{cell.system}.trec"

    def has_commands(self, cell: Cell) -> bool:
        """Return whether it is known by which commands a cell's run was made."""
        return self.run(cell).with_suffix(".commands").is_file()

    def digest(self, cell: Cell) -> str:
        """Return the SHA-256 of a cell's collection."""
        name = cell.collection
        if name not in self._digest_by_collection:
            self._digest_by_collection[name] = digest(self._folder / name)
        return self._digest_by_collection[name]

    def measure(self, cell: Cell) -> Measured:
        """Evaluate the run of a cell."""
        run = self.run(cell)
        settings = EvaluationSettings(measures=(MEASURE,))
        result = evaluate([str(run)], str(run.with_name("qrels.txt")), settings)
        (run_result,) = result.runs
        low, high = interval(run_result, result.measures[0], ALPHA)
        return Measured(run_result.summary[MEASURE], low, high)


def measured_record(cell: Cell, runs: Runs) -> Record:
    """Return the line of results.csv of a cell whose run is there."""
    value, low, high = runs.measure(cell).texts
    return {
        "collection": cell.collection,
        "system": cell.system,
        MEASURE: value,
        "low": low,
        "high": high,
        "run": file_sha256(runs.run(cell)),
        "data": runs.digest(cell),
        "command": f"{COMMAND} {cell.name}",
    }


def recorded() -> dict[Cell, Record]:
    """Return the lines of results.csv by their cells."""
    if not RESULTS.exists():
        return {}
    with RESULTS.open(newline="") as file:
        records = list(csv.DictReader(file))
    return {Cell(record["collection"], record["system"]): record for record in records}


def say(cell: Cell, message: str) -> None:
    """Print what became of a cell."""
    sys.stdout.write(f"{cell.collection:12} {cell.system:10} {message}\n")


def write(folder: Path) -> None:
    """Write results.csv, and the tables of the page; cells without a run here stay as they are."""
    runs = Runs(folder)
    earlier_records = recorded()
    records = []
    for cell in all_cells():
        record = current_record(cell, runs, earlier_records.get(cell))
        if record is not None:
            records.append(record)
    if not records:
        return
    reject_mixed_data(records)
    page_text = text_with_tables(PAGE, tables(records))
    columns = list(records[0])
    lines = [[record[column] for column in columns] for record in records]
    write_rows(RESULTS, [columns, *lines])
    write_lines(PAGE, [page_text])


def current_record(cell: Cell, runs: Runs, earlier_record: Record | None) -> Record | None:
    """Return the line of a cell: of its run, or the earlier one; None if there is neither.

    A run of unknown commands is left out, unless it is that of the earlier line.
    """
    run = runs.run(cell)
    if not run.exists():
        return earlier_record
    is_recorded = earlier_record is not None and earlier_record["run"] == file_sha256(run)
    if is_recorded or runs.has_commands(cell):
        return measured_record(cell, runs)
    say(cell, f"left out: {run} has no {run.stem}.commands; move it away to make it again")
    return earlier_record


def reject_mixed_data(records: Sequence[Record]) -> None:
    """Exit if the cells of a collection are of different passages, queries or qrels."""
    digest_by_collection: dict[str, str] = {}
    for record in records:
        name = record["collection"]
        if record["data"] != digest_by_collection.setdefault(name, record["data"]):
            sys.exit(
                f"error: the cells of {name} are of different passages, queries or qrels\n"
                f"  {record['system']} is not of those of the cells before it: make the runs of "
                f"all systems on {name}"
            )


def check(folder: Path) -> int:
    """Print how each cell of results.csv compares with its run; return how many differ.

    It is 1, too, if no run is there.
    """
    runs = Runs(folder)
    records = recorded()
    known_cells = list(all_cells())
    wrong_count = 0
    checked_count = 0
    for cell, record in records.items():
        if cell not in known_cells:
            say(cell, "in results.csv, but nothing makes it")
            wrong_count += 1
        elif not runs.run(cell).exists():
            say(cell, f"{record[MEASURE]}  absent: {record['command']}")
        else:
            verdict, is_wrong = compare(cell, record, runs)
            say(cell, f"{record[MEASURE]}  {verdict}")
            checked_count += 1
            wrong_count += is_wrong
    for cell in known_cells:
        if cell not in records and runs.run(cell).exists():
            say(cell, f"not in results.csv: {runs.run(cell)}")
            wrong_count += 1
    sys.stdout.write(f"checked {checked_count} of {len(records)} cells of results.csv\n")
    if checked_count == 0:
        sys.stderr.write(f"error: {folder} has no run of a cell of results.csv\n")
        return max(1, wrong_count)
    return wrong_count


def compare(cell: Cell, record: Record, runs: Runs) -> tuple[str, bool]:
    """Return how a cell compares with its run, in words, and whether that is wrong."""
    if runs.digest(cell) != record["data"]:
        return "other passages, queries or qrels", True
    measured = runs.measure(cell)
    if file_sha256(runs.run(cell)) == record["run"]:
        if measured.texts != (record[MEASURE], record["low"], record["high"]):
            return f"{' '.join(measured.texts)} of equal bytes", True
        return "equal bytes", False
    allowed = TOLERANCES[cell.system]
    difference = abs(measured.value - float(record[MEASURE]))
    if difference > allowed + ROUNDING:
        return f"{measured.value:.4f} differs by {difference:.4f}, allowed {allowed}", True
    return f"{measured.value:.4f}, within {allowed}", False


# Tables of the page


def tables(records: Sequence[Record]) -> dict[str, list[str]]:
    """Return the lines of the tables by mark: collections by systems, or the other way round."""
    text_by_cell: dict[Cell, str] = {}
    names: dict[str, None] = {}  # of the collections, in their order
    trained_names: dict[str, None] = {}
    for record in records:
        name = record["collection"]
        text_by_cell[Cell(name, record["system"])] = cell_text(record)
        names[name] = None
        if record["system"] in TRAINED:
            trained_names[name] = None
    untrained_rows = []
    for name in names:
        texts = [text_by_cell.get(Cell(name, system), "") for system in UNTRAINED]
        untrained_rows.append([name, *texts])
    trained_rows = []
    for system in TOLERANCES:
        texts = [text_by_cell.get(Cell(name, system), "") for name in trained_names]
        trained_rows.append([f"`{system}`", *texts])
    system_headers = [f"`{system}`" for system in UNTRAINED]
    return {
        UNTRAINED_MARK: markdown_table(["", *system_headers], untrained_rows),
        TRAINED_MARK: markdown_table(["", *trained_names], trained_rows),
    }


def cell_text(record: Record) -> str:
    """Return what a table shows of a cell: the mean with its interval."""
    return f"{record[MEASURE]} <small>{record['low']}–{record['high']}</small>"


def parse_arguments() -> argparse.Namespace:
    """Return the task that the command line names, and its folders."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    tasks = parser.add_subparsers(dest="task", required=True)
    tasks.add_parser("cells")
    prepare_parser = tasks.add_parser("prepare")
    prepare_parser.add_argument("data", type=Path)
    prepare_parser.add_argument("runs", type=Path)
    for task in ("write", "check"):
        tasks.add_parser(task).add_argument("runs", type=Path)
    return parser.parse_args()


def run_task(arguments: argparse.Namespace) -> int:
    """Run a task; return the number of cells that differ."""
    if arguments.task == "cells":
        sys.stdout.writelines(f"{cell.name}\n" for cell in all_cells())
    elif arguments.task == "prepare":
        prepare(arguments.data, arguments.runs)
    elif arguments.task == "write":
        write(arguments.runs)
    else:
        return check(arguments.runs)
    return 0


def main() -> None:
    """Run the task that the command line names; exit with 1 if something differs."""
    try:
        differences = run_task(parse_arguments())
    except DenserkError as error:
        sys.exit(f"error: {error}")
    sys.exit(min(1, differences))


if __name__ == "__main__":
    main()
