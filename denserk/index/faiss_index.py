"""faiss: loading it, its errors and parts, and searching exact and approximate indexes with it."""

import ctypes
import logging
import mmap
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from denserk.config.retrieval import SearchSettings
from denserk.errors import InputError, UsageError
from denserk.extras import require
from denserk.index.hits import in_order
from denserk.index.vector_index import Rows, Scores, VectorIndex, Vectors
from denserk.io.flat_file import is_flat, map_flat

logger = logging.getLogger(__name__)

GPU_DEPTH = 2048  # faiss on a GPU returns no more hits than this
DEFAULT_EF = 64  # hnsw: breadth of a shallow search
DEFAULT_K_FACTOR = 4.0  # RFlat, Refine(...): candidates that are scored again for each hit
# Environment variable by which OpenBLAS is told the processor; an empty one misleads it
CORE = "OPENBLAS_CORETYPE"


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


class FaissIndex:
    """An index that faiss holds; flat rows and inverted lists stay in its file, mapped.

    A search lets go of the lists that it visited. Their pages, which stay in the file cache, would
    else count as the process's memory until the system wants them back.

    Args:
        path: the file.
        settings: how wide approximate indexes search.
        device: "cpu", or a GPU that faiss sees.
        threads: CPU threads.

    Raises:
        InputError: the file is not an index of faiss.
        UsageError: a breadth is asked for that this index does not have.
    """

    def __init__(
        self, path: Path, settings: SearchSettings, device: str = "cpu", threads: int | None = None
    ) -> None:
        self._faiss = faiss = load_faiss()
        self._path, self._device = path, device
        if threads:
            faiss.omp_set_num_threads(threads)
        self._index = self._read(path)
        self._sign = 1.0 if self._index.metric_type == faiss.METRIC_INNER_PRODUCT else -1.0
        self._ef = settings.ef_search
        self._k_factor = 1.0
        self._graphs: list[Any] = []
        self._mapped: list[Any] = []
        self._set_breadth(settings)
        self._deep: VectorIndex | None = None
        self._on_gpu = None if device == "cpu" else on_gpu(faiss, self._index, device)
        if device != "cpu" and self._on_gpu is None:
            logger.info("faiss searches this index on the CPU; it has no GPU form")

    def _read(self, path: Path) -> Any:
        """Open the file; flat vectors and inverted lists stay in it, unless a GPU takes them."""
        faiss = self._faiss
        if is_flat(path):
            with faiss_errors(path):
                return faiss.read_index(str(path), getattr(faiss, "IO_FLAG_MMAP_IFC", 0))
        if lists_file(path).exists() or self._device == "cpu":
            return read_index(path)
        with faiss_errors(path):
            return faiss.read_index(str(path))

    def _set_breadth(self, settings: SearchSettings) -> None:
        parts = list(inner_indexes(self._faiss, self._index))
        self._graphs = [part for part in parts if isinstance(part, self._faiss.IndexHNSW)]
        lists = [part for part in parts if isinstance(part, self._faiss.IndexIVF)]
        stored = [self._faiss.downcast_InvertedLists(part.invlists) for part in lists]
        on_disk = self._faiss.OnDiskInvertedLists
        self._mapped = [found for found in stored if isinstance(found, on_disk)]
        refined = [part for part in parts if isinstance(part, self._faiss.IndexRefine)]
        for name, given in settings.index_options.items():
            option = name.split()[-1].lstrip("-")
            if not {"ef-search": self._graphs, "nprobe": lists, "k-factor": refined}[option]:
                raise UsageError(f"{name} {given}: {self._path.parent} has nothing it applies to")
        for part in refined:
            part.k_factor = self._k_factor = settings.k_factor or DEFAULT_K_FACTOR
        for part in lists:
            part.nprobe = min(settings.nprobe or max(1, part.nlist // 16), part.nlist)

    @property
    def is_exhaustive(self) -> bool:
        """Whether every row is compared."""
        return isinstance(self._index, self._faiss.IndexFlatCodes)

    @property
    def dimension(self) -> int:
        """D, of its vectors and of any query."""
        return int(self._index.d)

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def search(self, queries: Vectors, depth: int) -> tuple[Scores, Rows]:
        """The `depth` best rows for each of (B, D) queries; fewer are padded with -inf and -1."""
        if self._on_gpu is not None and depth > GPU_DEPTH and is_flat(self._path):
            from denserk.index.exact import ExactIndex  # torch takes a second to import

            self._deep = self._deep or ExactIndex(*map_flat(self._path), self._device)
            return self._deep.search(queries, depth)
        candidates = int(depth * self._k_factor)
        for graph in self._graphs:
            graph.hnsw.efSearch = self._ef or max(DEFAULT_EF, candidates)
        index = self._index if self._on_gpu is None or candidates > GPU_DEPTH else self._on_gpu
        with faiss_errors(self._path):
            scores, rows = index.search(np.ascontiguousarray(queries, dtype=np.float32), depth)
        self._let_go()
        scores = np.where(rows < 0, -np.inf, self._sign * scores).astype(np.float32)
        return in_order(scores, rows)

    def _let_go(self) -> None:
        """Lets go of the pages of lists in memory, where the system has a word for it."""
        if sys.platform == "linux":
            advise = ctypes.CDLL(None).madvise
            for lists in self._mapped:
                place, size = ctypes.c_void_p(int(lists.ptr)), ctypes.c_size_t(lists.totsize)
                advise(place, size, mmap.MADV_DONTNEED)
