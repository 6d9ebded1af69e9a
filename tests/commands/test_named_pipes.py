"""Inputs that are pipes, which can be read once: named ones, and bash's <(...)."""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from denserk.commands.app import run
from tests.support.finetuning import write_examples
from tests.support.tiny_models import write_tiny_classifier
from tests.support.toy import VOCABULARY

SMALL = "--max-steps 1 --batch-size 2 --device cpu"
# commands, whose inputs in braces are pipes, and a file that they write; None: they print
COMMANDS = {
    "encode": ("encode --model bert --corpus {corpus.jsonl} --output out", "out/block-00000.npy"),
    "encode queries": (
        "encode --model bert --topics {queries.tsv} --output o",
        "o/block-00000.npy",
    ),
    "index bm25": ("index --type bm25 --corpus {corpus.jsonl} --output out", "out/docid"),
    "index": ("index --input {vectors.jsonl} --output out", "out/index"),
    "search": ("search --index bm25 --topics {queries.tsv} --output out", "out"),
    "search qrels": (
        "search --index bm25 --topics queries.tsv --qrels {qrels.txt} --output out",
        "out",
    ),
    "eval run": ("eval {run.trec} qrels.txt", None),
    "eval qrels": ("eval run.trec {qrels.txt}", None),
    "eval both": ("eval {run.trec} {qrels.txt}", None),
    "convert corpus": ("convert {corpus.jsonl} out --to marco --kind corpus", "out"),
    "convert, detected": ("convert {corpus.jsonl} out --to anserini", "out"),
    "convert training": (
        "convert {triples.tsv} out --to tevatron --kind training --corpus {corpus.jsonl} "
        "--queries {queries.tsv}",
        "out",
    ),
    "mine-negatives": (
        "mine-negatives --topics {queries.tsv} --qrels {qrels.txt} --run {run.trec} "
        "--corpus {corpus.jsonl} --skip-missing --output out",
        "out",
    ),
    "rerank": (
        "rerank --model reranker --run {run.trec} --topics {queries.tsv} --corpus {corpus.jsonl} "
        "--output out",
        "out",
    ),
    "fuse": ("fuse {run.trec} other.trec --output out", "out"),
    "generate": (
        "generate --corpus {corpus.jsonl} --queries-model t5 --num-queries 1 --output out",
        "out",
    ),
    "finetune": (
        f"finetune --model bert --train-data {{train.jsonl}} --group-size 2 --output out {SMALL}",
        "out/model.safetensors",
    ),
    "pretrain": (
        f"pretrain --objective mlm --model bert --corpus {{corpus.jsonl}} --output out {SMALL} "
        "--max-length 16",
        "out/model.safetensors",
    ),
    "pretrain, a new vocabulary": (
        f"pretrain --objective mlm --architecture tiny --corpus {{corpus.jsonl}} --output out "
        f"{SMALL} --set vocabulary-size=300",
        "out/model.safetensors",
    ),
}


@pytest.fixture(scope="module")
def inputs(tiny, writer, tmp_path_factory):
    """A folder with all that the commands read."""
    from tests.support.toy import write_toy

    folder = write_toy(tmp_path_factory.mktemp("inputs") / "toy")
    (folder / "bert").symlink_to(tiny("bert"))
    (folder / "t5").symlink_to(writer("t5"))
    write_tiny_classifier(folder / "reranker", "bert", VOCABULARY)
    write_examples(folder / "train.jsonl", range(8))
    (folder / "run.trec").write_text("q1 Q0 d3 1 9 t\nq1 Q0 d10 2 8 t\nq2 Q0 d2 1 5 t\n")
    (folder / "other.trec").write_text("q1 Q0 d2 1 9 b\nq1 Q0 d3 2 8 b\n")
    (folder / "triples.tsv").write_text("q1\td3\td1\nq2\td1\td2\n")
    before = Path.cwd()
    os.chdir(folder)
    try:
        assert run(["index", "--type", "bm25", "--corpus", "corpus.jsonl", "--output", "bm25"]) == 0
        line = "encode --model bert --corpus corpus.jsonl --output vectors.jsonl"
        assert run([*line.split(), "--output-format", "jsonl"]) == 0
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def folder(inputs, tmp_path, monkeypatch):
    """The working folder, with links to the inputs."""
    work = tmp_path / "work"
    work.mkdir()
    for item in inputs.iterdir():
        (work / item.name).symlink_to(item)
    monkeypatch.chdir(work)
    return work


@pytest.fixture(autouse=True)
def no_waiting():
    """A pipe that is opened again would wait for ever."""

    def stop(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def as_pipe(path):
    """Replace a link to a file by a named pipe with its content; return its name."""
    content = path.read_bytes()
    path.unlink()
    os.mkfifo(path)
    Thread(target=path.write_bytes, args=(content,), daemon=True).start()
    return path.name


def of_files(line):
    return shlex.split(line.replace("{", "").replace("}", ""))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_named_pipe_is_read_as_a_file_is(folder, capsys, name):
    line, output = COMMANDS[name]

    def result(words):
        assert run(words) == 0
        printed = capsys.readouterr().out
        return printed if output is None else (folder / output).read_bytes()

    expected = result(of_files(line))
    pipes = [as_pipe(folder / word[1:-1]) if word[0] == "{" else word for word in line.split()]
    assert result([*pipes, *(["--overwrite"] if output else [])]) == expected


@pytest.mark.parametrize("name", ["encode", "eval both", "convert, detected"])
def test_a_process_substitution_is_read_as_a_file_is(folder, capsys, name):
    line, output = COMMANDS[name]
    ids = output and output.replace(".npy", ".docid")  # vectors depend on the number of threads
    assert run(of_files(line)) == 0
    expected = capsys.readouterr().out if ids is None else (folder / ids).read_bytes()
    substituted = line.replace("{", "<(cat ").replace("}", ")")
    command = f"{shlex.quote(sys.executable)} -m denserk {substituted}"
    command += " --overwrite" if output else ""
    process = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=100, check=False
    )
    assert process.returncode == 0, process.stderr
    assert (process.stdout if ids is None else (folder / ids).read_bytes()) == expected


def test_processes_that_would_share_a_pipe_are_told_to_take_a_file(folder, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    as_pipe(folder / "queries.tsv")
    line = "search --index bm25 --topics queries.tsv --output out"
    assert run(line.split()) == 2
    assert "write it to a file first" in capsys.readouterr().err
    (folder / "queries.tsv").read_bytes()  # the thread that writes ends
