"""What the Python functions take: each object is its texts, vectors or scores, or an error."""

import numpy as np
import pytest

import denserk
from denserk.errors import DenserkError, MismatchError, UsageError
from tests.support.toy import PASSAGES, QRELS, QUERIES

pd = pytest.importorskip("pandas")
TEXTS = list(QUERIES.values())
BODIES = [text for _, text in PASSAGES.values()]
RECORDS = [
    {"docid": docid, "title": title, "text": text} for docid, (title, text) in PASSAGES.items()
]
WRONG = {
    "none": [None],
    "bytes": b"moon",
    "a list of bytes": [b"moon"],
    "a set": {"moon", "sun"},
    "a number": 7,
    "nothing": None,
    "numbers": [1.5, 2.5],
    "an array of numbers": np.ones((2, 3)),
    "a dict of numbers": {"q1": 1.0},
    "a dict of lists": {"q1": ["moon"]},
    "records of other keys": [{"name": "moon"}],
    "a frame of other columns": pd.DataFrame({"name": ["moon"], "year": [1969]}),
    "a missing text": pd.DataFrame({"id": ["a", "b"], "text": ["moon", None]}),
    "pairs": [("q1", "moon")],
}


@pytest.fixture(scope="module")
def model(tiny):
    return denserk.Encoder.load(tiny(), representation="mean", device="cpu")


def queries_in_every_form():
    yield "list", TEXTS
    yield "tuple", tuple(TEXTS)
    yield "dict", QUERIES
    yield "records", [{"qid": qid, "query": text} for qid, text in QUERIES.items()]
    yield "records of BEIR", [{"_id": qid, "text": text} for qid, text in QUERIES.items()]
    yield "dict of records", {qid: {"text": text} for qid, text in QUERIES.items()}
    yield "frame", pd.DataFrame({"qid": list(QUERIES), "query": TEXTS})
    yield "series", pd.Series(QUERIES)
    yield "array", np.array(TEXTS)
    yield "array of objects", np.array(TEXTS, dtype=object)


@pytest.mark.parametrize(("name", "queries"), list(queries_in_every_form()))
def test_queries_are_their_texts_in_every_form(model, name, queries):
    expected = model.encode_queries(TEXTS)
    np.testing.assert_allclose(model.encode_queries(queries), expected, atol=1e-6)
    vectors = model.encode_passages(RECORDS)
    run = denserk.Index.build(vectors, ids=list(PASSAGES)).search(queries, model=model, hits=3)
    has_no_ids = name in ("list", "tuple", "array", "array of objects")
    assert list(run) == (["0", "1", "2"] if has_no_ids else list(QUERIES))
    best_rows = np.argmax(expected @ vectors.T, axis=1)
    best_docids = np.array(list(PASSAGES))[best_rows].tolist()
    assert [next(iter(hits)) for hits in run.values()] == best_docids


def passages_in_every_form():
    yield "records", RECORDS
    yield "records of BEIR", [{**record, "_id": record["docid"]} for record in RECORDS]
    yield (
        "dict of records",
        {docid: {"title": title, "text": text} for docid, (title, text) in PASSAGES.items()},
    )
    yield "frame", pd.DataFrame(RECORDS)
    yield "mixed", [RECORDS[0], *RECORDS[1:]]
    yield "generator", (record for record in RECORDS)


@pytest.mark.parametrize(("name", "passages"), list(passages_in_every_form()))
def test_passages_are_their_texts_in_every_form(model, name, passages):
    texts = [f"{title} {text}".strip() for title, text in PASSAGES.values()]
    expected = model.encode_passages(texts)
    np.testing.assert_allclose(model.encode_passages(passages), expected, atol=1e-6)


def test_a_corpus_in_every_form():
    pytest.importorskip("bm25s")
    expected = bm25_run(RECORDS)
    for _, passages in passages_in_every_form():
        assert bm25_run(passages) == expected
    texts = {docid: f"{title} {text}" for docid, (title, text) in PASSAGES.items()}
    run_by_texts = bm25_run(texts)
    assert bm25_run(pd.Series(texts)) == run_by_texts
    for qid, hits in run_by_texts.items():
        assert list(hits) == list(expected[qid])


def bm25_run(corpus, **options):
    return denserk.BM25.build(corpus, **options).search(QUERIES, hits=5)


def test_a_corpus_of_other_fields_is_read_as_its_file_is():
    pytest.importorskip("bm25s")
    expected = bm25_run(RECORDS)
    frame = pd.DataFrame(RECORDS)
    frame.columns = ["key", "headline", "words"]
    named = {"id_field": "key", "title_field": "headline", "text_field": "words"}
    assert bm25_run(frame, **named) == expected
    assert bm25_run(frame.to_dict("records"), **named) == expected
    assert bm25_run(pd.DataFrame(RECORDS), id_field="docid", text_field="text") == expected
    with pytest.raises(DenserkError, match=r"corpus.*headline"):  # the fields that are there
        bm25_run(frame, text_field="absent")


