"""Reads folders while they are rebuilt: ten readers beside ten rebuilds, in processes of their own.

    python -m tests.support.rebuilding WORK [ROUNDS]

WORK is a folder that is made. In each round the next of the kinds below is rebuilt ten times, from
the one and the other of two states in turn, while ten processes read it until that is done. Every
answer must be wholly that of one state, or an error that says that the folder is being rewritten.
Prints how many there were of each, and exits with 1 if an answer is of neither state.
"""

import json
import multiprocessing
import os
import queue
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

READERS = 10
REBUILDS = 10
STATES = ("one", "two")
PASSAGES = 80  # of each state, so that files of one fit those of the other
DIMENSION = 16
WORDS = ("river", "bank", "moon", "boat", "dog", "old", "south", "the", "runs", "jumps")
LOG = "log"


class Kind(NamedTuple):
    """What is rebuilt: the command for a state, and the two ways in which readers read it."""

    rebuild: Callable[[str], list[str]]
    read: Callable[[], Any]
    read_otherwise: Callable[[], Any]

    def reader(self, way: int) -> Callable[[], Any]:
        """Return how readers of the way 0 or 1 read it."""
        return self.read if way == 0 else self.read_otherwise


class Failed(Exception):
    """A command ended with an error; its first line is the message."""


def denserk(*words: str) -> None:
    """Run a command in this process, whose standard error goes to the log."""
    from denserk.commands.app import run

    os.ftruncate(2, 0)
    os.lseek(2, 0, os.SEEK_SET)
    status = run([*words, "--quiet"])
    if status != 0:
        raise Failed(Path(LOG).read_text().partition("\n")[0])


def searched(*words: str) -> bytes:
    """Return the run of a search of the folder that is rebuilt."""
    denserk("search", "--index", "../folder", *words, "--output", "run", "--overwrite")
    return Path("run").read_bytes()


def opened_and_searched(kind: str) -> Any:
    """Return what an index finds that was opened in Python a while before."""
    from denserk import BM25, Index

    if kind == "bm25":
        bm25 = BM25.open("../folder")
        time.sleep(0.05)  # a rebuild or more
        hits = bm25.search("../queries.tsv", hits=20)
    else:
        index = Index.open("../folder")
        time.sleep(0.05)  # a rebuild or more
        hits = index.search(np.load("../queries.npy"), hits=20)
    return json.dumps({qid: list(scores.items()) for qid, scores in hits.items()})


def indexed() -> Any:
    """Return the ids and the vectors of an index of the folder that is rebuilt."""
    denserk("index", "--input", "../folder", "--output", "index", "--overwrite")
    return Path("index/docid").read_bytes(), Path("index/index").read_bytes()


def encoded() -> Any:
    """Return the vectors of queries and the fingerprint of the model that is rebuilt."""
    encode = ["encode", "--model", "../folder", "--topics", "../queries.tsv"]
    denserk(*encode, *ON_TORCH, "--output", "vectors", "--overwrite")
    manifest = json.loads(Path("vectors/manifest.json").read_bytes())
    fingerprint = manifest["made_from"]["model"]["fingerprint"]
    return fingerprint, Path("vectors/block-00000.npy").read_bytes()


def loaded() -> Any:
    """Return vectors of the model that is rebuilt, which is loaded in Python."""
    from denserk import Encoder

    encoder = Encoder.load("../folder", device="cpu", backend="torch", dtype="float32")
    return encoder.encode_queries(["the old river", "a boat"]).tobytes()


def index_of(kind: str, state: str) -> list[str]:
    return ["index", "--input", f"../{state}.jsonl", "--type", kind, "--threads", "1"]


