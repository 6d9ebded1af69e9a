"""Expansions of a corpus: one file whatever the batches, shards, stops and threads."""

import gzip
import io
import json
import random
import shutil

import pytest

from denserk.config.encoding import ComputeSettings, Dtype
from denserk.config.formats import CorpusSettings
from denserk.config.generate import GenerateSettings, GenerateTextSettings
from denserk.errors import InputError, MismatchError, UsageError
from denserk.io.manifest import Kind, read_manifest
from denserk.io.pretraining_text import read_expansions
from denserk.models.generation import TextGenerator
from denserk.tasks.generate import generate
from tests.conftest import WORDS
from tests.faults import NAMING, Stopped, contents, stopped_at

COUNT = 11


@pytest.fixture
def corpus(tmp_path):
    draw = random.Random(3)
    path = tmp_path / "corpus.jsonl"
    with path.open("w") as out:
        for n in range(COUNT):
            words = " ".join(draw.choices(WORDS, k=draw.randint(1, 20)))
            record = {"_id": f"d{n}", "title": "", "text": "" if n == 4 else words}
            out.write(json.dumps(record) + "\n")
    return path


class StandIn(TextGenerator):
    """A generator without a model: a text's samples are its own words and the seed."""

    asked = 0

    def __init__(self, option, model, sampling, compute, *, allow_pickle):
        self.name, self._sampling = model, sampling

    def description(self):
        return {"name": self.name, "fingerprint": self.name}

    def generate(self, texts, longest, seed):
        type(self).asked += len(texts)
        return [
            [f"{seed} {' '.join(text.split()[:longest])}"] * self._sampling.samples if text else []
            for text in texts
        ]


@pytest.fixture
def stand_in(monkeypatch):
    monkeypatch.setattr("denserk.tasks.generate.TextGenerator", StandIn)
    monkeypatch.setattr(StandIn, "asked", 0)


def run(output, corpus, *, compute=None, text=None, queries=None, **settings):
    given = {"queries_model": "q", "continuation_model": "c", "block_size": 2, **settings}
    return generate(
        GenerateSettings(corpus=str(corpus), output=str(output), **given),
        {"num_queries": 2, **(queries or {})} if given["queries_model"] else {},
        {"continuation_max_tokens": 10} if given["continuation_model"] else {},
        text or GenerateTextSettings(),
        CorpusSettings(),
        compute or ComputeSettings(device="cpu"),
    )


def models(writer):
    return {"queries_model": str(writer("t5")), "continuation_model": str(writer("gpt2"))}


SHORT = {"query_max_tokens": 8}


def test_every_passage_in_the_order_of_the_corpus(writer, corpus, tmp_path):
    result = run(tmp_path / "x", corpus, queries=SHORT, **models(writer))
    made = list(read_expansions(tmp_path / "x"))
    assert [own.docid for own in made] == [f"d{n}" for n in range(COUNT)]
    assert made[4].queries == made[4].next == ()
    assert all(own.queries and len(own.next) == 1 for own in made if own.docid != "d4")
    assert (result.count, result.generated, result.empty) == (COUNT, COUNT, 1)
    assert result.queries == sum(len(own.queries) for own in made)
    assert result.continuations == COUNT - 1
    manifest = read_manifest(tmp_path / "x", Kind.EXPANSIONS)
    assert manifest.settings["queries"]["query_top_k"] == 10
    assert sorted(p.name for p in tmp_path.iterdir()) == ["corpus.jsonl", "x", "x.manifest.json"]


def test_shards_are_parts_of_the_whole(writer, corpus, tmp_path):
    run(tmp_path / "whole", corpus, queries=SHORT, **models(writer))
    whole = (tmp_path / "whole").read_bytes()
    for shard in range(3):
        name = tmp_path / f"shard{shard}"
        run(name, corpus, queries=SHORT, **models(writer), shard_id=shard, shard_num=3)
    assert b"".join((tmp_path / f"shard{i}").read_bytes() for i in range(3)) == whole


