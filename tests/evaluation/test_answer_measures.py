import pytest

from denserk.errors import UsageError
from denserk.evaluation.answer_measures import choose_answer_measures, depth_of


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["Success@5 Success@20"], ["Success@5", "Success@20"]),
        (["success.5,20", "success_5"], ["Success@5", "Success@20"]),
        (["MRR@10, Precision@3"], ["RR@10", "P@3"]),
    ],
)
def test_names(texts, expected):
    assert list(map(str, choose_answer_measures(texts))) == expected


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (["nDCG@10"], "nDCG@10 needs every relevant passage, and answers tell only of those"),
        (["recall.100"], r"R@100 needs .* call R@100 or top-100 accuracy is Success@100\)"),
        (["AP R@5", "R@20"], r"AP, R@5 and R@20 need .*Success@5, .* is Success@20\)"),
        (["Judged@10"], "Judged@10 is not measured by answers"),
        (["RR"], "RR needs a cutoff, as in RR@10"),
        (["P(rel=2)@5"], r"P\(rel=2\)@5: a passage holds an answer or not, so no rel"),
        ([], "no measure is named"),
        (
            ["succes@5 AP Success"],
            r"succes@5 is unknown \(nearest: Success@5.*\); Success needs a cutoff.*; AP needs",
        ),
    ],
)
def test_refusals_name_all(texts, told):
    with pytest.raises(UsageError, match=told) as refusal:
        choose_answer_measures(texts)
    assert "Success@k, RR@k, P@k" in (refusal.value.hint or "")


def test_depth():
    assert depth_of(choose_answer_measures(["Success@5 RR@50 P@20"])) == 50
