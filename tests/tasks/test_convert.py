import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from denserk.commands.app import run
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


def convert_file(source, target, to_format=None, **settings):
    conversion = ConversionSettings(to_format=to_format, **settings)
    return convert(str(source), str(target), conversion)


def test_a_corpus_with_its_generated_queries(toy, tmp_path):
    write_expansions(tmp_path / "e", [Expansion("d2", ("who?", "where?"), ("no",))])
    convert_file(toy / "corpus.jsonl", tmp_path / "c.jsonl", "beir", expansions=str(tmp_path / "e"))
    expected = {docid: text for docid, (_, text) in PASSAGES.items()}
    expected["d2"] += " who? where?"
    passages = read_passages(str(tmp_path / "c.jsonl"))
    assert {passage.docid: passage.text for passage in passages} == expected


def test_options_of_another_kind(toy, tmp_path):
    with pytest.raises(UsageError, match="--expansions, --average: not used by queries"):
        convert_file(
            toy / "queries.tsv", tmp_path / "q", kind=Kind.QUERIES, expansions="e", average=("m",)
        )


DOCUMENTS = {
    "a": "The river runs south. A boat is\non  the river.",
    "b": "The cat sleeps. The moon rises in the night. The star falls.",
    "empty": " ",
}


@pytest.fixture
def documents(tmp_path):
    records = [
        {"_id": docid, "title": docid.upper(), "text": text, "url": docid}
        for docid, text in DOCUMENTS.items()
    ]
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
    result = convert_file(documents, target, **settings)
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
    records = [{"_id": docid, "text": "a b"} for docid in ("d1", "d#2")]
    source = jsonl(tmp_path / "corpus.jsonl", records)
    with pytest.raises(InputError, match="the document id 'd#2'") as caught:
        convert_file(source, tmp_path / "passages.jsonl", split_words=1)
    assert "--set max-passage-delimiter" in str(caught.value.hint)
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.jsonl"]


def test_words_without_spaces_between_are_warned_of(tmp_path, caplog):
    text = "川は南に流れる。" * 5
    source = jsonl(tmp_path / "corpus.jsonl", [{"_id": "d", "text": text}])
    convert_file(source, tmp_path / "words.jsonl", "beir", split_words=2)
    (warning,) = warnings_of(caplog)
    assert "words of 40 characters on average" in warning
    assert "--split-sentences" in warning
    caplog.clear()
    assert convert_file(source, tmp_path / "passages.jsonl", split_sentences=2).count == 3
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


@pytest.mark.parametrize("target", ["passages.jsonl", "chunks9.jsonl", "mails.jsonl", "a.tsv"])
@pytest.mark.parametrize("options", ["", "--split-words 200"])
def test_a_folder_of_texts_is_converted_under_any_name(target, options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("docs").mkdir()
    Path("docs/a.txt").write_text("The moon rises.\n")
    Path("docs/b.docx").write_text("PK\x03\x04")
    assert run(["convert", "docs", target, *options.split()]) == 0
    assert [passage.text for passage in read_passages(target)] == ["The moon rises."]


def test_options_of_a_corpus_decide_what_a_source_is(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("unknown").write_text('{"a": "The moon rises over the hills in the evening."}\n')
    assert run(["convert", "unknown", "c.jsonl"]) == 2
    assert "--kind corpus --to beir" in capsys.readouterr().err
    split = ["--split-words", "200"]
    assert run(["convert", "unknown", "c.jsonl", *split]) == 0
    Path("qrels.txt").write_text("q1 0 d1 1\n")
    assert run(["convert", "qrels.txt", "d.jsonl", *split]) == 2
    assert "--split-words: not used by qrels" in capsys.readouterr().err


@pytest.mark.parametrize("target", ["train.jsonl", "queries.tsv", "out", "-"])
def test_a_target_that_leaves_the_format_of_a_corpus_open(target, toy, capsys):
    assert run(["convert", str(toy / "corpus.jsonl"), target, "--kind", "corpus"]) == 2
    assert "--kind corpus --to beir" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "kind", "source_format"),
    [
        ("corpus.jsonl", Kind.CORPUS, "tevatron"),
        ("queries.tsv", Kind.QUERIES, "tsv"),
        ("qrels.txt", Kind.QRELS, "trec"),
    ],
)
def test_every_format_of_a_collection_gives_the_same_records(
    source, kind, source_format, toy, tmp_path
):
    converted = tmp_path / "converted"
    restored = tmp_path / "restored.tsv"
    expected = convert_file(toy / source, tmp_path / "expected", source_format, kind=kind)
    for file_format in CONVERSIONS[kind].formats:
        convert_file(toy / source, converted, file_format, kind=kind)
        result = convert_file(
            converted, restored, source_format, from_format=file_format, kind=kind
        )
        assert result == expected
        if file_format not in ("anserini", "marco", "dpr"):  # which keep less
            assert restored.read_text() == (tmp_path / "expected").read_text()


