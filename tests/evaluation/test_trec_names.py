import pytest

from denserk.evaluation.measures import (
    CUT,
    TREC_NAMES,
    TREC_ONLY,
    TREC_SETS,
    parse_measures,
    trec_spelling,
)


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("name", [name for name in TREC_NAMES if name != "iprec_at_recall"])
def test_names_survive_the_way_there_and_back(name: str, level: int) -> None:
    typed = [f"{name}_5", f"{name}_10"] if name in CUT else [name]
    measures = parse_measures(typed, level).measures
    assert [trec_spelling(str(measure), level) for measure in measures] == typed


def test_recall_levels_are_printed_to_two_places() -> None:
    measures = parse_measures(["iprec_at_recall"]).measures
    printed = [trec_spelling(str(measure)) for measure in measures]
    assert printed == [f"iprec_at_recall_{tenth / 10:.2f}" for tenth in range(11)]


@pytest.mark.parametrize(
    ("measure", "level"),
    [
        ("RR@10", 1),
        ("Judged@10", 1),
        ("AP(rel=2)", 1),
        ("AP(rel=3)", 2),
        ("P(judged_only=True)@5", 1),
    ],
)
def test_what_trec_eval_has_no_name_for_keeps_its_own(measure: str, level: int) -> None:
    assert trec_spelling(measure, level) == measure


def test_known_and_unknown_names_are_apart_and_sets_name_both() -> None:
    assert not set(TREC_NAMES) & set(TREC_ONLY)
    known = {"runid", *TREC_NAMES, *TREC_ONLY}
    assert all(set(names) <= known for names in TREC_SETS.values())
