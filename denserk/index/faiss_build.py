"""Building an index of faiss, and the memory that it needs.

Inverted lists that outgrow memory go to files, which are merged at the end.
"""

import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from denserk.config.retrieval import IndexSettings, IndexType, Metric
from denserk.errors import UsageError
from denserk.index import memory
from denserk.index.engines import Vectors
from denserk.index.faiss_files import merge_files, write_index
from denserk.index.faiss_library import (
    FLOAT_BYTES,
    ID_BYTES,
    faiss_errors,
    inner_indexes,
    load_faiss,
    mergeable_ivf,
    on_gpu,
    stored_bytes,
)
from denserk.io.written_files import temporary_beside
from denserk.reporting import Progress, track

logger = logging.getLogger(__name__)

ADD_ROWS = 65_536  # vectors given to faiss at once
GOOD_TRAINING = 39  # training vectors per centroid that faiss asks for
GROWTH = 2  # an array that grows is copied into a larger one: both are there for a moment
# least size in bytes of the inverted lists that are written to a file while an index is filled
LEAST_SPILL = 32 << 20


class EmptyIndex(NamedTuple):
    """An index without vectors, and the factory string that it was created from."""

    factory: str
    index: Any  # of faiss; trained already if it is that of a template


def create_index(count: int, dimension: int, settings: IndexSettings) -> EmptyIndex:
    """Return an empty index for `count` vectors, not trained yet if its type needs training."""
    faiss = load_faiss()
    factory = _factory_string(count, settings)
    metric = faiss.METRIC_INNER_PRODUCT if settings.similarity is Metric.INNER else faiss.METRIC_L2
    with faiss_errors(partial(_rejection, factory)):
        index = _index_of_factory(dimension, factory, metric)
    for inner in inner_indexes(index):
        if hasattr(inner, "do_polysemous_training"):
            # it takes minutes, and serves a kind of search that denserk does not use
            inner.do_polysemous_training = False
        if isinstance(inner, faiss.IndexHNSW):
            inner.hnsw.efConstruction = settings.efC
        _keep_clustering_quiet(inner)
    return EmptyIndex(factory, index)


def _index_of_factory(dimension: int, factory: str, metric: int) -> Any:
    """Return the index of a factory string that compares by a metric of faiss.

    faiss's own function makes some indexes for Euclidean distance, whatever the metric: a graph
    over product-quantised codes is made again, and others are a UsageError.
    """
    faiss = load_faiss()
    index = faiss.index_factory(dimension, factory, metric)
    if isinstance(index, faiss.IndexHNSWPQ) and index.metric_type != metric:
        quantizer = faiss.downcast_index(index.storage).pq
        links = index.hnsw.nb_neighbors(1)  # of a vector on the levels above the lowest one
        index = faiss.IndexHNSWPQ(dimension, quantizer.M, links, quantizer.nbits, metric)
    if index.metric_type != metric:
        message = f"faiss makes {factory} for Euclidean distance alone"
        raise UsageError(message, "give --metric l2, or another --factory")
    return index


def _keep_clustering_quiet(index: Any) -> None:
    """Keep faiss from printing a line for each clustering of few vectors: `_train` logs one."""
    faiss = load_faiss()
    for owner in (index, *_quantizers_of(index)):
        if hasattr(owner, "cp"):  # the parameters of its clustering
            owner.cp.min_points_per_centroid = 1
    if not isinstance(index, faiss.IndexPreTransform):
        return
    for number in range(index.chain.size()):
        transform = faiss.downcast_VectorTransform(index.chain.at(number))
        if isinstance(transform, faiss.OPQMatrix):
            # it clusters by this one, with 8 bits, hundreds of times
            quantizer = faiss.ProductQuantizer(transform.d_out, transform.M, 8)
            quantizer.cp.min_points_per_centroid = 1
            transform.pq = quantizer
            quantizer.this.disown()  # it lives as long as the transformation needs it


def _quantizers_of(index: Any) -> list[Any]:
    """Return the quantizers of vectors that an index trains: product and residual ones."""
    quantizers = [getattr(index, name, None) for name in ("pq", "refine_pq", "rq")]
    return [quantizer for quantizer in quantizers if quantizer is not None]


def _factory_string(count: int, settings: IndexSettings) -> str:
    """Return the factory string of --factory, with {lists} filled in, or that of the type."""
    lists = settings.nlist or _default_lists(count)
    product_quantizer = f"PQ{settings.pq_m}x{settings.pq_nbits}"
    factory_of_type = {
        IndexType.FLAT: "Flat",
        IndexType.HNSW: f"HNSW{settings.M},Flat",
        IndexType.IVF: f"IVF{lists},Flat",
        IndexType.PQ: product_quantizer,
        IndexType.HNSWPQ: f"HNSW{settings.M}_{product_quantizer}",
        IndexType.SQ8: "SQ8",
        IndexType.SQFP16: "SQfp16",
    }
    factory = settings.factory or factory_of_type[settings.type]
    return factory.replace("{lists}", str(lists))


def _default_lists(count: int) -> int:
    """Return the number of inverted lists for `count` vectors: 4 sqrt(count), if they can train it.

    >>> _default_lists(1_000_000), _default_lists(390)
    (4000, 10)
    """
    most_lists = count // GOOD_TRAINING
    return max(1, min(int(4 * count**0.5), most_lists))


def _rejection(factory: str, reason: str) -> UsageError:
    """Return the error of an index that faiss does not create, train or fill."""
    hint = "see faiss's guide to factory strings"
    if "training points" in reason:
        hint = "use --type flat, a smaller --nlist or --set pq-nbits, or a larger --set train-size"
    elif "subquantizers" in reason:
        hint = "give --set pq-m=N, a divisor of the vectors' dimension"
    return UsageError(f"faiss rejects {factory}: {reason}", hint)


