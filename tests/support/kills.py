"""Kills commands at random moments, runs them again, and compares every byte with a quiet run.

    python -m tests.support.kills WORK [KILLS [SEED]]

WORK is a folder that is made. Prints a line a command, and exits with 1 at the first difference.
"""

import faulthandler
import json
import math
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

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
KILLED = "out-k"  # the output of killed commands
WHOLE = "ref-out"  # that of commands that run to their end
OUTPUTS = (KILLED, WHOLE)


class Case(NamedTuple):
    """A command without its output, and how it is run once more after a kill."""

    command: list[str]
    option_after_kill: str = "--resume"
    replaced_case: str = ""  # the case whose output is there before, and is to be replaced


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


class Kill(NamedTuple):
    """A signal that a command gets so many seconds after its start."""

    delay: float
    signal_number: signal.Signals


def denserk(arguments: list[str], kill: Kill | None = None) -> int:
    """Run a command in a forked process, which may be killed; return its exit status."""
    child = os.fork()
    if child == 0:
        run_in_fork(arguments)
    if kill is not None:
        time.sleep(kill.delay)
        os.kill(child, kill.signal_number)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def run_in_fork(arguments: list[str]) -> NoReturn:
    """Run a command, whose messages go to the log, and end this process."""
    for number in SIGNALS[1:]:
        signal.signal(number, signal.SIG_DFL)  # also under nohup
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


def line_of(case: Case, output: str, *options: str) -> list[str]:
    if case.command[0] == "convert":
        return [*case.command[:2], output, *case.command[2:], *options]
    return [*case.command, "--output", output, *options]


def finish(case: Case, output: str, *options: str) -> float:
    """Run a command to its end; return its seconds."""
    start = time.monotonic()
    status = denserk(line_of(case, output, *options))
    assert status == 0, Path(LOG).read_text()
    return time.monotonic() - start


def contents_of_output(work: Path, output: str) -> dict[str, Any]:
    """Return what the files of an output and beside it hold, by name, without times."""
    contents: dict[str, Any] = {}
    for path in sorted(work.rglob("*")):
        name = str(path.relative_to(work))
        if output in name and is_compared(path, name):
            contents[name.replace(output, "OUT")] = content_of(path, output)
    return contents


def contents_of_others(work: Path) -> dict[str, Any]:
    """Return what the files hold that belong to no output."""
    contents: dict[str, Any] = {}
    for path in sorted(work.rglob("*")):
        name = str(path.relative_to(work))
        if not any(output in name for output in OUTPUTS) and is_compared(path, name):
            contents[name] = path.read_bytes()
    return contents


def is_compared(path: Path, name: str) -> bool:
    return not path.is_dir() and path.name not in WITH_TIMES and "/logs/" not in name


def content_of(path: Path, output: str) -> Any:
    """Return what a file of an output holds, without times and the output's name."""
    data = path.read_bytes().replace(output.encode(), b"OUT")
    if path.suffix in (".pt", ".pth"):  # zip files hold times
        return None
    if path.name.endswith(".ir_metadata.yaml"):
        without_marks = data.replace(b"ir_metadata.start", b"").rsplit(b"\n", 2)[0]
        metadata = yaml.safe_load(without_marks)
        del metadata["implementation"]["executable"]  # with or without --overwrite
        return metadata
    if path.name.endswith("manifest.json"):
        manifest = json.loads(data)
        manifest.get("contents", {}).pop("seconds", None)
        return manifest
    return data


def clear(work: Path, output: str) -> None:
    for path in work.iterdir():
        if output not in path.name:
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def prepare(work: Path) -> None:
    """Write what the commands read, and files that no command may touch."""
    write_toy(work)
    write_tiny(work / "model", "bert", VOCABULARY)
    write_examples(work / "train.jsonl", range(24))
    write_corpus(work / "text.jsonl", range(12))
    with (work / "passages.jsonl").open("w") as out:
        for number in range(PASSAGES):
            text = f"the old river {'runs to the south ' * (number % 5)}"
            out.write(json.dumps({"_id": f"d{number}", "title": "", "text": text}) + "\n")
    (work / "thesis.tex").write_text("mine")
    (work / ".bashrc").write_text("mine")
    (work / "letters").mkdir()
    (work / "letters" / "letters.txt").write_text("mine")
    os.chdir(work)
    finish(Case(ENCODE), "vectors")
    finish(Case(INDEX), "index")
    finish(Case([*SEARCH, "1000"]), "a.trec")
    finish(Case([*SEARCH, "9"]), "b.trec")


class Counts(NamedTuple):
    """How many signals commands got, and how many came before their end."""

    signals: int
    hits: int


def kill_and_compare(work: Path, name: str, draw: random.Random, kills: int) -> int:
    """Kill a command so many times, each followed by another run; returns how many hit it."""
    case = CASES[name]
    options = ["--overwrite"] if case.replaced_case else []
    if case.replaced_case:
        finish(CASES[case.replaced_case], WHOLE)
    finish(case, WHOLE, *options)
    seconds = finish(case, WHOLE, "--overwrite")
    expected = contents_of_output(work, WHOLE)
    expected_others = contents_of_others(work)
    signals = 0
    hits = 0
    while signals < kills:
        clear(work, KILLED)
        if case.replaced_case:
            finish(CASES[case.replaced_case], KILLED)
        counts = run_with_kills(case, options, draw, seconds)
        signals += counts.signals
        hits += counts.hits
        contents = contents_of_output(work, KILLED)
        names = expected.keys() | contents.keys()
        differing = [key for key in names if expected.get(key, b"-") != contents.get(key, b"-")]
        assert not differing, f"{name}: {sorted(differing)} differ"
        same_others = contents_of_others(work) == expected_others
        assert same_others, f"{name}: a file that is not its own changed"
    for output in OUTPUTS:
        clear(work, output)
    return hits


def run_with_kills(case: Case, options: list[str], draw: random.Random, seconds: float) -> Counts:
    """Run a command and kill it, up to three times one after the other, and then to its end.

    `seconds` is how long it takes when it is not killed.
    """
    signals = 0
    hits = 0
    for _ in range(draw.choice((1, 1, 2, 3))):
        number = draw.choice(SIGNALS)
        kill = Kill(draw.uniform(0, 1.1) * seconds, number)
        status = denserk(line_of(case, KILLED, *options), kill)
        log = Path(LOG).read_text()
        allowed = (0, -number, 128 + number)
        assert status in allowed, f"{case}: {status} after signal {number}:\n{log}"
        signals += 1
        if status == 0:
            return Counts(signals, hits)
        hits += 1
        options = [case.option_after_kill]
    finish(case, KILLED, case.option_after_kill)
    return Counts(signals, hits)


def main(work: str, kills: str = "300", seed: str = "1") -> None:
    root = Path(work).absolute()
    (root / "tmp").mkdir(parents=True)
    os.environ["TMPDIR"] = str(root / "tmp")
    prepare(root / "work")
    draw = random.Random(seed)
    kills_each = math.ceil(int(kills) / len(CASES))
    for name in CASES:
        hits = kill_and_compare(root / "work", name, draw, kills_each)
        print(f"{name}: {kills_each} signals, {hits} before the end, nothing differs", flush=True)  # noqa: T201
    remains = [path.name for path in (root / "tmp").iterdir() if path.name.startswith("denserk-")]
    assert len(remains) <= 1, remains  # of the last killed process; the next one removes it


if __name__ == "__main__":
    main(*sys.argv[1:])
