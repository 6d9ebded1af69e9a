"""Kills commands at random moments, runs them again, and compares every byte with a quiet run.

    python -m tests.kills WORK [--kills 300] [--seed 1]

WORK is a folder that is made. Prints a line a command, and exits with 1 at the first difference.
"""

import argparse
import faulthandler
import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from tests.conftest import VOCABULARY, write_toy
from tests.tiny_models import write_tiny
from tests.training.finetuning import write_examples
from tests.training.pretraining import write_corpus

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
LOG = "../log"  # of the last command
PATIENCE = 200  # seconds after which a command counts as hanging
CHANGING = ("training.json", "training.png")  # times
TRAINING = ["--device", "cpu", "--batch-size", "4", "--save-steps", "2", "--max-steps", "12"]
PASSAGES = 200


class Case(NamedTuple):
    """A command without its output, and how it is run once more after a kill."""

    command: list[str]
    again: str = "--resume"
    first: str = ""  # a command whose output is there before, and is to be replaced


ENCODE = ["encode", "--model", "model", "--corpus", "passages.jsonl", "--block-size", "8"]
FINETUNE = ["finetune", "--model", "model", "--train-data", "train.jsonl", *TRAINING]
PRETRAIN = ["pretrain", "--objective", "mlm", "--model", "model", "--corpus", "text.jsonl"]
INDEX = ["index", "--input", "vectors"]
SEARCH = ["search", "--index", "index", "--topics", "queries.tsv", "--hits"]
MINE = ["mine-negatives", "--topics", "queries.tsv", "--qrels", "qrels.txt", "--run", "a.trec"]
MINE += ["--corpus", "passages.jsonl", "--depth", "50", "--num-negatives", "20"]
CASES = {
    "encode": Case(ENCODE),
    "encode --overwrite": Case([*ENCODE, "--representation", "mean"], "--overwrite", "encode"),
    "encode jsonl": Case([*ENCODE, "--output-format", "jsonl"], "--overwrite"),
    "encode pyserini-faiss": Case([*ENCODE, "--output-format", "pyserini-faiss"], "--overwrite"),
    "index": Case(INDEX),
    "index --overwrite": Case([*INDEX, "--type", "hnsw", "--threads", "1"], "--overwrite", "index"),
    "bm25": Case(["index", "--corpus", "passages.jsonl", "--type", "bm25"]),
    "finetune": Case([*FINETUNE, "--group-size", "2"]),
    "finetune --overwrite": Case([*FINETUNE, "--group-size", "3"], "--overwrite", "finetune"),
    "pretrain": Case([*PRETRAIN, "--max-length", "16", *TRAINING]),
    "search": Case([*SEARCH, "100"], "--overwrite"),
    "mine": Case(MINE, "--overwrite"),
    "fuse": Case(["fuse", "a.trec", "b.trec"], "--overwrite"),
    "convert": Case(["convert", "passages.jsonl", "--to", "anserini"], "--overwrite"),
    "convert vectors": Case(["convert", "vectors", "--to", "parquet"], "--overwrite"),
}


def command(arguments: list[str], delay: float | None = None, how: int = 0) -> tuple[int, float]:
    """Run a command in a forked process, and send it a signal; its exit status and its seconds."""
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        for each in SIGNALS[1:]:
            signal.signal(each, signal.SIG_DFL)  # also under nohup
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        faulthandler.dump_traceback_later(PATIENCE, file=2, exit=True)
        sys.argv = ["denserk", *arguments, "--quiet", "--traceback"]
        status = 1
        try:
            from denserk.__main__ import main

            main()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        finally:
            os._exit(status)
    if delay is not None:
        time.sleep(delay)
        os.kill(child, how)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, time.monotonic() - start


def with_output(case: Case, output: str, *more: str) -> list[str]:
    """The command line of a case."""
    if case.command[0] == "convert":
        return [*case.command[:2], output, *case.command[2:], *more]
    return [*case.command, "--output", output, *more]


def state(output: Path) -> dict[str, Any]:
    """Every byte of an output and of what stands beside it, without times."""
    found: dict[str, Any] = {}
    beside = [path for path in output.parent.iterdir() if output.name in path.name]
    for place in beside:
        for path in [place] if place.is_file() else sorted(place.rglob("*")):
            name = str(path.relative_to(output.parent)).replace(output.name, "OUT", 1)
            if path.is_dir() or path.name in CHANGING or "/logs/" in name:
                continue
            data = path.read_bytes().replace(output.name.encode(), b"OUT")
            if path.name.endswith("manifest.json"):
                manifest = json.loads(data)
                manifest.get("contents", {}).pop("seconds", None)
                found[name] = manifest
            elif path.name == "trainer_state.json" or path.suffix in (".pt", ".pth"):
                found[name] = None  # holds times, or a zip file's
            else:
                found[name] = data
    return found


