import json
import math

import pytest
import torch

from denserk.losses.contrastive import contrastive_loss, layer_regulariser, self_contrastive_scores
from denserk.models.pooling import dot, max_similarity, vector_scores
from tests.losses.mlr import self_contrastive_loss


@pytest.fixture
def example(specs):
    return json.loads((specs / "mlr_example.json").read_text())["losses"]


@pytest.fixture
def scores(example):
    queries = torch.tensor(example["query_vectors"], dtype=torch.float64)
    return vector_scores(queries, torch.tensor(example["doc_vectors"], dtype=torch.float64))


def test_scores_of_the_example(example, scores):
    expected = torch.tensor(example["score_tensor_query_doc_layer"], dtype=torch.float64)
    torch.testing.assert_close(scores, expected, rtol=0, atol=1e-9)
    best = torch.tensor(example["eq2_max_similarity"], dtype=torch.float64)
    torch.testing.assert_close(max_similarity(scores), best, rtol=0, atol=1e-9)


def test_losses_of_the_example(example, scores):
    targets = torch.tensor(example["targets"])
    multi = contrastive_loss(max_similarity(scores), targets)
    assert multi.item() == pytest.approx(example["eq3_multi_vector"]["loss"], abs=1e-6)
    own = torch.tensor(example["eq5_scores"], dtype=torch.float64)
    torch.testing.assert_close(self_contrastive_scores(scores, targets), own, rtol=0, atol=1e-9)
    regulariser = layer_regulariser(scores, targets)
    assert regulariser.item() == pytest.approx(example["eq6_regulariser"]["loss"], abs=1e-6)
    for weight, total in example["eq7_total"].items():
        parts = self_contrastive_loss(scores, targets, float(weight))
        assert sum(p.item() for p in parts.values()) == pytest.approx(total, abs=1e-6)


def test_one_vector_is_the_dual_encoder(example, scores):
    targets = torch.tensor(example["targets"])
    parts = self_contrastive_loss(scores[..., :1], targets, 1.0)
    assert parts["layers"].item() == 0.0
    expected = example["dual_encoder_last_layer"]["loss"]
    assert parts["contrastive"].item() == pytest.approx(expected, abs=1e-6)


def by_hand(scores, targets, weight):
    """Equations 5 to 7, one exponential at a time."""
    main = regulariser = 0.0
    for i, target in enumerate(targets):
        own = scores[i][target]
        terms = [max(layers) for p, layers in enumerate(scores[i]) if p != target]
        rest = sum(math.exp(t) for t in terms)
        main -= math.log(math.exp(own[0]) / (math.exp(own[0]) + rest))
        regulariser -= math.log(math.exp(own[0]) / sum(math.exp(s) for s in own))
    return (main + weight * regulariser) / len(targets)


def test_by_hand():
    torch.manual_seed(0)
    scores = torch.randn(3, 5, 4, dtype=torch.float64)
    parts = self_contrastive_loss(scores, torch.tensor([0, 1, 3]), 0.3)
    expected = by_hand(scores.tolist(), [0, 1, 3], 0.3)
    assert sum(p.item() for p in parts.values()) == pytest.approx(expected, abs=1e-12)


def test_padding_takes_no_part():
    torch.manual_seed(0)
    scores, targets = torch.randn(2, 3, 2, dtype=torch.float64), torch.tensor([0, 2])
    padded = torch.cat([scores, torch.full((2, 3, 1), 99.0, dtype=torch.float64)], 2)
    mask = torch.tensor([[True, True, False]] * 3)
    for name, value in self_contrastive_loss(padded, targets, 1.0, mask).items():
        assert value.item() == self_contrastive_loss(scores, targets, 1.0)[name].item()


def test_gradient_goes_to_the_best_vector_first_among_equals():
    passages = torch.tensor([[[1.0], [2.0], [2.0]]], requires_grad=True)
    max_similarity(vector_scores(torch.tensor([[1.0]]), passages)).sum().backward()
    assert passages.grad is not None
    assert passages.grad.flatten().tolist() == [0.0, 1.0, 0.0]


def test_dot():
    torch.manual_seed(0)
    q, p = torch.randn(2, 3), torch.randn(4, 3)
    expected = [[sum(a * b for a, b in zip(x, y, strict=True)) for y in p] for x in q]
    torch.testing.assert_close(dot(q, p), torch.tensor(expected))
