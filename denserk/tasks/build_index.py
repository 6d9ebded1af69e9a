"""Vectors, or words, -> an index folder that denserk and Pyserini open."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from denserk.errors import MismatchError, UsageError
from denserk.formats.files import whole_text
from denserk.formats.flat_file import FlatRows
from denserk.formats.folder_checks import verify_folders
from denserk.formats.manifest import (
    NAME,
    Kind,
    Manifest,
    differences,
    file_sha256,
    read_manifest,
    write_manifest,
)
from denserk.formats.outputs import named_paths, prepare_folder, refuse_inputs
from denserk.formats.sources import read_passages, refuse_duplicates
from denserk.formats.vectors import VectorSource
from denserk.index.backends import chosen_engine, open_vector_index
from denserk.index.bm25_index import Bm25Builder
from denserk.index.faiss_building import build, tell_memory
from denserk.index.index_folder import DOCID, INDEX, folder_bytes
from denserk.index.index_merging import is_filled, look_at_parts
from denserk.index.lucene_index import LuceneBuilder
from denserk.index.memory_needs import in_units
from denserk.index.recall import recall_of_own_vectors
from denserk.index.trained_part import TrainedPart, read_trained
from denserk.index.vector_inputs import expanded, gather, known_count, open_sources
from denserk.records import Passage
from denserk.reporting import track
from denserk.settings.formats import DETECTED, CorpusSettings
from denserk.settings.options import as_json
from denserk.settings.retrieval import (
    Bm25Settings,
    Engine,
    IndexPaths,
    IndexSettings,
    IndexType,
    SearchSettings,
)
from denserk.tasks.merge_indexes import described_parts, merge_indexes
from denserk.tasks.model_chain import common_model, model_of, refuse_other_model

logger = logging.getLogger(__name__)

VECTORS = "vectors"
"""Where the vectors of an approximate index stand while it is built."""
DEFAULT_FIELDS = ("title", "text")
UNCOMPARED = ("threads", "device")
"""Settings that do not make another index."""


@dataclass(frozen=True)
class IndexResult:
    """An index: passages, bytes of its folder, seconds it took; recall where it is approximate."""

    count: int
    bytes: int
    seconds: float
    recall: float | None = None

    @property
    def bytes_per_passage(self) -> float:
        """Bytes on the disk for each passage."""
        return self.bytes / self.count if self.count else 0.0


def build_index(
    paths: IndexPaths,
    settings: IndexSettings = IndexSettings(),  # noqa: B008  (frozen)
    words: Bm25Settings = Bm25Settings(),  # noqa: B008
    corpus: CorpusSettings = DETECTED,
) -> IndexResult:
    """Builds an index.

    Args:
        paths: what is indexed, and where the index goes.
        settings: the kind of index.
        words: how text becomes words, for an index of words.
        corpus: how its passages are read.

    Raises:
        UsageError: options do not go together, or an input is not there.
        InputError: an id comes twice, a vector is not finite, there is nothing to index, or too
            little to train on.
        MismatchError: the inputs were not made alike, or an index made otherwise is to be resumed.
        OutputError: the folder cannot be written.
    """
    start = time.perf_counter()
    if not paths.output or settings.engine is Engine.MILVUS:
        raise UsageError("an index goes into a folder", "give --output, or --engine milvus")
    wants_words = settings.type is IndexType.BM25
    if wants_words and paths.corpus is None:
        raise UsageError("--type bm25 indexes words, not vectors", "give --corpus, not --input")
    if not wants_words and paths.corpus is not None:
        raise UsageError(
            f"--type {settings.type} indexes vectors; --corpus holds text",
            "give --type bm25, or encode the corpus and give --input",
        )
    inputs = expanded(paths.input) if paths.input else [paths.corpus or ""]
    refuse_inputs(Path(paths.output), named_paths(inputs, paths.trained_as), resume=paths.resume)
    if paths.verify:
        verify_folders([*inputs, *filter(None, [paths.trained_as])])
    if wants_words:
        filling = _with_words(paths, settings, words, corpus)
    elif any(map(is_filled, inputs)):
        filling = _with_indexes(paths, inputs, settings)
    else:
        filling = _with_vectors(paths, inputs, settings)
    manifest = Manifest(Kind.INDEX, False, filling.settings, filling.made_from)
    folder, finished = _begin(paths, manifest)
    if finished is not None:
        return _result(finished, folder, start)
    contents = filling.fill(folder)
    files = [item for item in sorted(folder.iterdir()) if item.is_file() and item.name != NAME]
    contents["sha256"] = {item.name: file_sha256(item) for item in files}
    contents["bytes"] = {item.name: item.stat().st_size for item in files}
    manifest = replace(manifest, complete=True, contents=contents)
    write_manifest(folder, manifest)
    return _result(manifest, folder, start)


@dataclass(frozen=True)
class _Filling:
    """What a folder will hold: everything was looked at, nothing is written.

    Attributes:
        settings: of its manifest.
        made_from: of its manifest.
        fill: writes ids and index into the folder; returns the manifest's contents.
    """

    settings: Mapping[str, Any]
    made_from: Mapping[str, Any]
    fill: Callable[[Path], dict[str, Any]]


def _with_words(
    paths: IndexPaths,
    settings: IndexSettings,
    words: Bm25Settings,
    corpus: CorpusSettings,
) -> _Filling:
    settings = replace(settings, engine=chosen_engine(settings))
    in_lucene = settings.engine is Engine.LUCENE
    builder = LuceneBuilder(words, settings.threads) if in_lucene else Bm25Builder(words)

    def fill(folder: Path) -> dict[str, Any]:
        texts = _texts(paths.corpus or "", words, corpus)
        return _index_words(folder, texts, builder)

    chosen = as_json(settings) | {"bm25": as_json(words), "corpus": as_json(corpus)}
    return _Filling(chosen, {"texts": paths.corpus}, fill)


def _with_indexes(paths: IndexPaths, inputs: Sequence[str], settings: IndexSettings) -> _Filling:
    if paths.trained_as is not None:
        raise UsageError(
            f"--trained-as {paths.trained_as} is for vectors, and the inputs are indexes",
            "leave it out: indexes that were trained alike are merged as they are",
        )
    merged = look_at_parts(inputs)
    settings = merged.trained.settings(settings)
    settings = replace(settings, engine=chosen_engine(settings))

    def fill(folder: Path) -> dict[str, Any]:
        return merge_indexes(folder, merged, settings, paths.allow_pickle)

    return _Filling(as_json(settings), described_parts(merged), fill)


def _with_vectors(paths: IndexPaths, inputs: Sequence[str], settings: IndexSettings) -> _Filling:
    trained = None
    if paths.trained_as is not None:
        trained = read_trained(paths.trained_as)
        trained.refuse_untrained()
        settings = trained.settings(settings)
    settings = replace(settings, engine=chosen_engine(settings))
    is_part = trained is not None
    sources = open_sources(inputs, paths.allow_pickle, others_elsewhere=is_part)
    made_from = {"vectors": [s.name for s in sources], "model": common_model(sources)}
    if trained is not None:
        made_from |= _trained_as(trained, made_from)
    _tell_size(sources, settings, trained)

    def fill(folder: Path) -> dict[str, Any]:
        return _index_vectors(folder, sources, settings, trained)

    return _Filling(as_json(settings), made_from, fill)


def _trained_as(trained: TrainedPart, made_from: Mapping[str, Any]) -> dict[str, Any]:
    """What the manifest tells of the index that a trained part was taken from.

    Raises:
        MismatchError: that index holds vectors of another model.
    """
    refuse_other_model(
        model_of(trained.manifest),
        made_from["model"],
        f"the index {trained.name} and the vectors {made_from['vectors'][0]}",
        "fill what was trained on vectors of the same model",
    )
    return {"trained_as": {"name": trained.name, "sha256": trained.digest()}}


def _result(manifest: Manifest, folder: Path, start: float) -> IndexResult:
    return IndexResult(
        manifest.contents["count"],
        folder_bytes(folder),
        time.perf_counter() - start,
        manifest.contents.get("recall"),
    )


def _begin(paths: IndexPaths, manifest: Manifest) -> tuple[Path, Manifest | None]:
    """The folder, ready to be filled; or with it the manifest of an index that is finished."""
    folder, overwrite = Path(paths.output), paths.overwrite
    if paths.resume and (folder / NAME).exists():
        begun = read_manifest(folder, Kind.INDEX, unfinished=True)
        if begun.complete:
            _refuse_other_settings(folder, begun, manifest)
            logger.info(f"{folder} is finished: nothing to do")
            return folder, begun
        logger.info(f"{folder} is unfinished: an index is built in one go, so it starts over")
        overwrite = True
    folder = prepare_folder(folder, overwrite=overwrite)
    write_manifest(folder, manifest)
    return folder, None


def _refuse_other_settings(folder: Path, begun: Manifest, manifest: Manifest) -> None:
    one, other = (
        {k: v for k, v in m.settings.items() if k not in UNCOMPARED} for m in (begun, manifest)
    )
    found = differences(one, other) + differences(begun.made_from, manifest.made_from)
    if found:
        raise MismatchError(
            f"{folder} is finished, and was made with other settings: {'; '.join(found)}",
            "choose another --output, or replace it with --overwrite",
        )


def _size(count: int, dimension: int) -> str:
    return f"{count:,} x {dimension} x 4 bytes = {in_units(count * dimension * 4)}"


def _is_flat(settings: IndexSettings) -> bool:
    return settings.type is IndexType.FLAT and not settings.factory


def _tell_size(
    sources: Sequence[VectorSource],
    settings: IndexSettings,
    trained: TrainedPart | None,
) -> None:
    """Tells what is coming and what it needs, where the inputs say how much they hold."""
    count = known_count(sources)
    if count is None or sources[0].manifest is None:
        return
    rows = count * sources[0].vectors_per_passage
    dimension = int(sources[0].manifest.contents["dimension"])
    is_flat = _is_flat(settings)
    where = "on the disk, mapped into memory when searched" if is_flat else "to fill from"
    if not is_flat and trained is None:
        where = "to train and fill from"
    logger.info(f"vectors: {_size(rows, dimension)} {where}")
    if not is_flat:
        tell_memory(rows, dimension, settings, trained)


def _index_vectors(
    folder: Path,
    sources: Sequence[VectorSource],
    settings: IndexSettings,
    trained: TrainedPart | None,
) -> dict[str, Any]:
    """Fills the folder with an index of vectors; returns the manifest's contents."""
    is_flat = _is_flat(settings)
    target = folder / (INDEX if is_flat else VECTORS)
    gathered = gather(sources, target, settings.metric)
    contents: dict[str, Any] = {
        "count": gathered.passages,
        "dimension": gathered.dimension,
        "vectors_per_passage": gathered.vectors_per_passage,
    }
    if not is_flat:
        if known_count(sources) is None:
            rows = gathered.passages * gathered.vectors_per_passage
            tell_memory(rows, gathered.dimension, settings, trained)
        contents |= _approximate(folder, target, settings, trained)
        target.unlink()
    return contents


