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
    scores = torch.randn(2, 4).bfloat16()
    positives = torch.tensor([0, 2])
    loss = contrastive_loss(scores, positives)
    assert loss.dtype is torch.float32
    assert loss.item() == contrastive_loss(scores.float(), positives).item()
    cls = torch.randn(4, 8).bfloat16()
    assert span_contrast_loss(cls).item() == span_contrast_loss(cls.float()).item()


def test_the_gradient_goes_to_the_best_vector_first_among_equals():
    passages = torch.tensor([[[1.0], [2.0], [2.0]]], requires_grad=True)
    max_similarity(vector_scores(torch.tensor([[1.0]]), passages)).sum().backward()
    assert passages.grad is not None
    assert passages.grad.flatten().tolist() == [0.0, 1.0, 0.0]


# rows 3 and 5 are the passages of rows 1 and 0, as another process has them; row 6 is padding
KEYS = [7, 3, 9, 3, 5, 7, -1]
GROUPS = [[0, 1, 2], [3, 4, -1], [5, -1, -1], [4, -1, 1]]
# the groups as keys: queries 0 and 2 share their positive
KEYS_OF_QUERIES = [[7, 3, 9], [3, 5], [7], [5, 3]]
POSITIVES = [7, 3, 7, 5]  # keys
ROW = {7: 0, 3: 1, 9: 2, 5: 4}  # by key
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


def vector_count(key):
    return 2 if key == 3 else 3


def scores_of_vectors(query, passages, key):
    """The inner products of a query with each vector of a passage."""
    return [torch.dot(query, passages[ROW[key], n]) for n in range(vector_count(key))]


def best(query, passages, key):
    return max(scores_of_vectors(query, passages, key))


def softmax_loss(positive, others, temperature=TEMPERATURE):
    """-log of the positive's share among itself and the others."""
    scores = torch.stack([positive, *others]) / temperature
    return scores.logsumexp(0) - scores[0]


def mean(values):
    return torch.stack(list(values)).mean()


def nothing(block, i, text):
    """No score is masked: of a query i and a passage (qp), of two queries (qq) ..."""
    return False


def negatives_of(i, masked):
    """The keys of the passages that are negatives of query i."""
    return [key for key in ROW if key != POSITIVES[i] and not masked("qp", i, key)]


def in_batch(queries, passages, masked=nothing):
    losses = []
    for i, query in enumerate(queries):
        positive_score = best(query, passages, POSITIVES[i])
        negative_scores = [best(query, passages, key) for key in negatives_of(i, masked)]
        losses.append(softmax_loss(positive_score, negative_scores))
    return mean(losses)


def full(queries, passages, masked=nothing):
    losses = []
    for i, query in enumerate(queries):
        positive = POSITIVES[i]
        positive_vector = passages[ROW[positive], 0]
        other_queries = {0, 1, 2, 3} - {i}
        other_positives = set(POSITIVES) - {positive}
        scores = [best(query, passages, key) for key in negatives_of(i, masked)]
        for j in other_queries:
            if not masked("pq", i, j):
                scores.append(best(queries[j], passages, positive))
            if not masked("qq", i, j):
                scores.append(torch.dot(query, queries[j]))
        for key in other_positives:
            if not masked("pp", i, key):
                scores.append(best(positive_vector, passages, key))
        losses.append(softmax_loss(best(query, passages, positive), scores))
    return mean(losses)


def self_contrastive(queries, passages, masked=nothing):
    """Equations 5 to 7; equation 6 at temperature 1."""
    losses = []
    for i, query in enumerate(queries):
        first_score, *other_scores = scores_of_vectors(query, passages, POSITIVES[i])
        negative_scores = [best(query, passages, key) for key in negatives_of(i, masked)]
        contrastive = softmax_loss(first_score, negative_scores)
        contrast_of_vectors = softmax_loss(first_score, other_scores, temperature=1.0)
        losses.append(contrastive + 0.3 * contrast_of_vectors)
    return mean(losses)


