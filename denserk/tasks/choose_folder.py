"""The folder of `denserk choose`.

manifest.json              inputs and settings; `complete` once a decision is written
indexes/ vectors/ models/  what retrievers are built of, each resumable by itself
training/                  of finetune:MODEL: what it is trained from, the hits of training queries,
                           and the examples with negatives; qrels.txt: the judgments of training
                           queries, where some queries were left out
blocks/0001/NAME.trec      hits for a block of queries
blocks/0001/values.json    written last: the block is evaluated
runs/NAME.trec             the hits of all blocks in one run
test/NAME.trec             hits for the sealed test queries
sealed.jsonl               a line for each opening of the test queries
queries.tsv choice.json costs.json choice.svg choice.png index.html    the result
"""

import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from denserk.config.choosing import ChooseSettings
from denserk.config.formats import QrelsFormat, RunFormat
from denserk.config.retrieval import IrMetadata, RankingSettings
from denserk.errors import InputError, MismatchError
from denserk.evaluation.choice import TestOpening
from denserk.evaluation.results import Grades
from denserk.index.ranking import Hits
from denserk.io.blocks import reject_other_run, texts_sha256
from denserk.io.file_errors import write_errors
from denserk.io.files import read_file
from denserk.io.ir_metadata import describe_run
from denserk.io.manifest import Description, Kind, Manifest, started_manifest, write_manifest
from denserk.io.qrels import write_qrels
from denserk.io.runs import read_run_scores, write_run
from denserk.io.written_files import whole_binary
from denserk.records import Qrel
from denserk.tasks.choose_candidates import LearnedValues
from denserk.tasks.choose_json import read_json, write_json

logger = logging.getLogger(__name__)

VALUES = "values.json"
SEALED = "sealed.jsonl"
TRAINING_QRELS = "training/qrels.txt"
# keys of `made_from` in the manifest, each with a checksum
QUERIES = ("topics", "qrels", "train_topics", "train_qrels")
# key of `made_from`: indexes and rerankers that are not built here, each with checksums
EXISTING_INPUTS = "existing"
RESULT_FILES = ("queries.tsv", "choice.json", "choice.svg", "choice.png", "index.html")


@dataclass(frozen=True)
class BlockRecord:
    """What values.json holds of a block that is evaluated."""

    queries: list[str]  # their ids
    values: Mapping[str, list[float]]  # of the measure, by system
    weights: Mapping[str, list[float]]  # of hybrids, by system: those that the block had
    # of fitted hybrids, by the name of their files: what the block says about weights
    learned: Mapping[str, LearnedValues] = field(default_factory=dict)


