"""`denserk index`: an index folder, which denserk and Pyserini open.

It is built of vectors (flat or approximate), of the texts of a corpus (BM25), or of approximate
indexes, which are merged.
"""

import logging
import math
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.filesize import decimal

from denserk.config.formats import DETECTED, CorpusSettings
from denserk.config.languages import AUTO, find_language
from denserk.config.options import as_json
from denserk.config.retrieval import (
    Bm25Settings,
    Engine,
    IndexPaths,
    IndexSettings,
    IndexType,
    Metric,
    SearchSettings,
)
from denserk.errors import MismatchError, UsageError
from denserk.extras import installed, require
from denserk.index import faiss_build, faiss_templates
from denserk.index.bm25 import PURPOSE, build_bm25
from denserk.index.engines import SearchableIndex, ShardedIndex, Vectors, recalls
from denserk.index.faiss_index import FaissIndex
from denserk.index.folder import INDEX, folder_bytes
from denserk.index.inputs import (
    checksums_of_sources,
    expanded,
    gather,
    known_count,
    model_of_sources,
    open_sources,
)
from denserk.index.lucene import build_lucene, require_lucene
from denserk.index.scripts import SAMPLE, language_of_corpus
from denserk.index.terms import analyzer_of
from denserk.io import manifest
from denserk.io.blocks import Texts
from denserk.io.control_vectors import CONTROL_FILE
from denserk.io.corpus import read_passages, with_used_fields
from denserk.io.outputs import MANIFEST, named_paths, reject_inputs, whole_folder
from denserk.io.vector_formats import is_flat, map_flat
from denserk.io.vectors import INT8_MODEL, INT8_WEIGHTS, read_vector_blocks, verify_folders
from denserk.io.versions import Versions
from denserk.reporting import track

if TYPE_CHECKING:
    from denserk.index.tuning import ShowTable

logger = logging.getLogger(__name__)

VECTORS = "vectors"  # file of the vectors of an approximate index, while it is built
VECTORS_SHA256 = "vectors_sha256"  # in `made_from`: checksums of the journals of vectors
WITHOUT_EFFECT = ("threads", "device")  # settings that do not change the index
# recall of an approximate index
RECALL_QUERIES = 100
RECALL_DEPTH = 10  # hits of a query
RECALL_BLOCK = 16_384  # vectors compared at once


@dataclass(frozen=True)
class IndexResult:
    """The size of an index, and how it was built."""

    count: int  # passages
    bytes: int  # of the folder; 0 for a collection of a server
    seconds: float
    recall: float | None = None  # of an approximate index, if it was measured


class Plan(ABC):
    """The content of an index folder, whose inputs are checked when it is planned."""

    recorded_settings: Mapping[str, Any]  # in the manifest
    made_from: Mapping[str, Any]

    @abstractmethod
    def fill(self, folder: Path) -> dict[str, Any]:
        """Write index and ids into a folder; return the contents of its manifest."""


def build_index(
    paths: IndexPaths,
    settings: IndexSettings = IndexSettings(),  # noqa: B008  (frozen)
    bm25: Bm25Settings = Bm25Settings(),  # noqa: B008
    corpus: CorpusSettings = DETECTED,
    show_types: "ShowTable | None" = None,
) -> IndexResult:
    """Build an index in a folder.

    With a recall to reach, `show_types` is called with the types that were compared.
    """
    started = time.perf_counter()
    _check_inputs(paths, settings)
    inputs = expanded(paths.input) if paths.input else [paths.corpus or ""]
    reject_inputs(Path(paths.output), named_paths(inputs, paths.trained_as), resume=paths.resume)
    folders = list(inputs)
    for folder in (paths.trained_as, settings.encoded_queries):
        if folder:
            folders.append(folder)
    if paths.verify:
        verify_folders(folders)
    # the whole index is of one version of each folder; a corpus is read once, from start to end
    is_bm25 = settings.type is IndexType.BM25
    versions = Versions.of([] if is_bm25 else folders)
    with versions.reading():
        plan = _plan(paths, inputs, settings, bm25, corpus, show_types)
        contents = _build(paths, plan, versions, model_source=Path(inputs[0]))
    return IndexResult(
        count=contents["count"],
        bytes=folder_bytes(Path(paths.output)),
        seconds=time.perf_counter() - started,
        recall=contents.get("recall"),
    )


