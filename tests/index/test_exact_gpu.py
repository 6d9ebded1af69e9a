"""Exact search on a GPU, simulated and real: the hits of every product and a stable sort."""

import numpy as np
import pytest
import torch

from denserk.config.retrieval import Metric
from denserk.errors import DenserkError, NotFiniteError
from denserk.index import exact_gpu
from denserk.index.exact_gpu import GpuExactIndex
from tests.index.test_exact import collection, reference
from tests.support.index_folders import whole_numbers

ROWS, QUERIES, DEPTH = 2000, 40, 30
BLOCK = 300
WAITS_OF_A_SEARCH = 4  # the queries, whether all is finite, scores and rows
KINDS = ["random", "far", "clustered", "equal", "negative", "cancelling", "wide"]


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


def assert_hits(found, expected):
    """Scores are equal, and rows but for those that tie at the depth."""
    scores, rows = found
    expected_scores, expected_rows = expected
    assert (scores == expected_scores).all()
    above = scores > scores[:, -1:]
    assert (rows[above] == expected_rows[above]).all()
    assert all(len(set(line)) == len(line) for line in rows.tolist())


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("stays", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("metric", Metric)
def test_ties_passages_and_distances(gpu, monkeypatch, metric, size, dtype, stays):
    monkeypatch.setattr(exact_gpu, "SHARE", 0.5 if stays else 0)
    vectors, queries = whole_numbers(1, ROWS).astype(dtype), whole_numbers(2, QUERIES)
    index = GpuExactIndex(vectors, metric, "cuda", size)
    expected_scores, expected_rows = reference(vectors, queries, DEPTH, metric, size)
    blocks = -(-ROWS // BLOCK)
    for count in (1, 3, QUERIES, QUERIES):  # from the second time on, blocks that stay are there
        if gpu is not None:
            gpu.waits.clear()
        found = index.search(queries[:count], DEPTH)
        assert_hits(found, (expected_scores[:count], expected_rows[:count]))
        copies_of_blocks = 0 if stays and count > 1 else blocks
        if gpu is not None:
            assert gpu.waits.total() <= WAITS_OF_A_SEARCH + copies_of_blocks, gpu.waits


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("kind", KINDS)
def test_real_numbers(gpu, kind):
    vectors, queries = collection(kind)
    products = queries.astype(np.float64) @ vectors.T.astype(np.float64)
    sorted_products = -np.sort(-products, axis=1)
    index = GpuExactIndex(vectors, device="cuda")
    for count, depth in ((1, 5), (3, 100), (40, 1), (40, 20), (40, 700)):
        scores, rows = index.search(queries[:count], depth)
        found = np.take_along_axis(products[:count], rows, 1)
        lengths = np.linalg.norm(queries[:count, None], axis=2)
        sizes = lengths * np.linalg.norm(vectors[rows], axis=2)
        assert (np.abs(found - sorted_products[:count, :depth]) <= 1e-6 * sizes).all()
        assert (np.abs(scores - found) <= 1e-6 * sizes).all()
        assert (scores[:, 1:] <= scores[:, :-1]).all()
        assert all(len(set(line)) == depth for line in rows.tolist())


@pytest.mark.usefixtures("small_blocks")
def test_equal_vectors_score_alike_in_every_block(gpu):
    vectors, queries = collection("random", 1300, 768)
    same = np.array([3, 299, 300, 700, 1299])
    vectors[same] = vectors[3]
    for count in (1, 2, 40):
        _, rows = GpuExactIndex(vectors, device="cuda").search(queries[:count], 1300)
        for line in rows:
            first = int(np.flatnonzero(line == 3)[0])
            assert (line[first : first + len(same)] == same).all()


@pytest.mark.usefixtures("small_blocks")
def test_fewer_passages_than_asked_for(gpu):
    vectors, queries = collection("random", 10)
    scores, rows = GpuExactIndex(vectors, device="cuda").search(queries, 12)
    assert (np.sort(rows[:, :10]) == np.arange(10)).all()
    assert (rows[:, 10:] == -1).all()
    assert (scores[:, 10:] == -np.inf).all()
    assert GpuExactIndex(vectors, device="cuda").search(queries[:0], 5)[0].shape == (0, 5)


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

    class Unreadable:
        shape = vectors.shape
        fails = True

        def __len__(self):
            return len(vectors)

        def __getitem__(self, rows):
            if self.fails and rows == slice(2 * BLOCK, 3 * BLOCK):
                raise OSError
            return vectors[rows]

    stored = Unreadable()
    index = GpuExactIndex(stored, device="cuda")
    with pytest.raises(OSError):  # noqa: PT011 - that of the file
        index.search(queries, 5)
    stored.fails = False
    expected = reference(vectors, queries, 5)[1]
    assert (index.search(queries, 5)[1] == expected).all()


def test_lack_of_memory_says_what_to_type(simulated_gpu, monkeypatch):
    def no_room(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    vectors, queries = collection("random")
    index = GpuExactIndex(vectors, device="cuda")
    monkeypatch.setattr(index, "_products", no_room)
    with pytest.raises(DenserkError, match="searching on cuda") as caught:
        index.search(queries, 5)
    assert "--query-batch" in str(caught.value.hint)
