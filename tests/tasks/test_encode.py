import gc
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from threading import Event, current_thread, main_thread

import numpy as np
import pytest
import torch

from denserk.commands.app import run as denserk
from denserk.config.encoding import (
    ComputeSettings,
    Dtype,
    EncodeSettings,
    ModelOptions,
    TextSettings,
    VectorFormat,
)
from denserk.config.formats import CorpusSettings
from denserk.data.batches import plan
from denserk.errors import InputError, MismatchError, OutputError, UsageError
from denserk.io.blocks import read_journal
from denserk.io.corpus import read_passages
from denserk.io.vectors import VectorFolderWriter, open_vectors
from denserk.tasks import encode as encode_module
from denserk.tasks.encode import encode, read_ahead
from tests.support.faults import Stopped, contents, ranks, stopped_at
from tests.support.index_folders import vector_folder
from tests.support.training_examples import jsonl

PATIENCE = 20  # seconds


class StandIn:
    """An encoder whose vector of a text is its hash; counts the texts that it encodes."""

    dimension = 4
    vectors_per_passage = 1
    int8 = None
    queries_of = None
    canary = None
    dtype = Dtype.FLOAT32
    device = torch.device("cpu")
    encoded_texts = 0  # by all encoders of a test

    def __init__(self, name, _, text, compute):
        self.name = name
        self.text = replace(TextSettings(), **text)
        self.compute = compute
        self.batch_tokens = compute.tokens_on("cpu", self.dtype)

    def description(self):
        return {"name": self.name, "fingerprint": self.name.rsplit("/", 1)[-1]}

    def canary_side(self, side):
        return None

    def plan(self, side, records):
        hashes = [hashlib.sha256(record.text.encode()).digest() for record in records]
        return plan([list(text_hash[:4]) for text_hash in hashes], 0, 8)

    def encode_planned(self, side, planned, advance=lambda count: None):
        type(self).encoded_texts += planned.count
        vectors = torch.empty(planned.count, self.dimension)
        for rows, batch in zip(planned.rows, planned.batches, strict=True):
            vectors[rows] = batch.input_ids.float()
            advance(len(rows))
        return vectors.numpy()


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    monkeypatch.setattr(encode_module, "TextEncoder", StandIn)
    monkeypatch.setattr(StandIn, "encoded_texts", 0)


@pytest.fixture
def corpus(tmp_path):
    records = ({"_id": f"d{n}", "title": f"t{n % 3}", "text": f"text {n}"} for n in range(23))
    return Path(jsonl(tmp_path / "corpus.jsonl", records))


def run(output, source=None, *, model="m", compute=None, **settings):
    if source is not None:
        settings["corpus"] = str(source)
    settings = {"block_size": 4, **settings}
    encode_settings = EncodeSettings(model=model, output=str(output), **settings)
    options = ModelOptions(compute=compute or ComputeSettings())
    return encode(encode_settings, CorpusSettings(), options)


def test_blocks_are_written_in_corpus_order(corpus, tmp_path):
    result = run(tmp_path / "v", corpus, workers=3)
    passages = list(read_passages(str(corpus)))
    encoder = StandIn("m", {}, {}, ComputeSettings())
    folder = open_vectors(tmp_path / "v")
    for start, (ids, vectors, _) in zip(range(0, 23, 4), folder.blocks(), strict=True):
        block = passages[start : start + 4]
        assert ids == [passage.docid for passage in block]
        expected = encoder.encode_planned("passage", encoder.plan("passage", block))
        np.testing.assert_array_equal(vectors, expected)
    assert result.count == 23
    assert result.dimension == 4
    assert result.encoded == 23
    assert result.tokens == 92
    assert result.positions == 92
    assert folder.manifest.made_from["model"]["fingerprint"] == "m"


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_end_while_the_model_runs_keeps_what_was_done(corpus, tmp_path, monkeypatch, error):
    run(tmp_path / "whole", corpus)
    encode_planned = StandIn.encode_planned

    def stop_at_the_third(self, side, planned, advance):
        if StandIn.encoded_texts == 31:
            raise error
        return encode_planned(self, side, planned)

    with monkeypatch.context() as patch:
        patch.setattr(StandIn, "encode_planned", stop_at_the_third)
        with pytest.raises(error):
            run(tmp_path / "v", corpus, workers=3)
    assert (tmp_path / "v" / "blocks.jsonl").read_bytes().count(b"\n") == 2
    run(tmp_path / "v", corpus, resume=True, workers=4)
    assert contents(tmp_path / "v") == contents(tmp_path / "whole")


