"""Benchmarks of the hub and of ir_datasets, in copies with the names and fields of their files."""

import gzip
import json
from pathlib import Path

import pytest

from denserk.commands.app import run
from denserk.config.benchmarks import benchmarks, find_benchmarks
from denserk.io.corpus import read_passages
from denserk.io.qrels import read_qrels_map
from denserk.io.runs import read_run_scores
from denserk.tasks.benchmark import evaluate_benchmark
from tests.support.benchmark_copies import (
    write_bright,
    write_marco_v2,
    write_miracl,
    write_nanobeir,
    write_packed,
    write_parquet,
)
from tests.support.toy import PASSAGES, QRELS, QUERIES
from tests.support.training_examples import jsonl

JUDGED_AS_RELEVANT = {qid: dict.fromkeys(judged, 1) for qid, judged in QRELS.items()}


def make(name, model, *words):
    """Make and evaluate the run of a benchmark; return its hits."""
    command = ["benchmark", name, "--model", str(model), "--output", "runs", "--device", "cpu"]
    assert run([*command, *words]) == 0
    return read_run_scores(f"runs/{benchmarks()[name].short}.trec")


def measures_of(name):
    return benchmarks()[name].measures


def summary_of(name, path=None):
    benchmark = benchmarks()[name]
    result = evaluate_benchmark([path or f"runs/{benchmark.short}.trec"], benchmark)
    return result.runs[0].summary


def test_nanobeir(cache, tiny):
    folder = write_nanobeir(cache, "NanoSciFact")
    hits = make("nanobeir/scifact", tiny())
    assert hits.keys() == QUERIES.keys()
    assert all(judged.keys() == PASSAGES.keys() for judged in hits.values())
    assert read_qrels_map(folder) == JUDGED_AS_RELEVANT
    summary = summary_of("nanobeir/scifact")
    assert list(summary) == ["nDCG@10", "R@100"]
    assert summary["R@100"] == 1


def test_a_mean_of_nanobeir_needs_all_of_its_sets(cache, capsys):
    names = [benchmark.name for benchmark in find_benchmarks(["nanobeir"])]
    assert len(names) == 13
    for name in names:
        [path] = benchmarks()[name].topics.paths
        write_nanobeir(cache, Path(path).name)
    Path("runs").mkdir()
    for name in names:
        ranking = "q1 Q0 d3 1 1 t\nq2 Q0 d1 1 1 t\nq3 Q0 d4 1 1 t\n"
        Path("runs", f"{benchmarks()[name].short}.trec").write_text(ranking)
    assert run(["benchmark", "nanobeir", "--runs", "runs", "--format", "tsv", "--quiet"]) == 0
    assert "nanobeir\t" in capsys.readouterr().out
    Path("runs", "nanobeir-nq.trec").unlink()
    assert run(["benchmark", "nanobeir", "--runs", "runs", "--format", "tsv", "--quiet"]) == 0
    assert "nanobeir\t" not in capsys.readouterr().out


def test_nanobeir_is_a_development_set(cache, tiny):
    write_nanobeir(cache, "NanoNQ")
    examples = [
        {"query": text, "positive": PASSAGES[next(iter(QRELS[qid]))][1], "negative": "a dog"}
        for qid, text in QUERIES.items()
    ]
    jsonl(Path("train.jsonl"), examples)
    command = ["finetune", "--model", str(tiny()), "--train-data", "train.jsonl"]
    command += ["--output", "model", "--batch-size", "3", "--group-size", "2", "--max-steps", "2"]
    for option in ("--dev-corpus", "--dev-topics", "--dev-qrels"):
        command += [option, "cache/nanobeir/NanoNQ"]
    command += ["--best-by", "RR@10", "--eval-steps", "1", "--device", "cpu"]
    assert run(command) == 0
    record = json.loads(Path("model/training.json").read_text())
    assert "RR@10" in json.dumps(record)


def test_bright_leaves_out_the_passages_that_its_topics_exclude(cache, tiny, capsys):
    excluded = {"q1": ["d1", "d2"], "q3": ["d10"]}
    write_bright(cache, "biology", excluded)
    hits = make("bright/biology", tiny())
    for qid in QUERIES:
        expected = PASSAGES.keys() - excluded.get(qid, [])
        assert hits[qid].keys() == expected
    examples = cache / "bright/examples/biology-00000-of-00001.parquet"
    assert read_qrels_map(examples) == JUDGED_AS_RELEVANT
    summary = summary_of("bright/biology")
    assert list(summary) == ["nDCG@10", "R@100"]


