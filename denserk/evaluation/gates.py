"""Minima that a run has to reach."""

from collections.abc import Sequence
from dataclasses import dataclass

from denserk.errors import GateError, UsageError
from denserk.evaluation.evaluator import EvaluationResult
from denserk.evaluation.measures import Measure, parse_measures
from denserk.settings.evaluation import Bound


@dataclass(frozen=True)
class Gate:
    """A measure and the least value it may have."""

    measure: Measure
    value: float


def as_gates(bounds: Sequence[Bound], relevance_level: int = 1) -> tuple[Gate, ...]:
    """Reads the measures of bounds.

    Raises:
        UsageError: a measure is unknown, or a name stands for several.
    """
    measures = (
        parse_measures([b.measure for b in bounds], relevance_level).measures if bounds else ()
    )
    several = [b.measure for b in bounds if len(parse_measures([b.measure]).measures) > 1]
    if several:
        raise UsageError(
            f"--min {', '.join(several)}: stands for several measures; one is expected",
            f"name one of {', '.join(map(str, measures))}",
        )
    return tuple(
        Gate(parse_measures([bound.measure], relevance_level).measures[0], bound.value)
        for bound in bounds
    )


def below(result: EvaluationResult, gates: Sequence[Gate]) -> list[str]:
    """One phrase for each run and gate it does not reach; a mean that is no number does not."""
    phrases = []
    for run in result.runs:
        whose = f"{run.name}: " if len(result.runs) > 1 else ""
        for gate in gates:
            value = run.summary[str(gate.measure)]
            if not value >= gate.value:
                shown = f"{value:.4f}"
                if not float(shown) < gate.value:
                    shown = repr(value)
                phrases.append(f"{whose}{gate.measure} is {shown}, under {gate.value:.10g}")
    return phrases


def require(result: EvaluationResult, gates: Sequence[Gate]) -> None:
    """Refuses a result that does not reach every gate.

    Raises:
        GateError: with every measure, its value, and the bound.
    """
    if phrases := below(result, gates):
        raise GateError("; ".join(phrases))
