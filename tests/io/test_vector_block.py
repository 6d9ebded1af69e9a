import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.errors import InputError
from denserk.io.vector_block import VectorBlock, check_dimension, checked_block, joined, regrouped


def block(start, count, texts=True):
    ids = [f"d{i}" for i in range(start, start + count)]
    vectors = np.arange(2 * start, 2 * (start + count), dtype=np.float32).reshape(-1, 2)
    return VectorBlock(ids, vectors, [f"text of {i}" for i in ids] if texts else None)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(1, 7))
def test_regrouping_keeps_every_row_in_its_order(counts, rows):
    starts = np.cumsum([0, *counts])
    blocks = [block(int(start), count) for start, count in zip(starts, counts, strict=False)]
    parts = list(regrouped(blocks, rows))
    total = sum(counts)
    assert [len(part.ids) for part in parts[:-1]] == [rows] * (len(parts) - 1)
    assert 0 < len(parts[-1].ids) <= rows
    whole, expected = joined(parts), block(0, total)
    assert (whole.ids, whole.texts) == (expected.ids, expected.texts)
    np.testing.assert_array_equal(whole.vectors, expected.vectors)


def test_texts_are_kept_only_where_all_have_them():
    assert joined([block(0, 1), block(1, 1, texts=False)]).texts is None


@pytest.mark.parametrize(
    ("dtype", "kept"),
    [("float16", "float16"), ("float32", "float32"), ("float64", "float32"), ("int8", "float32")],
)
def test_other_numbers_become_float32(dtype, kept):
    assert checked_block(["a"], np.ones((1, 2), dtype), None, "v").vectors.dtype == kept


@pytest.mark.parametrize(
    ("ids", "vectors", "told"),
    [
        (["a", "b"], np.ones((1, 2)), "with 2 ids"),
        (["a"], np.ones(2), "shape (2,)"),
        (["a"], np.ones((1, 0)), "shape (1, 0)"),
        (["a b"], np.ones((1, 2)), "'a b'"),
        ([None], np.ones((1, 2)), "null"),
        (["a"], np.array([["x"]]), "vectors of <U1"),
        (["a"], np.array([[np.nan]], "float32"), "a vector of a that is not finite"),
        (["a"], np.array([[1e300]]), "not finite in float32"),
    ],
)
def test_what_is_no_block_is_refused(ids, vectors, told):
    with pytest.raises(InputError) as caught:
        checked_block(ids, vectors, None, "v")
    assert told in str(caught.value)


def test_one_dimension_throughout():
    assert check_dimension(block(0, 1), 0, "v") == check_dimension(block(0, 1), 2, "v") == 2
    with pytest.raises(InputError, match="2 dimensions from d0 on; expected 3"):
        check_dimension(block(0, 1), 3, "v")
