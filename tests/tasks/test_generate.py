import io
import itertools
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


def random_texts(seed, count, most_words):
    generator = random.Random(seed)
    texts = []
    for _ in range(count):
        words = generator.choices(WORDS, k=generator.randint(1, most_words))
        texts.append(" ".join(words))
    return texts


TEXTS = random_texts(5, 12, most_words=30)
TEXTS.insert(3, "")


def load(folder, option, *, samples=2, tokens=TOKENS, top_k=0, allow_pickle=False, **compute):
    settings: Any = SimpleNamespace(**{MODELS[option]: str(folder)}, allow_pickle=allow_pickle)
    settings.sampling = {MODELS[option]: Sampling(samples, tokens, top_k=top_k, top_p=0.9)}
    return TextGenerator(option, settings, ComputeSettings(**{"device": "cpu", **compute}))


@pytest.mark.parametrize("kind", OPTIONS)
def test_the_same_seed_gives_the_same_samples(kind, writer):
    generator = load(writer(kind), OPTIONS[kind], batch_size=5)
    state = torch.get_rng_state()
    samples = generator.generate(TEXTS, 40, seed=7)
    assert torch.equal(torch.get_rng_state(), state)
    loaded_again = load(writer(kind), OPTIONS[kind], batch_size=5)
    assert loaded_again.generate(TEXTS, 40, seed=7) == samples
    assert generator.generate(TEXTS, 40, seed=8) != samples
    assert samples[3] == []  # of the empty text
    assert [len(samples_of_text) for samples_of_text in samples].count(2) > 9
    assert len(set(itertools.chain(*samples))) > 15
    assert generator.generate(["", ""], 40, seed=7) == [[], []]


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("length", [9, 500])
def test_one_possible_token_is_greedy_decoding(kind, writer, length):
    """Of a long text the first tokens make queries, and the last ones are continued."""
    generator = load(writer(kind), OPTIONS[kind], top_k=1, samples=1)
    is_decoder = kind == "gpt2"
    model_class: Any = transformers.AutoModelForSeq2SeqLM
    if is_decoder:
        model_class = transformers.AutoModelForCausalLM
    model = model_class.from_pretrained(writer(kind))
    tokenizer = transformers.AutoTokenizer.from_pretrained(writer(kind))
    passages = [text for text in (*TEXTS, " ".join(WORDS * 3)) if text]
    samples = generator.generate(passages, length, 1)
    for passage, samples_of_passage in zip(passages, samples, strict=True):
        if is_decoder:
            tokens = tokenizer(passage).input_ids[-min(length, POSITIONS - TOKENS) :]
        else:
            tokens = tokenizer(passage, truncation=True, max_length=length).input_ids
        ids = torch.tensor([tokens])
        [output] = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=TOKENS,
            do_sample=False,
            pad_token_id=0,
        )
        new_tokens = output[len(tokens) :] if is_decoder else output
        expected = str(tokenizer.decode(new_tokens, skip_special_tokens=True)).strip()
        assert samples_of_passage == ([expected] if expected else [])


def test_the_models_own_sampling_settings_are_not_used(writer, tmp_path):
    folder = shutil.copytree(writer("t5"), tmp_path / "t5")
    path = folder / "generation_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "num_beams": 4, "max_length": 3}))
    expected = load(writer("t5"), QUERIES).generate(TEXTS, 40, 7)
    assert load(folder, QUERIES).generate(TEXTS, 40, 7) == expected


def test_failures_of_a_model_are_errors(writer):
    with pytest.raises(UsageError, match="has 64 positions: 64 new tokens leave no room"):
        load(writer("gpt2"), CONTINUATIONS, tokens=64)
    with pytest.raises(ModelError, match="Unrecognized configuration class"):
        load(writer("gpt2"), QUERIES)
    with pytest.raises(ModelError, match="Unrecognized configuration class"):
        load(writer("t5"), CONTINUATIONS)


def test_pickles_are_loaded_on_request(writer, tmp_path):
    folder = shutil.copytree(writer("t5"), tmp_path / "t5")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    samples = load(folder, QUERIES).generate(TEXTS[:3], 40, 1)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="its weights are a pickle") as error:
        load(folder, QUERIES)
    assert "--allow-pickle" in str(error.value.hint)
    assert load(folder, QUERIES, allow_pickle=True).generate(TEXTS[:3], 40, 1) == samples