@pytest.mark.parametrize("run_format", RunFormat)
def test_runs_keep_their_order_and_break_ties_by_id(run_format, tmp_path):
    (tmp_path / "a.trec").write_text(
        "q2 Q0 d9 1 2.5 t\nq2 Q0 d2 2 3.5 t\nq2 Q0 d10 3 2.5 t\nq1 Q0 d1 1 0.25 t\n"
    )
    convert_file(tmp_path / "a.trec", tmp_path / "b", run_format)
    docids = [(hits.qid, list(hits.docids)) for hits in read_run(tmp_path / "b")]
    assert docids == [("q2", ["d2", "d9", "d10"]), ("q1", ["d1"])]


@pytest.fixture
def with_texts(toy, tmp_path):
    """`with_texts(lines)`: training examples by id, converted with the texts of the collection."""

    def examples(lines, to_format="tevatron"):
        (toy / "train.tsv").write_text(lines)
        convert_file(
            toy / "train.tsv",
            tmp_path / "t",
            to_format,
            kind=Kind.TRAINING,
            corpus=str(toy / "corpus.jsonl"),
            queries=str(toy / "queries.tsv"),
        )
        return list(read_training(tmp_path / "t"))

    return examples


@pytest.mark.parametrize("to_format", WRITTEN)
def test_training_by_id_gets_the_texts_of_the_collection(to_format, with_texts):
    example, other_example = with_texts("q1\td3\td1\nq1\td3\td2\nq2\td1\td4\n", to_format)
    assert len(example.negatives) == 2
    assert len(other_example.negatives) == 1
    for candidate, docid in zip(example.negatives, ("d1", "d2"), strict=True):
        title, text = PASSAGES[docid]
        if candidate.text:
            assert candidate.text == text
        else:  # a format of ids alone
            assert candidate.docid == docid
        if to_format is TrainingFormat.TEVATRON:
            assert candidate == Candidate(docid, text, title)
    if to_format is TrainingFormat.TEVATRON:
        assert example.query == QUERIES["q1"]


def test_ids_that_the_collection_lacks_are_named(with_texts):
    with pytest.raises(InputError, match="no passages with 2 of the ids"):
        with_texts("q1\td3\tx1\nq1\td3\tx2\n")
    with pytest.raises(InputError, match=r"\('q9'\); expected all its queries"):
        with_texts("q9\td3\td1\n")


def test_texts_that_are_there_stay(with_texts):
    passage = {"docid": "d3", "text": "own text"}
    record = {"query_id": "q1", "query": "own", "positive_passages": [passage]}
    (example,) = with_texts(json.dumps(record) + "\n")
    assert example.query == "own"
    assert example.positives[0].text == "own text"


def test_training_data_from_a_stream_cannot_be_read_twice():
    with pytest.raises(UsageError, match="twice"):
        convert_file("-", "t", "flag", kind=Kind.TRAINING, corpus="c")


