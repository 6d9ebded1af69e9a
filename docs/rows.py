"""Published figures, and what denserk measures in their place: rows.csv and the tables of pages.

docs/rows.sh makes the runs and calls this in their folder:

    python docs/rows.py weights   compares the weights of all-mpnet-base-v2 with the published ones
    python docs/rows.py commands  prints runs that are not there, and the command that makes each
    python docs/rows.py write     measures the runs, writes rows.csv and the tables
    python docs/rows.py check     measures the runs, and compares them with rows.csv

`write` and `check` print a line for each row. `write` exits with 1, and writes nothing, if a row is
outside its tolerance. `check` exits with 1 if a row is outside, if its run has another figure than
rows.csv says, or if there was no run to compare.

The command that made RUN is in commands/RUN. rows.csv has that command, and not one that has
changed since: `commands` and `write` exit with 1 where they differ. Of a run without that file,
rows.csv has the command if it has the run's SHA-256.
"""

import argparse
import csv
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pages import markdown_table, text_with_tables

from denserk.config.benchmarks import Paper
from denserk.config.encoding import PACKAGED, PUBLISHED
from denserk.config.evaluation import EvaluationSettings
from denserk.errors import DenserkError
from denserk.evaluation.benchmarks import published_rows
from denserk.io.manifest import file_sha256
from denserk.io.written_files import write_lines, write_rows
from denserk.tasks.evaluate import evaluate

ROOT = Path(__file__).parents[1]
ROWS = ROOT / "docs" / "rows.csv"
RESULTS_PAGE = ROOT / "docs" / "results.md"
README = ROOT / "README.md"
START = "<!-- from docs/rows.sh -->"
COLLECTIONS = {"scifact": "SciFact", "nfcorpus": "NFCorpus"}
# Largest distance from the published figure. Encoders differ in their last digits from one machine
# to another, in bfloat16 in the third, too. The others are exact: what is left is that 4 places are
# printed.
ENCODER_TOLERANCES = {"float32": "0.001", "bfloat16": "0.002"}
EXACT_TOLERANCE = "0.0001"


class Encoder(NamedTuple):
    """An encoder with rows of MTEB."""

    system: str  # its name on the hub
    model: str  # as --model has it
    dtype: str  # the larger one would take hours in float32 on two CPU cores
    sha256: str  # of its model.safetensors
    folder: Path | None = None  # that has to be there, if the model has no package


MINILM = PUBLISHED["minilm"]
MPNET = "sentence-transformers/all-mpnet-base-v2"
MPNET_FOLDER = Path("models/all-mpnet-base-v2")
ENCODERS = {
    "minilm": Encoder(MINILM, "minilm", "float32", PACKAGED[MINILM].sha256),
    "mpnet": Encoder(
        MPNET,
        str(MPNET_FOLDER),
        "bfloat16",
        "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
        MPNET_FOLDER,
    ),
}
# Anserini's regressions beir-v1.0.0-scifact.flat and -nfcorpus.flat
ANSERINI = {
    "scifact": {"nDCG@10": "0.6789", "R@100": "0.9253", "R@1000": "0.9767"},
    "nfcorpus": {"nDCG@10": "0.3218", "R@100": "0.2457", "R@1000": "0.3704"},
}
# Pyserini's figures of runs on all passages of MS MARCO: run -> system, nDCG@10
DL19 = {
    "bm25": ("BM25 (k1 0.9, b 0.4)", "0.5058"),
    "tasb": ("TAS-B", "0.7210"),
    "splade-pp-ed": ("SPLADE++ EnsembleDistil", "0.7308"),
}


Key = tuple[str, str, str]  # system, collection, measure
Record = dict[str, str]  # a line of rows.csv, by its columns


class Row(NamedTuple):
    """A published figure, and how it is measured; paths are those below the folder of runs."""

    source: str  # who published it
    system: str
    collection: str
    measure: str  # in ir-measures' notation
    published: str  # as printed
    tolerance: str
    command: str
    run: str
    qrels: str
    weights: str = ""  # SHA-256 of the model's weights
    model_folder: Path | None = None  # without which the command cannot make the run
    is_published_run: bool = False  # the command evaluates it; no command makes it

    @property
    def key(self) -> Key:
        """What tells the row from all others."""
        return self.system, self.collection, self.measure

    @property
    def missing_file(self) -> str:
        """The file without which the row cannot be measured; empty if both are there."""
        for file in (self.run, self.qrels):
            if not Path(file).is_file():
                return file
        return ""


