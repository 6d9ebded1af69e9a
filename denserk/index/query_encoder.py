"""The encoder of queries that fits an index."""

import logging
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from denserk.config.encoding import Backend, ComputeSettings, Dtype, DtypeChoice
from denserk.config.options import NOTHING
from denserk.config.retrieval import Metric
from denserk.errors import MismatchError, UsageError
from denserk.index.opening import SAME_MODEL, OpenedIndex
from denserk.io import vectors
from denserk.io.manifest import Description, metric_of_model, precision_of, refuse_other_model
from denserk.io.model_files import can_be_on_hub

if TYPE_CHECKING:
    from denserk.models.text_encoder import TextEncoder

logger = logging.getLogger(__name__)


def load_query_encoder(
    opened: OpenedIndex,
    name: str | None = None,
    overrides: tuple[Mapping[str, Any], Mapping[str, Any]] = (NOTHING, NOTHING),
    compute: ComputeSettings = ComputeSettings(),  # noqa: B008  (frozen)
    *,
    force: bool = False,
) -> "TextEncoder":
    """Load a query encoder: by default the index's own model, with the index's settings.

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
    from denserk.models.text_encoder import TextEncoder

    encoder = TextEncoder(model, *overrides, compute, like=None if force else opened.model)
    if index_model and not force:
        int8 = index_model.get("int8")
        is_index_model = index_model["fingerprint"] == encoder.fingerprint
        if int8 and is_index_model and encoder.backend is Backend.OPENVINO:
            _use_int8(opened, encoder, int8)
    description = encoder.description()
    refuse_other_queries(opened, encoder.dimension, description, encoder.name, force=force)
    return encoder


def in_precision_of_index(opened: OpenedIndex, compute: ComputeSettings) -> ComputeSettings:
    """Return `compute` in the precision that the index was encoded in, if the device has it.

    It is float32 where that precision would be emulated, and for an index that records none: other
    tools compute in float32.
    """
    from denserk.models.devices import computes_in, use_device

    device = use_device(compute.device)
    on_cpu = device.type == "cpu"
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
        if not computes_in(precision, device):
            processor = "the CPU" if on_cpu else device
            logger.info(
                f"queries are encoded in float32: {opened.name} was encoded in {precision}, for "
                f"which {processor} has no instructions"
            )
            return in_float32
    head_choice = compute.head_dtype or head_dtype
    if not on_cpu or {dtype, head_dtype, head_choice} != {Dtype.FLOAT32}:
        of_queries = {**index_model, "int8": None, "dtype": dtype, "head_dtype": head_choice}
        logger.info(_precision_message(opened.name, precision_of(of_queries), index_model))
    own_head = None if head_choice is dtype else head_choice
    return replace(compute, dtype=DtypeChoice(dtype), head_dtype=own_head)


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
