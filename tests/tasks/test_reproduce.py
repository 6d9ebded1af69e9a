"""Runs made again from their manifests."""

import json
from contextlib import chdir
from pathlib import Path

import numpy as np
import pytest

from denserk.commands.inspect import reproduce as command
from denserk.commands.retrieve import encode, fuse, index, rerank, search
from denserk.commands.train import finetune
from denserk.config.analysis import Step
from denserk.errors import GateError, MismatchError, UsageError
from denserk.io.manifest import file_sha256
from denserk.tasks.reproduce import reproduce
from denserk.tasks.reproduce_comparison import SAME
from denserk.tasks.reproduce_steps import train_again
from denserk.training.run_folder import TrainingResult
from tests.support.faults import Stopped, stopped_at
from tests.support.toy import PASSAGES, QRELS, QUERIES, write_toy

RUNS = ("dense", "approximate", "bm25", "fused", "reranked")


def write_training_data(path):
    """Write a positive and a negative passage for each query of the toy collection."""
    with path.open("w") as out:
        for qid, text in QUERIES.items():
            docid, *_ = QRELS[qid]
            positive = " ".join(PASSAGES[docid])
            _, negative = PASSAGES["d10"]
            example = {"query": text, "positive": positive, "negative": negative}
            out.write(json.dumps(example) + "\n")


@pytest.fixture(scope="module")
def collection(tiny, tiny_reranker, tmp_path_factory):
    """A folder with five runs, and all that they are made from."""
    folder = write_toy(tmp_path_factory.mktemp("made") / "toy")
    write_training_data(folder / "train.jsonl")
    with chdir(folder):
        finetune(
            model=str(tiny()),
            train_data="train.jsonl",
            output="model",
            batch_size=3,
            group_size=2,
            max_steps=2,
            lr=1e-3,
            device="cpu",
        )
        encode(model="model", corpus="corpus.jsonl", output="vectors", device="cpu")
        encode(model="model", topics="queries.tsv", output="encoded", device="cpu")
        index(input="vectors", output="flat")
        index(input="vectors", output="hnsw", type="hnsw")
        index(corpus="corpus.jsonl", output="terms", type="bm25")
        search(index="flat", topics="queries.tsv", output="dense", query_prefix="the")
        search(index="hnsw", encoded_queries="encoded", hits=4, prf="rocchio", output="approximate")
        search(index="terms", topics="queries.tsv", output="bm25")
        fuse(runs=["bm25", "dense"], method="linear", weights=(0.2, 0.8), output="fused")
        rerank(
            model=str(tiny_reranker()),
            run="dense",
            topics="queries.tsv",
            corpus="corpus.jsonl",
            output="reranked",
            depth=3,
        )
    return folder


@pytest.fixture
def folder(collection, monkeypatch):
    """The collection as working directory; files that a test changes are restored."""
    monkeypatch.chdir(collection)
    data_by_path = {path: path.read_bytes() for path in collection.rglob("*") if path.is_file()}
    yield collection
    for path, data in data_by_path.items():
        path.write_bytes(data)


@pytest.mark.parametrize("run", RUNS)
def test_every_step_is_made_again_to_equal_bytes(folder, run, tmp_path):
    steps = reproduce(run, tmp_path, Step.MODEL, 0.0)
    assert {step.remade for step in steps} == {SAME.text}
    assert {step.changed for step in steps} == {()}
    assert steps[-1].path == run
    trained = [step.path for step in steps if step.step is Step.MODEL]
    assert trained == ([] if run == "bm25" else ["model"])


@pytest.mark.parametrize("fields", [None, ("title", "text")])
def test_contents_are_read_as_they_were(tiny, tiny_reranker, fields, tmp_path, monkeypatch):
    monkeypatch.chdir(write_toy(tmp_path / "toy"))
    with Path("contents.jsonl").open("w") as out:
        for docid, (title, text) in PASSAGES.items():
            out.write(json.dumps({"id": docid, "contents": f"{title}\n{text}"}) + "\n")
    encode(
        model=str(tiny()), corpus="contents.jsonl", output="vectors", fields=fields, device="cpu"
    )
    search(index="vectors", topics="queries.tsv", output="dense")
    rerank(
        model=str(tiny_reranker()),
        run="dense",
        topics="queries.tsv",
        corpus="contents.jsonl",
        output="reranked",
        fields=fields,
        depth=3,
    )

    steps = reproduce("reranked", tmp_path / "work", Step.VECTORS, 0.0)

    assert {step.remade for step in steps} == {SAME.text}
    assert {step.changed for step in steps} == {()}