class Measured(NamedTuple):
    """A row, what was measured for it, and the command that made its run."""

    row: Row
    value: float
    run_sha256: str
    command: str


def all_rows() -> Iterator[Row]:
    """Yield all rows in the order of the tables."""
    for name in ENCODERS:
        for collection in COLLECTIONS:
            yield from encoder_rows(name, collection)
    for collection in COLLECTIONS:
        yield from lucene_rows(collection)
    yield from dl19_rows()


def encoder_rows(name: str, collection: str) -> Iterator[Row]:
    """Yield what MTEB reports of an encoder on a collection, as `--against mteb` prints it."""
    encoder = ENCODERS[name]
    command = (
        f"denserk benchmark beir/{collection} --model {encoder.model} --dtype {encoder.dtype} "
        f"--output encoders/{name} --against mteb --resume"
    )
    for published in published_rows(Paper.MTEB, f"beir/{collection}"):
        if published.system != encoder.system:
            continue
        for measure, value in published.values.items():
            yield Row(
                source="MTEB",
                system=encoder.system,
                collection=COLLECTIONS[collection],
                measure=measure,
                published=value,
                tolerance=ENCODER_TOLERANCES[encoder.dtype],
                command=command,
                run=f"encoders/{name}/{collection}.trec",
                qrels=f"datasets/{collection}/qrels/test.tsv",
                weights=encoder.sha256,
                model_folder=encoder.folder,
            )


def lucene_rows(collection: str) -> Iterator[Row]:
    """Yield what Anserini reports of Lucene's BM25 on a collection."""
    index = f"lucene/{collection}"
    build_index = (
        f"denserk index --corpus beir:{collection} --type bm25 --engine lucene "
        f"--output {index} --overwrite"
    )
    search = (
        f"denserk search --index {index} --topics beir:{collection}/test --hits 1000 "
        f"--output {index}.trec"
    )
    for measure, value in ANSERINI[collection].items():
        yield Row(
            source="Anserini",
            system="BM25, Lucene",
            collection=COLLECTIONS[collection],
            measure=measure,
            published=value,
            tolerance=EXACT_TOLERANCE,
            command=f"{build_index} && {search}",
            run=f"{index}.trec",
            qrels=f"datasets/{collection}/qrels/test.tsv",
        )


def dl19_rows() -> Iterator[Row]:
    """Yield the published figures of the runs of TREC DL 2019, which denserk evaluates alone."""
    qrels = "datasets/marco-dl19/nist/qrels.dl19-passage.txt"
    for name, (system, value) in DL19.items():
        run = f"datasets/marco-dl19/runs/{name}.trec.gz"
        yield Row(
            source="Pyserini",
            system=f"{system}, evaluation only",
            collection="TREC DL 2019",
            measure="nDCG@10",
            published=value,
            tolerance=EXACT_TOLERANCE,
            command=f"denserk eval {run} {qrels} -m nDCG@10",
            run=run,
            qrels=qrels,
            is_published_run=True,
        )


# Runs and their commands


def command_file(run: str) -> Path:
    """Return the file that has the command by which a run was made."""
    return Path("commands") / run


def command_of(row: Row, run_sha256: str, records: Mapping[Key, Record]) -> str:
    """Return the command that made the run of a row; empty if that is not known."""
    if row.is_published_run:
        return row.command
    file = command_file(row.run)
    if file.is_file():
        return file.read_text("utf-8").strip()
    record = records.get(row.key)
    if record is not None and record["run_sha256"] == run_sha256:
        return record["command"]
    return ""


def reject_other_command(row: Row, command: str) -> None:
    """Exit if a run was not made by the command that makes it today."""
    if command == row.command:
        return
    made_by = f"was made by {command}" if command else f"has no {command_file(row.run)}"
    sys.exit(
        f"error: {row.run} {made_by}\n"
        f"  today {row.command} makes it: move it away, with its index or vectors"
    )


