"""Cuts the power at every moment of a command, and opens what is left with denserk.

    python -m tests.support.power_cuts WORK [CASE ...]

WORK is a folder that is made. Prints a line a case, and exits with 1 if a state is wrong.

The model of the disk is that of SQLite's crash tests ("How SQLite Is Tested") and of ALICE
(Pillai et al., "All File Systems Are Not Created Equal", OSDI 2014). A power cut comes after any
of the recorded file operations. An operation is on the disk for sure once its file, or for a name
its folder, was flushed by fsync. Any other is there or not, independently: a name may be there
without the bytes of its file, a write without an earlier write (zeros fill the gap), and a write
may be cut in half. For each moment all such operations are kept, all dropped, each dropped alone,
and 200 random choices are made; where there are fewer combinations, all of them.

Every distinct state is opened. Right is what the output held before the command, what it holds
after it, or an error that names the output.
"""

import itertools
import json
import os
import random
import shutil
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any, NamedTuple

from denserk.api import BM25, Encoder, Index, Run
from denserk.commands.app import run
from denserk.errors import DenserkError
from tests.support.environment import TEST_VARIABLES
from tests.support.file_operations import (
    Exchange,
    Files,
    Operation,
    Recording,
    Rename,
    Sync,
    Truncate,
    Write,
    apply_to_names,
    record,
    truncated,
    why_not,
    written,
)
from tests.support.finetuning import write_examples
from tests.support.tiny_models import write_tiny
from tests.support.toy import PASSAGES, VOCABULARY, write_toy

SUBSETS = 200  # random choices at each moment
RERUNS = 40  # states of a case after which the command is run again
# fates of an operation
KEPT = "kept"
HALF = "half"
DROPPED = "dropped"


# states of the disk


Writes = tuple[tuple[int, str], ...]  # numbers of operations that change a file, and their fates
State = dict[str, bytes | None]  # bytes by path; None is a folder


def flushed_by(operation: Operation) -> tuple[int, ...]:
    """Return the files, or the folders, that must be flushed before an operation is on the disk."""
    match operation:
        case Write(file=file) | Truncate(file=file):
            return (file,)
        case Rename() | Exchange():
            return tuple({operation.folder, operation.new_folder})
        case Sync():
            return ()
        case _:
            return (operation.folder,)


class Disk:
    """The names on a disk, and which writes each of its files has."""

    def __init__(self, files: Files) -> None:
        self.files = files.copy()
        self.writes: dict[int, Writes] = {}

    def copy(self) -> "Disk":
        copied = Disk(self.files)
        copied.writes = dict(self.writes)
        return copied

    def apply(self, number: int, operation: Operation, fate: str) -> None:
        """Apply an operation, given its number, unless it is dropped."""
        match operation:
            case Sync():
                return
            case Write(file=file) | Truncate(file=file):
                if fate != DROPPED:
                    self.writes[file] = (*self.writes.get(file, ()), (number, fate))
            case _ if fate != DROPPED:
                apply_to_names(self.files, operation)


class Moment(NamedTuple):
    """A moment of a command, between two operations."""

    is_last: bool
    disk: Disk  # what is surely on it, up to the first operation that may be lost
    numbers: list[int]  # of the operations after that
    may_be_lost: set[int]