COUNT = 11


@pytest.fixture
def corpus(tmp_path):
    texts = random_texts(3, COUNT, most_words=20)
    texts[4] = ""
    records = []
    for number, text in enumerate(texts):
        records.append({"_id": f"d{number}", "title": "", "text": text})
    return Path(jsonl(tmp_path / "corpus.jsonl", records))


class StandIn(TextGenerator):
    """A generator without a model: a text's samples are its own words and the seed."""

    dtype = Dtype.FLOAT32

    def __init__(self, option, settings, compute):
        self.name = self.fingerprint = getattr(settings, MODELS[option])
        self._sampling = settings.sampling[MODELS[option]]

    def generate(self, texts, longest, seed):
        samples = []
        for text in texts:
            words = " ".join(text.split()[:longest])
            count = self._sampling.num_return_sequences if text else 0
            samples.append([f"{seed} {words}"] * count)
        return samples


@pytest.fixture
def stand_in(monkeypatch):
    monkeypatch.setattr("denserk.models.generation.TextGenerator", StandIn)


DEFAULTS: dict[str, Any] = {
    "queries_model": "q",
    "continuation_model": "c",
    "block_size": 2,
    "num_queries": 2,
}


def run(output, corpus, *, batch_size=None, **options):
    options = DEFAULTS | options
    if options["continuation_model"]:
        options["continuation_max_tokens"] = 10
    settings = GenerateSettings(corpus=str(corpus), output=str(output), **options)
    compute = ComputeSettings(device="cpu", batch_size=batch_size)
    return generate(settings, CorpusSettings(), compute)


@pytest.fixture
def models(writer):
    folders = {"queries_model": str(writer("t5")), "continuation_model": str(writer("gpt2"))}
    return {**folders, "query_max_tokens": 8}


def test_every_passage_in_the_order_of_the_corpus(models, corpus, tmp_path):
    result = run(tmp_path / "x", corpus, **models)
    expansions = list(read_expansions(tmp_path / "x"))
    assert [expansion.docid for expansion in expansions] == [f"d{n}" for n in range(COUNT)]
    for expansion in expansions:
        if expansion.docid == "d4":  # has no text
            assert expansion.queries == ()
            assert expansion.continuations == ()
        else:
            assert expansion.queries
            assert len(expansion.continuations) == 1
    assert result.count == COUNT
    assert result.generated == COUNT
    assert result.empty == 1
    assert result.queries == sum(len(expansion.queries) for expansion in expansions)
    assert result.continuations == COUNT - 1
    manifest = read_manifest(tmp_path / "x", Kind.EXPANSIONS)
    assert manifest.settings["queries"]["query_top_k"] == 10
    assert contents(tmp_path).keys() == {"corpus.jsonl", "x", "x.manifest.json"}


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
    result = run(tmp_path / "v" / name, corpus, resume=True, batch_size=3)
    assert result.count == COUNT
    assert result.generated == 0
    assert contents(tmp_path / "v") == contents(tmp_path / "w")


@pytest.mark.parametrize("finished", [False, True])
def test_resume_after_a_change(stand_in, corpus, tmp_path, finished):
    if finished:
        run(tmp_path / "x", corpus)
    else:
        with stopped_at(6, [(StandIn, "generate")]), pytest.raises(Stopped):
            run(tmp_path / "x", corpus)
    with pytest.raises(MismatchError, match="fingerprint was 'q', now 'other'"):
        run(tmp_path / "x", corpus, resume=True, queries_model="other")
    with pytest.raises(MismatchError, match=r"queries\.query_top_k was 10, now 3"):
        run(tmp_path / "x", corpus, resume=True, query_top_k=3)
    text = corpus.read_text()
    lines = text.splitlines(keepends=True)
    corpus.write_text("".join(lines[:3]))
    with pytest.raises(MismatchError, match="other passages than"):
        run(tmp_path / "x", corpus, resume=True)
    changed_line = lines[1].replace('"text":"', '"text":"new ')
    corpus.write_text(text.replace(lines[1], changed_line))
    with pytest.raises(MismatchError, match="other passages than"):
        run(tmp_path / "x", corpus, resume=True)
    assert run(tmp_path / "x", corpus, overwrite=True).generated == COUNT


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
    expansions = list(read_expansions(tmp_path / "x"))
    assert all(expansion.continuations == () for expansion in expansions)
    _seed, _, text = expansions[0].queries[0].partition(" ")
    assert text.startswith("ask: ")
    assert expansions[4].queries == ()


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


