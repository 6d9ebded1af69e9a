"""What is done in memory equals what the commands do with files."""

import json
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest

import denserk
from denserk.commands import data, retrieve, train
from denserk.commands.app import run as command
from denserk.config.evaluation import OutputFormat
from denserk.errors import GateError, UsageError
from denserk.io.vectors import open_vectors
from tests.support.benchmark_copies import write_beir
from tests.support.toy import PASSAGES, QRELS, QUERIES

CORPUS = [{"id": docid, "title": title, "text": text} for docid, (title, text) in PASSAGES.items()]
RUNS = [
    {"q1": {"d3": 4.0, "d2": 3.0, "d10": 2.5}, "q2": {"d5": 2.0, "d1": 2.0}},
    {"q2": {"d4": 9.0, "d1": 8.5}, "q1": {"d2": 8.0, "d3": 7.0}, "q3": {"d4": 1.0, "d1": 0.5}},
]


@pytest.fixture
def files(toy):
    """The toy collection, and the runs as a.trec and b.trec."""
    for name, run in zip(("a.trec", "b.trec"), RUNS, strict=True):
        denserk.Run(run).save(toy / name)
    return toy


def vectors_of(folder):
    opened = open_vectors(str(folder))
    return np.concatenate([opened.map_block(block) for block in opened.finished])


def test_texts_are_encoded_to_a_folder(tiny, files, tmp_path):
    options: dict[str, Any] = {"representation": "mean", "device": "cpu"}
    retrieve.encode(model=tiny(), corpus=files / "corpus.jsonl", output=tmp_path / "a", **options)
    expected = vectors_of(tmp_path / "a")
    folder = denserk.encode(tiny(), tmp_path / "b", corpus=CORPUS, **options)
    assert folder == tmp_path / "b"
    np.testing.assert_array_equal(vectors_of(folder), expected)
    model = denserk.Encoder.load(tiny(), representation="mean", device="cpu")
    model.encode_to(tmp_path / "c", corpus=files / "corpus.jsonl", vector_dtype="float16")
    np.testing.assert_allclose(vectors_of(tmp_path / "c"), expected, atol=1e-3)
    model.encode_to(tmp_path / "queries", topics=QUERIES)
    found = denserk.Index.open(tmp_path / "b").search(vectors_of(tmp_path / "queries"), hits=3)
    by_texts = denserk.Index.open(tmp_path / "b").search(QUERIES, hits=3)
    assert list(found.values()) == list(by_texts.values())


def test_reranking(tiny_reranker, files, tmp_path):
    options: dict[str, Any] = {"model": tiny_reranker(), "device": "cpu", "depth": 2}
    paths: dict[str, Any] = {"topics": files / "queries.tsv", "corpus": files / "corpus.jsonl"}
    retrieve.rerank(run=files / "b.trec", output=tmp_path / "out.trec", **paths, **options)
    expected = denserk.Run.load(tmp_path / "out.trec")
    assert denserk.rerank(RUNS[1], topics=QUERIES, corpus=CORPUS, **options) == expected
    assert denserk.rerank(files / "b.trec", **paths, **options) == expected


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"method": "linear", "weights": [0.3, 0.7], "normalization": "zmuv", "hits": 2},
        {"max_passage": True, "max_passage_delimiter": "1", "depth": 2},
        {"tune": QRELS, "measure": "RR@10"},
    ],
)
def test_fusion_in_memory_is_that_of_files(files, tmp_path, options):
    output = tmp_path / "fused.trec"
    paths = [str(files / "a.trec"), str(files / "b.trec")]
    of_command = {**options, **({"tune": files / "qrels.txt"} if "tune" in options else {})}
    result = retrieve.fuse(runs=paths, output=output, **of_command)
    expected = denserk.Run.load(output)
    for runs in (RUNS, paths, [RUNS[0], paths[1]]):
        run = denserk.fuse(runs, **options)
        assert list(run) == list(expected)
        assert [list(hits) for hits in run.values()] == [list(h) for h in expected.values()]
        for qid, hits in run.items():
            assert hits == pytest.approx(expected[qid], rel=1e-6)
        assert run.weights == result.weights


@pytest.mark.parametrize(
    "options",
    [{}, {"order": "rank"}, {"max_hits": 1}, {"remove_query": True}, {"complete": False}],
)
def test_evaluation_in_memory_is_that_of_files(files, options):
    measures = "nDCG@10 RR@10 AP P@2 NumRet"
    paths = {"a": files / "a.trec", "b": files / "b.trec"}
    runs = dict(zip(paths, RUNS, strict=True))
    expected = denserk.evaluate(paths, files / "qrels.txt", measures, baseline="a", **options)
    assert denserk.evaluate(runs, QRELS, measures, baseline="a", **options) == expected


