"""Whether Aggretriever's head takes its fast form: it must know the head, and agree with it."""

import logging
from collections.abc import Sequence

import torch

from denserk.modeling.backbone import Backbone
from denserk.modeling.encoder import Encoder
from denserk.modeling.lexical_head import LexicalHead
from denserk.modeling.packed_linear import unavailable
from denserk.modeling.representation import Aggretriever, needs_mlm_head

logger = logging.getLogger(__name__)

TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 1e-1}
"""How far folded vectors may lie from the plain ones in float32, relative to their size."""
POSITIONS = (3, 7)
"""Texts and positions of the states that both forms read when a model is loaded."""


def quicken_heads(encoders: Sequence[Encoder], dtype: torch.dtype) -> None:
    """Gives Aggretriever encoders on the CPU the fast form of their head, where that is possible.

    An encoder without slices, or with a head that the fast form does not know, stays as it is.
    Where this machine or this torch is the reason, that is told in one line.

    Args:
        encoders: float32, in evaluation mode; afterwards for inference alone.
        dtype: the precision of the head.
    """
    reasons = [
        _quicken(each.representation, each.backbone, dtype)
        for each in encoders
        if isinstance(each.representation, Aggretriever) and fits(each)
    ]
    for reason in dict.fromkeys(filter(None, reasons)):
        logger.warning(f"computing the head by its plain form, which is slower: {reason}")


def fits(encoder: Encoder) -> bool:
    """Whether an encoder's vectors are made of slices, and by a head that the fast form knows."""
    architecture, config = encoder.backbone.architecture, encoder.backbone.config
    return (
        isinstance(encoder.representation, Aggretriever)
        and encoder.representation.layout is not None
        and needs_mlm_head(encoder.settings)
        and architecture.head_parts is not None
        and architecture.activation(config) == "gelu"
    )


@torch.inference_mode()
def _quicken(representation: Aggretriever, backbone: Backbone, dtype: torch.dtype) -> str | None:
    if (reason := unavailable(dtype)) is not None:
        return reason
    assert representation.layout is not None
    assert backbone.architecture.head_parts is not None
    parts = backbone.architecture.head_parts(backbone.model)
    head = LexicalHead(parts, representation.layout, dtype)
    off = difference(representation, backbone, head)
    if not off <= TOLERANCES[dtype]:
        return f"the fast head of this model is off by {off:.1e}"
    representation.folding = head
    return None


def difference(representation: Aggretriever, backbone: Backbone, head: LexicalHead) -> float:
    """How far two forms of a head lie apart on made-up states, some of them padding.

    The halves of slices are compared before their signs are chosen: at a near tie either sign is
    right.
    """
    drawn = torch.Generator().manual_seed(5)
    states = torch.randn(*POSITIONS, backbone.hidden_size, generator=drawn)
    weights = torch.rand(*POSITIONS, generator=drawn) + 0.1
    mask = torch.arange(POSITIONS[1]) < torch.tensor([[POSITIONS[1]], [2], [4]])
    ids = torch.zeros(POSITIONS, dtype=torch.int64)
    assert representation.layout is not None
    scores = representation.vocabulary_scores(states, weights, mask, ids, backbone)
    expected = representation.layout.halves(scores)
    return float((head.halves(states, weights, mask) - expected).norm() / expected.norm())
