"""Every shape of training data, prepared; and what is refused or left out on the way."""

import gzip
from itertools import chain

import numpy as np
import orjson
import pytest

from denserk.data import example_columns, referenced_texts, training_preparation
from denserk.data.training_examples import prepare
from denserk.data.training_preparation import line_of
from denserk.errors import InputError
from denserk.formats.sources import read_passages, read_qrels_map, read_queries
from denserk.formats.training import read_training
from denserk.records import Passage, Query
from tests.conftest import PASSAGES, QUERIES
from tests.data.conftest import inline, words
from tests.reporters import Heard


def texts(store, tokenizer):
    """What a store holds, by decoding nothing: {qid: (query's ids, positives', negatives')}."""

    def ids(rows):
        return [store.passages[row].tolist() for row in rows]

    return {
        store.qid(item): (
            store.queries[store.query_rows[item]].tolist(),
            ids(store.positives(item)),
            ids(store.negatives(item)),
        )
        for item in range(len(store))
    }


def expected(examples, tokenizer, passages=None, queries=None):
    """The same from records, one text at a time; bare ids are looked up."""

    def ids(candidates):
        found = [
            (passages or {}).get(c.docid) or Passage(c.docid, c.text, c.title) for c in candidates
        ]
        return [tokenizer.passages([passage])[0] for passage in found]

    return {
        e.qid: (
            tokenizer.queries([Query(e.qid, e.query or (queries or {})[e.qid])])[0],
            ids(e.positives),
            ids(e.negatives),
        )
        for e in examples
        if e.positives
    }


def ids_of(query, positives, negatives):
    """A query in Tevatron's shape by id."""
    return {
        "query_id": query,
        "query_text": QUERIES[query],
        "positive_document_ids": positives,
        "negative_document_ids": negatives,
    }


@pytest.fixture(autouse=True, params=[4096, 3])
def blocks(request, monkeypatch):
    """Blocks that hold everything, and blocks of three."""
    monkeypatch.setattr(example_columns, "BLOCK", request.param)
    monkeypatch.setattr(training_preparation, "BLOCK", request.param)
    monkeypatch.setattr(referenced_texts, "BLOCK", request.param)


@pytest.fixture
def made(tmp_path, tokenizer):
    """`made(*files, ...)`: prepares them in the test's folder."""

    def call(*files, **options):
        return prepare(files, tmp_path / "prepared", tokenizer, tokenizer, **options)

    return call


def test_files_follow_each_other(write, made, tokenizer):
    first = write([inline(query, 1 + query % 2, query % 4) for query in range(5)])
    second = write([inline(query, 2, 2) for query in range(5, 9)], "more.jsonl")
    store = made(first, second)
    examples = [*read_training(first), *read_training(second)]
    assert texts(store, tokenizer) == expected(examples, tokenizer)
    assert [store.qid(item) for item in range(len(store))] == [f"q{n}" for n in range(9)]
    assert list(store.negative_counts()) == [0, 1, 2, 3, 0, 2, 2, 2, 2]


def test_ids_find_their_texts(write, made, toy, tokenizer):
    corpus, queries = str(toy / "corpus.jsonl"), str(toy / "queries.tsv")
    by_id = [ids_of("q1", ["d3"], ["d1", "d10", "d2"]), ids_of("q2", ["d1", "d5"], ["d3"])]
    triples = toy / "triples.tsv"
    triples.write_text("q3\td4\td1\nq3\td4\td2\nq1\td3\td5\n")
    mixed = write([inline(0, 1, 2)], "inline.jsonl")
    files = write(by_id), str(triples), mixed
    store = made(*files, corpus=corpus, queries=queries)
    examples = [example for file in files for example in read_training(file)]
    passages = {docid: Passage(docid, text, title) for docid, (title, text) in PASSAGES.items()}
    wanted = expected(examples, tokenizer, passages, QUERIES)
    wanted["q1"] = wanted.pop("q1")  # of the triples, which come last
    found = texts(store, tokenizer)
    assert found == wanted
    assert len(store) == 5
    # each passage of the corpus once, and those that stand inline
    assert len(store.passages) == len({"d1", "d2", "d3", "d4", "d5", "d10"}) + 3


