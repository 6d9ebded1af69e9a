"""A model as it lies on the disk, whatever its layout: tensors by denserk's names, settings."""

import copy
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import transformers
from torch import Tensor

from denserk.errors import ModelError
from denserk.modeling.architectures import Architecture, architecture_of
from denserk.modeling.backbone import Backbone
from denserk.modeling.encoder import Encoder
from denserk.modeling.model_config import config_errors, read_config
from denserk.modeling.representation import needs_mlm_head, refuse_architecture
from denserk.modeling.retriever import Retriever
from denserk.modeling.tensor_names import canonical_tensors, check_names, check_shapes
from denserk.modeling.weight_files import fingerprint, read_weights
from denserk.settings.encoding import MlmHead, RepresentationSettings, TextSettings

logger = logging.getLogger(__name__)

HEADS = ("tok_proj.", "cls_proj.", "agg_proj.", "scalar_mix.")
"""First parts of the names of a representation's own tensors."""


@dataclass(frozen=True)
class StoredEncoder:
    """One side's weights.

    `folder` holds its config.json and tokenizer; `tensors` has the backbone's tensors by canonical
    name, `heads` the representation's own.
    """

    folder: Path
    architecture: Architecture
    tensors: Mapping[str, Tensor]
    heads: Mapping[str, Tensor]

    @classmethod
    def read(cls, folder: Path) -> "StoredEncoder":
        """Reads a transformers folder, with Aggretriever's heads where they lie beside."""
        architecture_of(folder)  # a folder of another kind is refused before its weights are read
        return cls.from_tensors(folder, read_weights(folder))

    @classmethod
    def from_tensors(cls, folder: Path, tensors: Mapping[str, Tensor]) -> "StoredEncoder":
        """Sorts a file's tensors into backbone and heads, without the one-file layout's prefix."""
        architecture = architecture_of(folder)
        heads = {name: tensor for name, tensor in tensors.items() if name.startswith(HEADS)}
        backbone = {name: tensor for name, tensor in tensors.items() if name not in heads}
        inner = tuple(f"encoder.{part}" for part in (architecture.prefix, *architecture.head))
        if architecture.prefix and any(name.startswith(inner) for name in backbone):
            backbone = {name.removeprefix("encoder."): t for name, t in backbone.items()}
        return cls(folder, architecture, canonical_tensors(architecture, backbone), heads)

    @property
    def max_length(self) -> int | None:
        """The longest text it has positions for, special tokens included; None: any length."""
        return self.architecture.positions(read_config(self.folder))

    @property
    def has_mlm_head(self) -> bool:
        """Whether the MLM head was saved; its tied tensors are filled in and say nothing."""
        own = self.tensors.keys() - self.architecture.tied.keys()
        return any(name.startswith(self.architecture.head or "\0") for name in own)

    def build(self, settings: RepresentationSettings) -> Encoder:
        """The encoder, every weight taken from the folder.

        Raises:
            ModelError: the folder lacks what the settings need, holds what does not belong, or
                cannot do it.
        """
        refuse_architecture(settings, self.architecture)
        if settings.mlm_head is MlmHead.FRESH and needs_mlm_head(settings):
            raise ModelError(
                "--mlm-head fresh is for training: a new head is random, and so are its vectors",
                "leave it out, or choose --set mlm-head=none",
            )
        with_head = needs_mlm_head(settings)
        if with_head and not self.has_mlm_head:
            raise ModelError(
                f"{self.folder} was saved without its masked-language-model head, "
                "and a new one would be random",
                "choose another --representation, or a folder with the head",
            )
        backbone = Backbone.from_tensors(
            self.architecture, self.folder, self.tensors, with_head=with_head
        )
        encoder = Encoder(backbone, settings)
        self._fill_heads(encoder)
        return encoder.eval()

    def begin(self, settings: RepresentationSettings) -> Encoder:
        """The encoder to train from this folder; what the folder lacks starts fresh, and is told.

        A fresh MLM head is initialised as the backbone's own, its decoder tied to the word
        embeddings; other new layers as torch initialises them.

        Raises:
            ModelError: the backbone cannot do it, or the folder holds what does not belong.
        """
        refuse_architecture(settings, self.architecture)
        with_head, tensors = needs_mlm_head(settings), dict(self.tensors)
        if with_head and (settings.mlm_head is MlmHead.FRESH or not self.has_mlm_head):
            tensors |= self._fresh_head()
            logger.info(
                f"{self.folder} has no masked-language-model head to start from: a fresh one, tied "
                "to the word embeddings; --set mlm-head=none does without"
                if not self.has_mlm_head
                else "a fresh masked-language-model head in place of the pretrained one"
            )
        backbone = Backbone.from_tensors(
            self.architecture, self.folder, tensors, with_head=with_head
        )
        encoder = Encoder(backbone, settings)
        own = encoder.representation.state_dict()
        kept = {name: self.heads[name].float() for name in own if name in self.heads}
        check_shapes(self.folder, {name: own[name] for name in kept}, kept)
        encoder.representation.load_state_dict({**own, **kept})
        if fresh := sorted(own.keys() - kept.keys()):
            logger.info(f"new, from random weights: {', '.join(fresh)}")
        return encoder.train()

    def begin_masked_lm(self) -> Backbone:
        """The backbone with its MLM head, to pre-train; a head that the folder lacks starts fresh.

        Raises:
            ModelError: the backbone has no [CLS] token or no MLM head, or the folder holds what
                does not belong.
        """
        if not self.architecture.has_cls or self.architecture.masked_lm is None:
            lacks = "masked-language-model head" if self.architecture.has_cls else "[CLS] token"
            raise ModelError(
                f"{self.folder}: {self.architecture.model_type} cannot be pre-trained here, for it "
                f"has no {lacks}",
                "start from a BERT, RoBERTa or DistilBERT",
            )
        tensors = dict(self.tensors)
        if not self.has_mlm_head:
            tensors |= self._fresh_head()
            logger.info(
                f"{self.folder} has no masked-language-model head to start from: a fresh one, tied "
                "to the word embeddings"
            )
        backbone = Backbone.from_tensors(self.architecture, self.folder, tensors, with_head=True)
        return backbone.train()

    def _fresh_head(self) -> dict[str, Tensor]:
        architecture = self.architecture
        config = read_config(self.folder)
        with config_errors(self.folder):
            model = getattr(transformers, str(architecture.masked_lm))(config)
        head = {n: t for n, t in model.state_dict().items() if n.startswith(architecture.head)}
        tied = {
            name: self.tensors[source]
            for name, source in architecture.tied.items()
            if source in self.tensors
        }
        return head | tied

    def _fill_heads(self, encoder: Encoder) -> None:
        expected = encoder.representation.state_dict()
        missing = sorted(expected.keys() - self.heads.keys())
        if missing:
            raise ModelError(
                f"{self.folder} holds no trained {', '.join(missing)}: "
                f"--representation {encoder.settings.representation} would be random",
                "train it first, or choose another --representation or another --model",
            )
        given = {name: self.heads[name].float() for name in expected}
        check_names(self.folder, set(expected), set(given))
        check_shapes(self.folder, expected, given)
        encoder.representation.load_state_dict(given, assign=True)