def test_excluded_hits_of_other_tools_do_not_count(cache, caplog):
    write_bright(cache, "pony", {"q1": ["d1", "d2"]})
    Path("other.trec").write_text(
        "q1 Q0 d1 1 9 t\nq1 Q0 d2 2 8 t\nq1 Q0 d3 3 7 t\nq2 Q0 d2 1 3 t\nq2 Q0 d5 2 2 t\n"
    )
    Path("without.trec").write_text("q1 Q0 d3 1 7 t\nq2 Q0 d2 1 3 t\nq2 Q0 d5 2 2 t\n")
    assert summary_of("bright/pony", "other.trec") == summary_of("bright/pony", "without.trec")
    assert "other.trec: 2 hits that" in caplog.text
    assert not any("without.trec" in line and "hits that" in line for line in caplog.messages)


@pytest.mark.parametrize(
    ("year", "qrels"),
    [
        (2021, "2021.qrels.pass.final.txt"),
        (2022, "2022.qrels.pass.withDupes.txt"),
        (2023, "2023.qrels.pass.withDupes.txt"),
    ],
)
def test_deep_learning_tracks_of_ms_marco_v2(cache, tiny, year, qrels):
    write_marco_v2(cache, year, qrels)
    name = f"dl{year % 100}"
    hits = make(name, tiny())
    assert hits["q1"].keys() == PASSAGES.keys()  # ids of passages, and not of their document
    summary = summary_of(name)
    assert list(summary) == ["nDCG@10", "AP(rel=2)@100", "RR(rel=2)@100", "R(rel=2)@100"]
    # d1 is the one passage of grade 2; queries without one count as 0
    ranking = sorted(hits["q2"], key=lambda docid: -hits["q2"][docid])
    expected = 1 / (ranking.index("d1") + 1)
    assert summary["RR(rel=2)@100"] == pytest.approx(expected / len(QRELS))


def test_miracl(cache, tiny):
    write_miracl(cache, "sw")
    hits = make("miracl/sw", tiny())
    assert hits["q1"].keys() == PASSAGES.keys()
    assert list(summary_of("miracl/sw")) == ["nDCG@10", "R@100"]
    manifest = json.loads(Path("runs/corpora/miracl-sw/vectors/manifest.json").read_text())
    assert manifest["made_from"]["model"]["text"]["fields"] == ["title", "text"]


@pytest.mark.parametrize("group", ["nanobeir", "bright", "miracl"])
def test_benchmarks_of_a_group_have_the_same_measures_and_own_corpora(group):
    members = find_benchmarks([group])
    assert {member.measures for member in members} == {("nDCG@10", "R@100")}
    assert len({member.corpus.name for member in members}) == len(members)
    assert {member.exclude_listed for member in members} == {group == "bright"}


def test_qrels_without_grades_and_other_columns_are_an_error(cache, capsys):
    Path("run.trec").write_text("q1 Q0 d1 1 1 t\n")
    write_parquet(Path("pairs.parquet"), [{"query-id": "q1", "corpus-id": "d1"}])
    assert run(["eval", "run.trec", "--qrels", "pairs.parquet", "-m", "RR", "--quiet"]) == 0
    assert capsys.readouterr().out == "RR\t1.0000\n"
    for number, record in enumerate(
        [{"query-id": "q1", "corpus-id": "d1", "split": "train"}, {"qid": "q1", "docid": "d1"}]
    ):
        write_parquet(Path(f"{number}.parquet"), [record])
        assert run(["eval", "run.trec", "--qrels", f"{number}.parquet", "-m", "RR"]) == 1
        assert f"found the columns {', '.join(record)}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"gold_ids": ["d1"], "query": "a"}, "found gold_ids and no id"),
        ({"id": "q1", "gold_ids": "d1"}, "found a string as gold_ids; expected a list"),
    ],
)
def test_broken_lists_of_relevant_passages_are_errors(cache, capsys, record, message):
    Path("run.trec").write_text("q1 Q0 d1 1 1 t\n")
    Path("examples.jsonl").write_text(json.dumps(record))
    assert run(["eval", "run.trec", "--qrels", "examples.jsonl", "-m", "RR"]) == 1
    assert message in capsys.readouterr().err


def test_files_without_an_ending_but_gz_are_records_if_they_hold_json(cache):
    write_packed(Path("packed/passages_00.gz"), [{"id": "d1", "text": "a"}])
    assert [passage.docid for passage in read_passages("packed")] == ["d1"]
    Path("trec").mkdir()
    document = b"<DOC>\n<DOCNO> LA010189-0001 </DOCNO>\n<TEXT>\nrain\n</TEXT>\n</DOC>\n"
    Path("trec/la010189.gz").write_bytes(gzip.compress(document))
    assert [passage.docid for passage in read_passages("trec")] == ["LA010189-0001"]
