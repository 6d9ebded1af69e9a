"""Masked language modelling alone: the control that the other objectives are measured against.

"BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding" (Devlin et al.,
2019), section 3.1, without the prediction of next sentences.
"""

from torch import Tensor

from denserk.data.batches import PretrainingBatch
from denserk.objectives.objective import PretrainingObjective


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