class ChoiceFolder:
    """The files of a choice.

    `manifest` is that of an unfinished choice. Its contents have `files`, the names of the runs
    that will be written, so that --overwrite can remove them, and no other files.
    """

    def __init__(self, settings: ChooseSettings, manifest: Manifest) -> None:
        self.path = Path(settings.output)
        self._manifest = manifest
        self._resume = settings.resume
        self._overwrite = settings.overwrite

    def prepare(self) -> None:
        """Create the folder, continue it, or remove the blocks and results that it holds.

        Indexes, vectors and models stay, and so does the record of sealed test queries.
        """
        started = started_manifest(
            self.path, Kind.CHOICE, overwrite=self._overwrite, resume=self._resume
        )
        if started is not None and self._resume:
            reject_other_run(self.path, started, self._manifest, QUERIES)
            self._reject_changed_inputs(started)
        elif started is not None:
            self._remove_results(started)
        with write_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        write_manifest(self.path, self._manifest)

    def _reject_changed_inputs(self, started: Manifest) -> None:
        """Raise a MismatchError if an index or a reranker is another one than at the start."""
        inputs_at_start = started.made_from.get(EXISTING_INPUTS, {})  # absent in older folders
        changes = []
        for name, current_input in self._manifest.made_from[EXISTING_INPUTS].items():
            if name in inputs_at_start:
                changed_parts = differing_parts(inputs_at_start[name], current_input)
                if changed_parts:
                    changes.append(f"{current_input['name']} ({', '.join(changed_parts)})")
        if changes:
            raise MismatchError(
                f"changed since {self.path} was started: {'; '.join(changes)}: its blocks of "
                "queries were searched with what was there before",
                "bring that back, or start over with --overwrite",
            )

    def _remove_results(self, started: Manifest) -> None:
        """Remove the files that an earlier comparison wrote, and no others."""
        runs = [f"{name}.trec" for name in started.contents.get("files", ())]
        for folder in [*self.path.glob("blocks/[0-9]*"), self.path / "runs", self.path / "test"]:
            for name in (VALUES, *runs):
                (folder / name).unlink(missing_ok=True)
                (folder / f"{name}.manifest.json").unlink(missing_ok=True)
        for name in RESULT_FILES:
            (self.path / name).unlink(missing_ok=True)

    def comparison_sha256(self) -> str:
        """Return a checksum of what decides the result: settings, candidates and queries."""
        checksums = {}
        for key in QUERIES:
            checksums[key] = self._manifest.made_from.get(key, {}).get("sha256")
        decisive: dict[str, Any] = {"settings": self._manifest.settings, "queries": checksums}
        existing_inputs = self._manifest.made_from[EXISTING_INPUTS]
        if existing_inputs:
            decisive[EXISTING_INPUTS] = [
                {**existing_input, "name": None} for existing_input in existing_inputs.values()
            ]
        return texts_sha256([[orjson.dumps(decisive, option=orjson.OPT_SORT_KEYS).decode()]])

    def complete(self, **contents: Any) -> None:
        """Record in the manifest that the comparison has ended."""
        contents = {**self._manifest.contents, **contents}
        write_manifest(self.path, replace(self._manifest, complete=True, contents=contents))

    def interrupt(self, **contents: Any) -> None:
        """Record in the manifest how far a comparison has come that --resume continues."""
        contents = {**self._manifest.contents, **contents}
        write_manifest(self.path, replace(self._manifest, contents=contents))

    def write_training_qrels(self, judgments: Grades) -> None:
        """Write the judgments of training queries that are not evaluated."""
        rows = []
        for qid, grades in judgments.items():
            rows += [Qrel(qid, docid, grade) for docid, grade in grades.items()]
        write_qrels(self.path / TRAINING_QRELS, rows, QrelsFormat.TREC)

    def block_folder(self, number: int) -> Path:
        """Return the folder of a block, numbered from 1; create it."""
        folder = self.path / "blocks" / f"{number:04}"
        with write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        return folder

    def read_block(self, number: int, qids: Sequence[str]) -> BlockRecord | None:
        """Return a block that is evaluated, with these queries; None if it is not."""
        path = self.path / "blocks" / f"{number:04}" / VALUES
        if not path.is_file():
            return None
        values = read_json(path)
        learned = {name: LearnedValues(*items) for name, items in values["learned"].items()}
        record = BlockRecord(values["queries"], values["values"], values["weights"], learned)
        if record.queries != list(qids):
            message = f"{path} has the values of other queries than block {number} now has"
            raise MismatchError(message, "start over with --overwrite, or choose another output")
        return record

    def write_block(self, number: int, record: BlockRecord) -> None:
        """Write the values of a block."""
        values = {
            "queries": record.queries,
            "values": record.values,
            "weights": record.weights,
            "learned": {name: list(learned) for name, learned in record.learned.items()},
        }
        write_json(self.block_folder(number) / VALUES, values)

    def write_joined_run(
        self, name: str, runs: Sequence[Path], hits: int, made_from: Mapping[str, Any], queries: int
    ) -> None:
        """Write the runs of several blocks, one behind the other, as one run with a manifest."""
        folder = self.path / "runs"
        folder.mkdir(exist_ok=True)
        path = folder / f"{name}.trec"
        with whole_binary(path) as out:
            for run in runs:
                with run.open("rb") as source:
                    shutil.copyfileobj(source, out)
        settings = RankingSettings(hits=hits, tag=name, ir_metadata=IrMetadata.NONE)
        describe_run(str(path), settings, made_from, {"queries": queries})

    def openings(self) -> list[TestOpening]:
        """Return the openings of sealed test queries, the first one first.

        A last line that was cut short, as by a power cut, is left out: its values were never shown.
        """
        path = self.path / SEALED
        if not path.is_file():
            return []
        openings = []
        for number, line in enumerate(read_file(path).splitlines(keepends=True), start=1):
            try:
                openings.append(TestOpening(**orjson.loads(line)))
            except (ValueError, TypeError):
                if not line.endswith(b"\n"):
                    logger.warning(
                        f"{path}:{number}: an opening whose record was cut short is left out"
                    )
                    continue
                raise InputError(
                    path, number, "another text", "the record of an opening, as JSON"
                ) from None
        return openings

    def add_opening(self, opening: TestOpening) -> None:
        """Add an opening to the record, which is replaced as a whole, and wait for the disk."""
        openings = [*self.openings(), opening]
        with whole_binary(self.path / SEALED) as out:
            for recorded in openings:
                out.write(orjson.dumps(recorded.as_json(), option=orjson.OPT_APPEND_NEWLINE))


def differing_parts(before: Description, after: Description) -> list[str]:
    """Return what differs between two indexes, or two models, of one name.

    >>> differing_parts({"sha256": {"docid": "a", "index": "b"}}, {"sha256": {"docid": "a"}})
    ['index']
    >>> differing_parts({"fingerprint": "a"}, {"fingerprint": "b"})
    ['weights, tokenizer or configuration']
    """
    parts = []
    if before.get("fingerprint") != after.get("fingerprint"):
        parts.append("weights, tokenizer or configuration")
    checksums_before = before.get("sha256", {})
    checksums_after = after.get("sha256", {})
    for file in sorted(checksums_before.keys() | checksums_after.keys()):
        if checksums_before.get(file) != checksums_after.get(file):
            parts.append(file)
    return parts


def write_hits(path: Path, results: Iterator[tuple[str, Hits]], tag: str, digits: str) -> None:
    """Write the hits of queries as a run of TREC's format."""
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_run(path, results, tag=tag, score_format=digits)


def read_hits(path: Path) -> dict[str, dict[str, float]]:
    """Read a run that `write_hits` wrote; it may be empty."""
    if path.stat().st_size == 0:
        return {}
    return read_run_scores(path, RunFormat.TREC)
