import ir_measures
import pytest

from denserk.errors import UsageError
from denserk.evaluation.measures import (
    TREC_NAMES,
    TREC_ONLY,
    TREC_SETS,
    counts_judgments,
    is_count,
    parse_measures,
    providers_of,
    split_measures,
)


def names(*texts: str, level: int = 1) -> list[str]:
    return [str(measure) for measure in parse_measures(texts, level).measures]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("nDCG@10 RR@10", ["nDCG@10", "RR@10"]),
        ("nDCG@10,RR@10", ["nDCG@10", "RR@10"]),
        (" \n nDCG@10 ,  RR@10 ", ["nDCG@10", "RR@10"]),
        ("NDCG@10 MRR@10 MAP Recall@5 Precision@5", ["nDCG@10", "RR@10", "AP", "R@5", "P@5"]),
        ("AP(rel=2, judged_only=True)@100", ["AP(rel=2,judged_only=True)@100"]),
        ("nDCG(gains={0: 0, 1: 5, 2: 9})@10", ["nDCG(gains={1:5,2:9})@10"]),
        ("ndcg_cut.10 ndcg_cut_10 nDCG@10", ["nDCG@10"]),
        ("P.5,10 P_20", ["P@5", "P@10", "P@20"]),
        ("recip_rank map bpref Rprec infAP", ["RR", "AP", "Bpref", "Rprec", "infAP"]),
        ("success", ["Success@1", "Success@5", "Success@10"]),
        ("iprec_at_recall_0.10 IPrec@0 IPrec@1", ["IPrec@0.1", "IPrec@0.0", "IPrec@1.0"]),
        ("set_F SetF(beta=2)", ["SetF", "SetF(beta=2.0)"]),
        ("num_rel_ret NumRelRet", ["NumRet(rel=1)"]),
    ],
)
def test_what_is_typed(typed: str, expected: list[str]) -> None:
    assert names(typed) == expected


def test_several_lists_are_one() -> None:
    assert names("nDCG@10", "RR@10 nDCG@10") == ["nDCG@10", "RR@10"]


def test_the_level_goes_where_no_other_is_named() -> None:
    typed = "AP AP(rel=1) AP(rel=3) RR@10 nDCG@10 Judged@10 NumRet NumRelRet NumRel"
    assert names(typed, level=2) == [
        *("AP(rel=2)", "AP", "AP(rel=3)", "RR(rel=2)@10", "nDCG@10", "Judged@10", "NumRet"),
        *("NumRet(rel=2)", "NumRel(rel=2)"),
    ]


@pytest.mark.parametrize("name", TREC_SETS)
def test_sets_name_what_they_leave_out(name: str) -> None:
    choice = parse_measures([name])
    assert choice.measures
    assert set(choice.left_out) == set(TREC_SETS[name]) & set(TREC_ONLY)


@pytest.mark.parametrize("measure", [m for m in ir_measures.measures.registry if m.isascii()])
def test_everything_ir_measures_registers_is_measured_or_told_why_not(measure: str) -> None:
    told = ""
    try:
        chosen = parse_measures([measure]).measures
        assert providers_of(chosen) or all(map(counts_judgments, chosen))
    except UsageError as error:
        told = error.message
    assert "unknown" not in told


@pytest.mark.parametrize("name", TREC_NAMES)
def test_every_trec_name_is_measured(name: str) -> None:
    assert parse_measures([name]).measures


@pytest.mark.parametrize(
    ("typed", "complaint"),
    [
        ("ndcg@10", "ndcg@10 is unknown (nearest: nDCG@10"),
        ("NDGC@5", "NDGC@5 is unknown (nearest: nDCG@5"),
        ("ndcg_cutt.10", "ndcg_cutt.10 is not how a measure is written (nearest: ndcg_cut.10"),
        ("qqq", "qqq is unknown"),
        ("gm_bpref", "gm_bpref is a measure of trec_eval that ir-measures does not know"),
        ("relative_P_5", "relative_P_5 is a measure of trec_eval that ir-measures does not know"),
        ("recip_rank.10", "recip_rank.10: trec_eval's recip_rank takes no parameter"),
        ("R", "R needs a cutoff, as in R@10"),
        ("IPrec", "IPrec needs a recall, as in IPrec@0.1"),
        ("nDCG@0", "nDCG@0: cutoff cannot be 0"),
        ("nDCG@1.5", "nDCG@1.5: cutoff cannot be 1.5"),
        ("P@True", "P@True: cutoff cannot be True"),
        ("IPrec@0.123", "IPrec@0.123: recall cannot be 0.123"),
        ("IPrec@2", "IPrec@2: recall cannot be 2.0"),
        ("AP(rel='x')", "AP(rel='x'): rel cannot be 'x'"),
        ("AP(depth=5)", "AP(depth=5): no parameter depth (it takes: cutoff, rel, judged_only)"),
        ("nDCG@", "nDCG@ is not how a measure is written"),
        ("map(", "map( is not how a measure is written"),
        ("__import__('os')@3", "__import__('os')@3 is not how a measure is written"),
        ("RR(judged_only=True)@10", "RR(judged_only=True)@10 is not computed by any"),
        ("", "no measure is named"),
        (" , ", "no measure is named"),
    ],
)
def test_mistakes(typed: str, complaint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_measures([typed])
    assert complaint in caught.value.message


def test_all_mistakes_are_told_together() -> None:
    with pytest.raises(UsageError) as caught:
        parse_measures(["nDCG@10 foo R", "utility foo"])
    assert caught.value.message.count(";") == 2
    assert all(name in caught.value.message for name in ("foo", "R needs", "utility"))


def test_counts_are_summed() -> None:
    assert [is_count(m) for m in parse_measures(["NumQ NumRet NumRel RR P@5"]).measures] == [
        *(True, True, True),
        *(False, False),
    ]


@pytest.mark.parametrize("text", ["a(b c)d e", "a({b c})@3 e", "a(b,c) e", "a(b,c),e"])
def test_brackets_hold_a_measure_together(text: str) -> None:
    assert split_measures(text)[-1] == "e"
    assert len(split_measures(text)) == 2
