"""faiss: building and searching its indexes, and the memory that they need.

Inverted lists that outgrow memory go to files, which are merged at the end: into one file by faiss'
`merge_from` if that fits in memory, else into a second file, `index.ivfdata`, by faiss'
`OnDiskInvertedLists`. Index folders that were filled from one template, a trained index, share
rotation, centroids and codes, and are merged in the same way.
"""

import hashlib
import logging
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain, islice
from pathlib import Path
from threading import Event, Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.filesize import decimal

from denserk.config.options import NOTHING, from_json, given_fields, spelled
from denserk.config.retrieval import IndexSettings, IndexType, Metric, SearchSettings
from denserk.errors import (
    DenserkError,
    InputError,
    Interrupted,
    MismatchError,
    NotFiniteError,
    OutputError,
    UsageError,
)
from denserk.extras import require
from denserk.index.folder import DOCID, INDEX, part_names, passage_of, require_same
from denserk.index.searcher import Rows, Scores, Vectors, in_order
from denserk.io.corpus import IdLedger
from denserk.io.files import read_text_lines, temporary_beside, whole_binary, whole_text
from denserk.io.manifest import Kind, Manifest, read_manifest, vectors_per_passage
from denserk.io.vectors import check_index
from denserk.io.versions import read_whole
from denserk.reporting import track

logger = logging.getLogger(__name__)

GPU_DEPTH = 2048  # faiss on a GPU returns no more hits than this
DEFAULT_EF = 64  # hnsw: breadth of a shallow search
DEFAULT_K_FACTOR = 4.0  # RFlat, Refine(...): candidates that are scored again for each hit
ADD_ROWS = 65_536  # vectors given to faiss at once
FEW_QUERIES = 32  # a search of more reads all stored vectors once, to know that they are finite
GOOD_TRAINING = 39  # training vectors per centroid that faiss asks for
FLOAT = LINK = 4
ID_BYTES = 8
GROWTH = 2  # an array that grows is copied into a larger one: both are there for a moment
# least size of the inverted lists that are written to a file while an index is filled
LEAST_SPILL = 32 << 20
# settings that a template prescribes
TRAINED = ("type", "factory", "metric", "M", "efC", "pq_m", "pq_nbits", "nlist", "train_size")
MEMORY = Path("/proc/meminfo")
GROUP = Path("/sys/fs/cgroup")  # of a container


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
    what = "a file that faiss cannot read"
    with faiss_errors(lambda why: InputError(path, None, f"{what} ({why})", "a faiss index")):
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
    for name in ("index", "base_index", "refine_index", "quantizer", "storage"):
        inner = getattr(index, name, None)
        if isinstance(inner, faiss.Index):
            yield from inner_indexes(inner)


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
            for first in range(0, part.ntotal, ADD_ROWS):
                rows = part.reconstruct_n(first, min(ADD_ROWS, part.ntotal - first))
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