def _check_inputs(paths: IndexPaths, settings: IndexSettings) -> None:
    """Raise a UsageError for inputs or an output that do not fit the type and the engine."""
    if not paths.output or settings.engine is Engine.MILVUS:
        raise UsageError("an index goes into a folder", "give --output, or --engine milvus")
    is_bm25 = settings.type is IndexType.BM25
    has_corpus = paths.corpus is not None
    if is_bm25 != has_corpus:
        wrong_input = "--input" if is_bm25 else "--corpus"
        hint = "--type bm25 indexes the text of --corpus, every other type the vectors of --input"
        raise UsageError(f"--type {settings.type} takes no {wrong_input}", hint)


def _plan(
    paths: IndexPaths,
    inputs: Sequence[str],
    settings: IndexSettings,
    bm25: Bm25Settings,
    corpus: CorpusSettings,
    show_types: "ShowTable | None",
) -> Plan:
    """Return the plan of an index by its type, or by what its inputs are."""
    if settings.type is IndexType.BM25:
        return Bm25Plan(paths.corpus or "", settings, bm25, corpus)
    if any(is_approximate(name) for name in inputs):
        return MergePlan(paths, inputs, settings)
    return VectorsPlan(paths, inputs, settings, show_types)


def _build(
    paths: IndexPaths, plan: Plan, versions: Versions, *, model_source: Path
) -> Mapping[str, Any]:
    """Build what is planned, unless it is there already; return the manifest's contents.

    The index is built in a temporary folder, which replaces the output once it is complete and
    `versions` of the inputs are unchanged. `model_source` is the input that may have an int8 model
    or control vectors.
    """
    planned = manifest.Manifest(manifest.Kind.INDEX, False, plan.recorded_settings, plan.made_from)
    output = Path(paths.output)
    overwrite = paths.overwrite
    if paths.resume and (output / MANIFEST).exists():
        present = manifest.read_manifest(output, manifest.Kind.INDEX, unfinished=True)
        if present.complete:
            check_present(output, present, planned)
            return present.contents
        overwrite = True  # an unfinished index is of no use: it starts over
    with whole_folder(output, overwrite=overwrite) as folder:
        contents = plan.fill(folder)
        _copy_model_files(model_source, folder)
        files = [path for path in sorted(folder.iterdir()) if path.is_file()]
        contents["sha256"] = {path.name: manifest.file_sha256(path) for path in files}
        contents["bytes"] = {path.name: path.stat().st_size for path in files}
        manifest.write_manifest(folder, replace(planned, complete=True, contents=contents))
        versions.require_unchanged()
    return contents


def _copy_model_files(source: Path, folder: Path) -> None:
    """Copy what a search needs of the model that encoded the vectors, if it is there.

    An int8 model encodes queries, too; control vectors show whether a server still has the model.
    """
    for name in (INT8_MODEL, INT8_WEIGHTS, CONTROL_FILE):
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def is_approximate(name: str) -> bool:
    """Return whether an input is an index folder of denserk that is not flat."""
    path = Path(name) / INDEX
    return path.is_file() and path.with_name(MANIFEST).is_file() and not is_flat(path)


def check_present(name: str | Path, present: manifest.Manifest, planned: manifest.Manifest) -> None:
    """Raise a MismatchError unless the index that is present is the planned one.

    If it is complete, log that there is nothing to do.
    """
    hint = "choose another output, or replace it with --overwrite"
    present_inputs = dict(present.made_from)
    planned_inputs = dict(planned.made_from)
    checksums = present_inputs.pop(VECTORS_SHA256, None)
    planned_checksums = planned_inputs.pop(VECTORS_SHA256, None)
    changes = manifest.differences(_compared_settings(present), _compared_settings(planned))
    changes += manifest.differences(present_inputs, planned_inputs)
    if changes:
        raise MismatchError(f"{name} was made with other settings: {'; '.join(changes)}", hint)
    # an index of an older version has no checksums
    if checksums is not None and checksums != planned_checksums:
        sources = ", ".join(planned.made_from["vectors"])
        raise MismatchError(f"{name} was built before {sources} was encoded again", hint)
    if present.complete:  # else a collection of a server, which is continued
        logger.info(f"{name} is finished: nothing to do")


def _compared_settings(index: manifest.Manifest) -> dict[str, Any]:
    """Return the settings of an index that decide what is in it."""
    return {name: value for name, value in index.settings.items() if name not in WITHOUT_EFFECT}