def aggretriever(queries, passages, masked=nothing):
    losses = []
    for i, query in enumerate(queries):
        for dimensions, weight in ((slice(0, 6), 1.0), (PARTS[0], 0.5), (PARTS[1], 0.5)):
            scores = {}
            for key, row in ROW.items():
                scores[key] = query[dimensions] @ passages[row, 0, dimensions]
            negative_scores = [scores[key] for key in negatives_of(i, masked)]
            losses.append(weight * softmax_loss(scores[POSITIVES[i]], negative_scores))
    return torch.stack(losses).sum() / 4


def student_scores(queries, passages):
    for query, keys in zip(queries, KEYS_OF_QUERIES, strict=True):
        yield torch.stack([best(query, passages, key) for key in keys]) / TEMPERATURE


def teacher_scores():
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
        all_losses = []
        for t, s in zip(teacher_scores(), student_scores(queries, passages), strict=True):
            all_losses += losses(t, s)
        return mean(all_losses)

    return literal, settings_of(distillation=kind, contrastive_weight=0.0), {}


settings_of = partial(ObjectiveSettings, temperature=TEMPERATURE)
# by name: the loss literally, and the settings and options of an objective
LOSSES = {
    "in-batch": (in_batch, settings_of(), {}),
    "full": (full, settings_of(contrastive=ContrastiveKind.FULL), {}),
    "mlr": (self_contrastive, settings_of(layer_weight=0.3), {"self_contrastive": True}),
    "kl": distilled(Distillation.KL, kl),
    "soft-cross-entropy": distilled(Distillation.SOFT_CROSS_ENTROPY, soft_labels),
    "margin-mse": distilled(Distillation.MARGIN_MSE, margin_mse),
}


def loss_of(settings, options, queries, values, mask, known_positives=None, guide_vectors=None):
    """The loss of an objective; false negatives are masked where positives are known."""
    groups = torch.tensor(GROUPS)
    keys = torch.tensor(KEYS)
    teacher = torch.full(groups.shape, -torch.inf, dtype=torch.float64)
    teacher[groups >= 0] = torch.cat(teacher_scores())
    objective = RetrievalObjective(settings, **options)
    masked = None
    if known_positives is not None:
        masked = objective.false_negatives(known_positives, groups, keys, guide_vectors)
    terms = objective(queries, PassageVectors(values, mask), groups, keys, teacher, masked)
    return torch.stack(list(terms.values())).sum()


def assert_same_loss(loss, expected, queries, passages):
    """A loss and its gradients are those of the literal one."""
    assert loss.item() == pytest.approx(expected.item(), abs=1e-12)
    gradients = torch.autograd.grad(loss, (queries, passages))
    expected_gradients = torch.autograd.grad(expected, (queries, passages))
    torch.testing.assert_close(gradients, expected_gradients, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", LOSSES)
def test_each_passage_counts_once_and_missing_ones_not(vectors, name):
    queries, passages, mask = vectors
    literal, settings, options = LOSSES[name]
    loss = loss_of(settings, options, queries, passages, mask)
    assert_same_loss(loss, literal(queries, passages), queries, passages)


def test_the_parts_of_a_vector_alone_count_each_passage_once(vectors):
    queries, passages, _ = vectors
    loss = loss_of(settings_of(), {"parts": PARTS}, queries, passages[:, :1], None)
    assert loss.item() == pytest.approx(aggretriever(queries, passages).item(), abs=1e-12)


def test_of_one_vector_the_self_contrastive_loss_is_the_plain_one(vectors):
    queries, passages, _ = vectors
    options = {"self_contrastive": True}
    loss = loss_of(settings_of(layer_weight=0.3), options, queries, passages[:, :1], None)
    expected = loss_of(settings_of(), {}, queries, passages[:, :1], None)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-12)


