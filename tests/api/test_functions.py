"""What is done in memory equals what the commands do with files."""

import json
from copy import deepcopy
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
    blocks = open_vectors(str(folder))
    return np.concatenate([blocks.map_block(block) for block in blocks.finished])


def json_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_texts_are_encoded_to_a_folder(tiny, files, tmp_path):
    options: dict[str, Any] = {"representation": "mean", "device": "cpu"}
    corpus = files / "corpus.jsonl"
    retrieve.encode(model=tiny(), corpus=corpus, output=tmp_path / "command", **options)
    expected = vectors_of(tmp_path / "command")
    folder = denserk.encode(tiny(), tmp_path / "function", corpus=CORPUS, **options)
    assert folder == tmp_path / "function"
    np.testing.assert_array_equal(vectors_of(folder), expected)

    model = denserk.Encoder.load(tiny(), representation="mean", device="cpu")
    model.encode_to(tmp_path / "float16", corpus=corpus, vector_dtype="float16")
    np.testing.assert_allclose(vectors_of(tmp_path / "float16"), expected, atol=1e-3)

    model.encode_to(tmp_path / "queries", topics=QUERIES)
    index = denserk.Index.open(folder)
    run_by_vectors = index.search(vectors_of(tmp_path / "queries"), hits=3)
    run_by_texts = index.search(QUERIES, hits=3)
    assert list(run_by_vectors.values()) == list(run_by_texts.values())


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
    command_options = dict(options)
    if "tune" in options:
        command_options["tune"] = files / "qrels.txt"
    result = retrieve.fuse(runs=paths, output=output, **command_options)
    expected = denserk.Run.load(output)
    for runs in (RUNS, paths, [RUNS[0], paths[1]]):
        run = denserk.fuse(runs, **options)
        assert list(run) == list(expected)
        for qid, hits in run.items():
            assert list(hits) == list(expected[qid])
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
    paths: dict[str, Any] = {
        "topics": files / "queries.tsv",
        "qrels": files / "qrels.txt",
        "corpus": files / "corpus.jsonl",
    }
    runs = [files / "a.trec", files / "b.trec"]
    output = tmp_path / "command.jsonl"
    train.mine_negatives(run=runs, output=output, **paths, **options)
    expected = json_lines(output)

    assert denserk.mine_negatives(runs, **paths, **options) == expected
    output_of_function = tmp_path / "function.jsonl"
    examples = denserk.mine_negatives(runs, **paths, **options, output=output_of_function)
    assert examples == expected
    assert output_of_function.read_bytes() == output.read_bytes()

    examples = denserk.mine_negatives(RUNS, topics=QUERIES, qrels=QRELS, corpus=CORPUS, **options)
    assert without_run_names(examples) == without_run_names(expected)
    examples = denserk.mine_negatives(RUNS, train=expected, corpus=CORPUS, **options)
    assert [example["query_id"] for example in examples] == list(QUERIES)
    triples = denserk.mine_negatives(
        RUNS, topics=QUERIES, qrels=QRELS, output_format="triples", **options
    )
    assert triples[0].keys() == {"query", "positive", "negative"}
    assert capsys.readouterr().out == ""


def without_run_names(examples):
    """Training examples whose negatives do not name the run that they come from."""
    copied_examples = deepcopy(examples)
    for example in copied_examples:
        for passage in example["negative_passages"]:
            del passage["run"]
    return copied_examples


def test_generation(writer, files, tmp_path):
    options: dict[str, Any] = {
        "queries_model": writer("t5"),
        "num_queries": 2,
        "device": "cpu",
        "seed": 3,
    }
    output = tmp_path / "command.jsonl"
    data.generate(corpus=files / "corpus.jsonl", output=output, **options)
    assert denserk.generate(CORPUS, **options) == json_lines(output)
    output_of_function = tmp_path / "function.jsonl"
    denserk.generate(CORPUS, output_of_function, **options)
    assert output_of_function.read_bytes() == output.read_bytes()


