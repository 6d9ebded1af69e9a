"""Index folders that share a trained part, for tests of taking it and of merging them."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np

from denserk.config.retrieval import IndexPaths, IndexSettings
from denserk.index.build import IndexResult, build_index
from denserk.io.block_journal import Block
from denserk.io.manifest import Kind, Manifest
from denserk.io.vector_folder import VectorFolderWriter

COUNT = 1200
VECTORS = np.random.default_rng(11).normal(size=(COUNT, 8)).astype(np.float32)
CUTS = (0, 500, 510, COUNT)
"""Where one part ends and the next begins; the second is smaller than a block of BLAS."""
MODEL = {"name": "m", "fingerprint": "1"}


def forget_checks(folder: Path) -> Path:
    """Takes sizes and checksums out of an index's manifest, as older versions wrote it."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["contents"] |= {"bytes": {}, "sha256": {}}
    path.write_text(json.dumps(manifest))
    return folder


def settings_for(factory: str | None = None, **given: object) -> IndexSettings:
    """One thread, so that bytes repeat."""
    return IndexSettings(factory=factory, threads=1, **given)  # type: ignore[arg-type]


def index(
    output: Path,
    inputs: tuple[Path | str, ...],
    settings: IndexSettings | None = None,
    **paths: object,
) -> IndexResult:
    """Runs `denserk index`."""
    names = tuple(map(str, inputs))
    asked = IndexPaths(input=names, output=str(output), **paths)  # type: ignore[arg-type]
    return build_index(asked, settings or settings_for())


def write_shards(folder: Path, size: int = 1) -> list[Path]:
    """VECTORS as three folders shards/0..2, `size` vectors a passage."""
    shards = []
    for number, (first, last) in enumerate(pairwise(CUTS)):
        ids = [f"d{n}" for n in range(first // size, last // size)]
        shard = folder / "shards" / str(number)
        shard.mkdir(parents=True)
        manifest = Manifest(Kind.VECTORS, False, {}, {"model": MODEL})
        writer = VectorFolderWriter(shard, manifest, "float32")
        writer.write(Block(0, len(ids), ""), ids, VECTORS[first:last])
        writer.finish({"dimension": 8, "vectors_per_passage": size})
        shards.append(shard)
    return shards


def write_parts(folder: Path, settings: IndexSettings, size: int = 1) -> list[Path]:
    """Indexes of the shards, parts/0..2: the first is trained, the others as the first."""
    shards = write_shards(folder, size)
    parts = [folder / "parts" / shard.name for shard in shards]
    index(parts[0], (shards[0],), settings)
    plain = settings_for(metric=settings.metric)
    for part, shard in zip(parts[1:], shards[1:], strict=True):
        index(part, (shard,), plain, trained_as=str(parts[0]))
    return parts
