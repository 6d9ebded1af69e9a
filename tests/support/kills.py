"""Kills commands at random moments, runs them again, and compares every byte with a quiet run.

    python -m tests.support.kills WORK [KILLS [SEED]]

WORK is a folder that is made. Prints a line a command, and exits with 1 at the first difference.
"""

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

import yaml

from tests.support.finetuning import write_examples
from tests.support.pretraining import write_corpus
from tests.support.tiny_models import write_tiny
from tests.support.toy import VOCABULARY, write_toy

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
LOG = "../log"  # of the last command
PATIENCE = 200  # seconds after which a command counts as hanging
WITH_TIMES = ("training.json", "training.png", "trainer_state.json")
PASSAGES = 200
OUTPUTS = (KILLED, WHOLE) = ("out-k", "ref-out")  # of one length, because manifests name them


class Case(NamedTuple):
    """A command without its output, and how it is run once more after a kill."""

    command: list[str]
    again: str = "--resume"
    first: str = ""  # a command whose output is there before, and is to be replaced


ENCODE = ["encode", "--model", "model", "--corpus", "passages.jsonl", "--block-size", "8"]
ENCODE += ["--dtype", "float32"]
TRAINING = ["--device", "cpu", "--batch-size", "4", "--save-steps", "2", "--max-steps", "12"]
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


def denserk(arguments: list[str], delay: float | None = None, how: int = 0) -> tuple[int, float]:
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


def line_of(case: Case, output: str, *more: str) -> list[str]:
    if case.command[0] == "convert":
        return [*case.command[:2], output, *case.command[2:], *more]
    return [*case.command, "--output", output, *more]


def finish(case: Case, output: str, *more: str) -> float:
    status, seconds = denserk(line_of(case, output, *more))
    assert status == 0, Path(LOG).read_text()
    return seconds


def state(work: Path, output: str | None = None) -> dict[str, Any]:
    """Return the bytes of an output and of what is beside it, or of all else, without times."""
    found: dict[str, Any] = {}
    for path in sorted(work.rglob("*")):
        name = str(path.relative_to(work))
        of = next((each for each in OUTPUTS if each in name), None)
        if of != output or path.is_dir() or path.name in WITH_TIMES or "/logs/" in name:
            continue
        name, data = name.replace(str(of), "OUT"), path.read_bytes()
        data = data.replace(str(of).encode(), b"OUT")
        found[name] = None if path.suffix in (".pt", ".pth") else data  # zip files hold times
        if name.endswith(".ir_metadata.yaml"):
            found[name] = yaml.safe_load(
                data.replace(b"ir_metadata.start", b"").rsplit(b"\n", 2)[0]
            )
            del found[name]["implementation"]["executable"]  # with or without --overwrite
        if name.endswith("manifest.json"):
            found[name] = json.loads(data)
            found[name].get("contents", {}).pop("seconds", None)
    return found


def clear(work: Path, output: str) -> None:
    for path in work.iterdir():
        if output in path.name:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def prepare(work: Path) -> None:
    """Write what the commands read, and files that no command may touch."""
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
    (work / "letters").mkdir()
    (work / "letters" / "letters.txt").write_text("mine")
    os.chdir(work)
    finish(Case(ENCODE), "vectors")
    finish(Case(INDEX), "index")
    finish(Case([*SEARCH, "1000"]), "a.trec")
    finish(Case([*SEARCH, "9"]), "b.trec")


def kill_and_compare(work: Path, name: str, draw: random.Random, kills: int) -> int:
    """Kill a command so many times, each followed by another run; returns how many hit it."""
    case, hit, done = CASES[name], 0, 0
    more = ["--overwrite"] if case.first else []
    if case.first:
        finish(CASES[case.first], WHOLE)
    finish(case, WHOLE, *more)
    seconds = finish(case, WHOLE, "--overwrite")
    expected, outside = state(work, WHOLE), state(work)
    while done < kills:
        clear(work, KILLED)
        if case.first:
            finish(CASES[case.first], KILLED)
        status, flags = 1, more
        for _ in range(draw.choice((1, 1, 2, 3))):
            how = draw.choice(SIGNALS)
            status, _ = denserk(line_of(case, KILLED, *flags), draw.uniform(0, 1.1) * seconds, how)
            hit, done, flags = hit + (status != 0), done + 1, [case.again]
            log = Path(LOG).read_text()
            assert status in (0, -how, 128 + how), f"{name}: {status} after signal {how}:\n{log}"
            if status == 0:
                break
        if status != 0:
            finish(case, KILLED, case.again)
        found = state(work, KILLED)
        names = expected.keys() | found.keys()
        differ = [key for key in names if expected.get(key, b"-") != found.get(key, b"-")]
        assert not differ, f"{name}: {sorted(differ)} differ"
        assert state(work) == outside, f"{name}: a file that is not its own changed"
    for output in OUTPUTS:
        clear(work, output)
    return hit


def main(work: str, kills: str = "300", seed: str = "1") -> None:
    root = Path(work).absolute()
    (root / "tmp").mkdir(parents=True)
    os.environ["TMPDIR"] = str(root / "tmp")
    prepare(root / "work")
    draw, share = random.Random(seed), -(-int(kills) // len(CASES))
    for name in CASES:
        hit = kill_and_compare(root / "work", name, draw, share)
        print(f"{name}: {share} signals, {hit} before the end, nothing differs", flush=True)  # noqa: T201
    left = [path.name for path in (root / "tmp").iterdir() if path.name.startswith("denserk-")]
    assert len(left) <= 1, left  # of the last killed process; the next one removes it


if __name__ == "__main__":
    main(*sys.argv[1:])
