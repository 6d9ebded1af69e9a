"""Build an index folder, which denserk and Pyserini open, from vectors, a corpus or indexes."""

import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from denserk.config.formats import DETECTED, CorpusSettings
from denserk.config.options import as_json
from denserk.config.retrieval import (
    Bm25Settings,
    Engine,
    IndexPaths,
    IndexSettings,
    IndexType,
    SearchSettings,
)
from denserk.errors import DenserkError, MismatchError, UsageError
from denserk.index.bm25 import Bm25Builder
from denserk.index.faiss_building import build, check_memory
from denserk.index.faiss_merging import (
    IndexPart,
    is_approximate,
    merge_folders,
    open_parts,
    read_template,
)
from denserk.index.index_folder import DOCID, INDEX, folder_bytes, part_names
from denserk.index.lucene import LuceneBuilder
from denserk.index.memory import in_units
from denserk.index.opening import chosen_engine, open_vector_index
from denserk.index.recall import recall_of_own_vectors, recall_over_blocks
from denserk.index.vector_index import Vectors
from denserk.index.vector_inputs import expanded, gather, known_count, open_sources
from denserk.io.checks import verify_folders
from denserk.io.corpus import read_passages, refuse_duplicates
from denserk.io.files import STREAM, read_text_lines
from denserk.io.flat_file import FlatRows
from denserk.io.manifest import (
    NAME,
    Kind,
    Manifest,
    common_model,
    differences,
    file_sha256,
    model_of,
    read_manifest,
    refuse_other_model,
    write_manifest,
)
from denserk.io.outputs import named_paths, prepare_folder, refuse_inputs
from denserk.io.vector_folder import INT8_MODEL, INT8_WEIGHTS
from denserk.io.vectors import VectorSource
from denserk.records import Passage
from denserk.reporting import track

logger = logging.getLogger(__name__)

VECTORS = "vectors"  # file of the vectors of an approximate index, while it is built
DEFAULT_FIELDS = ("title", "text")
UNCOMPARED = ("threads", "device")  # settings that do not change the index


@dataclass(frozen=True)
class IndexResult:
    """Passages, bytes of the folder, seconds, and the recall of an approximate index."""

    count: int
    bytes: int
    seconds: float
    recall: float | None = None

    @property
    def bytes_per_passage(self) -> float:
        """Bytes on disk per passage."""
        return self.bytes / self.count if self.count else 0.0


@dataclass(frozen=True)
class _Plan:
    """Content of an index folder, checked before anything is written.

    Attributes:
        settings: settings in the manifest.
        made_from: inputs in the manifest.
        fill: writes index and ids into the folder; returns the contents of the manifest.
    """

    settings: Mapping[str, Any]
    made_from: Mapping[str, Any]
    fill: Callable[[Path], dict[str, Any]]


def build_index(
    paths: IndexPaths,
    settings: IndexSettings = IndexSettings(),  # noqa: B008  (frozen)
    bm25: Bm25Settings = Bm25Settings(),  # noqa: B008
    corpus: CorpusSettings = DETECTED,
) -> IndexResult:
    """Build an index.

    Args:
        paths: inputs and output folder.
        settings: the type of index.
        bm25: analysis and weights of terms, for a BM25 index.
        corpus: format of the corpus, for a BM25 index.

    Raises:
        UsageError: options do not go together, or an input does not exist.
        InputError: an id occurs twice, a vector is not finite, there is nothing to index, or too
            little to train on.
        MismatchError: the inputs do not belong together, or --resume finds other settings.
    """
    start = time.perf_counter()
    if not paths.output or settings.engine is Engine.MILVUS:
        raise UsageError("an index goes into a folder", "give --output, or --engine milvus")
    is_bm25 = settings.type is IndexType.BM25
    if is_bm25 and paths.corpus is None:
        raise UsageError("--type bm25 indexes text, not vectors", "give --corpus, not --input")
    if not is_bm25 and paths.corpus is not None:
        raise UsageError(
            f"--type {settings.type} indexes vectors; --corpus holds text",
            "give --type bm25, or encode the corpus and give --input",
        )
    inputs = expanded(paths.input) if paths.input else [paths.corpus or ""]
    refuse_inputs(Path(paths.output), named_paths(inputs, paths.trained_as), resume=paths.resume)
    if paths.verify:
        verify_folders([*inputs, *filter(None, [paths.trained_as])])
    if is_bm25:
        plan = _plan_bm25(paths.corpus or "", settings, bm25, corpus)
    elif any(map(is_approximate, inputs)):
        plan = _plan_merge(paths, inputs, settings)
    else:
        plan = _plan_vectors(paths, inputs, settings)
    manifest = Manifest(Kind.INDEX, False, plan.settings, plan.made_from)
    folder, finished = _start(paths, manifest)
    if finished is None:
        contents = plan.fill(folder)
        for name in (INT8_MODEL, INT8_WEIGHTS):  # queries are encoded by it too
            if (Path(inputs[0]) / name).is_file():
                shutil.copyfile(Path(inputs[0]) / name, folder / name)
        files = [item for item in sorted(folder.iterdir()) if item.is_file() and item.name != NAME]
        contents["sha256"] = {item.name: file_sha256(item) for item in files}
        contents["bytes"] = {item.name: item.stat().st_size for item in files}
        finished = replace(manifest, complete=True, contents=contents)
        write_manifest(folder, finished)
    return IndexResult(
        finished.contents["count"],
        folder_bytes(folder),
        time.perf_counter() - start,
        finished.contents.get("recall"),
    )


