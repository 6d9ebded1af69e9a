"""What a model in training computes otherwise than transformers does: nothing for padding."""

import logging

from torch import nn

from denserk.modeling.backbone import Backbone
from denserk.modeling.gpu_paths import skip_padding, take_gpu_paths
from denserk.training.length_groups import Work

logger = logging.getLogger(__name__)


def take_training_paths(model: nn.Module, work: Work, *, plain: bool = False) -> None:
    """Lets a model take its faster ways, each compared with the plain one first.

    Args:
        model: what is trained, in float32, where it will be trained.
        work: learns whether all of the model's backbones leave padding out.
        plain: leave everything as it is.
    """
    if plain:
        return
    take_gpu_paths(model)
    backbones = [part for part in model.modules() if isinstance(part, Backbone)]
    reasons = [
        skip_padding(part) for part in backbones if not next(part.parameters()).is_cuda
    ]  # on a GPU that is done
    for reason in dict.fromkeys(filter(None, reasons)):
        logger.warning(f"computing by the plain path, which is slower: {reason}")
    work.unpadded = bool(backbones) and all(part.lean is not None for part in backbones)
