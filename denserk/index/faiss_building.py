"""Build faiss indexes: factory strings, memory needed, training, filling, and merging of files.

Inverted lists that outgrow memory go to files, which are merged at the end: into one file by faiss'
`merge_from` if that fits in memory, else into a second file, `index.ivfdata`, by faiss'
`OnDiskInvertedLists`.
"""

import logging
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from denserk.config.retrieval import IndexSettings, IndexType, Metric
from denserk.errors import InputError, OutputError, UsageError
from denserk.index.faiss_index import (
    faiss_errors,
    inner_indexes,
    lists_file,
    load_faiss,
    on_gpu,
    read_index,
    reason,
)
from denserk.index.hits import Rows, StoredVectors
from denserk.index.memory import available_bytes, in_units, require_memory
from denserk.io.files import temporary_beside, whole_binary
from denserk.reporting import track

logger = logging.getLogger(__name__)

ADD_ROWS = 65_536  # vectors given to faiss at once
GOOD_TRAINING = 39  # training vectors per centroid that faiss asks for
FLOAT = LINK = 4
ID_BYTES = 8
GROWTH = 2  # an array that grows is copied into a larger one: both are there for a moment
# least size of the inverted lists that are written to a file while an index is filled
LEAST_SPILL = 32 << 20


def factory_string(settings: IndexSettings, count: int) -> str:
    """Return the factory string that faiss makes an index from."""
    if settings.factory:
        return settings.factory
    lists = settings.nlist or max(1, min(int(4 * count**0.5), count // GOOD_TRAINING))
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


def empty_index(count: int, dimension: int, settings: IndexSettings) -> tuple[str, Any]:
    """Return a factory string, and the index that faiss makes of it."""
    faiss, factory = load_faiss(), factory_string(settings, count)
    metric = faiss.METRIC_INNER_PRODUCT if settings.metric is Metric.INNER else faiss.METRIC_L2
    with _faiss_rejections(factory):
        index = faiss.index_factory(dimension, factory, metric)
    for part in inner_indexes(index):
        if hasattr(part, "do_polysemous_training"):
            part.do_polysemous_training = False  # takes minutes, for a search that nobody asks for
        if isinstance(part, faiss.IndexHNSW):
            part.hnsw.efConstruction = settings.efC
    return factory, index


@contextmanager
def _faiss_rejections(factory: str) -> Iterator[None]:
    """Turn what faiss raises while building into a UsageError."""
    try:
        yield
    except RuntimeError as error:
        raise UsageError(
            f"faiss rejects {factory}: {reason(error)}", "see faiss's guide to factory strings"
        ) from None


def mergeable_ivf(index: Any) -> Any:
    """Return the IVF part whose inverted lists hold all that grows in an index, or None."""
    faiss = load_faiss()
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexPreTransform):
        return mergeable_ivf(index.index)
    if (
        not isinstance(index, faiss.IndexIVF)
        or isinstance(index, faiss.IndexIVFPQR | faiss.IndexIVFFlatDedup)
        or isinstance(faiss.downcast_index(index.quantizer), faiss.IndexIVF)
    ):
        return None
    # packed (fast scan) and other lists keep their entries elsewhere
    kinds = (faiss.ArrayInvertedLists, faiss.OnDiskInvertedLists)
    return index if type(faiss.downcast_InvertedLists(index.invlists)) in kinds else None


def check_memory(factory: str, index: Any, count: int, settings: IndexSettings) -> None:
    """Log the memory that filling an empty index with `count` vectors needs."""
    if mergeable_ivf(index) is not None:
        hint = "give a smaller --set train-size, or fewer lists"
    else:
        lists = max(1, int(4 * count**0.5))
        codes = next(m for m in range(max(1, index.d // 8), 0, -1) if index.d % m == 0)
        hint = f'give --factory "IVF{lists},PQ{codes}": lists go to the disk while it is filled'
    require_memory(f"building {factory}", building_needs(index, count, settings), hint)


def building_needs(index: Any, count: int, settings: IndexSettings) -> Counter[str]:
    """Return the memory that training and filling an empty index with `count` vectors take.

    Interpreter and libraries are not counted.
    """
    faiss = load_faiss()
    sample = 0 if index.is_trained else min(count, settings.train_size)
    needs = Counter({"the training sample and its residuals": 2 * FLOAT * index.d * sample})
    for ivf in inner_indexes(index):
        if isinstance(ivf, faiss.IndexIVF):
            needs["the centroids"] += ivf.nlist * _row_bytes(ivf.quantizer)
    held = GROWTH * count * _row_bytes(index)
    if settings.device == "cpu" and mergeable_ivf(index) is not None:
        needs["inverted lists"] = min(held, GROWTH * spill_bytes())
    else:
        needs["the index"] = held
    return needs


def _row_bytes(index: Any) -> int:
    """Return the bytes that one vector adds to an index."""
    faiss = load_faiss()
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexPreTransform):
        return _row_bytes(index.index)
    if isinstance(index, faiss.IndexRefine):
        return _row_bytes(index.base_index) + _row_bytes(index.refine_index)
    if isinstance(index, faiss.IndexHNSW):
        links = LINK * (index.hnsw.nb_neighbors(0) + 1) + ID_BYTES
        return _row_bytes(index.storage) + int(links)
    if isinstance(index, faiss.IndexIVF):
        return int(index.code_size) + ID_BYTES
    return int(getattr(index, "code_size", FLOAT * index.d))


def spill_bytes() -> int:
    """Return the size of inverted lists in memory at which they are written to a file."""
    available = available_bytes()
    return LEAST_SPILL if available is None else max(LEAST_SPILL, available // 8)


def build(
    vectors: StoredVectors, path: Path, settings: IndexSettings, factory: str, index: Any
) -> None:
    """Train, fill and write an index of (N, D) vectors.

    Vectors are added in blocks. Inverted lists that grow large are written to files; codes and
    graphs of other types are held in memory.
    """
    faiss = load_faiss()
    if settings.threads:
        faiss.omp_set_num_threads(settings.threads)
    with _faiss_rejections(factory):
        moved = None if settings.device == "cpu" else on_gpu(index, settings.device)
        filled = index if moved is None else moved
        if not filled.is_trained:
            _train(index, filled, vectors, settings, factory)
        if moved is None and mergeable_ivf(index) is not None:
            _fill_and_spill(index, vectors, path, factory)
            return
        for block in _blocks(vectors, factory):
            filled.add(block)
        write_index(index if moved is None else faiss.index_gpu_to_cpu(moved), path)


def _train(
    index: Any, filled: Any, vectors: StoredVectors, settings: IndexSettings, factory: str
) -> None:
    """Train an index (`filled`: the same, or its GPU version) on a sample, in order of the rows."""
    count = len(vectors)
    rows: slice | Rows = slice(None)
    if count > settings.train_size:
        draw = np.random.default_rng(settings.seed)
        # nothing else may keep what is drawn: it is a view of the numbers of all rows
        rows = np.sort(draw.choice(count, settings.train_size, replace=False))
    sample = vectors[rows]
    centroids = _centroids(index)
    if len(sample) < centroids:
        raise InputError(
            factory,
            None,
            f"{len(sample):,} training vectors",
            f"at least {centroids:,}, one per centroid, better {GOOD_TRAINING * centroids:,}",
            "use --type flat, a smaller --nlist or --set pq-nbits, or a larger --set train-size",
        )
    if len(sample) < GOOD_TRAINING * centroids:
        logger.warning(
            f"{len(sample):,} vectors train {centroids:,} centroids; {GOOD_TRAINING * centroids:,} "
            "or more would train them well: --type flat is exact and suits a small collection"
        )
    logger.info(f"training on {len(sample):,} vectors")
    filled.train(sample)


def _centroids(index: Any) -> int:
    """Return the largest number of k-means centroids of an index; faiss then prints no warnings."""
    faiss, found = load_faiss(), [0]
    for part in inner_indexes(index):
        if isinstance(part, faiss.IndexIVF) and part.quantizer_trains_alone != "\x01":
            found.append(part.nlist)
            part.cp.min_points_per_centroid = 1
        if hasattr(part, "pq"):
            found.append(part.pq.ksub)
            part.pq.cp.min_points_per_centroid = 1
    return max(found)


def _blocks(vectors: StoredVectors, factory: str) -> Iterator[Any]:
    """Yield (ADD_ROWS, D) blocks, and show the progress."""
    with track(f"adding to {factory}", len(vectors), "vectors") as progress:
        for first in range(0, len(vectors), ADD_ROWS):
            block = vectors[first : first + ADD_ROWS]
            yield block
            progress.advance(len(block))


def _fill_and_spill(index: Any, vectors: StoredVectors, path: Path, factory: str) -> None:
    """Fill an index with inverted lists, which go to files when they grow large, and write it."""
    limit, code_size = spill_bytes(), mergeable_ivf(index).code_size
    spilled: list[Path] = []

    def spill() -> None:
        spilled.append(temporary_beside(path))
        write_index(index, spilled[-1])
        index.reset()

    try:
        for block in _blocks(vectors, factory):
            index.add(block)
            if index.ntotal * (code_size + ID_BYTES) >= limit:
                spill()
        if spilled:
            spill()
            merge_files(index, spilled, path)
        else:
            write_index(index, path)
    finally:
        for file in spilled:
            with suppress(OSError):
                file.unlink()


def write_index(index: Any, path: Path) -> None:
    """Write an index to a temporary file, and rename it."""
    with whole_binary(path) as handle, _write_errors(path):
        load_faiss().write_index(index, handle.name)


@contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    """Turn what faiss raises while writing into an OutputError."""
    try:
        yield
    except RuntimeError as error:
        raise OutputError(f"{path} cannot be written: {reason(error)}") from None


def merge_files(index: Any, files: Sequence[Path], path: Path) -> None:
    """Merge the vectors of index files into an empty index, and write it.

    Args:
        index: the template of all files, of a `mergeable_ivf` type.
        files: in the order of the vectors; their ids, from 0 in each, are renumbered.
        path: the index file. Lists too large for memory go to a second file beside it.
    """
    sizes = [file.stat().st_size for file in files]
    needed, available = sum(sizes) + max(sizes), available_bytes()
    separate = any(lists_file(file).exists() for file in files)
    if separate or (available is not None and needed > available):
        logger.info(f"inverted lists go to {lists_file(path)}: open the index with denserk")
        _merge_on_disk(index, files, lists_file(path))
    else:
        with track("merging indexes", len(files), "files") as progress:
            for file in files:
                with faiss_errors(file):
                    part = load_faiss().read_index(str(file))
                index.merge_from(part, index.ntotal)
                progress.advance()
    write_index(index, path)


def _merge_on_disk(index: Any, files: Sequence[Path], target: Path) -> None:
    """Merge the inverted lists of index files into the file `target`, used by `index` from then."""
    faiss = load_faiss()
    parts = [read_index(file) for file in files]
    ivf = mergeable_ivf(index)
    count = sum(part.ntotal for part in parts)
    size, free = count * (ivf.code_size + ID_BYTES), shutil.disk_usage(target.parent).free
    if size > free:  # faiss writes through a memory map: a full disk would kill the process
        raise OutputError(
            f"{target} cannot be written: it takes {in_units(size)}, and {in_units(free)} are free"
        )
    sources = faiss.InvertedListsPtrVector()
    for part in parts:
        sources.push_back(mergeable_ivf(part).invlists)
    with _write_errors(target):
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