def available_bytes() -> int | None:
    """Return the bytes of memory that are available now; None if the system does not report it."""
    found: list[int] = []
    with suppress(OSError):
        lines = MEMORY.read_text(encoding="ascii").splitlines()
        found += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    with suppress(OSError, ValueError):  # no container; "max", which is no limit
        limit, used = (int((GROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        stat = dict(line.split() for line in (GROUP / "memory.stat").read_text().splitlines())
        files = int(stat["inactive_file"]) + int(stat["active_file"])  # given back when asked for
        found.append(max(0, limit - used + files))
    return min(found, default=None)


def require_memory(task: str, needs: Mapping[str, int], hint: str) -> None:
    """Log the memory that a task needs, in bytes of each part, and reject it if there is less."""
    total = sum(needs.values())
    parts = ", ".join(f"{what} {decimal(size)}" for what, size in needs.items() if size)
    message = f"{task} needs {decimal(total)} of memory ({parts})"
    available = available_bytes()
    if available is not None and total > available:
        raise UsageError(f"{message}, and {decimal(available)} are available", hint)
    logger.info(message)


def check_memory(factory: str, index: Any, count: int, settings: IndexSettings) -> None:
    """Log the memory that filling an index with `count` vectors needs; reject what cannot fit."""
    sample = 0 if index.is_trained else min(count, settings.train_size)
    needs = {"training": 2 * FLOAT * index.d * sample}  # the vectors and their residuals
    ivf = mergeable_ivf(index)
    if settings.device == "cpu" and ivf is not None:
        needs["centroids"] = stored_bytes(ivf.quantizer, ivf.nlist)
        lists = count * (ivf.code_size + ID_BYTES)
        needs["inverted lists"] = GROWTH * min(lists, spill_bytes())
    else:
        needs["the index"] = GROWTH * stored_bytes(index, count)
    smaller = "give a smaller --set train-size, or fewer lists"
    other = 'give --factory "IVF...,PQ...": lists go to the disk while it is filled'
    require_memory(f"building {factory}", needs, other if ivf is None else smaller)


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


def spill_bytes() -> int:
    """Return the size of inverted lists in memory at which they are written to a file."""
    return max(LEAST_SPILL, (available_bytes() or 0) // 8)


def empty_index(count: int, dimension: int, settings: IndexSettings) -> tuple[str, Any]:
    """Return the factory string, with {lists} filled in for `count` vectors, and an empty index."""
    faiss = load_faiss()
    lists = settings.nlist or max(1, min(int(4 * count**0.5), count // GOOD_TRAINING))
    quantizer = f"PQ{settings.pq_m}x{settings.pq_nbits}"
    factories = {
        IndexType.FLAT: "Flat",
        IndexType.HNSW: f"HNSW{settings.M},Flat",
        IndexType.IVF: f"IVF{lists},Flat",
        IndexType.PQ: quantizer,
        IndexType.HNSWPQ: f"HNSW{settings.M}_{quantizer}",
        IndexType.SQ8: "SQ8",
        IndexType.SQFP16: "SQfp16",
    }
    factory = (settings.factory or factories[settings.type]).replace("{lists}", str(lists))
    metric = faiss.METRIC_INNER_PRODUCT if settings.similarity is Metric.INNER else faiss.METRIC_L2
    with faiss_errors(lambda reason: _rejected(factory, reason)):
        index = faiss.index_factory(dimension, factory, metric)
    for part in inner_indexes(index):
        if hasattr(part, "do_polysemous_training"):
            part.do_polysemous_training = False  # takes minutes, for a search that nobody asks for
        if isinstance(part, faiss.IndexHNSW):
            part.hnsw.efConstruction = settings.efC
    return factory, index


def _rejected(factory: str, reason: str) -> UsageError:
    few = "use --type flat, a smaller --nlist or --set pq-nbits, or a larger --set train-size"
    hint = "see faiss's guide to factory strings"
    if "training points" in reason:
        hint = few
    elif "subquantizers" in reason:
        hint = "give --set pq-m=N, a divisor of the vectors' dimension"
    return UsageError(f"faiss rejects {factory}: {reason}", hint)


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


def build(vectors: Vectors, path: Path, settings: IndexSettings, factory: str, index: Any) -> None:
    """Train, fill and write an index of (N, D) vectors, which are added in blocks."""
    faiss, count = load_faiss(), len(vectors)
    spilled: list[Path] = []
    if settings.threads:
        faiss.omp_set_num_threads(settings.threads)

    def spill() -> None:
        spilled.append(temporary_beside(path))
        write_index(index, spilled[-1])
        index.reset()

    try:
        with (
            faiss_errors(lambda reason: _rejected(factory, reason)),
            track(f"adding to {factory}", count, "vectors") as progress,
        ):
            moved = None
            if settings.device != "cpu":
                moved = on_gpu(index, settings.device, cpu_option="--device cpu")
            filled = index if moved is None else moved
            if not filled.is_trained:
                size = min(count, settings.train_size)
                logger.info(f"training on {size:,} vectors")
                rows = np.random.default_rng(settings.seed).choice(count, size, replace=False)
                filled.train(vectors[np.sort(rows)])
            ivf = mergeable_ivf(index) if moved is None else None
            limit = spill_bytes()
            for first in range(0, count, ADD_ROWS):
                block = vectors[first : first + ADD_ROWS]
                filled.add(block)
                progress.advance(len(block))
                if ivf is not None and index.ntotal * (ivf.code_size + ID_BYTES) >= limit:
                    spill()
            if spilled:
                spill()
                merge_files(index, spilled, path)
            else:
                write_index(index if moved is None else faiss.index_gpu_to_cpu(moved), path)
    finally:
        for file in spilled:
            file.unlink(missing_ok=True)


def write_index(index: Any, path: Path) -> None:
    """Write an index to a temporary file, and rename it."""
    with whole_binary(path) as handle, faiss_errors(lambda reason: _unwritten(path, reason)):
        load_faiss().write_index(index, handle.name)


def _unwritten(path: Path, reason: str) -> OutputError:
    return OutputError(f"{path} cannot be written: {reason}")


def merge_files(index: Any, files: Sequence[Path], path: Path) -> None:
    """Merge the vectors of index files into an empty index, their template, and write it to `path`.

    Ids, from 0 in each file, are renumbered. Lists too large for memory go to a second file beside
    `path`.
    """
    sizes = [file.stat().st_size for file in files]
    needed, available = sum(sizes) + max(sizes), available_bytes()
    separate = any(lists_file(file).exists() for file in files)
    if not separate and (available is None or needed <= available):
        with track("merging indexes", len(files), "files") as progress:
            for file in files:
                index.merge_from(read_index(file, mapped=False), index.ntotal)
                progress.advance()
        write_index(index, path)
        return

    faiss, ivf, target = load_faiss(), mergeable_ivf(index), lists_file(path)
    logger.info(f"inverted lists go to {target.name}: open the index with denserk")
    parts = [read_index(file) for file in files]
    count = sum(part.ntotal for part in parts)
    size, free = count * (ivf.code_size + ID_BYTES), shutil.disk_usage(target.parent).free
    if size > free:  # faiss writes through a memory map: a full disk would kill the process
        raise _unwritten(target, f"it takes {decimal(size)}, and {decimal(free)} are free")
    sources = faiss.InvertedListsPtrVector()
    for part in parts:
        sources.push_back(mergeable_ivf(part).invlists)
    with faiss_errors(lambda reason: _unwritten(target, reason)):
        lists = faiss.OnDiskInvertedLists(ivf.nlist, ivf.code_size, str(target))
        lists.merge_from_multiple(sources.data(), sources.size())
    # faiss' own `shift_ids` is wrong for files of different sizes (faiss 1.15)
    for number in range(ivf.nlist):
        first, offset = 0, 0
        ids = faiss.rev_swig_ptr(lists.get_ids(number), lists.list_size(number))
        for part, source in enumerate(parts):
            last = first + sources.at(part).list_size(number)
            ids[first:last] += offset
            first, offset = last, offset + source.ntotal
    lists.filename = target.name  # the folder can be moved
    index.ntotal = ivf.ntotal = count
    ivf.replace_invlists(lists, True)
    lists.this.disown()  # the index deletes them
    write_index(index, path)


@dataclass(frozen=True)
class Template:
    """A trained index without vectors, read from an index folder."""

    name: str
    manifest: Manifest
    factory: str
    index: Any  # None where it is not needed
    sha256: str  # of the empty index; equal for indexes with the same training

    def settings(self, given: IndexSettings) -> IndexSettings:
        """Return the settings given, completed by those that the index was trained with."""
        made = from_json(IndexSettings, self.manifest.settings)
        values = {name: getattr(made, name) for name in TRAINED} | {"target_recall": None}
        values["factory"] = self.factory if made.target_recall else made.factory
        for name in values.keys() & given_fields(given):
            asked, option = getattr(given, name), spelled(name, IndexSettings)
            if asked not in (values[name], self.factory):
                trained = f"{self.name} was trained as {self.factory}, with {name} {values[name]}"
                hint = f"leave {option} out, or train a new index"
                raise UsageError(f"{option} {asked}: {trained}", hint)
        return replace(given, **values)


def read_template(name: str) -> Template:
    """Read an index folder without its vectors; inverted lists stay on the disk."""
    return read_whole([name], partial(_read_template, name))


def _read_template(name: str) -> Template:
    manifest, path = read_manifest(name, Kind.INDEX), Path(name) / INDEX
    check_index(Path(name), manifest)
    if not path.is_file():
        raise MismatchError(f"{name} is a BM25 index, not an index of vectors")
    faiss, factory = load_faiss(), manifest.contents.get("factory", "flat")
    index = read_index(path)
    if factory == "flat" or faiss.index_factory(index.d, factory).is_trained:
        hint = "index the vectors with --type or --factory"
        raise UsageError(f"{name} is {factory}, which has no training to take over", hint)
    ivf = mergeable_ivf(index)
    if ivf is None:  # what is mapped cannot be emptied
        index = read_index(path, mapped=False)
    else:
        lists = faiss.ArrayInvertedLists(ivf.nlist, ivf.code_size)
        ivf.replace_invlists(lists, True)
        lists.this.disown()  # the index deletes them
    index.reset()
    digest = hashlib.sha256(faiss.serialize_index(index)).hexdigest()
    return Template(name, manifest, factory, index, digest)


def open_parts(names: Sequence[str]) -> list[Template]:
    """Check index folders that are to be merged; only the first keeps its index in memory."""
    parts: list[Template] = []
    for name in names:
        part = read_template(name)
        if mergeable_ivf(part.index) is None:
            lists = "IVF...,Flat, IVF...,PQ... or IVF...,SQ8, also behind OPQ or PCA"
            hint = f"index the vectors themselves, or build the parts with inverted lists: {lists}"
            raise UsageError(f"{name} is {part.factory}, which cannot be merged", hint)
        if parts and part.sha256 != parts[0].sha256:
            what = f"{parts[0].name} and {name} have different training: they cannot be merged"
            raise MismatchError(what, f"build {name} again with --trained-as {parts[0].name}")
        parts.append(replace(part, index=None) if parts else part)
    require_same("vectors per passage", [(p.name, vectors_per_passage(p.manifest)) for p in parts])
    return parts


def merge_folders(parts: Sequence[Template], folder: Path) -> None:
    """Merge index folders into the first one's template: write the files `docid` and `index`."""
    size, ids = vectors_per_passage(parts[0].manifest), IdLedger()

    def passages(part: Template) -> Iterator[str]:
        lines = read_text_lines(Path(part.name) / DOCID)
        return (passage_of(line.rstrip(), size) for _, line in islice(lines, 0, None, size))

    with whole_text(folder / DOCID) as out, track("merging ids", None, "passages") as progress:
        for part in parts:
            ids.start(part.name)
            for docid in passages(part):
                ids.extend([docid])
                out.writelines(f"{line}\n" for line in part_names(docid, size))
                progress.advance()
        ids.refuse_repeat(lambda: chain.from_iterable(map(passages, parts)))
    merge_files(parts[0].index, [Path(part.name) / INDEX for part in parts], folder / INDEX)
