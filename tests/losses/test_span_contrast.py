import math

import pytest
import torch

from denserk.losses.contrastive import span_contrast_loss
from tests.losses.pretraining_models import read_example


def literal(rows):
    losses = []
    for i, row in enumerate(rows):
        products = {
            j: sum(a * b for a, b in zip(row, other, strict=True)) for j, other in enumerate(rows)
        }
        others = sum(math.exp(score) for j, score in products.items() if j != i)
        losses.append(-math.log(math.exp(products[i ^ 1]) / others))
    return losses


def test_example_vectors(specs):
    example = read_example(specs / "condenser_example.json", "cocondenser_contrastive")
    rows = example["cls_vectors"]
    assert literal(rows) == pytest.approx(example["per_span_nll"], abs=1e-5)
    assert span_contrast_loss(torch.tensor(rows)).item() == pytest.approx(example["loss"], abs=1e-5)


@pytest.mark.parametrize("documents", [1, 2, 5])
def test_literal_restatement(documents):
    torch.manual_seed(documents)
    rows = torch.randn(2 * documents, 4, dtype=torch.float64)
    losses = literal(rows.tolist())
    assert span_contrast_loss(rows).item() == pytest.approx(sum(losses) / len(losses), abs=1e-12)


def test_half_precision_is_widened():
    rows = torch.randn(4, 8).to(torch.bfloat16)
    assert span_contrast_loss(rows).item() == span_contrast_loss(rows.float()).item()
