"""Build an index folder, which denserk and Pyserini open, from vectors, a corpus or indexes."""

import logging
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from rich.filesize import decimal

from denserk.config.formats import DETECTED, CorpusSettings
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
from denserk.index import faiss_index
from denserk.index.bm25 import PURPOSE, Analyzer, build_bm25, build_lucene, require_lucene
from denserk.index.folder import INDEX, expanded, folder_bytes, gather, known_count, open_sources
from denserk.index.searcher import SearchableIndex, ShardedIndex, Vectors, recalls
from denserk.io import manifest
from denserk.io.blocks import Texts
from denserk.io.corpus import read_passages
from denserk.io.outputs import named_paths, refuse_inputs, whole_folder
from denserk.io.vector_formats import is_flat, map_flat
from denserk.io.vectors import INT8_MODEL, INT8_WEIGHTS, read_vector_blocks, verify_folders
from denserk.io.versions import Versions
from denserk.records import Passage
from denserk.reporting import track

logger = logging.getLogger(__name__)

VECTORS = "vectors"  # file of the vectors of an approximate index, while it is built
VECTORS_SHA256 = "vectors_sha256"  # in `made_from`: checksums of the journals of vectors
UNCOMPARED = ("threads", "device")  # settings that do not change the index
# recall: queries, hits of a query, vectors read at once
QUERIES, DEPTH, BLOCK = 100, 10, 16_384


@dataclass(frozen=True)
class IndexResult:
    """Passages, bytes of the folder, seconds, and the recall of an approximate index."""

    count: int
    bytes: int
    seconds: float
    recall: float | None = None


# content of an index folder, checked before anything is written: settings and inputs for the
# manifest; writes index and ids, and returns the manifest's contents
Plan = tuple[Mapping[str, Any], Mapping[str, Any], Callable[[Path], dict[str, Any]]]


def build_index(
    paths: IndexPaths,
    settings: IndexSettings = IndexSettings(),  # noqa: B008  (frozen)
    bm25: Bm25Settings = Bm25Settings(),  # noqa: B008
    corpus: CorpusSettings = DETECTED,
) -> IndexResult:
    """Build an index in a folder."""
    start = time.perf_counter()
    if not paths.output or settings.engine is Engine.MILVUS:
        raise UsageError("an index goes into a folder", "give --output, or --engine milvus")
    is_bm25 = settings.type is IndexType.BM25
    if is_bm25 != (paths.corpus is not None):
        given = "--input" if is_bm25 else "--corpus"
        hint = "--type bm25 indexes the text of --corpus, every other type the vectors of --input"
        raise UsageError(f"--type {settings.type} takes no {given}", hint)
    inputs = expanded(paths.input) if paths.input else [paths.corpus or ""]
    refuse_inputs(Path(paths.output), named_paths(inputs, paths.trained_as), resume=paths.resume)
    folders = [*inputs, *filter(None, [paths.trained_as, settings.encoded_queries])]
    if paths.verify:
        verify_folders(folders)
    if is_bm25:
        plan = _plan_bm25(paths.corpus or "", settings, bm25, corpus)
        contents = _build(paths, inputs, plan, Versions.of([]))
    else:
        versions = Versions.of(folders)  # the whole index is of one version of each
        with versions.reading():
            plan_inputs = _plan_merge if any(map(is_approximate, inputs)) else _plan_vectors
            contents = _build(paths, inputs, plan_inputs(paths, inputs, settings), versions)
    count, recall = contents["count"], contents.get("recall")
    size = folder_bytes(Path(paths.output))
    return IndexResult(count, size, time.perf_counter() - start, recall)


def _build(
    paths: IndexPaths, inputs: Sequence[str], plan: Plan, versions: Versions
) -> Mapping[str, Any]:
    """Build what is planned, unless it is there already; return the manifest's contents.

    An index is built in one go, beside its place: until it is complete, an old one stays there.
    """
    recorded_settings, made_from, fill = plan
    planned = manifest.Manifest(manifest.Kind.INDEX, False, recorded_settings, made_from)
    output = Path(paths.output)
    starts_over = paths.overwrite
    if paths.resume and (output / manifest.NAME).exists():
        present = manifest.read_manifest(output, manifest.Kind.INDEX, unfinished=True)
        if present.complete:
            return resumed(output, present, planned).contents
        starts_over = True
    with whole_folder(output, overwrite=starts_over) as folder:
        contents = fill(folder)
        for name in (INT8_MODEL, INT8_WEIGHTS):  # queries are encoded by it too
            if (Path(inputs[0]) / name).is_file():
                shutil.copyfile(Path(inputs[0]) / name, folder / name)
        files = [item for item in sorted(folder.iterdir()) if item.is_file()]
        contents["sha256"] = {item.name: manifest.file_sha256(item) for item in files}
        contents["bytes"] = {item.name: item.stat().st_size for item in files}
        manifest.write_manifest(folder, replace(planned, complete=True, contents=contents))
        versions.require_unchanged()
    return contents


