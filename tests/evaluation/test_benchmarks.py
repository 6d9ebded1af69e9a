import csv
import json
from pathlib import Path

import pytest

from denserk.commands.app import run as command
from denserk.config.benchmarks import Paper, benchmarks, find_benchmark, groups
from denserk.config.evaluation import EvalSettings
from denserk.errors import MismatchError, UsageError
from denserk.evaluation.benchmarks import figures, published_rows, run_in_folder
from denserk.io.manifest import Kind, Manifest, write_manifest
from denserk.tasks.benchmark import evaluate_benchmark, evaluate_benchmarks
from tests.support.benchmark_copies import write_beir, write_marco
from tests.support.console import warnings_of

RUN = "q1 Q0 d3 1 3 t\nq2 Q0 d1 1 3 t\nq2 Q0 d5 2 2 t\nq3 Q0 d1 1 3 t\nq3 Q0 d4 2 2 t\n"


@pytest.fixture
def cache(cache):
    Path("run.trec").write_text(RUN)
    return cache


def write_run_manifest(benchmark):
    """Write the manifest of a run that was made for a benchmark."""
    origin = {"name": benchmark, "corpus": benchmarks()[benchmark].corpus.name}
    write_manifest("run.trec", Manifest(Kind.RUN, True, made_from={"suite": origin}))


def runs_folder(name, *stems, text=RUN):
    Path(name).mkdir(exist_ok=True)
    for stem in stems:
        (Path(name) / f"{stem}.trec").write_text(text)


def test_beir_drops_the_hit_that_is_the_query(cache):
    write_beir(cache, "arguana")
    Path("run.trec").write_text("q1 Q0 q1 1 9 t\n" + RUN)
    result = evaluate_benchmark(
        ["run.trec"], benchmarks()["beir/arguana"], EvalSettings(measures=("RR@10",))
    )
    assert result.runs[0].per_query["RR@10"]["q1"] == 1.0


def test_measures_of_a_paper_are_computed(cache):
    write_marco(cache)
    write_run_manifest("msmarco-titled-dev")
    benchmark = benchmarks()["msmarco-titled-dev"]
    result = evaluate_benchmark(["run.trec"], benchmark, against=(Paper.MASTER,))
    assert {"R@1000", "Success@1000"} <= set(result.runs[0].summary)
    assert {row.paper for row in result.published} == {Paper.MASTER}


@pytest.mark.parametrize(
    ("origin", "benchmark"), [("msmarco-titled-dev", "msmarco-dev"), ("msmarco-dev", "dl19")]
)
def test_a_run_of_another_benchmark_or_corpus_is_rejected(cache, origin, benchmark):
    write_marco(cache)
    write_run_manifest(origin)
    with pytest.raises(MismatchError, match=f"was made for {origin}") as caught:
        evaluate_benchmark(["run.trec"], benchmarks()[benchmark])
    assert caught.value.hint == f"denserk benchmark {origin} --runs run.trec"


def test_a_folder_gives_every_benchmark_and_the_means(cache, caplog):
    datasets = ["nfcorpus", "fiqa", "arguana", "scidocs", "scifact"]
    for dataset in datasets:
        write_beir(cache, dataset)
    runs_folder("whole", *datasets)
    runs_folder("without-scifact", *datasets[:4], text="q1 Q0 d3 1 3 t\n")
    result = evaluate_benchmarks(
        ["whole", "without-scifact"],
        ["beir-small"],
        EvalSettings(measures=("RR@10",)),
        against=(Paper.AGGRETRIEVER,),
    )
    assert result.values("beir-small", "whole") == pytest.approx({"RR@10": 5 / 6})
    assert result.values("beir/fiqa", "without-scifact") == pytest.approx({"RR@10": 1 / 3})
    assert result.values("beir-small", "without-scifact") is None
    warning = "without-scifact has no run of beir/scifact: no mean that needs them"
    assert warning in warnings_of(caplog)
    reported_names = {row.benchmark for row in result.published}
    assert reported_names == {"beir-small", *(f"beir/{dataset}" for dataset in datasets)}


def test_measures_of_mteb_are_computed_on_several_benchmarks(cache):
    for dataset in ("scifact", "nfcorpus", "fiqa"):
        write_beir(cache, dataset)
    runs_folder("runs", "scifact", "nfcorpus", "fiqa")
    names = ["beir/scifact", "beir/nfcorpus", "beir/fiqa"]
    result = evaluate_benchmarks(["runs"], names, against=(Paper.MTEB,))
    on_scifact = result.values("beir/scifact", "runs")
    assert on_scifact is not None
    assert list(on_scifact) == ["nDCG@10", "R@100", "AP@100"]
    assert on_scifact["AP@100"] == pytest.approx(5 / 6)
    on_fiqa = result.values("beir/fiqa", "runs")  # which MTEB's rows here do not report
    assert on_fiqa is not None
    assert list(on_fiqa) == ["nDCG@10", "R@100"]
    values = {(row.system, row.benchmark): row.values for row in result.published}
    assert values["sentence-transformers/all-mpnet-base-v2", "beir/nfcorpus"] == {
        "nDCG@10": "0.33289",
        "R@100": "0.33853",
        "AP@100": "0.15675",
    }
    assert not any(row.is_evaluated for row in result.published)  # runs without a manifest