def test_a_block_is_written_while_the_next_one_is_encoded(corpus, tmp_path, monkeypatch):
    run(tmp_path / "whole", corpus)
    second_block_is_encoded = Event()
    encode_planned = StandIn.encode_planned
    write = VectorFolderWriter.write
    switch_intervals: list[float] = []
    freeze_counts: list[int] = []

    def observed_encode_planned(self, side, planned, advance):
        switch_intervals.append(sys.getswitchinterval())
        freeze_counts.append(gc.get_freeze_count())
        if len(switch_intervals) == 2:
            second_block_is_encoded.set()
        return encode_planned(self, side, planned, advance)

    def waiting_write(self, block, *files):
        assert second_block_is_encoded.wait(PATIENCE)
        write(self, block, *files)

    usual_interval = sys.getswitchinterval()
    monkeypatch.setattr(StandIn, "encode_planned", observed_encode_planned)
    monkeypatch.setattr(VectorFolderWriter, "write", waiting_write)
    run(tmp_path / "v", corpus)
    assert contents(tmp_path / "v") == contents(tmp_path / "whole")
    # threads take turns sooner, and old objects are frozen, during the run alone
    assert max(switch_intervals) < usual_interval
    assert sys.getswitchinterval() == usual_interval
    assert min(freeze_counts) > 0
    assert gc.get_freeze_count() == 0


def test_what_the_caller_froze_stays_frozen(corpus, tmp_path):
    gc.freeze()  # as a server does before it forks
    try:
        frozen = gc.get_freeze_count()
        run(tmp_path / "v", corpus)
        assert gc.get_freeze_count() > frozen / 2  # some of them are gone by themselves
    finally:
        gc.unfreeze()


def test_a_full_disk_ends_the_run_within_the_next_block(corpus, tmp_path, monkeypatch):
    encode_planned = StandIn.encode_planned
    write = VectorFolderWriter.write

    def write_until_the_second_block(self, block, *files):
        if block.number == 1:
            raise OutputError("v: No space left on device")
        write(self, block, *files)

    def encode_slowly(self, side, planned, advance):
        """The third block goes on until `advance` raises the error of the second."""
        end = time.monotonic() + PATIENCE
        while StandIn.encoded_texts == 31 and time.monotonic() < end:
            advance(0)
        return encode_planned(self, side, planned, advance)

    run(tmp_path / "whole", corpus)
    with monkeypatch.context() as patch:
        patch.setattr(StandIn, "encode_planned", encode_slowly)
        patch.setattr(VectorFolderWriter, "write", write_until_the_second_block)
        with pytest.raises(OutputError, match="No space left"):
            run(tmp_path / "v", corpus)
    assert StandIn.encoded_texts == 31  # the third block was not finished
    assert list(read_journal(tmp_path / "v")) == [0]
    run(tmp_path / "v", corpus, resume=True)
    assert contents(tmp_path / "v") == contents(tmp_path / "whole")


def test_a_corpus_is_read_one_block_ahead_by_another_thread():
    read_numbers: list[int] = []

    def read_corpus():
        for number in range(4):
            assert current_thread() is not main_thread()
            read_numbers.append(number)
            yield number
        raise InputError("corpus.jsonl", 5, "nothing", "a record")

    blocks = read_ahead(read_corpus())
    for number in range(4):
        assert next(blocks) == number
        assert len(read_numbers) <= number + 2
    with pytest.raises(InputError, match="line 5"):
        next(blocks)


