import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from denserk.commands.app import run
from denserk.config.encoding import VectorFormat
from denserk.config.formats import ConversionSettings, Kind, RunFormat, TrainingFormat
from denserk.errors import InputError, ModelError, UsageError
from denserk.io.corpus import read_passages
from denserk.io.manifest import Kind as ManifestKind
from denserk.io.manifest import Manifest, write_manifest
from denserk.io.pretraining_text import Expansion
from denserk.io.runs import read_run
from denserk.io.training import WRITTEN, read_training
from denserk.io.vectors import open_vectors
from denserk.models.checkpoints import read_weights
from denserk.models.model_folder import read_model_folder
from denserk.models.saving import WEIGHTS_FILE
from denserk.records import Candidate
from denserk.tasks.convert import CONVERSIONS, convert
from tests.support.console import warnings_of
from tests.support.toy import PASSAGES, QUERIES
from tests.support.training_examples import jsonl, write_expansions


def turn(source, target, to=None, **settings):
    return convert(str(source), str(target), ConversionSettings(to_format=to, **settings))


def test_a_corpus_with_its_generated_queries(toy, tmp_path):
    write_expansions(tmp_path / "e", [Expansion("d2", ("who?", "where?"), ("no",))])
    turn(toy / "corpus.jsonl", tmp_path / "c.jsonl", "beir", expansions=str(tmp_path / "e"))
    texts = {d: text for d, (_, text) in PASSAGES.items()}
    texts["d2"] += " who? where?"
    assert {p.docid: p.text for p in read_passages(str(tmp_path / "c.jsonl"))} == texts
    with pytest.raises(UsageError, match="--expansions, --average: not used by queries"):
        turn(toy / "queries.tsv", tmp_path / "q", kind=Kind.QUERIES, expansions="e", average=("m",))


DOCUMENTS = {
    "a": "The river runs south. A boat is\non  the river.",
    "b": "The cat sleeps. The moon rises in the night. The star falls.",
    "empty": " ",
}


@pytest.fixture
def documents(tmp_path):
    records = [{"_id": d, "title": d.upper(), "text": t, "url": d} for d, t in DOCUMENTS.items()]
    return Path(jsonl(tmp_path / "corpus.jsonl", records))


@pytest.mark.parametrize(
    ("settings", "passages"),
    [
        (
            {"split_words": 6},
            {
                "a#0": "The river runs south. A boat",
                "a#1": "is\non  the river.",
                "b#0": "The cat sleeps. The moon rises",
                "b#1": "in the night. The star falls.",
                "empty#0": "",
            },
        ),
        (
            {"split_sentences": 2, "stride": 1, "max_passage_delimiter": "::"},
            {
                "a::0": "The river runs south. A boat is",
                "a::1": "A boat is\non  the river.",
                "b::0": "The cat sleeps. The moon rises in the night.",
                "b::1": "The moon rises in the night. The star falls.",
                "empty::0": "",
            },
        ),
    ],
)
def test_documents_are_split_into_passages(settings, passages, documents, tmp_path, caplog):
    target = tmp_path / "passages.jsonl"
    result = turn(documents, target, **settings)
    assert (result.format, result.count) == ("beir", 5)
    written = list(read_passages(str(target)))
    assert {passage.docid: passage.text for passage in written} == passages
    assert [passage.title for passage in written] == ["A", "A", "B", "B", "EMPTY"]
    assert [passage.extra["url"] for passage in written] == ["a", "a", "b", "b", "empty"]
    lengths = [len(text) for text in passages.values()]
    assert caplog.messages[2] == (
        f"corpus.jsonl: 3 documents, split into passages of {sum(lengths) / 5:.0f} characters on "
        f"average and {max(lengths)} at most"
    )
    assert warnings_of(caplog) == []


def test_an_id_with_the_delimiter_leaves_nothing_behind(tmp_path):
    source = jsonl(tmp_path / "corpus.jsonl", [{"_id": d, "text": "a b"} for d in ("d1", "d#2")])
    with pytest.raises(InputError, match="the document id 'd#2'") as caught:
        turn(source, tmp_path / "passages.jsonl", split_words=1)
    assert "--set max-passage-delimiter" in str(caught.value.hint)
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.jsonl"]