def with_engine_and_metric(settings: IndexSettings) -> IndexSettings:
    """Return settings that name engine and metric: those given, or the defaults."""
    default_engine = Engine.FAISS
    if settings.type is IndexType.BM25:
        default_engine = Engine.BM25S
    elif settings.is_flat and not installed("faiss"):
        default_engine = Engine.TORCH
    engine = settings.engine or default_engine
    return replace(settings, engine=engine, metric=settings.similarity)


def with_metric_of_model(
    settings: IndexSettings, model: manifest.Description | None
) -> IndexSettings:
    """Return settings that name their metric: the one given, or that of the vectors' model.

    Inner product where the model compares by distance is allowed, with a warning.
    """
    metric = manifest.metric_of_model(model)
    if settings.metric is None:
        return replace(settings, metric=metric)
    if settings.metric is Metric.INNER and metric is Metric.L2:
        logger.warning(
            "--metric inner: the model of the vectors compares by Euclidean distance, and the "
            "ranking will be another one"
        )
    return settings


class Bm25Plan(Plan):
    """A BM25 index of the texts of a corpus."""

    def __init__(
        self, source: str, settings: IndexSettings, bm25: Bm25Settings, corpus: CorpusSettings
    ) -> None:
        settings = with_engine_and_metric(settings)
        if bm25.language not in (None, AUTO):
            # recorded by name, whatever code it was given as
            bm25 = replace(bm25, language=find_language(bm25.language).name)
        self._source = source
        self._bm25 = bm25
        self._corpus = with_used_fields(source, corpus)
        self._threads = settings.threads
        self._uses_lucene = settings.engine is Engine.LUCENE
        if self._uses_lucene:
            require_lucene(bm25)
        else:
            require("bm25s", PURPOSE)
            _require_analyzer(bm25)
        self.recorded_settings = as_json(settings)
        self.recorded_settings |= {"bm25": as_json(bm25), "corpus": as_json(self._corpus)}
        self.made_from = {"texts": source}

    def fill(self, folder: Path) -> dict[str, Any]:
        """Write index and ids into a folder; return the contents of its manifest.

        The language `auto` is decided by the first texts.
        """
        digest = sha256()  # of the texts, once all are read
        texts = bm25_texts(self._source, self._bm25, self._corpus, digest)
        if self._bm25.language == AUTO:
            first_texts = list(islice(texts, SAMPLE))
            language = language_of_corpus(text for _, text in first_texts).name
            bm25 = replace(self._bm25, language=language)
            contents = self._build(folder, chain(first_texts, texts), bm25)
            contents["language"] = language
        else:
            contents = self._build(folder, texts, self._bm25)
        return {**contents, "texts_sha256": digest.hexdigest()}

    def _build(
        self, folder: Path, texts: Iterable[tuple[str, str]], bm25: Bm25Settings
    ) -> dict[str, Any]:
        """Index (id, text) pairs by the engine, in a language that is known; return counts."""
        if self._uses_lucene:
            return build_lucene(folder, texts, bm25, self._threads)
        return build_bm25(folder, texts, bm25)


def _require_analyzer(bm25: Bm25Settings) -> None:
    """Raise an error if the stemmer of the language is not installed, before the corpus is read."""
    if bm25.language != AUTO:  # whose language is known only from texts
        analyzer_of(bm25)


def bm25_texts(
    source: str, bm25: Bm25Settings, corpus: CorpusSettings, digest: Any
) -> Iterator[tuple[str, str]]:
    """Yield the id and the text of passages, and add both to a digest of hashlib.

    After the last one, a repeated id is rejected.
    """
    read = partial(read_passages, source, corpus, bm25.fields)
    fields = bm25.fields or ("title", "text")
    with track("reading text", None, "passages") as progress:
        for passage in Texts(source, "passages", read).checked():
            text = " ".join(map(passage.field, fields))
            # ASCII's unit and record separators, which make the digest depend on where texts end
            digest.update(f"{passage.docid}\x1f{text}\x1e".encode("utf-8", "surrogatepass"))
            yield passage.docid, text
            progress.advance()


