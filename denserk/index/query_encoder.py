"""The encoder of queries that fits an index."""

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from denserk.config.encoding import (
    NO_SERVER,
    Backend,
    ComputeSettings,
    Dtype,
    DtypeChoice,
    ServerSettings,
    TextSettings,
    is_served,
    reject_server,
)
from denserk.config.options import NOTHING, typed_values
from denserk.config.retrieval import Metric
from denserk.errors import MismatchError, UsageError
from denserk.index.opening import SAME_MODEL, OpenedIndex
from denserk.io import vectors
from denserk.io.manifest import Description, metric_of_model, precision_of, reject_other_model
from denserk.io.model_files import can_be_on_hub
from denserk.models import compiled_queries
from denserk.models.canary import check_start
from denserk.models.processor import cpu_computes_in, is_surely_cpu
from denserk.models.served_encoder import SEARCH_FIELDS, ServedEncoder, reject_computation
from denserk.records import Query

if TYPE_CHECKING:
    from denserk.models.text_encoder import TextEncoder

logger = logging.getLogger(__name__)


class QueryEncoder(Protocol):
    """What search needs of an encoder of queries: see `TextEncoder`."""

    name: str
    dimension: int
    fingerprint: str

    def description(self) -> dict[str, Any]:
        """Return the model and its settings, as plain JSON for manifests."""

    def encode_queries(self, queries: Sequence[Query]) -> NDArray[np.float32]:
        """Encode queries: (B, D) float32, in their order."""


def load_query_encoder(
    opened: OpenedIndex,
    name: str | None = None,
    overrides: tuple[Mapping[str, Any], Mapping[str, Any]] = (NOTHING, NOTHING),
    compute: ComputeSettings = ComputeSettings(),  # noqa: B008  (frozen)
    *,
    server: ServerSettings = NO_SERVER,
    force: bool = False,
    query_count: int = 1,
) -> QueryEncoder:
    """Load a query encoder: by default the index's own model, with the index's settings.

    It is a compiled model of the cache, if that has it, and else a text encoder, which is kept
    there.

    `overrides` are fields of the representation and of the texts that replace those of the model.
    Unless `compute` names a precision, queries are encoded in that of the passages. Another model
    than that of the passages is a MismatchError, and so is a model that is not the one that was
    saved, by its canary; with `force` both are used, and the latter is logged. `query_count` is the
    number of queries that will be encoded together, as far as it is known. A model behind a URL is
    at that of `server`, or else at the one that the index records.
    """
    # one query is encoded on one thread; its model is checked by texts one by one, so on one thread
    texts_at_once = 1 if query_count == 1 else 2
    model = name or _model_of_index(opened)
    reject_server(server, model)
    if is_served(model):
        return _reach_query_encoder(opened, model, overrides, compute, server, force=force)
    compute = as_index(opened, compute)
    if name is None:
        logger.info(f"queries are encoded by {model}, which encoded {opened.name}")
    like = None if force else opened.model
    compiled = compiled_queries.find(model, like, overrides, compute)
    if compiled is not None:
        description = compiled.description()
        reject_other_queries(opened, compiled.dimension, description, compiled.name)
        side = compiled.canary_side()
        check_start(compiled.canary, side, compiled.name, texts_at_once=texts_at_once)
        return compiled
    from denserk.models.text_encoder import TextEncoder

    encoder = TextEncoder(model, *overrides, compute, like=like)
    if not force:
        _use_int8_of_index(opened, encoder)
    description = encoder.description()
    reject_other_queries(opened, encoder.dimension, description, encoder.name, force=force)
    side = encoder.canary_side("query")
    try:
        check_start(encoder.canary, side, encoder.name, texts_at_once=texts_at_once)
    except MismatchError as error:
        if not force:
            raise
        logger.warning(f"{error.message} (searched all the same: --force)")
    compiled_queries.keep(encoder)
    return encoder


def _reach_query_encoder(
    opened: OpenedIndex,
    model: str,
    overrides: tuple[Mapping[str, Any], Mapping[str, Any]],
    compute: ComputeSettings,
    server: ServerSettings,
    *,
    force: bool,
) -> ServedEncoder:
    """Reach the server of a model behind a URL, which must still have the model of the index."""
    reject_computation(model, compute, SEARCH_FIELDS)
    representation, text = overrides
    recorded_url = None
    index_model = opened.model or {}
    if index_model.get("name") == model:
        recorded_url = index_model.get("base_url")
        if not force:
            representation = {**(index_model.get("representation") or {}), **representation}
            text = {**_typed_text(index_model.get("text") or {}), **text}
    encoder = ServedEncoder(model, representation, text, compute, server, recorded_url=recorded_url)
    reject_other_queries(
        opened, encoder.dimension, encoder.description(), encoder.name, force=force
    )
    try:
        _compare_control_vectors(opened, encoder)
    except MismatchError as error:
        if not force:
            raise
        logger.warning(f"{error.message} (searched all the same: --force)")
    return encoder