@dataclass(frozen=True)
class StoredModel:
    """A folder that was read: one encoder for both sides, or one each.

    `representation` and `text` are what the folder says about itself, or the defaults where it is
    silent (`told` tells which). `files` are those that make the model what it is.
    """

    root: Path
    layout: str
    query: StoredEncoder
    passage: StoredEncoder
    representation: RepresentationSettings
    text: TextSettings
    files: tuple[Path, ...]
    told: bool = True

    @property
    def shared(self) -> bool:
        """Whether queries and passages are encoded by the same weights."""
        return self.query is self.passage

    def fingerprint(self) -> str:
        """Identifies weights, tokenizer and configuration by their content."""
        return fingerprint(self.root, self.files)

    def build(self, settings: RepresentationSettings) -> tuple[Encoder, Encoder]:
        """The encoders of queries and of passages, the same object where the model is shared."""
        passage = self.passage.build(settings)
        return (passage if self.shared else self.query.build(settings)), passage

    def begin(self, settings: RepresentationSettings, *, untie: bool) -> Retriever:
        """Both encoders to train from this folder; `untie` gives each side weights of its own."""
        passage = self.passage.begin(settings)
        if not self.shared:
            return Retriever(self.query.begin(settings), passage)
        return Retriever(copy.deepcopy(passage) if untie else passage, passage)
