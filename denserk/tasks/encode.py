"""Texts -> embeddings: streaming, in independent blocks, resumable, by one process or several."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from denserk.config.encoding import (
    Backend,
    ComputeSettings,
    EncodeSettings,
    TextSettings,
    VectorFormat,
)
from denserk.config.formats import CorpusSettings
from denserk.config.options import as_json
from denserk.data.batches import PlannedTexts
from denserk.errors import MismatchError, UsageError
from denserk.io.block_journal import Block
from denserk.io.corpus import read_passages
from denserk.io.files import STREAM
from denserk.io.manifest import NAME, Kind, Manifest, read_manifest
from denserk.io.outputs import prepare_folder, refuse_occupied
from denserk.io.topics import read_queries
from denserk.io.vector_folder import INT8_WEIGHTS, VectorFolderWriter, begin_vectors
from denserk.io.vector_formats import Vectors, refuse_non_finite
from denserk.io.vectors import open_writer
from denserk.models.devices import choose_device
from denserk.models.text_encoder import (
    CALIBRATION_TEXTS,
    CERTIFICATION_TEXTS,
    ComingVectors,
    TextEncoder,
)
from denserk.records import Passage, Query
from denserk.reporting import Progress, track
from denserk.tasks.blocks import (
    Texts,
    ahead,
    behind,
    blocks_of_shard,
    dealt,
    refuse_other_run,
    size_of_shard,
    texts_sha256,
)
from denserk.training.distributed import (
    device_of_rank,
    from_main_process,
    gather_objects,
    launched,
    process_group,
    world,
)

Records = Sequence[Any]  # passages, or queries
Blocks = Iterable[tuple[int, Records]]  # with their numbers
# Passages a block where --block-size is not given. A CPU makes 4,096 in minutes, which a kill would
# cost; a GPU makes them in a second, and 512 would not fill it.
BLOCK_SIZES = {"cpu": 512, "cuda": 4096}


@dataclass
class EncodeResult:
    """Vectors in the output, and the work of this run.

    Attributes:
        count: vectors in the output.
        dimension: theirs.
        encoded: texts that were encoded now.
        seconds: from the first of these being read to the last being written.
        tokens: their tokens.
        positions: the same with padding.
    """

    count: int = 0
    dimension: int = 0
    encoded: int = 0
    seconds: float = 0.0
    tokens: int = 0
    positions: int = 0

    @property
    def per_second(self) -> float:
        """Texts a second, of those encoded now."""
        return self.encoded / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Their tokens a second."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def padding(self) -> float:
        """Which share of the positions was padding."""
        return 1 - self.tokens / self.positions if self.positions else 0.0


def _parts(record: Passage | Query, text: TextSettings) -> list[str]:
    """Return what the tokenizer will see of a record, before it is joined."""
    return [record.field(f) for f in text.fields] if isinstance(record, Passage) else [record.text]


def _manifest(
    encoder: TextEncoder, settings: EncodeSettings, corpus: CorpusSettings, compute: ComputeSettings
) -> Manifest:
    chosen = {
        "side": settings.side,
        "vector_dtype": settings.vector_dtype.value,
        "block_size": settings.block_size,
        "shard_id": settings.shard_id,
        "shard_num": settings.shard_num,
        **as_json(corpus),
        "device": encoder.device.type,
        "dtype": compute.dtype.value,
        "batch_tokens": encoder.batch_tokens,
        "batch_size": compute.batch_size,
        "threads": compute.threads,
        **({"qrels": settings.qrels} if settings.qrels else {}),
    }
    return Manifest(
        kind=Kind.VECTORS,
        complete=False,
        settings=chosen,
        made_from={"model": encoder.description(), "texts": settings.source},
    )


def _begun(settings: EncodeSettings) -> Manifest | None:
    """Return the manifest of the folder that is continued, if there is one."""
    if not settings.resume or not (Path(settings.output) / NAME).exists():
        return None
    return read_manifest(settings.output, Kind.VECTORS, unfinished=True)


def _block_size(settings: EncodeSettings, begun: Manifest | None, device: str) -> int:
    """Passages a block: as asked, else of the folder that is continued, else by device."""
    if settings.block_size is not None:
        return settings.block_size
    size = begun.settings.get("block_size") if begun else None
    if isinstance(size, int) and size > 0:
        return size
    return BLOCK_SIZES[choose_device(device).type]


def _int8(
    settings: EncodeSettings, texts: Texts, encoder: TextEncoder, begun: Manifest | None
) -> dict[str, Any] | None:
    """Make the encoder int8: as the folder that is continued has it, else by its first texts."""
    recorded = begun.made_from["model"].get("int8") if begun else None
    folder = Path(settings.output)
    if recorded and (folder / INT8_WEIGHTS).exists():
        encoder.use_int8(folder, recorded, queries=settings.topics is not None)
    else:
        encoder.quantize(list(islice(texts.read(), CALIBRATION_TEXTS + CERTIFICATION_TEXTS)))
    return encoder.int8


def _writer(
    settings: EncodeSettings, manifest: Manifest, encoder: TextEncoder, begun: Manifest | None
) -> VectorFolderWriter:
    """Return this process' writer of the folder, which the main process prepares."""
    folder = Path(settings.output)

    def begin() -> tuple[Manifest, dict[int, Block]]:
        prepare_folder(folder, overwrite=settings.overwrite, resume=settings.resume)
        if begun is not None:
            refuse_other_run(folder, begun, manifest, ["model"])
        finished = begin_vectors(folder, manifest)
        if settings.int8 and not (folder / INT8_WEIGHTS).exists():
            encoder.save_int8(folder)
        return manifest, finished

    first, finished = from_main_process(begin)
    rank, _ = world()
    if rank:
        refuse_other_run(folder, first, manifest, ["model"])
        if encoder.int8:
            encoder.use_int8(folder, encoder.int8, queries=settings.topics is not None)
    return VectorFolderWriter(folder, manifest, settings.vector_dtype.value, finished, rank)


