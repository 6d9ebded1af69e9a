import numpy as np
import pytest

from denserk.config.retrieval import Metric
from denserk.errors import NotFiniteError
from denserk.index import exact_few
from denserk.index.exact import ExactIndex
from denserk.index.exact_few import CpuExactIndex

DIMENSION = 24


@pytest.fixture
def vectors():
    return np.random.default_rng(3).standard_normal((5000, DIMENSION), dtype=np.float32)


@pytest.fixture
def queries():
    return np.random.default_rng(4).standard_normal((7, DIMENSION), dtype=np.float32)


@pytest.mark.parametrize("metric", Metric)
@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("depth", [1, 10, 1250])
def test_hits_are_those_of_the_search_in_torch(vectors, queries, metric, size, depth):
    index = CpuExactIndex(vectors, metric, size)
    in_torch = ExactIndex(vectors, metric, size)
    for count in (0, 1, len(queries)):
        scores, rows = index.search(queries[:count], depth)
        expected_scores, expected_rows = in_torch.search(queries[:count], depth)
        np.testing.assert_array_equal(rows, expected_rows)
        np.testing.assert_allclose(scores, expected_scores, rtol=1e-5, atol=1e-5)


def test_many_queries_are_searched_for_in_torch(vectors, queries, monkeypatch):
    index = CpuExactIndex(vectors)
    scores, rows = index.search(queries, 5)
    assert "_in_torch" not in vars(index)
    monkeypatch.setattr(exact_few, "FEW_PRODUCTS", len(vectors) * DIMENSION)
    scores_of_one, _ = index.search(queries[:1], 5)
    assert "_in_torch" not in vars(index)
    np.testing.assert_array_equal(scores_of_one, scores[:1])
    _, rows_in_torch = index.search(queries, 5)
    assert "_in_torch" in vars(index)
    np.testing.assert_array_equal(rows_in_torch, rows)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_equal_vectors_have_equal_scores_wherever_they_are(vectors, queries, dtype, monkeypatch):
    monkeypatch.setattr(exact_few, "BLOCK_BYTES", 4 * DIMENSION * 61)  # blocks of 61 rows
    repeated = np.tile(vectors[:7], (200, 1)).astype(dtype)[:-3]
    scores, rows = CpuExactIndex(repeated).search(queries, len(repeated))
    for scores_of_query, rows_of_query in zip(scores, rows, strict=True):
        assert len(set(scores_of_query.tolist())) == 7
        # equal scores stand by their rows
        has_lower_score = np.diff(scores_of_query) < 0
        has_higher_row = np.diff(rows_of_query) > 0
        assert (has_lower_score | has_higher_row).all()


def test_fewer_vectors_than_hits(vectors, queries):
    scores, rows = CpuExactIndex(vectors[:3]).search(queries[:1], 5)
    assert (rows[0, 3:] == -1).all()
    assert np.isneginf(scores[0, 3:]).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_a_score_that_is_no_number_is_an_error(vectors, queries, value):
    vectors[4321] = value
    with pytest.raises(NotFiniteError) as caught:
        CpuExactIndex(vectors).search(queries[:1], 5)
    assert caught.value.row == 4321
