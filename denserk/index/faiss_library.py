"""The faiss package: its errors, the structure and the size of its indexes, and its GPUs."""

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from denserk.errors import DenserkError, Interrupted, UsageError
from denserk.extras import require

logger = logging.getLogger(__name__)

FLOAT = LINK = 4
ID_BYTES = 8


def load_faiss() -> Any:
    """Return the faiss package."""
    return require("faiss", "an index of --engine faiss")


@contextmanager
def faiss_errors(error_for: Callable[[str], DenserkError]) -> Iterator[None]:
    """Turn what faiss raises into an error of denserk, without C++ signatures and file names."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        text = re.split(r" failed: |\.cpp:\d+: |\.h:\d+: ", str(error).strip())[-1]
        raise error_for(text.strip()) from None


def inner_indexes(index: Any) -> Iterator[Any]:
    """Yield an index and those inside it, as their own classes."""
    faiss = load_faiss()
    index = faiss.downcast_index(index)
    yield index
    for name in ("index", "base_index", "refine_index", "quantizer", "storage"):
        inner = getattr(index, name, None)
        if isinstance(inner, faiss.Index):
            yield from inner_indexes(inner)


def mergeable_ivf(index: Any) -> Any:
    """Return the IVF part whose inverted lists hold all that grows in an index, or None."""
    faiss = load_faiss()
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexPreTransform):
        return mergeable_ivf(index.index)
    if type(index) not in (faiss.IndexIVFFlat, faiss.IndexIVFPQ, faiss.IndexIVFScalarQuantizer):
        return None
    nested = isinstance(faiss.downcast_index(index.quantizer), faiss.IndexIVF)
    return None if nested else index


def stored_bytes(index: Any, count: int) -> int:
    """Return the bytes of an index with `count` vectors: codes, links, ids and centroids."""
    faiss = load_faiss()
    index = faiss.downcast_index(index)
    names = ("index", "base_index", "refine_index", "storage")
    inner = [part for name in names if isinstance(part := getattr(index, name, None), faiss.Index)]
    size = sum(stored_bytes(part, count) for part in inner)
    if not inner:
        size += count * int(getattr(index, "code_size", FLOAT * index.d))
    if isinstance(index, faiss.IndexHNSW):
        size += count * (LINK * (index.hnsw.nb_neighbors(0) + 1) + ID_BYTES)
    if isinstance(index, faiss.IndexIVF):
        size += count * ID_BYTES + stored_bytes(index.quantizer, index.nlist)
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
