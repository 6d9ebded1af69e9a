"""A reranker on the disk: transformers' folder, with denserk.json beside it where denserk wrote it.

What denserk saves loads with transformers' AutoModelForTokenClassification (linear head, the score
is the logit of position 0) or AutoModelForSequenceClassification (published heads).
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from denserk.data.pair_batches import PairJoiner, Template
from denserk.data.tokenization import TextTokenizer, load_tokenizer
from denserk.errors import ModelError, UsageError
from denserk.formats.files import write_errors
from denserk.modeling.folder_layouts import (
    DENSERK_FILE,
    encoder_files,
    read_model_folder,
    read_own_file,
)
from denserk.modeling.model_config import read_config
from denserk.modeling.model_folder import (
    save_limited_tokenizer,
    write_config,
    write_own_file,
    write_tensors,
)
from denserk.modeling.reranker import LINEAR, PUBLISHED, Reranker
from denserk.modeling.text_encoder import fit_lengths
from denserk.modeling.weight_files import fingerprint, read_json, read_weights
from denserk.settings.encoding import (
    PairSettings,
    Representation,
    RepresentationSettings,
    TextSettings,
)
from denserk.settings.options import as_json

logger = logging.getLogger(__name__)

UNLIMITED = 100_000
"""transformers writes a huge number where a tokenizer has no limit of its own."""
NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True)
class StoredReranker:
    """A reranker with what makes its inputs.

    `folder` holds its tokenizer. `told` tells whether the folder itself named the lengths.
    """

    folder: Path
    reranker: Reranker
    text: TextSettings
    pairs: PairSettings
    told: bool = True

    def tokenizer(self) -> TextTokenizer:
        """Makes token ids of queries and of passages."""
        return TextTokenizer(load_tokenizer(self.folder), self.text)

    def joiner(self) -> PairJoiner:
        """Makes one input of both."""
        return PairJoiner(load_tokenizer(self.folder), self.text, self.pairs)

    def fingerprint(self) -> str:
        """Identifies weights, tokenizer and configuration by their content."""
        own = [path for path in [self.folder / DENSERK_FILE] if path.is_file()]
        return fingerprint(self.folder, (*own, *encoder_files(self.folder)))

    def save(self, folder: Path) -> None:
        """Writes it; config.json comes last, so that a folder cut short loads nowhere.

        Raises:
            OutputError: the folder cannot be written.
        """
        with write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        write_tensors(folder / "model.safetensors", self.reranker.model.state_dict())
        tokenizer = load_tokenizer(self.folder)
        save_limited_tokenizer(folder, tokenizer, self.joiner().limit, self.reranker)
        representation = RepresentationSettings(Representation.CROSS_ENCODER)
        told = {
            "representation": as_json(representation),
            "text": as_json(self.text),
            "pairs": as_json(self.pairs),
        }
        write_own_file(folder, self.reranker.architecture.model_type, told)
        write_config(folder, self.reranker, hidden_states=False)

    def load(self, folder: Path) -> None:
        """Takes the weights from a folder that `save` wrote."""
        self.reranker.load_state_dict(read_reranker(folder).reranker.state_dict())

    def fit(
        self,
        text: Mapping[str, Any] = NOTHING,
        pair_max_length: int | None = None,
    ) -> "StoredReranker":
        """The same weights with other lengths and texts, as far as the model has positions.

        Args:
            text: fields of `TextSettings` that replace the folder's own.
            pair_max_length: tokens of a whole input; None leaves what the folder says.

        Raises:
            UsageError: a length that was asked for goes beyond the model.
        """
        limit = self.reranker.max_length
        if pair_max_length is not None and limit is not None and pair_max_length > limit:
            raise UsageError(
                f"--pair-max-length {pair_max_length}: the model has {limit} positions",
                f"at most {limit}",
            )
        settings = fit_lengths(self.text, text, limit)
        pairs = replace(self.pairs, max_length=pair_max_length or self.pairs.max_length)
        fitted = replace(self, text=settings, pairs=pairs)
        needed = fitted.joiner().limit
        if limit is not None and needed > limit:
            logger.info(f"query and passage together are cut to {limit} tokens, the positions")
            fitted = replace(fitted, pairs=replace(pairs, max_length=limit))
        return fitted


def is_reranker(folder: Path) -> bool:
    """Whether a folder holds a reranker: denserk's, or a sequence classifier of transformers."""
    if (folder / DENSERK_FILE).is_file():
        own = read_json(folder / DENSERK_FILE).get("representation")
        return isinstance(own, dict) and own.get("representation") == Representation.CROSS_ENCODER
    if not (folder / "config.json").is_file():
        return False
    return _class_of(folder).endswith(PUBLISHED)


def _class_of(folder: Path) -> str:
    names = read_json(folder / "config.json").get("architectures")
    return str(names[0]) if isinstance(names, list) and names else ""


def read_reranker(folder: Path) -> StoredReranker:
    """Reads a reranker.

    Raises:
        UsageError: there is no such folder.
        ModelError: it holds no reranker, or not what its config.json says.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder")
    if not is_reranker(folder):
        raise ModelError(
            f"{folder} is no cross-encoder: it has no layer that scores a query with a passage",
            "train one: denserk finetune --representation cross-encoder, or name a published one "
            "(a sequence classifier of transformers with one label)",
        )
    kind = PUBLISHED if _class_of(folder).endswith(PUBLISHED) else LINEAR
    config = read_config(folder)
    if config.num_labels != 1:
        raise ModelError(
            f"{folder} tells {config.num_labels} classes apart; a reranker has one label, the score"
        )
    reranker = Reranker.from_tensors(folder, kind, read_weights(folder))
    if (folder / DENSERK_FILE).is_file():
        _, text, pairs = read_own_file(folder)
        return StoredReranker(folder, reranker, text, pairs)
    return _published(folder, reranker)


def _published(folder: Path, reranker: Reranker) -> StoredReranker:
    """Lengths are the tokenizer's, and token types are given where it gives them."""
    tokenizer = load_tokenizer(folder)
    own = int(tokenizer.model_max_length)
    limits = [limit for limit in (own, reranker.max_length) if limit and limit < UNLIMITED]
    longest = min(limits, default=None)
    types = (
        "token_type_ids" in tokenizer.model_input_names
        and Template.of(tokenizer).passage_type > 0
        and getattr(reranker.config, "type_vocab_size", 1) > 1
    )
    text = TextSettings(passage_max_length=longest or TextSettings().passage_max_length)
    return StoredReranker(folder, reranker, text, PairSettings(longest, types), told=False)


def begin_reranker(folder: Path, seed: int) -> StoredReranker:
    """A reranker to train: one that is there, or an encoder with a new linear head.

    Args:
        folder: a model's folder, whatever its layout.
        seed: draws the new head.

    Raises:
        UsageError: there is no such folder.
        ModelError: it holds no model that can be trained so.
    """
    if is_reranker(folder):
        stored = read_reranker(folder)
        stored.reranker.train()
        return stored
    model = read_model_folder(folder)
    if not model.shared:
        raise ModelError(
            f"{folder} has separate encoders of queries and passages; a cross-encoder is one",
            f"start from one of them, for example {model.passage.folder}",
        )
    logger.info("new, from random weights: the linear layer that scores [CLS]")
    return StoredReranker(
        model.passage.folder, Reranker.begin(model.passage, seed), model.text, PairSettings()
    )