def missing_commands() -> Iterator[tuple[str, str]]:
    """Yield runs that are not there, and the commands that make them; exit if one is outdated.

    Published runs, which are only evaluated, cannot be made; nor can those of an absent model.
    """
    records = recorded_by_key()
    yielded_runs = set()
    for row in all_rows():
        if row.is_published_run or row.run in yielded_runs:
            continue
        if Path(row.run).is_file():
            reject_other_command(row, command_of(row, file_sha256(Path(row.run)), records))
        elif row.model_folder is None or row.model_folder.is_dir():
            yielded_runs.add(row.run)
            yield row.run, row.command


def print_missing_commands() -> int:
    """Print the runs that are not there, each with a tab and the command that makes it."""
    for run, command in list(missing_commands()):
        sys.stdout.write(f"{run}\t{command}\n")
    return 0


def measure_row(row: Row, records: Mapping[Key, Record]) -> Measured:
    """Measure the run of a row, which is there."""
    result = evaluate([row.run], row.qrels, EvaluationSettings(measures=(row.measure,)))
    value = result.runs[0].summary[row.measure]
    run_sha256 = file_sha256(Path(row.run))
    return Measured(row, value, run_sha256, command_of(row, run_sha256, records))


# rows.csv and the pages


def key_of(record: Record) -> Key:
    """Return what tells a line of rows.csv from all others."""
    return record["system"], record["collection"], record["measure"]


def new_record(measured: Measured) -> Record:
    """Return the line of rows.csv of a row that was measured."""
    row = measured.row
    return {
        "source": row.source,
        "system": row.system,
        "collection": row.collection,
        "measure": row.measure,
        "published": row.published,
        "denserk": f"{measured.value:.5f}",
        "tolerance": row.tolerance,
        "command": measured.command,
        "run": row.run,
        "run_sha256": measured.run_sha256,
        "weights_sha256": row.weights,
    }


def kept_record(row: Row, record: Record) -> Record:
    """Return a line of rows.csv whose run is not here, with what is published now."""
    return {
        **record,
        "source": row.source,
        "published": row.published,
        "tolerance": row.tolerance,
    }


def recorded() -> list[Record]:
    """Return the lines of rows.csv."""
    if not ROWS.exists():
        return []
    with ROWS.open(newline="") as file:
        return list(csv.DictReader(file))


def recorded_by_key() -> dict[Key, Record]:
    """Return the lines of rows.csv by what tells them apart."""
    return {key_of(record): record for record in recorded()}


def distance(value: float, row: Row) -> float:
    """Return how far a value is from the published one."""
    return abs(value - float(row.published))


def is_within_tolerance(value: float, row: Row) -> bool:
    """Return whether a value reproduces the published one."""
    return distance(value, row) <= float(row.tolerance)


def outcome(value: float, row: Row) -> str:
    """Return how a value compares with the published one."""
    comparison = f"{value:.5f}, {distance(value, row):.5f} away"
    if is_within_tolerance(value, row):
        return comparison
    return f"{comparison}: OUTSIDE the tolerance of {row.tolerance}"


def say(key: Key, published: str, message: str) -> None:
    """Print what became of a row."""
    label = ", ".join(key)
    sys.stdout.write(f"{label:66} {published:8} {message}\n")


def write() -> int:
    """Measure the runs, write rows.csv and the tables; return how many rows are outside.

    Rows whose run is not there keep their figures. Nothing is written if a row is outside.
    """
    records_by_key = recorded_by_key()
    records = []
    outside = 0
    for row in all_rows():
        if not row.missing_file:
            measured = measure_row(row, records_by_key)
            reject_other_command(row, measured.command)
            value = measured.value
            records.append(new_record(measured))
            say(row.key, row.published, outcome(value, row))
        elif row.key in records_by_key:
            record = records_by_key[row.key]
            value = float(record["denserk"])
            records.append(kept_record(row, record))
            say(row.key, row.published, f"not here: {row.missing_file}; {outcome(value, row)}")
        else:
            say(row.key, row.published, f"not here: {row.missing_file}")
            continue
        if not is_within_tolerance(value, row):
            outside += 1
    if outside:
        sys.stderr.write(f"error: {outside} rows are outside their tolerance: nothing is written\n")
    elif records:
        write_records(records)
    return outside


def write_records(records: Sequence[Record]) -> None:
    """Write rows.csv, and the tables into both pages."""
    page_texts = {
        RESULTS_PAGE: text_with_tables(RESULTS_PAGE, {START: results_section(records)}),
        README: text_with_tables(README, {START: readme_table(records)}),
    }
    columns = list(records[0])
    lines = [[record[column] for column in columns] for record in records]
    write_rows(ROWS, [columns, *lines])
    for page, text in page_texts.items():
        write_lines(page, [text])


