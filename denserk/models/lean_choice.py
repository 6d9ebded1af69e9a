"""Whether a model takes the lean forward: it must know the model, and agree with the plain one."""

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from denserk.data.batches import TokenBatch, pad
from denserk.models.backbone import Backbone
from denserk.models.lean_forward import LeanForward, fits
from denserk.models.packed_linear import unavailable

logger = logging.getLogger(__name__)

# How far states may lie from the plain ones in float32, relative to their size
TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 1e-1}
LENGTHS = (9, 5)  # Tokens of the texts that both forwards read when a model is loaded


def quicken(backbones: Sequence[Backbone], dtype: torch.dtype) -> None:
    """Gives backbones on the CPU their lean forward, where that is possible.

    A backbone of another kind than the lean forward knows stays as it is. Where this machine or
    this torch is the reason, that is told in one line.

    Args:
        backbones: float32, in evaluation mode; afterwards for inference alone.
        dtype: the precision to compute in.
    """
    reasons = [_quicken(each, dtype) for each in backbones if fits(each.architecture, each.config)]
    for reason in dict.fromkeys(filter(None, reasons)):
        logger.warning(f"computing by the plain path, which is slower: {reason}")


@torch.inference_mode()
def _quicken(backbone: Backbone, dtype: torch.dtype) -> str | None:
    if (reason := unavailable(dtype)) is not None:
        return reason
    lean = LeanForward(backbone.architecture, backbone.config, backbone.encoder, dtype)
    off = difference(backbone, lean)
    if not off <= TOLERANCES[dtype]:
        return f"the lean forward of this model is off by {off:.1e}"
    backbone.become_lean(lean)
    return None


def difference(backbone: Backbone, lean: Callable[[TokenBatch], Tensor]) -> float:
    """How far two forwards lie apart on a small padded batch and on one of its texts alone."""
    vocabulary = backbone.vocabulary
    texts = [[(7 + 97 * i) % vocabulary for i in range(length)] for length in LENGTHS]
    device = next(backbone.parameters()).device
    batch = pad(texts, int(backbone.config.pad_token_id or 0)).to(device)
    expected = backbone(batch)
    alone = TokenBatch(*(part[:1] for part in batch))
    pairs = (
        (lean(batch)[batch.attention_mask], expected[batch.attention_mask]),
        (lean(alone), expected[:1]),
    )
    return max(float((a.float() - b).norm() / b.norm()) for a, b in pairs)
