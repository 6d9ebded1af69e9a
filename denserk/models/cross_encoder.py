"""Cross-encoders: query and passage are read together and get one score.

The reranker of "MASTER" (Zhou et al., 2023), section 4: a linear layer on the last hidden state of
[CLS], its weights from N(0, 0.02), its bias 0. It is saved as a token classifier with one label,
read at position 0. Published rerankers are sequence classifiers with one label.
"""

import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from denserk.config import encoding
from denserk.config.encoding import PairSettings, Representation, TextSettings
from denserk.config.options import NOTHING, as_json
from denserk.data.batches import Pair, PairBatch, PairJoiner, to_device
from denserk.data.tokenization import TextTokenizer, load_tokenizer
from denserk.errors import DenserkError, ModelError
from denserk.io.locks import reject_being_written
from denserk.io.model_files import find_model, fingerprint_of, read_json
from denserk.io.outputs import DENSERK_FILE, MODEL_CONFIG
from denserk.io.versions import read_whole, reading
from denserk.models import checkpoints, model_folder, saving
from denserk.models.backbone import (
    architecture_of,
    encoder_mask,
    encoder_takes_full_masks,
    longest_input,
    without_cache,
)
from denserk.models.devices import at_least_float32, choose_dtype, choose_precision, prepare_device
from denserk.models.sentence_transformers_folder import check_cross_encoder
from denserk.models.token_budget import TokenBudget
from denserk.records import Passage, Query

logger = logging.getLogger(__name__)

PUBLISHED = "ForSequenceClassification"  # end of the class names of published rerankers
HEAD = "classifier."
# The hint where there is no memory for a single pair.
SHORTEN = "cut pairs with --pair-max-length, or give a 16-bit --dtype"


class Reranker(nn.Module):
    """A token or sequence classifier of transformers with one label, and what makes its inputs.

    `folder` contains its tokenizer, which is loaded together with the model.
    """

    def __init__(self, model: Any, folder: Path, text: TextSettings, pairs: PairSettings) -> None:
        super().__init__()
        self.model: Any = model
        self.new_heads = (HEAD,)  # also of a published reranker
        self.text = text
        self.pairs = pairs
        self._tokenizer = load_tokenizer(folder)
        self.without_cache = without_cache(model)
        self.is_linear = not type(model).__name__.endswith(PUBLISHED)

    def forward(self, batch: PairBatch) -> Tensor:
        """The scores of pairs, before any sigmoid: (P, T) ids -> (P,) float32 at least."""
        tokens = batch.tokens
        takes_full_masks = encoder_takes_full_masks(self.model.config)
        inputs: dict[str, Any] = {
            **self.without_cache,
            "input_ids": tokens.input_ids,
            "attention_mask": encoder_mask(tokens, takes_full_masks=takes_full_masks),
            "return_dict": True,
        }
        if batch.token_types is not None:
            inputs["token_type_ids"] = batch.token_types
        if not self.is_linear:
            return at_least_float32(self.model(**inputs).logits[:, 0])
        state = self.model.base_model(**inputs).last_hidden_state[:, 0]
        with torch.autocast(state.device.type, enabled=False):
            scores: Tensor = self.model.classifier(at_least_float32(state))[:, 0]
        return scores

    def compute_in(self, dtype: torch.dtype) -> Self:
        """Set the precision of scoring; the last layers stay in float32, or close scores tie."""
        self.model.to(dtype)
        self.model.classifier.float().register_forward_pre_hook(
            lambda _, inputs: tuple(at_least_float32(value) for value in inputs)
        )
        return self

    def tokenizer(self) -> TextTokenizer:
        """Return the tokenizer of queries and passages."""
        return TextTokenizer(copy.deepcopy(self._tokenizer), self.text)

    def joiner(self) -> PairJoiner:
        """Return what joins a query and a passage into one input."""
        return PairJoiner(copy.deepcopy(self._tokenizer), self.text, self.pairs)

    def save(self, folder: Path) -> None:
        """Save it; config.json comes last, so that an interrupted save loads nowhere."""
        saving.write_own_file(
            folder,
            self.model.config.model_type,
            representation=encoding.RepresentationSettings(Representation.CROSS_ENCODER),
            text=self.text,
            pairs=self.pairs,
        )
        saving.save_transformer(
            folder, self.model, self.model.state_dict(), self._tokenizer, self.joiner().limit
        )

    def load(self, folder: Path) -> None:
        """Load the weights from a folder that `save` wrote."""
        self.load_state_dict(read_reranker(folder).state_dict())

    def fit(self, text: Mapping[str, Any] = NOTHING, pair_max_length: int | None = None) -> Self:
        """Set other lengths and texts, within the model's positions, and return the same model."""
        limit = longest_input(self.model.config)
        if pair_max_length:
            self.pairs = replace(self.pairs, max_length=pair_max_length)
        self.text = model_folder.fit_lengths(self.text, text, limit)
        if limit is not None and self.joiner().limit > limit:
            logger.info(f"query and passage together are cut to the model's {limit} positions")
            self.pairs = replace(self.pairs, max_length=limit)
        return self