def _typed_text(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return settings of texts of a manifest in their types."""
    return typed_values("the text settings of the index", values, TextSettings)


def _compare_control_vectors(opened: OpenedIndex, encoder: ServedEncoder) -> None:
    """Raise a MismatchError if a server has another model than the one that encoded an index."""
    # a collection of a server has no folder and no version
    with opened.versions[0].reading() if opened.versions else nullcontext():
        encoder.compare_with_folder(Path(opened.names[0]))


def _model_of_index(opened: OpenedIndex) -> str:
    """Return the name of the model that encoded an index; a UsageError if it cannot be loaded."""
    model = (opened.model or {}).get("name")
    if model is None:
        hint = "give --model, or --encoded-queries"
        raise UsageError(f"the manifest of {opened.name} names no model", hint)
    for manifest in opened.manifests:
        absence = None if manifest is None else manifest.absent.get(model)
        if absence is not None and not can_be_on_hub(model):
            hint = "give --model and the folder of the model"
            raise UsageError(f"{opened.name}: {absence}", hint)
    return str(model)


def as_index(opened: OpenedIndex, compute: ComputeSettings) -> ComputeSettings:
    """Return `compute` with the backend and the precision of the index where it leaves them open.

    Of the backends, only torch is taken over: by default the fastest one encodes queries.
    """
    index_backend = (opened.model or {}).get("backend")
    if compute.backend is Backend.AUTO and index_backend == Backend.TORCH:
        compute = replace(compute, backend=Backend.TORCH)
    if compute.dtype is DtypeChoice.AUTO:
        compute = in_precision_of_index(opened, compute)
    return compute


def in_precision_of_index(opened: OpenedIndex, compute: ComputeSettings) -> ComputeSettings:
    """Return `compute` in the precision that the index was encoded in, if the device has it.

    It is float32 where that precision would be emulated, and for an index that records none: other
    tools compute in float32.
    """
    processor = _processor_of(compute)
    in_float32 = replace(compute, dtype=DtypeChoice.FLOAT32)
    index_model = opened.model or {}
    if index_model.get("dtype") is None:
        if not processor.is_cpu:
            logger.info(f"queries are encoded in float32: {opened.name} records no precision")
        return in_float32
    dtype = Dtype(index_model["dtype"])
    head_dtype = dtype  # which a GPU computes the head in, too
    if processor.is_cpu and index_model.get("head_dtype"):
        head_dtype = Dtype(index_model["head_dtype"])
    for precision in (dtype, head_dtype):
        if not processor.computes_in(precision):
            logger.info(
                f"queries are encoded in float32: {opened.name} was encoded in {precision}, for "
                f"which {processor.name} has no instructions"
            )
            return in_float32
    query_head_dtype = compute.head_dtype or head_dtype
    if not processor.is_cpu or {dtype, head_dtype, query_head_dtype} != {Dtype.FLOAT32}:
        query_model = {
            **index_model,
            "int8": None,
            "dtype": dtype,
            "head_dtype": query_head_dtype,
        }
        logger.info(_precision_message(opened.name, precision_of(query_model), index_model))
    head_choice = None if query_head_dtype is dtype else query_head_dtype  # None: as the rest
    return replace(compute, dtype=DtypeChoice(dtype), head_dtype=head_choice)


class _Processor(NamedTuple):
    """The CPU, or a GPU."""

    name: str
    is_cpu: bool
    computes_in: Callable[[Dtype], bool]


def _processor_of(compute: ComputeSettings) -> _Processor:
    """Return what computes; torch is imported only where there may be a GPU."""
    if "torch" not in sys.modules and is_surely_cpu(compute.device):
        return _Processor("the CPU", True, cpu_computes_in)
    from denserk.models.devices import computes_in, use_device

    device = use_device(compute.device)
    is_cpu = device.type == "cpu"
    name = "the CPU" if is_cpu else str(device)
    return _Processor(name, is_cpu, partial(computes_in, device=device))


def _precision_message(index: str, query_precision: str | None, index_model: Description) -> str:
    """Say in which precision queries are encoded, and whether the index was, too."""
    index_precision = precision_of(index_model)
    if query_precision == index_precision:
        return (
            f"queries are encoded in {query_precision}, as {index} was; --dtype chooses another "
            "precision"
        )
    return f"queries are encoded in {query_precision}; {index} was encoded in {index_precision}"


def _use_int8_of_index(opened: OpenedIndex, encoder: "TextEncoder") -> None:
    """Encode queries in int8 if the passages were, and the index has the weights of that model."""
    index_model = opened.model or {}
    int8 = index_model.get("int8")
    if not int8 or encoder.backend is not Backend.OPENVINO:
        return
    if index_model["fingerprint"] != encoder.fingerprint:
        return
    weights = Path(opened.names[0]) / vectors.INT8_WEIGHTS
    # a collection of a server has no folder and no version
    with opened.versions[0].reading() if opened.versions else nullcontext():
        if weights.exists():
            encoder.use_int8("passage", weights.parent, int8)
            return
    logger.info(f"queries are encoded in float32: {weights.parent} has no {weights.name}")


def reject_other_queries(
    opened: OpenedIndex,
    dimension: int,
    model: Description | None,
    name: str,
    *,
    force: bool = False,
) -> None:
    """Reject queries of another dimension, or, unless `force`, of another model or settings."""
    index_dimension = opened.index.dimension
    if index_dimension != dimension:
        hint = SAME_MODEL
        if index_dimension < dimension:
            hint = f"{SAME_MODEL} (--truncate-dim {index_dimension}, if its vectors were cut)"
        raise MismatchError(
            f"{opened.name} holds vectors of {index_dimension} dimensions, {name} makes "
            f"{dimension}",
            hint,
        )
    if metric_of_model(model) is Metric.L2 and opened.metric is not Metric.L2:
        logger.warning(
            f"{name} compares by Euclidean distance, and {opened.name} by inner product: the "
            "ranking is another one; build the index again with --metric l2"
        )
    if force:
        return
    teacher = None if model is None else model.get("queries_of")
    if teacher:
        # an encoder of queries alone fits the passages of its teacher, whatever its own settings
        model = {**(opened.model or {}), **teacher}
    vectors_in_message = f"{opened.name} and the queries of {name}"
    reject_other_model(opened.model, model, vectors_in_message, f"{SAME_MODEL}, or add --force")
