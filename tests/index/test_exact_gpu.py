"""Exact search on a GPU, simulated and real: the hits of every product and a stable sort."""

import numpy as np
import pytest
import torch

from denserk.config.retrieval import Metric
from denserk.errors import DenserkError, NotFiniteError
from denserk.index import exact_gpu
from denserk.index.exact_gpu import GpuExactIndex
from tests.index.test_exact import (
    KINDS,
    assert_best_products,
    assert_neighbours,
    collection,
    reference,
)
from tests.support.index_folders import whole_numbers

BLOCK = 300  # rows
WAITS_OF_A_SEARCH = 4  # the queries, whether all is finite, scores and rows


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(exact_gpu, "BLOCK", BLOCK)
    monkeypatch.setattr(exact_gpu, "TILE", 16)


@pytest.fixture(params=["simulated", pytest.param("real", marks=pytest.mark.gpu)])
def gpu(request):
    """A GPU that counts waits, or a real one."""
    if request.param == "simulated":
        return request.getfixturevalue("simulated_gpu")
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    return None


def assert_hits(scores, rows, expected_scores, expected_rows):
    """Scores are equal, and rows but for those that tie at the depth."""
    assert (scores == expected_scores).all()
    is_above_last = scores > scores[:, -1:]
    assert (rows[is_above_last] == expected_rows[is_above_last]).all()
    assert all(len(set(rows_of_query)) == len(rows_of_query) for rows_of_query in rows.tolist())


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("stays", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("metric", Metric)
def test_ties_passages_and_distances(gpu, monkeypatch, metric, size, dtype, stays):
    monkeypatch.setattr(exact_gpu, "SHARE", 0.5 if stays else 0)
    vectors = whole_numbers(1, 2000).astype(dtype)
    queries = whole_numbers(2, 40)
    index = GpuExactIndex(vectors, metric, "cuda", size)
    expected_scores, expected_rows = reference(vectors, queries, 30, metric, size)
    for count in (1, 3, 40, 40):
        if gpu is not None:
            gpu.waits.clear()
        scores, rows = index.search(queries[:count], 30)
        assert_hits(scores, rows, expected_scores[:count], expected_rows[:count])
        # from the second search on, blocks that stay are there
        copied_blocks = 0 if stays and count > 1 else -(-len(vectors) // BLOCK)
        if gpu is not None:
            assert gpu.waits.total() <= WAITS_OF_A_SEARCH + copied_blocks, gpu.waits


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("kind", KINDS)
def test_real_numbers(gpu, kind):
    vectors, queries = collection(kind)
    index = GpuExactIndex(vectors, device="cuda")
    for count, depth in ((1, 5), (3, 100), (40, 1), (40, 20), (40, 700)):
        assert_best_products(index, vectors, queries[:count], depth)


@pytest.mark.usefixtures("small_blocks")
def test_equal_vectors_score_alike_in_every_block(gpu):
    vectors, queries = collection("random", 1300, 768)
    equal_rows = np.array([3, 299, 300, 700, 1299])
    vectors[equal_rows] = vectors[3]
    for count in (1, 2, 40):
        _, rows = GpuExactIndex(vectors, device="cuda").search(queries[:count], 1300)
        assert_neighbours(rows, equal_rows)


@pytest.mark.usefixtures("small_blocks")
def test_fewer_passages_than_hits(gpu):
    vectors, queries = collection("random", 10)
    scores, rows = GpuExactIndex(vectors, device="cuda").search(queries, 12)
    assert (np.sort(rows[:, :10]) == np.arange(10)).all()
    assert (rows[:, 10:] == -1).all()
    assert (scores[:, 10:] == -np.inf).all()


@pytest.mark.usefixtures("small_blocks")
def test_no_queries(gpu):
    vectors, queries = collection("random", 10)
    scores, rows = GpuExactIndex(vectors, device="cuda").search(queries[:0], 5)
    assert scores.shape == (0, 5)
    assert rows.shape == (0, 5)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e38])
def test_a_score_that_is_not_finite_names_its_row(gpu, value):
    vectors, queries = collection("random")
    vectors[1234, :] = value
    with pytest.raises(NotFiniteError) as caught:
        GpuExactIndex(vectors, device="cuda").search(np.abs(queries) + 100, 5)
    assert caught.value.row == 1234


def test_a_search_that_failed_leaves_no_part_of_the_vectors(gpu, monkeypatch):
    monkeypatch.setattr(exact_gpu, "BLOCK", BLOCK)
    vectors, queries = collection("random")

    class FailingFile:
        """Vectors of which the third block cannot be read."""

        shape = vectors.shape
        fails = True

        def __len__(self):
            return len(vectors)

        def __getitem__(self, rows):
            if self.fails and rows == slice(2 * BLOCK, 3 * BLOCK):
                raise OSError
            return vectors[rows]

    file = FailingFile()
    index = GpuExactIndex(file, device="cuda")
    with pytest.raises(OSError):  # noqa: PT011 - that of the file
        index.search(queries, 5)
    file.fails = False
    _, rows = index.search(queries, 5)
    _, expected_rows = reference(vectors, queries, 5)
    assert (rows == expected_rows).all()


def test_lack_of_memory_says_what_to_type(simulated_gpu, monkeypatch):
    def run_out_of_memory(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    vectors, queries = collection("random")
    index = GpuExactIndex(vectors, device="cuda")
    monkeypatch.setattr(index, "_products", run_out_of_memory)
    with pytest.raises(DenserkError, match="searching on cuda") as caught:
        index.search(queries, 5)
    assert "--query-batch" in str(caught.value.hint)
