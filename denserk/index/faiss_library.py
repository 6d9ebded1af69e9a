"""The faiss package: its errors, the structure and the size of its indexes, and its GPUs."""

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from denserk.errors import DenserkError, Interrupted, UsageError
from denserk.extras import require

logger = logging.getLogger(__name__)

FLOAT_BYTES = 4
LINK_BYTES = 4  # of a graph
ID_BYTES = 8
# attributes in which an index has another index, that holds its vectors or a copy of them
STORES = ("index", "base_index", "refine_index", "storage")


def load_faiss() -> Any:
    """Return the faiss package."""
    return require("faiss", "an index of --engine faiss")


@contextmanager
def faiss_errors(error_for: Callable[[str], DenserkError]) -> Iterator[None]:
    """Turn what faiss raises into an error of denserk, without C++ signatures and file names."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        reason = re.split(r" failed: |\.cpp:\d+: |\.h:\d+: ", str(error).strip())[-1]
        raise error_for(reason.strip()) from None


def inner_indexes(index: Any) -> Iterator[Any]:
    """Yield an index and those inside it, as their own classes."""
    typed_index = load_faiss().downcast_index(index)
    yield typed_index
    for inner in _members(typed_index, (*STORES, "quantizer")):
        yield from inner_indexes(inner)


def _members(index: Any, attributes: Sequence[str]) -> list[Any]:
    """Return the indexes that an index has in some attributes."""
    faiss = load_faiss()
    members = [getattr(index, attribute, None) for attribute in attributes]
    return [member for member in members if isinstance(member, faiss.Index)]


def mergeable_ivf(index: Any) -> Any:
    """Return the IVF index whose inverted lists hold all that grows in an index, or None.

    It is the index itself, or the one behind a transformation of the vectors (OPQ, PCA).
    """
    faiss = load_faiss()
    # by another name: without one, an index that the caller does not hold would be deleted here
    typed_index = faiss.downcast_index(index)
    if isinstance(typed_index, faiss.IndexPreTransform):
        return mergeable_ivf(typed_index.index)
    # subclasses store more than lists
    classes = (faiss.IndexIVFFlat, faiss.IndexIVFPQ, faiss.IndexIVFScalarQuantizer)
    if type(typed_index) not in classes:
        return None
    if isinstance(faiss.downcast_index(typed_index.quantizer), faiss.IndexIVF):
        return None
    return typed_index


def replace_lists(ivf: Any, lists: Any) -> None:
    """Give an IVF index other inverted lists, which belong to it from then on."""
    ivf.replace_invlists(lists, True)
    lists.this.disown()  # the index deletes them


def stored_bytes(index: Any, count: int) -> int:
    """Return the bytes of an index with `count` vectors: codes, links, ids and centroids."""
    faiss = load_faiss()
    typed_index = faiss.downcast_index(index)
    stores = _members(typed_index, STORES)
    if stores:
        size = sum(stored_bytes(store, count) for store in stores)
    else:
        size = count * int(getattr(typed_index, "code_size", FLOAT_BYTES * index.d))
    if isinstance(typed_index, faiss.IndexHNSW):
        links = typed_index.hnsw.nb_neighbors(0) + 1
        size += count * (LINK_BYTES * links + ID_BYTES)
    if isinstance(typed_index, faiss.IndexIVF):
        centroids = stored_bytes(typed_index.quantizer, typed_index.nlist)
        size += count * ID_BYTES + centroids
    return size


def on_gpu(index: Any, device: str, *, cpu_option: str) -> Any:
    """Return an index on a GPU of faiss, or None if faiss has no GPU version of it.

    `cpu_option` keeps the index on the CPU; it is the hint if faiss sees no such GPU.
    """
    faiss = load_faiss()
    number = int(device.partition(":")[2] or 0)
    if faiss.get_num_gpus() <= number:
        hint = f"pip install faiss-gpu, or keep the index on the CPU: {cpu_option}"
        raise UsageError(f"faiss sees no GPU {number}", hint)
    try:
        return faiss.index_cpu_to_gpu(_gpu_resources(), number, index)
    except RuntimeError:
        Interrupted.raise_received()
        logger.info("faiss has no GPU version of this index: it stays on the CPU")
        return None


@cache
def _gpu_resources() -> Any:
    """Memory that faiss keeps on its GPUs; it must outlive the indexes there."""
    return load_faiss().StandardGpuResources()
