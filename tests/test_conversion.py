import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from denserk.config.encoding import VectorFormat
from denserk.config.formats import (
    ConversionSettings,
    CorpusFormat,
    Kind,
    QrelsFormat,
    RunFormat,
    TopicsFormat,
    TrainingFormat,
)
from denserk.conversion import CONVERSIONS, convert, with_texts
from denserk.errors import DenserkError, InputError, UsageError
from denserk.io.corpus import read_passages
from denserk.io.manifest import Kind as ManifestKind
from denserk.io.manifest import Manifest, write_manifest
from denserk.io.pretraining_text import Expansion
from denserk.io.qrels import read_qrels
from denserk.io.runs import read_run
from denserk.io.topics import read_queries
from denserk.io.training import read_training
from denserk.io.vectors import open_vectors, read_vector_blocks
from denserk.records import Candidate, TrainingExample
from tests.conftest import PASSAGES, QRELS, QUERIES
from tests.expansions import write_expansions


def turn(source, target, to=None, **settings):
    return convert(str(source), str(target), ConversionSettings(to_format=to, **settings))


def round_trip(source, folder, form, home, **settings):
    """Into a format and back into `home`: the path of what came back."""
    turn(source, folder / f"there.{form}", form, **settings)
    turn(folder / f"there.{form}", folder / f"back.{form}", home, from_format=form, **settings)
    return str(folder / f"back.{form}")


@pytest.mark.parametrize("form", CONVERSIONS[Kind.CORPUS][0])
def test_corpora(form, toy, tmp_path):
    back = round_trip(toy / "corpus.jsonl", tmp_path, form, "beir", kind=Kind.CORPUS)
    passages = {p.docid: f"{p.title} {p.text}".split() for p in read_passages(back)}
    assert passages == {d: f"{title} {text}".split() for d, (title, text) in PASSAGES.items()}


def test_fields_inside_contents_are_taken_apart(toy, tmp_path):
    turn(toy / "corpus.jsonl", tmp_path / "a", CorpusFormat.ANSERINI)
    (tmp_path / "a").write_text("".join((tmp_path / "a").read_text().splitlines(True)[:2]))
    settings = ConversionSettings(to_format="beir")
    convert(str(tmp_path / "a"), str(tmp_path / "b"), settings, text={"fields": ("title", "text")})
    assert [(p.title, p.text) for p in read_passages(str(tmp_path / "b"))] == [
        PASSAGES["d1"],
        PASSAGES["d2"],
    ]


def test_a_corpus_with_its_generated_queries(toy, tmp_path):
    write_expansions(tmp_path / "e", [Expansion("d2", ("who?", "where?"), ("no",))])
    turn(toy / "corpus.jsonl", tmp_path / "c.jsonl", "beir", expansions=str(tmp_path / "e"))
    texts = {d: text for d, (_, text) in PASSAGES.items()}
    texts["d2"] += " who? where?"
    assert {p.docid: p.text for p in read_passages(str(tmp_path / "c.jsonl"))} == texts
    with pytest.raises(UsageError, match="--expansions are appended to a corpus, not to queries"):
        turn(toy / "queries.tsv", tmp_path / "q", kind=Kind.QUERIES, expansions="e")


@pytest.mark.parametrize("form", CONVERSIONS[Kind.QUERIES][0])
def test_queries(form, toy, tmp_path):
    back = round_trip(toy / "queries.tsv", tmp_path, form, "tsv", kind=Kind.QUERIES)
    ids = QUERIES if form is not TopicsFormat.DPR else ["0", "1", "2"]
    assert [(q.qid, q.text) for q in read_queries(back)] == [
        *zip(ids, QUERIES.values(), strict=True)
    ]


@pytest.mark.parametrize("form", QrelsFormat)
def test_qrels(form, toy, tmp_path):
    back = round_trip(toy / "qrels.txt", tmp_path, form, "trec")
    assert [tuple(q) for q in read_qrels(back)] == [
        (qid, docid, grade) for qid, judged in QRELS.items() for docid, grade in judged.items()
    ]


