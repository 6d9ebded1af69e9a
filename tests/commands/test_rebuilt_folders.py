"""Folders that are rebuilt while they are read: the old state whole, or an error that says so."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

import denserk
from denserk.commands.app import run
from denserk.errors import DenserkError
from tests.support.rebuilding import STATES, write_inputs

INDEX = ["index", "--output", "folder", "--overwrite", "--quiet"]
ENCODE = ["encode", "--model", "model-one", "--device", "cpu", "--quiet"]
CONVERT = ["--kind", "vectors", "--to", "npy", "--overwrite", "--quiet"]
KINDS = ("flat", "hnsw", "bm25", "few blocks", "many blocks", "converted")


def build(kind, state):
    """Return the command that builds `folder` in a state."""
    match kind:
        case "flat":
            return [*INDEX, "--input", f"{state}.jsonl"]
        case "hnsw":
            return [*INDEX, "--input", f"{state}.jsonl", "--type", "hnsw"]
        case "bm25":
            return [*INDEX, "--corpus", f"{state}-corpus.jsonl", "--type", "bm25"]
        case "few blocks":
            return encode(state, block_size=32)
        case "many blocks":
            return encode(state, block_size=1)
        case "converted":
            return ["convert", f"{state}.jsonl", "folder", *CONVERT]


def encode(state, block_size):
    corpus = ["--corpus", f"{state}-corpus.jsonl", "--block-size", str(block_size)]
    return [*ENCODE, *corpus, "--output", "folder", "--overwrite"]


@pytest.fixture(scope="module")
def prepared_folder(tmp_path_factory):
    """Vectors, corpora and models in two states, and queries."""
    prepared = tmp_path_factory.mktemp("prepared") / "work"
    prepared.mkdir()
    write_inputs(prepared)
    return prepared


def open_folder(kind):
    if kind == "bm25":
        return denserk.BM25.open("folder")
    return denserk.Index.open("folder")


def answers(kind, index):
    queries = "queries.tsv" if kind == "bm25" else np.load("queries.npy")
    run = index.search(queries, hits=20)
    return {qid: list(hits.items()) for qid, hits in run.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_an_index_that_is_open_in_python_answers_as_before_or_not_at_all(folder, kind):
    assert run(build(kind, "one")) == 0
    expected = answers(kind, open_folder(kind))
    index = open_folder(kind)
    assert run(build(kind, "two")) == 0
    if kind == "many blocks":  # too many files to hold them all open
        with pytest.raises(DenserkError, match="folder is being rewritten"):
            answers(kind, index)
    else:
        assert answers(kind, index) == expected
    assert answers(kind, open_folder(kind)) != expected


def make_two_states(kind):
    """Build `folder` in one state and `later` in the other."""
    for state in STATES:
        assert run(build(kind, state)) == 0
        shutil.move("folder", state)
    shutil.move("one", "folder")
    shutil.move("two", "later")


def replace_folder():
    shutil.move("folder", "aside")
    shutil.move("later", "folder")


def replacing_after(function, count, beginning):
    """Let a function replace the folder once it has opened `count` paths that begin so."""
    opened_paths = []

    def call(path, *arguments, **keywords):
        result = function(path, *arguments, **keywords)
        if Path(path).parts[: len(beginning)] == beginning:
            opened_paths.append(path)
            if len(opened_paths) == count:
                replace_folder()
        return result

    return call


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["few blocks", "flat"])
def test_vectors_that_are_replaced_while_they_are_indexed(folder, monkeypatch, capfd, kind, count):
    """The folder is replaced after a file of vectors was opened for the nth time."""
    make_two_states(kind)
    with monkeypatch.context() as patch:
        if kind == "flat":
            patch.setattr(Path, "open", replacing_after(Path.open, count, ("folder", "index")))
        else:
            patch.setattr(np, "load", replacing_after(np.load, count, ("folder",)))
        status = run(["index", "--input", "folder", "--output", "index", "--quiet"])
    if status != 0:
        assert "is being rewritten" in capfd.readouterr().err
        assert not Path("index").exists()
        return
    indexes_of_one_state = []
    for name in filter(os.path.exists, ("folder", "aside", "later")):
        assert run(["index", "--input", name, "--output", f"of-{name}", "--quiet"]) == 0
        indexes_of_one_state.append(index_files(f"of-{name}"))
    assert index_files("index") in indexes_of_one_state


def index_files(index):
    return [Path(index, name).read_bytes() for name in ("docid", "index")]


def test_a_model_that_is_replaced_while_it_is_loaded(folder, monkeypatch, capfd):
    """The folder is replaced when its tokenizer is read: after the weights."""
    convert = ["convert", "model-one", "folder", "--to", "denserk", "--quiet"]
    assert run(convert) == 0
    before = denserk.Encoder.load("folder", device="cpu").encode_queries("the old river")
    load = AutoTokenizer.from_pretrained
    loaded_folders = []

    def replace_and_load(name, *arguments, **keywords):
        loaded_folders.append(name)
        if len(loaded_folders) == 1:
            shutil.rmtree("folder")
            shutil.copytree("other", "folder")
        return load(name, *arguments, **keywords)

    assert run(["convert", "model-two", "other", "--to", "denserk", "--quiet"]) == 0
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", replace_and_load)
    encode_queries = ["encode", "--model", "folder", "--topics", "queries.tsv", "--quiet"]
    assert run([*encode_queries, "--device", "cpu", "--output", "vectors"]) == 1
    assert "folder is being rewritten" in capfd.readouterr().err
    assert not Path("vectors").exists()
    after = denserk.Encoder.load("folder", device="cpu").encode_queries("the old river")
    assert not np.array_equal(before, after)


def start_encoding(*options):
    """Start to encode a stream, which stays open, and wait for the first block."""
    command = [sys.executable, "-m", "denserk", *ENCODE, "--corpus", "-", "--output", "folder"]
    process = subprocess.Popen(
        [*command, "--block-size", "2", "--backend", "torch", *options], stdin=subprocess.PIPE
    )
    assert process.stdin is not None
    text = "the old river " * 2000  # together more than is read ahead to detect the format
    for number in range(64):
        process.stdin.write(f'{{"_id": "p{number}", "text": "{text}"}}\n'.encode())
    process.stdin.flush()
    deadline = time.monotonic() + 60
    journal = Path("folder/blocks.jsonl")
    while not journal.exists() or '"number":1' not in journal.read_text():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    return process


@pytest.mark.parametrize("verb", ["written", "rewritten"])
def test_the_advice_to_resume_is_for_what_was_interrupted(folder, capfd, verb):
    if verb == "rewritten":
        assert run(build("few blocks", "one")) == 0
        writer = start_encoding("--overwrite")
    else:
        writer = start_encoding()
    search = ["search", "--index", "folder", "--encoded-queries", "queries.jsonl", "--quiet"]
    index = ["index", "--input", "folder", "--quiet"]
    try:
        for command in (search, index):
            capfd.readouterr()
            assert run([*command, "--output", "result"]) == 1
            message = capfd.readouterr().err
            assert f"folder is being {verb} by process {writer.pid}" in message
            assert "--resume" not in message
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
    for command in (search, index):
        capfd.readouterr()
        assert run([*command, "--output", "result"]) == 1
        message = capfd.readouterr().err
        assert "--resume" in message
        assert "being" not in message


def test_a_model_that_is_still_being_trained_names_the_training(folder, capfd):
    code = """
import sys, time
from denserk.io.outputs import claim
with claim(["folder"], overwrite=True):
    print("held", flush=True)
    time.sleep(60)
"""
    assert run(["convert", "model-one", "folder", "--to", "denserk", "--quiet"]) == 0
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    encode_queries = ["encode", "--model", "folder", "--topics", "queries.tsv", "--quiet"]
    encode_queries += ["--device", "cpu", "--output", "vectors"]
    assert run(encode_queries) == 0  # a whole model is read, whoever is about to replace it
    shutil.rmtree("vectors")
    Path("folder/config.json").unlink()
    capfd.readouterr()
    assert run(encode_queries) == 1
    assert f"folder is being rewritten by process {holder.pid}" in capfd.readouterr().err
    holder.kill()
    holder.communicate()


@pytest.mark.slow
def test_ten_readers_beside_ten_rebuilds_never_mix_two_states(tmp_path):
    command = [sys.executable, "-m", "tests.support.rebuilding", str(tmp_path / "work"), "5"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    for state in STATES:
        assert re.search(rf"flat: \d+ times {state}", process.stdout)
