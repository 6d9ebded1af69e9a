from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.analysis.sentence_similarity import (
    average_ranks,
    figure_of,
    score_examples,
    spearman,
)

FEW = st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0, 1e9]), min_size=2, max_size=12)


def literal_ranks(values):
    """Of equal values, the mean of the places that they take together."""
    places = [sorted(values).index(value) + 1 for value in values]
    return [
        place + (values.count(value) - 1) / 2 for place, value in zip(places, values, strict=True)
    ]


@given(FEW)
def test_ranks(values):
    assert average_ranks(np.array(values)).tolist() == literal_ranks(values)


def test_spearman_by_hand():
    # ranks 1 2.5 2.5 4 and 2 1 3 4: deviations -1.5 0 0 1.5 and -.5 -1.5 .5 1.5
    expected = (0.75 + 2.25) / sqrt(4.5 * 5)
    found = spearman(np.array([0.0, 0.4, 0.4, 0.9]), np.array([2.0, 1.0, 3.0, 5.0]))
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("scale", [1.0, -1.0])
def test_only_the_order_counts(scale):
    labels = np.array([0.1, 0.2, 3.0, 4.0])
    assert spearman(scale * np.exp(labels), labels) == pytest.approx(scale)


def test_nothing_correlates_with_a_constant():
    assert spearman(np.ones(4), np.arange(4.0)) == spearman(np.arange(4.0), np.ones(4)) == 0


@given(st.integers(0, 10_000), st.integers(2, 40))
def test_spearman_is_scipy_s(seed, count):
    stats = pytest.importorskip("scipy.stats")
    draw = np.random.default_rng(seed)
    scores, labels = draw.normal(size=count), draw.integers(0, 4, count).astype(float)
    if len(set(labels)) > 1:
        assert spearman(scores, labels) == pytest.approx(stats.spearmanr(scores, labels).statistic)


def test_pairs_score_their_cosine():
    vectors = np.array([[[3, 4], [6, 8]], [[1, 0], [0, 2]], [[1, 0], [-1, 1]], [[0, 0], [1, 1]]])
    expected = [1, 0, -1 / sqrt(2), 0]
    assert score_examples(vectors.astype(np.float32)) == pytest.approx(expected)


def test_triplets_score_where_the_positive_is_nearer():
    vectors = np.array(
        [[[0, 0], [3, 4], [0, 6]], [[0, 0], [3, 4], [5, 0]], [[0, 0], [9, 0], [1, 0]]]
    )
    assert score_examples(vectors.astype(np.float32)).tolist() == [1, 0, 0]


def test_figures():
    assert figure_of(np.array([1.0, 0.0, 1.0, 1.0]), None) == ("accuracy", 0.75)
    assert figure_of(np.array([1.0, 2.0]), np.array([0.0, 5.0])) == ("spearman", 1.0)


@pytest.mark.parametrize("size", [2, 3])
def test_what_is_no_number_stays_none(size):
    vectors = np.ones((2, size, 4))
    vectors[1, 1, 2] = np.nan
    assert np.isnan(score_examples(vectors)).tolist() == [False, True]
