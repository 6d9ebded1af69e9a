"""Pre-training objectives: states of a masked text, and the tokens to predict from them.

"Condenser: a Pre-training Architecture for Dense Retrieval" (Gao and Callan, 2021); "MASTER:
Multi-task Pre-trained Bottlenecked Masked Autoencoders are Better Dense Retrievers" (Zhou et al.,
2023); "RetroMAE: Pre-Training Retrieval-oriented Language Models Via Masked Auto-Encoder" (Xiao et
al., 2022), sections 3.1 to 3.3; "RetroMAE-2: Duplex Masked Auto-Encoder For Pre-Training
Retrieval-Oriented Language Models" (Liu et al., 2023). In all of them a shallow head recovers a
text through one vector.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from denserk.config.pretraining import DecoderInit, Decoders, MasterTask
from denserk.config.pretraining import PretrainingObjectiveSettings as Settings
from denserk.data.batches import MaskedTexts, PretrainingBatch
from denserk.data.masking import IGNORED
from denserk.errors import ModelError
from denserk.models.backbone import Backbone
from denserk.models.checkpoints import fill, read_tensors, write_tensors
from denserk.models.devices import at_least_float32

STANDARD_DEVIATION = 0.02  # of new weights, as in BERT
# Condenser's and MASTER's authors keep their heads here; only its tensors are read
PUBLISHED_FILE = "model.pt"
DEFAULTS = Settings()


class MaskedLanguageModel(nn.Module):
    """Masked-language modelling, one term, `mlm`; other objectives add layers and terms.

    All terms share the backbone's MLM head.

    Attributes:
        heads: the added layers by the first part of their tensors' names.
        head_files: files that may hold the added layers, beside the backbone; the first is ours.
        published_heads: names of the added layers in the authors' `model.pt` -> names in `heads`.
    """

    head_files: ClassVar[tuple[str, ...]] = ()
    published_heads: ClassVar[Mapping[str, str]] = {}

    def __init__(self, backbone: Backbone, settings: Settings = DEFAULTS) -> None:
        super().__init__()
        assert backbone.decoder is not None
        self.backbone = backbone
        self.settings = settings
        self.heads = nn.ModuleDict()
        if settings.head_only:
            # a decoder that is tied to the word embeddings is frozen with them
            backbone.encoder.requires_grad_(False)

    def train(self, mode: bool = True) -> Self:
        """Switch to training mode, an encoder that is not trained excepted."""
        super().train(mode)
        if self.settings.head_only:
            self.backbone.encoder.eval()
        return self

    def save_heads(self, folder: Path) -> None:
        """Write the heads beside the backbone."""
        if self.head_files:
            write_tensors(folder / self.head_files[0], self.heads.state_dict())

    def load_heads(self, folder: Path) -> Path | None:
        """Load the heads from denserk's or the authors' file, and return it, or None without one.

        Other heads in it are ignored; a ModelError if it lacks a layer or has other shapes.
        """
        path = next((folder / n for n in self.head_files if (folder / n).is_file()), None)
        if path is None:
            return None
        tensors: dict[str, Tensor] = {}
        for name, tensor in read_tensors(path).items():
            head, _, rest = name.partition(".")
            if path.name == PUBLISHED_FILE:  # the oldest have other names of layer norms, too
                head = self.published_heads.get(head, head)
                rest = rest.replace("LayerNorm.gamma", "LayerNorm.weight")
                rest = rest.replace("LayerNorm.beta", "LayerNorm.bias")
            if head in self.heads:
                tensors[f"{head}.{rest}"] = tensor
        fill(path, self.heads, tensors)
        return path

    def labels(self, batch: PretrainingBatch) -> dict[str, Tensor]:
        """Return the tokens to predict, by term: (B, T) int64 each, -100 where there is none."""
        return {"mlm": batch.texts.labels}

    def states(self, batch: PretrainingBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the last [CLS] states (B, H), and the states to predict from by term (B, T, H).

        States of a term that has no labels are not used.
        """
        hidden = self.backbone(batch.texts.tokens)
        return hidden[:, 0], {"mlm": hidden}

    def counts(self, batch: PretrainingBatch) -> dict[str, Tensor]:
        """Return the number of labelled tokens of each term, int64, without a forward pass."""
        return {name: (labels != IGNORED).sum() for name, labels in self.labels(batch).items()}

    def forward(self, batch: PretrainingBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the last [CLS] states (B, H), and the weighted terms by name.

        A term is a sum over its tokens: the loss is that of all chunks over their `counts`.
        """
        labels = self.labels(batch)
        cls, states = self.states(batch)
        return cls, {name: self.term(name, states[name], labels[name]) for name in labels}

    def term(self, name: str, states: Tensor, labels: Tensor) -> Tensor:
        """Return a term, of weight 1; the MLM head sees the labelled positions alone.

        states: (B, T, H), labels: (B, T) int64, -100 where there is none -> scalar.
        """
        labelled = (labels != IGNORED).nonzero(as_tuple=True)  # once: it waits for a GPU
        logits = at_least_float32(self.backbone.vocabulary_logits(states[labelled]))
        return F.cross_entropy(logits, labels[labelled], reduction="sum")


def with_first(cls: Tensor, stream: Tensor) -> Tensor:
    """Put [CLS] states in the first place of a stream: (B, H), (B, T, H) -> (B, T, H)."""
    return torch.cat([cls.unsqueeze(1).to(stream.dtype), stream[:, 1:]], 1)


def bottleneck(backbone: Backbone, count: int, init: DecoderInit) -> nn.ModuleList:
    """Return layers of the backbone's own kind that recover a text through one vector.

    Their weights are from N(0, 0.02) as in BERT, or as torch initialises them.
    """
    layers = nn.ModuleList(backbone.new_layers(count))
    for part in layers.modules() if init is DecoderInit.NORMAL else ():
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=STANDARD_DEVIATION)
            if part.bias is not None:  # ModernBERT has none
                nn.init.zeros_(part.bias)
    return layers


class Condenser(MaskedLanguageModel):
    """Terms `head` (the paper's L_mlm) and `late` (L_mlm^c), through one MLM head.

    The head sees the last layer's [CLS] and the tokens of an early layer (`skip_from`, 0 is the
    embeddings), so that the late layers must write into [CLS]. Gradients flow through both.
    """

    head_files = ("condenser_head.safetensors", PUBLISHED_FILE)
    published_heads: ClassVar = {"c_head": "head"}

    def __init__(self, backbone: Backbone, settings: Settings = DEFAULTS) -> None:
        super().__init__(backbone, settings)
        last = backbone.config.num_hidden_layers
        self.skip_from = last // 2 if settings.skip_from is None else settings.skip_from
        if self.skip_from > last:
            why = f"the head cannot see layer {self.skip_from}, only 0 (embeddings) to {last}"
            raise ModelError(why, f"leave --set skip-from out for {last // 2}")
        self.heads["head"] = bottleneck(backbone, settings.n_head_layers, DecoderInit.NORMAL)

    def labels(self, batch: PretrainingBatch) -> dict[str, Tensor]:
        """See `MaskedLanguageModel`; both terms predict the same tokens."""
        names = ["head", "late"] if self.settings.late_mlm else ["head"]
        return dict.fromkeys(names, batch.texts.labels)

    def states(self, batch: PretrainingBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """See `MaskedLanguageModel`."""
        tokens = batch.texts.tokens
        hidden = self.backbone.hidden_states(tokens)
        late, early = hidden[-1], hidden[self.skip_from]
        stream, layers = with_first(late[:, 0], early), self.heads["head"].children()
        head = self.backbone.run_layers(layers, stream, tokens)
        return late[:, 0], {"head": head, "late": late}


class Master(MaskedLanguageModel):
    """Terms `mlm` of the encoder, `mlm_npr` and so on of its further passes, and one per decoder.

    A decoder sees the [CLS] state of the encoder pass of its name, or else of the first; behind it,
    without any skip from the encoder's layers, the embeddings of its own masked text. The tasks:
    corrupted passages (masked keywords `mkp`, complementary masks `cmp`), related passages (`npr`),
    and the output of other models (queries `dor`, continuations `gor`).

    The heads are `mkp_decoder` and so on, or one `shared_decoder` (the ablation of Table 6).
    """

    head_files = ("master_decoders.safetensors", PUBLISHED_FILE)
    published_heads: ClassVar = {
        "c_head": "mkp_decoder",
        "overlap_head": "cmp_decoder",
        "next_head": "npr_decoder",
        "query_head": "dor_decoder",
        "gpt_head": "gor_decoder",
    }

    def __init__(self, backbone: Backbone, settings: Settings = DEFAULTS) -> None:
        super().__init__(backbone, settings)
        self.tasks = [task.value for task in MasterTask if task in settings.tasks]
        self.shared = settings.decoders is Decoders.SHARED
        for name in ["shared"] if self.shared else self.tasks:
            layers = bottleneck(backbone, settings.n_head_layers, settings.decoder_init)
            self.heads[f"{name}_decoder"] = layers

    def labels(self, batch: PretrainingBatch) -> dict[str, Tensor]:
        """See `MaskedLanguageModel`."""
        passes = {f"mlm_{name}": texts.labels for name, texts in self._passes(batch).items()}
        decoders = {task: batch.decoders[task].labels for task in self.tasks}
        return super().labels(batch) | passes | decoders

    def states(self, batch: PretrainingBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """See `MaskedLanguageModel`."""
        first, states = super().states(batch)
        cls = dict.fromkeys(self.tasks, first)
        for name, texts in self._passes(batch).items():
            states[f"mlm_{name}"] = self.backbone(texts.tokens)
            cls[name] = states[f"mlm_{name}"][:, 0]
        for task in self.tasks:
            tokens = batch.decoders[task].tokens
            decoder = self.heads["shared_decoder" if self.shared else f"{task}_decoder"]
            stream = with_first(cls[task], self.backbone.embed(tokens))
            states[task] = self.backbone.run_layers(decoder.children(), stream, tokens)
        return first, states

    def _passes(self, batch: PretrainingBatch) -> dict[str, MaskedTexts]:
        return {task: batch.passes[task] for task in self.tasks if task in batch.passes}


class RetroMae(MaskedLanguageModel):
    """Terms `mlm` of the encoder and `decoder` of the enhanced decoding (section 3.3).

    A one-layer decoder recovers every token, each from a view of its own: its queries are the [CLS]
    state plus each position's embedding; its keys and values the [CLS] state, then the embeddings
    of the unmasked text. Which of them a row sees is the batch's `visible`.
    """

    head_files = ("retromae_decoder.safetensors",)

    def __init__(self, backbone: Backbone, settings: Settings = DEFAULTS) -> None:
        super().__init__(backbone, settings)
        if not hasattr(backbone.encoder.embeddings, "position_embeddings"):
            kind = backbone.architecture.model_type
            why = f"RetroMAE's decoder reads absolute positions, which a {kind} backbone lacks"
            raise ModelError(why, "give a BERT, RoBERTa or DistilBERT, or another --objective")
        self.heads["decoder"] = bottleneck(backbone, 1, DecoderInit.NORMAL)

    def labels(self, batch: PretrainingBatch) -> dict[str, Tensor]:
        """See `MaskedLanguageModel`."""
        return super().labels(batch) | {"decoder": batch.decoders["retromae"].labels}

    def states(self, batch: PretrainingBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """See `MaskedLanguageModel`."""
        assert batch.visible is not None
        cls, states = super().states(batch)
        embedded = self.backbone.embed(batch.decoders["retromae"].tokens)
        queries = cls.unsqueeze(1) + self.backbone.position_signal(embedded.shape[1])
        (layer,) = self.heads["decoder"].children()
        seen = with_first(cls, embedded)
        states["decoder"] = self.backbone.run_cross_layer(layer, queries, seen, batch.visible)
        return cls, states


class DupMae(RetroMae):
    """RetroMAE's terms and `bow`: the text's bag of words, recovered from all states but [CLS].

    The MLM head projects the states of the text's tokens to the vocabulary, and mu is the maximum
    over them. The loss is the sum of -log softmax(mu)[t] over the different tokens t of the text.
    The decoder is RetroMAE's, so that one objective continues from the other.
    """

    def labels(self, batch: PretrainingBatch) -> dict[str, Tensor]:
        """See `MaskedLanguageModel`; those of `bow` are each text's different tokens, in order."""
        tokens = batch.decoders["retromae"].labels.sort(dim=1).values
        again = F.pad(tokens[:, 1:] == tokens[:, :-1], (1, 0))
        return super().labels(batch) | {"bow": tokens.masked_fill(again, IGNORED)}

    def states(self, batch: PretrainingBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """See `MaskedLanguageModel`; those of `bow` are mu: (B, V)."""
        cls, states = super().states(batch)
        of_text = batch.decoders["retromae"].labels != IGNORED
        # text by text: (T, V) logits live no longer than their maximum, whose gradient needs none
        lengths: list[int] = of_text.sum(dim=1).tolist()
        states_by_text = torch.split(states["mlm"][of_text], lengths)
        largest = [
            self.backbone.vocabulary_logits(hidden).max(dim=0).values for hidden in states_by_text
        ]
        return cls, {**states, "bow": torch.stack(largest)}

    def term(self, name: str, states: Tensor, labels: Tensor) -> Tensor:
        """See `MaskedLanguageModel`; `decoder` and `bow` have the weights of the settings."""
        if name == "bow":
            logs = F.log_softmax(at_least_float32(states), dim=1).gather(1, labels.clamp_min(0))
            return self.settings.bow_weight * -logs[labels != IGNORED].sum()
        weight = self.settings.decoder_weight if name == "decoder" else 1.0
        return weight * super().term(name, states, labels)
