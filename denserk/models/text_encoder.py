"""Text encoder: tokenizer and model together, passages and queries to vectors."""

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

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
from denserk.data.batches import PlannedTexts, TokenBatch, pad, plan
from denserk.data.tokenization import TextTokenizer, TokenIds, load_tokenizer
from denserk.errors import ModelError, UsageError
from denserk.io.manifest import file_sha256
from denserk.io.outputs import scratch_folder
from denserk.io.vectors import INT8_MODEL, INT8_WEIGHTS
from denserk.models.checkpoints import find_model
from denserk.models.devices import (
    choose_backend,
    choose_device,
    choose_dtype,
    limit_kernel_caches,
    on_threads,
)
from denserk.models.encoder import Encoder
from denserk.models.openvino import Compiled, certify
from denserk.models.representation import Aggretriever
from denserk.models.stored_model import StoredModel, read_model_folder
from denserk.records import Passage, Query
from denserk.reporting import track

logger = logging.getLogger(__name__)

NOTHING: Mapping[str, Any] = {}
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
    """A copy of settings with some fields replaced, values as they stand in JSON or typed.

    Raises:
        UsageError: a field that the settings do not have, or a value outside its enum.
    """
    return from_json(type(settings), {**as_json(settings), **given})


@dataclasses.dataclass(frozen=True)
class Side:
    """Encoder and tokenizer of queries or of passages."""

    encoder: Encoder
    tokenizer: TextTokenizer


@dataclasses.dataclass(frozen=True)
class ComingVectors:
    """Vectors on their way from the device: (B, ..., D) float32, and what tells their arrival."""

    vectors: Tensor
    arrival: torch.cuda.Event | None = None

    def array(self) -> NDArray[np.float32]:
        """The vectors, waited for; any thread may ask."""
        if self.arrival is not None:
            self.arrival.synchronize()
        found: NDArray[np.float32] = self.vectors.numpy()
        return found


