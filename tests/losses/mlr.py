"""Equation 7 of MLR from the terms that are trained."""

from torch import Tensor

from denserk.losses.contrastive import contrastive_loss, layer_regulariser, self_contrastive_scores


def self_contrastive_loss(
    scores: Tensor,
    targets: Tensor,
    weight: float = 1.0,
    mask: Tensor | None = None,
    temperature: float = 1.0,
) -> dict[str, Tensor]:
    """Equation 7: the terms by name; their sum is the loss. `weight` is the paper's lambda."""
    main = contrastive_loss(self_contrastive_scores(scores, targets, mask), targets, temperature)
    return {"contrastive": main, "layers": weight * layer_regulariser(scores, targets, mask)}