# the same last bits each time
ON_TORCH = ("--device", "cpu", "--backend", "torch", "--dtype", "float32")
BY_VECTORS = ("--encoded-queries", "../queries.jsonl", "--hits", "20", "--device", "cpu")
KINDS = {
    "flat": Kind(
        lambda state: index_of("flat", state),
        lambda: searched(*BY_VECTORS),
        lambda: opened_and_searched("flat"),
    ),
    "hnsw": Kind(
        lambda state: index_of("hnsw", state),
        lambda: searched(*BY_VECTORS),
        lambda: opened_and_searched("hnsw"),
    ),
    "bm25": Kind(
        lambda state: ["index", "--corpus", f"../{state}-corpus.jsonl", "--type", "bm25"],
        lambda: searched("--topics", "../queries.tsv", "--hits", "20"),
        lambda: opened_and_searched("bm25"),
    ),
    "vectors": Kind(
        lambda state: [
            *("encode", "--model", "../model-one", "--corpus", f"../{state}-corpus.jsonl"),
            *("--block-size", "2", *ON_TORCH),
        ],
        lambda: opened_and_searched("vectors"),
        indexed,
    ),
    "model": Kind(
        lambda state: ["convert", f"../model-{state}", "../folder", "--to", "denserk"],
        encoded,
        loaded,
    ),
}


def rebuild(kind: str, state: str) -> None:
    command = KINDS[kind].rebuild(state)
    output = [] if command[0] == "convert" else ["--output", "../folder"]
    denserk(*command, *output, "--overwrite")


def enter(work: Path, name: str) -> None:
    """Make a folder for a process, in which it runs; standard error goes to a log there."""
    (work / name).mkdir()
    os.chdir(work / name)
    os.dup2(os.open(LOG, os.O_RDWR | os.O_CREAT), 2)


def write_inputs(work: Path) -> None:
    """Write two states of vectors, of a corpus and of a model, and queries."""
    from tests.support.tiny_models import write_tiny
    from tests.support.toy import VOCABULARY

    draw = np.random.default_rng(7)
    for number, state in enumerate(STATES):
        vectors = draw.normal(size=(PASSAGES, DIMENSION)).astype(np.float32)
        passages = [
            {"id": f"{state}{row}", "vector": vector} for row, vector in enumerate(vectors.tolist())
        ]
        write_jsonl(work / f"{state}.jsonl", passages)
        texts = [" ".join(draw.choice(WORDS, 12).tolist()) for _ in range(PASSAGES)]
        corpus = [{"_id": f"{state}{row}", "text": text} for row, text in enumerate(texts)]
        write_jsonl(work / f"{state}-corpus.jsonl", corpus)
        write_tiny(work / f"model-{state}", "bert", VOCABULARY, seed=number)
    query_vectors = draw.normal(size=(5, DIMENSION)).astype(np.float32)
    np.save(work / "queries.npy", query_vectors)
    queries = [
        {"qid": f"q{row}", "vector": vector} for row, vector in enumerate(query_vectors.tolist())
    ]
    write_jsonl(work / "queries.jsonl", queries)
    with (work / "queries.tsv").open("w") as out:
        for row in range(5):
            out.write(f"q{row}\t{' '.join(draw.choice(WORDS, 3).tolist())}\n")


