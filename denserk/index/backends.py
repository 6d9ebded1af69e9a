"""Which class holds an index: engines by name, imported when one is opened."""

import importlib
import logging
from pathlib import Path
from typing import Any

from denserk.errors import MismatchError, UsageError
from denserk.extras import installed, require
from denserk.formats.flat_file import is_flat, map_flat
from denserk.index.faiss_library import sees_gpu
from denserk.index.index_folder import INDEX
from denserk.index.vector_index import VectorIndex
from denserk.settings.retrieval import (
    BM25_ENGINES,
    Engine,
    IndexSettings,
    IndexType,
    SearchSettings,
)

logger = logging.getLogger(__name__)

CLASSES = {
    Engine.FAISS: "denserk.index.faiss_index:FaissIndex",
    Engine.TORCH: "denserk.index.exact:ExactIndex",
    Engine.BM25S: "denserk.index.bm25:Bm25Index",
    Engine.LUCENE: "denserk.index.lucene:LuceneIndex",
    Engine.MILVUS: "denserk.index.milvus:MilvusIndex",
}
"""Engine -> "module:Class"."""


def engine_class(engine: Engine) -> Any:
    """The class that holds indexes of an engine.

    Raises:
        MissingExtraError: the engine's package is not installed.
    """
    module, _, name = CLASSES[engine].partition(":")
    return getattr(importlib.import_module(module), name)


def chosen_engine(settings: IndexSettings) -> Engine:
    """The engine an index is built with, where none was named.

    Raises:
        MissingExtraError: only faiss can, and it is not installed.

    >>> chosen_engine(IndexSettings(type=IndexType.BM25))
    <Engine.BM25S: 'bm25s'>
    """
    if settings.engine:
        return settings.engine
    if settings.type is IndexType.BM25:
        return Engine.BM25S
    if installed("faiss"):
        return Engine.FAISS
    if settings.type is not IndexType.FLAT or settings.factory:
        require("faiss", f"an index of --type {settings.factory or settings.type}")
    return Engine.TORCH


def open_vector_index(
    folder: str | Path,
    engine: Engine,
    settings: SearchSettings,
    *,
    device: str = "cpu",
    threads: int | None = None,
    vectors_per_passage: int = 1,
    bfloat16: bool = False,
    plain: bool = False,
) -> VectorIndex:
    """Opens an index of vectors.

    A flat index is served by the torch engine where faiss is absent, where faiss has no GPU and
    one is asked for, and where the CPU is fast in bfloat16: the file is the same.

    Args:
        folder: an index folder.
        engine: what built it.
        settings: how it is searched.
        device: "cpu", "cuda" or "cuda:N".
        threads: CPU threads.
        vectors_per_passage: how many neighbouring rows are one passage.
        bfloat16: whether the CPU multiplies bfloat16 much faster than float32.
        plain: compute every score in float32, by the engine that built the index.

    Raises:
        MissingExtraError: only faiss can open it, and it is not installed.
        UsageError: a GPU is asked for that cannot hold it.
        MismatchError: the folder is a BM25 index.
    """
    if engine in BM25_ENGINES:
        raise MismatchError(f"{folder} is a BM25 index, not an index of vectors")
    path = Path(folder) / INDEX
    if not path.is_file():
        raise UsageError(f"{folder} is not an index of vectors: it has no file {INDEX}")
    torch_serves = engine is Engine.TORCH
    if not torch_serves and is_flat(path):
        if not installed("faiss"):
            logger.info("faiss is not installed; the exact torch engine serves this flat index")
            torch_serves = True
        elif device != "cpu" and not sees_gpu():
            logger.info(f"faiss has no GPU here; the exact torch engine searches on {device}")
            torch_serves = True
        elif device == "cpu" and bfloat16 and not plain:
            torch_serves = True
    if torch_serves:
        for name, given in settings.index_options.items():
            raise UsageError(f"{name} {given}: {folder} is searched exactly")
        exact_index = engine_class(Engine.TORCH)  # imports torch
        if threads:
            import torch

            torch.set_num_threads(threads)
        vectors, metric = map_flat(path)
        opened: VectorIndex = exact_index(
            vectors, metric, device, vectors_per_passage, bfloat16=bfloat16 and not plain
        )
        return opened
    require("faiss", f"the index {folder}")
    held: VectorIndex = engine_class(Engine.FAISS)(path, settings, device, threads)
    return held