def check_memory(empty_index: EmptyIndex, count: int, settings: IndexSettings) -> None:
    """Log the memory that filling an index with `count` vectors needs; reject what cannot fit."""
    factory, index = empty_index
    sample_size = 0 if index.is_trained else min(count, settings.train_size)
    needs = {"training": 2 * FLOAT_BYTES * index.d * sample_size}  # vectors and their residuals
    ivf = mergeable_ivf(index)
    if settings.device == "cpu" and ivf is not None:
        needs["centroids"] = stored_bytes(ivf.quantizer, ivf.nlist)
        lists_bytes = count * _bytes_in_lists(ivf)
        needs["inverted lists"] = GROWTH * min(lists_bytes, spill_bytes())
    else:  # no lists go to files; an index built on a GPU comes back to memory whole
        needs["the index"] = GROWTH * stored_bytes(index, count)
    if ivf is None:
        hint = 'give --factory "IVF...,PQ...": lists go to the disk while it is filled'
    else:
        hint = "give a smaller --set train-size, or fewer lists"
    memory.require_memory(f"building {factory}", needs, hint)


def _bytes_in_lists(ivf: Any) -> int:
    """Return the bytes that a vector takes in the inverted lists of an IVF index."""
    return int(ivf.code_size) + ID_BYTES


def spill_bytes() -> int:
    """Return the size of inverted lists in memory at which they are written to a file."""
    available = memory.available_bytes() or 0
    return max(LEAST_SPILL, available // 8)


def build(vectors: Vectors, path: Path, empty_index: EmptyIndex, settings: IndexSettings) -> None:
    """Train an empty index if needed, fill it with (N, D) vectors, and write it to `path`."""
    faiss = load_faiss()
    factory, index = empty_index
    if settings.threads:
        faiss.omp_set_num_threads(settings.threads)
    with (
        faiss_errors(partial(_rejection, factory)),
        track(f"adding to {factory}", len(vectors), "vectors") as progress,
    ):
        gpu_index = None
        if settings.device != "cpu":
            gpu_index = on_gpu(index, settings.device, cpu_option="--device cpu")
        if gpu_index is not None:
            _train(gpu_index, vectors, settings)
            _add(gpu_index, vectors, progress)
            write_index(faiss.index_gpu_to_cpu(gpu_index), path)
        else:
            _train(index, vectors, settings)
            _add_and_write(index, vectors, path, progress)


def _train(index: Any, vectors: Vectors, settings: IndexSettings) -> None:
    """Train an index, if it is not trained yet, with a sample of (N, D) vectors."""
    if index.is_trained:
        return
    sample_size = min(len(vectors), settings.train_size)
    logger.info(f"training on {sample_size:,} vectors")
    centroids = _most_centroids(index)
    if centroids > 1 and sample_size < GOOD_TRAINING * centroids:
        logger.warning(
            f"{centroids:,} centroids are trained on {sample_size:,} vectors: fewer than the "
            f"{GOOD_TRAINING * centroids:,} that faiss recommends"
        )
    generator = np.random.default_rng(settings.seed)
    rows = generator.choice(len(vectors), sample_size, replace=False)
    index.train(vectors[np.sort(rows)])  # in order, as they may be read from a file


def _most_centroids(index: Any) -> int:
    """Return the largest number of centroids that an index trains at once; 0 if it has none."""
    faiss = load_faiss()
    counts = [0]
    for inner in inner_indexes(index):
        if isinstance(inner, faiss.IndexIVF):
            counts.append(int(inner.nlist))
        for quantizer in _quantizers_of(inner):
            if isinstance(quantizer, faiss.ProductQuantizer):
                counts.append(int(quantizer.ksub))
    return max(counts)


def _blocks(vectors: Vectors) -> Iterator[Vectors]:
    """Yield (N, D) vectors in blocks of (n, D)."""
    for first_row in range(0, len(vectors), ADD_ROWS):
        yield vectors[first_row : first_row + ADD_ROWS]


def _add(index: Any, vectors: Vectors, progress: Progress) -> None:
    """Add (N, D) vectors to an index."""
    for block in _blocks(vectors):
        index.add(block)
        progress.advance(len(block))


def _add_and_write(index: Any, vectors: Vectors, path: Path, progress: Progress) -> None:
    """Add (N, D) vectors to a trained index, and write it to `path`."""
    ivf = mergeable_ivf(index)
    if ivf is None:
        _add(index, vectors, progress)
        write_index(index, path)
    else:
        _add_and_spill(index, _bytes_in_lists(ivf), vectors, path, progress)


def _add_and_spill(
    index: Any, bytes_of_vector: int, vectors: Vectors, path: Path, progress: Progress
) -> None:
    """Add (N, D) vectors to an index with inverted lists, and write it to `path`.

    Whenever its lists reach the size of a spill, they go to a file and the index is emptied. If
    that happened, the files are merged at the end.
    """
    limit = spill_bytes()
    files: list[Path] = []
    try:
        for block in _blocks(vectors):
            index.add(block)
            progress.advance(len(block))
            if index.ntotal * bytes_of_vector >= limit:
                files.append(temporary_beside(path))
                _spill(index, files[-1])
        if not files:
            write_index(index, path)
            return
        # the vectors since the last spill, too: files are merged into an empty index
        files.append(temporary_beside(path))
        _spill(index, files[-1])
        merge_files(index, files, path)
    finally:
        for file in files:
            file.unlink(missing_ok=True)


def _spill(index: Any, file: Path) -> None:
    """Write an index to a file, and remove its vectors from memory."""
    write_index(index, file)
    index.reset()