class MergePlan(Plan):
    """Approximate indexes with the same training, merged into one."""

    def __init__(self, paths: IndexPaths, inputs: Sequence[str], settings: IndexSettings) -> None:
        if paths.trained_as is not None:
            message = f"--trained-as {paths.trained_as} is for vectors, and the inputs are indexes"
            hint = "leave it out: indexes with the same training are merged as they are"
            raise UsageError(message, hint)
        self._folders = faiss_templates.open_folders(inputs)
        indexes: list[dict[str, Any]] = []
        vectors: list[str] = []
        for name, folder_manifest in self._folders.manifests:
            indexes.append({"name": name, "sha256": folder_manifest.contents["sha256"]})
            vectors += folder_manifest.made_from.get("vectors", [])
        model = manifest.common_model(self._folders.manifests)
        manifest.reject_mixed_precision(self._folders.manifests)
        self.made_from = {"indexes": indexes, "vectors": vectors, "model": model}
        trained_settings = self._folders.template.complete_settings(settings)
        self.recorded_settings = as_json(with_engine_and_metric(trained_settings))

    def fill(self, folder: Path) -> dict[str, Any]:
        """Write index and ids into a folder; return the contents of its manifest."""
        faiss_templates.merge_folders(self._folders, folder)
        template = self._folders.template
        contents_of_folders = [
            folder_manifest.contents for _, folder_manifest in self._folders.manifests
        ]
        return {
            "count": sum(contents["count"] for contents in contents_of_folders),
            "dimension": template.index.d,
            "vectors_per_passage": self._folders.vectors_per_passage,
            "factory": template.factory,
            # an index holds codes: the recall of the whole cannot be measured without the vectors
            "recall_of_parts": [contents.get("recall") for contents in contents_of_folders],
        }


class VectorsPlan(Plan):
    """A flat or an approximate index of vectors."""

    def __init__(
        self,
        paths: IndexPaths,
        inputs: Sequence[str],
        settings: IndexSettings,
        show_types: "ShowTable | None" = None,
    ) -> None:
        self._show_types = show_types
        self._template: faiss_templates.Template | None = None
        if paths.trained_as is not None:
            self._template = faiss_templates.read_template(paths.trained_as)
            settings = self._template.complete_settings(settings)
        self._sources = open_sources(inputs, paths.allow_pickle)
        model = model_of_sources(self._sources)
        if self._template is not None:
            self._reject_other_training(self._template, model)
        self.made_from = self._origin(model)
        self._settings = with_engine_and_metric(with_metric_of_model(settings, model))
        self.recorded_settings = as_json(self._settings)
        self._count = known_count(self._sources)  # of passages; None: known only when all are read
        per_passage = self._sources[0].vectors_per_passage
        # (Q, D), with --target-recall alone: denserk chooses the type by them
        self._tuning_queries = _read_tuning_queries(self._settings, per_passage, model)
        self._check_size()

    def _origin(self, model: manifest.Description | None) -> dict[str, Any]:
        """Return what the manifest records of the vectors, and of the template."""
        origin: dict[str, Any] = {
            "vectors": [source.name for source in self._sources],
            VECTORS_SHA256: checksums_of_sources(self._sources),
            "model": model,
        }
        if self._template is not None:
            origin["trained_as"] = {"name": self._template.name, "sha256": self._template.sha256}
        return origin

    def _reject_other_training(
        self, template: faiss_templates.Template, model: manifest.Description | None
    ) -> None:
        """Raise an error if a template was trained on vectors of another model."""
        compared = f"the index {template.name} and the vectors {self._sources[0].name}"
        hint = "fill what was trained on vectors of the same model"
        template_model = manifest.model_of(template.manifest)
        manifest.reject_other_model(template_model, model, compared, hint)

    def _check_size(self) -> None:
        """Log the size of the vectors and check the memory for them, if their number is known.

        The memory depends on the index type, which may not be chosen yet.
        """
        source = self._sources[0]
        if self._count is None or source.manifest is None:
            return
        rows = self._count * source.vectors_per_passage
        dimension = source.manifest.contents["dimension"]
        size = decimal(rows * dimension * 4)
        logger.info(f"vectors: {rows:,} x {dimension} x 4 bytes = {size} on the disk")
        if not self._settings.is_flat and self._tuning_queries is None:
            empty_index = _index_to_fill(rows, dimension, self._settings, self._template)
            faiss_build.check_memory(empty_index, rows, self._settings)

    def fill(self, folder: Path) -> dict[str, Any]:
        """Write index and ids into a folder; return the contents of its manifest."""
        settings = self._settings
        if settings.is_flat:
            return gather(self._sources, folder / INDEX, settings.similarity)
        vectors_file = folder / VECTORS
        contents = gather(self._sources, vectors_file, settings.similarity)
        vectors, _ = map_flat(vectors_file)
        if self._tuning_queries is None:
            contents |= self._build_approximate(vectors, folder / INDEX)
            vectors_file.unlink()
        else:
            from denserk.index.tuning import build_for_recall

            # removes the file of vectors, or makes it the index if that is flat
            contents |= build_for_recall(
                vectors, vectors_file, settings, self._tuning_queries, self._show_types
            )
        return contents

    def _build_approximate(self, vectors: Vectors, path: Path) -> dict[str, Any]:
        """Build an index of (N, D) vectors; return its factory string and its recall."""
        settings = self._settings
        count, dimension = vectors.shape
        empty_index = _index_to_fill(count, dimension, settings, self._template)
        if self._count is None:  # else `_check_size` has checked it
            faiss_build.check_memory(empty_index, count, settings)
        faiss_build.build(vectors, path, empty_index, settings)
        index = FaissIndex(path, SearchSettings(), threads=settings.threads)
        block_count = math.ceil(count / RECALL_BLOCK)
        split_vectors = partial(np.array_split, vectors, block_count)
        recall = measure_recall(empty_index.factory, index, split_vectors, settings)
        return {"factory": empty_index.factory, "recall": recall}


