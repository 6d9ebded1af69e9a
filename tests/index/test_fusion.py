"""Fusion against sums written out, and the laws that hold for any runs."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.index.fusion import NORMALIZERS, normalized, reciprocal_ranks, weighted_scores
from denserk.settings.fusion import Missing, Normalization

WORDS = [("d1", 12.0), ("d2", 8.0), ("d3", 4.0)]
VECTORS = [("d3", 0.75), ("d1", 0.5), ("d4", 0.25)]


def test_reciprocal_ranks():
    assert reciprocal_ranks([WORDS, VECTORS], [1, 1]) == {
        "d1": 1 / (60 + 1) + 1 / (60 + 2),
        "d2": 1 / (60 + 2),
        "d3": 1 / (60 + 3) + 1 / (60 + 1),
        "d4": 1 / (60 + 3),
    }
    assert reciprocal_ranks([WORDS, VECTORS], [0.5, 2], k=0)["d3"] == 0.5 / 3 + 2 / 1


@pytest.mark.parametrize(
    ("normalization", "missing", "expected"),
    [
        ("min-max", "zero", [0.25 * 1 + 0.5, 0.25 * 0.5, 0.25 * 0 + 1, 0]),
        ("min-max", "lowest", [0.25 * 1 + 0.5, 0.25 * 0.5, 0.25 * 0 + 1, 0]),
        ("none", "zero", [0.25 * 12 + 0.5, 0.25 * 8, 0.25 * 4 + 0.75, 0.25]),
        ("none", "lowest", [0.25 * 12 + 0.5, 0.25 * 8 + 0.25, 0.25 * 4 + 0.75, 0.25 * 4 + 0.25]),
        ("zmuv", "zero", [0.25 * 1.5**0.5, 0, -0.25 * 1.5**0.5 + 1.5**0.5, -(1.5**0.5)]),
        ("zmuv", "lowest", [0.25 * 1.5**0.5, -(1.5**0.5), 0.75 * 1.5**0.5, -1.25 * 1.5**0.5]),
    ],
)
def test_weighted_scores(normalization, missing, expected):
    fused = weighted_scores(
        [WORDS, VECTORS], [0.25, 1], Normalization(normalization), Missing(missing)
    )
    assert sorted(fused) == ["d1", "d2", "d3", "d4"]
    assert [fused[f"d{n}"] for n in range(1, 5)] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("normalization", "value"),
    [(Normalization.MIN_MAX, 1.0), (Normalization.ZMUV, 0.0), (Normalization.NONE, 7.5)],
)
def test_equal_scores(normalization, value):
    assert normalized([7.5], normalization) == [value]
    assert normalized([7.5] * 3, normalization) == [value] * 3


def test_a_run_without_hits_adds_nothing():
    for missing in Missing:
        fused = weighted_scores([WORDS, []], [1, 1], Normalization.NONE, missing)
        assert fused == dict(WORDS)


def test_every_normalization_has_its_function():
    assert set(NORMALIZERS) == set(Normalization)


RUNS = st.lists(
    st.dictionaries(st.sampled_from([f"d{n}" for n in range(8)]), st.integers(-50, 50), max_size=8),
    min_size=2,
    max_size=5,
)


def best_first(run):
    return sorted(((docid, float(s)) for docid, s in run.items()), key=lambda hit: (-hit[1], hit))


@given(RUNS, st.randoms(use_true_random=False))
def test_the_order_of_the_runs_changes_nothing(runs, random):
    pairs = [(best_first(run), weight) for weight, run in enumerate(runs, start=1)]
    shuffled = random.sample(pairs, len(pairs))
    for fuse in (reciprocal_ranks, weighted_scores):
        one, other = (
            fuse([hits for hits, _ in order], [weight for _, weight in order])
            for order in (pairs, shuffled)
        )
        assert one == other


@given(RUNS, st.sampled_from(list(Missing)))
def test_scores_are_the_sums_of_the_definition(runs, missing):
    lists = [best_first(run) for run in runs]
    for normalization in Normalization:
        fused = weighted_scores(lists, [1] * len(lists), normalization, missing)
        assert set(fused) == {docid for run in runs for docid in run}
        for docid, score in fused.items():
            total = 0.0
            for run in filter(None, runs):
                values = list(run.values())
                low, mean = min(values), sum(values) / len(values)
                spread = math.sqrt(sum((v - mean) ** 2 for v in values) / len(values))
                value = run.get(docid, low if missing is Missing.LOWEST else None)
                if value is None:
                    continue
                if normalization is Normalization.NONE:
                    total += value
                elif normalization is Normalization.ZMUV:
                    total += (value - mean) / spread if spread else 0
                elif docid in run:
                    total += (value - low) / (max(values) - low) if spread else 1
            assert score == pytest.approx(total, abs=1e-9)
