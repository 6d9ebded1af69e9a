"""Folders that are rebuilt while they are read: the old state whole, or an error that says so."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

import denserk
from denserk.commands.app import run
from denserk.errors import DenserkError
from tests.support.rebuilding import STATES, write_inputs

INDEX = ["index", "--output", "folder", "--overwrite", "--quiet"]
ENCODE = ["encode", "--model", "model-one", "--device", "cpu", "--quiet"]
BUILDS = {
    "flat": lambda state: [*INDEX, "--input", f"{state}.jsonl"],
    "hnsw": lambda state: [*INDEX, "--input", f"{state}.jsonl", "--type", "hnsw"],
    "bm25": lambda state: [*INDEX, "--corpus", f"{state}-corpus.jsonl", "--type", "bm25"],
    "few blocks": lambda state: encode(state, block_size=32),
    "many blocks": lambda state: encode(state, block_size=1),
    "converted": lambda state: [
        *("convert", f"{state}.jsonl", "folder", "--kind", "vectors", "--to", "npy"),
        *("--overwrite", "--quiet"),
    ],
}


def encode(state, block_size):
    corpus = ["--corpus", f"{state}-corpus.jsonl", "--block-size", str(block_size)]
    return [*ENCODE, *corpus, "--output", "folder", "--overwrite"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Vectors, corpora and models in two states, and queries."""
    work = tmp_path_factory.mktemp("made") / "work"
    work.mkdir()
    write_inputs(work)
    return work


def opened(kind):
    return (denserk.BM25 if kind == "bm25" else denserk.Index).open("folder")


def answers(kind, index):
    hits = index.search("queries.tsv" if kind == "bm25" else np.load("queries.npy"), hits=20)
    return {qid: list(scores.items()) for qid, scores in hits.items()}


@pytest.mark.parametrize("kind", BUILDS)
def test_an_index_that_is_open_in_python_answers_as_before_or_not_at_all(at, kind):
    assert run(BUILDS[kind]("one")) == 0
    expected = answers(kind, opened(kind))
    index = opened(kind)
    assert run(BUILDS[kind]("two")) == 0
    if kind == "many blocks":  # too many files to hold them all open
        with pytest.raises(DenserkError, match="folder is being rewritten"):
            answers(kind, index)
    else:
        assert answers(kind, index) == expected
    assert answers(kind, opened(kind)) != expected


def make_two_states(kind):
    """Build `folder` in one state and `later` in the other."""
    for state in STATES:
        assert run(BUILDS[kind](state)) == 0
        shutil.move("folder", "later" if state == "two" else "first")
    shutil.move("first", "folder")


def replace_folder():
    shutil.move("folder", "aside")
    shutil.move("later", "folder")


def after_calls(function, count, place):
    """Let a function replace the folder when it has opened files of a place so many times."""
    calls = []

    def call(path, *arguments, **named):
        result = function(path, *arguments, **named)
        if Path(path).parts[: len(place)] == place:
            calls.append(path)
            if len(calls) == count:
                replace_folder()
        return result

    return call


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["few blocks", "flat"])
def test_vectors_that_are_replaced_while_they_are_indexed(at, monkeypatch, capfd, kind, count):
    """The folder is replaced after a file of vectors was opened for the nth time."""
    make_two_states(kind)
    owner: Any
    place: tuple[str, ...]
    if kind == "flat":
        owner, name, place = Path, "open", ("folder", "index")
    else:
        owner, name, place = np, "load", ("folder",)
    counted = after_calls(getattr(owner, name), count, place)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, counted)
        status = run(["index", "--input", "folder", "--output", "index", "--quiet"])
    if status != 0:
        assert "is being rewritten" in capfd.readouterr().err
        assert not Path("index").exists()
        return
    built = [Path("index", name).read_bytes() for name in ("docid", "index")]
    whole = []
    for folder in filter(os.path.exists, ("folder", "aside", "later")):
        assert run(["index", "--input", folder, "--output", f"of-{folder}", "--quiet"]) == 0
        whole.append([Path(f"of-{folder}", name).read_bytes() for name in ("docid", "index")])
    assert built in whole


def test_a_model_that_is_replaced_while_it_is_loaded(at, monkeypatch, capfd):
    """The folder is replaced when its tokenizer is read: after the weights."""
    convert = ["convert", "model-one", "folder", "--to", "denserk", "--quiet"]
    assert run(convert) == 0
    before = denserk.Encoder.load("folder", device="cpu").encode_queries("the old river")
    load = AutoTokenizer.from_pretrained
    loaded_folders = []

    def replace_and_load(folder, *arguments, **named):
        loaded_folders.append(folder)
        if len(loaded_folders) == 1:
            shutil.rmtree("folder")
            shutil.copytree("other", "folder")
        return load(folder, *arguments, **named)

    assert run(["convert", "model-two", "other", "--to", "denserk", "--quiet"]) == 0
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", replace_and_load)
    encode_queries = ["encode", "--model", "folder", "--topics", "queries.tsv", "--quiet"]
    assert run([*encode_queries, "--device", "cpu", "--output", "vectors"]) == 1
    assert "folder is being rewritten" in capfd.readouterr().err
    assert not Path("vectors").exists()
    after = denserk.Encoder.load("folder", device="cpu").encode_queries("the old river")
    assert not np.array_equal(before, after)


def start_encoding(*more):
    """Start to encode a stream, which stays open, and wait for the first block."""
    command = [sys.executable, "-m", "denserk", *ENCODE, "--corpus", "-", "--output", "folder"]
    process = subprocess.Popen(
        [*command, "--block-size", "2", "--backend", "torch", *more], stdin=subprocess.PIPE
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
def test_the_advice_to_resume_is_for_what_was_interrupted(at, capfd, verb):
    more = []
    if verb == "rewritten":
        assert run(BUILDS["few blocks"]("one")) == 0
        more = ["--overwrite"]
    writer = start_encoding(*more)
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


def test_a_model_that_is_still_being_trained_names_the_training(at, capfd):
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
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for state in STATES:
        assert re.search(rf"flat: \d+ times {state}", done.stdout)
