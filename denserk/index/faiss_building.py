"""Building indexes of faiss: its factory strings, training, filling."""

import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from denserk.errors import InputError, MismatchError, OutputError, UsageError
from denserk.formats.files import whole_binary
from denserk.index.faiss_library import inner_indexes, load_faiss, on_gpu, reason
from denserk.index.faiss_needs import building_needs, smaller
from denserk.index.inverted_lists import ListsOnDisk
from denserk.index.memory_needs import tell_needs
from denserk.index.trained_part import TrainedPart
from denserk.index.vector_index import Rows, StoredVectors
from denserk.reporting import track
from denserk.settings.retrieval import IndexSettings, IndexType, Metric

logger = logging.getLogger(__name__)

ADD_ROWS = 65_536
"""Rows given to faiss at once."""


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
            f"faiss refuses {wanted}: {reason(error)}", "see faiss's guide to factory strings"
        ) from None


@contextmanager
def _clustering_warnings() -> Iterator[None]:
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
        logger.warning(
            f"{points:,} vectors train {centroids:,} centroids; {wanted:,} or more would train "
            "them well: --type flat is exact and suits a collection of this size"
        )
    for line in few.sub("", text).splitlines():
        if line.strip():
            logger.info(f"faiss: {line.strip()}")


def tell_memory(
    count: int,
    dimension: int,
    settings: IndexSettings,
    trained: TrainedPart | None = None,
) -> None:
    """Tells what building an index of so many vectors will hold in memory; nothing is built.

    Raises:
        UsageError: it does not fit; or as for `build`.
        MismatchError: as for `build`.
    """
    wanted, index = _begun(count, dimension, settings, trained)
    needs = building_needs(index, count, settings)
    tell_needs(f"building {wanted}", needs, smaller(index, count, dimension))


def build(
    vectors: StoredVectors,
    path: Path,
    settings: IndexSettings,
    trained: TrainedPart | None = None,
) -> str:
    """Trains, fills and writes an index of (N, D) vectors; returns its factory string.

    Vectors are added in blocks. Inverted lists that grow large are put on the disk meanwhile, and
    joined in the file at the end; codes and graphs of other kinds are held in memory.

    Args:
        vectors: what is indexed.
        path: the file.
        settings: what kind of index it is.
        trained: what another index learned, filled in place of training.

    Raises:
        InputError: too few vectors to train on.
        UsageError: faiss does not know the factory string, or refuses the metric.
        MismatchError: the trained part takes vectors of another dimension.
        OutputError: the index cannot be written.
    """
    faiss = load_faiss()
    if settings.threads:
        faiss.omp_set_num_threads(settings.threads)
    count, dimension = vectors.shape
    wanted, index = _begun(count, dimension, settings, trained)
    with _refusals(wanted, count):
        moved = None
        if settings.device != "cpu":
            moved = on_gpu(faiss, index, settings.device)
            if moved is None:
                logger.info(f"faiss builds {wanted} on the CPU; it has no GPU form")
        filled = index if moved is None else moved
        if not filled.is_trained:
            _train(filled, vectors, settings)
        spills = moved is None and ListsOnDisk.spillable(index)
        lists = ListsOnDisk(index, path) if spills else None
        try:
            with track(f"adding to {wanted}", count, "vectors") as progress:
                for first in range(0, count, ADD_ROWS):
                    block = vectors[first : first + ADD_ROWS]
                    (lists or filled).add(block)
                    progress.advance(len(block))
            if moved is not None:
                index = faiss.index_gpu_to_cpu(moved)
            _write(index, lists, path)
        finally:
            if lists is not None:
                lists.close()
    return wanted


def _write(index: Any, lists: ListsOnDisk | None, path: Path) -> None:
    """Writes an index, whole or not at all, with the lists that were put aside."""
    with whole_binary(path) as handle:
        try:
            if lists is None or not lists.write(handle):
                load_faiss().write_index(index, handle.name)
        except RuntimeError as error:
            raise OutputError(f"{path} cannot be written: {reason(error)}") from None


def _begun(
    count: int,
    dimension: int,
    settings: IndexSettings,
    trained: TrainedPart | None,
) -> tuple[str, Any]:
    """An index without vectors, and its factory string."""
    if trained is None:
        wanted = factory_string(settings, count, dimension)
        with _refusals(wanted, count):
            return wanted, _empty(wanted, dimension, settings)
    if trained.dimension != dimension:
        raise MismatchError(
            f"{trained.name} was trained on vectors of {trained.dimension} dimensions, "
            f"and the input has {dimension}",
            "index vectors of the model that it was trained for",
        )
    return trained.factory, trained.index


def _empty(wanted: str, dimension: int, settings: IndexSettings) -> Any:
    """The index that faiss's factory makes of a string, untrained."""
    faiss = load_faiss()
    metric = faiss.METRIC_INNER_PRODUCT if settings.metric is Metric.INNER else faiss.METRIC_L2
    index = faiss.index_factory(dimension, wanted, metric)
    for inner in inner_indexes(faiss, index):
        if hasattr(inner, "do_polysemous_training"):
            inner.do_polysemous_training = False  # minutes, for a kind of search that none asks
        if isinstance(inner, faiss.IndexHNSW):
            inner.hnsw.efConstruction = settings.efC
            if faiss.omp_get_max_threads() > 1:
                logger.info("threads race for a graph's links: --threads 1 repeats its bytes")
    return index


def _train(index: Any, vectors: StoredVectors, settings: IndexSettings) -> None:
    """Trains on a sample without replacement, in the order of the rows."""
    count = len(vectors)
    rows: slice | Rows = slice(None)
    if count > settings.train_size:
        draw = np.random.default_rng(settings.seed)
        # nothing else may keep what is drawn: it is a view of the numbers of all rows
        rows = np.sort(draw.choice(count, settings.train_size, replace=False))
    sample = vectors[rows]
    logger.info(f"training on {len(sample):,} vectors")
    with _clustering_warnings():
        index.train(sample)
