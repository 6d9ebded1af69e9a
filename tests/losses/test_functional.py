"""Loss functions against the papers' example vectors, and restated one number at a time."""

import json
import math

import pytest
import torch
import torch.nn.functional as F

from denserk.losses.retrieval import (
    contrastive_loss,
    cosine_mse,
    full_contrastive_scores,
    kl_divergence,
    layer_regulariser,
    listwise_loss,
    r_drop_loss,
    self_contrastive_scores,
    soft_cross_entropy,
    span_contrast_loss,
    triplet_loss,
)
from denserk.models.representation import PassageVectors, dot, max_similarity, vector_scores


@pytest.fixture
def example(specs):
    """`example(paper, part)` of the files of example vectors."""
    return lambda paper, part: json.loads((specs / f"{paper}_example.json").read_text())[part]


def doubles(*values):
    return [torch.tensor(value, dtype=torch.float64) for value in values]


def log_softmax(row):
    total = math.log(sum(math.exp(v) for v in row))
    return [v - total for v in row]


def test_contrastive_example(example):
    paper = example("condenser", "finetune_contrastive")
    queries, passages = doubles(paper["query_vectors"], paper["passage_vectors"])
    loss = contrastive_loss(dot(queries, passages), torch.tensor(paper["targets"]))
    assert loss.item() == pytest.approx(paper["loss"], abs=1e-6)


def test_half_precision_is_widened():
    scores, rows = torch.randn(2, 4).bfloat16(), torch.randn(4, 8).bfloat16()
    half = contrastive_loss(scores, torch.tensor([0, 2]))
    assert half.dtype is torch.float32
    assert half.item() == contrastive_loss(scores.float(), torch.tensor([0, 2])).item()
    assert span_contrast_loss(rows).item() == span_contrast_loss(rows.float()).item()


def test_simlm_example(example):
    paper = example("master", "simlm_contrastive")
    queries, passages = (
        F.normalize(vectors, dim=1)
        for vectors in doubles(paper["query_vectors"], paper["passage_vectors"])
    )
    targets, scores = torch.tensor([0, 2]), dot(queries, passages)
    positives = PassageVectors(passages[targets].unsqueeze(1))
    full = full_contrastive_scores(scores, queries, positives, scores[:, targets], targets)
    only = contrastive_loss(scores, targets, 0.02)
    assert only.item() == pytest.approx(paper["loss_query_passage_only"], abs=1e-5)
    loss = contrastive_loss(full, targets, 0.02)
    assert loss.item() == pytest.approx(paper["loss_full"], abs=1e-5)


def test_mlr_example(example):
    paper = example("mlr", "losses")
    queries, passages = doubles(paper["query_vectors"], paper["doc_vectors"])
    scores, targets = vector_scores(queries, passages), torch.tensor(paper["targets"])
    tensors = doubles(
        paper["score_tensor_query_doc_layer"], paper["eq2_max_similarity"], paper["eq5_scores"]
    )
    found = scores, max_similarity(scores), self_contrastive_scores(scores, targets)
    torch.testing.assert_close(list(found), tensors, rtol=0, atol=1e-9)
    multi = contrastive_loss(found[1], targets)
    assert multi.item() == pytest.approx(paper["eq3_multi_vector"]["loss"], abs=1e-6)
    main, regulariser = contrastive_loss(found[2], targets), layer_regulariser(scores, targets)
    assert regulariser.item() == pytest.approx(paper["eq6_regulariser"]["loss"], abs=1e-6)
    for weight, total in paper["eq7_total"].items():
        assert (main + float(weight) * regulariser).item() == pytest.approx(total, abs=1e-6)
    one = scores[..., :1]
    assert layer_regulariser(one, targets).item() == 0
    dual = contrastive_loss(self_contrastive_scores(one, targets), targets).item()
    assert dual == pytest.approx(paper["dual_encoder_last_layer"]["loss"], abs=1e-6)


def test_the_gradient_goes_to_the_best_vector_first_among_equals():
    passages = torch.tensor([[[1.0], [2.0], [2.0]]], requires_grad=True)
    max_similarity(vector_scores(torch.tensor([[1.0]]), passages)).sum().backward()
    assert passages.grad is not None
    assert passages.grad.flatten().tolist() == [0.0, 1.0, 0.0]


def test_span_contrast(example):
    def literal(rows):
        for i, row in enumerate(rows):
            products = [sum(a * b for a, b in zip(row, other, strict=True)) for other in rows]
            yield products.pop(i), -log_softmax(products)[i if i % 2 == 0 else i - 1]

    paper = example("condenser", "cocondenser_contrastive")
    rows = paper["cls_vectors"]
    losses = [loss for _, loss in literal(rows)]
    assert losses == pytest.approx(paper["per_span_nll"], abs=1e-5)
    assert span_contrast_loss(torch.tensor(rows)).item() == pytest.approx(paper["loss"], abs=1e-5)


def test_distillation(example):
    paper = example("master", "distillation")
    scores = doubles(paper["teacher_scores"], paper["student_scores"])
    expected = paper["soft_label_cross_entropy"]  # without the released code's epsilon
    assert soft_cross_entropy(*scores).item() == pytest.approx(expected, abs=3e-6)
    expected = paper["kl_divergence_batchmean"]
    assert kl_divergence(*scores).item() == pytest.approx(expected, abs=1e-6)


def test_cross_encoders():
    first, second = [1.0, 0.5, -1.0], [0.2, 0.1, 0.4]
    a, b = log_softmax(first), log_softmax(second)
    forth = sum(math.exp(x) * (x - y) for x, y in zip(a, b, strict=True))
    back = sum(math.exp(y) * (y - x) for x, y in zip(a, b, strict=True))
    both = doubles([first], [second])
    assert listwise_loss(torch.cat(both)).item() == pytest.approx(-(a[0] + b[0]) / 2, abs=1e-12)
    parts = r_drop_loss(both[0], both[1], 0.3)
    assert parts["listwise"].item() == pytest.approx(-(a[0] + b[0]) / 2, abs=1e-12)
    assert parts["agreement"].item() == pytest.approx(0.3 * (forth + back) / 2, abs=1e-12)


def test_sentences():
    first, second = torch.tensor([[1.0, 0.0], [1.0, 1.0]]), torch.tensor([[2.0, 0.0], [0.0, 3.0]])
    expected = ((1 - 0.8) ** 2 + (1 / math.sqrt(2) - 0.5) ** 2) / 2
    assert cosine_mse(first, second, torch.tensor([0.8, 0.5])).item() == pytest.approx(expected)
    anchor = torch.tensor([[0.0, 0.0], [0.0, 0.0]])
    near, far = torch.tensor([[3.0, 4.0], [1.0, 0.0]]), torch.tensor([[0.0, 6.0], [0.0, 9.0]])
    assert triplet_loss(anchor, near, far).item() == pytest.approx(((5 - 6 + 5) + 0) / 2)