class States:
    """The states in which a power cut can leave the files of a recording."""

    def __init__(self, recording: Recording, seed: int = 1) -> None:
        self._operations = recording.operations
        empty_folders: dict[int, dict[str, int]] = {
            number: {} for number in recording.after.folders
        }
        self._start = Disk(Files(empty_folders | recording.before.folders))
        self._first_contents = recording.before.contents
        self._contents: dict[tuple[int, Writes], bytes] = {}
        self._seed = seed
        self.tried = 0

    def __iter__(self) -> Iterator[tuple[bool, State]]:
        """Yield every distinct state, and whether the command had ended.

        Files with hidden names, which no reader opens, do not tell two states apart.
        """
        seen: set[Any] = set()
        for moment in self._moments():
            for fates in self._choices(moment):
                self.tried += 1
                disk = moment.disk.copy()
                for number, fate in zip(moment.numbers, fates, strict=True):
                    disk.apply(number, self._operations[number], fate)
                state = self._read(disk)
                visible = frozenset((path, state[path]) for path in state if not is_hidden(path))
                key = (moment.is_last, visible)
                if key not in seen:
                    seen.add(key)
                    yield moment.is_last, state

    def _moments(self) -> Iterator[Moment]:
        """Yield the moments after all operations but flushes, which take states away."""
        disk = self._start.copy()
        end_of_disk = 0  # number of the first operation that is not surely on the disk
        to_flush: dict[int, set[int]] = {}  # files and folders, by number of the operation
        last_number = len(self._operations) - 1
        for number, operation in enumerate(self._operations):
            if isinstance(operation, Sync):
                to_flush = _after_sync(to_flush, operation)
            else:
                to_flush[number] = set(flushed_by(operation))
            while end_of_disk <= number and end_of_disk not in to_flush:
                disk.apply(end_of_disk, self._operations[end_of_disk], KEPT)
                end_of_disk += 1
            is_last = number == last_number
            if is_last or not isinstance(operation, Sync):
                numbers = list(range(end_of_disk, number + 1))
                yield Moment(is_last, disk, numbers, may_be_lost=set(to_flush))

    def _choices(self, moment: Moment) -> Iterator[tuple[str, ...]]:
        """Yield the fates of a moment's operations; all combinations if they are few."""
        possible = [self._fates(number, moment.may_be_lost) for number in moment.numbers]
        if prod(map(len, possible)) <= SUBSETS:
            yield from itertools.product(*possible)
            return
        all_kept = (KEPT,) * len(possible)
        yield all_kept
        yield tuple(fates[-1] for fates in possible)
        for position, fates in enumerate(possible):
            for fate in fates[1:]:
                yield (*all_kept[:position], fate, *all_kept[position + 1 :])
        draw = random.Random(f"{self._seed} {moment.numbers[-1]}")
        for _ in range(SUBSETS):
            yield tuple(map(draw.choice, possible))

    def _fates(self, number: int, may_be_lost: set[int]) -> tuple[str, ...]:
        if number not in may_be_lost:
            return (KEPT,)
        if isinstance(self._operations[number], Write):
            return (KEPT, HALF, DROPPED)
        return (KEPT, DROPPED)

    def _read(self, disk: Disk) -> State:
        state: State = {}
        for path, number in disk.files.tree():
            if number in disk.files.folders:
                state[path] = None
            else:
                state[path] = self._content(number, disk.writes.get(number, ()))
        return state

    def _content(self, file: int, writes: Writes) -> bytes:
        """Return the bytes of a file after some of its writes."""
        if (file, writes) not in self._contents:
            content = self._first_contents.get(file, b"")
            for number, fate in writes:
                operation = self._operations[number]
                if isinstance(operation, Truncate):
                    content = truncated(content, operation.size)
                elif isinstance(operation, Write):
                    data = operation.data
                    if fate == HALF:
                        data = data[: len(data) // 2]
                    content = written(content, operation._replace(data=data))
            self._contents[file, writes] = content
        return self._contents[file, writes]


def _after_sync(to_flush: Mapping[int, set[int]], sync: Sync) -> dict[int, set[int]]:
    """Return what must still be flushed for each operation that a sync leaves unsure."""
    if sync.target is None:
        return {}
    remaining = {number: targets - {sync.target} for number, targets in to_flush.items()}
    return {number: targets for number, targets in remaining.items() if targets}


def is_hidden(path: str) -> bool:
    return any(name.startswith(".") for name in path.split("/"))


# commands, and how their outputs are opened


Answers = dict[str, str]  # by part of the output


class Case(NamedTuple):
    """A command that writes OUTPUT, and what a user reads from it."""

    command: list[str]
    readers: Mapping[str, Callable[[], Any]]  # part of the output -> what is read from it
    rerun_option: str  # with which the command is run once more
    replaced_case: str = ""  # a case whose output is there before, and is replaced
    reference_case: str = ""  # a case whose parts are right, too


OUTPUT = "new-output"  # a name that no message has by chance
TEXTS = ["the river", "a boat on the water", "money in the bank"]


def search_vectors() -> Any:
    """Search with texts, which are encoded as the manifest says."""
    return Index.open(OUTPUT, device="cpu").search(TEXTS, hits=len(PASSAGES))


def search_vector_file() -> Any:
    return Index.build(OUTPUT).search(TEXTS, hits=len(PASSAGES))


def search_terms() -> Any:
    return BM25.open(OUTPUT).search(TEXTS)


def index_corpus() -> Any:
    return BM25.build(OUTPUT).search(TEXTS)


def read_run() -> Any:
    return Run.load(OUTPUT)


def encoded_by(folder: str) -> Callable[[], Any]:
    def vectors() -> Any:
        encoder = Encoder.load(folder, device="cpu", dtype="float32")
        return encoder.encode_queries(TEXTS).tolist()

    return vectors


VECTORS = {"hits": search_vectors}
TERMS = {"hits": search_terms}
MODEL = {"model": encoded_by(OUTPUT)}
ON_TORCH = ["--set", "backend=torch"]  # which needs no time to compile a model
ENCODE_PASSAGES = ["encode", "--model", "model", "--block-size", "2", *ON_TORCH]
ENCODE_PASSAGES += ["--dtype", "float32", "--corpus"]
ENCODE = [*ENCODE_PASSAGES, "corpus.jsonl"]
ENCODE_MEAN = [*ENCODE_PASSAGES, "others.jsonl", "--representation", "mean"]
INDEX = ["index", "--input", "vectors"]
INDEX_MEAN = ["index", "--input", "vectors-mean"]
HNSW = ["--type", "hnsw", "--threads", "1"]
INDEX_TERMS = ["index", "--type", "bm25", "--corpus", "corpus.jsonl"]
SEARCH = ["search", "--index", "index", "--topics", "queries.tsv", *ON_TORCH, "--hits"]
FINETUNE = ["finetune", "--model", "model", "--train-data", "train.jsonl", "--device", "cpu"]
FINETUNE += ["--batch-size", "4", "--group-size", "2", "--max-steps", "3", "--save-steps", "1"]
CHECKPOINTS = {
    f"checkpoint-{n}": encoded_by(f"{OUTPUT}.training/checkpoints/checkpoint-{n}")
    for n in (1, 2, 3)
}
KEEPS_ALL = "finetune, all checkpoints kept"
CASES = {
    "encode": Case(ENCODE, VECTORS, "--resume"),
    "encode --overwrite": Case(ENCODE_MEAN, VECTORS, "--overwrite", "encode"),
    "encode jsonl": Case(
        [*ENCODE, "--output-format", "jsonl"], {"hits": search_vector_file}, "--overwrite"
    ),
    "index": Case(INDEX, VECTORS, "--resume"),
    "index --overwrite": Case(INDEX_MEAN, VECTORS, "--overwrite", "index"),
    "index hnsw": Case([*INDEX, *HNSW], VECTORS, "--resume"),
    "index hnsw --overwrite": Case([*INDEX_MEAN, *HNSW], VECTORS, "--overwrite", "index hnsw"),
    "bm25": Case(INDEX_TERMS, TERMS, "--resume"),
    "bm25 --overwrite": Case([*INDEX_TERMS, "--set", "k1=0.4"], TERMS, "--overwrite", "bm25"),
    "search": Case([*SEARCH, "5"], {"run": read_run}, "--overwrite"),
    "search --overwrite": Case([*SEARCH, "4"], {"run": read_run}, "--overwrite", "search"),
    "convert corpus": Case(
        ["convert", "corpus.jsonl", OUTPUT, "--to", "anserini"],
        {"hits": index_corpus},
        "--overwrite",
    ),
    "convert vectors": Case(["convert", "index", OUTPUT, "--to", "npy"], VECTORS, "--overwrite"),
    "convert vectors --overwrite": Case(
        ["convert", "index-mean", OUTPUT, "--to", "npy"], VECTORS, "--overwrite", "convert vectors"
    ),
    "convert model": Case(["convert", "model", OUTPUT, "--to", "denserk"], MODEL, "--overwrite"),
    "convert model --overwrite": Case(
        ["convert", "other-model", OUTPUT, "--to", "denserk"], MODEL, "--overwrite", "convert model"
    ),
    "finetune": Case(FINETUNE, MODEL | CHECKPOINTS, "--resume", reference_case=KEEPS_ALL),
    KEEPS_ALL: Case([*FINETUNE, "--set", "keep-checkpoints=0"], MODEL | CHECKPOINTS, "--resume"),
    "finetune --overwrite": Case(
        [*FINETUNE, "--lr", "0.01", "--set", "keep-checkpoints=0"],
        MODEL | CHECKPOINTS,
        "--overwrite",
        replaced_case=KEEPS_ALL,
    ),
}


def prepare(work: Path) -> None:
    """Write what the commands read."""
    write_toy(work)
    others = (work / "corpus.jsonl").read_text().replace('"_id": "d', '"_id": "e')
    (work / "others.jsonl").write_text(others)
    write_tiny(work / "model", "bert", VOCABULARY)
    write_tiny(work / "other-model", "bert", VOCABULARY, seed=8)
    write_examples(work / "train.jsonl", range(12))
    with working_in(work):
        must_run([*ENCODE, "--output", "vectors"])
        must_run([*ENCODE_MEAN, "--output", "vectors-mean"])
        must_run([*INDEX, "--output", "index"])
        must_run([*INDEX_MEAN, "--output", "index-mean"])


def line_of(case: Case, *options: str) -> list[str]:
    output = [] if case.command[0] == "convert" else ["--output", OUTPUT]
    return [*case.command, *output, *options, "--quiet"]


def must_run(arguments: list[str]) -> None:
    status, messages = run_forked([*arguments, "--quiet"])
    assert status == 0, messages


def run_forked(arguments: list[str]) -> tuple[int, str]:
    """Run a command in a fork of this process, which has imported everything."""
    with TemporaryFile() as messages:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.dup2(messages.fileno(), 1)
                os.dup2(messages.fileno(), 2)
                sys.argv = ["denserk", *arguments]
                status = run(arguments)
            except BaseException:  # noqa: BLE001 - the fork ends here
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        _, wait_status = os.waitpid(child, 0)
        messages.seek(0)
        return os.waitstatus_to_exitcode(wait_status), messages.read().decode()


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@dataclass
class Outcome:
    """What the states of a case were."""

    name: str
    recording: Recording
    tried: int = 0
    distinct: int = 0
    opened: Counter[str] = field(default_factory=Counter)  # old, new, error
    run_again: Counter[str] = field(default_factory=Counter)  # new, error
    rejected: list[str] = field(default_factory=list)  # errors of the command that is run again
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)  # after the command had ended

    def __str__(self) -> str:
        counts = [
            f"{self.name}: {len(self.recording.operations)} operations",
            f"{self.recording.syncs} of them fsync",
            f"{self.tried:,} states, {self.distinct:,} distinct",
            f"opened: {listed(self.opened)}",
            f"run again: {listed(self.run_again)}",
            f"{len(self.wrong)} wrong, {len(self.lost)} lost after the end",
        ]
        if self.recording.mapped:
            counts.append(f"memory maps, not covered: {', '.join(self.recording.mapped)}")
        return "; ".join(counts)


def listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()))


class Opened(NamedTuple):
    """What the parts of an output answer, and the errors of those that cannot be opened."""

    answers: Answers
    errors: Answers


def open_output(case: Case) -> Opened:
    """Open every part of the output of a case."""
    answers: Answers = {}
    errors: Answers = {}
    for part, read in case.readers.items():
        try:
            answers[part] = json.dumps(read())
        except DenserkError as error:
            errors[part] = str(error)
    return Opened(answers, errors)


def cut_power(work: Path, name: str, reruns: int = RERUNS) -> Outcome:
    """Record a case in a prepared folder, and open every state that a power cut can leave.

    The command is run again in so many of them, chosen by chance.
    """
    case = CASES[name]
    stage = work.with_name(f"{work.name}-{name.replace(' ', '-')}")
    shutil.copytree(work, stage)
    with working_in(stage):
        options = []
        if case.replaced_case:
            must_run(line_of(CASES[case.replaced_case]))
            options = ["--overwrite"]
        right_answers = [open_output(case).answers]
        environment = {**os.environ, **TEST_VARIABLES, "PYTHONPATH": str(Path(__file__).parents[2])}
        command = [sys.executable, "-m", "denserk", *line_of(case, *options)]
        outcome = Outcome(name, record(command, stage, environment))
        new_answers = open_output(case).answers
        right_answers.append(new_answers)
        if case.reference_case:
            must_run([*line_of(CASES[case.reference_case]), "--overwrite"])
            right_answers.append(open_output(case).answers)
    possible_states = States(outcome.recording)
    states: list[State] = []
    with TemporaryDirectory(dir=work.parent) as scratch:
        for number, (has_ended, state) in enumerate(possible_states):
            folder = Path(scratch, f"{number}")
            with written_out(state, work, folder), working_in(folder):
                _open(case, outcome, right_answers, new_answers, has_ended)
            states.append(state)
        outcome.tried = possible_states.tried
        outcome.distinct = len(states)
        if reruns < len(states):
            states = random.Random(1).sample(states, reruns)
        for number, state in enumerate(states):
            folder = Path(scratch, f"again-{number}")
            with written_out(state, work, folder), working_in(folder):
                _run_again(case, outcome, new_answers)
    shutil.rmtree(stage)
    return outcome