def is_approximate(name: str) -> bool:
    """Return whether an input is an index folder of denserk that is not flat."""
    path = Path(name) / INDEX
    return path.is_file() and path.with_name(manifest.NAME).is_file() and not is_flat(path)


def resumed(
    where: str | Path, present: manifest.Manifest, planned: manifest.Manifest
) -> manifest.Manifest:
    """Return the manifest that is present; a MismatchError if the planned one differs from it."""
    hint = "choose another output, or replace it with --overwrite"
    made_from, planned_from = dict(present.made_from), dict(planned.made_from)
    checksums = made_from.pop(VECTORS_SHA256, None)
    planned_checksums = planned_from.pop(VECTORS_SHA256, None)
    changes = manifest.differences(_compared_settings(present), _compared_settings(planned))
    changes += manifest.differences(made_from, planned_from)
    if changes:
        raise MismatchError(f"{where} was made with other settings: {'; '.join(changes)}", hint)
    # an index of an older version has no checksums; an unfinished one starts over
    if present.complete and checksums is not None and checksums != planned_checksums:
        names = ", ".join(planned.made_from["vectors"])
        raise MismatchError(f"{where} was built before {names} was encoded again", hint)
    if present.complete:
        logger.info(f"{where} is finished: nothing to do")
    return present


def _compared_settings(index: manifest.Manifest) -> dict[str, Any]:
    """Return the settings of an index that decide what is in it."""
    return {name: value for name, value in index.settings.items() if name not in UNCOMPARED}


def with_engine(settings: IndexSettings) -> IndexSettings:
    """Return settings that name their engine: the one given, or the default."""
    default = Engine.TORCH if settings.is_flat and not installed("faiss") else Engine.FAISS
    if settings.type is IndexType.BM25:
        default = Engine.BM25S
    return replace(settings, engine=settings.engine or default, metric=settings.similarity)


def with_metric(settings: IndexSettings, model: manifest.Description | None) -> IndexSettings:
    """Return settings that name their metric: the one given, or that of the vectors' model."""
    metric = manifest.metric_of_model(model)
    if settings.metric is None:
        return replace(settings, metric=metric)
    if settings.metric is Metric.INNER and metric is Metric.L2:
        logger.warning(
            "--metric inner: the model of the vectors compares by Euclidean distance, and the "
            "ranking will be another one"
        )
    return settings


def _plan_bm25(
    source: str, settings: IndexSettings, bm25: Bm25Settings, corpus: CorpusSettings
) -> Plan:
    settings = with_engine(settings)
    in_lucene = settings.engine is Engine.LUCENE
    if in_lucene:
        require_lucene(bm25)
    else:
        require("bm25s", PURPOSE)
        Analyzer(bm25)
    chosen = as_json(settings) | {"bm25": as_json(bm25), "corpus": as_json(corpus)}

    def fill(folder: Path) -> dict[str, Any]:
        digest = sha256()
        texts = bm25_texts(source, bm25, corpus, digest)
        if in_lucene:
            contents = build_lucene(folder, texts, bm25, settings.threads)
        else:
            contents = build_bm25(folder, texts, bm25)
        return {**contents, "texts_sha256": digest.hexdigest()}

    return chosen, {"texts": source}, fill


def bm25_texts(
    source: str, bm25: Bm25Settings, corpus: CorpusSettings, digest: Any
) -> Iterator[tuple[str, str]]:
    """Yield the id and the text of passages, and add both to a digest."""

    def read() -> Iterator[Passage]:
        return read_passages(source, corpus, fields=bm25.fields)

    with track("reading text", None, "passages") as progress:
        for passage in Texts(source, "passages", read).checked():
            text = " ".join(map(passage.field, bm25.fields or ("title", "text")))
            digest.update(f"{passage.docid}\x1f{text}\x1e".encode("utf-8", "surrogatepass"))
            yield passage.docid, text
            progress.advance()


def _plan_merge(paths: IndexPaths, inputs: Sequence[str], settings: IndexSettings) -> Plan:
    if paths.trained_as is not None:
        given = f"--trained-as {paths.trained_as} is for vectors, and the inputs are indexes"
        hint = "leave it out: indexes with the same training are merged as they are"
        raise UsageError(given, hint)
    parts = faiss_index.open_parts(inputs)
    manifests = [part.manifest for part in parts]
    made_from: dict[str, Any] = {
        "indexes": [{"name": p.name, "sha256": p.manifest.contents["sha256"]} for p in parts],
        "vectors": [name for made in manifests for name in made.made_from.get("vectors", [])],
        "model": manifest.common_model((p.name, p.manifest) for p in parts),
    }

    def fill(folder: Path) -> dict[str, Any]:
        faiss_index.merge_folders(parts, folder)
        return {
            "count": sum(made.contents["count"] for made in manifests),
            "dimension": parts[0].index.d,
            "vectors_per_passage": manifest.vectors_per_passage(manifests[0]),
            "factory": parts[0].factory,
            # an index holds codes: the recall of the whole cannot be measured without the vectors
            "recall_of_parts": [made.contents.get("recall") for made in manifests],
        }

    return as_json(with_engine(parts[0].settings(settings))), made_from, fill


