"""A retriever's loss: from the vectors of a batch to named terms, for every representation.

Axes: B queries, P passages, S vectors of a passage, D dimensions, N passages of a query's group,
the positive first.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from denserk.config.training import ContrastiveKind, Distillation, ObjectiveSettings
from denserk.losses.functional import (
    contrastive_loss,
    first_rows,
    full_contrastive_scores,
    kl_divergence,
    layer_regulariser,
    margin_mse,
    self_contrastive_scores,
    soft_cross_entropy,
)
from denserk.models.pooling import PassageVectors, dot, max_similarity, vector_scores

# What a user may choose -> the loss of (teacher, student) scores
DISTILLATIONS: dict[Distillation, Callable[[Tensor, Tensor], Tensor]] = {
    Distillation.KL: kl_divergence,
    Distillation.SOFT_CROSS_ENTROPY: soft_cross_entropy,
    Distillation.MARGIN_MSE: margin_mse,
}


class Candidates(NamedTuple):
    """The passages that stand in the losses of a batch.

    `groups`: (B, N) int64, each query's own passages as rows of the passages, -1 where there is
    none. `counted`: (B, P) bool, whether a passage stands in a query's softmax.
    """

    groups: Tensor
    counted: Tensor


def find_candidates(groups: Tensor, keys: Tensor) -> Candidates:
    """Count every passage once for every query, whatever number of rows it has.

    Args:
        groups: (B, N), see `Candidates`.
        keys: (P,) int64, equal where two rows are the same passage, negative for padding.

    >>> groups, counted = find_candidates(torch.tensor([[0, 1], [2, -1]]), torch.tensor([7, 8, 7]))
    >>> groups.tolist(), counted.tolist()
    ([[0, 1], [0, -1]], [[True, True, False], [True, True, False]])
    """
    first = first_rows(keys)
    own = torch.where(groups < 0, groups, first[groups])
    counted = (first == torch.arange(len(keys), device=keys.device)) & (keys >= 0)
    return Candidates(own, counted.expand(len(groups), -1))


class RetrievalObjective:
    """Vectors -> loss.

    Args:
        settings: temperature, terms and weights.
        parts: where a vector is made of two parts that are also trained alone (Aggretriever): the
            dimensions of the [CLS] part, then of the lexical part.
        self_contrastive: a passage's kept vector learns to win against its others (MLR, equations
            5 to 7); without, its best vector counts (equation 2).
    """

    def __init__(
        self,
        settings: ObjectiveSettings,
        *,
        parts: tuple[slice, slice] | None = None,
        self_contrastive: bool = False,
    ) -> None:
        self.settings = settings
        self.parts = parts
        self.self_contrastive = self_contrastive

    def __call__(
        self,
        queries: Tensor,
        passages: PassageVectors,
        candidates: Candidates,
        teacher: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Return the weighted terms by name; their sum is the loss.

        queries: (B, D), passages: (P, S, D), teacher: (B, N) scores of each query's own passages,
        minus infinity where a group has no passage.
        """
        terms = {}
        if weight := self.settings.weight_of_contrastive:
            contrast = self._contrast(queries, passages, candidates)
            terms = {name: term * weight for name, term in contrast.items()}
        if self.settings.distillation is not None:
            assert teacher is not None
            student = self._own_scores(queries, passages, candidates)
            loss = DISTILLATIONS[self.settings.distillation]
            terms["distillation"] = loss(teacher, student / self.settings.temperature)
        return terms

    def _contrast(
        self, queries: Tensor, passages: PassageVectors, candidates: Candidates
    ) -> dict[str, Tensor]:
        temperature, targets = self.settings.temperature, candidates.groups[:, 0]
        left_out = ~candidates.counted
        by_vector = vector_scores(queries, passages.values)
        best = max_similarity(by_vector, passages.mask)
        scores = best
        if self.self_contrastive:
            scores = self_contrastive_scores(by_vector, targets, passages.mask)
        scores = scores.masked_fill(left_out, -torch.inf)
        if self.settings.contrastive is ContrastiveKind.FULL:
            positives = passages.of(targets)
            scores = full_contrastive_scores(scores, queries, positives, best[:, targets], targets)
        terms = {"contrastive": contrastive_loss(scores, targets, temperature)}
        if self.self_contrastive:
            terms["layers"] = self.settings.layer_weight * layer_regulariser(
                by_vector, targets, passages.mask, self.settings.layer_temperature
            )
        if self.parts is not None:
            weights = (self.settings.cls_weight, self.settings.agg_weight)
            for name, part, weight in zip(("cls", "agg"), self.parts, weights, strict=True):
                alone = dot(queries[:, part], passages.values[:, 0, part])
                alone = alone.masked_fill(left_out, -torch.inf)
                terms[name] = weight * contrastive_loss(alone, targets, temperature)
        return terms

    def _own_scores(
        self, queries: Tensor, passages: PassageVectors, candidates: Candidates
    ) -> Tensor:
        """Score each query with its own passages as retrieval will score them: (B, N)."""
        own = passages.of(candidates.groups.clamp_min(0))
        by_vector = torch.einsum("bd,bnsd->bns", queries, own.values)
        scores = by_vector[..., 0]
        if not self.self_contrastive:
            scores = max_similarity(by_vector, own.mask)
        return scores.masked_fill(candidates.groups < 0, -torch.inf)
