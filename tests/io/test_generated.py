import json

import pytest

from denserk.config.encoding import ModelOptions
from denserk.config.formats import ConversionSettings, Kind
from denserk.errors import InputError, UsageError
from denserk.io.generated import generated_examples, generated_qrels, generated_topics
from denserk.io.qrels import read_qrels
from denserk.io.topics import read_queries
from denserk.io.training import read_training
from denserk.records import Candidate, Passage, Qrel, Query
from denserk.tasks.convert import convert
from tests.support.training_examples import jsonl

PASSAGES = [
    Passage("d1", "The river runs. A boat is on it.", "River"),
    Passage("d2", "The moon rises.", "Moon"),
    Passage("d-3", "The cat sleeps.", "Cat"),
]
RECORDS = [
    {
        "docid": "d1",
        "queries": ["River", "A boat is on it.", "where is a boat?"],
        "next": [],
        "sources": ["title", "cloze", "model"],
        "positives": [None, "The river runs.", None],
    },
    {"docid": "d-3", "queries": ["who sleeps?", "who sleeps?", "what does\ta cat do?"]},
]
POSITIVES = {
    "d1-0": Candidate("d1", "The river runs. A boat is on it."),
    "d1-1": Candidate("d1", "The river runs.", "River"),
    "d1-2": Candidate("d1", "The river runs. A boat is on it.", "River"),
    "d-3-0": Candidate("d-3", "The cat sleeps.", "Cat"),
    "d-3-2": Candidate("d-3", "The cat sleeps.", "Cat"),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    jsonl(tmp_path / "generated.jsonl", RECORDS)
    records = [
        {"_id": passage.docid, "title": passage.title, "text": passage.text} for passage in PASSAGES
    ]
    jsonl(tmp_path / "corpus.jsonl", records)
    return tmp_path


def convert_generated(target, **settings):
    return convert("generated.jsonl", target, ConversionSettings(**settings))


def positives_by_query(path):
    """Read training data whose examples have one positive each."""
    positives = {}
    for example in read_training(path):
        (positives[example.qid],) = example.positives
    return positives


def test_topics_qrels_and_examples_have_the_same_ids(folder):
    queries = list(generated_topics("generated.jsonl"))
    assert queries[0] == Query("d1-0", "River")
    assert [query.qid for query in queries] == list(POSITIVES)
    qrels = list(generated_qrels("generated.jsonl"))
    assert qrels[-1] == Qrel("d-3-2", "d-3", 1)
    assert [qrel.qid for qrel in qrels] == list(POSITIVES)
    examples = list(generated_examples("generated.jsonl", PASSAGES))
    assert [example.qid for example in examples] == list(POSITIVES)
    assert [example.query for example in examples] == [query.text for query in queries]
    assert [example.positives for example in examples] == [
        (positive,) for positive in POSITIVES.values()
    ]
    examples_of_ids = list(generated_examples("generated.jsonl", None))
    assert [example.positives for example in examples_of_ids] == [
        (Candidate(positive.docid),) for positive in POSITIVES.values()
    ]


@pytest.mark.parametrize(
    ("target", "kind", "target_format"),
    [
        ("queries.tsv", Kind.QUERIES, "tsv"),
        ("topics.txt", Kind.QUERIES, "tsv"),
        ("queries.jsonl", Kind.QUERIES, "beir"),
        ("qrels.txt", Kind.QRELS, "trec"),
        ("qrels/train-1.jsonl.gz", Kind.TRAINING, "tevatron"),
        ("train.jsonl", Kind.TRAINING, "tevatron"),
        ("train.json", Kind.TRAINING, "dpr"),
    ],
)
def test_the_name_of_the_target_says_what_is_written(target, kind, target_format, folder):
    (folder / "qrels").mkdir()
    settings = {"corpus": "corpus.jsonl"} if kind is Kind.TRAINING else {}
    result = convert_generated(target, **settings)
    assert result.kind is kind
    assert result.format == target_format
    assert result.count == len(POSITIVES)


@pytest.mark.parametrize("target", ["train-qrels.tsv", "out.jsonl", "run.trec", "-"])
def test_a_target_whose_name_tells_no_kind_is_rejected(target, folder):
    with pytest.raises(UsageError, match="generated queries"):
        convert_generated(target)


@pytest.mark.parametrize(
    ("target", "settings"),
    [("my-queries.jsonl", {}), ("qrels/train.tsv", {"corpus": "corpus.jsonl"})],
)
def test_a_target_whose_name_tells_no_format_is_rejected(target, settings, folder):
    with pytest.raises(UsageError, match="could be any"):
        convert_generated(target, **settings)


def test_what_is_written_is_read(folder):
    convert_generated("queries.tsv")
    texts = {query.qid: query.text for query in read_queries("queries.tsv")}
    assert texts["d-3-2"] == "what does a cat do?"
    convert_generated("out.txt", target_kind=Kind.QRELS)
    assert [qrel.qid for qrel in read_qrels("out.txt")] == list(texts)
    convert_generated("train.jsonl", corpus="corpus.jsonl")
    assert positives_by_query("train.jsonl") == POSITIVES
    convert_generated("ids.jsonl", target_kind=Kind.TRAINING, to_format="tevatron-ids")
    assert [example.qid for example in read_training("ids.jsonl")] == list(texts)


def test_training_texts_need_the_corpus_of_the_queries(folder):
    with pytest.raises(UsageError, match="texts of passages") as caught:
        convert_generated("train.jsonl")
    assert caught.value.hint == "add --corpus"
    jsonl(folder / "other.jsonl", [{"_id": "d1", "title": "", "text": "a"}])
    with pytest.raises(InputError, match="expansion of d-3, which the corpus does not have"):
        convert_generated("train.jsonl", corpus="other.jsonl")
    assert not (folder / "train.jsonl").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"from_format": "beir"}, "--from: not used by generated"),
        ({"queries": "q.tsv"}, "--queries: not used by generated"),
        ({"to_format": "trec"}, "--to trec: no such format"),
        ({"teacher": "t"}, "--teacher: not used by generated"),
        ({"target_kind": Kind.CORPUS}, "do not become corpus"),
    ],
)
def test_options_that_do_not_fit(settings, message, folder):
    with pytest.raises(UsageError, match=message):
        convert_generated("queries.tsv", **settings)


