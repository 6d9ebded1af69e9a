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
    check = "import sys, denserk; sys.exit(bool({'numpy', 'torch', 'typer'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
    assert set(denserk.__all__) <= set(dir(denserk))


def test_shapes_of_vectors(model):
    one = model.encode_queries("cat in a house")
    assert one.shape == (model.dimension,)
    two = model.encode_queries(["cat in a house", "river boat"])
    assert two.shape == (2, model.dimension)
    np.testing.assert_allclose(two[0], one, atol=1e-6)
    title, text = PASSAGES["d1"]
    np.testing.assert_allclose(
        model.encode_passages({"title": title, "text": text}),
        model.encode_passages([f"{title} {text}", "other"])[0],
        atol=1e-6,
    )


def test_search_is_the_product_of_vectors(model, index):
    run = index.search(QUERIES, model=model, hits=3)
    scores = model.encode_queries(list(QUERIES.values())) @ model.encode_passages(CORPUS).T
    assert list(run) == list(QUERIES)
    for row, hits in zip(scores, run.values(), strict=True):
        expected = np.array(list(PASSAGES))[np.argsort(-row)[:3]]
        assert list(hits) == expected.tolist()
        np.testing.assert_allclose(list(hits.values()), np.sort(row)[::-1][:3], rtol=1e-5)
    vectors = model.encode_queries(list(QUERIES.values()))
    assert [list(hits) for hits in index.search(vectors, hits=3).values()] == [
        list(hits) for hits in run.values()
    ]
    assert index.search("river boat", model=model, hits=3)["0"] == pytest.approx(run["q2"])
    assert len(index) == len(PASSAGES)


def test_an_index_that_is_kept(model, tmp_path, toy, tiny):
    denserk.Index.build(model.encode_passages(CORPUS), ids=list(PASSAGES), output=tmp_path / "i")
    with pytest.raises(UsageError, match="is not empty"):
        denserk.Index.build(np.ones((2, 4), "f4"), output=tmp_path / "i")
    opened = denserk.Index.open(tmp_path / "i")
    graph = denserk.Index.build(model.encode_passages(CORPUS), ids=list(PASSAGES), type="hnsw")
    found = graph.search(QUERIES, model=model)
    assert opened.search(QUERIES, model=model) == {q: pytest.approx(h) for q, h in found.items()}
    with pytest.raises(UsageError, match="names no model"):
        opened.search(QUERIES)


def test_the_model_that_made_an_index_is_found_and_others_are_rejected(tiny, toy, tmp_path):
    from denserk.commands.retrieve import encode, search

    encode(model=tiny(), corpus=toy / "corpus.jsonl", output=tmp_path / "v", representation="mean")
    index = denserk.Index.open(tmp_path / "v")
    search(index=[tmp_path / "v"], topics=toy / "queries.tsv", output=tmp_path / "run")
    model = denserk.Encoder.load(tiny(), representation="mean")
    assert index.search(toy / "queries.tsv") == index.search(QUERIES, model=model)
    with pytest.raises(MismatchError, match="representation"):
        index.search(QUERIES, model=denserk.Encoder.load(tiny(), representation="cls"))


def test_bm25_fusion_and_evaluation(model, index, tmp_path):
    pytest.importorskip("bm25s")
    pd = pytest.importorskip("pandas")
    dense = index.search(QUERIES, model=model)
    bm25 = denserk.BM25.build(CORPUS, k1=1.2).search(QUERIES, hits=5)
    assert denserk.BM25.build(pd.DataFrame(CORPUS), k1=1.2).search(QUERIES, hits=5) == bm25
    assert next(iter(bm25["q1"])) == "d3"
    both = denserk.fuse([bm25, dense.to_pandas()])
    tuned = denserk.fuse([bm25, dense], tune={"q1": {"d3": 1}}, measure="RR@10")
    again = denserk.fuse([bm25, dense], method="linear", weights=tuned.weights)
    assert (again, sum(tuned.weights)) == (tuned, 1)
    assert both["q1"]["d3"] == pytest.approx(
        1 / 61 + 1 / (61 + list(dense["q1"]).index("d3")), abs=1e-6
    )
    both.save(tmp_path / "both.trec")
    assert denserk.Run.load(tmp_path / "both.trec") == both
    assert denserk.Run.from_pandas(both.to_pandas()) == both

    judged = pd.DataFrame(
        [(q, d, r) for q, docs in QRELS.items() for d, r in docs.items()],
        columns=["query_id", "doc_id", "relevance"],
    )
    means = denserk.evaluate({"bm25": bm25, "both": tmp_path / "both.trec"}, judged, "RR@10 R@100")
    assert means["bm25"] == denserk.evaluate(bm25, QRELS, ["RR@10", "R@100"])
    assert list(means["both"]) == ["RR@10", "R@100"]
    perfect = {q: {d: float(r) for d, r in docs.items()} for q, docs in QRELS.items()}
    assert denserk.evaluate(perfect, QRELS) == {"nDCG@10": 1.0, "RR@10": 1.0, "R@100": 1.0}


def test_evaluation_with_a_baseline():
    qrels = {f"q{i}": {"d1": 1} for i in range(4)}
    runs = {name: {qid: {"d1": 2.0} for qid in qrels} for name in ("first", "second")}
    found = denserk.evaluate(runs, qrels, "RR@10", baseline="second")
    assert found == {"first": {"RR@10": 1.0, "RR@10 p": 1.0}, "second": {"RR@10": 1.0}}
    with pytest.raises(UsageError, match="called first, second"):
        denserk.evaluate(runs, qrels, baseline="third")


def test_mining_and_training(model, index, tiny, tmp_path, capsys):
    run = index.search(QUERIES, model=model)
    train = denserk.mine_negatives(
        run, topics=QUERIES, qrels=QRELS, corpus=CORPUS, num_negatives=2, depth=6
    )
    assert [example["query_id"] for example in train] == list(QUERIES)
    for example in train:
        found = {p["docid"] for p in example["negative_passages"]}
        assert len(found) == 2
        assert not found & set(QRELS[example["query_id"]])
    folder = denserk.finetune(
        tiny(), train, tmp_path / "m", representation="cls", group_size=2, negative="top", **FAST
    )
    assert denserk.Encoder.load(folder).encode_queries("cat").shape == (model.dimension,)
    frame = pytest.importorskip("pandas").DataFrame(train)
    again = denserk.finetune(
        tiny(), frame, tmp_path / "again", config=folder / "config.yaml", lr=1e-5
    )
    assert (again / "config.yaml").read_text().count("max-steps: 2") == 1
    assert capsys.readouterr().out == ""


def test_pretraining(tiny, tmp_path):
    text = [f"{title} {text}." for title, text in PASSAGES.values()] * 4
    folder = denserk.pretrain("mlm", text, tmp_path / "p", model=tiny(), max_length=16, **FAST)
    assert (folder / "model.safetensors").is_file()


def test_mistakes_name_the_option(model, tiny):
    with pytest.raises(UsageError, match="poolin is not a setting"):
        denserk.Encoder.load(tiny(), poolin="mean")  # type: ignore[call-arg]
    with pytest.raises(UsageError, match=r"rrfk.*did you mean rrf-k"):
        denserk.fuse([{"q": {"d": 1.0}}] * 2, rrfk=1)  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="2 ids for 3 vectors"):
        denserk.Index.build(np.ones((3, 4), "f4"), ids=["a", "b"])