@pytest.mark.parametrize("form", RunFormat)
def test_runs_keep_their_order_and_break_ties_by_id(form, tmp_path):
    (tmp_path / "a.trec").write_text(
        "q2 Q0 d9 1 2.5 t\nq2 Q0 d2 2 3.5 t\nq2 Q0 d10 3 2.5 t\nq1 Q0 d1 1 0.25 t\n"
    )
    back = round_trip(tmp_path / "a.trec", tmp_path, form, "trec", kind=Kind.RUN)
    hits = [(hits.qid, docid) for hits in read_run(back) for docid in hits.docids]
    assert hits == [("q2", "d2"), ("q2", "d9"), ("q2", "d10"), ("q1", "d1")]


@pytest.mark.parametrize("form", TrainingFormat)
def test_training_by_id_is_filled_from_the_collection(form, toy, tmp_path):
    (toy / "train.tsv").write_text("q1\td3\td1\nq1\td3\td2\nq2\td1\td4\n")
    collection = {"corpus": str(toy / "corpus.jsonl"), "queries": str(toy / "queries.tsv")}
    result = turn(toy / "train.tsv", tmp_path / "t", form, kind=Kind.TRAINING, **collection)
    assert (result.kind, result.format, result.count) == (Kind.TRAINING, form, 2)
    first, second = read_training(tmp_path / "t")
    assert [len(first.negatives), len(second.negatives)] == [2, 1]
    texts = [c.text or PASSAGES[c.docid][1] for c in first.negatives]
    assert texts == [PASSAGES["d1"][1], PASSAGES["d2"][1]]


VECTORS = np.random.default_rng(3).standard_normal((9, 4)).astype(np.float32)
WITHOUT_TEXTS = [form for form in VectorFormat if form is not VectorFormat.PYSERINI_QUERIES]


def lines(folder: Path) -> Path:
    rows = ",".join("%r" for _ in range(4))
    (folder / "v.jsonl").write_text(
        "".join(
            f'{{"id":"d{i}","contents":"text {i}","vector":[{rows % tuple(map(float, row))}]}}\n'
            for i, row in enumerate(VECTORS)
        )
    )
    return folder / "v.jsonl"


@pytest.mark.parametrize(
    ("first", "second"), [*itertools.pairwise([*WITHOUT_TEXTS, WITHOUT_TEXTS[0]])]
)
def test_vectors(first, second, tmp_path):
    turn(lines(tmp_path), tmp_path / "a", first)
    result = turn(tmp_path / "a", tmp_path / "b", second, allow_pickle=True)
    assert (result.format, result.count, result.unit) == (second, 9, "vectors")
    source = read_vector_blocks(str(tmp_path / "b"), allow_pickle=True)
    ((ids, vectors, _),) = source.blocks()
    assert ids == [f"d{i}" for i in range(9)]
    np.testing.assert_array_equal(vectors, VECTORS)


def test_texts_travel_with_vectors_where_both_formats_hold_them(tmp_path):
    turn(lines(tmp_path), tmp_path / "q", VectorFormat.PYSERINI_QUERIES)
    turn(tmp_path / "q", tmp_path / "a", VectorFormat.ANSERINI_JSONL, allow_pickle=True)
    assert '"docid":"d0","contents":"text 0"' in (tmp_path / "a").read_text()


def test_a_folder_of_vectors_has_blocks_and_keeps_what_made_it(tmp_path, monkeypatch):
    monkeypatch.setattr("denserk.io.vector_formats.ROWS", 4)
    turn(lines(tmp_path), tmp_path / "a", "npy")
    folder = open_vectors(tmp_path / "a")
    assert [len(block.ids) for block in folder.blocks()] == [4, 4, 1]
    assert folder.manifest.made_from == {"converted_from": str(tmp_path / "v.jsonl")}
    turn(tmp_path / "a", tmp_path / "b", "npy")
    assert (tmp_path / "b" / "block-00001.npy").read_bytes() == (
        tmp_path / "a" / "block-00001.npy"
    ).read_bytes()


def test_a_flat_index_as_vectors_keeps_the_model_and_not_the_settings_of_an_index(tmp_path):
    turn(lines(tmp_path), tmp_path / "a", "pyserini-faiss")
    model = {"name": "m", "fingerprint": "1"}
    made = Manifest(ManifestKind.INDEX, True, {"type": "flat"}, {"model": model}, {"count": 9})
    write_manifest(tmp_path / "a", made)
    turn(tmp_path / "a", tmp_path / "b", "npy")
    folder = open_vectors(tmp_path / "b")
    assert folder.manifest.made_from["model"] == model
    assert folder.manifest.settings == {}


