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


def made_for(suite, path="run.trec"):
    made = {"name": suite, "corpus": benchmarks()[suite].corpus.name}
    write_manifest(path, Manifest(Kind.RUN, True, made_from={"suite": made}))


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
    made_for("msmarco-titled-dev")
    suite = benchmarks()["msmarco-titled-dev"]
    result = evaluate_benchmark(["run.trec"], suite, against=(Paper.MASTER,))
    assert {"R@1000", "Success@1000"} <= set(result.runs[0].summary)
    assert {row.paper for row in result.published} == {Paper.MASTER}


@pytest.mark.parametrize(
    ("made", "asked"), [("msmarco-titled-dev", "msmarco-dev"), ("msmarco-dev", "dl19")]
)
def test_a_run_of_another_benchmark_or_corpus_is_rejected(cache, made, asked):
    write_marco(cache)
    made_for(made)
    with pytest.raises(MismatchError, match=f"was made for {made}") as refused:
        evaluate_benchmark(["run.trec"], benchmarks()[asked])
    assert refused.value.hint == f"denserk benchmark {made} --runs run.trec"


def test_a_folder_gives_every_set_and_the_means(cache, caplog):
    sets = ("nfcorpus", "fiqa", "arguana", "scidocs", "scifact")
    for name in sets:
        write_beir(cache, name)
    runs_folder("mine", *sets)
    runs_folder("other", *sets[:4], text="q1 Q0 d3 1 3 t\n")
    settings, against = EvalSettings(measures=("RR@10",)), (Paper.AGGRETRIEVER,)
    found = evaluate_benchmarks(["mine", "other"], ["beir-small"], settings, against)
    assert found.values("beir-small", "mine") == pytest.approx({"RR@10": 5 / 6})
    assert found.values("beir/fiqa", "other") == pytest.approx({"RR@10": 1 / 3})
    assert found.values("beir-small", "other") is None
    assert "other has no run of beir/scifact: no mean that needs them" in warnings_of(caplog)
    reported = {row.benchmark for row in found.published}
    assert reported == {*(f"beir/{name}" for name in sets), "beir-small"}


@pytest.mark.parametrize(
    "name", ["cqadupstack-gis.trec", "cqadupstack/gis.tsv.gz", "beir/cqadupstack/gis"]
)
def test_how_runs_are_named(cache, name):
    path = Path("runs") / name
    path.parent.mkdir(parents=True)
    path.touch()
    assert run_in_folder("runs", benchmarks()["beir/cqadupstack/gis"]) == path
    with pytest.raises(UsageError, match="holds no run of beir/scifact"):
        evaluate_benchmarks(["runs"], ["beir/scifact"])
    for ending in ("trec", "txt"):
        Path(f"runs/scifact.{ending}").touch()
    with pytest.raises(UsageError, match=r"scifact\.trec, scifact\.txt"):
        run_in_folder("runs", benchmarks()["beir/scifact"])


def test_the_command_prints_the_papers_rows_below(cache, capsys):
    write_marco(cache)
    arguments = ["benchmark", "dl19", "--runs", "run.trec", "--quiet", "-m", "nDCG@10"]
    arguments += ["--against", "aggretriever"]
    assert command([*arguments, "--format", "table"]) == 0
    first, second = capsys.readouterr().out.split("\n\n")
    assert first.splitlines()[0].split() == ["run", "nDCG@10"]
    lines = second.splitlines()
    assert lines[0].split() == ["paper", "benchmark", "row", "system", "setting", "nDCG@10"]
    assert lines[1].split() == ["aggretriever", "dl19", "T2.a", "BM25", "untrained", "0.506"]
    assert command([*arguments, "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["published"]
    assert (rows[0]["system"], rows[0]["values"]) == ("BM25", {"nDCG@10": 0.506})
    assert command([*arguments, "--format", "trec_eval"]) == 2
    assert "--against" in capsys.readouterr().err


def test_answers_of_a_benchmark(cache):
    folder = cache / "dpr"
    folder.mkdir(parents=True)
    (folder / "psgs_w100.tsv").write_text("id\ttext\ttitle\n1\tin 1990\tt\n2\tin 19dd\tt\n")
    (folder / "nq-test.qa.csv").write_text("when\t['19\\\\d\\\\d', '19dd', ' ']\n")
    (folder / "curatedtrec-test.qa.csv").write_text("when\t['19\\\\d\\\\d']\n")
    Path("run.trec").write_text("0 Q0 1 1 3 t\n0 Q0 2 2 2 t\n")
    firsts = []
    for name, strict in (("nq-test", False), ("nq-test", True), ("curated-test", False)):
        settings = EvalSettings(topk=(1,), strict_dpr=strict)
        result = evaluate_benchmark(["run.trec"], benchmarks()[name], settings)
        firsts.append(result.runs[0].summary["Success@1"])
    assert firsts == [0, 1, 1]
    assert list(result.runs[0].summary) == ["Success@5", "Success@20", "Success@100", "Success@1"]


KNOWN = {**benchmarks(), **groups()}
NOT_RETRIEVAL = {"STS-b Test", "Wiki Section Test", "CoLA", "MRPC", "STS-B", "QQP"}


@pytest.mark.parametrize("paper", Paper)
def test_every_figure_is_what_the_paper_prints_and_has_its_benchmark(paper, specs):
    with (specs / "paper_tables" / f"{paper}.csv").open(newline="") as file:
        printed = list(csv.DictReader(file))
    kept = figures(paper)
    assert len(kept) == len(printed) > 100
    for figure, row in zip(kept, printed, strict=True):
        names = ("table", "system", "label", "metric", "value")
        theirs = ("row", "system", "dataset", "metric", "value")
        assert [figure[name] for name in names] == [row[name] for name in theirs]
        if "6 or 8" not in figure["setting"]:
            assert figure["setting"] == row["setting"]
    shown = sum(len(row.values) for name in KNOWN for row in published_rows(paper, name))
    measured = {metric for suite in benchmarks().values() for metric in suite.metrics}
    keys = ("label", "metric", "table", "system", "setting")
    reported = {tuple(figure[key] for key in keys) for figure in kept}
    assert shown == sum(k[1] in measured and k[0] not in NOT_RETRIEVAL for k in reported)
    for name in KNOWN:
        assert bool(published_rows(paper, name)) == (paper in find_benchmark(name).labels)
