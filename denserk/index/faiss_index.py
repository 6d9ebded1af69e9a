"""Searching an approximate index with faiss, mapped from its file."""

import logging
from collections.abc import Mapping
from copy import copy
from pathlib import Path
from threading import Event, Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from denserk.config.options import NOTHING
from denserk.config.retrieval import Metric, SearchSettings
from denserk.errors import InputError, NotFiniteError, UsageError
from denserk.index.faiss_files import read_index
from denserk.index.faiss_library import faiss_errors, inner_indexes, load_faiss, on_gpu
from denserk.index.searcher import Rows, Scores, Vectors, in_order

logger = logging.getLogger(__name__)

GPU_DEPTH = 2048  # faiss on a GPU returns no more hits than this
DEFAULT_EF = 64  # hnsw: breadth of a shallow search
DEFAULT_K_FACTOR = 4.0  # RFlat, Refine(...): candidates that are scored again for each hit
CHECKED_ROWS = 65_536  # stored vectors that are looked at at once
FEW_QUERIES = 32  # a search of more reads all stored vectors once, to know that they are finite


def _trained_numbers(index: Any) -> list[NDArray[np.float32]]:
    """Return the numbers that an index has learned: codebooks, scales and rotations."""
    faiss, vectors = load_faiss(), []
    if hasattr(index, "pq"):
        vectors.append(index.pq.centroids)
    if hasattr(index, "sq"):
        vectors.append(index.sq.trained)
    if isinstance(index, faiss.IndexPreTransform):
        for number in range(index.chain.size()):
            transform = faiss.downcast_VectorTransform(index.chain.at(number))
            if isinstance(transform, faiss.LinearTransform):
                vectors += [transform.A, transform.b]
    return [faiss.vector_to_array(vector) for vector in vectors]


def _stores_floats(index: Any) -> bool:
    """Return whether an index keeps vectors as floating-point numbers, not as codes."""
    faiss = load_faiss()
    if isinstance(index, faiss.IndexFlat | faiss.IndexIVFFlat):
        return True
    halves = (faiss.ScalarQuantizer.QT_fp16, faiss.ScalarQuantizer.QT_bf16)
    return hasattr(index, "sq") and index.sq.qtype in halves