def test_a_missing_value_of_a_named_field_is_no_text():
    pytest.importorskip("bm25s")
    frame = pd.DataFrame({"id": ["a", "b"], "name": ["Moon", np.nan], "body": ["sun", "star"]})
    index = denserk.BM25.build(frame, text_field="body", title_field="name")
    assert list(index.search({"q": "moon"})["q"]) == ["a"]
    assert index.search({"q": "nan"}) == {"q": {}}


def test_one_text_is_one_vector(model):
    vector = model.encode_queries(TEXTS[0])
    assert vector.shape == (model.dimension,)
    for query in ({"query": TEXTS[0]}, {"qid": "q1", "text": TEXTS[0]}):
        np.testing.assert_allclose(model.encode_queries(query), vector, atol=1e-6)
    assert model.encode_queries([]).shape == (0, model.dimension)
    assert model.encode_queries({"q1": TEXTS[0]}).shape == (1, model.dimension)
    title, text = PASSAGES["d1"]
    expected = model.encode_passages([f"{title} {text}"])[0]
    for passage in ({"text": text, "title": title}, {"text": text, "title": title, "url": "x"}):
        np.testing.assert_allclose(model.encode_passages(passage), expected, atol=1e-6)


@pytest.mark.parametrize("name", WRONG)
def test_anything_but_texts_is_rejected_everywhere(model, name, tmp_path, tiny):
    wrong = WRONG[name]
    qrels = {"q1": {"d3": 1}}
    run = {"q1": {"d1": 2.0, "d3": 1.0}}
    calls = [
        lambda: model.encode_queries(wrong),
        lambda: model.encode_passages(wrong),
        lambda: denserk.BM25.build(wrong),
    ]
    if name != "an array of numbers":  # which is a query vector, of another dimension
        index = denserk.Index.build(np.ones((2, 4), np.float32))
        calls.append(lambda: index.search(wrong, model=model))
    if name != "nothing":  # None is an option that is not given
        calls.append(
            lambda: denserk.pretrain("mlm", wrong, tmp_path / "p", model=tiny(), max_steps=1)
        )
        calls.append(lambda: denserk.mine_negatives(run, topics=wrong, qrels=qrels))
        calls.append(lambda: denserk.mine_negatives(run, topics=QUERIES, qrels=qrels, corpus=wrong))
        calls.append(lambda: denserk.finetune(tiny(), RECORDS, tmp_path / "m", corpus=wrong))
    for call in calls:
        with pytest.raises(DenserkError) as caught:
            call()
        assert "expected" in str(caught.value) or "DataFrame" in str(caught.value)
        assert "/tmp" not in str(caught.value)
        assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "wrong",
    [
        {"q1": {"d1": float("nan")}},
        {"q1": {"d1": "high"}},
        {"q1": {"d1": None}},
        {"q1": "d1"},
        {"q 1": {"d1": 1.0}},
        [{"qid": "q1", "docid": "d1"}],
        pd.DataFrame({"qid": ["q1"], "score": [1.0]}),
        pd.DataFrame({"qid": ["q1", "q1"], "docid": ["d1", "d1"], "score": [1.0, 2.0]}),
        [None],
        7,
    ],
)
def test_wrong_runs_and_qrels_are_rejected(wrong):
    run = {"q1": {"d1": 2.0}}
    qrels = {"q1": {"d1": 1}}
    calls = [
        lambda: denserk.fuse([run, wrong]),
        lambda: denserk.evaluate(run, wrong),
        lambda: denserk.mine_negatives([run, wrong], topics=QUERIES, qrels=qrels),
        lambda: denserk.fuse([run, run], tune=wrong),
    ]
    for call in calls:
        with pytest.raises(DenserkError) as caught:
            call()
        assert "/tmp" not in str(caught.value)


def test_grades_are_whole_numbers_of_any_type():
    run = {"q1": {"d1": 2.0}}
    with pytest.raises(DenserkError, match="whole number"):
        denserk.evaluate(run, {"q1": {"d1": 0.5}})
    assert denserk.evaluate(run, {"q1": {"d1": 1.0}}, "RR@10") == {"RR@10": 1.0}


@pytest.mark.parametrize("relevant", [["d1", "d3"], {"d1", "d3"}, ("d3", "d1", "d1")])
def test_qrels_may_list_the_relevant_passages_of_a_query(relevant):
    run = {"q1": {"d2": 3.0, "d1": 2.0}, "q2": {"d1": 1.0}}
    qrels = {"q1": relevant, "q2": {"d1": 1}}
    assert denserk.evaluate(run, qrels, "RR@10 R@10") == {"RR@10": 0.75, "R@10": 0.75}