def _open(
    case: Case,
    outcome: Outcome,
    right_answers: Sequence[Answers],
    new_answers: Answers,
    has_ended: bool,
) -> None:
    """Open a state, and count whether it is the old one, the new one, or an error."""
    try:
        answers, errors = open_output(case)
    except Exception as error:  # noqa: BLE001 - what is no DenserkError is what is looked for
        outcome.wrong.append(f"{type(error).__name__}: {error}")
        return
    for part, message in errors.items():
        if OUTPUT not in message:
            outcome.wrong.append(f"{part}: an error that does not name the file: {message}")
    for part, answer in answers.items():
        if answer not in [right.get(part) for right in right_answers]:
            outcome.wrong.append(f"{part}: an answer that is neither the old one nor the new one")
    main_part = next(iter(case.readers))
    if main_part in errors:
        result = "error"
    elif answers.get(main_part) == new_answers[main_part]:
        result = "new"
    else:
        result = "old"
    if has_ended and answers != new_answers:
        outcome.lost.append(f"after the command had ended: {result} {errors}")
    outcome.opened[result] += 1


def _run_again(case: Case, outcome: Outcome, new_answers: Answers) -> None:
    """Run the command again in a state: it comes to the new state, or names the file in its way."""
    status, messages = run_forked(line_of(case, case.rerun_option))
    if status != 0:
        outcome.run_again["error"] += 1
        message = f"run again, status {status}: {messages}"
        outcome.rejected.append(message)
        if OUTPUT not in messages or "Traceback" in messages or "internal error" in messages:
            outcome.wrong.append(message)
        return
    outcome.run_again["new"] += 1
    answers, _ = open_output(case)
    # parts that are not in the new state may be left: an older checkpoint
    if {part: answers.get(part) for part in new_answers} != new_answers:
        outcome.wrong.append("run again, the answer is another one")


