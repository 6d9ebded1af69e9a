"""Text encoder: tokenizer and model together, passages and queries to vectors."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from denserk.config.encoding import (
    PUBLISHED_TEXT,
    Backend,
    ComputeSettings,
    Dtype,
    RepresentationSettings,
    TextSettings,
)
from denserk.config.options import as_json, from_json
from denserk.data.batches import PlannedTexts, TokenBatch, pad, plan, to_device
from denserk.data.tokenization import TextTokenizer, TokenIds, load_tokenizer
from denserk.errors import ModelError, UsageError
from denserk.io.manifest import file_sha256
from denserk.io.outputs import scratch_folder
from denserk.io.vectors import INT8_MODEL, INT8_WEIGHTS
from denserk.models.checkpoints import find_model
from denserk.models.devices import (
    Compiled,
    certify,
    choose_backend,
    choose_dtype,
    limit_kernel_caches,
    on_threads,
    prepare_device,
)
from denserk.models.representation import Encoder
from denserk.models.stored_model import StoredModel, read_model_folder
from denserk.records import Passage, Query
from denserk.reporting import track

logger = logging.getLogger(__name__)

NOTHING: Mapping[str, Any] = {}
PASSAGE, QUERY = "passage", "query"  # sides
# Tokens from which a batch ends where shorter texts begin, by kind of device: where as many keep it
# at its full rate, a batch of one length costs nothing, and needs no mask
ENOUGH = {"cpu": 512}
CALIBRATION_TEXTS = 300
CERTIFICATION_TEXTS = 500
LENGTHS = ("query_max_length", "passage_max_length")
S = TypeVar("S")
# Called with the number of texts of each batch, once it has gone through the model
Advance = Callable[[int], None]


def override(settings: S, given: Mapping[str, Any]) -> S:
    """Return settings with some fields replaced, by values as in JSON or typed."""
    return from_json(type(settings), {**as_json(settings), **given})


class Side(NamedTuple):
    """Encoder and tokenizer of queries or of passages."""

    encoder: Encoder
    tokenizer: TextTokenizer


class TextEncoder:
    """A loaded model: passages and queries in, vectors out.

    Attributes:
        name: a folder, or a name on the hub.
        sides: encoder and tokenizer of each side, "passage" and "query".
        batch_tokens: tokens of a batch.
        dimension: D.
        vectors_per_passage: S, rows that `encode_passages` returns for each passage.
        fingerprint: SHA-256 of weights, tokenizer and configuration; equal on any machine.
    """

    def __init__(
        self,
        name: str,
        stored: StoredModel,
        fingerprint: str,
        representation: RepresentationSettings,
        text: TextSettings,
        compute: ComputeSettings,
    ) -> None:
        self.name, self.fingerprint = name, fingerprint
        self.representation, self.text, self.compute = representation, text, compute
        self.device = prepare_device(compute)
        self.batch_tokens = compute.tokens_on(self.device.type)
        self.backbone = stored.passage.architecture.model_type
        self.int8: dict[str, Any] | None = None
        self._quantized: Compiled
        query, passage = stored.build(representation)
        self.dimension, self.vectors_per_passage = passage.dimension, passage.vectors_per_passage
        if self.device.type != "cpu" and compute.head_dtype not in (None, compute.dtype):
            raise UsageError(
                f"--head-dtype {compute.head_dtype} is for the CPU",
                f"leave it out on {self.device}",
            )
        encoders = [each.to(self.device) for each in dict.fromkeys((passage, query))]
        self.backend = self._prepare(encoders)
        of_passages = Side(passage, TextTokenizer(load_tokenizer(stored.passage.folder), text))
        of_queries = of_passages
        if query is not passage:
            of_queries = Side(query, TextTokenizer(load_tokenizer(stored.query.folder), text))
        self.sides = {PASSAGE: of_passages, QUERY: of_queries}

    def _prepare(self, encoders: Sequence[Encoder]) -> Backend:
        """Prepare encoders for inference, and return the backend that computes them."""
        backend = choose_backend(self.compute.backend, self.device)
        dtype = choose_dtype(self.compute.dtype, self.device)
        head_dtype = choose_dtype(self.compute.head_dtype or self.compute.dtype, self.device)
        if backend is Backend.OPENVINO:
            try:
                for each in encoders:
                    each.prepare_inference(dtype, head_dtype, compiled=True)
                return backend
            except ModelError as error:
                if self.compute.backend is Backend.OPENVINO:
                    raise
                logger.warning(f"computing by torch, which is slower: {error}")
        limit_kernel_caches()
        for each in encoders:
            each.prepare_inference(dtype, head_dtype, compiled=False)
        return Backend.TORCH

    @classmethod
    def load(
        cls,
        model: str,
        representation: Mapping[str, Any] = NOTHING,
        text: Mapping[str, Any] = NOTHING,
        compute: ComputeSettings = ComputeSettings(),  # noqa: B008  (frozen)
        *,
        like: Mapping[str, Any] | None = None,
    ) -> "TextEncoder":
        """Load a model: a short name, a folder, or a name on the hub.

        `representation` and `text` replace settings of the folder. Where `like`, the description of
        an encoder, has the same weights, its settings are taken before the folder's.

        Raises:
            UsageError: the model, the device or a setting does not exist.
            ModelError: the model cannot be loaded, or does not fit the settings.
        """
        name, folder = find_model(model)
        stored = read_model_folder(folder)
        fingerprint = stored.fingerprint()
        if like is not None and like.get("fingerprint") == fingerprint:
            representation = {**like.get("representation", {}), **representation}
            text = {**like.get("text", {}), **text}
        chosen = override(stored.representation, representation)
        if not stored.has_settings and not representation:
            logger.info(f"{name} does not record a pooling: taking {chosen.representation}")
        recorded = override(stored.text, PUBLISHED_TEXT.get(name, NOTHING))
        fitted = fit_lengths(recorded, text, stored.passage.max_length)
        return cls(name, stored, fingerprint, chosen, fitted, compute)

    def description(self) -> dict[str, Any]:
        """The model and its settings, as plain JSON for manifests."""
        return {
            "name": self.name,
            "fingerprint": self.fingerprint,
            "backbone": self.backbone,
            "dimension": self.dimension,
            "backend": self.backend.value,
            **({"int8": self.int8} if self.int8 else {}),
            "dtype": self.compute.dtype.value,
            "head_dtype": (self.compute.head_dtype or self.compute.dtype).value,
            "representation": as_json(self.representation),
            "text": as_json(self.text),
        }

    def quantize(self, side: str, texts: Sequence[Any]) -> None:
        """Encode one side in int8 from now on; a ModelError if its vectors are too far off.

        The scales of int8 are calibrated on the first `CALIBRATION_TEXTS`, and the vectors of the
        last `CERTIFICATION_TEXTS` are compared with those in float32.
        """
        if self.backend is not Backend.OPENVINO or self.compute.dtype is not Dtype.FLOAT32:
            raise UsageError(
                f"--int8 needs OpenVINO and --dtype float32, found {self.backend} and "
                f"{self.compute.dtype}",
                "pip install openvino nncf",
            )
        ids = self._token_ids(side, texts[:CALIBRATION_TEXTS])
        batches = [pad([each], self.sides[side].tokenizer.pad_id) for each in ids]
        planned = self.plan(side, texts[-CERTIFICATION_TEXTS:])
        backbone = self.sides[side].encoder.backbone
        assert backbone.compiled is not None
        with track("encoding in float32", planned.count, "texts") as progress:
            exact = self.encode_planned(side, planned, progress.advance)
        backbone.compiled = backbone.compiled.quantized(
            [(batch.input_ids, batch.attention_mask.long()) for batch in batches]
        )
        with track("encoding in int8", planned.count, "texts") as progress:
            certificate = certify(self.encode_planned(side, planned, progress.advance), exact)
        logger.info(
            f"int8: cosine to float32 {certificate['mean_cosine']:.4f} in the mean, "
            f"{certificate['cosine_5th_percentile']:.4f} at the 5th percentile "
            f"({planned.count} texts)"
        )
        self._quantized = backbone.compiled
        with scratch_folder("int8") as folder:
            self.save_int8(folder)
            self.int8 = {"sha256": file_sha256(folder / INT8_WEIGHTS), **certificate}

    def save_int8(self, folder: Path) -> None:
        """Write the model that `quantize` made into a folder."""
        self._quantized.save(folder / INT8_MODEL)

    def use_int8(self, side: str, folder: Path, recorded: Mapping[str, Any]) -> None:
        """Encode one side, or both that share an encoder, by what `save_int8` wrote.

        Files other than those `recorded` in the folder's manifest are a ModelError.
        """
        if file_sha256(folder / INT8_WEIGHTS) != recorded.get("sha256"):
            raise ModelError(f"{folder / INT8_WEIGHTS} is not the model that made {folder}")
        self.sides[side].encoder.backbone.compiled = Compiled.read(folder / INT8_MODEL)
        self.int8 = dict(recorded)

    def threads_for(self, texts: int) -> int:
        """Return the number of CPU threads for so many texts."""
        # of a single text the products are so small that threads wait longer than they compute
        if texts == 1 and self.compute.threads is None:
            return 1
        return torch.get_num_threads()

    def encode_passages(self, passages: Sequence[Passage]) -> NDArray[np.float32]:
        """Encode passages: (P * S, D) float32, in their order, the vectors of one together."""
        return self.encode_planned(PASSAGE, self.plan(PASSAGE, passages))

    def encode_queries(self, queries: Sequence[Query]) -> NDArray[np.float32]:
        """Encode queries: (B, D) float32, in their order."""
        return self.encode_planned(QUERY, self.plan(QUERY, queries))

    def encode_sentences(self, sentences: Sequence[str]) -> NDArray[np.float32]:
        """Encode each to one vector, by the encoder and text settings of passages: (B, D)."""
        encoder, tokenizer = self.sides[PASSAGE]
        return self._encode(encoder, self._plan(tokenizer.sentences(sentences), tokenizer))

    def plan(self, side: str, texts: Sequence[Any]) -> PlannedTexts:
        """Tokenize one side's texts into batches; several threads may call it at a time."""
        return self._plan(self._token_ids(side, texts), self.sides[side].tokenizer)

    def encode_planned(
        self, side: str, planned: PlannedTexts, advance: Advance | None = None
    ) -> NDArray[np.float32]:
        """Encode what `plan` returned, in the order of the texts: (P * S, D) or (B, D) float32."""
        encoder = self.sides[side].encoder
        vectors_of = encoder if side == QUERY else encoder.stored_vectors
        return self._encode(vectors_of, planned, advance).reshape(-1, self.dimension)

    def _token_ids(self, side: str, texts: Sequence[Any]) -> list[TokenIds]:
        tokenizer = self.sides[side].tokenizer
        return tokenizer.queries(texts) if side == QUERY else tokenizer.passages(texts)

    def _plan(self, ids: Sequence[TokenIds], tokenizer: TextTokenizer) -> PlannedTexts:
        enough = ENOUGH.get(self.device.type)
        return plan(ids, tokenizer.pad_id, self.batch_tokens, self.compute.batch_size, enough)

    @torch.inference_mode()
    def _encode(
        self,
        vectors_of: Callable[[TokenBatch], Tensor],
        planned: PlannedTexts,
        advance: Advance | None = None,
    ) -> NDArray[np.float32]:
        found = torch.empty(0, self.dimension)
        for number, (members, batch) in enumerate(
            zip(planned.members, planned.batches, strict=True)
        ):
            with on_threads(self.threads_for(planned.count)):
                vectors = vectors_of(to_device(batch, self.device))
            if number == 0:
                found = vectors.new_empty(planned.count, *vectors.shape[1:], dtype=torch.float32)
            found.index_copy_(0, members.to(self.device), vectors.float())
            if advance is not None:
                advance(len(members))
        array: NDArray[np.float32] = found.cpu().numpy()
        return array


