import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from denserk.config.evaluation import DEFAULT_MEASURES, EvaluationSettings
from denserk.errors import GateError, InputError, MismatchError, UsageError
from denserk.evaluation.evaluator import TIE_ORDER, Evaluator, check_minimums, evaluate, minimums
from denserk.evaluation.measures import PROVIDERS, parse_measures
from denserk.evaluation.results import EvaluationResult
from tests.reporters import Heard

RUN = "q1 Q0 d3 1 3.0 t\nq1 Q0 q1 2 2.0 t\nq2 Q0 d9 1 2.0 t\nq2 Q0 d1 2 2.0 t\nx Q0 d1 1 1.0 t\n"


@pytest.fixture
def run(tmp_path: Path) -> str:
    path = tmp_path / "mine.trec"
    path.write_text(RUN)
    return str(path)


def test_defaults(toy: Path, run: str) -> None:
    result = evaluate([run], str(toy / "qrels.txt"))
    assert tuple(map(str, result.measures)) == DEFAULT_MEASURES
    assert result.queries == ("q1", "q2", "q3")
    (mine,) = result.runs
    assert mine.name == "mine"
    assert mine.summary["RR@10"] == (1 + 1 / 1 + 0) / 3


def test_what_is_told(toy: Path, run: str) -> None:
    listener = Heard()
    evaluate([run], str(toy / "qrels.txt"), EvaluationSettings(("official RR@10",)))
    assert listener.warnings == [
        "mine: 1 of 3 judged queries are not in the run: 'q3'; they count as 0",
        "mine: lines that tie with another of their query: 1 ('q2'); readers order ties "
        "differently: NumRet, NumRet(rel=1), AP and 23 more by passage id descending "
        "(pytrec_eval); RR@10 by passage id ascending (msmarco)",
    ]
    assert listener.notes[-1] == "mine: queries without judgments, which do not count: 1 ('x')"


def test_queries_left_out_are_told_as_such(toy: Path, run: str) -> None:
    listener = Heard()
    settings = EvaluationSettings(("RR@10",), complete=False)
    result = evaluate([run], str(toy / "qrels.txt"), settings)
    assert result.runs[0].summary == {"RR@10": (1 + 1) / 2}
    assert listener.warnings[0].endswith("they are left out of the means")


def test_remove_query_drops_the_hit_that_is_the_query(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("q1 Q0 q1 1 3.0 t\nq1 Q0 d1 2 2.0 t\nq2 Q0 q2 1 1.0 t\n")
    (tmp_path / "qrels").write_text("q1 0 d1 1\nq2 0 d1 1\n")
    files = [str(tmp_path / "run")], str(tmp_path / "qrels")
    kept = evaluate(*files, EvaluationSettings(("RR@10",)))
    assert kept.runs[0].per_query == {"RR@10": {"q1": 1 / 2, "q2": 0.0}}
    dropped = evaluate(*files, EvaluationSettings(("RR@10 Judged@10",), remove_query=True))
    assert dropped.runs[0].per_query["RR@10"] == {"q1": 1.0, "q2": 0.0}
    assert dropped.runs[0].missing == ("q2",)


def test_gates_are_measured_once_and_come_last(toy: Path, run: str) -> None:
    settings = EvaluationSettings(("nDCG@10 RR@10",), min=("MRR@10=0.1", "P_5=0.1", "P@5=0"))
    result = evaluate([run], str(toy / "qrels.txt"), settings)
    assert [str(measure) for measure in result.measures] == ["nDCG@10", "RR@10", "P@5"]
    check_minimums(result, settings)


def test_measures_are_refused_before_any_file_is_read() -> None:
    with pytest.raises(UsageError, match="foo is unknown"):
        evaluate(["absent.run"], "absent.qrels", EvaluationSettings(("foo",)))


def test_no_query_in_common(toy: Path, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("301 Q0 d3 1 3.0 t\n")
    with pytest.raises(MismatchError, match=r"run answers queries '301'; .* 'q1', 'q2', 'q3'"):
        evaluate([str(tmp_path / "run")], str(toy / "qrels.txt"))


def test_a_broken_file_is_named_with_its_line(toy: Path, tmp_path: Path) -> None:
    (tmp_path / "run").write_text(RUN + "q3 Q0 d1 1 nan t\n")
    with pytest.raises(InputError, match=r"run, line 6: found .*nan"):
        evaluate([str(tmp_path / "run")], str(toy / "qrels.txt"))


def test_the_order_of_ties_is_told_for_providers_that_exist() -> None:
    assert set(TIE_ORDER) <= {provider.NAME for provider in PROVIDERS}


def judged(*ranks: int, measure: str = "RR@10") -> EvaluationResult:
    """One run for each rank at which it finds the relevant passage of the only query."""
    evaluator = Evaluator(parse_measures([measure]).measures, {"q": {"a": 1}})
    hits = [{("a" if r == rank else f"n{r}"): -r for r in range(1, 9)} for rank in ranks]
    runs = [evaluator.evaluate(f"run{r}", {"q": h}) for r, h in zip(ranks, hits, strict=True)]
    return EvaluationResult(evaluator.measures, 1, evaluator.queries, tuple(runs), {})


@pytest.mark.parametrize(
    ("bounds", "ranks", "said"),
    [
        (("RR@10=0.5",), [2], None),
        (("RR@10=-1",), [2], None),
        ((), [2], None),
        (("RR@10=0.50001",), [2], "RR@10 is 0.5000, under 0.50001"),
        (("MRR@10=0.9",), [1, 2, 4], "run2: RR@10 is 0.5000, under 0.9; run4: RR@10 is 0.2500, u"),
        (("RR@10=1", "RR@10=0.3"), [2], "RR@10 is 0.5000, under 1"),
        (("RR@10=0.1667",), [6], "RR@10 is 0.16666666666666666, under 0.1667"),
    ],
)
def test_minimum_values(bounds: tuple[str, ...], ranks: list[int], said: str | None) -> None:
    settings = EvaluationSettings(min=bounds)
    if said is None:
        check_minimums(judged(*ranks), settings)
        return
    with pytest.raises(GateError, match=re.escape(said)) as caught:
        check_minimums(judged(*ranks), settings)
    assert caught.value.exit_status == 1


def test_nan_reaches_no_minimum() -> None:
    result = judged(1)
    runs = (replace(result.runs[0], summary={"RR@10": math.nan}),)
    with pytest.raises(GateError, match="RR@10 is nan, under 0"):
        check_minimums(replace(result, runs=runs), EvaluationSettings(min=("RR@10=0",)))


def test_minimum_values_take_the_relevance_level_and_one_measure() -> None:
    ((measure, _),) = minimums(EvaluationSettings(min=("map=0.1",), relevance_level=2))
    assert str(measure) == "AP(rel=2)"
    with pytest.raises(UsageError, match="--min P: stands for several measures"):
        minimums(EvaluationSettings(min=("P=0.1",)))
