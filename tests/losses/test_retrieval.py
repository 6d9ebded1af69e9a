import math

import pytest
import torch

from denserk.config.training import ContrastiveKind, Distillation, ObjectiveSettings
from denserk.losses.candidates import find_candidates
from denserk.losses.contrastive import contrastive_loss
from denserk.losses.distillation import kl_divergence
from denserk.losses.retrieval import RetrievalObjective
from denserk.models.pooling import PassageVectors, dot
from tests.losses.mlr import self_contrastive_loss

B, N, S, D = 3, 2, 4, 6
GROUPS = torch.arange(B * N).view(B, N)
TARGETS = GROUPS[:, 0]


@pytest.fixture
def queries():
    torch.manual_seed(0)
    return torch.randn(B, D, dtype=torch.float64)


@pytest.fixture
def passages():
    torch.manual_seed(1)
    return torch.randn(B * N, S, D, dtype=torch.float64)


def total(terms):
    return sum(term.item() for term in terms.values())


def loss(
    queries, values, *, teacher=None, mask=None, parts=None, self_contrastive=False, **settings
):
    objective = RetrievalObjective(
        ObjectiveSettings(**settings), parts=parts, self_contrastive=self_contrastive
    )
    candidates = find_candidates(GROUPS, torch.arange(B * N))
    return objective(queries, PassageVectors(values, mask), candidates, teacher)


def test_one_vector_is_the_dual_encoder(queries, passages):
    one = passages[:, :1]
    expected = contrastive_loss(dot(queries, one[:, 0]), TARGETS, 0.5).item()
    assert total(loss(queries, one, temperature=0.5)) == pytest.approx(expected)
    alone = total(loss(queries, one, temperature=0.5, self_contrastive=True))
    assert alone == pytest.approx(expected)


def test_aggretriever_adds_half_of_each_part(queries, passages):
    one, parts = passages[:, :1], (slice(0, 2), slice(2, D))
    terms = loss(queries, one, parts=parts)
    for name, part in zip(("cls", "agg"), parts, strict=True):
        alone = contrastive_loss(dot(queries[:, part], one[:, 0, part]), TARGETS).item()
        assert terms[name].item() == pytest.approx(0.5 * alone)
    whole = contrastive_loss(dot(queries, one[:, 0]), TARGETS).item()
    assert terms["contrastive"].item() == pytest.approx(whole)


def test_self_contrastive_is_equation_7(queries, passages):
    scores = torch.einsum("bd,psd->bps", queries, passages)
    expected = total(self_contrastive_loss(scores, TARGETS, 0.1))
    terms = loss(queries, passages, self_contrastive=True, layer_weight=0.1)
    assert total(terms) == pytest.approx(expected)


def full_by_hand(q, p):
    """The full contrastive loss, one score at a time, a passage by its best vector."""

    def best(query, passage):
        return max(torch.dot(query, v).item() for v in passage)

    losses = []
    for i, target in enumerate(TARGETS.tolist()):
        scores = [best(q[i], passage) for passage in p]
        for j, other in enumerate(TARGETS.tolist()):
            if j != i:
                scores += [
                    best(q[j], p[target]),
                    torch.dot(q[i], q[j]).item(),
                    best(p[target][0], p[other]),
                ]
        losses.append(math.log(sum(math.exp(s) for s in scores)) - scores[target])
    return sum(losses) / len(losses)


@pytest.mark.parametrize("vectors", [1, S])
def test_full_contrastive_with_several_vectors(queries, passages, vectors):
    terms = loss(queries, passages[:, :vectors], contrastive=ContrastiveKind.FULL)
    assert total(terms) == pytest.approx(full_by_hand(queries, passages[:, :vectors]))


@pytest.mark.parametrize("self_contrastive", [False, True])
def test_distillation_sees_what_retrieval_scores(queries, passages, self_contrastive):
    teacher = torch.randn(B, N, dtype=torch.float64)
    terms = loss(
        *(queries, passages),
        teacher=teacher,
        self_contrastive=self_contrastive,
        temperature=0.7,
        distillation=Distillation.KL,
    )
    student = torch.tensor(
        [
            [
                max((queries[i] @ passages[i * N + n].T).tolist()[: 1 if self_contrastive else S])
                for n in range(N)
            ]
            for i in range(B)
        ],
        dtype=torch.float64,
    )
    expected = kl_divergence(teacher, student / 0.7).item()
    assert terms["distillation"].item() == pytest.approx(expected)
    plain = loss(queries, passages, self_contrastive=self_contrastive, temperature=0.7)
    assert terms["contrastive"].item() == pytest.approx(0.2 * plain["contrastive"].item())


def test_without_contrast_the_teacher_is_all(queries, passages):
    teacher = torch.randn(B, N, dtype=torch.float64)
    terms = loss(
        *(queries, passages),
        teacher=teacher,
        distillation=Distillation.MARGIN_MSE,
        contrastive_weight=0.0,
    )
    assert list(terms) == ["distillation"]


@pytest.mark.parametrize("contrastive", list(ContrastiveKind))
@pytest.mark.parametrize("self_contrastive", [False, True])
def test_padding_vectors_change_nothing(queries, passages, contrastive, self_contrastive):
    noise = torch.full((B * N, 2, D), 50.0, dtype=torch.float64)
    mask = torch.tensor([True] * S + [False] * 2).expand(B * N, S + 2)
    options = {"contrastive": contrastive, "self_contrastive": self_contrastive}
    padded = torch.cat([passages, noise], 1)
    found = total(loss(queries, padded, mask=mask, **options))
    assert found == pytest.approx(total(loss(queries, passages, **options)))