def test_runs_to_fuse_are_a_list():
    run = {"q1": {"d1": 2.0}}
    for wrong in (run, pd.DataFrame({"qid": ["q1"], "docid": ["d1"], "score": [1.0]}), "run.trec"):
        with pytest.raises(DenserkError):
            denserk.fuse(wrong)  # type: ignore[arg-type]


def test_wrong_training_data_is_rejected(tiny, tmp_path):
    for wrong in ([], [None], 7, {"query": "moon"}, [{"query": "moon"}]):
        with pytest.raises(DenserkError) as caught:
            denserk.finetune(tiny(), wrong, tmp_path / "m", representation="mean", max_steps=1)
        assert "/tmp" not in str(caught.value).replace(str(tmp_path), "")


def test_ids_are_one_for_each_vector_and_distinct():
    vectors = np.ones((3, 4), np.float32)
    for ids in (["a", "b"], ["a", "b", "a"], "abc", [1.5, 2.5, 3.5], ["a", "b", ""], {"a", "b"}, 3):
        with pytest.raises(DenserkError) as caught:
            denserk.Index.build(vectors, ids=ids)  # type: ignore[arg-type]
        assert "/tmp" not in str(caught.value)
    index = denserk.Index.build(vectors, ids=np.arange(3))
    assert list(index.search(vectors[:1])["0"]) == ["2", "1", "0"]


def test_texts_have_distinct_ids():
    index = denserk.Index.build(np.ones((3, 4), np.float32))
    for wrong in ([{"id": "a", "text": "x"}] * 2, pd.Series(["x", "y"], index=["a", "a"])):
        with pytest.raises(DenserkError, match="the id a occurs twice") as caught:
            denserk.BM25.build(wrong)
        assert "/tmp" not in str(caught.value)
        with pytest.raises(DenserkError, match="the id a occurs twice"):
            index.search(wrong)


def test_texts_for_an_index_without_a_model_ask_for_one(toy):
    index = denserk.Index.build(np.ones((3, 4), np.float32))
    with pytest.raises(DenserkError, match="names no model") as caught:
        index.search("moon")
    assert "model=" in str(caught.value.hint)
    with pytest.raises(DenserkError, match="names no model"):
        index.search("moon " * 1000)  # longer than the name of a file
    pytest.importorskip("bm25s")
    bm25 = denserk.BM25.build(toy / "corpus.jsonl")
    with pytest.raises(DenserkError, match="BM25"):
        bm25.search("moon", model="minilm")
    with pytest.raises(DenserkError, match="BM25"):
        bm25.search(np.ones((1, 4), np.float32))


ABSENT_TOPICS = ["querys.tsv", "topics.JSONL.gz", "a/b.json", "t.txt", "t.csv", "t.xml"]


@pytest.mark.parametrize("name", ABSENT_TOPICS)
def test_the_name_of_an_absent_file_of_topics_is_no_query(toy, monkeypatch, name):
    pytest.importorskip("bm25s")
    monkeypatch.chdir(toy)
    index = denserk.BM25.build(toy / "corpus.jsonl")
    with pytest.raises(UsageError, match="no such file") as caught:
        index.search(name)
    assert ("did you mean queries.tsv?" in str(caught.value.hint)) == (name == "querys.tsv")
    assert f'["{name}"]' in str(caught.value.hint)
    assert list(index.search([name])) == ["0"]
    assert list(index.search(f"{name} moon")) == ["0"]
    assert list(index.search("queries.tsv")) == list(QUERIES)


def test_the_name_of_a_data_set_is_its_queries(toy, monkeypatch):
    pytest.importorskip("bm25s")
    data_set = toy / "datasets" / "moons"
    data_set.mkdir(parents=True)
    (data_set / "queries.jsonl").write_text('{"_id": "q7", "text": "moon"}\n')
    monkeypatch.chdir(toy)
    index = denserk.BM25.build(toy / "corpus.jsonl")
    assert list(index.search("beir:moons")) == ["q7"]
    assert list(index.search("beir: moons")) == ["0"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_tensors_are_vectors(dtype):
    torch = pytest.importorskip("torch")
    vectors = torch.randn(20, 8, generator=torch.manual_seed(1)).to(getattr(torch, dtype))
    vectors.requires_grad_()
    expected = run_of_first_rows(vectors.detach().float().numpy())
    index = denserk.Index.build(vectors)
    assert index.search(vectors[:3], hits=5) == expected
    assert index.search(vectors[0], hits=5)["0"] == pytest.approx(expected["0"])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.longdouble, ">f4"])
