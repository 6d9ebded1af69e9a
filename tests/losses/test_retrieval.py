"""Losses restated one number at a time; the papers' other examples are in test_examples.py."""

import json
from dataclasses import replace
from functools import partial

import pytest
import torch

from denserk.config.training import ContrastiveKind, Distillation, ObjectiveSettings
from denserk.data.batches import Positives
from denserk.losses.retrieval import RetrievalObjective, contrastive_loss, span_contrast_loss
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
    return 2 if key == 3 else 3


def best(query, passages, key):
    return max(torch.dot(query, passages[ROW[key], place]) for place in range(sizes(key)))


def softmax_loss(positive, others, temperature=TEMPERATURE):
    """-log of the positive's share among itself and the others."""
    scores = torch.stack([positive, *others]) / temperature
    return scores.logsumexp(0) - scores[0]


def mean(values):
    return torch.stack(list(values)).mean()


def nothing(block, i, other):
    """No score is masked: of a query i and a passage (qp), of two queries (qq) ..."""
    return False


def in_batch(queries, passages, masked=nothing):
    return mean(
        softmax_loss(
            best(query, passages, own[0]),
            [best(query, passages, k) for k in ROW if k != own[0] and not masked("qp", i, k)],
        )
        for i, (query, own) in enumerate(zip(queries, OWN, strict=True))
    )


def full(queries, passages, masked=nothing):
    losses = []
    for i, own in enumerate(OWN):
        mine, lead = own[0], passages[ROW[own[0]], 0]
        rest, leads = {0, 1, 2, 3} - {i}, {each[0] for each in OWN} - {mine}
        scores = [
            *(best(queries[i], passages, k) for k in ROW if k != mine and not masked("qp", i, k)),
            *(best(queries[j], passages, mine) for j in rest if not masked("pq", i, j)),
            *(torch.dot(queries[i], queries[j]) for j in rest if not masked("qq", i, j)),
            *(best(lead, passages, k) for k in leads if not masked("pp", i, k)),
        ]
        losses.append(softmax_loss(best(queries[i], passages, mine), scores))
    return mean(losses)


def self_contrastive(queries, passages, masked=nothing):
    """Equations 5 to 7; equation 6 at temperature 1."""
    losses = []
    for i, (query, own) in enumerate(zip(queries, OWN, strict=True)):
        mine = [torch.dot(query, passages[ROW[own[0]], n]) for n in range(sizes(own[0]))]
        keys = [key for key in ROW if key != own[0] and not masked("qp", i, key)]
        others = [best(query, passages, key) for key in keys]
        main = softmax_loss(mine[0], others)
        losses.append(main + 0.3 * softmax_loss(mine[0], mine[1:], temperature=1.0))
    return mean(losses)


def aggretriever(queries, passages, masked=nothing):
    losses = []
    for i, (query, own) in enumerate(zip(queries, OWN, strict=True)):
        for part, weight in ((slice(0, 6), 1.0), (PARTS[0], 0.5), (PARTS[1], 0.5)):
            scores = {key: query[part] @ passages[ROW[key], 0, part] for key in ROW}
            positive = scores.pop(own[0])
            others = [score for key, score in scores.items() if not masked("qp", i, key)]
            losses.append(weight * softmax_loss(positive, others))
    return torch.stack(losses).sum() / 4


def students(queries, passages):
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


def found(settings, options, queries, values, mask, *masking):
    width = max(map(len, TEACHER))
    groups = torch.tensor(GROUPS)
    teacher = torch.full((4, width), -torch.inf, dtype=torch.float64)
    teacher[groups >= 0] = torch.cat(taught())
    objective, keys = RetrievalObjective(settings, **options), torch.tensor(KEYS)
    masked = objective.false_negatives(masking[0], groups, keys, masking[1]) if masking else None
    vectors = queries, PassageVectors(values, mask)
    terms = objective(*vectors, groups, keys, teacher, masked)
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
    settings, options = replace(settings, dimensions=(6, 3, 1)), options | {"l2_norm": l2_norm}
    loss = found(settings, options, queries, passages, mask)
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


ASKED = [1, 2, 2, 3]
"""Queries 1 and 2 are equal; by their texts, passages 3 and 9 are."""
TEXTS = {7: 70, 3: 30, 9: 30, 5: 50}
KNOWN = [[70, 50], [30, -1], [70, -1], [30, -1]]


def literally_masked(guide, margin, block, i, other):
    """A score of query i, or of its positive, with another passage (key) or query."""

    def known(query, key):
        return any(TEXTS[key] in KNOWN[j] for j in range(4) if ASKED[j] == ASKED[query])

    def guided(vector, key):
        return max(torch.dot(vector, each) for each in guide[1][ROW[key]])

    mine, query = OWN[i][0], guide[0][i]
    match block:
        case "qp":
            positive, score = known(i, other), guided(query, other)
        case "pq":
            positive, score = known(other, mine), guided(guide[0][other], mine)
        case "qq":
            positive = known(i, OWN[other][0]) or known(other, mine)
            score = torch.dot(query, guide[0][other])
        case "pp":
            positive, score = known(i, other), guided(guide[1][ROW[mine], 0], other)
    return positive or (margin is not None and score > guided(query, mine) - margin)


MASKED = [
    (in_batch, {}, {}),
    (full, {"contrastive": ContrastiveKind.FULL}, {}),
    (self_contrastive, {"layer_weight": 0.3}, {"self_contrastive": True}),
    (aggretriever, {}, {"parts": PARTS}),
]


@pytest.mark.parametrize("margin", [None, 0.0, 1.5, -20.0])
@pytest.mark.parametrize(("literal", "given", "options"), MASKED)
def test_false_negatives_leave_every_softmax(vectors, literal, given, options, margin):
    queries, passages, mask = vectors
    if "parts" in options:
        passages, mask = passages[:, :1], None
    guide = torch.randn(4, 5, dtype=torch.float64), torch.randn(7, 2, 5, dtype=torch.float64)
    known = Positives(*map(torch.tensor, (ASKED, [TEXTS.get(key, 0) for key in KEYS], KNOWN)))
    guided = None if margin is None else (guide[0], PassageVectors(guide[1]))
    settings = settings_of(**given, guide="g", guide_margin=margin or 0.0)
    loss = found(settings, options, queries, passages, mask, known, guided)
    expected = literal(queries, passages, partial(literally_masked, guide, margin))
    assert loss.item() == pytest.approx(expected.item(), abs=1e-12)
    assert loss.item() < literal(queries, passages).item() - 0.01
    slopes = torch.autograd.grad(loss, (queries, passages))
    torch.testing.assert_close(slopes, torch.autograd.grad(expected, (queries, passages)))