def _approximate(
    folder: Path,
    flat: Path,
    settings: IndexSettings,
    trained: TrainedPart | None,
) -> dict[str, Any]:
    """Turns the flat file into another index, and measures what that costs in recall."""
    vectors = FlatRows(flat)
    factory = build(vectors, folder / INDEX, settings, trained)
    index = open_vector_index(folder, Engine.FAISS, SearchSettings(), threads=settings.threads)
    recall, depth, queries = recall_of_own_vectors(index, vectors, settings.metric, settings.seed)
    logger.info(
        f"{factory} finds {recall:.1%} of the exact {depth} nearest "
        f"(with {queries} of its own vectors as queries)"
    )
    return {"factory": factory, "recall": round(recall, 4)}


def _texts(source: str, words: Bm25Settings, corpus: CorpusSettings) -> Iterator[tuple[str, str]]:
    """Passage ids, and the texts whose words are indexed."""
    names = words.fields or DEFAULT_FIELDS
    with track("reading words", None, "passages") as progress:

        def read() -> Iterator[Passage]:
            return read_passages(source, corpus, words.fields)

        for passage in refuse_duplicates(read, source):
            yield passage.docid, " ".join(passage.field(name) for name in names)
            progress.advance()


def _index_words(
    folder: Path,
    texts: Iterator[tuple[str, str]],
    builder: Bm25Builder | LuceneBuilder,
) -> dict[str, Any]:
    """Fills the folder with an index of words; returns the manifest's contents."""
    if isinstance(builder, LuceneBuilder):
        indexed, empty = builder.build(folder, texts)
        if empty:
            logger.warning(f"{empty:,} passages have no text, and Lucene leaves them out")
        return {"count": indexed, "without_text": empty}
    logger.info("the words of the corpus stay in memory, 4 bytes each, until they are scored")
    count = 0
    with whole_text(folder / DOCID) as ids:
        for docid, text in texts:
            builder.add(text)
            ids.write(f"{docid}\n")
            count += 1
    logger.info("scoring words")
    return {"count": count, "words": builder.write(folder)}
