"""Runs made again from their manifests."""

import json
import os
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


@pytest.fixture(scope="module")
def made(tiny, tiny_reranker, tmp_path_factory):
    """A folder with five runs, and all that they are made from."""
    folder = write_toy(tmp_path_factory.mktemp("made") / "toy")
    with (folder / "train.jsonl").open("w") as out:
        for qid, text in QUERIES.items():
            good = [" ".join(PASSAGES[docid]) for docid in QRELS[qid]]
            line = {"query": text, "positive": good[0], "negative": PASSAGES["d10"][1]}
            out.write(json.dumps(line) + "\n")
    before = Path.cwd()
    os.chdir(folder)
    trained = {"batch_size": 3, "group_size": 2, "max_steps": 2, "lr": 1e-3, "device": "cpu"}
    finetune(model=str(tiny()), train_data="train.jsonl", output="model", **trained)
    encode(model="model", corpus="corpus.jsonl", output="vectors", device="cpu")
    encode(model="model", topics="queries.tsv", output="encoded", device="cpu")
    index(input="vectors", output="flat")
    index(input="vectors", output="hnsw", type="hnsw")
    index(corpus="corpus.jsonl", output="terms", type="bm25")
    topics = {"topics": "queries.tsv"}
    search(index="flat", output="dense", **topics, query_prefix="the")
    search(index="hnsw", encoded_queries="encoded", hits=4, prf="rocchio", output="approximate")
    search(index="terms", output="bm25", **topics)
    fuse(runs=["bm25", "dense"], method="linear", weights=(0.2, 0.8), output="fused")
    scorer = str(tiny_reranker())
    rerank(model=scorer, run="dense", corpus="corpus.jsonl", output="reranked", depth=3, **topics)
    os.chdir(before)
    return folder


@pytest.fixture
def there(made, monkeypatch):
    """The folder is the working directory; files that a test changes are restored."""
    monkeypatch.chdir(made)
    kept = {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}
    yield made
    for path, data in kept.items():
        path.write_bytes(data)


@pytest.mark.parametrize("run", RUNS)
def test_every_step_is_made_again_to_equal_bytes(there, run, tmp_path):
    steps = reproduce(run, tmp_path, Step.MODEL, 0.0)
    assert {step.remade for step in steps} == {SAME.text}
    assert not [change for step in steps for change in step.changed]
    assert steps[-1].path == run
    trained = [step.path for step in steps if step.step is Step.MODEL]
    assert trained == ([] if run == "bm25" else ["model"])


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
def test_a_changed_file_is_named(there, file, run, step, tmp_path, capsys):
    path, changed = there / file, file.partition("/")[0]
    data = bytearray(path.read_bytes())
    place = data.rindex(b"a") if path.suffix in (".jsonl", ".tsv") else len(data) - 2
    data[place] ^= 1
    path.write_bytes(data)
    steps = reproduce(run, tmp_path, Step.NONE, 0.0)
    assert step in {s.path for s in steps if any(changed in what for what in s.changed)}
    with pytest.raises(GateError, match=rf"step \d.*{changed}"):
        command(run=run)


def test_small_differences_are_within_the_tolerance(there, tmp_path):
    path = there / "dense"
    lines = path.read_text().splitlines()
    columns = lines[0].split()
    columns[4] = str(float(columns[4]) + 3e-6)
    path.write_text("\n".join([" ".join(columns), *lines[1:]]) + "\n")
    *_, within = reproduce("dense", tmp_path, Step.RUN, 1e-5)
    *_, beyond = reproduce("dense", tmp_path / "again", Step.RUN, 1e-7)
    assert within.equal
    assert not beyond.equal
    assert f"query {columns[0]}" in beyond.remade


def test_other_vectors_differ_by_their_largest_value(there, tmp_path):
    path = there / "vectors" / "block-00000.npy"
    vectors = np.load(path)
    before = file_sha256(path)
    vectors[2, 1] += 0.25
    np.save(path, vectors)
    journal = there / "vectors" / "blocks.jsonl"
    digest = file_sha256(journal)
    journal.write_text(journal.read_text().replace(before, file_sha256(path)))
    manifest = there / "vectors" / "manifest.json"
    manifest.write_text(manifest.read_text().replace(digest, file_sha256(journal)))
    found = {s.path: s for s in reproduce("dense", tmp_path, Step.VECTORS, 1e-5)}
    assert found["vectors"].remade == "differs by 0.25"
    assert found["flat"].remade == SAME.text  # it was built from the vectors of before


def files_of(folder):
    """Times of all files: what is made again has others."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_a_folder_of_reproduce_is_kept_and_replaced(there, tmp_path):
    out = tmp_path / "again"
    command(run="reranked", from_step="vectors", output=out)
    before = files_of(out)
    with pytest.raises(UsageError) as caught:
        command(run="reranked", output=out)
    assert "--overwrite" in str(caught.value.hint)
    assert "--resume" in str(caught.value.hint)
    command(run="fused", output=out, overwrite=True)
    after = files_of(out)
    assert not [path for path in before if path in after and after[path] == before[path]]
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == []
    command(run="fused", output=out, overwrite=True)


def test_what_a_user_put_into_the_folder_is_not_removed(there, tmp_path):
    out = tmp_path / "again"
    command(run="dense", from_step="index", output=out)
    (flat,) = (path for path in out.iterdir() if path.name.endswith("-flat"))
    for notes in (out / "notes.txt", flat / "notes.txt"):
        notes.write_text("mine")
        before = files_of(out)
        with pytest.raises(UsageError, match=r"notes\.txt"):
            command(run="dense", output=out, overwrite=True)
        assert files_of(out) == before
        notes.unlink()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    for options in ({}, {"overwrite": True}, {"resume": True}):
        with pytest.raises(UsageError, match="notes"):
            command(run="dense", output=tmp_path / "mine", **options)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("renamed_files", [5, 9, 19, 29, 34])
def test_an_interrupted_reproduction_goes_on(there, tmp_path, renamed_files):
    out = tmp_path / "again"
    with stopped_at(renamed_files), pytest.raises(Stopped):
        command(run="fused", from_step="model", output=out)
    with pytest.raises(MismatchError, match=r"from_step was 'model'"):
        command(run="fused", from_step="run", output=out, resume=True)
    with pytest.raises(MismatchError, match=r"run\.sha256"):
        command(run="dense", from_step="model", output=out, resume=True)
    before = files_of(out)
    command(run="fused", from_step="model", output=out, resume=True)
    after = files_of(out)
    # trained and encoded once
    costly = [path for path in before if "checkpoints" in path.parts or path.suffix == ".npy"]
    assert [path for path in costly if path in after and after[path] != before[path]] == []
    assert len([path for path in after if path.parent == out and "dense" in path.name]) == 3


def test_a_finished_reproduction_is_compared_again(there, tmp_path):
    out = tmp_path / "again"
    command(run="fused", from_step="model", output=out)
    before = files_of(out)
    command(run="fused", from_step="model", output=out, resume=True)
    after = files_of(out)
    runs_and_indexes = [path for path in before if path.parent == out or path.name == "index"]
    rewritten = [path.name for path in runs_and_indexes if after[path] != before[path]]
    assert set(rewritten) <= {"manifest.json"}


def test_vectors_that_were_encoded_after_the_index_are_named(there, tmp_path):
    built = tmp_path / "index"
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_bytes((there / "corpus.jsonl").read_bytes())
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
