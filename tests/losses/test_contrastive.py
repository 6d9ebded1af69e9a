import json
import math

import pytest
import torch

from denserk.losses.contrastive import contrastive_loss, full_contrastive_scores
from denserk.models.pooling import PassageVectors, dot


def nll(scores, targets, temperature=1.0):
    """-log softmax, one query and one passage at a time."""
    losses = []
    for row, target in zip(scores.tolist(), targets.tolist(), strict=True):
        exps = [math.exp(s / temperature) for s in row]
        losses.append(-math.log(exps[target] / sum(exps)))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_contrastive_is_the_mean_negative_log_likelihood(temperature):
    torch.manual_seed(0)
    scores, targets = torch.randn(3, 6, dtype=torch.float64), torch.tensor([0, 2, 4])
    found = contrastive_loss(scores, targets, temperature)
    assert found.item() == pytest.approx(nll(scores, targets, temperature), abs=1e-12)


def test_half_precision_scores_are_widened():
    scores, targets = torch.randn(2, 4), torch.tensor([0, 2])
    half = contrastive_loss(scores.bfloat16(), targets)
    assert half.dtype is torch.float32
    assert half.item() == pytest.approx(contrastive_loss(scores.bfloat16().float(), targets).item())


def test_condenser_example(specs):
    example = json.loads((specs / "condenser_example.json").read_text())["finetune_contrastive"]
    queries = torch.tensor(example["query_vectors"], dtype=torch.float64)
    passages = torch.tensor(example["passage_vectors"], dtype=torch.float64)
    loss = contrastive_loss(dot(queries, passages), torch.tensor(example["targets"]))
    assert loss.item() == pytest.approx(example["loss"], abs=1e-6)


def full_scores(queries, passages, targets):
    scores = dot(queries, passages)
    positives = PassageVectors(passages[targets].unsqueeze(1))
    return full_contrastive_scores(scores, queries, positives, scores[:, targets], targets)


def test_simlm_example(specs):
    example = json.loads((specs / "master_example.json").read_text())["simlm_contrastive"]
    queries, passages = (
        torch.nn.functional.normalize(torch.tensor(example[name], dtype=torch.float64), dim=1)
        for name in ("query_vectors", "passage_vectors")
    )
    targets = torch.tensor([0, 2])
    only = contrastive_loss(dot(queries, passages), targets, 0.02)
    full = contrastive_loss(full_scores(queries, passages, targets), targets, 0.02)
    assert only.item() == pytest.approx(example["loss_query_passage_only"], abs=1e-5)
    assert full.item() == pytest.approx(example["loss_full"], abs=1e-5)


def full_by_hand(q, p, targets, temperature):
    """SimLM's loss, one exponential at a time."""
    total = 0.0
    for i, target in enumerate(targets):
        positive = p[target]
        terms = [torch.dot(q[i], passage) for passage in p]
        for j in range(len(q)):
            if j != i:
                other = p[targets[j]]
                pairs = ((positive, q[j]), (q[i], q[j]), (positive, other))
                terms += [torch.dot(a, b) for a, b in pairs]
        exps = [math.exp(t.item() / temperature) for t in terms]
        total -= math.log(exps[target] / sum(exps))
    return total / len(targets)


def test_full_contrastive_by_hand():
    torch.manual_seed(1)
    q, p = torch.randn(3, 4, dtype=torch.float64), torch.randn(6, 4, dtype=torch.float64)
    targets = torch.tensor([0, 2, 4])
    found = contrastive_loss(full_scores(q, p, targets), targets, 0.7)
    assert found.item() == pytest.approx(full_by_hand(q, p, targets.tolist(), 0.7), abs=1e-12)
