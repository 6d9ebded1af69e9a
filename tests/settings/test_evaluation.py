import pytest

from denserk.errors import UsageError
from denserk.settings.evaluation import (
    Bound,
    EvaluationSettings,
    ReportSettings,
    parse_bound,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nDCG@10=0.30", Bound("nDCG@10", 0.3)),
        (" map = 1e-1 ", Bound("map", 0.1)),
        ("AP(rel=2)=0", Bound("AP(rel=2)", 0.0)),
    ],
)
def test_bounds(text: str, expected: Bound) -> None:
    assert parse_bound(text) == expected


@pytest.mark.parametrize(
    "text", ["", "nDCG@10", "nDCG@10=", "=0.3", "nDCG@10=x", "map=nan", "map=inf"]
)
def test_what_is_no_bound(text: str) -> None:
    with pytest.raises(UsageError, match="a measure, an equals sign and a number"):
        parse_bound(text)


def test_refusals() -> None:
    with pytest.raises(UsageError, match="relevance-level 0"):
        EvaluationSettings(relevance_level=0)
    with pytest.raises(UsageError, match="--places 18"):
        ReportSettings(places=18)
    with pytest.raises(UsageError, match="--no-summary"):
        ReportSettings(summary=False)