def test_a_stream_that_breaks_keeps_the_blocks_before(corpus, tmp_path, monkeypatch):
    lines = corpus.read_bytes().splitlines(keepends=True)
    broken = io.BytesIO(b"".join(lines[:13]) + b"{broken\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(broken))
    with pytest.raises(InputError, match="line 14"):
        run(tmp_path / "v", "-", workers=2)
    assert (tmp_path / "v" / "blocks.jsonl").read_bytes().count(b"\n") == 1  # two were prefetched


def test_shards_in_order_are_the_whole(corpus, tmp_path):
    def blocks_of(folder):
        files = contents(folder)
        return {name: data for name, data in files.items() if name.startswith("block-")}

    run(tmp_path / "whole", corpus)
    shards: dict[str, bytes] = {}
    for shard in range(3):
        run(tmp_path / f"s{shard}", corpus, shard_id=shard, shard_num=3)
        shards |= blocks_of(tmp_path / f"s{shard}")
    assert shards == blocks_of(tmp_path / "whole")
    with pytest.raises(UsageError, match="make only 6 blocks"):
        run(tmp_path / "v", corpus, shard_num=7)
    assert not (tmp_path / "v").exists()


@pytest.mark.parametrize("step", [0, 1, 2, 5, 9, 14])
def test_stopped_anywhere_and_resumed_gives_the_same_bytes(corpus, tmp_path, step):
    run(tmp_path / "whole", corpus)
    with stopped_at(step), pytest.raises(Stopped):
        run(tmp_path / "v", corpus)
    if (tmp_path / "v" / "manifest.json").exists():
        with pytest.raises(MismatchError, match="unfinished"):
            open_vectors(tmp_path / "v")
    texts_before = StandIn.encoded_texts
    block_size = None if step > 1 else 4  # from step 2 on, a manifest records it
    run(tmp_path / "v", corpus, resume=True, block_size=block_size)
    assert contents(tmp_path / "v") == contents(tmp_path / "whole")
    finished_blocks = max(0, (step - 2) // 3)  # manifest and journal come first, then three a block
    assert StandIn.encoded_texts - texts_before == max(0, 23 - 4 * finished_blocks)
    assert run(tmp_path / "v", corpus, resume=True).encoded == 0
    assert contents(tmp_path / "v") == contents(tmp_path / "whole")


def test_a_stream_resumes_block_by_block(corpus, tmp_path, monkeypatch):
    def from_stdin():
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(corpus.read_bytes())))
        return run(tmp_path / "v", "-", resume=True)

    with stopped_at(8), pytest.raises(Stopped):
        from_stdin()
    assert from_stdin().encoded == 15
    run(tmp_path / "whole", corpus)
    for name, data in contents(tmp_path / "whole").items():
        if name != "manifest.json":
            assert (tmp_path / "v" / name).read_bytes() == data


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "other"}, "model.fingerprint was 'm', now 'other'"),
        ({"block_size": 5}, "block_size was 4, now 5"),
        ({"compute": ComputeSettings(batch_tokens=99)}, "batch_tokens was 2048, now 99"),
    ],
)
def test_resume_names_the_difference(corpus, tmp_path, change, message):
    with stopped_at(5), pytest.raises(Stopped):
        run(tmp_path / "v", corpus)
    before = contents(tmp_path / "v")
    with pytest.raises(MismatchError, match=f"started with other settings.*{message}"):
        run(tmp_path / "v", corpus, resume=True, **change)
    assert contents(tmp_path / "v") == before


def test_a_changed_corpus_is_not_continued(corpus, tmp_path):
    run(tmp_path / "v", corpus)
    lines = corpus.read_text().splitlines(keepends=True)
    corpus.write_text("".join(lines).replace("text 5", "text V"))
    with pytest.raises(MismatchError, match=r"block-00001 of .* was made from other texts"):
        run(tmp_path / "v", corpus, resume=True)
    corpus.write_text("".join(lines[:8]))
    with pytest.raises(MismatchError, match="holds block 2, past the end"):
        run(tmp_path / "v", corpus, resume=True)


@pytest.fixture
def changed(corpus):
    """The corpus from its end, under new ids, with a text twice and two new ones."""
    text = corpus.read_text().replace("text 5", "new").replace("text 9", "newer")
    records = [json.loads(line) for line in reversed(text.splitlines())]
    records.append(dict(records[0]))
    for number, record in enumerate(records):
        record["_id"] = f"n{number}"
    return Path(jsonl(corpus.with_name("changed.jsonl"), records))


@pytest.mark.parametrize("options", [{"block_size": 9}, {"shard_id": 1, "shard_num": 2}])
def test_an_update_is_a_fresh_run_that_encodes_new_texts_alone(corpus, changed, tmp_path, options):
    old = tmp_path / "old"
    run(old, corpus)
    run(tmp_path / "fresh", changed, **options)
    texts_before = StandIn.encoded_texts
    result = run(tmp_path / "v", changed, update=str(old), **options)
    assert StandIn.encoded_texts - texts_before == 2
    assert result.encoded == 2
    assert result.copied == result.count - 2
    fresh = contents(tmp_path / "fresh")
    updated = contents(tmp_path / "v")
    fresh_manifest = json.loads(fresh.pop("manifest.json"))
    manifest = json.loads(updated.pop("manifest.json"))
    assert updated == fresh
    assert manifest["contents"] == {**fresh_manifest["contents"], "copied": result.copied}
    fingerprint = hashlib.sha256((old / "blocks.jsonl").read_bytes()).hexdigest()
    assert manifest["made_from"]["update"] == {"name": "../old", "fingerprint": fingerprint}


def test_an_interrupted_update_resumes_with_the_same_vectors_alone(corpus, changed, tmp_path):
    old = str(tmp_path / "old")
    other = str(tmp_path / "other")
    run(old, corpus)
    run(other, changed)
    run(tmp_path / "whole", changed, update=old)
    with stopped_at(14), pytest.raises(Stopped):
        run(tmp_path / "v", changed, update=old)
    for update in (None, other):
        with pytest.raises(MismatchError, match=r"update\.fingerprint was '.*', now "):
            run(tmp_path / "v", changed, update=update, resume=True)
    with pytest.raises(MismatchError, match="was made from other texts"):
        run(tmp_path / "v", corpus, update=old, resume=True)
    run(tmp_path / "v", changed, update=old, resume=True)
    assert contents(tmp_path / "v") == contents(tmp_path / "whole")