def fit_lengths(
    recorded: TextSettings, given: Mapping[str, Any], limit: int | None
) -> TextSettings:
    """Return text settings whose lengths the model has positions for (`limit`; None: any).

    `given` replaces recorded fields. A length beyond the limit is a UsageError if it was given, and
    else shortened.
    """
    settings = override(recorded, given)
    too_long = [n for n in LENGTHS if limit is not None and getattr(settings, n) > limit]
    for name in too_long:
        what = f"{name.replace('_', '-')} {getattr(settings, name)}"
        if name in given:
            raise UsageError(f"--{what}: the model has {limit} positions", f"at most {limit}")
        logger.info(f"{what} becomes {limit}, the positions that the model has")
    return replace(settings, **dict.fromkeys(too_long, limit))


def load_models(
    labelled: Sequence[tuple[str, str]],
    representation: Mapping[str, Any],
    text: Mapping[str, Any],
    compute: ComputeSettings,
) -> Iterator[tuple[str, str, TextEncoder]]:
    """Return (label, model, encoder) one by one; all are found first, errors begin with a label."""
    for _, model in labelled:
        find_model(model)

    def load(label: str, model: str) -> TextEncoder:
        try:
            return TextEncoder.load(model, representation, text, compute)
        except UsageError as error:
            raise UsageError(f"{label}: {error.message}", error.hint) from None

    return ((label, model, load(label, model)) for label, model in labelled)