@pytest.mark.parametrize(
    "name", ["sentence-transformers/all-MiniLM-L6-v2@main", "../models/all-MiniLM-L6-v2"]
)
def test_the_row_of_the_evaluated_model_is_marked(cache, capsys, name):
    write_beir(cache, "scifact")
    runs_folder("runs", "scifact")
    manifest = Manifest(Kind.RUN, True, made_from={"model": {"name": name}})
    write_manifest("runs/scifact.trec", manifest)
    for runs in ("runs", "runs/scifact.trec"):
        arguments = ["benchmark", "beir/scifact", "--runs", runs, "--against", "mteb", "--quiet"]
        assert command([*arguments, "--format", "table"]) == 0
        marked = [line for line in capsys.readouterr().out.splitlines() if "here" in line]
        assert len(marked) == 1
        assert "all-MiniLM-L6-v2 (evaluated here)" in marked[0]
        assert "0.6451" in marked[0]
        assert command([*arguments, "--format", "json"]) == 0
        rows = json.loads(capsys.readouterr().out)["published"]
        assert [row["is_evaluated"] for row in rows] == [True, False]


@pytest.mark.parametrize(
    "name", ["cqadupstack-gis.trec", "cqadupstack/gis.tsv.gz", "beir/cqadupstack/gis"]
)
def test_how_runs_are_named(cache, name):
    path = Path("runs") / name
    path.parent.mkdir(parents=True)
    path.touch()
    assert run_in_folder("runs", benchmarks()["beir/cqadupstack/gis"]) == path


def test_a_folder_without_a_run_or_with_two_is_rejected(cache):
    Path("runs").mkdir()
    with pytest.raises(UsageError, match="holds no run of beir/scifact"):
        evaluate_benchmarks(["runs"], ["beir/scifact"])
    Path("runs/scifact.trec").touch()
    Path("runs/scifact.txt").touch()
    with pytest.raises(UsageError, match=r"scifact\.trec, scifact\.txt"):
        run_in_folder("runs", benchmarks()["beir/scifact"])


def test_the_command_prints_the_papers_rows_below(cache, capsys):
    write_marco(cache)
    arguments = ["benchmark", "dl19", "--runs", "run.trec", "--quiet", "-m", "nDCG@10"]
    arguments += ["--against", "aggretriever"]
    assert command([*arguments, "--format", "table"]) == 0
    results, published = capsys.readouterr().out.split("\n\n")
    assert results.split()[:2] == ["run", "nDCG@10"]
    header, bm25, *_ = published.splitlines()
    assert header.split() == ["paper", "benchmark", "row", "system", "setting", "nDCG@10"]
    assert bm25.split() == ["aggretriever", "dl19", "T2.a", "BM25", "untrained", "0.506"]
    assert command([*arguments, "--format", "json"]) == 0
    row, *_ = json.loads(capsys.readouterr().out)["published"]
    assert row["system"] == "BM25"
    assert row["values"] == {"nDCG@10": 0.506}
    assert command([*arguments, "--format", "trec_eval"]) == 2
    assert "--against" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "strict_dpr", "accuracy"),
    [
        ("nq-test", False, 0),
        ("nq-test", True, 1),  # the answer without a token is in every text
        ("curated-test", False, 1),  # answers are regular expressions
    ],
)
def test_answers_of_a_benchmark(cache, name, strict_dpr, accuracy):
    folder = cache / "dpr"
    folder.mkdir(parents=True)
    (folder / "psgs_w100.tsv").write_text("id\ttext\ttitle\n1\tin 1990\tt\n2\tin 19dd\tt\n")
    (folder / "nq-test.qa.csv").write_text("when\t['19\\\\d\\\\d', '19dd', ' ']\n")
    (folder / "curatedtrec-test.qa.csv").write_text("when\t['19\\\\d\\\\d']\n")
    Path("run.trec").write_text("0 Q0 1 1 3 t\n0 Q0 2 2 2 t\n")
    settings = EvalSettings(topk=(1,), strict_dpr=strict_dpr)
    (run,) = evaluate_benchmark(["run.trec"], benchmarks()[name], settings).runs
    assert run.summary["Success@1"] == accuracy
    assert list(run.summary) == ["Success@5", "Success@20", "Success@100", "Success@1"]


KNOWN = {**benchmarks(), **groups()}
PAPERS = [paper for paper in Paper if paper is not Paper.MTEB]
NOT_RETRIEVAL = {"STS-b Test", "Wiki Section Test", "CoLA", "MRPC", "STS-B", "QQP"}


@pytest.mark.parametrize("paper", PAPERS)
def test_every_figure_is_what_the_paper_prints(paper, specs):
    with (specs / "paper_tables" / f"{paper}.csv").open(newline="") as file:
        printed_rows = list(csv.DictReader(file))
    assert len(printed_rows) > 100
    for figure, printed in zip(figures(paper), printed_rows, strict=True):
        assert figure["table"] == printed["row"]
        assert figure["system"] == printed["system"]
        assert figure["label"] == printed["dataset"]
        assert figure["metric"] == printed["metric"]
        assert figure["value"] == printed["value"]
        if "6 or 8" not in figure["setting"]:
            assert figure["setting"] == printed["setting"]


@pytest.mark.parametrize("paper", Paper)
def test_every_figure_of_retrieval_has_its_benchmark(paper):
    metrics: set[str] = set()
    for benchmark in benchmarks().values():
        metrics.update(benchmark.metrics)
    columns = ("label", "metric", "table", "system", "setting")
    retrieval_figures = set()
    for figure in figures(paper):
        if figure["metric"] in metrics and figure["label"] not in NOT_RETRIEVAL:
            retrieval_figures.add(tuple(figure[column] for column in columns))
    published_count = 0
    for name in KNOWN:
        rows = published_rows(paper, name)
        assert bool(rows) == (paper in find_benchmark(name).labels)
        published_count += sum(len(row.values) for row in rows)
    assert published_count == len(retrieval_figures)
