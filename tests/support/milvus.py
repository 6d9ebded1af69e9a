"""Collections of Milvus for tests, in a local file; skipped where milvus-lite is missing."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from denserk.config.encoding import VectorFormat
from denserk.config.retrieval import (
    CollectionSettings,
    Engine,
    IndexPaths,
    IndexSettings,
    MilvusIndexSettings,
)
from denserk.io import vector_formats
from denserk.tasks.build_collection import build_collection
from denserk.tasks.build_index import IndexResult

MILVUS = IndexSettings(engine=Engine.MILVUS)


def require_milvus() -> None:
    """Skips a test, or a file of tests, where the client or the embedded server is missing."""
    pytest.importorskip("pymilvus", reason="the extra milvus is not installed")
    pytest.importorskip("milvus_lite", reason="the extra milvus is not installed")


def write_vectors(path: Path, ids: Sequence[str], vectors: np.ndarray) -> str:
    block = vector_formats.VectorBlock(list(ids), vectors)
    vector_formats.write_vectors(str(path), VectorFormat.JSONL, [block])
    return str(path)


def load(
    source: str, database: Path, name: str = "passages", *, resume: bool = False, **settings
) -> IndexResult:
    milvus = MilvusIndexSettings(str(database), name, **settings)
    return build_collection(IndexPaths(input=(source,), resume=resume), MILVUS, milvus)


def collection(database: Path, name: str = "passages", **settings) -> CollectionSettings:
    return CollectionSettings(str(database), name, **settings)
