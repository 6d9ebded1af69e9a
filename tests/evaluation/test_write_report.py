from dataclasses import replace
from pathlib import Path

import pytest

from denserk.config.benchmarks import Benchmark, benchmarks
from denserk.config.evaluation import EvaluationSettings, PageSettings, ReportSources
from denserk.errors import InputError, UsageError
from denserk.evaluation.evaluator import evaluate
from denserk.evaluation.report import page_in, sources_of, write_report
from denserk.evaluation.results import EvaluationResult
from denserk.io.manifest import Kind, Manifest, write_manifest
from tests.conftest import PASSAGES, QUERIES
from tests.reporters import Heard
from tests.suite_copies import write_beir, write_marco

RUNS = {
    "good.trec": "q1 Q0 d3 1 3 t\nq2 Q0 d1 1 3 t\nq2 Q0 d5 2 2 t\nq3 Q0 d4 1 2 t\n",
    "bad.trec": "q1 Q0 d1 1 3 t\nq1 Q0 d3 2 2 t\nq2 Q0 d2 1 3 t\nq3 Q0 d4 1 2 t\n",
}
FEW = EvaluationSettings(("RR@10 R@2",))


@pytest.fixture
def files(toy: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(toy)
    for name, lines in RUNS.items():
        (toy / name).write_text(lines)
    return toy


@pytest.fixture
def result(files: Path) -> EvaluationResult:
    return evaluate(list(RUNS), "qrels.txt", FEW)


def page_of(result: EvaluationResult, sources: ReportSources, **settings: int) -> str:
    told = PageSettings(report="pages/report", **settings)  # type: ignore[arg-type]
    path = write_report(result, list(RUNS), sources, told, FEW)
    assert path == Path("pages/report/index.html")
    return path.read_text("utf-8")


def test_texts_of_what_is_shown_and_of_nothing_else(result: EvaluationResult) -> None:
    sources = ReportSources("toy", "qrels.txt", "queries.tsv", "corpus.jsonl")
    page = page_of(result, sources, report_queries=1, report_passages=1)
    assert all(text in page for text in QUERIES.values())
    shown = [docid for docid, (_, text) in PASSAGES.items() if text in page]
    assert shown == ["d1", "d2"]  # the tops of q2, which moved most


def test_the_corpus_is_read_no_further_than_needed(result: EvaluationResult, files: Path) -> None:
    with (files / "corpus.jsonl").open("a") as out:
        out.write("not json\n")
    sources = ReportSources("toy", "qrels.txt", None, "corpus.jsonl")
    assert PASSAGES["d1"][1] in page_of(result, sources, report_queries=1, report_passages=1)
    (files / "bad.trec").write_text(RUNS["bad.trec"].replace("d2", "lost"))
    with pytest.raises(InputError, match="line 7"):
        page_of(result, sources, report_queries=1, report_passages=1)


def test_what_is_lacking_is_told(result: EvaluationResult) -> None:
    listener = Heard()
    settings = PageSettings(report="page")
    write_report(result, list(RUNS), ReportSources("toy", "qrels.txt"), settings, FEW)
    assert "queries (--topics) and passages (--corpus)" in listener.notes[-2]
    assert listener.notes[-1].startswith("No manifest beside the runs")
    listener = Heard()
    write_report(result, list(RUNS), ReportSources("toy"), settings, FEW)
    assert listener.notes[0].startswith("Recall by depth, scores and ranked lists need qrels")


def test_manifests_know_texts_and_costs(result: EvaluationResult, files: Path) -> None:
    made = {"index": {"name": "index", "bytes": 12_300_000}, "topics": {"name": "queries.tsv"}}
    contents = {"queries": 3, "seconds": {"encoding": 0.03, "searching": 0.06}}
    write_manifest("good.trec", Manifest(Kind.RUN, True, {}, made, contents))
    for folder, kind, made_from in (
        ("index", Kind.INDEX, {"vectors": ["vectors"]}),
        ("vectors", Kind.VECTORS, {"texts": "corpus.jsonl"}),
    ):
        (files / folder).mkdir()
        write_manifest(folder, Manifest(kind, True, {}, made_from))
    page = page_of(result, ReportSources("toy", "qrels.txt"))
    assert "good 12.3 MB." in page
    assert "good 30 ms." in page
    assert PASSAGES["d1"][1] in page
    assert QUERIES["q1"] in page
    write_manifest("index", Manifest(Kind.INDEX, True, {}, {"texts": "gone.jsonl"}))
    assert PASSAGES["d1"][1] not in page_of(result, ReportSources("toy", "qrels.txt"))


def test_recall_is_of_the_measures_grade_and_their_queries(files: Path) -> None:
    (files / "bad.trec").write_text("q2 Q0 d5 1 3 t\n")  # of grade 1
    settings = EvaluationSettings(("RR@10 R(rel=2)@2",), complete=False)
    result = evaluate(list(RUNS), "qrels.txt", settings)
    path = write_report(
        result, list(RUNS), ReportSources("t", "qrels.txt"), PageSettings("page"), settings
    )
    page = path.read_text("utf-8")
    assert "relevant passages of grade 2 or higher" in page
    assert '<th scope="row">1</th><td class="number">0.3333</td><td class="number">0.0000' in page


@pytest.mark.parametrize("name", ["beir/scifact", "msmarco-dev"])
def test_suites_on_this_disk_know_their_texts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DENSERK_CACHE", str(tmp_path))
    write_beir(tmp_path, "scifact")
    write_marco(tmp_path)
    suite: Benchmark = benchmarks()[name]
    found = sources_of(suite, ReportSources("given", topics="mine"))
    assert (found.title, found.topics) == (suite.title, "mine")
    assert found.corpus is not None
    assert found.qrels is not None
    (tmp_path / "msmarco" / "collection.tsv").unlink()
    if name == "msmarco-dev":
        assert sources_of(suite, ReportSources("given")).corpus is None


def test_where_a_page_cannot_be(files: Path) -> None:
    with pytest.raises(UsageError, match="a folder is expected"):
        page_in(PageSettings(report="qrels.txt"))
    with pytest.raises(UsageError, match="standard input can be read only once"):
        page_in(PageSettings(report="page"), ["a.trec", "-"])


def test_queries_own_passages_are_left_out_as_they_were(files: Path) -> None:
    (files / "good.trec").write_text("q1 Q0 q1 1 3 t\nq1 Q0 d3 2 2 t\n")
    settings = replace(FEW, remove_query=True)
    result = evaluate(["good.trec"], "qrels.txt", settings)
    sources = ReportSources("toy", "qrels.txt")
    path = write_report(result, ["good.trec"], sources, PageSettings("page"), settings)
    assert "<code>q1</code>" not in path.read_text("utf-8")
