"""Pre-training objectives: states of a masked text, and the tokens to predict from them.

"Condenser: a Pre-training Architecture for Dense Retrieval" (Gao and Callan, 2021); "MASTER:
Multi-task Pre-trained Bottlenecked Masked Autoencoders are Better Dense Retrievers" (Zhou et al.,
2023); "RetroMAE: Pre-Training Retrieval-oriented Language Models Via Masked Auto-Encoder" (Xiao et
al., 2022), sections 3.1 to 3.3. In all of them a shallow head recovers a text through one vector.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from denserk.data.batches import PretrainingBatch
from denserk.data.masking import IGNORED
from denserk.errors import ModelError
from denserk.models.backbone import Backbone
from denserk.models.model_folder import CONDENSER, MASTER, RETROMAE, HeadLayout
from denserk.models.pooling import at_least_float32

STANDARD_DEVIATION = 0.02  # of new weights, as BERT draws them
TASKS = ("mkp", "cmp", "npr", "dor", "gor")  # of MASTER
DECODER = "retromae"  # the name of RetroMAE's decoder text in a batch


@dataclass(frozen=True)
class TokenLoss:
    """One term of a loss before it is averaged.

    `total`: the cross-entropies' sum, a scalar. `count`: over how many tokens, int64. An update's
    loss is the sum of its totals over the sum of its counts, whatever its chunks and processes.
    """

    total: Tensor
    count: Tensor


def token_loss(backbone: Backbone, hidden: Tensor, labels: Tensor) -> TokenLoss:
    """Sum the cross-entropy of the MLM head, which sees the labelled positions alone.

    Args:
        backbone: has the MLM head.
        hidden: (B, T, H).
        labels: (B, T) int64, -100 where nothing is asked.
    """
    asked = labels != IGNORED
    logits = at_least_float32(backbone.vocabulary_logits(hidden[asked]))
    return TokenLoss(F.cross_entropy(logits, labels[asked], reduction="sum"), asked.sum())


class PretrainingObjective(nn.Module, ABC):
    """A backbone, whose MLM head all terms share, with what it is pre-trained by.

    `layout` says how the layers beside the backbone are kept; None where there are none.
    """

    layout: ClassVar[HeadLayout | None] = None

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        assert backbone.with_head
        self.backbone = backbone

    def heads(self) -> dict[str, nn.Module]:
        """Return the layers beside the backbone, by the first part of their tensors' names."""
        return {}

    @abstractmethod
    def labels(self, batch: PretrainingBatch) -> dict[str, Tensor]:
        """Return the tokens to predict, by term: (B, T) int64 each, -100 where there is none."""

    @abstractmethod
    def states(self, batch: PretrainingBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the last [CLS] states (B, H), and the states to predict from by term (B, T, H)."""

    def counts(self, batch: PretrainingBatch) -> dict[str, Tensor]:
        """Return how many tokens each term asks for, without a forward pass."""
        return {name: (asked != IGNORED).sum() for name, asked in self.labels(batch).items()}

    def forward(self, batch: PretrainingBatch) -> tuple[Tensor, dict[str, TokenLoss]]:
        """Return the last [CLS] states (B, H), and the terms by name; each has weight 1."""
        cls, states = self.states(batch)
        asked = self.labels(batch)
        return cls, {n: token_loss(self.backbone, hidden, asked[n]) for n, hidden in states.items()}


class MaskedLanguageModel(PretrainingObjective):
    """One term, `mlm`."""

    def labels(self, batch: PretrainingBatch) -> dict[str, Tensor]:
        """See `PretrainingObjective`."""
        return {"mlm": batch.texts.labels}

    def states(self, batch: PretrainingBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """See `PretrainingObjective`."""
        hidden = self.backbone(batch.texts.tokens)
        return hidden[:, 0], {"mlm": hidden}


def draw_as_bert(module: nn.Module) -> None:
    """Draw weights from N(0, 0.02), with biases 0; norms start as the identity by themselves."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=STANDARD_DEVIATION)
            if part.bias is not None:  # ModernBERT has none
                nn.init.zeros_(part.bias)


def with_first(cls: Tensor, stream: Tensor) -> Tensor:
    """Put [CLS] states in the first place of a stream: (B, H), (B, T, H) -> (B, T, H)."""
    return torch.cat([cls.unsqueeze(1).to(stream.dtype), stream[:, 1:]], 1)


class Bottleneck(nn.ModuleList):
    """A few layers of the backbone's own kind that recover a text through one vector.

    Args:
        backbone: whose kind of layers it takes; it is not part of the stack.
        count: how many layers.
        library_init: leave the weights as torch draws them, in place of BERT's N(0, 0.02).
    """

    def __init__(self, backbone: Backbone, count: int, *, library_init: bool = False) -> None:
        super().__init__(backbone.new_layers(count))
        if not library_init:
            draw_as_bert(self)

    def forward(self, backbone: Backbone, cls: Tensor, stream: Tensor, mask: Tensor) -> Tensor:
        """Run full self-attention over a [CLS] state and the stream behind it.

        cls: (B, H), stream: (B, T, H), whose position 0 is replaced, mask: (B, T) bool, True at
        real tokens -> (B, T, H).
        """
        return backbone.run_layers(self, with_first(cls, stream), mask)


class Condenser(PretrainingObjective):
    """Terms `head` (the paper's L_mlm) and `late` (L_mlm^c), through one MLM head.

    The head sees late [CLS] and early tokens, so that late layers must write into [CLS]. Gradients
    flow everywhere: from the head into late [CLS], early layers and embeddings.

    Args:
        backbone: with its MLM head.
        skip_from: which layer's token states the head sees, 0 the embeddings'; None: half of the
            layers.
        head_layers: how many layers the head has.
        late_mlm: whether the last layer's own states predict tokens too.

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
        """See `PretrainingObjective`."""
        return {"head": self.head}

    def labels(self, batch: PretrainingBatch) -> dict[str, Tensor]:
        """See `PretrainingObjective`; both terms predict the same tokens."""
        return dict.fromkeys(["head", "late"] if self.late_mlm else ["head"], batch.texts.labels)

    def states(self, batch: PretrainingBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """See `PretrainingObjective`."""
        tokens = batch.texts.tokens
        layers = self.backbone.hidden_states(tokens)
        late, early = layers[-1], layers[self.skip_from]
        cls = late[:, 0]
        states = {"head": self.head(self.backbone, cls, early, tokens.attention_mask)}
        return cls, states | ({"late": late} if self.late_mlm else {})


class Master(PretrainingObjective):
    """Terms `mlm` of the encoder, `mlm_npr` and so on of its further passes, and each decoder's.

    A decoder sees the [CLS] state of the pass that bears its name, or else of the first; behind it,
    without any skip from the encoder's layers, the embeddings of its own masked text. The tasks:
    corrupted passages (masked keywords `mkp`, complementary masks `cmp`), related passages (`npr`),
    and what other models made of a passage (queries `dor`, continuations `gor`).

    Args:
        backbone: with its MLM head.
        tasks: whose decoders there are; a batch's other decoders and passes are left out.
        decoder_layers: how many layers each has.
        shared: one decoder for all tasks (the ablation of Table 6).
        library_init: new weights as torch draws them (the released code), not from N(0, 0.02).
    """

    layout = MASTER

    def __init__(
        self,
        backbone: Backbone,
        *,
        tasks: Sequence[str] = TASKS,
        decoder_layers: int = 2,
        shared: bool = False,
        library_init: bool = False,
    ) -> None:
        super().__init__(backbone)
        self.tasks = [task for task in TASKS if task in tasks]
        self.shared = shared
        self.decoders = nn.ModuleDict(
            {
                name: Bottleneck(backbone, decoder_layers, library_init=library_init)
                for name in (["shared"] if shared else self.tasks)
            }
        )

    def heads(self) -> dict[str, nn.Module]:
        """See `PretrainingObjective`: `mkp_decoder` and so on, or `shared_decoder`."""
        return {f"{name}_decoder": decoder for name, decoder in self.decoders.items()}

    def labels(self, batch: PretrainingBatch) -> dict[str, Tensor]:
        """See `PretrainingObjective`."""
        passes = {f"mlm_{name}": batch.passes[name].labels for name in self._passes(batch)}
        decoders = {task: batch.decoders[task].labels for task in self.tasks}
        return {"mlm": batch.texts.labels, **passes, **decoders}

    def states(self, batch: PretrainingBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """See `PretrainingObjective`."""
        states = {"mlm": self.backbone(batch.texts.tokens)}
        cls = dict.fromkeys(self.tasks, states["mlm"][:, 0])
        for name in self._passes(batch):
            states[f"mlm_{name}"] = self.backbone(batch.passes[name].tokens)
            cls[name] = states[f"mlm_{name}"][:, 0]
        for task in self.tasks:
            tokens = batch.decoders[task].tokens
            decoder = self.decoders["shared" if self.shared else task]
            embedded = self.backbone.embed(tokens)
            states[task] = decoder(self.backbone, cls[task], embedded, tokens.attention_mask)
        return states["mlm"][:, 0], states

    def _passes(self, batch: PretrainingBatch) -> list[str]:
        return [task for task in self.tasks if task in batch.passes]


class RetroMae(PretrainingObjective):
    """Terms `mlm` of the encoder and `decoder` of the enhanced decoding (section 3.3).

    A one-layer decoder recovers every token, each from a view of its own: its queries are the [CLS]
    state plus each position's embedding; its keys and values the [CLS] state, then the embeddings
    of the text with nothing hidden. Which of them a row sees is the batch's `visible`.

    Raises:
        ModelError: the backbone has no absolute positions.
    """

    layout = RETROMAE

    def __init__(self, backbone: Backbone) -> None:
        super().__init__(backbone)
        if not hasattr(backbone.encoder.embeddings, "position_embeddings"):
            raise ModelError(
                f"RetroMAE's decoder reads absolute positions, which a "
                f"{backbone.architecture.model_type} backbone does not have",
                "start from a BERT, RoBERTa or DistilBERT, or choose another --objective",
            )
        self.decoder = Bottleneck(backbone, 1)

    def heads(self) -> dict[str, nn.Module]:
        """See `PretrainingObjective`."""
        return {"decoder": self.decoder}

    def labels(self, batch: PretrainingBatch) -> dict[str, Tensor]:
        """See `PretrainingObjective`."""
        return {"mlm": batch.texts.labels, "decoder": batch.decoders[DECODER].labels}

    def states(self, batch: PretrainingBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """See `PretrainingObjective`."""
        assert batch.visible is not None
        hidden = self.backbone(batch.texts.tokens)
        cls = hidden[:, 0]
        embedded = self.backbone.embed(batch.decoders[DECODER].tokens)
        queries = cls.unsqueeze(1) + self.backbone.position_signal(embedded.shape[1])
        decoded = self.backbone.run_cross_layer(
            self.decoder[0], queries, with_first(cls, embedded), batch.visible
        )
        return cls, {"mlm": hidden, "decoder": decoded}
