import pytest
from datasets import Dataset

import denserk
from denserk.commands.app import run
from tests.support.toy import PASSAGES, QRELS, QUERIES

pytestmark = pytest.mark.peer


def toy_task(mteb):
    """The toy collection as a task of MTEB."""
    passages = [
        {"id": docid, "title": title, "text": text} for docid, (title, text) in PASSAGES.items()
    ]
    queries = [{"id": qid, "text": text} for qid, text in QUERIES.items()]
    test = {
        "corpus": Dataset.from_list(passages),
        "queries": Dataset.from_list(queries),
        "relevant_docs": QRELS,
        "top_ranked": None,
    }
    metadata = mteb.TaskMetadata(
        name="Toy",
        description="",
        dataset={"path": "toy", "revision": "1"},
        type="Retrieval",
        category="t2t",
        eval_langs=["eng-Latn"],
        main_score="ndcg_at_10",
    )
    task = type("Toy", (mteb.abstasks.AbsTaskRetrieval,), {"metadata": metadata})()
    task.dataset = {"default": {"test": test}}
    task.data_loaded = True
    return task


@pytest.mark.parametrize("pooling", ["mean", "agg"])
@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning", "ignore:.*:FutureWarning")
def test_equal_ndcg_and_predictions(toy, tiny, tiny_agg, tmp_path, pooling, monkeypatch):
    mteb = pytest.importorskip("mteb", minversion="2.0")
    from sentence_transformers import SentenceTransformer

    def command(*words):
        assert run([*map(str, words), "--quiet"]) == 0

    monkeypatch.chdir(tmp_path)
    start = tiny_agg() if pooling == "agg" else tiny()
    options = ("--representation", pooling, "--query-prefix", "the ")
    command("convert", start, "m", "--to", "denserk", *options)
    command("encode", "--model", "m", "--corpus", toy / "corpus.jsonl", "--output", "v")
    command("search", "--index", "v", "--topics", toy / "queries.tsv", "--output", "run.trec")
    expected = denserk.evaluate("run.trec", toy / "qrels.txt", "nDCG@10")
    model = SentenceTransformer("m", device="cpu", trust_remote_code=True)
    evaluation = mteb.evaluate(
        model,
        toy_task(mteb),
        prediction_folder=tmp_path,
        cache=None,
        co2_tracker=False,
        show_progress_bar=False,
    )
    ndcg = evaluation.task_results[0].scores["test"][0]["ndcg_at_10"]
    assert ndcg == pytest.approx(expected["nDCG@10"], abs=1e-5)
    predictions = "Toy_predictions.json"
    assert denserk.evaluate(predictions, toy / "qrels.txt", "nDCG@10") == expected
    command("convert", "run.trec", predictions, "--overwrite")
    reranking = toy_task(mteb).convert_to_reranking(predictions).dataset["default"]["test"]
    expected_ranking = {qid: list(hits) for qid, hits in denserk.Run.load("run.trec").items()}
    assert reranking["top_ranked"] == expected_ranking
