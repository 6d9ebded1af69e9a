"""Pre-training objectives: states of a masked text, and the tokens to predict from them.

"Condenser: a Pre-training Architecture for Dense Retrieval" (Gao and Callan, 2021); "MASTER:
Multi-task Pre-trained Bottlenecked Masked Autoencoders are Better Dense Retrievers" (Zhou et al.,
2023); "RetroMAE: Pre-Training Retrieval-oriented Language Models Via Masked Auto-Encoder" (Xiao et
al., 2022), sections 3.1 to 3.3. In all of them a shallow head recovers a text through one vector.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from denserk.data.batches import PretrainingBatch
from denserk.data.masking import IGNORED
from denserk.errors import ModelError
from denserk.models.backbone import Backbone
from denserk.models.checkpoints import fill, read_tensors, write_tensors
from denserk.models.devices import at_least_float32

STANDARD_DEVIATION = 0.02  # of new weights, as BERT draws them
TASKS = ("mkp", "cmp", "npr", "dor", "gor")  # of MASTER
DECODER = "retromae"  # the name of RetroMAE's decoder text in a batch
# Condenser's and MASTER's authors keep their heads here; only its tensors are read
PUBLISHED_FILE = "model.pt"


@dataclass(frozen=True)
class TokenLoss:
    """One term; an update's loss is its totals over its counts, whatever chunks and processes."""

    total: Tensor  # sum of cross-entropies, a scalar
    count: Tensor  # of tokens, int64


def token_loss(backbone: Backbone, hidden: Tensor, labels: Tensor) -> TokenLoss:
    """Sum the cross-entropy of the MLM head, which sees the labelled positions alone.

    hidden: (B, T, H), labels: (B, T) int64, -100 where there is none.
    """
    labelled = labels != IGNORED
    logits = at_least_float32(backbone.vocabulary_logits(hidden[labelled]))
    return TokenLoss(F.cross_entropy(logits, labels[labelled], reduction="sum"), labelled.sum())


class PretrainingObjective(nn.Module, ABC):
    """A backbone, whose MLM head all terms share, with what it is pre-trained by.

    Attributes:
        head_file: where denserk keeps the layers beside the backbone; "" where there are none.
        published_heads: their names in the authors' `model.pt` -> denserk's.
    """

    head_file: ClassVar[str] = ""
    published_heads: ClassVar[Mapping[str, str]] = {}

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        assert backbone.decoder is not None
        self.backbone = backbone

    def heads(self) -> dict[str, nn.Module]:
        """Return the layers beside the backbone, by the first part of their tensors' names."""
        return {}

    @classmethod
    def head_files(cls) -> list[str]:
        """Return the files that may hold the heads; the first that exists is read."""
        if cls.published_heads:
            return [cls.head_file, PUBLISHED_FILE]
        return [cls.head_file] if cls.head_file else []

    def save_heads(self, folder: Path) -> None:
        """Write the heads beside the backbone."""
        if self.head_file:
            write_tensors(folder / self.head_file, nn.ModuleDict(self.heads()).state_dict())

    def load_heads(self, folder: Path) -> Path | None:
        """Load the heads from denserk's or the authors' file, and return it, or None without one.

        Other heads in it are ignored; a ModelError if it lacks a layer or has other shapes.
        """
        path = next((folder / n for n in self.head_files() if (folder / n).is_file()), None)
        if path is None:
            return None
        heads = self.heads()
        tensors: dict[str, Tensor] = {}
        for name, tensor in read_tensors(path).items():
            head, _, rest = name.partition(".")
            if path.name == PUBLISHED_FILE:  # the oldest have other names of layer norms, too
                head = self.published_heads.get(head, head)
                rest = rest.replace("LayerNorm.gamma", "LayerNorm.weight")
                rest = rest.replace("LayerNorm.beta", "LayerNorm.bias")
            if head in heads:
                tensors[f"{head}.{rest}"] = tensor
        fill(path, nn.ModuleDict(heads), tensors)
        return path

    @abstractmethod
    def labels(self, batch: PretrainingBatch) -> dict[str, Tensor]:
        """Return the tokens to predict, by term: (B, T) int64 each, -100 where there is none."""

    @abstractmethod
    def states(self, batch: PretrainingBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the last [CLS] states (B, H), and the states to predict from by term (B, T, H)."""

    def counts(self, batch: PretrainingBatch) -> dict[str, Tensor]:
        """Return how many tokens each term asks for, without a forward pass."""
        return {name: (labels != IGNORED).sum() for name, labels in self.labels(batch).items()}

    def forward(self, batch: PretrainingBatch) -> tuple[Tensor, dict[str, TokenLoss]]:
        """Return the last [CLS] states (B, H), and the terms by name; each has weight 1."""
        labels = self.labels(batch)
        cls, states = self.states(batch)
        return cls, {name: token_loss(self.backbone, states[name], labels[name]) for name in states}


class MaskedLanguageModel(PretrainingObjective):
    """One term, `mlm`."""

    def labels(self, batch: PretrainingBatch) -> dict[str, Tensor]:
        """See `PretrainingObjective`."""
        return {"mlm": batch.texts.labels}

    def states(self, batch: PretrainingBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """See `PretrainingObjective`."""
        hidden = self.backbone(batch.texts.tokens)
        return hidden[:, 0], {"mlm": hidden}


def with_first(cls: Tensor, stream: Tensor) -> Tensor:
    """Put [CLS] states in the first place of a stream: (B, H), (B, T, H) -> (B, T, H)."""
    return torch.cat([cls.unsqueeze(1).to(stream.dtype), stream[:, 1:]], 1)


class Bottleneck(nn.ModuleList):
    """`count` layers of the backbone's own kind that recover a text through one vector.

    With `library_init`, the weights stay as torch draws them, in place of BERT's N(0, 0.02).
    """

    def __init__(self, backbone: Backbone, count: int, *, library_init: bool = False) -> None:
        super().__init__(backbone.new_layers(count))
        if not library_init:
            for part in self.modules():
                if isinstance(part, nn.Linear):
                    nn.init.normal_(part.weight, std=STANDARD_DEVIATION)
                    if part.bias is not None:  # ModernBERT has none
                        nn.init.zeros_(part.bias)

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

    The head sees the token states of layer `skip_from`, 0 the embeddings'; None: half of the
    layers. Without `late_mlm` the term `late` is left out.
    """

    head_file = "condenser_head.safetensors"
    published_heads: ClassVar = {"c_head": "head"}

    def __init__(
        self,
        backbone: Backbone,
        *,
        skip_from: int | None = None,
        head_layers: int = 2,
        late_mlm: bool = True,
    ) -> None:
        super().__init__(backbone)
        last = backbone.config.num_hidden_layers
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

    A batch's decoders and passes of other than the given tasks are left out. `shared` gives all
    tasks one decoder (the ablation of Table 6); the released code has `library_init`.
    """

    head_file = "master_decoders.safetensors"
    published_heads: ClassVar = {
        "c_head": "mkp_decoder",
        "overlap_head": "cmp_decoder",
        "next_head": "npr_decoder",
        "query_head": "dor_decoder",
        "gpt_head": "gor_decoder",
    }

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
    of the unmasked text. Which of them a row sees is the batch's `visible`.
    """

    head_file = "retromae_decoder.safetensors"

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
