"""Tokenizer and encoder together: passages and queries -> vectors."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from denserk.data.batches import TokenBatch, by_length, pad
from denserk.data.tokenization import TextTokenizer, TokenIds, load_tokenizer
from denserk.errors import ModelError, UsageError
from denserk.modeling.devices import choose_device, choose_dtype
from denserk.modeling.encoder import Encoder
from denserk.modeling.folder_layouts import read_model_folder
from denserk.modeling.model_names import find_model
from denserk.modeling.representation import Aggretriever
from denserk.modeling.stored_model import StoredModel
from denserk.records import Passage, Query
from denserk.reporting import SILENT, Reporter
from denserk.settings.encoding import ComputeSettings, RepresentationSettings, TextSettings
from denserk.settings.models import PUBLISHED_MODELS
from denserk.settings.options import as_json, from_json

NOTHING: Mapping[str, Any] = {}
LENGTHS = ("query_max_length", "passage_max_length")
S = TypeVar("S")


def override(settings: S, given: Mapping[str, Any]) -> S:
    """A copy of settings with some fields replaced, values as they stand in JSON or typed.

    Raises:
        UsageError: a field that the settings do not have, or a value outside its enum.
    """
    return from_json(type(settings), {**as_json(settings), **given})


@dataclasses.dataclass(frozen=True)
class Side:
    """What one side of a model, queries or passages, needs to become vectors."""

    encoder: Encoder
    tokenizer: TextTokenizer


class TextEncoder:
    """A loaded model: passages and queries in, vectors out.

    Attributes:
        name: what the model is called: a folder, or a name on the hub.
        representation: how its vectors are made.
        text: how records become text.
        compute: where and how the numbers are computed.
        device: the device in use.
        dimension: D.
        fingerprint: SHA-256 of weights, tokenizer and configuration; equal on any machine.
    """

    def __init__(
        self,
        name: str,
        stored: StoredModel,
        representation: RepresentationSettings,
        text: TextSettings,
        compute: ComputeSettings,
        reporter: Reporter = SILENT,
    ) -> None:
        if compute.threads is not None:
            torch.set_num_threads(compute.threads)
        self.name = name
        self.representation = representation
        self.compute = compute
        self.device = choose_device(compute.device, reporter)
        dtype = choose_dtype(compute.dtype, self.device)
        self.fingerprint = stored.fingerprint()
        self.backbone = stored.passage.architecture.model_type
        query, passage = stored.build(representation)
        self.dimension = passage.dimension
        if isinstance(passage.representation, Aggretriever) and passage.representation.layout:
            reporter.note(f"agg: {passage.representation.layout.describe()}")
        self.text = text
        self._passages = self._side(passage, stored.passage.folder, dtype)
        self._queries = (
            self._passages if query is passage else self._side(query, stored.query.folder, dtype)
        )

    def _side(self, encoder: Encoder, folder: Path, dtype: torch.dtype) -> Side:
        tokenizer = load_tokenizer(folder)
        if len(tokenizer) > encoder.backbone.vocabulary:
            raise ModelError(
                f"{folder}: the tokenizer knows {len(tokenizer)} tokens, "
                f"the backbone {encoder.backbone.vocabulary}"
            )
        return Side(encoder.to(self.device).compute_in(dtype), TextTokenizer(tokenizer, self.text))

    @classmethod
    def load(
        cls,
        model: str,
        representation: Mapping[str, Any] = NOTHING,
        text: Mapping[str, Any] = NOTHING,
        compute: ComputeSettings = ComputeSettings(),  # noqa: B008  (frozen)
        reporter: Reporter = SILENT,
    ) -> "TextEncoder":
        """Loads a model.

        Args:
            model: a short name, a folder, or a name on the hub.
            representation: fields of `RepresentationSettings` that replace what the folder says
                about itself.
            text: the same for `TextSettings`.
            compute: where and how.
            reporter: told what was chosen.

        Raises:
            UsageError: the model, the device or a setting is not there to choose.
            ModelError: the model cannot be loaded, or cannot do what is asked of it.
        """
        name, folder = find_model(model, reporter)
        stored = read_model_folder(folder)
        chosen = override(stored.representation, representation)
        if not stored.told and not representation:
            reporter.note(
                f"{name} does not say how its vectors are made: taking {chosen.representation}"
            )
        entry = next((m for m in PUBLISHED_MODELS if m.hub_name == name), None)
        told = override(stored.text, entry.text if entry else NOTHING)
        limit = stored.passage.max_length
        return cls(
            name, stored, chosen, fit_lengths(told, text, limit, reporter), compute, reporter
        )

    def description(self) -> dict[str, Any]:
        """What made the vectors, as plain JSON for manifests."""
        return {
            "name": self.name,
            "fingerprint": self.fingerprint,
            "backbone": self.backbone,
            "dimension": self.dimension,
            "dtype": self.compute.dtype.value,
            "representation": as_json(self.representation),
            "text": as_json(self.text),
        }

    @property
    def passage_side(self) -> Side:
        """What passages go through."""
        return self._passages

    @property
    def vectors_per_passage(self) -> int:
        """S, how many rows `encode_passages` gives for each passage."""
        return self._passages.encoder.vectors_per_passage

    def encode_passages(self, passages: Sequence[Passage]) -> NDArray[np.float32]:
        """The vectors of passages: (P * S, D) float32, in their order, a passage's own together."""
        side = self._passages
        vectors = self._encode(side, side.encoder.stored_vectors, side.tokenizer.passages(passages))
        return vectors.reshape(-1, self.dimension)

    def encode_queries(self, queries: Sequence[Query]) -> NDArray[np.float32]:
        """The vectors of queries: (B, D) float32, in their order."""
        side = self._queries
        return self._encode(side, side.encoder, side.tokenizer.queries(queries))

    def encode_sentences(self, sentences: Sequence[str]) -> NDArray[np.float32]:
        """One vector of each: (B, D) float32, by the encoder and text settings of passages."""
        side = self._passages
        return self._encode(side, side.encoder, side.tokenizer.sentences(sentences))

    @torch.inference_mode()
    def _encode(
        self, side: Side, vectors_of: Callable[[TokenBatch], Tensor], ids: Sequence[TokenIds]
    ) -> NDArray[np.float32]:
        found: NDArray[np.float32] | None = None
        plan = by_length(
            [len(text) for text in ids], self.compute.batch_tokens, self.compute.batch_size
        )
        for members in plan:
            batch = pad([ids[i] for i in members], side.tokenizer.pad_id)
            vectors = vectors_of(batch.to(self.device)).cpu().numpy()
            if found is None:
                found = np.empty((len(ids), *vectors.shape[1:]), dtype=np.float32)
            found[members] = vectors
        return np.empty((0, self.dimension), dtype=np.float32) if found is None else found


def fit_lengths(
    told: TextSettings, given: Mapping[str, Any], limit: int | None, reporter: Reporter = SILENT
) -> TextSettings:
    """Text settings whose lengths the model has positions for.

    A length that was asked for and is too long is refused; one that was not is shortened.

    Args:
        told: what the model says about itself.
        given: fields that replace it.
        limit: positions of the model, or None where there is no limit.
        reporter: told of lengths that were shortened.

    Raises:
        UsageError: a length that was asked for goes beyond the model.
    """
    settings = override(told, given)
    too_long = [n for n in LENGTHS if limit is not None and getattr(settings, n) > limit]
    for name in too_long:
        what = f"{name.replace('_', '-')} {getattr(settings, name)}"
        if name in given:
            raise UsageError(f"--{what}: the model has {limit} positions", f"at most {limit}")
        reporter.note(f"{what} becomes {limit}, the positions that the model has")
    return dataclasses.replace(settings, **dict.fromkeys(too_long, limit))