@contextmanager
def written_out(state: State, inputs: Path, folder: Path) -> Iterator[None]:
    """Write a state into a new folder; inputs that no command changes are links."""
    folder.mkdir()
    for path in inputs.iterdir():
        (folder / path.name).symlink_to(path)
    for name, content in state.items():
        path = folder / name
        if (inputs / name).exists():
            continue
        if content is None:
            path.mkdir()
        else:
            path.write_bytes(content)
    yield
    shutil.rmtree(folder)


def main(work: str, *names: str) -> int:
    reason = why_not()
    if reason is not None:
        print(reason)  # noqa: T201
        return 1
    root = Path(work).absolute()
    root.mkdir(parents=True)
    prepare(root / "work")
    wrong_states = 0
    for name in names or CASES:
        start = time.monotonic()
        outcome = cut_power(root / "work", name)
        wrong_states += len(outcome.wrong) + len(outcome.lost)
        messages = [*outcome.wrong, *outcome.lost, *outcome.rejected]
        print(f"{outcome}; {time.monotonic() - start:.0f} s", flush=True)  # noqa: T201
        for message, count in Counter(messages).most_common(10):
            print(f"    {count:,} times: {message}", flush=True)  # noqa: T201
    return 1 if wrong_states else 0


if __name__ == "__main__":
    os.environ.update(TEST_VARIABLES)
    sys.exit(main(*sys.argv[1:]))