def flip_a_bit(path):
    """Change a letter of a text, or a byte near the end of another file."""
    data = bytearray(path.read_bytes())
    position = data.rindex(b"a") if path.suffix in (".jsonl", ".tsv") else len(data) - 2
    data[position] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("file", "run", "step"),
    [
        ("corpus.jsonl", "dense", "vectors"),
        ("corpus.jsonl", "bm25", "terms"),
        ("queries.tsv", "reranked", "reranked"),
        ("train.jsonl", "approximate", "model"),
        ("model/model.safetensors", "dense", "vectors"),
        ("flat/index", "dense", "flat"),
        ("bm25", "fused", "bm25"),
    ],
)
def test_a_changed_file_is_named(folder, file, run, step, tmp_path, capsys):
    flip_a_bit(folder / file)
    changed_input, *_ = file.split("/")
    steps = reproduce(run, tmp_path, Step.NONE, 0.0)
    changes_by_step = {outcome.path: " ".join(outcome.changed) for outcome in steps}
    assert changed_input in changes_by_step[step]
    with pytest.raises(GateError, match=rf"step \d.*{changed_input}"):
        command(run=run)


def test_small_differences_are_within_the_tolerance(folder, tmp_path):
    path = folder / "dense"
    line, rest = path.read_text().split("\n", 1)
    qid, q0, docid, rank, score, tag = line.split()
    path.write_text(f"{qid} {q0} {docid} {rank} {float(score) + 3e-6} {tag}\n{rest}")
    *_, within = reproduce("dense", tmp_path / "within", Step.RUN, 1e-5)
    *_, beyond = reproduce("dense", tmp_path / "beyond", Step.RUN, 1e-7)
    assert within.equal
    assert not beyond.equal
    assert f"query {qid}" in beyond.remade


def replace_text(path, old, new):
    path.write_text(path.read_text().replace(old, new))


def test_other_vectors_differ_by_their_largest_value(folder, tmp_path):
    block = folder / "vectors" / "block-00000.npy"
    journal = folder / "vectors" / "blocks.jsonl"
    manifest = folder / "vectors" / "manifest.json"
    old_block_sha256 = file_sha256(block)
    old_journal_sha256 = file_sha256(journal)
    vectors = np.load(block)
    vectors[2, 1] += 0.25
    np.save(block, vectors)
    replace_text(journal, old_block_sha256, file_sha256(block))
    replace_text(manifest, old_journal_sha256, file_sha256(journal))
    steps = reproduce("dense", tmp_path, Step.VECTORS, 1e-5)
    verdicts = {step.path: step.remade for step in steps}
    assert verdicts["vectors"] == "differs by 0.25"
    assert verdicts["flat"] == SAME.text  # it was built from the vectors of before


