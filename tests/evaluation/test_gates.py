import pytest

from denserk.errors import GateError, UsageError
from denserk.evaluation.evaluator import EvaluationResult, Evaluator
from denserk.evaluation.gates import as_gates, below, require
from denserk.evaluation.measures import parse_measures
from denserk.settings.evaluation import parse_bound


def result(*ranks: int) -> EvaluationResult:
    """One run for each rank at which it finds the relevant passage of the only query."""
    measures = parse_measures(["RR@10 Accuracy"]).measures
    evaluator = Evaluator(measures, {"q": {"a": 1}})
    runs = tuple(
        evaluator.evaluate(
            f"run{rank}", {"q": {("a" if r == rank else f"n{r}"): -r for r in range(1, 9)}}
        )
        for rank in ranks
    )
    return EvaluationResult(measures, 1, evaluator.queries, runs, evaluator.providers)


@pytest.mark.parametrize(
    ("bounds", "ranks", "told"),
    [
        (["RR@10=0.5"], [2], []),
        (["RR@10=0.50001"], [2], ["RR@10 is 0.5000, under 0.50001"]),
        (["RR@10=0.33334"], [3], ["RR@10 is 0.3333, under 0.33334"]),
        (
            ["MRR@10=0.9"],
            [1, 2, 4],
            ["run2: RR@10 is 0.5000, under 0.9", "run4: RR@10 is 0.2500, under 0.9"],
        ),
        (["RR@10=1", "RR@10=0.3"], [2], ["RR@10 is 0.5000, under 1"]),
        (["RR@10=-1"], [2], []),
        ([], [2], []),
    ],
)
def test_what_stays_under(bounds: list[str], ranks: list[int], told: list[str]) -> None:
    gates = as_gates([parse_bound(bound) for bound in bounds])
    assert below(result(*ranks), gates) == told


def test_a_value_that_only_rounds_to_the_bound_is_told_in_full() -> None:
    (phrase,) = below(result(3), as_gates([parse_bound("RR@10=0.33333333334")]))
    assert phrase == "RR@10 is 0.3333, under 0.3333333333"
    (phrase,) = below(result(6), as_gates([parse_bound("RR@10=0.1667")]))
    assert phrase == "RR@10 is 0.16666666666666666, under 0.1667"


def test_a_mean_over_nothing_reaches_no_gate() -> None:
    evaluator = Evaluator(parse_measures(["Accuracy"]).measures, {"q": {"a": 1}})
    run = evaluator.evaluate("run", {"q": {"b": 1.0}})
    nothing = EvaluationResult(evaluator.measures, 1, ("q",), (run,), {})
    assert below(nothing, as_gates([parse_bound("Accuracy=0")])) == ["Accuracy is nan, under 0"]


def test_require_names_all_of_them() -> None:
    gates = as_gates([parse_bound("RR@10=0.9")])
    require(result(1), gates)
    with pytest.raises(GateError, match=r"run2: .*; run4: .*") as caught:
        require(result(1, 2, 4), gates)
    assert caught.value.exit_status == 1


def test_gates_take_the_level() -> None:
    (gate,) = as_gates([parse_bound("map=0.1")], 2)
    assert str(gate.measure) == "AP(rel=2)"


@pytest.mark.parametrize(
    ("bound", "told"),
    [("P=0.1", "--min P: stands for several measures"), ("foo=0.1", "foo is unknown")],
)
def test_refused(bound: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        as_gates([parse_bound(bound)])
