"""Text encoder: tokenizer and model together, passages and queries to vectors."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import inf
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
    ModelOptions,
    RepresentationSettings,
)
from denserk.config.options import NOTHING, as_json
from denserk.config.retrieval import Metric
from denserk.data.batches import PlannedTexts, TokenBatch, plan, to_device
from denserk.data.planning import ENOUGH
from denserk.data.tokenization import TextTokenizer, TokenIds
from denserk.errors import ModelError, UsageError
from denserk.extras import installed
from denserk.io.manifest import file_sha256
from denserk.io.model_files import find_model, without_revision
from denserk.io.outputs import scratch_folder
from denserk.io.vectors import INT8_MODEL, INT8_WEIGHTS
from denserk.models.backbone import STATIC
from denserk.models.canary import Comparison, ModelSide, compare
from denserk.models.devices import choose_dtype, choose_precision, on_threads, prepare_device
from denserk.models.model_folder import (
    StoredModel,
    fit_lengths,
    override,
    read_model_folder,
    within_positions,
)
from denserk.models.openvino_modules import Compiled, certify
from denserk.models.precision import (
    certificate_of,
    certificate_texts,
    is_bfloat16_tried,
)
from denserk.models.representation import Encoder
from denserk.models.token_budget import TokenBudget
from denserk.records import Passage, Query

logger = logging.getLogger(__name__)

PASSAGE, QUERY = "passage", "query"  # sides
# of `quantize`: texts that scales are calibrated on, and texts that int8 is compared on
CALIBRATION_TEXTS = 300
CERTIFICATION_TEXTS = 500
# The hint where there is no memory for a single text.
SHORTEN = "cut texts with --passage-max-length or --query-max-length, or give a 16-bit --dtype"
T = TypeVar("T")
Advance = Callable[[int], None] | None  # called with the number of texts of each encoded batch


class Side(NamedTuple):
    """Encoder and tokenizer of queries or of passages."""

    encoder: Encoder
    tokenizer: TextTokenizer


class TextEncoder:
    """A loaded model, given as a short name, a folder, or a name on the hub.

    `representation` and `text` replace settings of the folder. Where `like`, the description of
    an encoder, has the same weights, its settings are taken before the folder's.

    Attributes:
        name: the folder, or the name on the hub.
        sides: encoder and tokenizer of each side, "passage" and "query".
        dtype, head_dtype: precisions of the computation, and of agg's projection.
        certificate: by which `--dtype auto` took `dtype` on a CPU that multiplies bfloat16, as the
            manifest records it; None where nothing was certified.
        batch_tokens: tokens of a batch.
        dimension: D.
        vectors_per_passage: S, rows that `encode_passages` returns for each passage.
        folder: where its files are.
        fingerprint: SHA-256 of weights, tokenizer and configuration; equal on any machine.
        fingerprint_files: the files that `fingerprint` covers.
        max_length: the most tokens that it has positions for; None: any number.
        own_representation, own_text: the folder's settings, which options may replace.
        canary: texts with the vectors of the model as it was saved; None if the folder has none.
        is_for_cosine: vectors are L2-normalised because the folder says cosine.
        queries_of: the model whose query vectors it learned, if it is for that model's index alone.
        metric: how its vectors are compared.
        model_type: the backbone's, as in config.json.
        backend: what computes it, OpenVINO or torch.
        int8: the manifest's record of the int8 model that encodes one side; None without.

    Raises:
        UsageError: the model, the device or a setting does not exist.
        ModelError: the model cannot be loaded, or does not fit the settings.
    """

    def __init__(
        self,
        model: str,
        representation: Mapping[str, Any] = NOTHING,
        text: Mapping[str, Any] = NOTHING,
        compute: ComputeSettings = ComputeSettings(),  # noqa: B008  (frozen)
        *,
        like: Mapping[str, Any] | None = None,
    ) -> None:
        self.name, self.folder = find_model(model)
        stored = read_model_folder(self.folder)
        self.fingerprint = stored.fingerprint()
        self.fingerprint_files = stored.fingerprint_files()
        self.max_length = stored.passage.max_length
        self.is_for_cosine = stored.is_for_cosine
        self.queries_of = stored.queries_of
        self.metric = stored.metric
        self.canary = stored.read_canary()
        self.model_type = stored.passage.architecture.model_type
        self._choose_settings(stored, representation, text, like)

        self.compute = compute
        self.device = prepare_device(compute)
        self.certificate: Mapping[str, Any] | None = None
        tries_bfloat16 = is_bfloat16_tried(compute.dtype, self.device, self.model_type)
        if tries_bfloat16:
            self._set_precision(Dtype.BFLOAT16)
        else:
            self._set_precision(choose_precision(compute.dtype, self.device))
        self.batch_tokens = compute.tokens_on(self.device.type, self.dtype)
        # {texts} and {tokens} are for the budget to fill in
        work = f"encoding {{texts}} texts of {{tokens}} tokens on {self.device}"
        self._budget = TokenBudget(self.batch_tokens, work, shorten=SHORTEN)

        self.int8: dict[str, Any] | None = None
        query, passage = stored.build(self.representation)
        self.dimension = passage.dimension
        self.vectors_per_passage = passage.vectors_per_passage
        passage_tokenizer = stored.load_tokenizer(stored.passage.folder)
        query_tokenizer = stored.load_tokenizer(stored.query.folder)
        self.sides = {
            PASSAGE: Side(passage, TextTokenizer(passage_tokenizer, self.text)),
            QUERY: Side(query, TextTokenizer(query_tokenizer, self.text)),
        }
        self.backend = self._prepare_certified(stored) if tries_bfloat16 else self._prepare()

    def _choose_settings(
        self,
        stored: StoredModel,
        representation: Mapping[str, Any],
        text: Mapping[str, Any],
        like: Mapping[str, Any] | None,
    ) -> None:
        """Set `representation` and `text`: of those given, of `like`, or else of the folder."""
        norm_is_chosen = "l2_norm" in representation  # by the user, and not by `like`
        if like is not None and like.get("fingerprint") == self.fingerprint:
            representation = {**like.get("representation", {}), **representation}
            text = {**like.get("text", {}), **text}
        self.representation = stored.choose(representation, text)
        if not norm_is_chosen:
            self._warn_of_missing_norm()
        if not stored.has_settings and not representation:
            pooling = self.representation.representation
            logger.info(f"{self.name} does not record a pooling: taking {pooling}")
        published_text = PUBLISHED_TEXT.get(without_revision(self.name), NOTHING)
        recorded_text = override(stored.text, published_text)
        self.text = fit_lengths(recorded_text, text, self.max_length)
        self.own_representation = stored.representation
        self.own_text = within_positions(recorded_text, self.max_length)

    def _warn_of_missing_norm(self) -> None:
        """Warn of vectors that lack the L2-normalisation by which the model compares by cosine.

        The settings of such a folder have it: those of `like`, an index, do not.
        """
        if self.is_for_cosine and not self.representation.l2_norm:
            logger.warning(
                f"{self.name} compares by cosine, and the passages were encoded without "
                "L2-normalisation: results are those of inner products; encode the passages again "
                "for those of cosine"
            )

    def _set_precision(self, dtype: Dtype) -> None:
        """Set `dtype` and `head_dtype`; a UsageError for two of them on a GPU."""
        self.dtype = dtype
        self.head_dtype = self.compute.head_dtype or dtype
        if self.device.type != "cpu" and self.head_dtype is not dtype:
            raise UsageError(f"--head-dtype {self.head_dtype} is for the CPU")

    def _prepare_certified(self, stored: StoredModel) -> Backend:
        """Prepare the encoders in bfloat16 if their vectors stay close to float32, else in float32.

        Return the backend that computes them.
        """
        # the weights are float32 until they are prepared
        float32_vectors = self._certificate_vectors()
        try:
            # a backend that fails in bfloat16 is tried in float32 before another one is
            backend = self._prepare(takes_other_backend=False)
        except ModelError as error:
            logger.info(f"computing in float32 on the CPU: in bfloat16, {error}")
        else:
            certificate = certificate_of(self._certificate_vectors(), float32_vectors)
            self.certificate = certificate._asdict()
            logger.info(certificate.message)
            if certificate.holds:
                return backend
        # from the files again: the first encoders may have lost their float32 weights
        self._set_precision(Dtype.FLOAT32)
        query, passage = stored.build(self.representation)
        self.sides[QUERY] = self.sides[QUERY]._replace(encoder=query)
        self.sides[PASSAGE] = self.sides[PASSAGE]._replace(encoder=passage)
        return self._prepare()

    def _certificate_vectors(self) -> NDArray[np.float32]:
        """Return the vectors of the certificate's texts by each encoder: (N, D) float32.

        N counts the vectors of all texts, as passages, and of another query encoder after them.
        """
        texts = certificate_texts()
        passage = self.sides[PASSAGE]
        query = self.sides[QUERY]
        vectors = self.encode_tokens(PASSAGE, passage.tokenizer.sentences(texts))
        if query.encoder is passage.encoder:
            return vectors
        queries = [Query(str(number), text) for number, text in enumerate(texts)]
        return np.concatenate([vectors, self.encode_queries(queries)])

    def _prepare(self, *, takes_other_backend: bool = True) -> Backend:
        """Prepare the encoders for inference, and return the backend that computes them.

        Where OpenVINO was not chosen but is the default, and cannot compute the model, torch does;
        without `takes_other_backend` this is a ModelError.
        """
        for encoder in self._encoders():
            encoder.to(self.device)
        backend = self.compute.backend
        if backend is Backend.OPENVINO and self.device.type != "cpu":
            raise UsageError(f"--backend openvino computes on the CPU, not on {self.device}")
        dtype = choose_dtype(self.dtype, self.device)
        head_dtype = choose_dtype(self.head_dtype, self.device)
        if backend is Backend.OPENVINO or self._is_openvino_default():
            try:
                for encoder in self._encoders():
                    encoder.prepare_inference(dtype, head_dtype, compiled=True)
                return Backend.OPENVINO
            except ModelError as error:
                if backend is Backend.OPENVINO or not takes_other_backend:
                    raise
                logger.warning(f"computing by torch, which is slower: {error}")
        for encoder in self._encoders():
            encoder.prepare_inference(dtype, head_dtype, compiled=False)
        return Backend.TORCH

    def _encoders(self) -> list[Encoder]:
        """Return the encoders of both sides, one that they share once."""
        return list(dict.fromkeys(side.encoder for side in self.sides.values()))

    def _is_openvino_default(self) -> bool:
        """Return whether OpenVINO computes where no backend was chosen."""
        if self.compute.backend is not Backend.AUTO or self.device.type != "cpu":
            return False
        # looking vectors up takes no library
        return self.model_type != STATIC and installed("openvino")

    def description(self) -> dict[str, Any]:
        """The model and its settings, as plain JSON for manifests; what is None is left out."""
        values = {
            "name": self.name,
            "fingerprint": self.fingerprint,
            "queries_of": self.queries_of,
            "backbone": self.model_type,
            "dimension": self.dimension,
            "metric": None if self.metric is Metric.INNER else self.metric.value,
            "backend": self.backend.value,
            "int8": self.int8,
            "dtype": self.dtype.value,
            "head_dtype": self.head_dtype.value,
            "certificate": self.certificate,
            "representation": as_json(self.representation),
            "text": as_json(self.text),
        }
        return {name: value for name, value in values.items() if value is not None}

    def quantize(self, side: str, texts: Sequence[Any]) -> dict[str, Any]:
        """Encode one side in int8 from now on, and return the record for the manifest.

        Scales are calibrated on the first `CALIBRATION_TEXTS`. The vectors of the last
        `CERTIFICATION_TEXTS` are compared with float32; if they are too far off, a ModelError.
        `int8` is for the caller to set, in all processes.
        """
        if self.device.type != "cpu":
            raise UsageError(f"--int8 is for the CPU, not for {self.device}", "add --device cpu")
        if self.backend is not Backend.OPENVINO or self.dtype is not Dtype.FLOAT32:
            raise UsageError(
                f"--int8 needs OpenVINO and --dtype float32, found {self.backend} and {self.dtype}",
                "pip install openvino nncf",
            )
        calibration: list[tuple[Tensor, ...]] = []
        for text in texts[:CALIBRATION_TEXTS]:
            for batch in self.plan(side, [text]).batches:  # one batch, of one text
                calibration.append((batch.input_ids, batch.attention_mask.long()))
        planned = self.plan(side, texts[-CERTIFICATION_TEXTS:])
        backbone = self.sides[side].encoder.backbone
        assert backbone.compiled is not None
        float32_vectors = self.encode_planned(side, planned)
        backbone.compiled = backbone.compiled.quantized(calibration)
        certificate = certify(self.encode_planned(side, planned), float32_vectors)
        logger.info(
            f"int8: cosine to float32 {certificate['mean_cosine']:.4f} in the mean, "
            f"{certificate['cosine_5th_percentile']:.4f} at the 5th percentile "
            f"({planned.count} texts)"
        )
        self._quantized = backbone.compiled
        # the record identifies the file that `save_int8` writes, and there is no folder yet
        with scratch_folder("int8") as folder:
            self.save_int8(folder)
            return {"sha256": file_sha256(folder / INT8_WEIGHTS), **certificate}

    def save_int8(self, folder: Path) -> None:
        """Write the model that `quantize` made into a folder."""
        self._quantized.save(folder / INT8_MODEL)

    def use_int8(self, side: str, folder: Path, recorded: Mapping[str, Any]) -> None:
        """Encode one side, or both that share an encoder, by what `save_int8` wrote.

        `recorded` is what `quantize` returned, in the folder's manifest; weights other than those
        are a ModelError.
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
        planned = self._plan(tokenizer.sentences(sentences), tokenizer)
        return self._encode(encoder, planned, None)

    def encode_tokens(self, side: str, ids: Sequence[Any]) -> NDArray[np.float32]:
        """Encode texts by the token ids of the side's tokenizer: (P * S, D) or (B, D) float32."""
        return self.encode_planned(side, self._plan(ids, self.sides[side].tokenizer))

    def canary_side(self, side: str) -> ModelSide:
        """Return what encodes one side's texts under the folder's own settings, for its canary."""
        return ModelSide(
            side,
            self.own_representation,
            self.own_text,
            self.sides[side].tokenizer,
            self._precision_of_vectors(),
            partial(self._encode_under, side),
        )

    def compare_with_canary(self) -> list[Comparison]:
        """Compare all texts of the canary, kind by kind; empty if the model's folder has none."""
        if self.canary is None:
            return []
        kinds = [kind for kind in self.sides if self.canary.of_kind(kind)]
        return [compare(self.canary, self.canary_side(kind)) for kind in kinds]

    def _precision_of_vectors(self) -> str:
        """Return the coarsest of the precisions that compute vectors."""
        if self.int8 is not None:
            return "int8"
        precisions = {self.dtype, self.head_dtype}
        if precisions == {Dtype.FLOAT32}:
            return Dtype.FLOAT32.value
        return min(precisions - {Dtype.FLOAT32}).value

    def _encode_under(
        self, side: str, ids: Sequence[TokenIds], settings: RepresentationSettings
    ) -> list[NDArray[np.float32]] | None:
        """Encode one side's texts by their token ids under other settings: each (S, D) float32.

        None if the weights that are loaded do not make such vectors.
        """
        encoder = self.sides[side].encoder.with_settings(settings)
        if encoder is None:
            return None
        planned = self._plan(ids, self.sides[side].tokenizer)
        vectors_of = encoder if side == QUERY else encoder.stored_vectors
        vectors = self._encode(vectors_of, planned, None)
        return list(vectors.reshape(len(ids), -1, vectors.shape[-1]))

    def plan(self, side: str, texts: Sequence[Any]) -> PlannedTexts:
        """Tokenize one side's texts into batches; several threads may call it at a time."""
        tokenizer = self.sides[side].tokenizer
        ids = tokenizer.queries(texts) if side == QUERY else tokenizer.passages(texts)
        return self._plan(ids, tokenizer)

    def encode_planned(
        self, side: str, planned: PlannedTexts, advance: Advance = None
    ) -> NDArray[np.float32]:
        """Encode what `plan` returned, in the order of the texts: (P * S, D) or (B, D) float32."""
        encoder = self.sides[side].encoder
        vectors_of = encoder if side == QUERY else encoder.stored_vectors
        return self._encode(vectors_of, planned, advance).reshape(-1, self.dimension)

    def _plan(self, ids: Sequence[TokenIds], tokenizer: TextTokenizer) -> PlannedTexts:
        """Divide tokenized texts into batches."""
        if self.model_type != STATIC:
            # a text of no tokens, where the tokenizer adds none, is read as one token of padding:
            # alone it would be no input, and beside others a state of nothing
            ids = [tokens if len(tokens) else [tokenizer.pad_id] for tokens in ids]
        batch_size = self.compute.batch_size
        return plan(ids, tokenizer.pad_id, self._budget.tokens, batch_size, self._enough_tokens)

    @property
    def _enough_tokens(self) -> float:
        """The number of tokens with which a batch ends rather than be padded for shorter texts."""
        return ENOUGH.get(self.device.type, inf)

    def in_batches(
        self, planned: PlannedTexts, compute: Callable[[TokenBatch], T]
    ) -> Iterator[tuple[Tensor, T]]:
        """Yield the rows (b,) of each batch's texts, and what `compute` returns for the batch.

        Batches become smaller where there is no memory for them; see `TokenBudget`.
        """
        if planned.batch_tokens > self._budget.tokens:  # planned before the budget was halved
            planned = self._divided_again(planned, 0)
        done = 0
        while done < len(planned.batches):
            batch = planned.batches[done]
            count, length = batch.input_ids.shape
            threads = self.threads_for(planned.count)
            compute_batch = partial(self._compute_on_device, batch, compute, threads)
            result = self._budget.attempt(count, length, compute_batch)
            if result is None:  # the budget is halved
                planned = self._divided_again(planned, done)
                done = 0
                continue
            yield planned.rows[done], result
            done += 1

    def _compute_on_device(
        self, batch: TokenBatch, compute: Callable[[TokenBatch], T], threads: int
    ) -> T:
        """Return what `compute` returns for a batch on the device."""
        with on_threads(threads):
            return compute(to_device(batch, self.device))

    def _divided_again(self, planned: PlannedTexts, done: int) -> PlannedTexts:
        """Return the texts without the first `done` batches, in batches that the budget allows."""
        batch_size = self.compute.batch_size
        return planned.divided_again(done, self._budget.tokens, batch_size, self._enough_tokens)

    @torch.inference_mode()
    def _encode(
        self, vectors_of: Callable[[TokenBatch], Tensor], planned: PlannedTexts, advance: Advance
    ) -> NDArray[np.float32]:
        """Encode texts by one encoder, in their order: (N, D) or (N, S, D) float32.

        vectors_of: a batch of token ids (b, T) -> (b, D) or (b, S, D).
        """
        text_vectors = torch.empty(0, self.dimension)
        encoded_batches = self.in_batches(planned, lambda batch: vectors_of(batch).float())
        for rows, vectors in encoded_batches:
            if not len(text_vectors):  # how many vectors a text has, the first batch shows
                text_vectors = vectors.new_empty(planned.count, *vectors.shape[1:])
            # a copy that blocks would wait until the GPU has encoded this batch
            text_vectors.index_copy_(0, to_device(rows, self.device), vectors)
            if advance is not None:
                advance(len(rows))
        array: NDArray[np.float32] = text_vectors.cpu().numpy()
        return array


def load_models(
    labels_and_models: Sequence[tuple[str, str]], options: ModelOptions
) -> Iterator[tuple[str, str, TextEncoder]]:
    """Return (label, model, encoder) one by one; all are found before the first is loaded."""
    for _, model in labels_and_models:
        find_model(model)
    return ((label, model, TextEncoder(model, *options)) for label, model in labels_and_models)