def test_mining_in_memory_is_that_of_files(files, tmp_path, capsys):
    options: dict[str, Any] = {"depth": 4, "num_negatives": 1, "skip_missing": True}
    paths: dict[str, Any] = {"topics": files / "queries.tsv", "qrels": files / "qrels.txt"}
    paths["corpus"] = files / "corpus.jsonl"
    runs = [files / "a.trec", files / "b.trec"]
    output = tmp_path / "mined.jsonl"
    train.mine_negatives(run=runs, output=output, **paths, **options)
    expected = [json.loads(line) for line in output.read_text().splitlines()]
    assert denserk.mine_negatives(runs, **paths, **options) == expected
    kept = denserk.mine_negatives(runs, **paths, **options, output=tmp_path / "kept.jsonl")
    assert kept == expected
    assert (tmp_path / "kept.jsonl").read_bytes() == output.read_bytes()
    objects = denserk.mine_negatives(RUNS, topics=QUERIES, qrels=QRELS, corpus=CORPUS, **options)
    for example, other in zip(objects, expected, strict=True):
        for passage in (*example["negative_passages"], *other["negative_passages"]):
            del passage["run"]
        assert example == other
    again = denserk.mine_negatives(RUNS, train=expected, corpus=CORPUS, **options)
    assert [example["query_id"] for example in again] == list(QUERIES)
    ids = denserk.mine_negatives(
        RUNS, topics=QUERIES, qrels=QRELS, output_format="triples", **options
    )
    assert ids[0].keys() == {"query", "positive", "negative"}
    assert capsys.readouterr().out == ""


def test_generation(writer, files, tmp_path):
    options: dict[str, Any] = {
        "queries_model": writer("t5"),
        "num_queries": 2,
        "device": "cpu",
        "seed": 3,
    }
    data.generate(corpus=files / "corpus.jsonl", output=tmp_path / "a.jsonl", **options)
    expected = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert denserk.generate(CORPUS, **options) == expected
    denserk.generate(CORPUS, tmp_path / "b.jsonl", **options)
    assert (tmp_path / "b.jsonl").read_bytes() == (tmp_path / "a.jsonl").read_bytes()


def test_queries_are_copied_filtered_and_converted(files, tmp_path):
    """From a corpus to training data without a model; a second dog is not in the index."""
    pytest.importorskip("bm25s")
    denserk.BM25.build(files / "corpus.jsonl", output=tmp_path / "bm25")
    corpus = [*CORPUS, {"id": "d11", "title": "Dog", "text": "a blue one"}]
    options: dict[str, Any] = {"queries_from": ["title", "span"], "num_queries": 1}
    records = denserk.generate(corpus, tmp_path / "a.jsonl", **options)
    assert records[-1]["queries"] == ["Dog"]
    assert {source for record in records for source in record["sources"]} == {"title", "span"}
    kept = denserk.generate(corpus, round_trip=tmp_path / "bm25", **options)
    assert kept[-1] == {"docid": "d11", "queries": [], "next": [], "sources": [], "positives": []}
    assert kept[:-1] == records[:-1]
    count = sum(len(record["queries"]) for record in records)
    denserk.generate(CORPUS, tmp_path / "b.jsonl", **options)
    train = tmp_path / "train.jsonl"
    result = denserk.convert(tmp_path / "b.jsonl", train, corpus=files / "corpus.jsonl")
    assert (result.kind, result.unit, result.count) == ("training", "examples", count - 1)
    result = denserk.convert(tmp_path / "a.jsonl", tmp_path / "x.tsv", target_kind="queries")
    assert (result.kind, result.count) == ("queries", count)


def test_conversion(files, tmp_path):
    result = denserk.convert(files / "a.trec", tmp_path / "a.tsv", to_format="msmarco")
    assert (result.kind, result.format, result.count) == ("run", "msmarco", 5)
    assert (tmp_path / "a.tsv").read_text().startswith("q1\td3\t1\n")
    with pytest.raises(UsageError, match="exists"):
        denserk.convert(files / "a.trec", tmp_path / "a.tsv", to_format="msmarco")


def test_documents_are_split(files, tmp_path):
    passages = tmp_path / "passages.jsonl"
    assert denserk.convert(files / "corpus.jsonl", passages, split_words=4, stride=2).count == 14
    bm25 = denserk.BM25.build(passages)
    run = bm25.search({"q1": "the moon rises"}, max_passage=True)
    assert next(iter(run["q1"])) == "d4"
    with pytest.raises(UsageError, match="text would be lost"):
        denserk.convert(files / "corpus.jsonl", passages, split_words=4, stride=5, overwrite=True)


