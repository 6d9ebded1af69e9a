"""faiss: its errors and the parts of its indexes, and searching approximate indexes with it."""

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from denserk.config.retrieval import Metric, SearchSettings
from denserk.errors import DenserkError, InputError, UsageError
from denserk.extras import require
from denserk.index.searcher import Rows, Scores, Vectors, in_order

logger = logging.getLogger(__name__)

GPU_DEPTH = 2048  # faiss on a GPU returns no more hits than this
DEFAULT_EF = 64  # hnsw: breadth of a shallow search
DEFAULT_K_FACTOR = 4.0  # RFlat, Refine(...): candidates that are scored again for each hit


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


def lists_file(path: Path) -> Path:
    """Return where the inverted lists of an index are stored that are not in its own file."""
    return path.with_name(f"{path.name}.ivfdata")


def read_index(path: Path, *, mapped: bool = True) -> Any:
    """Read an index; if `mapped`, its codes, graphs and inverted lists stay on the disk.

    An index whose lists have their own file names that file. The file beside the index is opened
    instead, so that a folder can be moved (as by IO_FLAG_ONDISK_SAME_DIR, which prints to stdout).
    """
    faiss, lists = load_faiss(), lists_file(path)

    def unreadable(reason: str) -> InputError:
        return InputError(path, None, f"a file that faiss cannot read ({reason})", "a faiss index")

    with faiss_errors(unreadable):
        if not lists.exists():
            return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC if mapped else 0)
        index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP)
        stored = faiss.downcast_InvertedLists(faiss.extract_index_ivf(index).invlists)
        if lists.stat().st_size < stored.totsize:  # faiss would read past the end of the file
            raise RuntimeError(f"{lists.name} has {lists.stat().st_size:,} bytes")
        stored.filename, stored.read_only = str(lists), True
        stored.do_mmap()
    return index


def inner_indexes(index: Any) -> Iterator[Any]:
    """Yield an index and those inside it, as their own classes."""
    faiss = load_faiss()
    index = faiss.downcast_index(index)
    yield index
    for name in ("index", "base_index", "quantizer", "storage"):
        inner = getattr(index, name, None)
        if isinstance(inner, faiss.Index):
            yield from inner_indexes(inner)


def on_gpu(index: Any, device: str) -> Any:
    """Return an index on a GPU of faiss, or None if faiss has no GPU version of it."""
    faiss, number = load_faiss(), int(device.partition(":")[2] or 0)
    if faiss.get_num_gpus() <= number:
        raise UsageError(
            f"faiss sees no GPU {number}",
            "pip install faiss-gpu, or use --device cpu for the index",
        )
    try:
        return faiss.index_cpu_to_gpu(_gpu_resources(), number, index)
    except RuntimeError:
        logger.info("faiss has no GPU version of this index: it stays on the CPU")
        return None


@cache
def _gpu_resources() -> Any:
    """Memory that faiss keeps on its GPUs; it must outlive the indexes there."""
    return load_faiss().StandardGpuResources()


class FaissIndex:
    """An approximate index that faiss searches, mapped from its file; `auto` takes faiss's GPU."""

    is_exhaustive = False

    def __init__(
        self, path: Path, settings: SearchSettings, device: str = "cpu", threads: int | None = None
    ) -> None:
        faiss = load_faiss()
        if threads:
            faiss.omp_set_num_threads(threads)
        self._index = read_index(path)
        inner = self._index.metric_type == faiss.METRIC_INNER_PRODUCT
        self.metric = Metric.INNER if inner else Metric.L2
        self.dimension = int(self._index.d)
        parts = list(inner_indexes(self._index))
        self._graphs = [part for part in parts if isinstance(part, faiss.IndexHNSW)]
        self._lists = [part for part in parts if isinstance(part, faiss.IndexIVF)]
        refined = [part for part in parts if isinstance(part, faiss.IndexRefine)]
        applies = {"--ef-search": self._graphs, "--nprobe": self._lists, "--set k-factor": refined}
        for name, given in settings.index_options.items():
            if not applies[name]:
                raise UsageError(f"{name} {given}: {path.parent} has nothing it applies to")
        self._ef, self._k_factor = settings.ef_search, 1.0
        for part in refined:
            part.k_factor = self._k_factor = settings.k_factor or DEFAULT_K_FACTOR
        for part in self._lists:
            part.nprobe = min(settings.nprobe or max(1, part.nlist // 16), part.nlist)
        if device == "auto":
            device = "cuda" if faiss.get_num_gpus() else "cpu"
        self._on_gpu = None if device == "cpu" else on_gpu(self._index, device)

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def search(self, queries: Vectors, depth: int) -> tuple[Scores, Rows]:
        """Return the `depth` best rows for each of (B, D) queries, padded."""
        candidates = int(depth * self._k_factor)
        for graph in self._graphs:
            graph.hnsw.efSearch = self._ef or max(DEFAULT_EF, candidates)
        index = self._index if self._on_gpu is None or candidates > GPU_DEPTH else self._on_gpu
        scores, rows = index.search(np.ascontiguousarray(queries, dtype=np.float32), depth)
        return in_order(scores if self.metric is Metric.INNER else -scores, rows)

    def reconstruct(self, rows: Rows) -> Vectors:
        """Return the (N, D) vectors of rows, as their codes give them."""
        with faiss_errors(lambda reason: UsageError(f"faiss cannot return the vectors ({reason})")):
            for part in self._lists:
                part.make_direct_map()
            vectors: Vectors = self._index.reconstruct_batch(rows)
        return vectors
