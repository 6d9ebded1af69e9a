"""RetroMAE: a one-layer decoder recovers every token of a text, each from a view of its own.

"RetroMAE: Pre-Training Retrieval-oriented Language Models Via Masked Auto-Encoder" (Xiao et al.,
2022), sections 3.1 to 3.3.
"""

from torch import Tensor, nn

from denserk.data.batches import PretrainingBatch
from denserk.errors import ModelError
from denserk.losses.bottleneck import Bottleneck, behind
from denserk.losses.objective import PretrainingObjective
from denserk.models.backbone import Backbone
from denserk.models.model_folder import RETROMAE

DECODER = "retromae"  # The name of the decoder's text in a batch


class RetroMae(PretrainingObjective):
    """Terms `mlm` of the encoder and `decoder` of the enhanced decoding (section 3.3).

    The decoder's queries are the [CLS] state plus each position's embedding; its keys and values
    the [CLS] state, then the embeddings of the text with nothing hidden. Which of them a row sees
    is the batch's `visible`.

    Args:
        backbone: with its MLM head.

    Raises:
        ModelError: the backbone has no absolute positions.
    """

    layout = RETROMAE

    def __init__(self, backbone: Backbone) -> None:
        super().__init__(backbone)
        if backbone.architecture.cross is None:
            raise ModelError(
                f"RetroMAE's decoder reads absolute positions, which a "
                f"{backbone.architecture.model_type} backbone does not have",
                "start from a BERT, RoBERTa or DistilBERT, or choose another --objective",
            )
        self.decoder = Bottleneck(backbone, 1)

    def heads(self) -> dict[str, nn.Module]:
        """The decoder, `decoder`."""
        return {"decoder": self.decoder}

    def labels(self, batch: PretrainingBatch) -> dict[str, Tensor]:
        """The encoder is asked the hidden tokens, the decoder what its text says."""
        return {"mlm": batch.texts.labels, "decoder": batch.decoders[DECODER].labels}

    def states(self, batch: PretrainingBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """The last layer's, and the decoder's."""
        assert batch.visible is not None
        hidden = self.backbone(batch.texts.tokens)
        cls = hidden[:, 0]
        embedded = self.backbone.embed(batch.decoders[DECODER].tokens)
        queries = cls.unsqueeze(1) + self.backbone.position_signal(embedded.shape[1])
        decoded = self.backbone.run_cross_layer(
            self.decoder[0], queries, behind(cls, embedded), batch.visible
        )
        return cls, {"mlm": hidden, "decoder": decoded}
