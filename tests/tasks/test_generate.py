import io
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from denserk.config.encoding import ComputeSettings, Dtype
from denserk.config.formats import (
    CONTINUATIONS,
    MODELS,
    QUERIES,
    CorpusSettings,
    GenerateSettings,
    QuerySource,
    Sampling,
)
from denserk.errors import MismatchError, ModelError, UsageError
from denserk.io.manifest import Kind, read_manifest
from denserk.io.pretraining_text import read_expansions
from denserk.models.generation import TextGenerator
from denserk.tasks.generate import generate
from tests.support.console import warnings_of
from tests.support.faults import NAMING, Stopped, contents, denserk, stopped_at
from tests.support.tiny_models import POSITIONS
from tests.support.toy import WORDS
from tests.support.training_examples import jsonl

OPTIONS = {"t5": QUERIES, "mt5": QUERIES, "gpt2": CONTINUATIONS}
TOKENS = 12
DRAW = random.Random(5)
TEXTS = [" ".join(DRAW.choices(WORDS, k=DRAW.randint(1, 30))) for _ in range(12)]
TEXTS.insert(3, "")


def load(folder, option, *, samples=2, tokens=TOKENS, top_k=0, allow_pickle=False, **compute):
    settings: Any = SimpleNamespace(**{MODELS[option]: str(folder)}, allow_pickle=allow_pickle)
    settings.sampling = {MODELS[option]: Sampling(samples, tokens, top_k=top_k, top_p=0.9)}
    return TextGenerator(option, settings, ComputeSettings(**{"device": "cpu", **compute}))


@pytest.mark.parametrize("kind", OPTIONS)
def test_the_same_seed_gives_the_same_samples(kind, writer):
    generator = load(writer(kind), OPTIONS[kind], batch_size=5)
    state = torch.get_rng_state()
    made = generator.generate(TEXTS, 40, seed=7)
    assert torch.equal(torch.get_rng_state(), state)
    assert made == load(writer(kind), OPTIONS[kind], batch_size=5).generate(TEXTS, 40, seed=7)
    assert made != generator.generate(TEXTS, 40, seed=8)
    assert made[3] == []
    assert [len(own) for own in made].count(2) > 9
    assert len({text for own in made for text in own}) > 15
    assert generator.generate(["", ""], 40, seed=7) == [[], []]


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("length", [9, 500])
def test_one_possible_token_is_greedy_decoding(kind, writer, length):
    """Of a long text the first tokens make queries, and the last ones are continued."""
    generator = load(writer(kind), OPTIONS[kind], top_k=1, samples=1)
    auto = "AutoModelForCausalLM" if kind == "gpt2" else "AutoModelForSeq2SeqLM"
    model = getattr(transformers, auto).from_pretrained(writer(kind))
    tokenizer = transformers.AutoTokenizer.from_pretrained(writer(kind))
    passages = [text for text in (*TEXTS, " ".join(WORDS * 3)) if text]
    for passage, found in zip(passages, generator.generate(passages, length, 1), strict=True):
        if kind == "gpt2":
            own = tokenizer(passage).input_ids[-min(length, POSITIONS - TOKENS) :]
        else:
            own = tokenizer(passage, truncation=True, max_length=length).input_ids
        ids = torch.tensor([own])
        made = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=TOKENS,
            do_sample=False,
            pad_token_id=0,
        )[0]
        new = made[len(own) :] if kind == "gpt2" else made
        expected = str(tokenizer.decode(new, skip_special_tokens=True)).strip()
        assert found == ([expected] if expected else [])


def test_the_models_own_sampling_settings_are_not_used(writer, tmp_path):
    folder = shutil.copytree(writer("t5"), tmp_path / "t5")
    path = folder / "generation_config.json"
    own = json.loads(path.read_text())
    path.write_text(json.dumps({**own, "num_beams": 4, "max_length": 3}))
    expected = load(writer("t5"), QUERIES).generate(TEXTS, 40, 7)
    assert load(folder, QUERIES).generate(TEXTS, 40, 7) == expected


def test_failures_of_a_model_are_errors(writer):
    with pytest.raises(UsageError, match="has 64 positions: 64 new tokens leave no room"):
        load(writer("gpt2"), CONTINUATIONS, tokens=64)
    for folder, option in ((writer("gpt2"), QUERIES), (writer("t5"), CONTINUATIONS)):
        with pytest.raises(ModelError, match="Unrecognized configuration class"):
            load(folder, option)


