"""`denserk index`."""

import logging
from typing import Any

from denserk.commands.app import app
from denserk.commands.options import command
from denserk.config.formats import CorpusSettings
from denserk.config.retrieval import (
    Bm25Settings,
    Engine,
    IndexPaths,
    IndexSettings,
    MilvusIndexSettings,
)

logger = logging.getLogger(__name__)


@command(
    app,
    "index",
    common=(
        "input corpus output type factory engine metric nlist threads device k1 b resume overwrite"
    ),
    examples=(
        "denserk index --input vectors/ --output index/",
        "denserk index --type bm25 --corpus corpus.jsonl --output bm25/",
    ),
)
def index(
    paths: IndexPaths,
    settings: IndexSettings,
    bm25: Bm25Settings,
    corpus: CorpusSettings,
    milvus: MilvusIndexSettings,
) -> Any:
    """Build an index from vectors, or from the text of a corpus."""
    if settings.engine is Engine.MILVUS:
        from denserk.index.milvus import build_collection

        loaded = build_collection(paths, settings, milvus)
        recall = "" if loaded.recall is None else f", recall {loaded.recall:.3f}"
        logger.info(
            f"{milvus.place}: {loaded.count:,} passages, {loaded.rows:,} rows{recall}, "
            f"in {loaded.seconds:,.1f} s"
        )
        return loaded
    milvus.reject_without_milvus()
    from denserk.index.build import build_index

    result = build_index(paths, settings, bm25, corpus)
    recall = "" if result.recall is None else f", recall {result.recall:.3f}"
    logger.info(
        f"{paths.output}: {result.count:,} passages, {result.bytes_per_passage:,.0f} bytes each"
        f"{recall}, in {result.seconds:,.1f} s"
    )
    return result
