"""faiss: exact and approximate indexes from its factory strings, on the CPU or on its GPU."""

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from denserk.errors import InputError, OutputError, UsageError
from denserk.extras import require
from denserk.formats.files import whole_binary
from denserk.formats.flat_file import is_flat
from denserk.index.top_k import ordered
from denserk.index.torch_exact import TorchExact
from denserk.index.vector_index import Rows, Scores, Vectors
from denserk.reporting import SILENT, Reporter
from denserk.settings.retrieval import IndexSettings, IndexType, Metric, SearchSettings

GPU_DEPTH = 2048
"""faiss on a GPU returns no more hits than this."""
ADD_ROWS = 65_536
DEFAULT_EF = 64


def _faiss() -> Any:
    return require("faiss", "an index of --engine faiss")


def factory_string(settings: IndexSettings, count: int, dimension: int) -> str:
    """What faiss's factory is asked for.

    Raises:
        UsageError: the quantiser cannot divide the dimension.

    >>> factory_string(IndexSettings(type=IndexType.IVF), 10_000, 384)
    'IVF256,Flat'
    """
    if settings.factory:
        return settings.factory
    if settings.type in (IndexType.PQ, IndexType.HNSWPQ) and dimension % settings.pq_m:
        best = next(m for m in range(min(settings.pq_m, dimension), 0, -1) if dimension % m == 0)
        raise UsageError(
            f"--pq-m {settings.pq_m} does not divide the dimension {dimension}",
            f"for example --pq-m {best}",
        )
    # faiss wants 39 vectors a list
    lists = settings.nlist or max(1, min(int(4 * count**0.5), count // 39))
    quantiser = f"PQ{settings.pq_m}x{settings.pq_nbits}"
    return {
        IndexType.FLAT: "Flat",
        IndexType.HNSW: f"HNSW{settings.M},Flat",
        IndexType.IVF: f"IVF{lists},Flat",
        IndexType.PQ: quantiser,
        IndexType.HNSWPQ: f"HNSW{settings.M}_{quantiser}",
        IndexType.SQ8: "SQ8",
        IndexType.SQFP16: "SQfp16",
    }[settings.type]


def _reason(error: RuntimeError) -> str:
    """The words of faiss, without its C++ signatures and file names."""
    text = str(error).strip()
    return re.split(r" failed: |\.cpp:\d+: |\.h:\d+: ", text)[-1].strip()


@contextmanager
def _refusals(wanted: str, count: int) -> Iterator[None]:
    """Turns what faiss throws while building into one sentence."""
    try:
        yield
    except RuntimeError as error:
        few = re.search(r"training points \((\d+)\).*clusters \((\d+)\)", str(error))
        if few:
            raise InputError(
                wanted,
                None,
                f"{count:,} vectors, of which {int(few[1]):,} train",
                f"at least {int(few[2]):,}, one a centroid, and better {39 * int(few[2]):,}",
                "use --type flat, a smaller --nlist or --pq-nbits, or a larger --train-size",
            ) from None
        raise UsageError(
            f"faiss refuses {wanted}: {_reason(error)}", "see faiss's guide to factory strings"
        ) from None


@contextmanager
def _clustering_warnings(reporter: Reporter) -> Iterator[None]:
    """Gathers what faiss prints to stderr while it trains; tells it in one sentence."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as caught:
        os.dup2(caught.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            caught.seek(0)
            text = caught.read().decode("utf-8", "replace")
    few = re.compile(r"WARNING clustering (\d+) points to (\d+) centroids.*?(\d+) training points")
    found = [tuple(map(int, match)) for match in few.findall(text)]
    if found:
        points, centroids, wanted = max(found, key=lambda numbers: numbers[2])
        reporter.warn(
            f"{points:,} vectors train {centroids:,} centroids; {wanted:,} or more would train "
            "them well: --type flat is exact and suits a collection of this size"
        )
    for line in few.sub("", text).splitlines():
        if line.strip():
            reporter.note(f"faiss: {line.strip()}")


def _inner_indexes(faiss: Any, index: Any) -> Iterator[Any]:
    """An index and those inside it, as their own classes."""
    index = faiss.downcast_index(index)
    yield index
    for name in ("index", "base_index", "quantizer"):
        inner = getattr(index, name, None)
        if isinstance(inner, faiss.Index):
            yield from _inner_indexes(faiss, inner)


def _gpu(faiss: Any, index: Any, device: str) -> Any:
    """The index on a GPU of faiss, or None where it has no GPU form.

    Raises:
        UsageError: this faiss sees no such GPU.
    """
    number = int(device.partition(":")[2] or 0)
    if not hasattr(faiss, "StandardGpuResources") or faiss.get_num_gpus() <= number:
        raise UsageError(
            f"faiss sees no GPU {number}", "install denserk[gpu], or use --device cpu for the index"
        )
    try:
        return faiss.index_cpu_to_gpu(_gpu_resources(), number, index)
    except RuntimeError:
        return None


@cache
def _gpu_resources() -> Any:
    """Memory that faiss keeps on its GPUs; it must outlive the indexes there."""
    return _faiss().StandardGpuResources()


def sees_gpu() -> bool:
    """Whether the installed faiss can use a GPU of this machine."""
    faiss = _faiss()
    return hasattr(faiss, "StandardGpuResources") and faiss.get_num_gpus() > 0


def build(
    vectors: Vectors, path: Path, metric: Metric, settings: IndexSettings, reporter: Reporter
) -> str:
    """Trains, fills and writes an index of (N, D) vectors; returns its factory string.

    Raises:
        InputError: too few vectors to train on.
        UsageError: faiss does not know the factory string, or refuses the metric.
        OutputError: the index cannot be written.
    """
    faiss = _faiss()
    if settings.threads:
        faiss.omp_set_num_threads(settings.threads)
    count, dimension = vectors.shape
    wanted = factory_string(settings, count, dimension)
    number = faiss.METRIC_INNER_PRODUCT if metric is Metric.INNER else faiss.METRIC_L2
    with _refusals(wanted, count):
        index = faiss.index_factory(dimension, wanted, number)
        for inner in _inner_indexes(faiss, index):
            if isinstance(inner, faiss.IndexHNSW):
                inner.hnsw.efConstruction = settings.efC
        on_gpu = _gpu(faiss, index, settings.device) if settings.device != "cpu" else None
        if settings.device != "cpu" and on_gpu is None:
            reporter.note(f"faiss builds {wanted} on the CPU; it has no GPU form")
        filled = index if on_gpu is None else on_gpu
        if not filled.is_trained:
            _train(filled, vectors, settings, reporter)
        with reporter.track(f"adding to {wanted}", count, "vectors") as progress:
            for first in range(0, count, ADD_ROWS):
                block = np.array(vectors[first : first + ADD_ROWS])
                filled.add(block)
                progress.advance(len(block))
        if on_gpu is not None:
            index = faiss.index_gpu_to_cpu(on_gpu)
    with whole_binary(path) as handle:
        try:
            faiss.write_index(index, handle.name)
        except RuntimeError as error:
            raise OutputError(f"{path} cannot be written: {_reason(error)}") from None
    return wanted


def _train(index: Any, vectors: Vectors, settings: IndexSettings, reporter: Reporter) -> None:
    """Trains on a sample without replacement, in the order of the rows."""
    count = len(vectors)
    rows: Any = slice(None)
    if count > settings.train_size:
        drawn = np.random.default_rng(settings.seed).choice(
            count, settings.train_size, replace=False
        )
        rows = np.sort(drawn)
    sample = np.array(vectors[rows])
    reporter.note(f"training on {len(sample):,} vectors")
    with _clustering_warnings(reporter):
        index.train(sample)


class FaissIndex:
    """An index that faiss holds; a flat one stays in its file, mapped into memory.

    Args:
        path: the file.
        settings: how wide approximate indexes search.
        device: "cpu", or a GPU that faiss sees.
        threads: CPU threads.
        reporter: told where the index could not go to the GPU.

    Raises:
        InputError: the file is not an index of faiss.
        UsageError: a breadth is asked for that this index does not have.
    """

    def __init__(
        self,
        path: Path,
        settings: SearchSettings,
        device: str = "cpu",
        threads: int | None = None,
        reporter: Reporter = SILENT,
    ) -> None:
        self._faiss = faiss = _faiss()
        self._path, self._device = path, device
        if threads:
            faiss.omp_set_num_threads(threads)
        self._index = self._read(path)
        self._sign = 1.0 if self._index.metric_type == faiss.METRIC_INNER_PRODUCT else -1.0
        self._ef, self._graphs = settings.ef_search, []
        self._set_breadth(settings)
        self._deep: TorchExact | None = None
        self._on_gpu = None if device == "cpu" else _gpu(faiss, self._index, device)
        if device != "cpu" and self._on_gpu is None:
            reporter.note("faiss searches this index on the CPU; it has no GPU form")

    def _read(self, path: Path) -> Any:
        flags = getattr(self._faiss, "IO_FLAG_MMAP_IFC", 0) if is_flat(path) else 0
        try:
            return self._faiss.read_index(str(path), flags)
        except RuntimeError as error:
            raise InputError(
                path, None, f"a file that faiss cannot read ({_reason(error)})", "an index of faiss"
            ) from None

    def _set_breadth(self, settings: SearchSettings) -> None:
        parts = list(_inner_indexes(self._faiss, self._index))
        self._graphs = [part for part in parts if isinstance(part, self._faiss.IndexHNSW)]
        lists = [part for part in parts if isinstance(part, self._faiss.IndexIVF)]
        for name, given, where in (
            ("--ef-search", settings.ef_search, self._graphs),
            ("--nprobe", settings.nprobe, lists),
        ):
            if given is not None and not where:
                raise UsageError(f"{name} {given}: {self._path.parent} has nothing it applies to")
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
            self._deep = self._deep or TorchExact.open(self._path, self._device)
            return self._deep.search(queries, depth)
        for graph in self._graphs:
            graph.hnsw.efSearch = self._ef or max(DEFAULT_EF, depth)
        shallow = self._on_gpu is not None and depth <= GPU_DEPTH
        index = self._on_gpu if shallow else self._index
        scores, rows = index.search(np.ascontiguousarray(queries, dtype=np.float32), depth)
        scores = np.where(rows < 0, -np.inf, self._sign * scores).astype(np.float32)
        best, columns = ordered(torch.from_numpy(scores), torch.from_numpy(rows))
        return best.numpy(), columns.numpy()
