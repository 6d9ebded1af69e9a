"""Losses restated one number at a time; the papers' other examples are in test_examples.py."""

import json
from dataclasses import replace
from functools import partial

import pytest
import torch

from denserk.config.training import ContrastiveKind, Distillation, ObjectiveSettings
from denserk.losses.retrieval import (
    Matryoshka,
    RetrievalObjective,
    contrastive_loss,
    span_contrast_loss,
)
from denserk.models.representation import PassageVectors, max_similarity, vector_scores


def test_span_contrast(specs):
    examples = json.loads((specs / "condenser_example.json").read_text())
    paper = examples["cocondenser_contrastive"]
    loss = span_contrast_loss(torch.tensor(paper["cls_vectors"]))
    assert loss.item() == pytest.approx(paper["loss"], abs=1e-5)


def test_half_precision_is_widened():
    scores, rows = torch.randn(2, 4).bfloat16(), torch.randn(4, 8).bfloat16()
    half = contrastive_loss(scores, torch.tensor([0, 2]))
    assert half.dtype is torch.float32
    assert half.item() == contrastive_loss(scores.float(), torch.tensor([0, 2])).item()
    assert span_contrast_loss(rows).item() == span_contrast_loss(rows.float()).item()


def test_the_gradient_goes_to_the_best_vector_first_among_equals():
    passages = torch.tensor([[[1.0], [2.0], [2.0]]], requires_grad=True)
    max_similarity(vector_scores(torch.tensor([[1.0]]), passages)).sum().backward()
    assert passages.grad is not None
    assert passages.grad.flatten().tolist() == [0.0, 1.0, 0.0]


KEYS = [7, 3, 9, 3, 5, 7, -1]
"""Rows 3 and 5 are the passages of rows 1 and 0, as another process has them; row 6 is padding."""
GROUPS = [[0, 1, 2], [3, 4, -1], [5, -1, -1], [1, -1, 4]]
OWN = [[7, 3, 9], [3, 5], [7], [3, 5]]
"""The groups as keys: queries 0 and 2, and 1 and 3, share their positives."""
ROW = {7: 0, 3: 1, 9: 2, 5: 4}
TEACHER = [[2.0, 1.0, -1.0], [0.5, 0.7], [3.0], [0.1, -0.3]]
TEMPERATURE = 0.7
PARTS = slice(0, 2), slice(2, 6)


@pytest.fixture
def vectors():
    """(4, 6) of the queries and (7, 3, 6) of the passages; the second has two vectors only."""
    torch.manual_seed(3)
    queries = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    passages = torch.randn(7, 3, 6, dtype=torch.float64, requires_grad=True)
    mask = torch.ones(7, 3, dtype=torch.bool)
    mask[[1, 3], 2] = False
    mask[6] = False
    return queries, passages, mask


def sizes(key):
    """How many vectors a passage has."""
    return 2 if key == 3 else 3


def best(query, passages, key):
    """A passage's best score."""
    return max(torch.dot(query, passages[ROW[key], place]) for place in range(sizes(key)))


def softmax_loss(positive, others, temperature=TEMPERATURE):
    """-log of the positive's share among itself and the others."""
    scores = torch.stack([positive, *others]) / temperature
    return scores.logsumexp(0) - scores[0]


def mean(values):
    return torch.stack(list(values)).mean()


def in_batch(queries, passages):
    return mean(
        softmax_loss(
            best(query, passages, own[0]),
            [best(query, passages, key) for key in ROW if key != own[0]],
        )
        for query, own in zip(queries, OWN, strict=True)
    )


def full(queries, passages):
    losses = []
    for i, own in enumerate(OWN):
        mine, lead = own[0], passages[ROW[own[0]], 0]
        other_queries = [queries[j] for j in range(4) if j != i]
        others = [best(queries[i], passages, key) for key in ROW if key != mine]
        others += [best(query, passages, mine) for query in other_queries]
        others += [torch.dot(queries[i], query) for query in other_queries]
        others += [best(lead, passages, key) for key in {each[0] for each in OWN} - {mine}]
        losses.append(softmax_loss(best(queries[i], passages, mine), others))
    return mean(losses)


def self_contrastive(queries, passages):
    """Equations 5 to 7; equation 6 at temperature 1."""
    losses = []
    for query, own in zip(queries, OWN, strict=True):
        mine = [torch.dot(query, passages[ROW[own[0]], n]) for n in range(sizes(own[0]))]
        others = [best(query, passages, key) for key in ROW if key != own[0]]
        main = softmax_loss(mine[0], others)
        losses.append(main + 0.3 * softmax_loss(mine[0], mine[1:], temperature=1.0))
    return mean(losses)


