"""The Python API from texts to measures: what its functions return fits together."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import denserk
from denserk.errors import MismatchError, UsageError
from tests.support.toy import PASSAGES, QRELS, QUERIES

CORPUS = [{"id": docid, "title": title, "text": text} for docid, (title, text) in PASSAGES.items()]
FAST: dict[str, Any] = {"batch_size": 2, "max_steps": 2, "device": "cpu"}


@pytest.fixture
def model(tiny):
    return denserk.Encoder.load(tiny(), representation="mean", device="cpu")


@pytest.fixture
def index(model):
    return denserk.Index.build(model.encode_passages(CORPUS), ids=list(PASSAGES))


def test_import_is_light():
    script = "import sys, denserk; sys.exit(bool({'numpy', 'torch', 'typer'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_all_public_names_are_listed():
    assert set(denserk.__all__) <= set(dir(denserk))


def test_shapes_of_vectors(model):
    query_vector = model.encode_queries("cat in a house")
    assert query_vector.shape == (model.dimension,)
    query_vectors = model.encode_queries(["cat in a house", "river boat"])
    assert query_vectors.shape == (2, model.dimension)
    np.testing.assert_allclose(query_vectors[0], query_vector, atol=1e-6)
    title, text = PASSAGES["d1"]
    passage_vector = model.encode_passages({"title": title, "text": text})
    passage_vectors = model.encode_passages([f"{title} {text}", "other"])
    np.testing.assert_allclose(passage_vector, passage_vectors[0], atol=1e-6)


def rankings(run):
    """The passages of each query, best first."""
    return [list(hits) for hits in run.values()]


def test_search_is_the_product_of_vectors(model, index):
    assert len(index) == len(PASSAGES)
    run = index.search(QUERIES, model=model, hits=3)
    assert list(run) == list(QUERIES)
    query_vectors = model.encode_queries(list(QUERIES.values()))
    scores = query_vectors @ model.encode_passages(CORPUS).T
    for scores_of_query, hits in zip(scores, run.values(), strict=True):
        best_rows = np.argsort(-scores_of_query)[:3]
        assert list(hits) == np.array(list(PASSAGES))[best_rows].tolist()
        np.testing.assert_allclose(list(hits.values()), scores_of_query[best_rows], rtol=1e-5)
    assert rankings(index.search(query_vectors, hits=3)) == rankings(run)
    assert index.search("river boat", model=model, hits=3)["0"] == pytest.approx(run["q2"])


def test_an_index_that_is_kept(model, tmp_path):
    folder = tmp_path / "index"
    vectors = model.encode_passages(CORPUS)
    denserk.Index.build(vectors, ids=list(PASSAGES), output=folder)
    with pytest.raises(UsageError, match="is not empty"):
        denserk.Index.build(np.ones((2, 4), np.float32), output=folder)
    opened_index = denserk.Index.open(folder)
    run = opened_index.search(QUERIES, model=model)
    graph = denserk.Index.build(vectors, ids=list(PASSAGES), type="hnsw")
    run_of_graph = graph.search(QUERIES, model=model)
    assert run == {qid: pytest.approx(hits) for qid, hits in run_of_graph.items()}
    with pytest.raises(UsageError, match="names no model"):
        opened_index.search(QUERIES)


def test_the_model_that_made_an_index_is_found_and_others_are_rejected(tiny, toy, tmp_path):
    from denserk.commands.retrieve import encode, search

    vectors = tmp_path / "vectors"
    encode(model=tiny(), corpus=toy / "corpus.jsonl", output=vectors, representation="mean")
    search(index=[vectors], topics=toy / "queries.tsv", output=tmp_path / "run")
    index = denserk.Index.open(vectors)
    model = denserk.Encoder.load(tiny(), representation="mean")
    assert index.search(toy / "queries.tsv") == index.search(QUERIES, model=model)
    with pytest.raises(MismatchError, match="representation"):
        index.search(QUERIES, model=denserk.Encoder.load(tiny(), representation="cls"))


@pytest.fixture
def dense_run(model, index):
    return index.search(QUERIES, model=model)


@pytest.fixture
def bm25_run():
    pytest.importorskip("bm25s")
    return denserk.BM25.build(CORPUS, k1=1.2).search(QUERIES, hits=5)


def test_bm25_of_a_frame_is_that_of_records(bm25_run):
    pd = pytest.importorskip("pandas")
    assert next(iter(bm25_run["q1"])) == "d3"
    index_of_frame = denserk.BM25.build(pd.DataFrame(CORPUS), k1=1.2)
    assert index_of_frame.search(QUERIES, hits=5) == bm25_run


def test_fusion_by_ranks_and_by_tuned_weights(bm25_run, dense_run):
    pytest.importorskip("pandas")
    fused_run = denserk.fuse([bm25_run, dense_run.to_pandas()])
    bm25_rank = 1
    dense_rank = 1 + list(dense_run["q1"]).index("d3")
    expected_score = 1 / (60 + bm25_rank) + 1 / (60 + dense_rank)
    assert fused_run["q1"]["d3"] == pytest.approx(expected_score, abs=1e-6)

    tuned_run = denserk.fuse([bm25_run, dense_run], tune={"q1": {"d3": 1}}, measure="RR@10")
    assert sum(tuned_run.weights) == 1
    weighted_run = denserk.fuse([bm25_run, dense_run], method="linear", weights=tuned_run.weights)
    assert weighted_run == tuned_run


def test_a_run_is_read_as_it_was_written(bm25_run, dense_run, tmp_path):
    pytest.importorskip("pandas")
    run = denserk.fuse([bm25_run, dense_run])
    run.save(tmp_path / "run.trec")
    assert denserk.Run.load(tmp_path / "run.trec") == run
    assert denserk.Run.from_pandas(run.to_pandas()) == run


def test_evaluation_of_objects_frames_and_files(bm25_run, dense_run, tmp_path):
    pd = pytest.importorskip("pandas")
    dense_run.save(tmp_path / "dense.trec")
    qrels_rows = []
    for qid, grades in QRELS.items():
        qrels_rows += [(qid, docid, grade) for docid, grade in grades.items()]
    qrels = pd.DataFrame(qrels_rows, columns=["query_id", "doc_id", "relevance"])
    runs = {"bm25": bm25_run, "dense": tmp_path / "dense.trec"}
    means = denserk.evaluate(runs, qrels, "RR@10 R@100")
    assert means["bm25"] == denserk.evaluate(bm25_run, QRELS, ["RR@10", "R@100"])
    assert list(means["dense"]) == ["RR@10", "R@100"]


def test_a_perfect_run_has_the_highest_measures():
    assert denserk.evaluate(QRELS, QRELS) == {"nDCG@10": 1.0, "RR@10": 1.0, "R@100": 1.0}


def test_evaluation_with_a_baseline():
    qrels = {"q1": {"d1": 1}, "q2": {"d1": 1}}
    run = {"q1": {"d1": 2.0}, "q2": {"d1": 2.0}}
    runs = {"first": run, "second": run}
    means = denserk.evaluate(runs, qrels, "RR@10", baseline="second")
    assert means == {"first": {"RR@10": 1.0, "RR@10 p": 1.0}, "second": {"RR@10": 1.0}}
    with pytest.raises(UsageError, match="called first, second"):
        denserk.evaluate(runs, qrels, baseline="third")


def test_mining_and_training(model, dense_run, tiny, tmp_path, capsys):
    examples = denserk.mine_negatives(
        dense_run, topics=QUERIES, qrels=QRELS, corpus=CORPUS, num_negatives=2, depth=6
    )
    assert [example["query_id"] for example in examples] == list(QUERIES)
    for example in examples:
        negatives = {passage["docid"] for passage in example["negative_passages"]}
        assert len(negatives) == 2
        assert negatives.isdisjoint(QRELS[example["query_id"]])
    trained_model = denserk.finetune(
        tiny(),
        examples,
        tmp_path / "trained",
        representation="cls",
        group_size=2,
        negative="top",
        **FAST,
    )
    assert denserk.Encoder.load(trained_model).encode_queries("cat").shape == (model.dimension,)
    frame = pytest.importorskip("pandas").DataFrame(examples)
    config = trained_model / "config.yaml"
    retrained_model = denserk.finetune(
        tiny(), frame, tmp_path / "retrained", config=config, lr=1e-5
    )
    assert (retrained_model / "config.yaml").read_text().count("max-steps: 2") == 1
    assert capsys.readouterr().out == ""


def test_pretraining(tiny, tmp_path):
    texts = [f"{title} {text}." for title, text in PASSAGES.values()] * 4
    output = tmp_path / "model"
    folder = denserk.pretrain("mlm", texts, output, model=tiny(), max_length=16, **FAST)
    assert (folder / "model.safetensors").is_file()


def test_mistakes_name_the_option(model, tiny):
    with pytest.raises(UsageError, match="poolin is not a setting"):
        denserk.Encoder.load(tiny(), poolin="mean")  # type: ignore[call-arg]
    with pytest.raises(UsageError, match=r"rrfk.*did you mean rrf-k"):
        denserk.fuse([{"q": {"d": 1.0}}] * 2, rrfk=1)  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="2 ids for 3 vectors"):
        denserk.Index.build(np.ones((3, 4), np.float32), ids=["a", "b"])