def write_jsonl(path: Path, records: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


Answers = list[str]  # of readers of the two ways


class Shared(NamedTuple):
    """What the processes share."""

    gate: Any  # a barrier for all of them
    is_over: Any  # an event: the folder of a round is no longer rebuilt
    expected: Any  # a queue of the right answers by kind and state, once for each reader
    counts: Any  # a queue of a `Count` of each reader in each round


class Count(NamedTuple):
    """How often a reader got each answer in a round."""

    round_number: int
    kind: str
    answers: Counter[str]


def keep_rebuilding(work: Path, rounds: int, shared: Shared) -> None:
    """Rebuild the folder of each round; first send what each reader must answer in each state."""
    write_inputs(work)
    enter(work, "writer")
    expected = expected_answers(list(KINDS)[:rounds])
    for _ in range(READERS):
        shared.expected.put(expected)
    for number in range(rounds):
        kind = list(KINDS)[number % len(KINDS)]
        shutil.rmtree("../folder", ignore_errors=True)
        rebuild(kind, "two")
        shared.gate.wait()  # the folder is there
        shared.gate.wait()  # every reader has imported what it needs
        for rebuild_number in range(REBUILDS):
            rebuild(kind, STATES[rebuild_number % 2])
        shared.is_over.set()
        shared.gate.wait()
        shared.is_over.clear()
    remains = [path.name for path in work.iterdir() if path.name.startswith(".")]
    assert not remains, remains


def expected_answers(kinds: Iterable[str]) -> dict[str, dict[str, Answers]]:
    """Return what readers answer by kind and state, while nothing is rebuilt."""
    expected: dict[str, dict[str, Answers]] = {}
    for kind in kinds:
        expected[kind] = {}
        for state in STATES:
            shutil.rmtree("../folder", ignore_errors=True)
            rebuild(kind, state)
            expected[kind][state] = [repr(KINDS[kind].reader(way)()) for way in (0, 1)]
        assert expected[kind]["one"] != expected[kind]["two"]
    return expected


def keep_reading(work: Path, number: int, rounds: int, shared: Shared) -> None:
    """Read the folder of each round until it is no longer rebuilt, and count the answers."""
    enter(work, f"reader{number}")
    expected = shared.expected.get()
    pause = random.Random(number)
    way = number % 2
    for round_number in range(rounds):
        kind = list(KINDS)[round_number % len(KINDS)]
        read = KINDS[kind].reader(way)
        expected_by_state = {state: expected[kind][state][way] for state in STATES}
        shared.gate.wait()
        read()
        shared.gate.wait()
        is_last = False
        answers: Counter[str] = Counter()
        while not is_last:
            is_last = shared.is_over.is_set()
            answers[answer_of(read, expected_by_state)] += 1
            time.sleep(pause.uniform(0, 0.3))
        shared.counts.put(Count(round_number, kind, answers))
        shared.gate.wait()


def answer_of(read: Callable[[], Any], expected_by_state: dict[str, str]) -> str:
    """Return the state that a reader has read, or the error, without what changes in it."""
    from denserk.errors import DenserkError

    try:
        answer = repr(read())
    except (Failed, DenserkError) as error:
        if "is being rewritten" in str(error):
            return "is being rewritten"
        return f"WRONG ERROR {error}"
    for state, expected in expected_by_state.items():
        if answer == expected:
            return state
    return f"MIXED {answer[:300]}"


def main(work: str, rounds: str = "50") -> int:
    os.environ["OMP_NUM_THREADS"] = "1"  # the same last bits in every process
    root = Path(work).absolute()
    root.mkdir(parents=True)
    context = multiprocessing.get_context("spawn")
    shared = Shared(
        gate=context.Barrier(READERS + 1),
        is_over=context.Event(),
        expected=context.Queue(),
        counts=context.Queue(),
    )
    arguments = (int(rounds), shared)
    processes = [context.Process(target=keep_rebuilding, args=(root, *arguments))]
    for number in range(READERS):
        processes.append(context.Process(target=keep_reading, args=(root, number, *arguments)))
    for process in processes:
        process.start()
    counts = received_counts(int(rounds), shared, processes)
    is_complete = len(counts) == int(rounds) * READERS
    if not is_complete:
        shared.gate.abort()  # the others wait for the one that failed
    for process in processes:
        process.join()
    totals: Counter[tuple[str, str]] = Counter()
    for count in counts:
        for answer, times in count.answers.items():
            totals[count.kind, answer] += times
    for (kind, answer), times in sorted(totals.items()):
        print(f"{kind}: {times} times {answer}")  # noqa: T201
    is_wrong = any(answer.startswith(("MIXED", "WRONG")) for _, answer in totals)
    return int(is_wrong or not is_complete or has_failed(processes))


def received_counts(rounds: int, shared: Shared, processes: Iterable[Any]) -> list[Count]:
    """Return the counts of all readers in all rounds; fewer if a process fails."""
    counts: list[Count] = []
    answers = 0
    while len(counts) < rounds * READERS and not has_failed(processes):
        with suppress(queue.Empty):
            count = shared.counts.get(timeout=1)
            counts.append(count)
            answers += count.answers.total()
            if len(counts) % READERS == 0:
                message = f"round {count.round_number + 1}, {count.kind}: {answers} answers"
                print(message, flush=True)  # noqa: T201
    return counts


def has_failed(processes: Iterable[Any]) -> bool:
    """Return whether a process has ended with an error."""
    return any(process.exitcode not in (None, 0) for process in processes)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