def _reject_backbone(config: Any) -> None:
    """Raise a ModelError for a backbone without [CLS]."""
    if not architecture_of(config).has_cls:
        raise ModelError(
            f"--representation cross-encoder scores [CLS], which a {config.model_type} backbone "
            "does not have",
            "start from a BERT, ELECTRA, RoBERTa or DistilBERT encoder",
        )


def is_reranker(folder: Path) -> bool:
    """Return True for a reranker's folder: denserk's, or a sequence classifier of transformers."""
    if (folder / DENSERK_FILE).is_file():
        settings = read_json(folder / DENSERK_FILE).get("representation")
        if not isinstance(settings, dict):
            return False
        return bool(settings.get("representation") == Representation.CROSS_ENCODER)
    return (folder / MODEL_CONFIG).is_file() and _is_published(folder)


def _is_published(folder: Path) -> bool:
    """Return True for a sequence classifier of transformers."""
    config = read_json(folder / MODEL_CONFIG)
    return any(str(name).endswith(PUBLISHED) for name in config.get("architectures") or ())


def read_reranker(folder: Path) -> Reranker:
    """Read a reranker; a ModelError if the folder has none, or a broken one."""
    try:
        return read_whole([folder], partial(_read_reranker, folder))
    except DenserkError:  # perhaps of a file that another process is about to write
        reject_being_written(folder, around=False)
        raise


def _read_reranker(folder: Path) -> Reranker:
    """Read a reranker's folder as it is now."""
    if not is_reranker(folder):
        raise ModelError(
            f"{folder} is no cross-encoder: it has no layer that scores a query with a passage",
            "train one (denserk finetune --representation cross-encoder), or name a published one",
        )
    config = checkpoints.read_config(folder)
    _reject_backbone(config)
    if config.num_labels != 1:
        raise ModelError(f"{folder} has {config.num_labels} labels; a reranker has one, the score")
    auto: Any = AutoModelForTokenClassification
    if _is_published(folder):
        auto = AutoModelForSequenceClassification
    model = checkpoints.load_model(auto, folder, config, checkpoints.read_weights(folder))
    if (folder / DENSERK_FILE).is_file():
        recorded = model_folder.read_own_file(folder)
        return Reranker(model, folder, recorded.text, recorded.pairs)
    check_cross_encoder(folder)
    text, pairs = _foreign_settings(folder, config)
    return Reranker(model, folder, text, pairs)


def _foreign_settings(folder: Path, config: Any) -> tuple[TextSettings, PairSettings]:
    """Return the settings of a reranker of another tool: its tokenizer decides about them."""
    tokenizer = load_tokenizer(folder)
    limits = (int(tokenizer.model_max_length), longest_input(config))
    # transformers writes a huge number where a tokenizer has no limit of its own
    max_length = min((limit for limit in limits if limit and limit < 100_000), default=None)
    text = TextSettings()
    if max_length is not None:
        text = replace(text, passage_max_length=max_length)
    has_types = _has_types(tokenizer) and getattr(config, "type_vocab_size", 1) > 1
    return text, PairSettings(max_length, has_types)


def _has_types(tokenizer: Any) -> bool:
    """Return whether a tokenizer gives the tokens of a passage another type than those of queries.

    The model needs an embedding of that type, too.
    """
    if "token_type_ids" not in tokenizer.model_input_names:
        return False
    return PairJoiner(tokenizer, TextSettings(), PairSettings()).passage_type > 0


def reranker_to_train(folder: Path, seed: int) -> Reranker:
    """Return a folder's reranker to train, or its encoder with a new linear head (by `seed`)."""
    if is_reranker(folder):
        return read_reranker(folder).train()
    with reading([folder]):
        return _with_new_head(folder, seed)