def test_a_target_kind_is_of_generated_queries_alone(toy):
    settings = ConversionSettings(target_kind=Kind.QRELS)
    with pytest.raises(UsageError, match="target-kind: not used by corpus"):
        convert(str(toy / "corpus.jsonl"), "corpus.tsv", settings)


@pytest.mark.parametrize(
    ("read", "target"),
    [
        (read_training, "train.jsonl --corpus CORPUS"),
        (read_queries, "generated-queries.tsv"),
        (read_qrels, "generated-qrels.txt"),
    ],
)
def test_generated_queries_are_converted_first(read, target, folder):
    with pytest.raises(InputError, match="queries of `denserk generate`") as caught:
        list(read("generated.jsonl"))
    assert caught.value.hint == f"convert them: denserk convert generated.jsonl {target}"


@pytest.mark.parametrize("target", ["train.tsv", "triples.csv", "train.txt"])
def test_training_data_under_a_name_of_columns_needs_a_format(target, folder):
    with pytest.raises(UsageError, match="could be any of several formats of training"):
        convert_generated(target, target_kind=Kind.TRAINING, corpus="corpus.jsonl")


def test_titles_within_contents(folder):
    records = [
        {"id": passage.docid, "contents": f"{passage.title}\n{passage.text}"}
        for passage in PASSAGES
    ]
    jsonl(folder / "anserini.jsonl", records)
    options = ModelOptions(text={"fields": ("title", "text")})
    settings = ConversionSettings(corpus="anserini.jsonl")
    convert("generated.jsonl", "train.jsonl", settings, options)
    assert positives_by_query("train.jsonl") == POSITIVES


FULL = {"docid": "d1", "queries": ["a b"], "next": [], "sources": ["cloze"], "positives": ["c"]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"docid": None}, "generated queries without `docid`"),
        ({"queries": "a b"}, "found a string as queries"),
        ({"queries": [1]}, "found a number in queries"),
        ({"queries": [" "]}, "a query without text"),
        ({"queries": ["a", "b"]}, "1 sources for 2 queries"),
        ({"sources": ["cloze", "cloze"]}, "2 sources for 1 queries"),
        ({"sources": ["song"]}, "the source song; expected one of title"),
        ({"positives": ["c", "d"]}, "2 positives for 1 queries"),
        ({"positives": [3]}, "a number in positives"),
    ],
)
def test_a_mangled_record_is_named_by_its_line(change, message, folder):
    lines = [json.dumps(FULL), json.dumps({**FULL, **change})]
    (folder / "generated.jsonl").write_text("\n".join(lines))
    with pytest.raises(InputError, match=message) as caught:
        convert_generated("queries.tsv")
    assert "generated.jsonl, line 2" in str(caught.value)
    assert not (folder / "queries.tsv").exists()


def test_a_line_that_is_cut_is_named(folder):
    path = folder / "generated.jsonl"
    path.write_text(path.read_text()[:-10])
    with pytest.raises(InputError, match="line 2: found a line that is not JSON"):
        convert_generated("queries.tsv")
