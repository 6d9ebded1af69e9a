"""What building and searching share of faiss: its import, its parts, its GPU, its words."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from denserk.errors import InputError, UsageError
from denserk.extras import require

CORE = "OPENBLAS_CORETYPE"
"""Environment variable by which OpenBLAS is told the processor; an empty one misleads it."""


@cache
def load_faiss() -> Any:
    """The faiss package.

    The BLAS inside its wheel is older than many processors, and takes an unknown one for one
    without AVX-512. Which kernels it uses is settled when it loads: the widest that there are,
    unless OPENBLAS_CORETYPE is set.

    Raises:
        MissingExtraError: it is not installed.
    """
    if CORE not in os.environ and _has_avx512():
        os.environ[CORE] = "SkylakeX"
        try:
            return require("faiss", "an index of --engine faiss")
        finally:
            del os.environ[CORE]
    return require("faiss", "an index of --engine faiss")


def _has_avx512(told: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this machine's processor has AVX-512, as far as Linux tells."""
    try:
        with told.open(encoding="ascii", errors="replace") as lines:
            flags = next((line.split() for line in lines if line.startswith("flags")), [])
    except OSError:
        return False
    return "avx512f" in flags


def reason(error: Exception) -> str:
    """The words of faiss, without its C++ signatures and file names."""
    text = str(error).strip()
    return re.split(r" failed: |\.cpp:\d+: |\.h:\d+: ", text)[-1].strip()


@contextmanager
def faiss_errors(path: Path) -> Iterator[None]:
    """Turn what faiss raises for a broken file into one line.

    Raises:
        InputError: it cannot read the file, or the file holds no whole index.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        raise InputError(
            path, None, f"a file that faiss cannot read ({reason(error)})", "an index of faiss"
        ) from None


def lists_file(path: Path) -> Path:
    """Return where the inverted lists of an index are stored that are not in its own file."""
    return path.with_name(f"{path.name}.ivfdata")


def read_index(path: Path) -> Any:
    """Read an index; its inverted lists stay on the disk, memory-mapped.

    An index whose lists have their own file names that file. The file beside the index is opened
    instead, so that a folder can be moved (as by IO_FLAG_ONDISK_SAME_DIR, which prints to stdout).

    Raises:
        InputError: the file is not an index of faiss, or the lists are missing.
    """
    faiss = load_faiss()
    with faiss_errors(path):
        index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP)
        for part in inner_indexes(faiss, index):
            lists = faiss.downcast_InvertedLists(part.invlists) if hasattr(part, "invlists") else 0
            if isinstance(lists, faiss.OnDiskInvertedLists) and lists.filename:
                found = lists_file(path).stat().st_size if lists_file(path).exists() else 0
                if found < lists.totsize:  # faiss would read past the end of the file
                    raise RuntimeError(f"{lists_file(path).name} has {found:,} bytes")
                lists.filename, lists.read_only = str(lists_file(path)), True
                lists.do_mmap()
    return index


def inner_indexes(faiss: Any, index: Any) -> Iterator[Any]:
    """An index and those inside it, as their own classes."""
    index = faiss.downcast_index(index)
    yield index
    for name in ("index", "base_index", "quantizer", "storage"):
        inner = getattr(index, name, None)
        if isinstance(inner, faiss.Index):
            yield from inner_indexes(faiss, inner)


def on_gpu(faiss: Any, index: Any, device: str) -> Any:
    """The index on a GPU of faiss, or None where it has no GPU form.

    Raises:
        UsageError: this faiss sees no such GPU.
    """
    number = int(device.partition(":")[2] or 0)
    if not hasattr(faiss, "StandardGpuResources") or faiss.get_num_gpus() <= number:
        raise UsageError(
            f"faiss sees no GPU {number}",
            "pip install faiss-gpu, or use --device cpu for the index",
        )
    try:
        return faiss.index_cpu_to_gpu(_gpu_resources(), number, index)
    except RuntimeError:
        return None


@cache
def _gpu_resources() -> Any:
    """Memory that faiss keeps on its GPUs; it must outlive the indexes there."""
    return load_faiss().StandardGpuResources()


def sees_gpu() -> bool:
    """Whether the installed faiss can use a GPU of this machine."""
    faiss = load_faiss()
    return hasattr(faiss, "StandardGpuResources") and faiss.get_num_gpus() > 0