def test_real_models_write_the_same_bytes_after_resume(writer, corpus, tmp_path):
    run(tmp_path / "whole", corpus, queries=SHORT, **models(writer))
    with stopped_at(5, [(TextGenerator, "generate")]), pytest.raises(Stopped):
        run(tmp_path / "x", corpus, queries=SHORT, **models(writer))
    run(tmp_path / "x", corpus, queries=SHORT, **models(writer), resume=True)
    assert (tmp_path / "x").read_bytes() == (tmp_path / "whole").read_bytes()


STEPS = [*range(4), 8, 9, 10]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz"])
def test_stopped_anywhere_and_resumed_gives_the_same_bytes(stand_in, corpus, tmp_path, step, name):
    run(tmp_path / "w" / name, corpus)
    calls = (*NAMING, (StandIn, "generate"))  # manifest, journal, then two models a block
    with stopped_at(step, calls), pytest.raises(Stopped):
        run(tmp_path / "v" / name, corpus)
    assert not (tmp_path / "v" / name).exists()
    result = run(tmp_path / "v" / name, corpus, resume=True)
    assert contents(tmp_path / "v") == contents(tmp_path / "w")
    assert result.generated == COUNT - 2 * max(0, (step - 2) // 2)


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz"])
@pytest.mark.parametrize("step", range(2, 6))
def test_stopped_in_the_last_moments(stand_in, corpus, tmp_path, step, name):
    run(tmp_path / "w" / name, corpus)
    run(tmp_path / "v" / name, corpus, seed=7)  # an older output, to be replaced
    stopped = False  # what was begun is cleared first, then come manifest and journal
    with stopped_at(step, (*NAMING, (shutil, "rmtree"))):
        try:
            run(tmp_path / "v" / name, corpus, overwrite=True)
        except Stopped:
            stopped = True
    assert stopped
    run(tmp_path / "v" / name, corpus, resume=True)
    assert contents(tmp_path / "v") == contents(tmp_path / "w")


def test_what_a_kill_left_of_a_block_is_written_again(stand_in, corpus, tmp_path):
    run(tmp_path / "whole", corpus)
    with stopped_at(6, [(StandIn, "generate")]), pytest.raises(Stopped):
        run(tmp_path / "x", corpus)
    unfinished = tmp_path / "x.unfinished"
    with (unfinished / "lines").open("ab") as lines:
        lines.write(b'{"docid":"d6","quer')
    with (unfinished / "blocks.jsonl").open("ab") as journal:
        journal.write(b'{"number":3,"cou')
    assert run(tmp_path / "x", corpus, resume=True).generated == COUNT - 6
    assert (tmp_path / "x").read_bytes() == (tmp_path / "whole").read_bytes()


def test_lines_that_did_not_reach_the_disk_are_made_again(stand_in, corpus, tmp_path):
    run(tmp_path / "whole", corpus)
    with stopped_at(6, [(StandIn, "generate")]), pytest.raises(Stopped):
        run(tmp_path / "x", corpus)
    lines = tmp_path / "x.unfinished" / "lines"
    lines.write_bytes(lines.read_bytes()[:-1])
    assert run(tmp_path / "x", corpus, resume=True).generated == COUNT - 4
    assert (tmp_path / "x").read_bytes() == (tmp_path / "whole").read_bytes()


def test_resume_of_nothing_starts_and_of_the_whole_changes_nothing(stand_in, corpus, tmp_path):
    run(tmp_path / "x", corpus, resume=True)
    before, asked = contents(tmp_path), StandIn.asked
    result = run(tmp_path / "x", corpus, resume=True, compute=ComputeSettings(batch_size=3))
    assert (result.count, result.generated) == (COUNT, 0)
    assert (contents(tmp_path), StandIn.asked) == (before, asked)


CHANGES = [
    ({"seed": 1}, "seed was 42, now 1"),
    ({"queries_model": "other"}, "queries_model.fingerprint was 'q', now 'other'"),
    ({"queries": {"query_top_k": 3}}, "queries.query_top_k was 10, now 3"),
    ({"text": GenerateTextSettings(join=". ")}, "join was ' ', now '. '"),
    ({"compute": ComputeSettings(dtype=Dtype.BFLOAT16)}, "dtype was 'float32', now 'bfloat16'"),
]


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize(("change", "said"), CHANGES)
def test_resume_names_the_difference(stand_in, corpus, tmp_path, change, said, finished):
    with stopped_at(10**6 if finished else 6, [(StandIn, "generate")]):
        try:
            run(tmp_path / "x", corpus)
        except Stopped:
            assert not finished
    with pytest.raises(MismatchError, match="begun with other settings") as caught:
        run(tmp_path / "x", corpus, resume=True, **change)
    assert said in caught.value.message


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("change", ["text", "fewer"])
def test_resume_after_the_corpus_changed(stand_in, corpus, tmp_path, finished, change):
    with stopped_at(10**6 if finished else 6, [(StandIn, "generate")]):
        try:
            run(tmp_path / "x", corpus)
        except Stopped:
            assert not finished
    lines = corpus.read_text().splitlines(keepends=True)
    if change == "fewer":
        lines = lines[:3]
    else:
        lines[1] = lines[1].replace('"text": "', '"text": "new ')
    corpus.write_text("".join(lines))
    with pytest.raises(MismatchError, match="other passages than"):
        run(tmp_path / "x", corpus, resume=True)
    assert run(tmp_path / "x", corpus, overwrite=True).generated == len(lines)


def test_what_is_there_is_not_replaced_unasked(stand_in, corpus, tmp_path):
    with stopped_at(2, [(StandIn, "generate")]), pytest.raises(Stopped):
        run(tmp_path / "x", corpus)
    with pytest.raises(UsageError, match="was begun and not finished"):
        run(tmp_path / "x", corpus)
    run(tmp_path / "x", corpus, resume=True)
    with pytest.raises(UsageError, match="x exists"):
        run(tmp_path / "x", corpus)
    with pytest.raises(UsageError, match="is no file"):
        run(tmp_path, corpus)


def test_streams_in_and_out(stand_in, corpus, tmp_path, monkeypatch, capfdbinary):
    run(tmp_path / "x", corpus)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(corpus.read_bytes())))
    result = run("-", "-")
    assert result.generated == COUNT
    assert capfdbinary.readouterr().out == (tmp_path / "x").read_bytes()


