import math

import pytest
import torch

from denserk.losses.pairs import listwise_loss, r_drop_loss


def log_softmax(row):
    total = math.log(sum(math.exp(v) for v in row))
    return [v - total for v in row]


def test_listwise_by_hand():
    scores = torch.tensor([[1.0, 0.5], [0.0, 2.0]], dtype=torch.float64)
    expected = -(log_softmax([1.0, 0.5])[0] + log_softmax([0.0, 2.0])[0]) / 2
    assert listwise_loss(scores).item() == pytest.approx(expected, abs=1e-12)


def test_r_drop_by_hand():
    first, second = [1.0, 0.5, -1.0], [0.2, 0.1, 0.4]
    a, b = log_softmax(first), log_softmax(second)
    forth = sum(math.exp(x) * (x - y) for x, y in zip(a, b, strict=True))
    back = sum(math.exp(y) * (y - x) for x, y in zip(a, b, strict=True))
    parts = r_drop_loss(
        torch.tensor([first], dtype=torch.float64), torch.tensor([second], dtype=torch.float64), 0.3
    )
    assert parts["listwise"].item() == pytest.approx(-(a[0] + b[0]) / 2, abs=1e-12)
    assert parts["agreement"].item() == pytest.approx(0.3 * (forth + back) / 2, abs=1e-12)
