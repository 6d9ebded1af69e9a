import pytest
import torch

from denserk.models.pooling import pool_cls, pool_last, pool_max, pool_mean

HIDDEN = torch.tensor(
    [[[1.0, -2.0], [3.0, -6.0], [9.0, 9.0]], [[1.0, 1.0], [2.0, -1.0], [6.0, -3.0]]]
)
MASK = torch.tensor([[True, True, False], [True, True, True]])


@pytest.mark.parametrize(
    ("pool", "expected"),
    [
        (pool_cls, [[1.0, -2.0], [1.0, 1.0]]),
        (pool_mean, [[2.0, -4.0], [3.0, -1.0]]),
        (pool_max, [[3.0, -2.0], [6.0, 1.0]]),
        (pool_last, [[3.0, -6.0], [6.0, -3.0]]),
    ],
)
def test_pooling_leaves_padding_out(pool, expected):
    assert pool(HIDDEN, MASK).tolist() == expected


@pytest.mark.parametrize("pool", [pool_cls, pool_mean, pool_max, pool_last])
def test_what_stands_in_padding_does_not_matter(pool):
    spoiled = HIDDEN.masked_fill(~MASK.unsqueeze(-1), torch.nan)
    assert pool(spoiled, MASK).equal(pool(HIDDEN, MASK))


def test_a_mean_in_low_precision_is_summed_in_float32():
    hidden = torch.full((1, 512, 1), 1.0, dtype=torch.bfloat16)
    hidden[0, 0] = 300.0
    mask = torch.ones(1, 512, dtype=torch.bool)
    assert pool_mean(hidden, mask).item() == pytest.approx((300 + 511) / 512)