def test_judgements_are_the_positives_of_a_list_of_negatives(made, toy, tokenizer):
    negatives = toy / "negatives.tsv"
    negatives.write_text("q1\td1,d2\nq2\td3\nq9\td3\n")
    heard = Heard()
    store = made(
        str(negatives),
        corpus=str(toy / "corpus.jsonl"),
        queries=str(toy / "queries.tsv"),
        qrels=str(toy / "qrels.txt"),
    )
    assert [store.qid(item) for item in range(len(store))] == ["q1", "q2"]
    assert list(store.positive_counts) == [1, 2]
    assert heard.warnings == ["queries without a positive are left out: 1"]


def test_genuine_samples(shared_data, made, tokenizer):
    names = "dpr-nq-dev.json.gz", "pos-neg-nq.jsonl.gz", "pos-neg-msmarco.jsonl.gz"
    files = [str(shared_data / "format-samples" / name) for name in names]
    store = made(*files)
    examples = [example for file in files for example in read_training(file)]
    assert len(store) == len(examples) == 25
    for item, example in enumerate(examples):
        alone = expected([example], tokenizer)[example.qid]
        assert store.queries[store.query_rows[item]].tolist() == alone[0]
        assert [store.passages[row].tolist() for row in store.positives(item)] == alone[1]
        assert [store.passages[row].tolist() for row in store.negatives(item)] == alone[2]
        scores = [c.score for c in (*example.positives, *example.negatives)]
        start = store.candidates.ends[item]
        found = store.scores[start : start + len(scores)]
        np.testing.assert_array_equal(found, np.array(scores, dtype=np.float32))


@pytest.mark.slow
def test_a_genuine_collection_by_id(shared_data, write, made, tokenizer, blocks, request):
    if request.node.callspec.params["blocks"] == 3:
        pytest.skip("one size of blocks is enough here")
    folder = shared_data / "nq-qed"
    corpus, topics = str(folder / "corpus.jsonl.gz"), str(folder / "queries.jsonl.gz")
    qrels = read_qrels_map(str(folder / "qrels" / "train.tsv"))
    queries = {query.qid: query for query in read_queries(topics)}
    docids = [passage.docid for passage in read_passages(corpus)]
    named = {
        qid: (list(judged), [docids[(number * 31 + n * 17) % len(docids)] for n in range(5)])
        for number, (qid, judged) in enumerate(qrels.items())
    }
    examples = [
        {
            "query_id": qid,
            "query_text": queries[qid].text,
            "positive_document_ids": positives,
            "negative_document_ids": negatives,
        }
        for qid, (positives, negatives) in named.items()
    ]
    store = made(write(examples), corpus=corpus)
    assert len(store) == len(qrels) == 7167
    assert len(store.passages) == len({d for lists in named.values() for d in chain(*lists)})
    passages = {passage.docid: passage for passage in read_passages(corpus)}
    for item in range(0, len(store), 700):
        positives, negatives = named[store.qid(item)]
        texts = [passages[docid] for docid in positives + negatives]
        stored = [store.passages[row].tolist() for row in store.candidates[item]]
        assert stored == tokenizer.passages(texts)


def test_random_negatives_stand_in_for_hard_ones(write, made, tokenizer):
    context = {"title": "bank", "text": "money", "passage_id": "7"}
    other = {"title": "", "text": "the moon", "passage_id": "8"}
    lists = {"positive_ctxs": [context], "negative_ctxs": [other], "hard_negative_ctxs": []}
    heard = Heard()
    store = made(write([{"question": "river", "answers": [], **lists}]))
    [(_, _, negatives)] = texts(store, tokenizer).values()
    assert negatives == tokenizer.passages([Passage("8", "the moon")])
    assert heard.warnings == ["queries without a hard negative use their random ones: 1"]


def test_queries_without_positives_are_left_out_and_counted(write, made):
    heard = Heard()
    store = made(write([inline(0, 0, 3), inline(1, 1, 0), inline(2, 1, 3)]))
    assert [store.qid(item) for item in range(len(store))] == ["q1", "q2"]
    assert heard.warnings == ["queries without a positive are left out: 1"]
    assert store.contents["without_negatives"] == 1


def test_a_passage_that_the_corpus_lacks_is_named(write, made, toy):
    lines = [ids_of("q1", ["d3"], ["d1"]), ids_of("q2", ["d1"], ["d5", "nowhere"])]
    with pytest.raises(InputError, match=r"found the id nowhere of query q2, which .*") as error:
        made(write(lines), corpus=str(toy / "corpus.jsonl"))
    assert error.value.line == 2
    assert str(error.value.path).endswith("train.jsonl")
    assert "--skip-missing" in (error.value.hint or "")