def test_gzip_is_written_as_its_name_says(stand_in, corpus, tmp_path):
    run(tmp_path / "x", corpus)
    run(tmp_path / "x.jsonl.gz", corpus)
    packed = (tmp_path / "x.jsonl.gz").read_bytes()
    assert gzip.decompress(packed) == (tmp_path / "x").read_bytes()


def test_a_repeated_id_is_met_before_any_work(stand_in, corpus, tmp_path, monkeypatch):
    corpus.write_text(corpus.read_text() + '{"_id": "d1", "title": "", "text": "b"}\n')
    with pytest.raises(InputError, match="the id d1 twice: passages 2 and 12"):
        run(tmp_path / "x", corpus)
    assert StandIn.asked == 0
    assert not (tmp_path / "x.unfinished").exists()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(corpus.read_bytes())))
    with pytest.raises(InputError, match="an id twice: passages 2 and 12"):
        run(tmp_path / "x", "-")
    assert not (tmp_path / "x").exists()


def test_one_model_alone_and_its_prompt(stand_in, corpus, tmp_path):
    run(tmp_path / "x", corpus, continuation_model=None, queries={"query_prompt": "ask: "})
    made = list(read_expansions(tmp_path / "x"))
    assert all(own.next == () for own in made)
    assert made[0].queries[0].partition(" ")[2].startswith("ask: ")
    assert made[4].queries == ()


def test_fields_and_their_join(stand_in, tmp_path):
    (tmp_path / "c.jsonl").write_text('{"_id": "a", "title": "Moon", "text": "it falls"}\n')
    for text, said in (
        (GenerateTextSettings(), "Moon it falls"),
        (GenerateTextSettings(fields=("text",)), "it falls"),
        (GenerateTextSettings(join=" - "), "Moon - it falls"),
    ):
        run(tmp_path / "x", tmp_path / "c.jsonl", text=text, overwrite=True)
        assert next(read_expansions(tmp_path / "x")).next[0].partition(" ")[2] == said