class FaissIndex:
    """An approximate index that faiss searches, mapped from its file; `auto` takes faiss's GPU.

    `tuned` holds search parameters of the index's manifest, which those of `settings` replace.
    """

    is_exhaustive = False

    def __init__(
        self,
        path: Path,
        settings: SearchSettings,
        device: str = "cpu",
        threads: int | None = None,
        tuned: Mapping[str, Any] = NOTHING,
    ) -> None:
        faiss = load_faiss()
        if threads:
            faiss.omp_set_num_threads(threads)
        self._path = path
        self._index = read_index(path)
        inner = self._index.metric_type == faiss.METRIC_INNER_PRODUCT
        self.metric = Metric.INNER if inner else Metric.L2
        self.dimension = int(self._index.d)
        self._parts = list(inner_indexes(self._index))
        self._graphs = [part for part in self._parts if isinstance(part, faiss.IndexHNSW)]
        self._lists = [part for part in self._parts if isinstance(part, faiss.IndexIVF)]
        self._refined = [part for part in self._parts if isinstance(part, faiss.IndexRefine)]
        self._refuse_damaged_parameters()
        if device == "auto":
            device = "cuda" if faiss.get_num_gpus() else "cpu"
        self._on_gpu = None
        if device != "cpu":
            self._on_gpu = on_gpu(self._index, device, cpu_option="--set index-device=cpu")
        # a copy on a GPU refines by parts of its own
        copies = [] if self._on_gpu is None else list(inner_indexes(self._on_gpu))
        self._refined_copies = [part for part in copies if isinstance(part, faiss.IndexRefine)]
        self._lock = Lock()  # parameters belong to the index, which several searches may share
        self._scanned = Event()  # set once the stored vectors are known to be finite
        self._tuned = tuned
        self.use_options(settings)

    def use_options(self, settings: SearchSettings) -> None:
        """Take the options of a search; one that has no effect on this index is a UsageError."""
        applies = {
            "--ef-search": self._graphs,
            "--nprobe": self._lists,
            "--set k-factor": self._refined,
        }
        for name, value in settings.index_options.items():
            if not applies[name]:
                raise UsageError(f"{name} {value}: {self._path.parent} has nothing it applies to")
        self._ef: int | None = settings.ef_search or self._tuned.get("ef_search")
        self._nprobe: int | None = settings.nprobe or self._tuned.get("nprobe")
        k_factor = settings.k_factor or self._tuned.get("k_factor") or DEFAULT_K_FACTOR
        self._k_factor = float(k_factor) if self._refined else 1.0

    def with_options(self, settings: SearchSettings) -> "FaissIndex":
        """Return the same open index, to be searched with the options of `settings`."""
        configured = copy(self)
        configured.use_options(settings)
        return configured

    def __len__(self) -> int:
        return int(self._index.ntotal)

    @property
    def breadth(self) -> tuple[str, ...]:
        """The options that make a search find more, with their values."""
        if self._lists:
            first = self._lists[0]
            return (f"--nprobe (now {self._nprobe_of(first)} of {first.nlist} lists)",)
        if self._graphs:
            now = "the larger of 64 and --hits" if self._ef is None else self._ef
            return (f"--ef-search (now {now}), or --set M of the index",)
        return ()

    def _nprobe_of(self, part: Any) -> int:
        """Return how many inverted lists of an IVF index are searched."""
        return min(self._nprobe or max(1, part.nlist // 16), int(part.nlist))

    def search(self, queries: Vectors, depth: int) -> tuple[Scores, Rows]:
        """Return the `depth` best rows for each of (B, D) queries, padded."""
        if len(queries) > FEW_QUERIES:
            self._refuse_damaged_vectors()
        candidates = int(depth * self._k_factor)
        index = self._index if self._on_gpu is None or candidates > GPU_DEPTH else self._on_gpu
        rows_of_queries = np.ascontiguousarray(queries, dtype=np.float32)
        with self._lock:
            self._set_parameters(index, candidates)
            scores, rows = index.search(rows_of_queries, depth)
        if (rows[:, : min(depth, len(self))] < 0).any():
            self._refuse_damaged_vectors()
        return in_order(scores if self.metric is Metric.INNER else -scores, rows)

    def _set_parameters(self, index: Any, candidates: int) -> None:
        """Set the options of this search in the index, or in its copy on a GPU."""
        for graph in self._graphs:
            graph.hnsw.efSearch = self._ef or max(DEFAULT_EF, candidates)
        for part in self._lists:
            part.nprobe = self._nprobe_of(part)
        for part in (*self._refined, *self._refined_copies):
            part.k_factor = self._k_factor
        if index is self._on_gpu and self._lists:
            space = load_faiss().GpuParameterSpace()
            space.set_index_parameter(index, "nprobe", self._nprobe_of(self._lists[0]))

    def _refuse_damaged_parameters(self) -> None:
        """Reject an index whose centroids, codebooks or scales are not finite.

        faiss would leave out the passages behind them without a word.
        """
        faiss = load_faiss()
        for part in self._parts:
            arrays = _trained_numbers(part)
            if isinstance(part, faiss.IndexIVF):
                arrays.append(part.quantizer.reconstruct_n(0, part.nlist))
            if not all(np.isfinite(array).all() for array in arrays):
                found = "centroids or codebooks that are not finite"
                hint = "the file is damaged: build the index again with --overwrite"
                raise InputError(self._path, None, found, "finite numbers", hint)

    def _refuse_damaged_vectors(self) -> None:
        """Raise a NotFiniteError for the first stored vector that is not finite.

        faiss drops its score. The vectors are read once, before the first search of many queries,
        or where a list is short; codes need no look, as their codebooks are finite.
        """
        if self._scanned.is_set():
            return
        for part in self._parts:
            if not _stores_floats(part):
                continue
            for first in range(0, part.ntotal, CHECKED_ROWS):
                rows = part.reconstruct_n(first, min(CHECKED_ROWS, part.ntotal - first))
                finite = np.isfinite(rows).all(axis=1)
                if not finite.all():
                    raise NotFiniteError(first + int(np.argmin(finite)))
        self._scanned.set()

    def reconstruct(self, rows: Rows) -> Vectors:
        """Return the (N, D) vectors of rows, as their codes give them."""
        with faiss_errors(lambda reason: UsageError(f"faiss cannot return the vectors ({reason})")):
            for part in self._lists:
                part.make_direct_map()
            vectors: Vectors = self._index.reconstruct_batch(rows)
        return vectors
