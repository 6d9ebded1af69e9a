import pytest

from denserk.errors import UsageError
from denserk.evaluation.measures import TREC_NAMES, parse_measures, trec_spelling


def names(*texts: str, level: int = 1) -> list[str]:
    return [str(measure) for measure in parse_measures(texts, level).measures]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (" \n nDCG@10 ,  RR@10 nDCG@10", ["nDCG@10", "RR@10"]),
        ("NDCG@10 MRR@10 MAP Recall@5 Precision@5", ["nDCG@10", "RR@10", "AP", "R@5", "P@5"]),
        ("AP(rel=2, judged_only=True)@100", ["AP(rel=2,judged_only=True)@100"]),
        ("nDCG(gains={0: 0, 1: 5, 2: 9})@10", ["nDCG(gains={1:5,2:9})@10"]),
        ("ndcg_cut.10 ndcg_cut_10 nDCG@10", ["nDCG@10"]),
        ("P.5,10 P_20", ["P@5", "P@10", "P@20"]),
        ("success", ["Success@1", "Success@5", "Success@10"]),
        ("iprec_at_recall_0.10 IPrec@0 IPrec@1", ["IPrec@0.1", "IPrec@0.0", "IPrec@1.0"]),
        ("set_F SetF(beta=2)", ["SetF", "SetF(beta=2.0)"]),
        ("num_rel_ret NumRelRet", ["NumRet(rel=1)"]),
        ("ndcg@10 NDCG_CUT_10 ndcg_cut.10", ["nDCG@10"]),
        ("mrr MRR@10 mrr_10 recip_rank", ["RR", "RR@10"]),
        ("recall@100 RECALL_100 r@100", ["R@100"]),
        ("Hits@5 hit@5 hit_rate@5", ["Success@5"]),
        ("map Map@100 MAP_CUT.5,10", ["AP", "AP@100", "AP@5", "AP@10"]),
        ("p@5,10 mrr(rel=2)@10 r-prec", ["P@5", "P@10", "RR(rel=2)@10", "Rprec"]),
    ],
)
def test_notations(typed: str, expected: list[str]) -> None:
    assert names(typed) == expected


def test_the_level_goes_where_no_other_is_named() -> None:
    typed = "AP AP(rel=1) AP(rel=3) RR@10 nDCG@10 Judged@10 NumRet NumRelRet NumRel"
    assert names(typed, level=2) == [
        *("AP(rel=2)", "AP", "AP(rel=3)", "RR(rel=2)@10", "nDCG@10", "Judged@10", "NumRet"),
        *("NumRet(rel=2)", "NumRel(rel=2)"),
    ]


@pytest.mark.parametrize(
    ("typed", "complaint"),
    [
        ("nDGC@10", "nDGC@10 is not a measure of ir-measures (nearest: nDCG@10"),
        ("mrr10", "mrr10 is not a measure of ir-measures (nearest: MRR@10"),
        ("accuracy@1", "whether a relevant passage is among the first hits is Success@1"),
        ("AP(rel=0)", "AP(rel=0): the lowest relevant grade is 0"),
        ("IPrec@0.333", "IPrec@0.333: recall 0.333"),
        ("IPrec@2", "IPrec@2: recall 2.0"),
        ("nDCG(gains={1: 0.5})@5", "grades and gains are whole numbers"),
        ("nDCG(gains={1: 1000000000})@5", "gains are at most 10000"),
        ("Compat(p=3.0)", "Compat(p=3.0): p 3.0"),
        ("relative_P_5", "relative_P_5 is not a measure of ir-measures"),
        ("R", "R: R takes cutoff (required), rel, judged_only"),
        ("nDCG@0", "nDCG@0: nDCG takes cutoff, dcg, gains, judged_only"),
        ("AP(depth=5)", "AP(depth=5): AP takes cutoff, rel, judged_only"),
        ("RR(judged_only=True)@10", "RR(judged_only=True)@10 is computed by no installed package"),
        ("nDCG@10 foo R utility foo", "foo is not a measure of ir-measures; R: R takes cutoff"),
    ],
)
def test_mistakes(typed: str, complaint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_measures([typed])
    assert complaint in caught.value.message


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("name", [*TREC_NAMES, "ndcg_cut_7", "P_100", "iprec_at_recall_0.20"])
def test_trec_names_are_parsed_and_spelled_alike(name: str, level: int) -> None:
    measures = parse_measures([name], level).measures
    spelled = [trec_spelling(measure, level) for measure in measures]
    assert spelled == [name] or {one.rpartition("_")[0] for one in spelled} == {name}
