import pytest

from denserk.config.evaluation import (
    AnswerInput,
    AnswerSettings,
    Bound,
    EvaluationSettings,
    ReportSettings,
    parse_bound,
    reject_unused,
)
from denserk.config.formats import CorpusFormat, CorpusSettings
from denserk.errors import UsageError


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
    with pytest.raises(UsageError, match="--min"):
        parse_bound(text)


def test_refusals() -> None:
    with pytest.raises(UsageError, match="relevance-level 0"):
        EvaluationSettings(relevance_level=0)
    with pytest.raises(UsageError, match="--places 18"):
        ReportSettings(places=18)
    with pytest.raises(UsageError, match="--no-summary"):
        ReportSettings(summary=False)


def test_answers_need_a_corpus():
    with pytest.raises(UsageError, match="--answers"):
        AnswerInput(answers="a.qa.csv")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"topk": (5, 0)}, "topk=5,0: at least 1"),
        ({"num_workers": 0}, "--num-workers 0: at least 1"),
        ({"regex": True, "strict_dpr": True}, "--strict-dpr"),
        ({"write_dpr_json": "-"}, "standard output"),
    ],
)
def test_rejected_answer_settings(given, told):
    with pytest.raises(UsageError, match=told):
        AnswerSettings(**given)


def test_options_that_would_do_nothing_are_named_together():
    groups = [AnswerSettings(num_workers=2), CorpusSettings(CorpusFormat.DPR)]
    with pytest.raises(UsageError, match=r"^--num-workers, --corpus-format: for answers$"):
        reject_unused(groups, "for answers", "leave them out")
    reject_unused([AnswerSettings(), CorpusSettings()], "for answers", "leave them out")