def encode(
    settings: EncodeSettings,
    corpus: CorpusSettings,
    representation: Mapping[str, Any],
    text: Mapping[str, Any],
    compute: ComputeSettings,
) -> EncodeResult:
    """Encode one side of a collection.

    Args:
        settings: what to encode, with which weights, to where.
        corpus: how passages are read.
        representation: fields of RepresentationSettings that override the model's own.
        text: fields of TextSettings that override the model's own.
        compute: where and how precisely.

    Raises:
        UsageError, InputError, MismatchError, OutputError, ModelError: see `denserk.errors`.
    """
    if launched():
        alone = "by one process only; start it without torchrun"
        if settings.source == STREAM:
            raise UsageError(f"a stream can be read {alone}", "write it to a file first")
        if settings.output_format is not VectorFormat.NPY:
            raise UsageError(
                f"--output-format {settings.output_format} is written {alone}",
                "use --output-format npy, and denserk convert afterwards",
            )
    device = device_of_rank(compute.device)
    with process_group(device):
        return _encode(settings, corpus, representation, text, replace(compute, device=device))


def _encode(
    settings: EncodeSettings,
    corpus: CorpusSettings,
    representation: Mapping[str, Any],
    text: Mapping[str, Any],
    compute: ComputeSettings,
) -> EncodeResult:
    read: Callable[[], Iterator[Any]]
    if settings.topics is None:
        read = partial(read_passages, settings.source, corpus, text.get("fields"))
    else:
        read = partial(read_queries, settings.source, settings.topics_format, settings.qrels)
    texts = Texts(settings.source, "passages" if settings.topics is None else "queries", read)
    blocked = settings.output_format is VectorFormat.NPY

    def look() -> tuple[int | None, Manifest | None]:
        if blocked:
            refuse_occupied(settings.output, overwrite=settings.overwrite, resume=settings.resume)
        return texts.survey(), _begun(settings)

    count, begun = from_main_process(look)
    size = _block_size(settings, begun, compute.device)
    if begun is not None and compute.backend is Backend.AUTO:
        # written before there was a choice: by torch
        recorded = begun.made_from["model"].get("backend", Backend.TORCH)
        compute = replace(compute, backend=Backend(recorded))
    settings = replace(settings, block_size=size)
    bounds = blocks_of_shard(count, size, settings.shard_id, settings.shard_num)
    encoder = TextEncoder.load(settings.model, representation, text, compute)
    if settings.int8:
        encoder.int8 = from_main_process(lambda: _int8(settings, texts, encoder, begun))
    manifest = _manifest(encoder, settings, corpus, compute)
    blocks = texts.blocks(size, bounds)
    with track("encoding", size_of_shard(count, size, bounds), texts.unit) as progress:
        if blocked:
            writer = _writer(settings, manifest, encoder, begun)
            return _encode_folder(settings, encoder, writer, blocks, progress)
        return _encode_stream(settings, encoder, manifest, blocks, progress)


def _vectors_each(settings: EncodeSettings, encoder: TextEncoder) -> int:
    """Return how many vectors one text has; a query has one."""
    return encoder.vectors_per_passage if settings.topics is None else 1