class TextEncoder:
    """A loaded model: passages and queries in, vectors out.

    Attributes:
        name: what the model is called: a folder, or a name on the hub.
        representation: how its vectors are made.
        text: how records become text.
        compute: where and how the numbers are computed.
        device: the device in use.
        batch_tokens: tokens of a batch.
        dimension: D.
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
        *,
        eager: bool = False,
    ) -> None:
        if compute.threads is not None:
            torch.set_num_threads(compute.threads)
        self.name = name
        self.representation = representation
        self.compute = compute
        self.device = choose_device(compute.device)
        self.batch_tokens = compute.tokens_on(self.device.type)
        self.fingerprint = fingerprint
        self.backbone = stored.passage.architecture.model_type
        self.int8: dict[str, Any] | None = None
        self._quantized: Compiled
        query, passage = stored.build(representation)
        self.dimension = passage.dimension
        if isinstance(passage.representation, Aggretriever) and passage.representation.layout:
            logger.info(f"agg: {passage.representation.layout.describe()}")
        self.text = text
        if self.device.type != "cpu" and compute.head_dtype not in (None, compute.dtype):
            raise UsageError(
                f"--head-dtype {compute.head_dtype} is for the CPU",
                f"leave it out on {self.device}",
            )
        encoders = [each.to(self.device) for each in dict.fromkeys((passage, query))]
        self.backend = self._prepare(encoders, Backend.TORCH if eager else compute.backend)
        self._passages = self._side(passage, stored.passage.folder)
        self._queries = (
            self._passages if query is passage else self._side(query, stored.query.folder)
        )

    def _prepare(self, encoders: Sequence[Encoder], asked: Backend) -> Backend:
        """Prepare encoders for inference, and return the backend that computes them."""
        backend = choose_backend(asked, self.device)
        dtype = choose_dtype(self.compute.dtype, self.device)
        head_dtype = choose_dtype(self.compute.head_dtype or self.compute.dtype, self.device)
        if backend is Backend.OPENVINO:
            try:
                for each in encoders:
                    each.prepare_inference(dtype, head_dtype, compiled=True)
            except ModelError as error:
                if asked is Backend.OPENVINO:
                    raise
                logger.warning(f"computing by torch, which is slower: {error}")
                backend = Backend.TORCH
        if backend is Backend.TORCH:
            limit_kernel_caches()
            for each in encoders:
                each.prepare_inference(dtype, head_dtype, compiled=False)
        return backend

    def _side(self, encoder: Encoder, folder: Path) -> Side:
        return Side(encoder, TextTokenizer(load_tokenizer(folder), self.text))

    @classmethod
    def load(
        cls,
        model: str,
        representation: Mapping[str, Any] = NOTHING,
        text: Mapping[str, Any] = NOTHING,
        compute: ComputeSettings = ComputeSettings(),  # noqa: B008  (frozen)
        *,
        eager: bool = False,
        like: Mapping[str, Any] | None = None,
    ) -> "TextEncoder":
        """Load a model.

        Args:
            model: a short name, a folder, or a name on the hub.
            representation: fields of `RepresentationSettings` that replace what the folder says
                about itself.
            text: the same for `TextSettings`.
            compute: where and how.
            eager: compute by transformers' own modules, whose attention weights can be read.
            like: description of an encoder; if it has the same weights, its settings are the
                defaults of `representation` and `text`.

        Raises:
            UsageError: the model, the device or a setting is not there to choose.
            ModelError: the model cannot be loaded, or cannot do what is asked of it.
        """
        name, folder = find_model(model)
        stored = read_model_folder(folder)
        fingerprint = stored.fingerprint()
        if like is not None and like.get("fingerprint") == fingerprint:
            representation = {**like.get("representation", {}), **representation}
            text = {**like.get("text", {}), **text}
        chosen = override(stored.representation, representation)
        if not stored.told and not representation:
            logger.info(
                f"{name} does not say how its vectors are made: taking {chosen.representation}"
            )
        told = override(stored.text, PUBLISHED_TEXT.get(name, NOTHING))
        limit = stored.passage.max_length
        fitted = fit_lengths(told, text, limit)
        return cls(name, stored, fingerprint, chosen, fitted, compute, eager=eager)

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

    def quantize(self, texts: Sequence[Passage] | Sequence[Query]) -> None:
        """Encode passages, or queries, in int8 from now on.

        The scales of int8 are calibrated on the first `CALIBRATION_TEXTS`, and the vectors of the
        last `CERTIFICATION_TEXTS` are compared with those in float32.

        Raises:
            UsageError: the backend is not OpenVINO, or the precision not float32.
            ModelError: the vectors are too far from those in float32.
        """
        if self.backend is not Backend.OPENVINO or self.compute.dtype is not Dtype.FLOAT32:
            raise UsageError(
                f"--int8 needs OpenVINO and --dtype float32, found {self.backend} and "
                f"{self.compute.dtype}",
                "pip install openvino nncf",
            )
        known = cast("Sequence[Any]", texts)
        plan_texts: Callable[[Any], PlannedTexts]
        if isinstance(texts[0], Query):
            side, plan_texts, begin = self._queries, self.plan_queries, self.begin_queries
            ids = side.tokenizer.queries(known[:CALIBRATION_TEXTS])
        else:
            side, plan_texts, begin = self._passages, self.plan_passages, self.begin_passages
            ids = side.tokenizer.passages(known[:CALIBRATION_TEXTS])
        batches = [pad([each], side.tokenizer.pad_id) for each in ids]
        planned = plan_texts(known[-CERTIFICATION_TEXTS:])
        backbone = side.encoder.backbone
        assert backbone.compiled is not None
        with track("encoding in float32", planned.count, "texts") as progress:
            exact = begin(planned, progress.advance).array()
        backbone.compiled = backbone.compiled.quantized(
            [(batch.input_ids, batch.attention_mask.long()) for batch in batches]
        )
        with track("encoding in int8", planned.count, "texts") as progress:
            certificate = certify(begin(planned, progress.advance).array(), exact)
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

    def use_int8(self, folder: Path, recorded: Mapping[str, Any], *, queries: bool = False) -> None:
        """Encode one side by what `save_int8` wrote, both sides if they share the encoder.

        Args:
            folder: vectors or index.
            recorded: `int8` of the model's description in the folder's manifest.
            queries: the side is that of queries.

        Raises:
            ModelError: the files are missing, or others than the recorded ones.
        """
        if file_sha256(folder / INT8_WEIGHTS) != recorded.get("sha256"):
            raise ModelError(f"{folder / INT8_WEIGHTS} is not the model that made {folder}")
        side = self._queries if queries else self._passages
        side.encoder.backbone.compiled = Compiled.read(folder / INT8_MODEL)
        self.int8 = dict(recorded)

    @property
    def passage_side(self) -> Side:
        """Encoder and tokenizer of passages."""
        return self._passages

    @property
    def vectors_per_passage(self) -> int:
        """S, how many rows `encode_passages` gives for each passage."""
        return self._passages.encoder.vectors_per_passage

    def threads_for(self, texts: int) -> int:
        """CPU threads that so many texts are encoded on; one alone has one, unless more were asked.

        Its products are so small that threads wait for each other longer than they compute, and on
        a busy machine much longer.
        """
        if texts == 1 and self.compute.threads is None:
            return 1
        return torch.get_num_threads()

    def encode_passages(self, passages: Sequence[Passage]) -> NDArray[np.float32]:
        """The vectors of passages: (P * S, D) float32, in their order, a passage's own together."""
        return self.begin_passages(self.plan_passages(passages)).array()

    def encode_queries(self, queries: Sequence[Query]) -> NDArray[np.float32]:
        """The vectors of queries: (B, D) float32, in their order."""
        return self.begin_queries(self.plan_queries(queries)).array()

    def encode_sentences(self, sentences: Sequence[str]) -> NDArray[np.float32]:
        """One vector of each: (B, D) float32, by the encoder and text settings of passages."""
        side = self._passages
        planned = self._plan(side.tokenizer, side.tokenizer.sentences(sentences))
        return self._begin(side.encoder, planned).array()

    def plan_passages(self, passages: Sequence[Passage]) -> PlannedTexts:
        """Passages as batches of token ids; several threads may do this while the model runs."""
        tokenizer = self._passages.tokenizer
        return self._plan(tokenizer, tokenizer.passages(passages))

    def plan_queries(self, queries: Sequence[Query]) -> PlannedTexts:
        """Queries as batches of token ids; several threads may do this while the model runs."""
        tokenizer = self._queries.tokenizer
        return self._plan(tokenizer, tokenizer.queries(queries))

    def begin_passages(
        self, planned: PlannedTexts, advance: Advance | None = None
    ) -> ComingVectors:
        """The vectors of passages, (P * S, D); on a GPU they come while the caller goes on."""
        coming = self._begin(self._passages.encoder.stored_vectors, planned, advance)
        return dataclasses.replace(coming, vectors=coming.vectors.reshape(-1, self.dimension))

    def begin_queries(self, planned: PlannedTexts, advance: Advance | None = None) -> ComingVectors:
        """The vectors of queries, (B, D); on a GPU they come while the caller goes on."""
        return self._begin(self._queries.encoder, planned, advance)

    def _plan(self, tokenizer: TextTokenizer, ids: Sequence[TokenIds]) -> PlannedTexts:
        kind = self.device.type
        planned = plan(
            ids, tokenizer.pad_id, self.batch_tokens, self.compute.batch_size, ENOUGH.get(kind)
        )
        return planned.pinned() if kind == "cuda" else planned

    @torch.inference_mode()
    def _begin(
        self,
        vectors_of: Callable[[TokenBatch], Tensor],
        planned: PlannedTexts,
        advance: Advance | None = None,
    ) -> ComingVectors:
        found = torch.empty(0, self.dimension)
        for number, (members, batch) in enumerate(
            zip(planned.members, planned.batches, strict=True)
        ):
            with on_threads(self.threads_for(planned.count)):
                vectors = vectors_of(batch.to(self.device))
            if number == 0:
                found = vectors.new_empty(planned.count, *vectors.shape[1:], dtype=torch.float32)
            found.index_copy_(0, members.to(self.device, non_blocking=True), vectors.float())
            if advance is not None:
                advance(len(members))
        if self.device.type != "cuda":
            return ComingVectors(found)
        arrived = torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
        arrived.copy_(found, non_blocking=True)
        arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrival.record(torch.cuda.current_stream(self.device))
        return ComingVectors(arrived, arrival)


def fit_lengths(told: TextSettings, given: Mapping[str, Any], limit: int | None) -> TextSettings:
    """Text settings whose lengths the model has positions for.

    A length that was asked for and is too long is refused; one that was not is shortened.

    Args:
        told: what the model says about itself.
        given: fields that replace it.
        limit: positions of the model, or None where there is no limit.

    Raises:
        UsageError: a length that was asked for goes beyond the model.
    """
    settings = override(told, given)
    too_long = [n for n in LENGTHS if limit is not None and getattr(settings, n) > limit]
    for name in too_long:
        what = f"{name.replace('_', '-')} {getattr(settings, name)}"
        if name in given:
            raise UsageError(f"--{what}: the model has {limit} positions", f"at most {limit}")
        logger.info(f"{what} becomes {limit}, the positions that the model has")
    return dataclasses.replace(settings, **dict.fromkeys(too_long, limit))
