"""Building an index of faiss, and the memory that it needs.

Inverted lists that outgrow memory go to files, which are merged at the end.
"""

import logging
from pathlib import Path
from typing import Any

import numpy as np

from denserk.config.retrieval import IndexSettings, IndexType, Metric
from denserk.errors import UsageError
from denserk.index import memory
from denserk.index.faiss_files import merge_files, write_index
from denserk.index.faiss_library import (
    FLOAT,
    ID_BYTES,
    faiss_errors,
    inner_indexes,
    load_faiss,
    mergeable_ivf,
    on_gpu,
    stored_bytes,
)
from denserk.index.memory import require_memory
from denserk.index.searcher import Vectors
from denserk.io.files import temporary_beside
from denserk.reporting import track

logger = logging.getLogger(__name__)

ADD_ROWS = 65_536  # vectors given to faiss at once
GOOD_TRAINING = 39  # training vectors per centroid that faiss asks for
GROWTH = 2  # an array that grows is copied into a larger one: both are there for a moment
# least size of the inverted lists that are written to a file while an index is filled
LEAST_SPILL = 32 << 20


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


def spill_bytes() -> int:
    """Return the size of inverted lists in memory at which they are written to a file."""
    return max(LEAST_SPILL, (memory.available_bytes() or 0) // 8)


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