def _encode_folder(
    settings: EncodeSettings,
    encoder: TextEncoder,
    writer: VectorFolderWriter,
    blocks: Blocks,
    progress: Progress,
) -> EncodeResult:
    """Write the resumable folder."""
    before = dict(writer.finished)

    def write(block: Block, records: Records, vectors: Vectors) -> None:
        writer.write(block, [record[0] for record in records], vectors)

    result = _encode_blocks(settings, encoder, blocks, before, write, progress)
    made = {n: block for n, block in writer.finished.items() if n not in before}
    if world()[1] > 1:
        progress.note("waiting for the other processes")
    everybody = gather_objects((made, result))

    def finish() -> EncodeResult:
        for blocks, _ in everybody:
            writer.finished |= blocks
        each = _vectors_each(settings, encoder)
        whole = writer.finish({"dimension": encoder.dimension, "vectors_per_passage": each})
        parts = [part for _, part in everybody]
        return EncodeResult(
            whole.contents["count"],
            encoder.dimension,
            encoded=sum(part.encoded for part in parts),
            seconds=max(part.seconds for part in parts),
            tokens=sum(part.tokens for part in parts),
            positions=sum(part.positions for part in parts),
        )

    return from_main_process(finish)


def _encode_stream(
    settings: EncodeSettings,
    encoder: TextEncoder,
    manifest: Manifest,
    blocks: Blocks,
    progress: Progress,
) -> EncodeResult:
    """Write another tool's format, whole or not at all; several vectors of d1 are d1#0, d1#1."""
    each = _vectors_each(settings, encoder)

    def write(_: Block, records: Records, vectors: Vectors) -> None:
        names = [record[0] for record in records]
        contents = [" ".join(filter(None, _parts(record, encoder.text))) for record in records]
        if each > 1:
            names = [f"{name}#{i}" for name in names for i in range(each)]
            contents = [content for content in contents for _ in range(each)]
        stored = vectors.astype(settings.vector_dtype.value, copy=False)
        refuse_non_finite(settings.output, names, stored)
        out.write(names, stored, contents)

    with open_writer(
        settings.output,
        settings.output_format,
        overwrite=settings.overwrite,
        queries=settings.topics is not None,
        manifest=replace(manifest, complete=True),
    ) as out:
        return _encode_blocks(settings, encoder, blocks, {}, write, progress)


def _encode_blocks(
    settings: EncodeSettings,
    encoder: TextEncoder,
    blocks: Blocks,
    finished: Mapping[int, Block],
    write: Callable[[Block, Records, Vectors], None],
    progress: Progress,
) -> EncodeResult:
    """Encode this process' blocks; reading, tokenising and writing overlap with the model.

    Finished blocks are compared with the input and passed over.
    """
    of_passages = settings.topics is None
    plan: Callable[[Any], PlannedTexts]
    plan = encoder.plan_passages if of_passages else encoder.plan_queries
    begin = encoder.begin_passages if of_passages else encoder.begin_queries
    seen: set[int] = set()

    def prepare(dealt: tuple[int, Records, bool]) -> tuple[Block, Records, PlannedTexts | None]:
        number, records, own = dealt
        seen.add(number)
        if not own:
            return Block(number, len(records), ""), records, None
        digest = texts_sha256([record[0], *_parts(record, encoder.text)] for record in records)
        block = Block(number, len(records), digest)
        if number not in finished:
            return block, records, plan(records)
        if finished[number] != block:
            raise MismatchError(
                f"{block.name} of {settings.output} was made from other texts than "
                f"{settings.source} holds there now",
                "start over with --overwrite",
            )
        return block, records, None

    def finish(made: tuple[Block, Records, ComingVectors]) -> None:
        block, records, vectors = made
        write(block, records, vectors.array())

    result, start = EncodeResult(dimension=encoder.dimension), time.perf_counter()
    shares = dealt(blocks, finished, *world())
    with closing(ahead(prepare, shares, settings.workers)) as ready, behind(finish) as hand_over:
        for block, records, planned in ready:
            if planned is None:
                progress.advance(block.count)
                if not result.encoded:  # time counts from the first text that is encoded
                    start = time.perf_counter()
                continue
            hand_over((block, records, begin(planned, progress.advance)))
            result.encoded += planned.count
            result.tokens += planned.tokens
            result.positions += planned.positions
    if extra := sorted(finished.keys() - seen):
        raise MismatchError(
            f"{settings.output} holds block {extra[0]}, past the end of {settings.source}",
            "start over with --overwrite",
        )
    result.count = result.encoded
    result.seconds = time.perf_counter() - start if result.encoded else 0.0
    return result