def test_a_query_that_the_queries_lack_is_named(made, toy):
    triples = toy / "triples.tsv"
    triples.write_text("q3\td4\td1\nq7\td4\td2\n")
    with pytest.raises(InputError, match=r"triples.tsv, line 2: found the id q7, which") as error:
        made(str(triples), corpus=str(toy / "corpus.jsonl"), queries=str(toy / "queries.tsv"))
    assert error.value.line == 2


def test_missing_ids_are_counted_when_asked(write, made, toy):
    lines = [
        ids_of("q1", ["d3", "lost"], ["d1", "gone"]),
        ids_of("q2", ["lost"], ["d5"]),
        {**ids_of("q3", ["d4"], ["gone"]), "query_text": "moon"},
        {**ids_of("q1", ["d4"], ["d1"]), "query_id": "q8", "query_text": ""},
    ]
    heard = Heard()
    store = made(
        write(lines),
        corpus=str(toy / "corpus.jsonl"),
        queries=str(toy / "queries.tsv"),
        skip_missing=True,
    )
    assert [store.qid(item) for item in range(len(store))] == ["q1", "q3"]
    assert list(store.positive_counts) == [1, 1]
    assert list(store.negative_counts()) == [1, 0]
    assert heard.warnings == [
        "queries without a positive are left out: 1",
        "passages that the corpus lacks are left out: 4",
        "queries without a text are left out: 1",
    ]


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        (ids_of("q1", ["d3"], []), "line 1: found passage d3 without its text", "--corpus"),
        ({**inline(4, 1, 1), "query": ""}, "line 1: found query q4 without its text", "--queries"),
        ({**inline(0, 1, 1), "query": 5}, "line 1: found int as query", None),
        (inline(4, 0, 1), "found no query with a positive", None),
    ],
)
def test_what_cannot_be_prepared(write, made, tmp_path, line, message, hint):
    with pytest.raises(InputError, match=message) as error:
        made(write([line]))
    assert (hint or "") in (error.value.hint or "")
    assert [path.name for path in tmp_path.iterdir()] == ["train.jsonl"]


@pytest.mark.parametrize("score", ["NaN", "1e999", "1e39", '"NaN"'])
def test_scores_are_numbers_in_float32(tmp_path, made, score):
    good = orjson.dumps(inline(0, 1, 1, scored=True)).decode()
    bad = good.replace('"score":0.0}', f'"score":{score}}}')
    (tmp_path / "train.jsonl").write_text(f"{good}\n{bad.replace('q0', 'q1')}\n")
    with pytest.raises(InputError, match="line 2: found"):
        made(str(tmp_path / "train.jsonl"))


@pytest.mark.parametrize("form", [None, "tevatron"])
def test_an_empty_file_is_refused(write, made, form):
    with pytest.raises(InputError, match=r"empty.jsonl: found (nothing|no training examples)"):
        made(write([inline(0, 1, 1)]), write([], "empty.jsonl"), form=form)


def test_a_broken_line_is_named(write, made, tmp_path):
    path = write([inline(query, 1, 1) for query in range(4)])
    lines = (tmp_path / "train.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "train.jsonl").write_bytes(b"".join([*lines[:2], lines[2][:30] + b"\n", lines[3]]))
    with pytest.raises(InputError, match=r"train.jsonl, line 3: found a line that is not JSON"):
        made(path)


def test_a_missing_score_is_named(write, made):
    lines = [inline(0, 1, 1, scored=True), inline(1, 1, 2, scored=True)]
    del lines[1]["negative_passages"][1]["score"]
    expected = "line 2: found no teacher's score of passage d1-2 for query q1"
    with pytest.raises(InputError, match=expected) as error:
        made(write(lines), require_scores=True)
    assert "--teacher" in (error.value.hint or "")


@pytest.mark.parametrize(
    ("wanted", "line"),
    [(("q1", "d3"), 2), (("d1",), 1), (("q1", "d9"), None), (("d",), None)],
)
@pytest.mark.parametrize("packed", [False, True])
def test_lines_are_found_by_whole_words(tmp_path, wanted, line, packed):
    text = b'{"query_id": "q10", "ids": ["d1","d3"]}\nq1\td2,d3,d4\n'
    path = tmp_path / ("lines.gz" if packed else "lines")
    path.write_bytes(gzip.compress(text) if packed else text)
    assert line_of(str(path), *wanted) == line


def test_a_stream_has_no_lines_to_look_up():
    assert line_of("-", "q1") is None


def test_the_fixture_makes_texts_of_their_own():
    assert len({words(number, 5) for number in range(2000)}) == 2000
