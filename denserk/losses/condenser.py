"""Condenser: the head sees late [CLS] and early tokens, so late layers must write into [CLS].

"Condenser: a Pre-training Architecture for Dense Retrieval" (Gao and Callan, 2021).
"""

from torch import Tensor, nn

from denserk.data.batches import PretrainingBatch
from denserk.errors import ModelError
from denserk.losses.bottleneck import Bottleneck
from denserk.losses.objective import PretrainingObjective
from denserk.models.backbone import Backbone
from denserk.models.model_folder import CONDENSER


class Condenser(PretrainingObjective):
    """Terms `head` (the paper's L_mlm) and `late` (L_mlm^c), through one MLM head.

    Gradients flow everywhere: from the head into late [CLS], early layers and embeddings.

    Args:
        backbone: with its MLM head.
        skip_from: which layer's token states the head sees, 0 the embeddings'; None: half of the
            layers.
        head_layers: how many layers the head has.
        late_mlm: whether the last layer's own states are asked too.

    Raises:
        ModelError: there is no such layer.
    """

    layout = CONDENSER

    def __init__(
        self,
        backbone: Backbone,
        *,
        skip_from: int | None = None,
        head_layers: int = 2,
        late_mlm: bool = True,
    ) -> None:
        super().__init__(backbone)
        last = backbone.last_layer
        self.skip_from = last // 2 if skip_from is None else skip_from
        if not 0 <= self.skip_from <= last:
            raise ModelError(
                f"the head cannot see layer {self.skip_from}: the backbone has layers 0 "
                f"(embeddings) to {last}",
                f"leave --set skip-from=out for {last // 2}",
            )
        self.late_mlm = late_mlm
        self.head = Bottleneck(backbone, head_layers)

    def heads(self) -> dict[str, nn.Module]:
        """The head, `head`."""
        return {"head": self.head}

    def labels(self, batch: PretrainingBatch) -> dict[str, Tensor]:
        """Both terms ask the same tokens."""
        return dict.fromkeys(["head", "late"] if self.late_mlm else ["head"], batch.texts.labels)

    def states(self, batch: PretrainingBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """The head's, and the last layer's."""
        tokens = batch.texts.tokens
        layers = self.backbone.hidden_states(tokens)
        late, early = layers[-1], layers[self.skip_from]
        cls = late[:, 0]
        states = {"head": self.head(self.backbone, cls, early, tokens.attention_mask)}
        return cls, states | ({"late": late} if self.late_mlm else {})
