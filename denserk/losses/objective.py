"""What every pre-training objective is: states of a masked text, and the tokens asked of them."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from denserk.data.batches import PretrainingBatch
from denserk.data.masking import IGNORED
from denserk.models.backbone import Backbone
from denserk.models.model_folder import HeadLayout
from denserk.models.pooling import at_least_float32


@dataclass(frozen=True)
class TokenLoss:
    """One term of a loss before it is averaged.

    `total`: the cross-entropies' sum, a scalar. `count`: over how many tokens, int64. An update's
    loss is the sum of its totals over the sum of its counts, whatever its chunks and processes.
    """

    total: Tensor
    count: Tensor


def token_loss(backbone: Backbone, hidden: Tensor, labels: Tensor) -> TokenLoss:
    """Summed cross-entropy of the MLM head, which sees the labelled positions alone.

    Args:
        backbone: has the MLM head.
        hidden: (B, T, H).
        labels: (B, T) int64, -100 where nothing is asked.
    """
    asked = labels != IGNORED
    logits = at_least_float32(backbone.vocabulary_logits(hidden[asked]))
    return TokenLoss(F.cross_entropy(logits, labels[asked], reduction="sum"), asked.sum())


class PretrainingObjective(nn.Module, ABC):
    """A backbone with what it is pre-trained by.

    Args:
        backbone: with its MLM head, which all terms share.
    """

    layout: ClassVar[HeadLayout | None] = None
    """How the layers beside the backbone are kept; None where there are none."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        assert backbone.with_head
        self.backbone = backbone

    def heads(self) -> dict[str, nn.Module]:
        """The layers beside the backbone, by the first part of their tensors' names."""
        return {}

    @abstractmethod
    def labels(self, batch: PretrainingBatch) -> dict[str, Tensor]:
        """What is asked, by term: (B, T) int64 each, -100 where nothing is."""

    @abstractmethod
    def states(self, batch: PretrainingBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Who is asked: the texts' last [CLS] states (B, H), and (B, T, H) by term.

        The encoder's first pass comes first, so that `cls` draws the same dropout.
        """

    def cls(self, batch: PretrainingBatch) -> Tensor:
        """The texts' last [CLS] states alone, raw: (B, H)."""
        hidden: Tensor = self.backbone(batch.texts.tokens)
        return hidden[:, 0]

    def counts(self, batch: PretrainingBatch) -> dict[str, Tensor]:
        """How many tokens each term asks for: `TokenLoss.count` without a forward pass."""
        return {name: (asked != IGNORED).sum() for name, asked in self.labels(batch).items()}

    def with_cls(self, batch: PretrainingBatch) -> tuple[Tensor, dict[str, TokenLoss]]:
        """The [CLS] states (B, H) and the terms, from one forward pass."""
        cls, states = self.states(batch)
        asked = self.labels(batch)
        return cls, {n: token_loss(self.backbone, hidden, asked[n]) for n, hidden in states.items()}

    def forward(self, batch: PretrainingBatch) -> dict[str, TokenLoss]:
        """The terms by name; each has weight 1."""
        return self.with_cls(batch)[1]


class MaskedLanguageModel(PretrainingObjective):
    """One term, `mlm`.

    Args:
        backbone: with its MLM head.
    """

    def labels(self, batch: PretrainingBatch) -> dict[str, Tensor]:
        """What is asked of the last layer."""
        return {"mlm": batch.texts.labels}

    def states(self, batch: PretrainingBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """The last layer's."""
        hidden = self.backbone(batch.texts.tokens)
        return hidden[:, 0], {"mlm": hidden}