def test_queries_are_copied_filtered_and_converted(files, tmp_path):
    """From a corpus to training data without a model; a second dog is not in the index."""
    pytest.importorskip("bm25s")
    denserk.BM25.build(files / "corpus.jsonl", output=tmp_path / "bm25")
    corpus = [*CORPUS, {"id": "d11", "title": "Dog", "text": "a blue one"}]
    options: dict[str, Any] = {"queries_from": ["title", "span"], "num_queries": 1}
    records = denserk.generate(corpus, tmp_path / "a.jsonl", **options)
    assert records[-1]["queries"] == ["Dog"]
    assert {source for record in records for source in record["sources"]} == {"title", "span"}
    *filtered, filtered_dog = denserk.generate(corpus, round_trip=tmp_path / "bm25", **options)
    assert filtered == records[:-1]
    assert filtered_dog == {
        "docid": "d11",
        "queries": [],
        "next": [],
        "sources": [],
        "positives": [],
    }
    query_count = sum(len(record["queries"]) for record in records)
    denserk.generate(CORPUS, tmp_path / "b.jsonl", **options)
    train = tmp_path / "train.jsonl"
    result = denserk.convert(tmp_path / "b.jsonl", train, corpus=files / "corpus.jsonl")
    assert (result.kind, result.unit, result.count) == ("training", "examples", query_count - 1)
    result = denserk.convert(tmp_path / "a.jsonl", tmp_path / "x.tsv", target_kind="queries")
    assert (result.kind, result.count) == ("queries", query_count)


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
    values_of_object = denserk.benchmark(["beir/scifact"], runs=run)
    assert list(values_of_object["beir/scifact"].values()) == list(values["beir/scifact"].values())
    with pytest.raises(GateError, match="nDCG@10"):
        denserk.benchmark("beir/scifact", runs=run, min="nDCG@10=2")
    with pytest.raises(UsageError, match="only for run files of one benchmark"):
        denserk.benchmark("beir/scifact", runs=tmp_path / "runs", min="nDCG@10=0")
    measures = list(values["beir/scifact"]["runs"])
    assert denserk.evaluate(run, QRELS, measures) == values["beir/scifact"]["runs"]


def test_an_explanation(files):
    views = denserk.explain(RUNS[0], QRELS, "q2", "RR@10 nDCG@10")
    assert {view.name for view in views} >= {"trec_eval", "BEIR", "MS MARCO script"}
    assert views[0].order == ("d5 (1)", "d1 (2)")
    assert denserk.explain(files / "a.trec", files / "qrels.txt", "q2", "RR@10 nDCG@10") == views


def test_bounds_over_unjudged_hits():
    runs = {"old": {"q": {"d1": 2.0, "d2": 1.0}}, "new": {"q": {"d1": 2.0, "d3": 1.0}}}
    qrels = {"q": {"d1": 1, "d2": 0}}
    bounds = denserk.judgment_bounds(runs, qrels, "P@2", baseline="old", to_judge=10)
    interval = bounds.differences["new"]["P@2"].interval
    assert (interval.low, interval.high) == (0.0, 0.5)
    assert interval.decision == "decided: not lower"
    assert bounds.plan is not None
    assert bounds.plan.pairs == ()
    alone = denserk.judgment_bounds(runs["new"], qrels, "P(rel=1)@2", relevance_level=2)
    assert alone.runs["run"]["P@2"].interval.high == 1.0
    with pytest.raises(UsageError, match="called old, new"):
        denserk.judgment_bounds(runs, qrels, baseline="older")


def test_details_of_an_evaluation():
    runs = {"a": RUNS[0], "b": RUNS[1]}
    evaluation = denserk.evaluate(runs, QRELS, "RR@10 nDCG@10", baseline="a", details=True)
    means = denserk.evaluate(runs, QRELS, "RR@10 nDCG@10", baseline="a")
    assert isinstance(evaluation, denserk.Evaluation)
    assert evaluation.summary == means
    assert evaluation.per_query["b"]["RR@10"] == {"q1": 0.5, "q2": 0.5, "q3": 1.0}
    difference = evaluation.comparison["b"]["RR@10"]
    assert difference.mean == pytest.approx(means["b"]["RR@10"] - means["a"]["RR@10"])
    assert difference.low <= difference.mean <= difference.high
    assert difference.corrected == means["b"]["RR@10 p"]
    assert (difference.wins, difference.ties, difference.losses) == (1, 0, 2)