def _start(paths: IndexPaths, manifest: Manifest) -> tuple[Path, Manifest | None]:
    """Return the prepared folder, and the manifest if --resume finds a finished index."""
    folder, overwrite = Path(paths.output), paths.overwrite
    if paths.resume and (folder / NAME).exists():
        found = read_manifest(folder, Kind.INDEX, unfinished=True)
        if found.complete:
            _require_same_settings(folder, found, manifest)
            logger.info(f"{folder} is finished: nothing to do")
            return folder, found
        logger.info(f"{folder} is unfinished: an index is built in one go, so it starts over")
        overwrite = True
    folder = prepare_folder(folder, overwrite=overwrite)
    write_manifest(folder, manifest)
    return folder, None


def _require_same_settings(folder: Path, found: Manifest, manifest: Manifest) -> None:
    one, other = (
        {k: v for k, v in m.settings.items() if k not in UNCOMPARED} for m in (found, manifest)
    )
    changed = differences(one, other) + differences(found.made_from, manifest.made_from)
    if changed:
        raise MismatchError(
            f"{folder} is finished, and was made with other settings: {'; '.join(changed)}",
            "choose another --output, or replace it with --overwrite",
        )


def _plan_bm25(
    source: str, settings: IndexSettings, bm25: Bm25Settings, corpus: CorpusSettings
) -> _Plan:
    settings = replace(settings, engine=chosen_engine(settings))
    in_lucene = settings.engine is Engine.LUCENE
    builder = LuceneBuilder(bm25, settings.threads) if in_lucene else Bm25Builder(bm25)
    fields = bm25.fields or DEFAULT_FIELDS

    def texts() -> Iterator[tuple[str, str]]:
        def read() -> Iterator[Passage]:
            return read_passages(source, corpus, fields=bm25.fields)

        with track("reading text", None, "passages") as progress:
            for passage in refuse_duplicates(read, source):
                yield passage.docid, " ".join(passage.field(name) for name in fields)
                progress.advance()

    chosen = as_json(settings) | {"bm25": as_json(bm25), "corpus": as_json(corpus)}
    return _Plan(chosen, {"texts": source}, lambda folder: builder.build(folder, texts()))


def _plan_merge(paths: IndexPaths, inputs: Sequence[str], settings: IndexSettings) -> _Plan:
    if paths.trained_as is not None:
        raise UsageError(
            f"--trained-as {paths.trained_as} is for vectors, and the inputs are indexes",
            "leave it out: indexes with the same training are merged as they are",
        )
    template, parts = open_parts(inputs)
    settings = template.settings(settings)
    settings = replace(settings, engine=chosen_engine(settings))
    made_from: dict[str, Any] = {
        "indexes": [{"name": p.name, "sha256": p.manifest.contents["sha256"]} for p in parts],
        "vectors": [name for p in parts for name in p.manifest.made_from.get("vectors", [])],
        "model": common_model(parts),
    }

    def fill(folder: Path) -> dict[str, Any]:
        merge_folders(template, parts, folder)
        return {
            "count": sum(part.count for part in parts),
            "dimension": template.index.d,
            "vectors_per_passage": template.vectors_per_passage,
            "factory": template.factory,
        } | _merged_recall(folder, made_from["vectors"], parts, settings, paths.allow_pickle)

    return _Plan(as_json(settings), made_from, fill)