@pytest.mark.parametrize("l2_norm", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_matryoshka_sums_the_loss_over_the_first_dimensions(vectors, name, l2_norm):
    queries, passages, mask = vectors
    literal, settings, options = LOSSES[name]

    def cut(vectors, size):
        first_dimensions = torch.stack([vectors[..., i] for i in range(size)], -1)
        if not l2_norm:
            return first_dimensions
        squares = first_dimensions * first_dimensions
        return first_dimensions / squares.sum(-1, keepdim=True).sqrt()

    expected = sum(literal(cut(queries, size), cut(passages, size)) for size in (6, 3, 1))
    settings = replace(settings, dimensions=(6, 3, 1))
    loss = loss_of(settings, options | {"l2_norm": l2_norm}, queries, passages, mask)
    assert_same_loss(loss, expected, queries, passages)


@pytest.mark.parametrize("self_contrastive", [False, True])
def test_a_teacher_weakens_the_contrast_and_sees_what_retrieval_scores(vectors, self_contrastive):
    queries, passages, mask = vectors
    options = {"self_contrastive": self_contrastive}
    settings = ObjectiveSettings(distillation=Distillation.KL)
    contrastive = loss_of(ObjectiveSettings(), options, queries, passages, mask)
    loss = loss_of(settings, options, queries, passages, mask)
    distillation_alone = replace(settings, contrastive_weight=0.0)
    # an index keeps vector 0 of those that self-contrastive training compares
    stored_vectors = passages[:, :1] if self_contrastive else passages
    stored_mask = mask[:, : stored_vectors.shape[1]]
    distillation = loss_of(distillation_alone, options, queries, stored_vectors, stored_mask)
    assert loss.item() == pytest.approx(0.2 * contrastive.item() + distillation.item())


# hashes of texts: queries 1 and 2 are equal; by their texts, passages 3 and 9 are
QUERY_TEXTS = [1, 2, 2, 3]
PASSAGE_TEXTS = {7: 70, 3: 30, 9: 30, 5: 50}
KNOWN_POSITIVES = [[70, 50], [30, -1], [70, -1], [50, -1]]


def is_masked(guide, margin, block, i, text):
    """Whether a score of query i, or of its positive, with a passage (key) or a query is masked."""
    guide_queries, guide_passages = guide

    def is_known(query, key):
        """Whether a passage is a positive of an equal query."""
        for j in range(4):
            if QUERY_TEXTS[j] == QUERY_TEXTS[query] and PASSAGE_TEXTS[key] in KNOWN_POSITIVES[j]:
                return True
        return False

    def guide_score(vector, key):
        return max(torch.dot(vector, passage_vector) for passage_vector in guide_passages[ROW[key]])

    positive = POSITIVES[i]
    match block:
        case "qp":
            is_positive = is_known(i, text)
            score = guide_score(guide_queries[i], text)
        case "pq":
            is_positive = is_known(text, positive)
            score = guide_score(guide_queries[text], positive)
        case "qq":
            is_positive = is_known(i, POSITIVES[text]) or is_known(text, positive)
            score = torch.dot(guide_queries[i], guide_queries[text])
        case "pp":
            is_positive = is_known(i, text)
            score = guide_score(guide_passages[ROW[positive], 0], text)
    if is_positive or margin is None:
        return is_positive
    return score > guide_score(guide_queries[i], positive) - margin


# as in LOSSES
MASKED = [
    (in_batch, {}, {}),
    (full, {"contrastive": ContrastiveKind.FULL}, {}),
    (self_contrastive, {"layer_weight": 0.3}, {"self_contrastive": True}),
    (aggretriever, {}, {"parts": PARTS}),
]


@pytest.mark.parametrize("margin", [None, 0.0, 1.5, -20.0])
@pytest.mark.parametrize(("literal", "settings", "options"), MASKED)
def test_false_negatives_leave_every_softmax(vectors, literal, settings, options, margin):
    queries, passages, mask = vectors
    if "parts" in options:
        passages = passages[:, :1]
        mask = None
    known_positives = Positives(
        queries=torch.tensor(QUERY_TEXTS),
        passages=torch.tensor([PASSAGE_TEXTS.get(key, 0) for key in KEYS]),
        positives=torch.tensor(KNOWN_POSITIVES),
    )
    guide_queries = torch.randn(4, 5, dtype=torch.float64)
    guide_passages = torch.randn(7, 2, 5, dtype=torch.float64)
    guide_vectors = None
    if margin is not None:
        guide_vectors = guide_queries, PassageVectors(guide_passages)
    settings = settings_of(**settings, guide="g", guide_margin=margin or 0.0)
    loss = loss_of(settings, options, queries, passages, mask, known_positives, guide_vectors)
    masked = partial(is_masked, (guide_queries, guide_passages), margin)
    expected = literal(queries, passages, masked)
    assert_same_loss(loss, expected, queries, passages)
    assert loss.item() < literal(queries, passages).item() - 0.01
