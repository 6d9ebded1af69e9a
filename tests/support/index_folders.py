"""Small vectors, vector folders and indexes, and what a search of them must find."""

from pathlib import Path
from typing import Any

import numpy as np

from denserk.config.retrieval import IndexPaths, IndexSettings, IndexType, Metric
from denserk.io.blocks import Block
from denserk.io.manifest import Kind, Manifest, write_manifest
from denserk.io.vector_formats import part_names, write_flat
from denserk.io.vectors import VectorFolderWriter
from denserk.tasks.build_index import IndexResult, build_index

MODEL = {"name": "m", "fingerprint": "1"}


def whole_numbers(seed, rows, dimension=6):
    """Small whole numbers: inner products are exact in float32, in any order, and often equal."""
    return np.random.default_rng(seed).integers(-3, 4, (rows, dimension)).astype(np.float32)


def vector_folder(
    folder, ids, vectors, *, size=1, block=7, dtype="float32", settings=None, model=MODEL
):
    """A finished folder of vectors, as `denserk encode` writes it."""
    folder.mkdir(parents=True)
    manifest = Manifest(Kind.VECTORS, False, settings or {}, {"model": model} if model else {})
    writer = VectorFolderWriter(folder, manifest, dtype)
    for number, start in enumerate(range(0, len(ids), block)):
        block_ids = list(ids[start : start + block])
        rows = vectors[start * size : (start + block) * size]
        writer.write(Block(number, len(block_ids), ""), block_ids, rows)
    writer.finish({"dimension": vectors.shape[1], "vectors_per_passage": size})
    return str(folder)


def flat_folder(folder, ids, vectors, *, size=1, metric=Metric.INNER):
    """A flat index as Pyserini writes it; with denserk's manifest for several vectors."""
    folder.mkdir(parents=True)
    lines: list[str] = []
    for docid in ids:
        lines += part_names(docid, size)
    write_flat(folder / "index", metric, [(lines, vectors)])
    if size > 1:
        settings = {"engine": "faiss", "metric": metric}
        contents = {"count": len(ids), "vectors_per_passage": size}
        write_manifest(folder, Manifest(Kind.INDEX, True, settings, {"model": MODEL}, contents))
    return str(folder)


def index(output, *inputs, settings=None, factory=None, **paths: Any) -> IndexResult:
    """Run `denserk index` with one thread, so that bytes repeat."""
    settings = settings or IndexSettings(factory=factory, threads=1)
    if settings.type is IndexType.BM25:
        paths["corpus"] = str(inputs[0])
    else:
        paths["input"] = tuple(map(str, inputs))
    return build_index(IndexPaths(output=str(output), **paths), settings)


def names_of(ids):
    return lambda passages: [ids[passage] for passage in passages.tolist()]


def found(searcher, qids, queries):
    return dict(searcher.search(qids, queries))


def best(ids, vectors, query, hits, *, size=1, metric=Metric.INNER):
    """The best (id, score) pairs: every passage scored, sorted by score, then id, descending."""
    scores = vectors.astype(np.float64) @ query
    if metric is Metric.L2:
        scores = -np.square(vectors.astype(np.float64) - query).sum(1)
    pairs = zip(ids, scores.reshape(-1, size).max(1).tolist(), strict=True)
    return sorted(pairs, key=lambda hit: hit[::-1], reverse=True)[:hits]


def bytes_of(folder: Path, *names: str) -> list[bytes]:
    return [(folder / name).read_bytes() for name in names]