def test_words_without_spaces_between_are_warned_of(tmp_path, caplog):
    text = "川は南に流れる。" * 5
    source = jsonl(tmp_path / "corpus.jsonl", [{"_id": "d", "text": text}])
    turn(source, tmp_path / "words.jsonl", "beir", split_words=2)
    (warning,) = warnings_of(caplog)
    assert "words of 40 characters on average" in warning
    assert "--split-sentences" in warning
    caplog.clear()
    assert turn(source, tmp_path / "passages.jsonl", split_sentences=2).count == 3
    assert warnings_of(caplog) == []


def test_split_documents_are_searched_and_evaluated_by_document(documents, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("queries.tsv").write_text("q1\triver boat\nq2\tstar night\n")
    Path("qrels.txt").write_text("q1 0 a 1\nq2 0 b 1\n")
    split = "convert corpus.jsonl passages.jsonl --split-words 6 --stride 3"
    index = "index --type bm25 --corpus passages.jsonl --output bm25"
    search = "search --index bm25 --topics queries.tsv --max-passage --output run.trec"
    for command in (split, index, search, "eval run.trec qrels.txt -m RR --min RR=1"):
        assert run(command.split()) == 0
    assert {hits.qid: hits.docids for hits in read_run("run.trec")} == {"q1": ["a"], "q2": ["b"]}


@pytest.mark.parametrize(
    ("source", "kind", "home"),
    [
        ("corpus.jsonl", Kind.CORPUS, "tevatron"),
        ("queries.tsv", Kind.QUERIES, "tsv"),
        ("qrels.txt", Kind.QRELS, "trec"),
    ],
)
def test_every_format_of_a_collection_gives_the_same_records(source, kind, home, toy, tmp_path):
    there, back = tmp_path / "there", tmp_path / "back.tsv"
    expected = turn(toy / source, tmp_path / "expected", home, kind=kind)
    for form in CONVERSIONS[kind].formats:
        turn(toy / source, there, form, kind=kind)
        assert turn(there, back, home, from_format=form, kind=kind) == expected
        if form not in ("anserini", "marco", "dpr"):  # which keep less
            assert back.read_text() == (tmp_path / "expected").read_text()


@pytest.mark.parametrize("form", RunFormat)
def test_runs_keep_their_order_and_break_ties_by_id(form, tmp_path):
    (tmp_path / "a.trec").write_text(
        "q2 Q0 d9 1 2.5 t\nq2 Q0 d2 2 3.5 t\nq2 Q0 d10 3 2.5 t\nq1 Q0 d1 1 0.25 t\n"
    )
    turn(tmp_path / "a.trec", tmp_path / "b", form)
    hits = [(hits.qid, docid) for hits in read_run(tmp_path / "b") for docid in hits.docids]
    assert hits == [("q2", "d2"), ("q2", "d9"), ("q2", "d10"), ("q1", "d1")]


@pytest.fixture
def filled(toy, tmp_path):

    def examples(lines, form="tevatron"):
        (toy / "train.tsv").write_text(lines)
        collection = {"corpus": str(toy / "corpus.jsonl"), "queries": str(toy / "queries.tsv")}
        turn(toy / "train.tsv", tmp_path / "t", form, kind=Kind.TRAINING, **collection)
        return list(read_training(tmp_path / "t"))

    return examples


@pytest.mark.parametrize("form", WRITTEN)
def test_training_by_id_is_filled_from_the_collection(form, filled):
    first, second = filled("q1\td3\td1\nq1\td3\td2\nq2\td1\td4\n", form)
    assert [len(first.negatives), len(second.negatives)] == [2, 1]
    texts = [c.text or PASSAGES[c.docid][1] for c in first.negatives]
    assert texts == [PASSAGES["d1"][1], PASSAGES["d2"][1]]
    if form is TrainingFormat.TEVATRON:
        assert first.query == QUERIES["q1"]
        title, text = PASSAGES["d1"]
        assert first.negatives[0] == Candidate("d1", text, title)


def test_ids_that_the_collection_lacks_are_named_and_texts_that_are_there_stay(filled):
    with pytest.raises(InputError, match="no passages with 2 of the ids"):
        filled("q1\td3\tx1\nq1\td3\tx2\n")
    with pytest.raises(InputError, match=r"\('q9'\); expected all its queries"):
        filled("q9\td3\td1\n")
    (example,) = filled(
        '{"query_id":"q1","query":"own","positive_passages":[{"docid":"d3","text":"own text"}]}\n'
    )
    assert (example.query, example.positives[0].text) == ("own", "own text")
    with pytest.raises(UsageError, match="twice"):
        turn("-", "t", "flag", kind=Kind.TRAINING, corpus="c")


VECTORS = np.random.default_rng(3).standard_normal((9, 4)).astype(np.float32)
WITHOUT_TEXTS = [form for form in VectorFormat if form is not VectorFormat.PYSERINI_QUERIES]


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    records = [
        {"id": f"d{i}", "contents": "text", "vector": row} for i, row in enumerate(VECTORS.tolist())
    ]
    (tmp_path / "v.jsonl").write_text("\n".join(map(json.dumps, records)))
    return tmp_path / "v.jsonl"


def test_a_folder_of_vectors_has_blocks_and_keeps_what_made_it(vectors, tmp_path, monkeypatch):
    monkeypatch.setattr("denserk.io.vector_formats.ROWS", 4)
    turn(vectors, tmp_path / "a", "npy")
    folder = open_vectors(tmp_path / "a")
    assert [len(block.ids) for block in folder.blocks()] == [4, 4, 1]
    assert folder.manifest.made_from == {"converted_from": str(tmp_path / "v.jsonl")}
    turn(tmp_path / "a", tmp_path / "b", "npy")
    first, second = (tmp_path / name / "block-00001.npy" for name in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()


def test_a_flat_index_as_vectors_keeps_the_model_and_not_its_settings(vectors, tmp_path):
    turn(vectors, tmp_path / "a", "pyserini-faiss")
    model = {"name": "m", "fingerprint": "1"}
    made = Manifest(ManifestKind.INDEX, True, {"type": "flat"}, {"model": model}, {"count": 9})
    write_manifest(tmp_path / "a", made)
    turn(tmp_path / "a", tmp_path / "b", "npy")
    manifest = open_vectors(tmp_path / "b").manifest
    assert (manifest.made_from["model"], manifest.settings) == (model, {})


def test_the_mean_of_models_that_are_alike(tiny_agg, tmp_path):
    first, second, third = models = [tiny_agg("bert") for _ in range(3)]
    for number, model in enumerate(models):
        tensors = {n: t + t.mean() * number for n, t in load_file(first / WEIGHTS_FILE).items()}
        save_file(tensors, model / WEIGHTS_FILE)
    save_file(tensors, third / "part.safetensors")
    index = {"weight_map": dict.fromkeys(tensors, "part.safetensors")}
    (third / f"{WEIGHTS_FILE}.index.json").write_text(json.dumps(index))
    (third / WEIGHTS_FILE).unlink()
    turn(first, tmp_path / "soup", "denserk", average=(str(second), str(third)))
    soup, every = load_file(tmp_path / "soup" / WEIGHTS_FILE), [*map(read_weights, models)]
    for name, tensor in soup.items():
        torch.testing.assert_close(tensor, sum(tensors[name] for tensors in every) / 3)
    tied = "cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"
    assert soup[tied[0]].equal(soup[tied[1]])
    named = json.loads((tmp_path / "soup" / "denserk.json").read_text())["average_of"]
    assert named == {str(model): read_model_folder(model).fingerprint() for model in models}
    with pytest.raises(ModelError, match=r"representation.agg_dim was 20, now 16"):
        turn(first, tmp_path / "no", "denserk", average=(str(tiny_agg("bert", agg_dim=16)),))
    with pytest.raises(ModelError, match=r"config.model_type was 'bert', now 'distilbert'"):
        turn(first, tmp_path / "no", "denserk", average=(str(tiny_agg("distilbert")),))
