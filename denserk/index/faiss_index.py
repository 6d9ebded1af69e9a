"""Searching an approximate index with faiss, mapped from its file."""

from collections.abc import Iterable, Mapping
from copy import copy
from pathlib import Path
from threading import Event, Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from denserk.config.options import NOTHING
from denserk.config.retrieval import Metric, SearchSettings
from denserk.errors import InputError, NotFiniteError, UsageError
from denserk.index.engines import Rows, Scores, Vectors, in_order
from denserk.index.faiss_files import read_index
from denserk.index.faiss_library import faiss_errors, inner_indexes, load_faiss, on_gpu

GPU_DEPTH = 2048  # faiss on a GPU returns no more hits than this
DEFAULT_EF = 64  # hnsw: breadth of a shallow search
DEFAULT_K_FACTOR = 4.0  # RFlat, Refine(...): candidates that are scored again for each hit
FEW_QUERIES = 32  # a search of more reads all stored vectors once, to know that they are finite
CHECKED_ROWS = 65_536  # stored vectors that this check holds in memory at once


class FaissIndex:
    """An approximate index that faiss searches, mapped from its file.

    With the device `auto`, a GPU is used if faiss sees one. `tuned` holds the search parameters in
    the index's manifest, which those of `settings` replace.
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
        self._tuned = tuned
        self._index = read_index(path)
        is_inner_product = self._index.metric_type == faiss.METRIC_INNER_PRODUCT
        self.metric = Metric.INNER if is_inner_product else Metric.L2
        self.dimension = int(self._index.d)
        # the index and those inside it, by the search parameter that their class has:
        # efSearch of graphs, nprobe of inverted lists, k_factor of refined indexes
        self._indexes = list(inner_indexes(self._index))
        self._graphs = [index for index in self._indexes if isinstance(index, faiss.IndexHNSW)]
        self._ivfs = [index for index in self._indexes if isinstance(index, faiss.IndexIVF)]
        self._refined = _refined_indexes(self._indexes)
        self._reject_damaged_training()
        self._gpu_index = _copy_on_gpu(self._index, device)
        if self._gpu_index is not None:
            # the copy on the GPU has refined indexes of its own, whose k_factor is set, too
            self._refined += _refined_indexes(inner_indexes(self._gpu_index))
        # search parameters are set in faiss's index, which several searches and the copies made by
        # `with_options` share
        self._lock = Lock()
        self._vectors_are_finite = Event()  # set once all stored vectors were read
        self.use_options(settings)

    def use_options(self, settings: SearchSettings) -> None:
        """Search with these options from now on; one that does not apply is a UsageError."""
        indexes_by_option = {
            "--ef-search": self._graphs,
            "--nprobe": self._ivfs,
            "--set k-factor": self._refined,
        }
        for option, value in settings.index_options.items():
            if not indexes_by_option[option]:
                raise UsageError(f"{option} {value}: {self._path.parent} has nothing it applies to")
        self._ef_search: int | None = settings.ef_search or self._tuned.get("ef_search")
        self._nprobe: int | None = settings.nprobe or self._tuned.get("nprobe")
        self._k_factor = 1.0
        if self._refined:
            tuned_k_factor = self._tuned.get("k_factor", DEFAULT_K_FACTOR)
            self._k_factor = float(settings.k_factor or tuned_k_factor)

    def with_options(self, settings: SearchSettings) -> "FaissIndex":
        """Return the same open index, to be searched with the options of `settings`.

        It shares faiss's index, and the lock, with this one.
        """
        configured = copy(self)
        configured.use_options(settings)
        return configured

    def __len__(self) -> int:
        return int(self._index.ntotal)

    @property
    def breadth(self) -> tuple[str, ...]:
        """The options that make a search find more, with their values."""
        if self._ivfs:
            ivf = self._ivfs[0]
            return (f"--nprobe (now {self._nprobe_of(ivf)} of {ivf.nlist} lists)",)
        if self._graphs:
            ef_search = self._ef_search
            current = "the larger of 64 and --hits" if ef_search is None else ef_search
            return (f"--ef-search (now {current}), or --set M of the index",)
        return ()

    def _nprobe_of(self, ivf: Any) -> int:
        """Return how many inverted lists of an IVF index are searched: by default, a sixteenth."""
        sixteenth = max(1, ivf.nlist // 16)
        return min(self._nprobe or sixteenth, int(ivf.nlist))

    def search(self, queries: Vectors, depth: int) -> tuple[Scores, Rows]:
        """Return the `depth` best rows for each of (B, D) queries, padded."""
        if len(queries) > FEW_QUERIES:
            self._reject_damaged_vectors()
        candidates = int(depth * self._k_factor)  # more than `depth` only in a refined index
        query_vectors = np.ascontiguousarray(queries, dtype=np.float32)
        with self._lock:
            self._set_search_parameters(candidates)
            if self._gpu_index is not None and candidates <= GPU_DEPTH:
                self._set_gpu_search_parameters(self._gpu_index)
                scores, rows = self._gpu_index.search(query_vectors, depth)
            else:
                scores, rows = self._index.search(query_vectors, depth)
        expected_hits = min(depth, len(self))
        if (rows[:, :expected_hits] < 0).any():  # too few hits: is a damaged vector the reason?
            self._reject_damaged_vectors()
        if self.metric is Metric.L2:
            scores = -scores  # faiss returns distances, and higher scores are closer
        return in_order(scores, rows)

    def _set_search_parameters(self, candidates: int) -> None:
        """Set the parameters of this search in the index, and in refined indexes on a GPU."""
        for graph in self._graphs:
            graph.hnsw.efSearch = self._ef_search or max(DEFAULT_EF, candidates)
        for ivf in self._ivfs:
            ivf.nprobe = self._nprobe_of(ivf)
        for refined in self._refined:
            refined.k_factor = self._k_factor

    def _set_gpu_search_parameters(self, gpu_index: Any) -> None:
        """Set the number of inverted lists that the copy of the index on a GPU searches."""
        if self._ivfs:
            nprobe = self._nprobe_of(self._ivfs[0])
            load_faiss().GpuParameterSpace().set_index_parameter(gpu_index, "nprobe", nprobe)

    def _reject_damaged_training(self) -> None:
        """Reject an index whose centroids, codebooks or scales are not finite.

        faiss would leave out the passages that they encode without a word.
        """
        faiss = load_faiss()
        for index in self._indexes:
            arrays = _trained_numbers(index)
            if isinstance(index, faiss.IndexIVF):
                arrays.append(index.quantizer.reconstruct_n(0, index.nlist))
            if not all(np.isfinite(array).all() for array in arrays):
                raise InputError(
                    self._path,
                    None,
                    "centroids or codebooks that are not finite",
                    "finite numbers",
                    "the file is damaged: build the index again with --overwrite",
                )

    def _reject_damaged_vectors(self) -> None:
        """Raise a NotFiniteError for the first stored vector that is not finite.

        faiss leaves it out of all hits without a word. The vectors are read once: before the first
        search of many queries, or when a query has too few hits. Vectors stored as codes are not
        read: they are finite, as their codebooks are.
        """
        if self._vectors_are_finite.is_set():
            return
        for index in self._indexes:
            if _stores_floats(index):
                _reject_not_finite(index)
        self._vectors_are_finite.set()

    def reconstruct(self, rows: Rows) -> Vectors:
        """Return the (N, D) vectors of (N,) rows; those that are stored as codes are decoded."""
        with faiss_errors(lambda reason: UsageError(f"faiss cannot return the vectors ({reason})")):
            for ivf in self._ivfs:
                ivf.make_direct_map()  # in which list a row is
            vectors: Vectors = self._index.reconstruct_batch(rows)
        return vectors


def _refined_indexes(indexes: Iterable[Any]) -> list[Any]:
    """Return those of some indexes that score candidates again by more precise vectors."""
    faiss = load_faiss()
    return [index for index in indexes if isinstance(index, faiss.IndexRefine)]


def _copy_on_gpu(index: Any, device: str) -> Any:
    """Return a copy of an index on a GPU; None for the CPU, or if faiss has no GPU version."""
    if device == "auto":
        device = "cuda" if load_faiss().get_num_gpus() else "cpu"
    if device == "cpu":
        return None
    return on_gpu(index, device, cpu_option="--set index-device=cpu")


def _trained_numbers(index: Any) -> list[NDArray[np.float32]]:
    """Return the numbers that an index has learned: codebooks, scales and rotations."""
    faiss = load_faiss()
    cpp_vectors = []  # std::vector<float>
    if hasattr(index, "pq"):  # product quantizer
        cpp_vectors.append(index.pq.centroids)
    if hasattr(index, "sq"):  # scalar quantizer
        cpp_vectors.append(index.sq.trained)
    if isinstance(index, faiss.IndexPreTransform):
        for number in range(index.chain.size()):
            transform = faiss.downcast_VectorTransform(index.chain.at(number))
            if isinstance(transform, faiss.LinearTransform):
                cpp_vectors += [transform.A, transform.b]
    return [faiss.vector_to_array(cpp_vector) for cpp_vector in cpp_vectors]


def _stores_floats(index: Any) -> bool:
    """Return whether an index keeps vectors as floating-point numbers, not as codes."""
    faiss = load_faiss()
    if isinstance(index, faiss.IndexFlat | faiss.IndexIVFFlat):
        return True
    half_precisions = (faiss.ScalarQuantizer.QT_fp16, faiss.ScalarQuantizer.QT_bf16)
    return hasattr(index, "sq") and index.sq.qtype in half_precisions


def _reject_not_finite(index: Any) -> None:
    """Raise a NotFiniteError for the first vector of an index that is not finite."""
    for first_row in range(0, index.ntotal, CHECKED_ROWS):
        count = min(CHECKED_ROWS, index.ntotal - first_row)
        is_finite = np.isfinite(index.reconstruct_n(first_row, count)).all(axis=1)
        if not is_finite.all():
            raise NotFiniteError(first_row + int(np.argmin(is_finite)))