def test_pickles_are_read_only_when_asked_for(tmp_path):
    turn(lines(tmp_path), tmp_path / "v.pkl")
    with pytest.raises(UsageError) as caught:
        turn(tmp_path / "v.pkl", tmp_path / "b", "jsonl")
    assert "--allow-pickle" in str(caught.value.hint)


def test_broken_vectors_leave_the_old_folder_alone(tmp_path):
    turn(lines(tmp_path), tmp_path / "a", "npy")
    (tmp_path / "empty.jsonl").write_text('{"id": "a", "vector": []}\n')
    with pytest.raises(DenserkError):
        turn(tmp_path / "empty.jsonl", tmp_path / "a", "npy", overwrite=True)
    assert open_vectors(tmp_path / "a").count == 9


def test_models_from_one_layout_to_another(tiny_agg, tmp_path):
    source = tiny_agg("bert")
    result = turn(source, tmp_path / "a", "aggretriever-authors")
    assert (result.kind, result.count) == (Kind.MODEL, 1)
    sizes = {"agg_dim": 20, "cls_dim": 6}
    settings = ConversionSettings(to_format="denserk")
    convert(str(tmp_path / "a"), str(tmp_path / "b"), settings, representation=sizes)
    name = "model.safetensors"
    assert (tmp_path / "b" / name).read_bytes() == (source / name).read_bytes()
    with pytest.raises(UsageError, match="is not empty"):
        turn(source, tmp_path / "a", "denserk")


@pytest.mark.parametrize(
    ("target", "settings", "message", "hint"),
    [
        ("out.jsonl", {}, "any of several formats of corpus", "one of anserini, beir, tevatron"),
        ("out", {"to_format": "trec"}, "--to trec: no such format", "one of anserini, beir"),
        ("corpus.jsonl", {}, "both source and target", "another target"),
    ],
)
def test_open_or_wrong_choices_are_answered_with_the_possible_ones(
    target, settings, message, hint, toy
):
    with pytest.raises(UsageError) as caught:
        convert(str(toy / "corpus.jsonl"), str(toy / target), ConversionSettings(**settings))
    assert message in caught.value.message
    assert hint in str(caught.value.hint)


def test_texts_are_converted_without_torch(toy, tmp_path):
    program = (
        "import sys\n"
        "from denserk.config.formats import ConversionSettings\n"
        "from denserk.conversion import convert\n"
        f"convert({str(toy / 'corpus.jsonl')!r}, {str(tmp_path / 'collection.tsv')!r}, "
        "ConversionSettings())\n"
        "assert not {'torch', 'transformers', 'faiss'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def filled(toy, lines="q1\td3\td1\nq2\td1\td4\n", corpus=True, queries=True):
    (toy / "triples.tsv").write_text(lines)
    return with_texts(
        str(toy / "triples.tsv"),
        None,
        str(toy / "corpus.jsonl") if corpus else None,
        str(toy / "queries.tsv") if queries else None,
    )


def test_ids_become_texts_and_titles(toy):
    first, second = filled(toy)
    assert first == TrainingExample(
        "q1",
        "cat in a house",
        (Candidate("d3", "the cat sleeps in the house"),),
        (Candidate("d1", "the old river runs to the south", "River"),),
    )
    assert second.query == "river boat"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("q1\td3\tx1\nq1\td3\tx2\n", "no passages with 2 of the ids"),
        ("q9\td3\td1\n", "(q9); expected all its queries"),
    ],
)
def test_ids_that_the_collection_lacks_are_named(lines, message, toy):
    with pytest.raises(InputError) as caught:
        list(filled(toy, lines))
    assert message in str(caught.value)


def test_a_stream_cannot_be_read_twice(toy):
    with pytest.raises(UsageError, match="twice"):
        list(with_texts("-", None, str(toy / "corpus.jsonl"), None))


def test_texts_that_are_there_stay(toy):
    line = '{"query_id":"q1","query":"own","positive_passages":[{"docid":"d3","text":"own text"}]}'
    (example,) = filled(toy, line + "\n")
    assert (example.query, example.positives[0].text) == ("own", "own text")