def test_a_lower_alpha_widens_the_interval_of_a_difference():
    runs = {"a": RUNS[0], "b": RUNS[1]}
    options: dict[str, Any] = {"baseline": "a", "details": True, "correction": "none"}
    difference = denserk.evaluate(runs, QRELS, "RR@10", **options).comparison["b"]["RR@10"]
    options["alpha"] = 0.01
    wider_difference = denserk.evaluate(runs, QRELS, "RR@10", **options).comparison["b"]["RR@10"]
    assert wider_difference.low < difference.low
    assert wider_difference.p == difference.p


def test_details_of_one_run_are_not_by_name():
    evaluation = denserk.evaluate(RUNS[1], QRELS, "RR@10", details=True)
    assert evaluation.summary == {"RR@10": pytest.approx(2 / 3)}
    assert evaluation.per_query == {"RR@10": {"q1": 0.5, "q2": 0.5, "q3": 1.0}}
    assert evaluation.comparison == {}


def test_each_run_is_tested_against_the_previous_one():
    runs = {"a": RUNS[0], "b": RUNS[1]}
    means = denserk.evaluate(runs, QRELS, "RR@10", baseline="previous")
    assert "RR@10 p" in means["b"]


def test_an_evaluation_prints_what_the_command_prints(files, capsys):
    runs = {"a": files / "a.trec", "b": files / "b.trec"}
    qrels = files / "qrels.txt"
    evaluation = denserk.evaluate(runs, qrels, "RR@10 nDCG@10", baseline="a", details=True)
    paths = [str(path) for path in (*runs.values(), qrels)]
    options = ["-m", "RR@10 nDCG@10", "--baseline", "a", "-p", "2", "-q", "--quiet"]
    for output_format in ("table", "tsv", "json", "markdown", "latex"):
        assert command(["eval", *paths, *options, "--format", output_format]) == 0
        text = evaluation.table(output_format, places=2, per_query=True)
        assert text == capsys.readouterr().out
    misspelt: Any = "latx"
    with pytest.raises(UsageError, match=r"found 'latx', expected table or tsv or .* or latex"):
        evaluation.table(misspelt)


def test_the_formats_of_a_table_are_those_of_the_command():
    hint = get_type_hints(denserk.Evaluation.table)["format"]
    assert list(get_args(hint)) == [output_format.value for output_format in OutputFormat]


def test_a_message_names_the_run_that_is_wrong():
    with pytest.raises(UsageError, match="dense: found None"):
        denserk.evaluate({"bm25": RUNS[0], "dense": None}, QRELS)


def test_runs_without_names_are_several_runs():
    with pytest.raises(UsageError, match="found a list of runs"):
        denserk.evaluate(RUNS, QRELS)


def test_a_query_without_hits_stays_in_the_fused_run_and_is_not_in_its_file(tmp_path):
    runs = [{"q1": {"q1": 2.0}, "q2": {"d1": 1.0}}] * 2
    fused = denserk.fuse(runs, remove_query=True)
    fused.save(tmp_path / "fused.trec")
    assert fused["q1"] == {}
    assert list(fused["q2"]) == ["d1"]
    assert denserk.Run.load(tmp_path / "fused.trec") == {"q2": fused["q2"]}


def test_a_run_may_have_no_hits_for_the_only_query():
    found = {"q1": {"d1": 1.0}}
    without_hits: dict[str, dict[str, float]] = {"q1": {}}
    assert list(denserk.fuse([without_hits, found])["q1"]) == ["d1"]
    assert denserk.fuse([without_hits, without_hits], method="linear") == {"q1": {}}