def test_vectors_that_cannot_be_updated(corpus, tmp_path):
    old = tmp_path / "old"
    run(old, corpus)
    bare = vector_folder(tmp_path / "bare", ["d1"], np.ones((1, 4), np.float32))
    with pytest.raises(UsageError, match="bare has no hashes of its texts"):
        run(tmp_path / "v", corpus, update=bare)
    for change in ({"model": "other"}, {"compute": ComputeSettings(threads=2)}):
        with pytest.raises(MismatchError, match=r"(model.fingerprint|threads) was .*, now"):
            run(tmp_path / "v", corpus, update=str(old), **change)
    (old / "block-00001.hash").write_bytes(bytes(64))
    with pytest.raises(InputError, match=r"block-00001\.hash: found bytes that differ"):
        run(tmp_path / "v", corpus, update=str(old))


def test_an_update_of_several_vectors_by_command(tiny, corpus, changed, tmp_path, monkeypatch):
    monkeypatch.undo()  # a real encoder
    words = ["encode", "--model", str(tiny()), "--representation", "me-bert", "--device", "cpu"]
    words += ["--reduction", "multi-vector", "--block-size", "9", "--corpus"]
    old = str(tmp_path / "old")
    fresh = str(tmp_path / "fresh")
    updated = str(tmp_path / "updated")
    assert denserk([*words, str(corpus), "--output", old]) == 0
    assert denserk([*words, str(changed), "--output", fresh]) == 0
    assert denserk([*words, str(changed), "--output", updated, "--update", old]) == 0
    assert open_vectors(updated).manifest.contents["copied"] == 22
    fresh_blocks = open_vectors(fresh).blocks()
    for block, expected in zip(open_vectors(updated).blocks(), fresh_blocks, strict=True):
        np.testing.assert_allclose(block.vectors, expected.vectors, atol=1e-5)


@pytest.mark.parametrize("settings", [{"corpus": "-"}, {"output_format": VectorFormat.JSONL}])
def test_what_only_one_process_can_do(monkeypatch, settings):
    monkeypatch.setattr("denserk.models.devices.launched", lambda: True)
    settings = EncodeSettings(**{"model": "m", "corpus": "c", "output": "o", **settings})
    with pytest.raises(UsageError, match="several processes cannot"):
        encode(settings, CorpusSettings(), ModelOptions(compute=ComputeSettings()))


OPTIONS = ("--corpus", "corpus.jsonl", "--block-size", "3", "--threads", "1", "--dtype", "float32")
TORCHRUN = (  # `torchrun`, also where PyTorch is installed outside of the environment
    sys.executable,
    "-m",
    "torch.distributed.run",
    "--standalone",
    "--nproc-per-node",
    "2",
)
BLOCKS = 200  # enough to kill a process in the middle


def command(model, output, *launch):
    options = ["--model", str(model), *OPTIONS, "--output", output, "--device", "cpu"]
    return [*(launch or [sys.executable]), "-m", "denserk", "encode", *options]


@pytest.mark.slow
def test_torchrun_writes_the_bytes_of_one(tiny, corpus, tmp_path):
    subprocess.run(command(tiny(), "one"), cwd=tmp_path, check=True)
    two = subprocess.run(
        command(tiny(), "two", *TORCHRUN), cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert contents(tmp_path / "two") == contents(tmp_path / "one")
    assert two.stderr.count("23 encoded") == 1  # only the main process reports
    subprocess.run([*command(tiny(), "v", *TORCHRUN), "--update", "one"], cwd=tmp_path, check=True)
    assert open_vectors(tmp_path / "v").manifest.contents["copied"] == 23


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc")
def test_a_killed_rank_of_torchrun_is_made_up_for(tiny, corpus, tmp_path):
    rank = 1
    jsonl(corpus, ({"_id": f"d{n}", "text": f"the river {n}"} for n in range(3 * BLOCKS)))
    several = command(tiny(), "v", *TORCHRUN)
    process = subprocess.Popen(several, cwd=tmp_path)
    journal = tmp_path / "v" / f"blocks-{rank}.jsonl"
    while not journal.exists() or not journal.stat().st_size:
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(ranks(process.pid)[rank], signal.SIGKILL)
    assert process.wait() == 1
    assert 0 < len(read_journal(tmp_path / "v")) < BLOCKS
    subprocess.run([*several, "--resume"], cwd=tmp_path, check=True)
    subprocess.run(command(tiny(), "one"), cwd=tmp_path, check=True)
    assert contents(tmp_path / "v") == contents(tmp_path / "one")