def _with_new_head(folder: Path, seed: int) -> Reranker:
    """Return the encoder of a folder with a new linear head."""
    stored = model_folder.read_model_folder(folder)
    encoder = stored.passage
    if not stored.shared:
        hint = f"start from {encoder.folder}"
        raise ModelError(f"{folder} has separate encoders of queries and passages", hint)
    _reject_backbone(encoder.config)
    logger.info("new, from random weights: the linear layer that scores [CLS]")
    config = copy.deepcopy(encoder.config)
    config.num_labels = 1
    auto = AutoModelForTokenClassification
    model = checkpoints.load_model(auto, encoder.folder, config, encoder.tensors, (HEAD,))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        model.classifier.weight.normal_(0.0, 0.02, generator=generator)
        model.classifier.bias.zero_()
    return Reranker(model, encoder.folder, stored.text, PairSettings()).train()


def reranker_fingerprint(folder: Path) -> str:
    """Return the SHA-256 of a cross-encoder's weights, tokenizer and configuration."""
    files = [*folder.glob(DENSERK_FILE), *checkpoints.encoder_files(folder)]
    return fingerprint_of(folder, files)


class PairScorer:
    """A loaded cross-encoder, given as a folder or a name on the hub, that scores pairs.

    `text` (fields of `TextSettings`) and `pair_max_length` replace the folder's own settings.
    `tokenizer` makes token ids of queries and of passages, `joiner` one input of both.
    """

    def __init__(
        self,
        model: str,
        text: Mapping[str, Any] = NOTHING,
        pair_max_length: int | None = None,
        compute: encoding.ComputeSettings = encoding.ComputeSettings(),  # noqa: B008  (frozen)
    ) -> None:
        self.name, folder = find_model(model)
        with reading([folder]):
            reranker = read_reranker(folder).fit(text, pair_max_length)
            self.fingerprint = reranker_fingerprint(folder)
        self.compute = compute
        self.text = reranker.text
        self.pairs = reranker.pairs
        self.backbone = reranker.model.config.model_type
        self.tokenizer = reranker.tokenizer()
        self.joiner = reranker.joiner()
        self.device = prepare_device(compute)
        self.dtype = choose_precision(compute.dtype, self.device)
        batch_tokens = compute.tokens_on(self.device.type, self.dtype)
        work = f"scoring {{texts}} pairs of {{tokens}} tokens on {self.device}"
        self._budget = TokenBudget(batch_tokens, work, shorten=SHORTEN)
        torch_dtype = choose_dtype(self.dtype, self.device)
        self._reranker = reranker.to(self.device).compute_in(torch_dtype).eval()

    def description(self) -> dict[str, Any]:
        """The model and its settings, as plain JSON for manifests."""
        return {
            "name": self.name,
            "fingerprint": self.fingerprint,
            "backbone": self.backbone,
            "dtype": self.dtype.value,
            "text": as_json(self.text),
            "pairs": as_json(self.pairs),
        }

    def score(self, queries: Sequence[Query], passages: Sequence[Passage]) -> NDArray[np.float32]:
        """Score query i with passage i: (P,) float32."""
        query_ids = self.tokenizer.queries(queries)
        passage_ids = self.tokenizer.passages(passages)
        pairs = [
            self.joiner.join(query, passage)
            for query, passage in zip(query_ids, passage_ids, strict=True)
        ]
        return self.score_pairs(pairs)

    @torch.inference_mode()
    def score_pairs(self, pairs: Sequence[Pair]) -> NDArray[np.float32]:
        """Score inputs, batched by length, in their order: (P,) float32."""
        scores = torch.empty(len(pairs), device=self.device)
        lengths = [len(pair.ids) for pair in pairs]
        score_batch = partial(self._score_batch, pairs)
        for rows, batch_scores in self._budget.in_batches(
            lengths, score_batch, self.compute.batch_size
        ):
            # a copy that blocks would wait until the GPU has scored this batch
            rows_on_device = to_device(torch.tensor(rows), self.device)
            scores.index_copy_(0, rows_on_device, batch_scores)
        array: NDArray[np.float32] = scores.cpu().numpy()
        return array

    def _score_batch(self, pairs: Sequence[Pair], rows: Sequence[int]) -> Tensor:
        """Score some of the pairs as one batch: (b,) float32, on the device."""
        batch = self.joiner.batch([pairs[row] for row in rows])
        scores: Tensor = self._reranker(to_device(batch, self.device)).float()
        return scores