def test_pickles_are_loaded_on_request(writer, tmp_path):
    copied = shutil.copytree(writer("t5"), tmp_path / "t5")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(copied)
    torch.save(model.state_dict(), copied / "pytorch_model.bin")
    before = load(copied, QUERIES).generate(TEXTS[:3], 40, 1)
    (copied / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="its weights are a pickle") as caught:
        load(copied, QUERIES)
    assert "--allow-pickle" in (caught.value.hint or "")
    assert load(copied, QUERIES, allow_pickle=True).generate(TEXTS[:3], 40, 1) == before


COUNT = 11


@pytest.fixture
def corpus(tmp_path):
    draw = random.Random(3)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(1, 20))) for _ in range(COUNT)]
    texts[4] = ""
    records = ({"_id": f"d{n}", "title": "", "text": text} for n, text in enumerate(texts))
    return Path(jsonl(tmp_path / "corpus.jsonl", records))


class StandIn(TextGenerator):
    """A generator without a model: a text's samples are its own words and the seed."""

    asked = 0
    dtype = Dtype.FLOAT32

    def __init__(self, option, settings, compute):
        self.name = self.fingerprint = getattr(settings, MODELS[option])
        self._sampling = settings.sampling[MODELS[option]]

    def generate(self, texts, longest, seed):
        type(self).asked += len(texts)
        return [
            [f"{seed} {' '.join(text.split()[:longest])}"] * self._sampling[0] if text else []
            for text in texts
        ]


@pytest.fixture
def stand_in(monkeypatch):
    monkeypatch.setattr("denserk.models.generation.TextGenerator", StandIn)
    monkeypatch.setattr(StandIn, "asked", 0)


def run(output, corpus, *, compute=None, **settings):
    given = {"queries_model": "q", "continuation_model": "c", "block_size": 2, **settings}
    if given["continuation_model"]:
        given["continuation_max_tokens"] = 10
    generating = GenerateSettings(
        corpus=str(corpus), output=str(output), **{"num_queries": 2, **given}
    )
    return generate(generating, CorpusSettings(), compute or ComputeSettings(device="cpu"))


@pytest.fixture
def models(writer):
    folders = {"queries_model": str(writer("t5")), "continuation_model": str(writer("gpt2"))}
    return {**folders, "query_max_tokens": 8}


def test_every_passage_in_the_order_of_the_corpus(models, corpus, tmp_path):
    result = run(tmp_path / "x", corpus, **models)
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


def test_shards_and_resumed_runs_are_parts_of_the_whole(models, corpus, tmp_path):
    run(tmp_path / "whole", corpus, **models)
    whole = (tmp_path / "whole").read_bytes()
    shards = [tmp_path / f"shard{shard}" for shard in range(3)]
    for shard, name in enumerate(shards):
        run(name, corpus, **models, shard_id=shard, shard_num=3)
    assert b"".join(name.read_bytes() for name in shards) == whole
    with stopped_at(5, [(TextGenerator, "generate")]), pytest.raises(Stopped):
        run(tmp_path / "x", corpus, **models)
    run(tmp_path / "x", corpus, **models, resume=True)
    assert (tmp_path / "x").read_bytes() == whole