def results_section(records: Sequence[Record]) -> list[str]:
    """Return the lines of docs/results.md: a table, and the command of each run."""
    columns = ["source", "system", "collection", "measure", "published", "denserk", "tolerance"]
    rows = []
    for record in records:
        cells = [record[column] for column in columns]
        rows.append([*cells, f"`{record['run_sha256'][:8]}`"])
    headers = ["published by", *columns[1:], "run"]
    lines = markdown_table(headers, rows, right_aligned=["published", "denserk", "tolerance"])
    lines += [
        "",
        "The commands, in the folder of runs, in which `datasets` is a link to DATA:",
        "",
        "```sh network",
    ]
    for command in dict.fromkeys(record["command"] for record in records):
        lines += command.split(" && ")
    lines.append("```")
    return lines


def readme_table(records: Iterable[Record]) -> list[str]:
    """Return the lines of the table of the README, which has nDCG@10 alone."""
    headers = ["published by", "system", "collection", "nDCG@10, published", "denserk"]
    columns = ["source", "system", "collection", "published", "denserk"]
    rows = []
    for record in records:
        if record["measure"] == "nDCG@10":
            rows.append([record[column] for column in columns])
    return markdown_table(headers, rows, right_aligned=headers[3:])


def check() -> int:
    """Compare the runs with rows.csv and with the published figures; return how many differ.

    It is 1, too, if no run is here.
    """
    records = recorded_by_key()
    wrong = 0
    checked = 0
    for row in all_rows():
        record = records.pop(row.key, None)
        if row.missing_file:
            say(row.key, row.published, f"not here: {row.missing_file}")
        elif record is None:
            say(row.key, row.published, f"not in rows.csv: {row.run}")
            wrong += 1
        else:
            message, is_wrong = compare(row, record)
            say(row.key, row.published, message)
            checked += 1
            wrong += is_wrong
    for key, record in records.items():
        say(key, record["published"], "in rows.csv, but nothing measures it")
        wrong += 1
    sys.stdout.write(f"checked {checked} of {len(recorded())} rows of rows.csv\n")
    if checked == 0:
        sys.stderr.write("error: no run is here: give the folder that has them as --runs\n")
        return max(1, wrong)
    return wrong


def compare(row: Row, record: Record) -> tuple[str, bool]:
    """Return how the run of a row compares with rows.csv, in words, and whether that is wrong."""
    measured = measure_row(row, {row.key: record})
    value = measured.value
    message = outcome(value, row)
    is_wrong = not is_within_tolerance(value, row)
    has_equal_bytes = measured.run_sha256 == record["run_sha256"]
    if has_equal_bytes:
        has_equal_value = f"{value:.5f}" == record["denserk"]
        message += ", a run of equal bytes"
    else:
        has_equal_value = abs(value - float(record["denserk"])) <= float(row.tolerance)
    if not has_equal_value:
        message += f", but {record['denserk']} in rows.csv"
        is_wrong = True
    if record["published"] != row.published:
        message += f", but published as {record['published']} in rows.csv"
        is_wrong = True
    return message, is_wrong


def check_weights() -> int:
    """Compare the weights of all-mpnet-base-v2 with the published ones; return 1 if they differ."""
    weights = MPNET_FOLDER / "model.safetensors"
    expected = ENCODERS["mpnet"].sha256
    if not weights.is_file():
        sys.stderr.write(
            f"error: {MPNET_FOLDER.resolve()} has no model.safetensors\n"
            f"  --mpnet needs a folder of {MPNET}\n"
        )
        return 1
    sha256 = file_sha256(weights)
    if sha256 != expected:
        sys.stderr.write(
            f"error: {weights.resolve()} is not the published file\n"
            f"  its SHA-256 is {sha256}; expected {expected}\n"
        )
        return 1
    return 0


TASKS = {
    "weights": check_weights,
    "commands": print_missing_commands,
    "write": write,
    "check": check,
}


def main() -> None:
    """Run the task that the command line names; exit with 1 if something differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=TASKS)
    task = parser.parse_args().task
    try:
        differences = TASKS[task]()
    except DenserkError as error:
        sys.exit(f"error: {error}")
    sys.exit(min(1, differences))


if __name__ == "__main__":
    main()