def test_arrays_of_any_float_type_are_vectors(dtype):
    vectors = np.random.default_rng(1).normal(size=(20, 8)).astype(np.float16)
    expected = run_of_first_rows(vectors.astype(np.float32))
    vectors_of_type = vectors.astype(dtype)
    assert run_of_first_rows(vectors_of_type) == expected
    assert run_of_first_rows(np.asfortranarray(vectors_of_type)) == expected


def run_of_first_rows(vectors):
    """Index vectors, and search with the first three of them."""
    return denserk.Index.build(vectors).search(vectors[:3], hits=5)


@pytest.mark.parametrize(
    "wrong",
    [
        np.ones(4),
        np.ones((2, 3, 4)),
        np.ones((0, 4)),
        np.ones((4, 0)),
        np.ones((2, 4), complex),
        np.ones((2, 4), bool),
        np.array([["a"]]),
        [[1.0, 2.0]],
        None,
    ],
)
def test_wrong_shapes_and_types_of_vectors_are_rejected(wrong):
    with pytest.raises(DenserkError, match="vectors"):
        denserk.Index.build(wrong)


def test_query_vectors_have_the_dimension_of_the_index():
    index = denserk.Index.build(np.ones((3, 4), np.float32))
    with pytest.raises(MismatchError, match="4 dimensions"):
        index.search(np.ones((2, 5), np.float32))
    with pytest.raises(DenserkError, match="queries"):
        index.search(np.ones((2, 3, 4), np.float32))
    assert index.search(np.ones((0, 4), np.float32)) == {}


def test_frames_of_polars_are_read_as_those_of_pandas(model):
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame({"qid": list(QUERIES), "query": TEXTS})
    expected = model.encode_queries(TEXTS)
    np.testing.assert_allclose(model.encode_queries(frame), expected, atol=1e-6)
    run = pl.DataFrame({"qid": ["q1"], "docid": ["d3"], "score": [1.0]})
    assert denserk.evaluate(run, QRELS, "RR@10") == pytest.approx({"RR@10": 1 / 3})


def test_missing_titles_are_empty():
    pytest.importorskip("bm25s")
    frame = pd.DataFrame({"id": ["a", "b"], "title": ["Moon", np.nan], "text": ["sun", "star"]})
    index = denserk.BM25.build(frame)
    assert index.search("nan") == {"0": {}}
    assert list(index.search("moon")["0"]) == ["a"]


def test_a_saved_run_keeps_the_order_of_equal_scores(tmp_path):
    run = denserk.Run({"q1": {"a": 2.0, "c": 1.0, "b": 1.0}, "q2": {"a": 1.0, "b": 1.0, "c": 2.0}})
    run.save(tmp_path / "run.trec")
    docids = [line.split()[2] for line in (tmp_path / "run.trec").read_text().splitlines()]
    assert docids == ["a", "c", "b", "c", "b", "a"]
    assert denserk.Run.load(tmp_path / "run.trec") == run


def test_a_record_with_further_fields_is_one_query(model):
    record = {"qid": "q1", "query": TEXTS[0], "language": "en"}
    np.testing.assert_allclose(model.encode_queries(record), model.encode_queries(TEXTS[0]))


@pytest.mark.parametrize(
    "fields", [{"docid": "d1", "language": "en"}, {"year": 1969}, {"metadata": {}}]
)
def test_a_passage_with_further_fields_is_one_passage(model, fields):
    vector = model.encode_passages({"text": BODIES[0], **fields})
    np.testing.assert_allclose(vector, model.encode_passages(BODIES[0]))


def test_texts_by_id_of_which_one_is_named_like_a_field_are_rejected(model):
    with pytest.raises(DenserkError, match="one passage or several"):
        model.encode_passages({"d1": BODIES[0], "text": BODIES[1]})
    with pytest.raises(DenserkError, match="one query or several"):
        model.encode_queries({"q1": {"query": TEXTS[0]}, "text": TEXTS[1]})


@pytest.mark.parametrize("run", [{1: {"d": 1.0}, "1": {"e": 2.0}}, {"1": {1: 1.0, "1": 2.0}}])
def test_ids_that_are_equal_as_strings_are_rejected(run):
    with pytest.raises(DenserkError, match="1 occurs twice"):
        denserk.evaluate(run, {"1": {"d": 1}}, "RR@10")


@pytest.mark.parametrize("number", [np.nan, np.inf, 1e300])
def test_vectors_of_no_finite_numbers_bring_a_hint_for_arrays(number):
    with pytest.raises(DenserkError) as caught:
        denserk.Index.build(np.array([[1.0, 2.0], [3.0, number]]))
    assert "--" not in str(caught.value.hint)  # no option of a model
    assert "of 1 that" in caught.value.message