@pytest.mark.parametrize(("step", "name"), [(0, "x"), (3, "x"), (9, "x"), (9, "x.jsonl.gz")])
def test_stopped_anywhere_and_resumed_gives_the_same_bytes(stand_in, corpus, tmp_path, step, name):
    run(tmp_path / "w" / name, corpus)
    calls = (*NAMING, (StandIn, "generate"))  # manifest, journal, then two models and a file each
    with stopped_at(step, calls), pytest.raises(Stopped):
        run(tmp_path / "v" / name, corpus)
    assert not (tmp_path / "v" / name).exists()
    result = run(tmp_path / "v" / name, corpus, resume=True)
    assert contents(tmp_path / "v") == contents(tmp_path / "w")
    assert result.generated == COUNT - 2 * max(0, (step - 2) // 3)
    result = run(tmp_path / "v" / name, corpus, resume=True, compute=ComputeSettings(batch_size=3))
    assert (result.count, result.generated) == (COUNT, 0)
    assert contents(tmp_path / "v") == contents(tmp_path / "w")


@pytest.mark.parametrize("finished", [False, True])
def test_resume_after_a_change(stand_in, corpus, tmp_path, finished):
    with stopped_at(10**6 if finished else 6, [(StandIn, "generate")]):
        try:
            run(tmp_path / "x", corpus)
        except Stopped:
            assert not finished
    for change, said in (
        ({"queries_model": "other"}, r"with other settings.*fingerprint was 'q', now 'other'"),
        ({"query_top_k": 3}, r"with other settings.*queries.query_top_k was 10, now 3"),
    ):
        with pytest.raises(MismatchError, match=said):
            run(tmp_path / "x", corpus, resume=True, **change)
    lines = corpus.read_text().splitlines(keepends=True)
    other = [lines[0], lines[1].replace('"text":"', '"text":"new '), *lines[2:]]
    for changed in (lines[:3], other):
        corpus.write_text("".join(changed))
        with pytest.raises(MismatchError, match="other passages than"):
            run(tmp_path / "x", corpus, resume=True)
    assert run(tmp_path / "x", corpus, overwrite=True).generated == len(lines)


def test_overwriting_keeps_the_old_file_until_the_end(stand_in, corpus, tmp_path):
    run(tmp_path / "x", corpus)
    before = (tmp_path / "x").read_bytes()
    with stopped_at(6, [(StandIn, "generate")]), pytest.raises(Stopped):
        run(tmp_path / "x", corpus, num_queries=3, overwrite=True)
    assert (tmp_path / "x").read_bytes() == before
    run(tmp_path / "x", corpus, num_queries=3, resume=True)
    assert (tmp_path / "x").read_bytes() != before
    assert contents(tmp_path).keys() == {"corpus.jsonl", "x", "x.manifest.json"}


def test_streams_in_and_out(stand_in, corpus, tmp_path, monkeypatch, capfdbinary):
    run(tmp_path / "x", corpus)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(corpus.read_bytes())))
    result = run("-", "-")
    assert result.generated == COUNT
    assert capfdbinary.readouterr().out == (tmp_path / "x").read_bytes()


def test_one_model_alone_with_a_prompt_and_a_join(stand_in, corpus, tmp_path):
    run(tmp_path / "x", corpus, continuation_model=None, query_prompt="ask: ", join=" - ")
    made = list(read_expansions(tmp_path / "x"))
    assert all(own.next == () for own in made)
    assert made[0].queries[0].partition(" ")[2].startswith("ask: ")
    assert made[4].queries == ()


def test_a_file_of_the_user_beside_unfinished_blocks_stays(writer, tmp_path):
    passages = [{"_id": "d1", "text": "the river"}, {"_id": "d2", "text": "a boat"}]
    corpus = jsonl(tmp_path / "corpus.jsonl", passages)
    out = tmp_path / "expansions.jsonl"
    notes = tmp_path / "expansions.jsonl.unfinished" / "notes.txt"
    notes.parent.mkdir()
    notes.write_text("mine")
    models = ["--queries-model", writer("t5"), "--device", "cpu"]
    command = ["generate", "--corpus", corpus, "--output", out, *models]
    rejected = denserk(*command, "--overwrite")
    assert rejected.returncode == 2
    assert "notes.txt" in rejected.stderr
    assert denserk(*command, "--resume").returncode == 0
    assert len(out.read_text().splitlines()) == 2
    assert [path.name for path in notes.parent.iterdir()] == ["notes.txt"]


STORIES = {
    "d1": ("River", "The old river runs to the south. A red boat is on the water. He left."),
    "d2": ("Moon", "The moon rises in the night. The star falls on the blue house. It is late."),
    "d3": ("", "The cat sleeps in the house. The dog eats a big fish. The sun is red."),
}


@pytest.fixture
def stories(tmp_path):
    records = [{"_id": d, "title": title, "text": text} for d, (title, text) in STORIES.items()]
    return Path(jsonl(tmp_path / "stories.jsonl", records))


@pytest.fixture
def bm25(stories, tmp_path):
    pytest.importorskip("bm25s")
    command = ["index", "--type", "bm25", "--corpus", stories, "--output", tmp_path / "bm25"]
    assert denserk(*command).returncode == 0
    return str(tmp_path / "bm25")


def copy(output, corpus, sources, **settings):
    given = {"continuation_model": None, "queries_model": None, "num_queries": 2, **settings}
    sources = tuple(map(QuerySource, sources.split(",")))
    return run(output, corpus, queries_from=sources, **given)