def test_benchmarks(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("DENSERK_CACHE", str(tmp_path / "cache"))
    write_beir(tmp_path / "cache", "scifact")
    options: dict[str, Any] = {"model": tiny(), "output": tmp_path / "runs", "device": "cpu"}
    values = denserk.benchmark("beir/scifact", **options)
    assert list(values["beir/scifact"]) == ["runs"]
    run = denserk.Run.load(tmp_path / "runs" / "scifact.trec")
    by_object = denserk.benchmark(["beir/scifact"], runs=run)
    assert list(by_object["beir/scifact"].values()) == list(values["beir/scifact"].values())
    with pytest.raises(GateError, match="nDCG@10"):
        denserk.benchmark("beir/scifact", runs=run, min="nDCG@10=2")
    with pytest.raises(UsageError, match="only for run files of one benchmark"):
        denserk.benchmark("beir/scifact", runs=tmp_path / "runs", min="nDCG@10=0")
    measures = list(values["beir/scifact"]["runs"])
    assert denserk.evaluate(run, QRELS, measures) == values["beir/scifact"]["runs"]


def test_an_explanation(files):
    views = denserk.explain(RUNS[0], QRELS, "q2", "RR@10 nDCG@10")
    assert {view.name for view in views} >= {"trec_eval", "BEIR", "MS MARCO script"}
    by_files = denserk.explain(files / "a.trec", files / "qrels.txt", "q2", "RR@10 nDCG@10")
    assert by_files == views
    assert views[0].order == ("d5 (1)", "d1 (2)")


def test_details_of_an_evaluation():
    runs = {"a": RUNS[0], "b": RUNS[1]}
    details = denserk.evaluate(runs, QRELS, "RR@10 nDCG@10", baseline="a", details=True)
    plain = denserk.evaluate(runs, QRELS, "RR@10 nDCG@10", baseline="a")
    assert isinstance(details, denserk.Evaluation)
    assert details.summary == plain
    assert details.per_query["b"]["RR@10"] == {"q1": 0.5, "q2": 0.5, "q3": 1.0}
    difference = details.comparison["b"]["RR@10"]
    assert difference.mean == pytest.approx(plain["b"]["RR@10"] - plain["a"]["RR@10"])
    assert difference.low <= difference.mean <= difference.high
    assert difference.corrected == plain["b"]["RR@10 p"]
    assert (difference.wins, difference.ties, difference.losses) == (1, 0, 2)
    wider = denserk.evaluate(
        runs, QRELS, "RR@10 nDCG@10", baseline="a", details=True, alpha=0.01, correction="none"
    ).comparison["b"]["RR@10"]
    assert wider.low < difference.low
    assert wider.p == difference.p
    single = denserk.evaluate(RUNS[1], QRELS, "RR@10", details=True)
    assert single.summary == {"RR@10": pytest.approx(2 / 3)}
    assert single.per_query == {"RR@10": {"q1": 0.5, "q2": 0.5, "q3": 1.0}}
    assert single.comparison == {}
    previous = denserk.evaluate(runs, QRELS, "RR@10", baseline="previous")
    assert "RR@10 p" in previous["b"]


def test_an_evaluation_prints_what_the_command_prints(files, capsys):
    runs = {"a": files / "a.trec", "b": files / "b.trec"}
    details = denserk.evaluate(
        runs, files / "qrels.txt", "RR@10 nDCG@10", baseline="a", details=True
    )
    paths = [str(path) for path in (*runs.values(), files / "qrels.txt")]
    for output_format in ("table", "tsv", "json", "markdown", "latex"):
        words = ["-m", "RR@10 nDCG@10", "--baseline", "a", "-p", "2", "-q", "--format"]
        assert command(["eval", *paths, *words, output_format, "--quiet"]) == 0
        text = details.table(output_format, places=2, per_query=True)
        assert text == capsys.readouterr().out
    misspelt: Any = "latx"
    with pytest.raises(UsageError, match=r"found 'latx', expected table or tsv or .* or latex"):
        details.table(misspelt)


def test_the_formats_of_a_table_are_those_of_the_command():
    hint = get_type_hints(denserk.Evaluation.table)["format"]
    assert list(get_args(hint)) == [output_format.value for output_format in OutputFormat]


def test_a_message_names_the_run_that_is_wrong():
    with pytest.raises(UsageError, match="dense: found None"):
        denserk.evaluate({"bm25": RUNS[0], "dense": None}, QRELS)


def test_runs_without_names_are_several_runs():
    with pytest.raises(UsageError, match="found a list of runs"):
        denserk.evaluate(RUNS, QRELS)


def test_a_query_whose_hits_are_all_removed_is_not_in_the_fused_run(tmp_path):
    runs = [{"q1": {"q1": 2.0}, "q2": {"d1": 1.0}}] * 2
    fused = denserk.fuse(runs, remove_query=True)
    fused.save(tmp_path / "fused.trec")
    assert list(fused) == ["q2"]
    assert denserk.Run.load(tmp_path / "fused.trec") == fused
