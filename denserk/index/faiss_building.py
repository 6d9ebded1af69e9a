"""Build faiss indexes: factory strings, memory needed, training, filling."""

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from denserk.config.retrieval import IndexSettings, IndexType, Metric
from denserk.errors import InputError, MismatchError, UsageError
from denserk.index.faiss_index import inner_indexes, load_faiss, on_gpu, reason
from denserk.index.faiss_merging import ID_BYTES, Template, merge_files, mergeable_ivf, write_index
from denserk.index.memory import available_bytes, require_memory
from denserk.index.vector_index import Rows, StoredVectors
from denserk.io.files import temporary_beside
from denserk.reporting import track

logger = logging.getLogger(__name__)

# vectors given to faiss at once
ADD_ROWS = 65_536
# training vectors per centroid that faiss asks for
GOOD_TRAINING = 39
FLOAT = LINK = 4
# an array that grows is copied into a larger one: both are there for a moment
GROWTH = 2
# faiss leaves out tables of distances that are larger
TABLE_BYTES = 1 << 31
# least size of the inverted lists that are written to a file while an index is filled
LEAST_SPILL = 32 << 20


def factory_string(settings: IndexSettings, count: int, dimension: int) -> str:
    """Return the factory string that faiss makes an index from.

    Raises:
        UsageError: the number of sub-quantisers does not divide the dimension.

    >>> factory_string(IndexSettings(type=IndexType.IVF), 10_000, 384)
    'IVF256,Flat'
    """
    if settings.factory:
        return settings.factory
    if settings.type in (IndexType.PQ, IndexType.HNSWPQ) and dimension % settings.pq_m:
        best = next(m for m in range(min(settings.pq_m, dimension), 0, -1) if dimension % m == 0)
        raise UsageError(
            f"--set pq-m={settings.pq_m} does not divide the dimension {dimension}",
            f"for example --set pq-m={best}",
        )
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