def records_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_copied_queries_with_their_sources_and_positives(stories, tmp_path):
    result = copy(tmp_path / "x", stories, "title,cloze", cloze_kept=0.0)
    first, _, third = records_of(tmp_path / "x")
    assert first == {
        "docid": "d1",
        "queries": ["River", first["queries"][1], first["queries"][2]],
        "next": [],
        "sources": ["title", "cloze", "cloze"],
        "positives": [None, first["positives"][1], first["positives"][2]],
    }
    sentences = {"The old river runs to the south.", "A red boat is on the water."}
    assert set(first["queries"][1:]) == sentences
    assert third["sources"] == ["cloze", "cloze"]
    assert (result.count, result.queries, result.not_found) == (3, 8, 0)
    manifest = read_manifest(tmp_path / "x", Kind.EXPANSIONS)
    assert manifest.settings["copied"]["queries_from"] == ["title", "cloze"]
    assert [expansion.docid for expansion in read_expansions(tmp_path / "x")] == list(STORIES)


def test_copied_queries_do_not_depend_on_order_blocks_or_shards(corpus, tmp_path):
    copy(tmp_path / "whole", corpus, "span,cloze")
    whole = (tmp_path / "whole").read_text().splitlines()
    lines = corpus.read_text().splitlines(keepends=True)
    other_order = tmp_path / "reversed.jsonl"
    other_order.write_text("".join(reversed(lines)))
    copy(tmp_path / "x", other_order, "span,cloze", block_size=3)
    assert (tmp_path / "x").read_text().splitlines() == whole[::-1]
    shards = []
    for shard in range(3):
        copy(tmp_path / f"{shard}", corpus, "span,cloze", shard_id=shard, shard_num=3)
        shards += (tmp_path / f"{shard}").read_text().splitlines()
    assert shards == whole


def test_a_model_and_copies_together(stand_in, stories, tmp_path):
    copy(tmp_path / "x", stories, "title", queries_model="q")
    assert [record["sources"] for record in records_of(tmp_path / "x")] == [
        ["title", "model", "model"],
        ["title", "model", "model"],
        ["model", "model"],
    ]


def test_copies_stopped_and_resumed_give_the_same_bytes(stories, tmp_path):
    copy(tmp_path / "w" / "x", stories, "span,cloze", block_size=1)
    with stopped_at(3, NAMING), pytest.raises(Stopped):
        copy(tmp_path / "v" / "x", stories, "span,cloze", block_size=1)
    with pytest.raises(MismatchError, match=r"copied\.queries_from was"):
        copy(tmp_path / "v" / "x", stories, "span", block_size=1, resume=True)
    result = copy(tmp_path / "v" / "x", stories, "span,cloze", block_size=1, resume=True)
    assert 0 < result.generated < len(STORIES)
    assert contents(tmp_path / "v") == contents(tmp_path / "w")


def test_no_model_needs_no_torch(bm25, stories, tmp_path):
    """Copies, and a round trip through BM25, start without it."""
    program = """if True:
        import sys
        from denserk.commands.app import run
        sys.modules["torch"] = None  # an import is an error
        sys.exit(run(sys.argv[1:]))
    """
    words = ["--queries-from", "title,span", "--round-trip", bm25, "--output", tmp_path / "x"]
    command = [sys.executable, "-c", program, "generate", "--corpus", stories, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(records_of(tmp_path / "x")) == len(STORIES)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "give --queries-model, --queries-from or --continuation-model"),
        ({"queries_from": (QuerySource.SPAN,) * 2}, "each source once"),
        (
            {"queries_from": (QuerySource.SPAN,), "fields": ("body",)},
            "--fields body: --queries-from reads",
        ),
        ({"round_trip": "bm25", "continuation_model": "c"}, "--round-trip needs"),
        ({"cloze_kept": 0.5, "queries_model": "q"}, "cloze-kept needs --queries-from"),
        ({"queries_from": (QuerySource.SPAN,), "cloze_kept": 1.5}, "at most 1 is expected"),
        ({"queries_from": (QuerySource.SPAN,), "round_trip_hits": 5}, "needs --round-trip"),
    ],
)
def test_settings_that_do_not_fit(settings, message):
    with pytest.raises(UsageError, match=message):
        GenerateSettings(corpus="c", output="o", **settings)