def prepare(work: Path) -> None:
    """Write what the commands read, and files that are nobody's business."""
    write_toy(work)
    write_tiny(work / "model", "bert", VOCABULARY)
    write_examples(work / "train.jsonl", range(24))
    write_corpus(work / "text.jsonl", range(12))
    text = [f"the old river {'runs to the south ' * (number % 5)}" for number in range(PASSAGES)]
    with (work / "passages.jsonl").open("w") as out:
        for number, each in enumerate(text):
            out.write(json.dumps({"_id": f"d{number}", "title": "", "text": each}) + "\n")
    (work / "thesis.tex").write_text("mine")
    (work / ".bashrc").write_text("mine")
    (work / "logs").mkdir()
    (work / "logs" / "letters.txt").write_text("mine")
    os.chdir(work)
    assert command([*ENCODE, "--output", "vectors"])[0] == 0
    assert command([*INDEX, "--output", "index"])[0] == 0
    assert command([*SEARCH, "1000", "--output", "a.trec"])[0] == 0
    assert command([*SEARCH, "9", "--output", "b.trec"])[0] == 0


def kill_and_compare(work: Path, name: str, draw: random.Random, kills: int) -> int:
    """Kill a command so many times, each followed by another run; returns how many hit it."""
    case, hit = CASES[name], 0
    if case.first:
        assert command(with_output(CASES[case.first], "ref-out"))[0] == 0
    assert command(with_output(case, "ref-out", *([case.again] if case.first else [])))[0] == 0
    assert command(with_output(case, "timed-out"))[0] == 0
    seconds = command(with_output(case, "timed-out", "--overwrite"))[1]
    expected, outside = state(work / "ref-out"), everything_else(work)
    done = 0
    while done < kills:
        clear(work, "out-k")
        if case.first:
            assert command(with_output(CASES[case.first], "out-k"))[0] == 0
        more = ["--overwrite"] if case.first else []
        for _ in range(draw.choice((1, 1, 2, 3))):
            how = draw.choice(SIGNALS)
            arguments = with_output(case, "out-k", *more)
            status, _ = command(arguments, draw.uniform(0, 1.1) * seconds, how)
            hit += status != 0
            assert status in (0, -how, 128 + how), (
                f"{name}: status {status} after signal {how}:\n{Path(LOG).read_text()}"
            )
            done += 1
            if status == 0:
                break
            more = [case.again]
        if status != 0:
            status = command(with_output(case, "out-k", case.again))[0]
            assert status == 0, Path(LOG).read_text()
        found = state(work / "out-k")
        names = expected.keys() | found.keys()
        differ = [key for key in names if expected.get(key, b"-") != found.get(key, b"-")]
        assert not differ, f"{name}: {sorted(differ)} differ"
        assert everything_else(work) == outside, f"{name}: a file that is not its own changed"
    for output in ("out-k", "timed-out", "ref-out"):
        clear(work, output)
    return hit


def everything_else(work: Path) -> dict[str, bytes]:
    """The bytes of all that is no output."""
    outputs = ("ref-out", "timed-out", "out-k")
    return {
        str(path): path.read_bytes()
        for path in sorted(work.rglob("*"))
        if path.is_file() and not any(one in str(path) for one in outputs)
    }


def clear(work: Path, output: str) -> None:
    """Remove an output and what stands beside it."""
    for path in work.iterdir():
        if output in path.name:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def main(arguments: list[str] | None = None) -> None:
    """Kill every command its share of times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    scratch = chosen.work / "tmp"
    scratch.mkdir(parents=True)
    os.environ["TMPDIR"] = str(scratch)
    prepare(chosen.work / "work")
    draw, total = random.Random(chosen.seed), 0
    for name in CASES:
        share = -(-chosen.kills // len(CASES))
        hit = kill_and_compare(chosen.work / "work", name, draw, share)
        total += share
        print(f"{name}: {share} signals, {hit} before the end, nothing differs", flush=True)  # noqa: T201
    left = [path.name for path in scratch.iterdir() if path.name.startswith("denserk-")]
    assert len(left) <= 1, left  # of the last killed process; the next one removes it
    print(f"{total} signals, no difference")  # noqa: T201


if __name__ == "__main__":
    main()