def times_of_files(folder):
    """Times of all files: what is made again has others."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_a_folder_of_reproduce_is_kept_and_replaced(folder, tmp_path):
    out = tmp_path / "again"
    command(run="reranked", from_step="vectors", output=out)
    before = times_of_files(out)
    with pytest.raises(UsageError) as caught:
        command(run="reranked", output=out)
    assert "--overwrite" in str(caught.value.hint)
    assert "--resume" in str(caught.value.hint)
    command(run="fused", output=out, overwrite=True)
    after = times_of_files(out)
    assert not before.items() & after.items()  # no file of before stays
    assert not [path for path in out.iterdir() if path.is_dir()]
    command(run="fused", output=out, overwrite=True)


def test_what_a_user_put_into_the_folder_is_not_removed(folder, tmp_path):
    out = tmp_path / "again"
    command(run="dense", from_step="index", output=out)
    (flat,) = (path for path in out.iterdir() if path.name.endswith("-flat"))
    for notes in (out / "notes.txt", flat / "notes.txt"):
        notes.write_text("mine")
        before = times_of_files(out)
        with pytest.raises(UsageError, match=r"notes\.txt"):
            command(run="dense", output=out, overwrite=True)
        assert times_of_files(out) == before
        notes.unlink()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    for options in ({}, {"overwrite": True}, {"resume": True}):
        with pytest.raises(UsageError, match="notes"):
            command(run="dense", output=tmp_path / "mine", **options)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("renamed_files", [5, 9, 19, 29, 34])
def test_an_interrupted_reproduction_goes_on(folder, tmp_path, renamed_files):
    out = tmp_path / "again"
    with stopped_at(renamed_files), pytest.raises(Stopped):
        command(run="fused", from_step="model", output=out)
    with pytest.raises(MismatchError, match=r"from_step was 'model'"):
        command(run="fused", from_step="run", output=out, resume=True)
    with pytest.raises(MismatchError, match=r"run\.sha256"):
        command(run="dense", from_step="model", output=out, resume=True)
    before = times_of_files(out)
    command(run="fused", from_step="model", output=out, resume=True)
    after = times_of_files(out)
    for path in before.keys() & after.keys():
        if "checkpoints" in path.parts or path.suffix == ".npy":
            assert after[path] == before[path]  # trained and encoded once
    assert len(list(out.glob("*dense*"))) == 3  # the run, its manifest and its metadata


def test_a_finished_reproduction_is_compared_again(folder, tmp_path):
    out = tmp_path / "again"
    command(run="fused", from_step="model", output=out)
    before = times_of_files(out)
    command(run="fused", from_step="model", output=out, resume=True)
    after = times_of_files(out)
    runs_and_indexes = [path for path in before if path.parent == out or path.name == "index"]
    rewritten = [path.name for path in runs_and_indexes if after[path] != before[path]]
    assert set(rewritten) <= {"manifest.json"}


def test_vectors_that_were_encoded_after_the_index_are_named(folder, tmp_path):
    built = tmp_path / "index"
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_bytes((folder / "corpus.jsonl").read_bytes())
    options = {"model": "model", "corpus": corpus, "device": "cpu", "output": tmp_path / "vectors"}
    encode(**options)
    index(input=tmp_path / "vectors", output=built)
    search(index=built, topics="queries.tsv", output=tmp_path / "run")
    command(run=tmp_path / "run", from_step="none")
    index(input=tmp_path / "vectors", output=built, resume=True)
    corpus.write_text(corpus.read_text().replace("cat", "dog"))
    encode(**options, overwrite=True)
    with pytest.raises(GateError, match="vectors was encoded again after"):
        command(run=tmp_path / "run", from_step="none")
    with pytest.raises(MismatchError, match="encoded again"):
        index(input=tmp_path / "vectors", output=built, resume=True)


@pytest.mark.usefixtures("folder")
def test_a_run_of_typed_queries_says_what_to_search_with(tmp_path):
    search(index="terms", query=["the moon"], output=tmp_path / "run")
    with pytest.raises(UsageError, match="typed") as caught:
        command(run=tmp_path / "run")
    assert "--topics" in str(caught.value.hint)


def test_tokenised_text_beside_a_model_is_not_written_again(tmp_path, monkeypatch, caplog):
    runs = []

    def pretrain(run):
        runs.append(run)
        return TrainingResult(steps=2, first_step=0, loss=0.5)

    monkeypatch.setattr("denserk.tasks.pretrain.pretrain", pretrain)
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    Path("model/config.yaml").write_text(
        "objective: mlm\narchitecture: tiny\ncorpus: c.txt\noutput: model\ntokenize-to: tokens\n"
    )
    caplog.set_level("INFO")
    train_again("model", "pretrain", None, "again", resume=False)
    (run,) = runs
    assert run.pretrain.tokenize_to is None
    assert run.pretrain.output == "again"
    assert "again: 2 steps, loss 0.5000" in caplog.messages