def _merged_recall(
    folder: Path,
    names: Sequence[str],
    parts: Sequence[IndexPart],
    settings: IndexSettings,
    allow_pickle: bool,
) -> dict[str, Any]:
    """Measure recall if the vectors still exist (an index holds codes), else keep the parts'."""
    index = open_vector_index(folder, Engine.FAISS, SearchSettings(), threads=settings.threads)

    def blocks(sources: Sequence[VectorSource]) -> Iterator[Vectors]:
        ids = (line.rstrip() for _, line in read_text_lines(folder / DOCID))
        for source in sources:
            for passages, vectors, _ in source.blocks():
                lines = [n for p in passages for n in part_names(p, source.vectors_per_passage)]
                if lines != list(islice(ids, len(lines))) or vectors.shape[1] != index.dimension:
                    raise MismatchError(f"{source.name} has changed since it was indexed")
                yield vectors
        if next(ids, None) is not None:
            raise MismatchError("some of the indexed vectors are missing")

    try:
        if not names or STREAM in names:
            raise MismatchError("the vectors were read from a stream")
        sources = open_sources(names, allow_pickle, others_elsewhere=True)
        recall, depth, queries = recall_over_blocks(
            index, lambda: blocks(sources), settings.seed, settings.metric
        )
    except DenserkError as error:
        known = [part.manifest.contents.get("recall") for part in parts]
        logger.info(f"recall is not measured: {error.message}; recall of the parts: {known}")
        return {"recall_of_parts": known}
    _log_recall("the merged index", recall, depth, queries)
    return {"recall": round(recall, 4)}


def _log_recall(what: str, recall: float, depth: int, queries: int) -> None:
    logger.info(f"{what}: recall@{depth} {recall:.3f}, for {queries} of its own vectors as queries")


def _plan_vectors(paths: IndexPaths, inputs: Sequence[str], settings: IndexSettings) -> _Plan:
    template = None
    if paths.trained_as is not None:
        template = read_template(paths.trained_as)
        template.require_training()
        settings = template.settings(settings)
    settings = replace(settings, engine=chosen_engine(settings))
    sources = open_sources(inputs, paths.allow_pickle, others_elsewhere=template is not None)
    made_from: dict[str, Any] = {
        "vectors": [s.name for s in sources],
        "model": common_model(sources),
    }
    if template is not None:
        refuse_other_model(
            model_of(template.manifest),
            made_from["model"],
            f"the index {template.name} and the vectors {sources[0].name}",
            "fill what was trained on vectors of the same model",
        )
        made_from["trained_as"] = {"name": template.name, "sha256": template.sha256}
    count, manifest = known_count(sources), sources[0].manifest
    if count is not None and manifest is not None:
        rows, dimension = count * sources[0].vectors_per_passage, manifest.contents["dimension"]
        size = in_units(rows * dimension * 4)
        logger.info(f"vectors: {rows:,} x {dimension} x 4 bytes = {size} on the disk")
        if not settings.is_flat:
            check_memory(rows, dimension, settings, template)

    def fill(folder: Path) -> dict[str, Any]:
        target = folder / (INDEX if settings.is_flat else VECTORS)
        gathered = gather(sources, target, settings.metric)
        contents: dict[str, Any] = {
            "count": gathered.passages,
            "dimension": gathered.dimension,
            "vectors_per_passage": gathered.vectors_per_passage,
        }
        if settings.is_flat:
            return contents
        vectors = FlatRows(target)
        if count is None:
            check_memory(*vectors.shape, settings, template)
        factory = build(vectors, folder / INDEX, settings, template)
        index = open_vector_index(folder, Engine.FAISS, SearchSettings(), threads=settings.threads)
        measured = recall_of_own_vectors(index, vectors, settings.metric, settings.seed)
        _log_recall(factory, *measured)
        target.unlink()
        return contents | {"factory": factory, "recall": round(measured[0], 4)}

    return _Plan(as_json(settings), made_from, fill)
