import math

import pytest
import torch

from denserk.losses.pairs import cosine_mse, triplet_loss


def test_cosine_mse():
    first, second = torch.tensor([[1.0, 0.0], [1.0, 1.0]]), torch.tensor([[2.0, 0.0], [0.0, 3.0]])
    expected = ((1 - 0.8) ** 2 + (1 / math.sqrt(2) - 0.5) ** 2) / 2
    assert cosine_mse(first, second, torch.tensor([0.8, 0.5])).item() == pytest.approx(expected)


def test_triplet():
    anchor = torch.tensor([[0.0, 0.0], [0.0, 0.0]])
    near, far = torch.tensor([[3.0, 4.0], [1.0, 0.0]]), torch.tensor([[0.0, 6.0], [0.0, 9.0]])
    assert triplet_loss(anchor, near, far).item() == pytest.approx(((5 - 6 + 5) + 0) / 2)
