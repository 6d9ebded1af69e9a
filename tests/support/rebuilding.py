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

READERS, REBUILDS = 10, 10
STATES = ("one", "two")
PASSAGES = 80  # of each state, so that files of one fit those of the other
DIMENSION = 16
WORDS = ("river", "bank", "moon", "boat", "dog", "old", "south", "the", "runs", "jumps")
LOG = "log"


class Kind(NamedTuple):
    """What is rebuilt: the command for a state, and how readers of two sorts read it."""

    rebuild: Callable[[str], list[str]]
    read: Callable[[], Any]
    read_otherwise: Callable[[], Any]


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
    import denserk as package

    index = (package.BM25 if kind == "bm25" else package.Index).open("../folder")
    time.sleep(0.05)  # a rebuild or more
    if kind == "bm25":
        hits = index.search("../queries.tsv", hits=20)
    else:
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
    made_by = manifest["made_from"]["model"]["fingerprint"]
    return made_by, Path("vectors/block-00000.npy").read_bytes()


def loaded() -> Any:
    """Return vectors of the model that is rebuilt, which is loaded in Python."""
    import denserk as package

    encoder = package.Encoder.load("../folder", device="cpu", backend="torch", dtype="float32")
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
        with (work / f"{state}.jsonl").open("w") as out:
            for row, vector in enumerate(vectors.tolist()):
                out.write(json.dumps({"id": f"{state}{row}", "vector": vector}) + "\n")
        with (work / f"{state}-corpus.jsonl").open("w") as out:
            for row in range(PASSAGES):
                text = " ".join(draw.choice(WORDS, 12).tolist())
                out.write(json.dumps({"_id": f"{state}{row}", "text": text}) + "\n")
        write_tiny(work / f"model-{state}", "bert", VOCABULARY, seed=number)
    queries = draw.normal(size=(5, DIMENSION)).astype(np.float32)
    np.save(work / "queries.npy", queries)
    with (work / "queries.jsonl").open("w") as out:
        for row, vector in enumerate(queries.tolist()):
            out.write(json.dumps({"qid": f"q{row}", "vector": vector}) + "\n")
    texts = (" ".join(draw.choice(WORDS, 3).tolist()) for _ in range(5))
    (work / "queries.tsv").write_text("".join(f"q{n}\t{text}\n" for n, text in enumerate(texts)))


def keep_rebuilding(work: Path, rounds: int, gate: Any, over: Any, answers: Any) -> None:
    """Rebuild the folder of each round; first send what each reader must answer in each state."""
    write_inputs(work)
    enter(work, "writer")
    expected: dict[str, dict[str, list[Any]]] = {}
    for kind in list(KINDS)[:rounds]:
        expected[kind] = {}
        for state in STATES:
            shutil.rmtree("../folder", ignore_errors=True)
            rebuild(kind, state)
            readers = (KINDS[kind].read, KINDS[kind].read_otherwise)
            expected[kind][state] = [repr(read()) for read in readers]
        assert expected[kind]["one"] != expected[kind]["two"]
    for _ in range(READERS):
        answers.put(expected)
    for number in range(rounds):
        kind = list(KINDS)[number % len(KINDS)]
        shutil.rmtree("../folder", ignore_errors=True)
        rebuild(kind, "two")
        gate.wait()  # the folder is there
        gate.wait()  # every reader has imported what it needs
        for times in range(REBUILDS):
            rebuild(kind, STATES[times % 2])
        over.set()
        gate.wait()
        over.clear()
    remains = [path.name for path in work.iterdir() if path.name.startswith(".")]
    assert not remains, remains


def keep_reading(
    work: Path, number: int, rounds: int, gate: Any, over: Any, answers: Any, counts: Any
) -> None:
    """Read the folder of each round until it is no longer rebuilt, and count the answers."""
    enter(work, f"reader{number}")
    expected = answers.get()
    pause = random.Random(number)
    for done in range(rounds):
        kind = list(KINDS)[done % len(KINDS)]
        sort = number % 2
        read = (KINDS[kind].read, KINDS[kind].read_otherwise)[sort]
        gate.wait()
        read()
        gate.wait()
        is_over = False
        counted: Counter[str] = Counter()
        while not is_over:
            is_over = over.is_set()
            counted[answer_of(read, sort, expected[kind])] += 1
            time.sleep(pause.uniform(0, 0.3))
        counts.put((done, kind, counted))
        gate.wait()


def answer_of(read: Callable[[], Any], sort: int, expected: dict[str, list[Any]]) -> str:
    """Return the state that a reader has read, or the error, without what changes in it."""
    from denserk.errors import DenserkError

    try:
        answer = repr(read())
    except (Failed, DenserkError) as error:
        if "is being rewritten" in str(error):
            return "is being rewritten"
        return f"WRONG ERROR {error}"
    states = [state for state in STATES if expected[state][sort] == answer]
    return states[0] if states else f"MIXED {answer[:300]}"


def main(work: str, rounds: str = "50") -> int:
    os.environ["OMP_NUM_THREADS"] = "1"  # the same last bits in every process
    root, total = Path(work).absolute(), int(rounds)
    root.mkdir(parents=True)
    context = multiprocessing.get_context("spawn")
    gate, over = context.Barrier(READERS + 1), context.Event()
    answers, counts = context.Queue(), context.Queue()
    writer = context.Process(target=keep_rebuilding, args=(root, total, gate, over, answers))
    writer.start()
    readers = [
        context.Process(target=keep_reading, args=(root, n, total, gate, over, answers, counts))
        for n in range(READERS)
    ]
    for reader in readers:
        reader.start()
    totals: Counter[tuple[str, str]] = Counter()
    received = 0
    while received < total * READERS and not has_failed([writer, *readers]):
        with suppress(queue.Empty):
            done, kind, counted = counts.get(timeout=1)
            received += 1
            totals += Counter({(kind, answer): times for answer, times in counted.items()})
            if received % READERS == 0:
                print(f"round {done + 1}, {kind}: {totals.total()} answers", flush=True)  # noqa: T201
    if received < total * READERS:
        gate.abort()  # the others wait for the one that failed
    for process in (writer, *readers):
        process.join()
    for (kind, answer), times in sorted(totals.items()):
        print(f"{kind}: {times} times {answer}")  # noqa: T201
    failed = has_failed([writer, *readers])
    wrong = any(answer.startswith(("MIXED", "WRONG")) for _, answer in totals)
    return int(failed or wrong or received < total * READERS)


def has_failed(processes: Iterable[Any]) -> bool:
    """Return whether a process has ended with an error."""
    return any(process.exitcode not in (None, 0) for process in processes)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
