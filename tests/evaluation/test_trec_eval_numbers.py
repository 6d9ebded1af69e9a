"""The numbers that trec_eval printed, to its four places."""

import gzip
from pathlib import Path

import pytest

from denserk.config.evaluation import EvaluationSettings, OutputFormat, ReportSettings
from denserk.evaluation.evaluator import evaluate
from denserk.evaluation.measures import TREC_NAMES, TREC_ONLY, trec_name
from denserk.evaluation.tables import render

Numbers = dict[tuple[str, str], str]


def parse(text: str) -> Numbers:
    """(measure, query or `all`) -> the number as printed."""
    lines = [line.split() for line in text.splitlines()]
    return {(name, qid): value for name, qid, value in lines}


def measured(run: Path, qrels: Path, measures: str, level: int = 1) -> Numbers:
    settings = EvaluationSettings((measures,), relevance_level=level)
    result = evaluate([str(run)], str(qrels), settings)
    return parse(render(result, ReportSettings(per_query=True), OutputFormat.TREC_EVAL))


def known(numbers: Numbers) -> Numbers:
    """Without the lines whose measure ir-measures does not know."""
    return {key: value for key, value in numbers.items() if _base(key[0]) not in TREC_ONLY}


def _base(name: str) -> str:
    if name == "runid":
        return name
    base, _ = trec_name(name)
    assert base is not None, f"{name} is in no table"
    return base


@pytest.mark.parametrize(
    ("measures", "file"), [("official", "out.test"), ("all_trec", "out.test.a")]
)
def test_its_own_test_run(shared_data: Path, measures: str, file: str) -> None:
    folder = shared_data / "trec-eval"
    numbers = measured(folder / "results.test", folder / "qrels.test", measures)
    expected = known(parse((folder / file).read_text()))
    # trec_eval 10 rounds recall levels to whole passages, 9 (and ir-measures) adds 0.9 and cuts.
    assert expected.pop(("iprec_at_recall_0.10", "all")) == "0.3885"
    assert expected.pop(("iprec_at_recall_0.60", "all")) == "0.0858"
    assert {key: numbers[key] for key in expected} == expected
    assert {_base(name) for name, _ in expected} == (
        {"runid", *TREC_NAMES} if measures == "all_trec" else {_base(name) for name, _ in numbers}
    )


@pytest.mark.parametrize(("level", "expected"), [(0.1, "0.3885"), (0.6, "0.0858")])
def test_the_two_lines_left_out_differ_by_that_rounding_alone(
    shared_data: Path, level: float, expected: str
) -> None:
    judged, run = _read(shared_data / "trec-eval")
    by_rule: dict[str, list[float]] = {"10": [], "9": []}
    for qid, grades in judged.items():
        ranked = sorted(run[qid], key=lambda docid: (run[qid][docid], docid), reverse=True)
        found = [grades.get(docid, 0) > 0 for docid in ranked]
        count = sum(grade > 0 for grade in grades.values())
        for rule, need in (("10", int(level * count + 0.5)), ("9", int(level * count + 0.9))):
            precisions = [
                sum(found[: i + 1]) / (i + 1)
                for i in range(len(found))
                if sum(found[: i + 1]) >= need
            ]
            by_rule[rule].append(max(precisions, default=0.0))
    assert f"{sum(by_rule['10']) / 3:.4f}" == expected
    folder = shared_data / "trec-eval"
    ours = measured(folder / "results.test", folder / "qrels.test", f"iprec_at_recall.{level}")
    assert f"{sum(by_rule['9']) / 3:.4f}" == ours[f"iprec_at_recall_{level:.2f}", "all"]


def test_that_rounding_can_move_one_topic_from_0_to_1(tmp_path: Path) -> None:
    """Recall 0.60 of two passages is 1.2: trec_eval 10 asks for one of them, 9 for both."""
    (tmp_path / "qrels").write_text("q 0 a 1\nq 0 b 1\n")
    (tmp_path / "run").write_text("q Q0 a 1 1 t\n")
    ours = measured(tmp_path / "run", tmp_path / "qrels", "iprec_at_recall.0.5,0.6")
    assert ours["iprec_at_recall_0.50", "q"] == "1.0000"
    assert ours["iprec_at_recall_0.60", "q"] == "0.0000"  # 1.0000 in trec_eval 10


def _read(folder: Path) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, float]]]:
    judged: dict[str, dict[str, int]] = {}
    run: dict[str, dict[str, float]] = {}
    for line in (folder / "qrels.test").read_text().splitlines():
        qid, _, docid, grade = line.split()
        judged.setdefault(qid, {})[docid] = int(grade)
    for line in (folder / "results.test").read_text().splitlines():
        qid, _, docid, _, score, _ = line.split()
        run.setdefault(qid, {})[docid] = float(score)
    return judged, run


def test_every_topic_of_a_real_run_at_level_2(shared_data: Path) -> None:
    folder = shared_data / "dl-hard"
    with gzip.open(folder / "bm25.eval.gz", "rt") as lines:
        expected = known(parse(lines.read()))
    numbers = measured(folder / "bm25.run.gz", folder / "dl_hard-passage.qrels", "all_trec", 2)
    # trec_eval -c -l 2 counts num_rel at grade 2 for a topic, but at grade 1 over all of them.
    topics = [int(v) for (name, qid), v in expected.items() if name == "num_rel" and qid != "all"]
    assert expected.pop(("num_rel", "all")) == "1794"
    assert numbers["num_rel", "all"] == str(sum(topics)) == "984"
    assert {key: numbers[key] for key in expected} == expected
    assert len(expected) == 64 * 50 + 66


@pytest.mark.parametrize(
    ("run", "expected"), [("bm25", "0.5058"), ("tasb", "0.7210"), ("splade-pp-ed", "0.7308")]
)
def test_published_runs(shared_data: Path, run: str, expected: str) -> None:
    folder = shared_data / "marco-dl19"
    numbers = measured(
        folder / "runs" / f"{run}.trec.gz",
        folder / "nist" / "qrels.dl19-passage.txt",
        "ndcg_cut.10",
    )
    assert numbers["ndcg_cut_10", "all"] == expected
