"""Published figures, and what denserk measures in their place: rows.csv and the tables of pages.

docs/rows.sh makes the runs and calls this in their folder:

    python docs/rows.py weights    compares the weights of all-mpnet-base-v2 with the published ones
    python docs/rows.py commands   prints the commands that make the runs that are not there
    python docs/rows.py write      measures the runs, writes rows.csv and the tables
    python docs/rows.py check      measures the runs, and compares them with rows.csv

`write` and `check` print a line for each row. They exit with 1 if a row is outside its tolerance,
or, for `check`, if its run has another figure than rows.csv says.
"""

import csv
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from denserk.config.benchmarks import Paper
from denserk.config.encoding import PACKAGED, PUBLISHED
from denserk.config.evaluation import EvaluationSettings
from denserk.evaluation.benchmarks import published_rows
from denserk.io.files import write_lines
from denserk.io.manifest import file_sha256
from denserk.tasks.evaluate import evaluate

ROOT = Path(__file__).parents[1]
ROWS = ROOT / "docs" / "rows.csv"
RESULTS_PAGE = ROOT / "docs" / "results.md"
README = ROOT / "README.md"
START = "<!-- from docs/rows.sh -->"
END = "<!-- end of rows -->"
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


class Measured(NamedTuple):
    """A row, and what was measured for it."""

    row: Row
    value: float
    run_sha256: str

    @property
    def distance(self) -> float:
        """Return how far the value is from the published one."""
        return abs(self.value - float(self.row.published))

    @property
    def is_within_tolerance(self) -> bool:
        """Return whether the published figure is reproduced."""
        return self.distance <= float(self.row.tolerance)


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
        )


def measure_row(row: Row) -> Measured:
    """Measure the run of a row, which is there."""
    result = evaluate([row.run], row.qrels, EvaluationSettings(measures=(row.measure,)))
    value = result.runs[0].summary[row.measure]
    return Measured(row, value, file_sha256(Path(row.run)))


def has_files(row: Row) -> bool:
    """Return whether the run and the qrels of a row are there."""
    return Path(row.run).is_file() and Path(row.qrels).is_file()


def missing_commands() -> Iterator[str]:
    """Yield the commands that make runs which are not there, each once.

    Published runs, which are only evaluated, cannot be made; nor can those of an absent model.
    """
    commands: dict[str, None] = {}
    for row in all_rows():
        is_made_here = not row.run.startswith("datasets/")
        lacks_model = row.system == MPNET and not MPNET_FOLDER.is_dir()
        if is_made_here and not lacks_model and not Path(row.run).is_file():
            commands[row.command] = None
    yield from commands


def print_missing_commands() -> int:
    """Print the commands that make runs which are not there."""
    for command in missing_commands():
        sys.stdout.write(f"{command}\n")
    return 0


def key(record: dict[str, str]) -> tuple[str, str, str]:
    """Return what tells a line of rows.csv from all others."""
    return record["system"], record["collection"], record["measure"]


def as_record(measured: Measured) -> dict[str, str]:
    """Return a line of rows.csv by its columns."""
    row = measured.row
    return {
        "source": row.source,
        "system": row.system,
        "collection": row.collection,
        "measure": row.measure,
        "published": row.published,
        "denserk": f"{measured.value:.5f}",
        "tolerance": row.tolerance,
        "command": row.command,
        "run": row.run,
        "run_sha256": measured.run_sha256,
        "weights_sha256": row.weights,
    }


def recorded() -> list[dict[str, str]]:
    """Return the lines of rows.csv."""
    if not ROWS.exists():
        return []
    with ROWS.open(newline="") as file:
        return [*csv.DictReader(file)]


def say(row: Row, message: str) -> None:
    """Print what became of a row."""
    label = f"{row.system}, {row.collection}, {row.measure}"
    sys.stdout.write(f"{label:66} {row.published:8} {message}\n")


def outcome(measured: Measured) -> str:
    """Return how a measured value compares with the published one."""
    comparison = f"{measured.value:.5f}, {measured.distance:.5f} away"
    if measured.is_within_tolerance:
        return comparison
    return f"{comparison}: OUTSIDE the tolerance of {measured.row.tolerance}"


def write() -> int:
    """Measure the runs, write rows.csv and the tables; return how many rows are outside.

    Rows whose run is not there stay in rows.csv as they are.
    """
    records_by_key = {key(record): record for record in recorded()}
    records = []
    outside = 0
    for row in all_rows():
        row_key = (row.system, row.collection, row.measure)
        if has_files(row):
            measured = measure_row(row)
            say(row, outcome(measured))
            if not measured.is_within_tolerance:
                outside += 1
            records.append(as_record(measured))
        else:
            say(row, f"not here: {row.run}")
            if row_key in records_by_key:
                records.append(records_by_key[row_key])
    if records:
        write_records(records)
        write_between_marks(RESULTS_PAGE, results_section(records))
        write_between_marks(README, readme_table(records))
    return outside


def write_records(records: list[dict[str, str]]) -> None:
    """Write rows.csv."""
    with ROWS.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*records[0]], lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)


def write_between_marks(page: Path, lines: Iterable[str]) -> None:
    """Replace what a page has between the two marks."""
    before, _, rest = page.read_text("utf-8").partition(START)
    _, _, after = rest.partition(END)
    table = "\n".join(lines)
    write_lines(str(page), [f"{before}{START}\n\n{table}\n\n{END}{after}"])


def results_section(records: Sequence[dict[str, str]]) -> Iterator[str]:
    """Yield the lines of docs/results.md: a table, and the command of each run."""
    yield "| published by | system | collection | measure | published | denserk | tolerance | run |"
    yield "|---|---|---|---|--:|--:|--:|---|"
    for record in records:
        columns = ("source", "system", "collection", "measure", "published", "denserk", "tolerance")
        cells = [record[column] for column in columns]
        cells.append(f"`{record['run_sha256'][:8]}`")
        yield f"| {' | '.join(cells)} |"
    commands = dict.fromkeys(record["command"] for record in records)
    yield ""
    yield "The commands, in the folder of runs, in which `datasets` is a link to DATA:"
    yield ""
    yield "```sh network"
    for command in commands:
        yield command.replace(" && ", "\n")
    yield "```"


def readme_table(records: Iterable[dict[str, str]]) -> Iterator[str]:
    """Yield the lines of the table of the README, which has nDCG@10 alone."""
    yield "| published by | system | collection | nDCG@10, published | denserk |"
    yield "|---|---|---|--:|--:|"
    for record in records:
        if record["measure"] != "nDCG@10":
            continue
        columns = ("source", "system", "collection", "published", "denserk")
        cells = [record[column] for column in columns]
        yield f"| {' | '.join(cells)} |"


def check() -> int:
    """Compare the runs with rows.csv and with the published figures; return how many differ."""
    row_by_key = {(row.system, row.collection, row.measure): row for row in all_rows()}
    wrong = 0
    for record in recorded():
        row = row_by_key[key(record)]
        if not has_files(row):
            say(row, f"not here: {row.run}")
            continue
        measured = measure_row(row)
        message = outcome(measured)
        is_wrong = not measured.is_within_tolerance
        if measured.run_sha256 == record["run_sha256"]:
            message += ", a run of equal bytes"
        elif abs(measured.value - float(record["denserk"])) > float(row.tolerance):
            message += f", but {record['denserk']} in rows.csv"
            is_wrong = True
        say(row, message)
        if is_wrong:
            wrong += 1
    return wrong


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

if __name__ == "__main__":
    differing_rows = TASKS[sys.argv[1]]()
    sys.exit(min(1, differing_rows))
