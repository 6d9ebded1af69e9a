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

from denserk.config.encoding import Backend, ComputeSettings, Dtype, DtypeChoice
from denserk.config.options import NOTHING
from denserk.config.retrieval import Metric
from denserk.errors import MismatchError, UsageError
from denserk.index.opening import SAME_MODEL, OpenedIndex
from denserk.io import vectors
from denserk.io.manifest import Description, metric_of_model, precision_of, refuse_other_model
from denserk.io.model_files import can_be_on_hub
from denserk.models import compiled_queries
from denserk.models.processor import cpu_computes_in, is_surely_cpu
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
    force: bool = False,
) -> QueryEncoder:
    """Load a query encoder: by default the index's own model, with the index's settings.

    It is a compiled model of the cache, if that has it, and else a text encoder, which is kept
    there.

    `overrides` are fields of the representation and of the texts that replace those of the model.
    Unless `compute` names a precision, queries are encoded in that of the passages. Unless `force`,
    another model than that of the passages is a MismatchError.
    """
    index_model = opened.model or {}
    model = name or index_model.get("name")
    if model is None:
        hint = "give --model, or --encoded-queries"
        raise UsageError(f"the manifest of {opened.name} names no model", hint)
    if name is None:
        _require_model(opened, model)
    if compute.backend is Backend.AUTO and index_model.get("backend") == Backend.TORCH:
        compute = replace(compute, backend=Backend.TORCH)
    if compute.dtype is DtypeChoice.AUTO:
        compute = in_precision_of_index(opened, compute)
    if name is None:
        logger.info(f"queries are encoded by {model}, which encoded {opened.name}")
    like = None if force else opened.model
    compiled = compiled_queries.find(model, like, overrides, compute)
    if compiled is not None:
        description = compiled.description()
        refuse_other_queries(opened, compiled.dimension, description, compiled.name)
        return compiled
    from denserk.models.text_encoder import TextEncoder

    encoder = TextEncoder(model, *overrides, compute, like=like)
    if index_model and not force:
        int8 = index_model.get("int8")
        is_index_model = index_model["fingerprint"] == encoder.fingerprint
        if int8 and is_index_model and encoder.backend is Backend.OPENVINO:
            _use_int8(opened, encoder, int8)
    description = encoder.description()
    refuse_other_queries(opened, encoder.dimension, description, encoder.name, force=force)
    compiled_queries.keep(encoder)
    return encoder


def in_precision_of_index(opened: OpenedIndex, compute: ComputeSettings) -> ComputeSettings:
    """Return `compute` in the precision that the index was encoded in, if the device has it.

    It is float32 where that precision would be emulated, and for an index that records none: other
    tools compute in float32.
    """
    processor = _processor_of(compute)
    on_cpu = processor.is_cpu
    in_float32 = replace(compute, dtype=DtypeChoice.FLOAT32)
    index_model = opened.model or {}
    if index_model.get("dtype") is None:
        if not on_cpu:
            logger.info(f"queries are encoded in float32: {opened.name} records no precision")
        return in_float32
    dtype = Dtype(index_model["dtype"])
    head_dtype = dtype
    if on_cpu:  # a GPU computes the head in the same precision
        head_dtype = Dtype(index_model.get("head_dtype") or dtype)
    for precision in (dtype, head_dtype):
        if not processor.computes_in(precision):
            logger.info(
                f"queries are encoded in float32: {opened.name} was encoded in {precision}, for "
                f"which {processor.name} has no instructions"
            )
            return in_float32
    head_choice = compute.head_dtype or head_dtype
    if not on_cpu or {dtype, head_dtype, head_choice} != {Dtype.FLOAT32}:
        of_queries = {**index_model, "int8": None, "dtype": dtype, "head_dtype": head_choice}
        logger.info(_precision_message(opened.name, precision_of(of_queries), index_model))
    own_head = None if head_choice is dtype else head_choice
    return replace(compute, dtype=DtypeChoice(dtype), head_dtype=own_head)


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
    on_cpu = device.type == "cpu"
    return _Processor(
        "the CPU" if on_cpu else str(device), on_cpu, partial(computes_in, device=device)
    )


def _precision_message(index: str, of_queries: str | None, index_model: Description) -> str:
    """Say in which precision queries are encoded, and whether the index was, too."""
    of_index = precision_of(index_model)
    if of_queries == of_index:
        return (
            f"queries are encoded in {of_queries}, as {index} was; --dtype chooses another "
            "precision"
        )
    return f"queries are encoded in {of_queries}; {index} was encoded in {of_index}"


def _use_int8(opened: OpenedIndex, encoder: "TextEncoder", recorded: Mapping[str, Any]) -> None:
    """Encode queries in int8 as the passages were, if the index has the weights of that model."""
    weights = Path(opened.names[0]) / vectors.INT8_WEIGHTS
    # a collection of a server has no folder and no version
    with opened.versions[0].reading() if opened.versions else nullcontext():
        if weights.exists():
            encoder.use_int8("passage", weights.parent, recorded)
            return
    logger.info(f"queries are encoded in float32: {weights.parent} has no {weights.name}")


def _require_model(opened: OpenedIndex, model: str) -> None:
    """Raise a UsageError if the model that manifests name is a folder that is not there."""
    for manifest in opened.manifests:
        absent = None if manifest is None else manifest.absent.get(model)
        if absent is not None and not can_be_on_hub(model):
            raise UsageError(f"{opened.name}: {absent}", "give --model and the folder of the model")


def refuse_other_queries(
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
    refuse_other_model(opened.model, model, vectors_in_message, f"{SAME_MODEL}, or add --force")
