import json
import math

import pytest
import torch

from denserk.losses.distillation import kl_divergence, margin_mse, soft_cross_entropy


def probabilities(row):
    exps = [math.exp(v) for v in row]
    return [e / sum(exps) for e in exps]


@pytest.fixture
def scores():
    torch.manual_seed(0)
    return torch.randn(2, 3, 4, dtype=torch.float64).unbind()


def test_kl_by_hand(scores):
    teacher, student = scores
    rows = zip(teacher.tolist(), student.tolist(), strict=True)
    expected = [
        sum(p * math.log(p / q) for p, q in zip(probabilities(t), probabilities(s), strict=True))
        for t, s in rows
    ]
    assert kl_divergence(teacher, student).item() == pytest.approx(sum(expected) / 3, abs=1e-12)


def test_soft_cross_entropy_by_hand(scores):
    teacher, student = scores
    rows = zip(teacher.tolist(), student.tolist(), strict=True)
    expected = [
        -sum(
            p * math.log(q + 1e-7) for p, q in zip(probabilities(t), probabilities(s), strict=True)
        )
        for t, s in rows
    ]
    found = soft_cross_entropy(teacher, student).item()
    assert found == pytest.approx(sum(expected) / 3, abs=1e-12)


def test_both_pull_the_same_way(scores):
    teacher, student = scores
    gradients = []
    for loss in (kl_divergence, lambda t, s: soft_cross_entropy(t, s, 0.0)):
        leaf = student.clone().requires_grad_()
        loss(teacher, leaf).backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=1e-12)


def test_master_example(specs):
    example = json.loads((specs / "master_example.json").read_text())["distillation"]
    teacher, student = (
        torch.tensor(example[k], dtype=torch.float64) for k in ("teacher_scores", "student_scores")
    )
    soft = soft_cross_entropy(teacher, student, 0.0)
    assert soft.item() == pytest.approx(example["soft_label_cross_entropy"], abs=1e-6)
    divergence = kl_divergence(teacher, student)
    assert divergence.item() == pytest.approx(example["kl_divergence_batchmean"], abs=1e-6)


def test_margins():
    teacher, student = torch.tensor([[5.0, 1.0, 2.0]]), torch.tensor([[3.0, 1.0, 3.0]])
    assert margin_mse(teacher, student).item() == ((4 - 2) ** 2 + (3 - 0) ** 2) / 2