def _plan_vectors(paths: IndexPaths, inputs: Sequence[str], settings: IndexSettings) -> Plan:
    template = None
    if paths.trained_as is not None:
        template = faiss_index.read_template(paths.trained_as)
        settings = template.settings(settings)
    sources = open_sources(inputs, paths.allow_pickle)
    made_from: dict[str, Any] = {
        "vectors": [s.name for s in sources],
        VECTORS_SHA256: [_journal_sha256(source.manifest) for source in sources],
        "model": manifest.common_model((s.name, s.manifest) for s in sources),
    }
    if template is not None:
        both = f"the index {template.name} and the vectors {sources[0].name}"
        hint = "fill what was trained on vectors of the same model"
        trained_on = manifest.model_of(template.manifest)
        manifest.refuse_other_model(trained_on, made_from["model"], both, hint)
        made_from["trained_as"] = {"name": template.name, "sha256": template.sha256}
    settings = with_engine(with_metric(settings, made_from["model"]))
    count, described = known_count(sources), sources[0].manifest
    queries = _read_queries(settings, sources[0].vectors_per_passage, made_from["model"])
    if count is not None and described is not None:
        rows, dimension = count * sources[0].vectors_per_passage, described.contents["dimension"]
        size = decimal(rows * dimension * 4)
        logger.info(f"vectors: {rows:,} x {dimension} x 4 bytes = {size} on the disk")
        if not settings.is_flat and queries is None:
            faiss_index.check_memory(*_to_fill(rows, dimension, settings, template), rows, settings)

    def fill(folder: Path) -> dict[str, Any]:
        target = folder / (INDEX if settings.is_flat else VECTORS)
        contents = gather(sources, target, settings.similarity)
        if settings.is_flat:
            return contents
        vectors, _ = map_flat(target)
        if queries is not None:
            from denserk.index.tuning import build_for_recall

            return contents | build_for_recall(vectors, target, settings, queries)
        factory, index = _to_fill(len(vectors), vectors.shape[1], settings, template)
        if count is None:
            faiss_index.check_memory(factory, index, len(vectors), settings)
        faiss_index.build(vectors, folder / INDEX, settings, factory, index)
        opened = faiss_index.FaissIndex(folder / INDEX, SearchSettings(), threads=settings.threads)
        blocks = partial(np.array_split, vectors, -(-len(vectors) // BLOCK))
        recall = measure_recall(factory, opened, blocks, settings)
        target.unlink()
        return contents | {"factory": factory, "recall": recall}

    return as_json(settings), made_from, fill


def _journal_sha256(vectors: manifest.Manifest | None) -> str | None:
    """Return the checksum that a folder of vectors has of its journal, and so of its files."""
    return None if vectors is None else vectors.contents.get("journal_sha256")


def _read_queries(settings: IndexSettings, size: int, model: Any) -> Vectors | None:
    if (name := settings.encoded_queries) is None:
        return None
    if size > 1:
        raise UsageError(f"--target-recall: the passages have {size} vectors each", "give a --type")
    source = read_vector_blocks(name)
    own, both = manifest.model_of(source.manifest), f"the vectors and {name}"
    manifest.refuse_other_model(model, own, both, "use one model")
    return np.concatenate([block.vectors.astype(np.float32) for block in source.blocks()])


def _to_fill(
    count: int, dimension: int, settings: IndexSettings, template: faiss_index.Template | None
) -> tuple[str, Any]:
    """Return a factory string and an index without vectors, trained if there is a template."""
    if template is None:
        return faiss_index.empty_index(count, dimension, settings)
    if template.index.d != dimension:
        trained = f"{template.name} was trained on vectors of {template.index.d} dimensions"
        hint = "index vectors of the model that it was trained for"
        raise MismatchError(f"{trained}, and the input has {dimension}", hint)
    return template.factory, template.index


def measure_recall(
    what: str, index: SearchableIndex, blocks: Callable[[], Iterable[Vectors]], given: IndexSettings
) -> float:
    """Log and return the recall@10 of an index, with some of its own vectors as queries."""
    from denserk.index.exact import ExactIndex

    count = len(index)
    drawn = np.random.default_rng(given.seed).choice(count, min(QUERIES, count), replace=False)
    rows, first, found = np.sort(drawn), 0, []
    for block in blocks():
        inside = rows[(rows >= first) & (rows < first + len(block))] - first
        found.append(np.array(block[inside], np.float32))
        first += len(block)
    queries, depth = np.concatenate(found), min(DEPTH, count)
    parts = (ExactIndex(np.array(block, np.float32), given.similarity) for block in blocks())
    _, exact = ShardedIndex(parts, index.dimension).search(queries, depth)
    _, hits = index.search(queries, depth)
    recall = float(recalls(hits, exact).mean())
    asked = f"for {len(queries)} of its own vectors as queries"
    logger.info(f"{what}: recall@{depth} {recall:.3f}, {asked}")
    return round(recall, 4)