def _read_tuning_queries(
    settings: IndexSettings, vectors_per_passage: int, model: manifest.Description | None
) -> Vectors | None:
    """Return the vectors (Q, D) of the queries that an index is tuned for, if there are any."""
    name = settings.encoded_queries
    if name is None:
        return None
    if vectors_per_passage > 1:
        message = f"--target-recall: the passages have {vectors_per_passage} vectors each"
        raise UsageError(message, "give a --type")
    source = read_vector_blocks(name)
    query_model = manifest.model_of(source.manifest)
    manifest.reject_other_model(model, query_model, f"the vectors and {name}", "use one model")
    return np.concatenate([block.vectors.astype(np.float32) for block in source.blocks()])


def _index_to_fill(
    count: int, dimension: int, settings: IndexSettings, template: faiss_templates.Template | None
) -> faiss_build.EmptyIndex:
    """Return an index without vectors, trained if there is a template."""
    if template is None:
        return faiss_build.create_index(count, dimension, settings)
    if template.index.d != dimension:
        message = (
            f"{template.name} was trained on vectors of {template.index.d} dimensions, and the "
            f"input has {dimension}"
        )
        raise MismatchError(message, "index vectors of the model that it was trained for")
    return faiss_build.EmptyIndex(template.factory, template.index)


def measure_recall(
    name: str,
    index: SearchableIndex,
    blocks: Callable[[], Iterable[Vectors]],
    settings: IndexSettings,
) -> float:
    """Log and return the recall@10 of an index, with some of its own vectors as queries.

    `blocks` returns the vectors of the index in its order, each time that it is called, in blocks
    of (B, D).
    """
    from denserk.index.exact import ExactIndex

    count = len(index)
    depth = min(RECALL_DEPTH, count)
    queries = _draw_vectors(count, blocks(), settings.seed)
    # a generator, so that one block is in memory at a time
    shards = (ExactIndex(np.array(block, np.float32), settings.similarity) for block in blocks())
    _, exact_hits = ShardedIndex(shards, index.dimension).search(queries, depth)
    _, hits = index.search(queries, depth)
    recall = float(recalls(hits, exact_hits).mean())
    logger.info(
        f"{name}: recall@{depth} {recall:.3f}, for {len(queries)} of its own vectors as queries"
    )
    return round(recall, 4)


def _draw_vectors(count: int, blocks: Iterable[Vectors], seed: int) -> Vectors:
    """Return RECALL_QUERIES of the `count` vectors in blocks, drawn at random: (Q, D)."""
    generator = np.random.default_rng(seed)
    rows = np.sort(generator.choice(count, min(RECALL_QUERIES, count), replace=False))
    vectors = []
    first_row = 0  # of the block
    for block in blocks:
        is_in_block = (rows >= first_row) & (rows < first_row + len(block))
        rows_of_block = rows[is_in_block] - first_row
        vectors.append(np.array(block[rows_of_block], np.float32))
        first_row += len(block)
    return np.concatenate(vectors)