VECTORS = np.random.default_rng(3).standard_normal((9, 4)).astype(np.float32)


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    records = [
        {"id": f"d{number}", "contents": "text", "vector": vector}
        for number, vector in enumerate(VECTORS.tolist())
    ]
    return Path(jsonl(tmp_path / "v.jsonl", records))


def test_a_folder_of_vectors_has_blocks_and_keeps_what_made_it(vectors, tmp_path, monkeypatch):
    monkeypatch.setattr("denserk.io.vector_formats.ROWS", 4)
    convert_file(vectors, tmp_path / "a", "npy")
    folder = open_vectors(tmp_path / "a")
    assert [len(block.ids) for block in folder.blocks()] == [4, 4, 1]
    assert folder.manifest.made_from == {"converted_from": str(tmp_path / "v.jsonl")}
    convert_file(tmp_path / "a", tmp_path / "b", "npy")
    block = tmp_path / "a" / "block-00001.npy"
    assert (tmp_path / "b" / block.name).read_bytes() == block.read_bytes()


def test_a_flat_index_as_vectors_keeps_the_model_and_not_its_settings(vectors, tmp_path):
    convert_file(vectors, tmp_path / "a", "pyserini-faiss")
    model = {"name": "m", "fingerprint": "1"}
    index = Manifest(ManifestKind.INDEX, True, {"type": "flat"}, {"model": model}, {"count": 9})
    write_manifest(tmp_path / "a", index)
    convert_file(tmp_path / "a", tmp_path / "b", "npy")
    manifest = open_vectors(tmp_path / "b").manifest
    assert manifest.made_from["model"] == model
    assert manifest.settings == {}


@pytest.fixture
def three_models(tiny_agg):
    """Models of the same settings; the third has its weights in a file that an index names."""
    folders = [tiny_agg("bert") for _ in range(3)]
    tensors = load_file(folders[0] / WEIGHTS_FILE)
    for number, folder in enumerate(folders):
        shifted = {name: tensor + tensor.mean() * number for name, tensor in tensors.items()}
        save_file(shifted, folder / WEIGHTS_FILE)
    third = folders[2]
    (third / WEIGHTS_FILE).rename(third / "part.safetensors")
    index = {"weight_map": dict.fromkeys(tensors, "part.safetensors")}
    (third / f"{WEIGHTS_FILE}.index.json").write_text(json.dumps(index))
    return folders


def test_the_mean_of_models_that_are_alike(three_models, tmp_path):
    first, second, third = three_models
    convert_file(first, tmp_path / "soup", "denserk", average=(str(second), str(third)))
    soup = load_file(tmp_path / "soup" / WEIGHTS_FILE)
    weights = [read_weights(folder) for folder in three_models]
    for name, tensor in soup.items():
        torch.testing.assert_close(tensor, sum(tensors[name] for tensors in weights) / 3)
    decoder = soup["cls.predictions.decoder.weight"]
    assert decoder.equal(soup["bert.embeddings.word_embeddings.weight"])
    settings = json.loads((tmp_path / "soup" / "denserk.json").read_text())
    assert settings["average_of"] == {
        str(folder): read_model_folder(folder).fingerprint() for folder in three_models
    }


def test_models_that_differ_have_no_mean(tiny_agg, tmp_path):
    model = tiny_agg("bert")
    smaller = str(tiny_agg("bert", agg_dim=16))
    distilbert = str(tiny_agg("distilbert"))
    with pytest.raises(ModelError, match=r"representation.agg_dim was 20, now 16"):
        convert_file(model, tmp_path / "no", "denserk", average=(smaller,))
    with pytest.raises(ModelError, match=r"config.model_type was 'bert', now 'distilbert'"):
        convert_file(model, tmp_path / "no", "denserk", average=(distilbert,))
