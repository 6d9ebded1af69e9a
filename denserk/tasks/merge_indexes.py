"""Index folders that were trained alike -> the contents of one index folder."""

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from denserk.errors import DenserkError, MismatchError
from denserk.formats.files import STREAM, read_text_lines
from denserk.formats.vectors import VectorSource
from denserk.index.backends import open_vector_index
from denserk.index.index_folder import DOCID, part_names
from denserk.index.index_merging import IndexParts
from denserk.index.recall import recall_over_blocks
from denserk.index.vector_index import Vectors
from denserk.index.vector_inputs import open_sources, warn_of_missing_shards
from denserk.settings.retrieval import Engine, IndexSettings, SearchSettings
from denserk.tasks.model_chain import common_model

logger = logging.getLogger(__name__)


def described_parts(merged: IndexParts) -> dict[str, Any]:
    """What a manifest tells of the parts: their names and sums, their vectors, their model.

    Raises:
        MismatchError: their vectors were made by several models.
    """
    made = [part.manifest.made_from.get("vectors", []) for part in merged.parts]
    return {
        "indexes": [
            {"name": part.name, "sha256": part.manifest.contents["sha256"]} for part in merged.parts
        ],
        "vectors": [name for names in made for name in names],
        "model": common_model(merged.parts),
    }


def merge_indexes(
    folder: Path,
    merged: IndexParts,
    settings: IndexSettings,
    allow_pickle: bool,
) -> dict[str, Any]:
    """Fills a folder with the index that some parts are together; returns the manifest's contents.

    An index holds codes, and not the vectors that its recall is measured against. Where those that
    the parts were made from are still at hand, under the names that the manifests have, recall is
    measured as after any build; else that of the parts is told.

    Raises:
        InputError: an id comes twice, or a part is cut short.
        MismatchError: a part has not as many ids as vectors.
        OutputError: the folder cannot be written.
    """
    merged.join(folder)
    contents = {
        "count": merged.passages,
        "dimension": merged.trained.dimension,
        "vectors_per_passage": merged.vectors_per_passage,
        "factory": merged.trained.factory,
    }
    index = open_vector_index(folder, Engine.FAISS, SearchSettings(), threads=settings.threads)
    try:
        sources = _sources(merged, allow_pickle)
        warn_of_missing_shards(sources)
        blocks = partial(_blocks, folder, sources, index.dimension)
        recall, depth, queries = recall_over_blocks(index, blocks, settings.seed, settings.metric)
    except DenserkError as error:
        told = [part.manifest.contents.get("recall") for part in merged.parts]
        known = sorted(recall for recall in told if recall is not None)
        parts = f"; {_span(known)} among their own vectors" if known else ""
        logger.info(f"recall is not measured: {error.message}{parts}")
        return {**contents, "recall_of_parts": told}
    logger.info(
        f"{merged.trained.factory} finds {recall:.1%} of the exact {depth} nearest "
        f"(with {queries} of its own vectors as queries)"
    )
    return {**contents, "recall": round(recall, 4)}


def _span(recalls: Sequence[float]) -> str:
    """The recalls of parts, from the least to the best."""
    return f"its parts find {recalls[0]:.1%} to {recalls[-1]:.1%} of the exact nearest"


def _sources(merged: IndexParts, allow_pickle: bool) -> list[VectorSource]:
    """The vectors of the parts.

    Raises:
        DenserkError: they are not at hand.
    """
    names = described_parts(merged)["vectors"]
    if not names or STREAM in names:
        raise MismatchError("the vectors were read from a stream")
    return open_sources(names, allow_pickle, others_elsewhere=True)


def _blocks(folder: Path, sources: Sequence[VectorSource], dimension: int) -> Iterator[Vectors]:
    """The vectors of all parts, as long as their ids are those of the index.

    Raises:
        DenserkError: they are not.
    """
    ids = (line.rstrip() for _, line in read_text_lines(folder / DOCID))
    for source in sources:
        size = source.vectors_per_passage
        for passages, vectors in source.blocks():
            lines = [line for passage in passages for line in part_names(passage, size)]
            if lines != list(islice(ids, len(lines))) or vectors.shape[1] != dimension:
                raise MismatchError(f"{source.name} holds other vectors by now")
            yield vectors
    if next(ids, None) is not None:
        raise MismatchError("fewer vectors are at hand than were indexed")