def copy(output, corpus, sources, **options):
    """Generate queries from sources such as "title,cloze"; without a model, unless one is given."""
    options = {"queries_model": None, "continuation_model": None} | options
    options["queries_from"] = tuple(map(QuerySource, sources.split(",")))
    return run(output, corpus, **options)


def records_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_copied_queries_with_their_sources_and_positives(stories, tmp_path):
    result = copy(tmp_path / "x", stories, "title,cloze", cloze_kept=0.0)
    d1, _, d3 = records_of(tmp_path / "x")
    assert d1.keys() == {"docid", "queries", "next", "sources", "positives"}
    assert d1["docid"] == "d1"
    assert d1["sources"] == ["title", "cloze", "cloze"]
    title, *sentences = d1["queries"]
    assert title == "River"
    assert set(sentences) == {"The old river runs to the south.", "A red boat is on the water."}
    assert d1["positives"][0] is None
    assert len(d1["positives"]) == 3
    assert d1["next"] == []
    assert d3["sources"] == ["cloze", "cloze"]
    assert result.count == 3
    assert result.queries == 8
    assert result.not_found == 0
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
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
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
    def ask_for_the_moon(self, texts, longest, seed):
        return [["When does the moon rise?"] for _ in texts]

    monkeypatch.setattr(StandIn, "generate", ask_for_the_moon)
    options = {"queries_model": "q", "round_trip": bm25, "round_trip_hits": 1}
    result = copy(tmp_path / "x", stories, "title", **options)
    sources = {record["docid"]: record["sources"] for record in records_of(tmp_path / "x")}
    assert sources == {"d1": ["title"], "d2": ["title", "model"], "d3": []}
    assert result.queries == 3
    assert result.not_found == 2
    result = copy(tmp_path / "y", stories, "title,cloze", round_trip=bm25, round_trip_hits=3)
    assert result.not_found == 0


def test_a_vague_query_is_dropped(bm25, tmp_path):
    """The title "Moon" finds the story of the moon, and not d1, which is another one here."""
    records = [{"_id": "d1", "title": "Moon", "text": "River boats."}]
    records.append({"_id": "d2", "title": "Star", "text": "A star."})
    other = Path(jsonl(tmp_path / "other.jsonl", records))
    result = copy(tmp_path / "x", other, "title", round_trip=bm25, round_trip_hits=1)
    d1, d2 = records_of(tmp_path / "x")
    assert d1["queries"] == d1["sources"] == d1["positives"] == []
    assert d2["queries"] == ["Star"]
    assert result.queries == 1
    assert result.not_found == 1
    manifest = read_manifest(tmp_path / "x", Kind.EXPANSIONS)
    assert manifest.settings["round_trip_hits"] == 1
    assert "round_trip" in manifest.made_from


def test_a_round_trip_through_vectors(tiny, stories, tmp_path):
    model = tiny()
    command = ["encode", "--model", model, "--corpus", stories, "--output", tmp_path / "vectors"]
    assert denserk(*command, "--device", "cpu").returncode == 0
    options = {"round_trip": str(tmp_path / "vectors"), "num_queries": 1}
    result = copy(tmp_path / "x", stories, "title,cloze", round_trip_hits=3, **options)
    assert result.queries == 5
    assert result.not_found == 0
    result = copy(tmp_path / "y", stories, "title,cloze", round_trip_hits=1, **options)
    assert result.queries + result.not_found == 5


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
    command = ["generate", "--queries-from", "title", "--round-trip", bm25]
    process = denserk(*command, "--corpus", stories, "--output", tmp_path / "x")
    assert "2 of 2 queries find their passage among the first 10 hits" in process.stderr
    foreign = jsonl(tmp_path / "foreign.jsonl", [{"_id": "x", "title": "Moon", "text": "a"}])
    process = denserk(*command, "--corpus", foreign, "--output", tmp_path / "y")
    assert process.returncode == 0
    assert "is it an index of this corpus?" in process.stderr
