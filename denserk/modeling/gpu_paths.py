"""What a model does otherwise on a GPU, in inference and in training: no padding, and kernels.

Weights stay where they are and what they are; each way is tried beside the plain one first, and the
plain one stays where they disagree.
"""

import logging

import torch
from torch import nn

from denserk.modeling.backbone import Backbone
from denserk.modeling.encoder import Encoder
from denserk.modeling.kernel_trial import kernels_problem
from denserk.modeling.lean_choice import difference
from denserk.modeling.representation import Aggretriever, needs_mlm_head
from denserk.modeling.unpadded_forward import UnpaddedForward, fits

logger = logging.getLogger(__name__)

TOLERANCE = 1e-3
"""How far states in float32 may lie from the plain ones, relative to their size."""


def take_gpu_paths(model: nn.Module, *, plain: bool = False) -> None:
    """Lets every part of a model that is on a GPU take its faster ways.

    Args:
        model: an encoder, or what is trained; in float32.
        plain: leave everything as it is.
    """
    reasons = []
    for part in () if plain else model.modules():
        if isinstance(part, Backbone) and next(part.parameters()).is_cuda:
            reasons.append(skip_padding(part))
        if isinstance(part, Encoder) and next(part.parameters()).is_cuda:
            reasons.append(take_kernels(part))
    for reason in dict.fromkeys(filter(None, reasons)):
        logger.warning(f"computing by the plain path, which is slower: {reason}")


def skip_padding(backbone: Backbone) -> str | None:
    """Lets a backbone compute states over real tokens alone, or says why not.

    One whose layers the unpadded forward does not know stays as it is.
    """
    if not fits(backbone.architecture):
        return None
    unpadded = UnpaddedForward(backbone.architecture, backbone.config, backbone.encoder)
    training = backbone.training
    with torch.no_grad():
        off = difference(backbone.eval(), unpadded)
    backbone.train(training)
    if not off <= TOLERANCE:
        return f"the unpadded forward of this model is off by {off:.1e}"
    backbone.lean = unpadded
    return None


def take_kernels(encoder: Encoder) -> str | None:
    """Lets Triton kernels make Aggretriever's lexical part, or says why not."""
    made = encoder.representation
    if not (isinstance(made, Aggretriever) and needs_mlm_head(encoder.settings)):
        return None
    problem = kernels_problem(next(encoder.parameters()).device)
    made.on_kernels = problem is None
    return problem