def test_a_round_trip_keeps_queries_that_find_their_passage(
    stand_in, bm25, stories, tmp_path, monkeypatch
):
    def of_the_moon(self, texts, longest, seed):
        return [["When does the moon rise?"] for _ in texts]

    monkeypatch.setattr(StandIn, "generate", of_the_moon)
    settings = {"queries_model": "q", "round_trip": bm25, "round_trip_hits": 1}
    result = copy(tmp_path / "x", stories, "title", **settings)
    kept = {record["docid"]: record["sources"] for record in records_of(tmp_path / "x")}
    assert kept == {"d1": ["title"], "d2": ["title", "model"], "d3": []}
    assert (result.queries, result.not_found) == (3, 2)
    everything = copy(tmp_path / "y", stories, "title,cloze", round_trip=bm25, round_trip_hits=3)
    assert everything.not_found == 0


def test_a_vague_query_is_dropped(bm25, tmp_path):
    """The title "Moon" finds the story of the moon, and not d1, which is another one here."""
    records = [{"_id": "d1", "title": "Moon", "text": "River boats."}]
    records.append({"_id": "d2", "title": "Star", "text": "A star."})
    other = Path(jsonl(tmp_path / "other.jsonl", records))
    result = copy(tmp_path / "x", other, "title", round_trip=bm25, round_trip_hits=1)
    first, second = records_of(tmp_path / "x")
    assert (first["queries"], first["sources"], first["positives"]) == ([], [], [])
    assert second["queries"] == ["Star"]
    assert (result.queries, result.not_found) == (1, 1)
    manifest = read_manifest(tmp_path / "x", Kind.EXPANSIONS)
    assert manifest.settings["round_trip_hits"] == 1
    assert "round_trip" in manifest.made_from


def test_a_round_trip_through_vectors(tiny, stories, tmp_path):
    model = tiny()
    command = ["encode", "--model", model, "--corpus", stories, "--output", tmp_path / "vectors"]
    assert denserk(*command, "--device", "cpu").returncode == 0
    vectors = str(tmp_path / "vectors")
    settings = {"round_trip": vectors, "num_queries": 1}
    whole = copy(tmp_path / "x", stories, "title,cloze", round_trip_hits=3, **settings)
    assert (whole.queries, whole.not_found) == (5, 0)
    cut = copy(tmp_path / "y", stories, "title,cloze", round_trip_hits=1, **settings)
    assert cut.queries + cut.not_found == 5


def test_another_index_is_another_run(bm25, stories, tmp_path):
    copy(tmp_path / "x", stories, "title", round_trip=bm25)
    shutil.rmtree(bm25)
    changed = stories.read_text().replace("River", "Stream")
    (tmp_path / "changed.jsonl").write_text(changed)
    command = ["index", "--type", "bm25", "--corpus", tmp_path / "changed.jsonl", "--output", bm25]
    assert denserk(*command).returncode == 0
    with pytest.raises(MismatchError, match=r"round_trip\.sha256"):
        copy(tmp_path / "x", stories, "title", round_trip=bm25, resume=True)


def test_a_corpus_without_queries_is_a_warning(tmp_path, caplog):
    corpus = jsonl(tmp_path / "corpus.jsonl", [{"_id": "d1", "title": "", "text": "one sentence"}])
    assert copy(tmp_path / "x", corpus, "title,cloze").queries == 0
    assert any("has a query from title, cloze" in message for message in warnings_of(caplog))


def test_a_round_trip_needs_an_index(stories, tmp_path):
    with pytest.raises(UsageError, match=r"--round-trip .*stories\.jsonl is a file"):
        copy(tmp_path / "x", stories, "title", round_trip=str(stories))
    with pytest.raises(UsageError, match="no such file or folder"):
        copy(tmp_path / "x", stories, "title", round_trip=str(tmp_path / "absent"))


def test_counts_of_a_round_trip_are_reported(bm25, stories, tmp_path):
    words = ["generate", "--corpus", stories, "--queries-from", "title", "--round-trip", bm25]
    done = denserk(*words, "--output", tmp_path / "x")
    assert "2 of 2 queries find their passage among the first 10 hits" in done.stderr
    foreign = Path(jsonl(tmp_path / "foreign.jsonl", [{"_id": "x", "title": "Moon", "text": "a"}]))
    words[2] = foreign
    done = denserk(*words, "--output", tmp_path / "y")
    assert done.returncode == 0
    assert "is it an index of this corpus?" in done.stderr