def aggretriever(queries, passages):
    losses = []
    for query, own in zip(queries, OWN, strict=True):
        for part, weight in ((slice(0, 6), 1.0), (PARTS[0], 0.5), (PARTS[1], 0.5)):
            scores = {key: query[part] @ passages[ROW[key], 0, part] for key in ROW}
            positive = scores.pop(own[0])
            losses.append(weight * softmax_loss(positive, scores.values()))
    return torch.stack(losses).sum() / 4


def students(queries, passages):
    """Each query's scores of its own passages."""
    for query, own in zip(queries, OWN, strict=True):
        yield torch.stack([best(query, passages, key) for key in own]) / TEMPERATURE


def taught():
    return [torch.tensor(scores, dtype=torch.float64) for scores in TEACHER]


def kl(t, s):
    return [(t.softmax(0) * (t.log_softmax(0) - s.log_softmax(0))).sum()]


def soft_labels(t, s):
    return [-(t.softmax(0) * (s.softmax(0) + 1e-7).log()).sum()]


def margin_mse(t, s):
    return [((s[0] - s[n]) - (t[0] - t[n])) ** 2 for n in range(1, len(t))]


def distilled(kind, losses):
    """The mean over queries, or over the margins of all queries."""

    def literal(queries, passages):
        scores = zip(taught(), students(queries, passages), strict=True)
        return mean(loss for t, s in scores for loss in losses(t, s))

    return literal, settings_of(distillation=kind, contrastive_weight=0.0), {}


settings_of = partial(ObjectiveSettings, temperature=TEMPERATURE)
COSTS = {
    "in-batch": (in_batch, settings_of(), {}),
    "full": (full, settings_of(contrastive=ContrastiveKind.FULL), {}),
    "mlr": (self_contrastive, settings_of(layer_weight=0.3), {"self_contrastive": True}),
    "kl": distilled(Distillation.KL, kl),
    "soft-cross-entropy": distilled(Distillation.SOFT_CROSS_ENTROPY, soft_labels),
    "margin-mse": distilled(Distillation.MARGIN_MSE, margin_mse),
}


def found(settings, options, queries, values, mask, wrapped=lambda objective: objective):
    width = max(map(len, TEACHER))
    groups = torch.tensor(GROUPS)
    teacher = torch.full((4, width), -torch.inf, dtype=torch.float64)
    teacher[groups >= 0] = torch.cat(taught())
    objective = wrapped(RetrievalObjective(settings, **options))
    terms = objective(queries, PassageVectors(values, mask), groups, torch.tensor(KEYS), teacher)
    return torch.stack(list(terms.values())).sum()


@pytest.mark.parametrize("name", COSTS)
def test_each_passage_counts_once_and_missing_ones_not(vectors, name):
    queries, passages, mask = vectors
    literal, settings, options = COSTS[name]
    expected = literal(queries, passages)
    loss = found(settings, options, queries, passages, mask)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-12)
    slopes = torch.autograd.grad(loss, (queries, passages))
    wanted = torch.autograd.grad(expected, (queries, passages))
    torch.testing.assert_close(slopes, wanted, rtol=0, atol=1e-12)


def test_the_parts_of_a_vector_alone_count_each_passage_once(vectors):
    queries, passages, _ = vectors
    loss = found(settings_of(), {"parts": PARTS}, queries, passages[:, :1], None)
    assert loss.item() == pytest.approx(aggretriever(queries, passages).item(), abs=1e-12)


@pytest.mark.parametrize("l2_norm", [False, True])
@pytest.mark.parametrize("name", COSTS)
def test_matryoshka_sums_the_loss_over_the_first_dimensions(vectors, name, l2_norm):
    queries, passages, mask = vectors
    literal, settings, options = COSTS[name]

    def first(vectors, size):
        cut = torch.stack([vectors[..., i] for i in range(size)], -1)
        return cut / (cut * cut).sum(-1, keepdim=True).sqrt() if l2_norm else cut

    expected = sum(literal(first(queries, d), first(passages, d)) for d in (6, 3, 1))
    wrapped = partial(Matryoshka, dimensions=(6, 3, 1), l2_norm=l2_norm)
    loss = found(settings, options, queries, passages, mask, wrapped)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-12)
    slopes = torch.autograd.grad(loss, (queries, passages))
    wanted = torch.autograd.grad(expected, (queries, passages))
    torch.testing.assert_close(slopes, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("self_contrastive", [False, True])
def test_a_teacher_weakens_the_contrast_and_sees_what_retrieval_scores(vectors, self_contrastive):
    queries, passages, mask = vectors
    options = {"self_contrastive": self_contrastive}
    settings = ObjectiveSettings(distillation=Distillation.KL)
    plain = found(ObjectiveSettings(), options, queries, passages, mask)
    both = found(settings, options, queries, passages, mask)
    alone = replace(settings, contrastive_weight=0.0)
    kept = passages[:, :1] if self_contrastive else passages  # an index keeps vector 0
    taught = found(alone, options, queries, kept, mask[:, : kept.shape[1]])
    assert both.item() == pytest.approx(0.2 * plain.item() + taught.item())