def check_memory(
    count: int, dimension: int, settings: IndexSettings, template: Template | None = None
) -> None:
    """Log the memory that building an index of `count` vectors needs.

    Raises:
        UsageError: the machine has less; or as for `build`.
        MismatchError: as for `build`.
    """
    factory, index = _empty_index(count, dimension, settings, template)
    if mergeable_ivf(index) is not None:
        hint = "give a smaller --set train-size, or fewer lists"
    else:
        lists = max(1, int(4 * count**0.5))
        codes = next(m for m in range(max(1, dimension // 8), 0, -1) if dimension % m == 0)
        hint = f'give --factory "IVF{lists},PQ{codes}": lists go to the disk while it is filled'
    require_memory(f"building {factory}", building_needs(index, count, settings), hint)


def building_needs(index: Any, count: int, settings: IndexSettings) -> Counter[str]:
    """Return the memory that training and filling an empty index with `count` vectors take.

    Interpreter and libraries are not counted.
    """
    faiss = load_faiss()
    sample = 0 if index.is_trained else min(count, settings.train_size)
    needs = Counter({"the training sample and its residuals": 2 * FLOAT * index.d * sample})
    for ivf in inner_indexes(faiss, index):
        if isinstance(ivf, faiss.IndexIVF):
            needs["the centroids"] += ivf.nlist * _row_bytes(faiss, ivf.quantizer)
        if isinstance(ivf, faiss.IndexIVFPQ) and ivf.metric_type == faiss.METRIC_L2:
            table = FLOAT * ivf.nlist * ivf.pq.M * ivf.pq.ksub
            needs["tables of distances"] += table if table <= TABLE_BYTES else 0
    held = GROWTH * count * _row_bytes(faiss, index)
    if settings.device == "cpu" and mergeable_ivf(index) is not None:
        needs["inverted lists"] = min(held, GROWTH * spill_bytes())
    else:
        needs["the index"] = held
    return needs


def _row_bytes(faiss: Any, index: Any) -> int:
    """Return the bytes that one vector adds to an index."""
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexPreTransform):
        return _row_bytes(faiss, index.index)
    if isinstance(index, faiss.IndexRefine):
        return _row_bytes(faiss, index.base_index) + _row_bytes(faiss, index.refine_index)
    if isinstance(index, faiss.IndexHNSW):
        links = LINK * (index.hnsw.nb_neighbors(0) + 1) + ID_BYTES
        return _row_bytes(faiss, index.storage) + int(links)
    if isinstance(index, faiss.IndexIVF):
        return int(index.code_size) + ID_BYTES
    if isinstance(index, faiss.IndexFlatCodes):
        return int(index.code_size)
    return FLOAT * int(index.d)


def spill_bytes() -> int:
    """Return the size of inverted lists in memory at which they are written to a file."""
    available = available_bytes()
    return LEAST_SPILL if available is None else max(LEAST_SPILL, available // 8)


def build(
    vectors: StoredVectors, path: Path, settings: IndexSettings, template: Template | None = None
) -> str:
    """Train, fill and write an index of (N, D) vectors; return its factory string.

    Vectors are added in blocks. Inverted lists that grow large are written to files and merged at
    the end (see `merge_files`); codes and graphs of other types are held in memory.

    Args:
        vectors: the vectors.
        path: the index file.
        settings: type, metric, device of the index.
        template: is filled instead of training.

    Raises:
        InputError: too few vectors to train on.
        UsageError: faiss does not know the factory string, or rejects the metric.
        MismatchError: the template has another dimension.
    """
    faiss = load_faiss()
    if settings.threads:
        faiss.omp_set_num_threads(settings.threads)
    count, dimension = vectors.shape
    factory, index = _empty_index(count, dimension, settings, template)
    with _faiss_rejections(factory):
        filled = index
        if settings.device != "cpu" and (moved := on_gpu(faiss, index, settings.device)):
            filled = moved
        elif settings.device != "cpu":
            logger.info(f"faiss builds {factory} on the CPU: it has no GPU version of it")
        if not filled.is_trained:
            _train(index, filled, vectors, settings, factory)
        if filled is index and mergeable_ivf(index) is not None:
            _fill_and_spill(index, vectors, path, factory)
            return factory
        for block in _blocks(vectors, factory):
            filled.add(block)
        write_index(index if filled is index else faiss.index_gpu_to_cpu(filled), path)
    return factory


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


@contextmanager
def _faiss_rejections(factory: str) -> Iterator[None]:
    """Turn what faiss raises while building into a UsageError."""
    try:
        yield
    except RuntimeError as error:
        raise UsageError(
            f"faiss rejects {factory}: {reason(error)}", "see faiss's guide to factory strings"
        ) from None


def _empty_index(
    count: int, dimension: int, settings: IndexSettings, template: Template | None
) -> tuple[str, Any]:
    """Return a factory string and an index without vectors."""
    if template is not None:
        if template.index.d != dimension:
            raise MismatchError(
                f"{template.name} was trained on vectors of {template.index.d} dimensions, "
                f"and the input has {dimension}",
                "index vectors of the model that it was trained for",
            )
        return template.factory, template.index
    faiss, factory = load_faiss(), factory_string(settings, count, dimension)
    metric = faiss.METRIC_INNER_PRODUCT if settings.metric is Metric.INNER else faiss.METRIC_L2
    with _faiss_rejections(factory):
        index = faiss.index_factory(dimension, factory, metric)
    for part in inner_indexes(faiss, index):
        if hasattr(part, "do_polysemous_training"):
            part.do_polysemous_training = False  # takes minutes, for a search that nobody asks for
        if isinstance(part, faiss.IndexHNSW):
            part.hnsw.efConstruction = settings.efC
    return factory, index


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
    for part in inner_indexes(faiss, index):
        if isinstance(part, faiss.IndexIVF) and part.quantizer_trains_alone != "\x01":
            found.append(part.nlist)
            part.cp.min_points_per_centroid = 1
        if hasattr(part, "pq"):
            found.append(part.pq.ksub)
            part.pq.cp.min_points_per_centroid = 1
    return max(found)
