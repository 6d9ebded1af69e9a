"""Texts -> embeddings: streaming, in independent blocks, resumable, by one process or several."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from denserk.config.encoding import ComputeSettings, EncodeSettings, TextSettings, VectorFormat
from denserk.config.formats import CorpusSettings
from denserk.config.options import as_json
from denserk.data.batches import PlannedTexts
from denserk.errors import MismatchError, UsageError
from denserk.io.block_journal import Block
from denserk.io.corpus import read_passages
from denserk.io.files import STREAM
from denserk.io.id_ledger import IdLedger
from denserk.io.manifest import NAME, Kind, Manifest, read_manifest
from denserk.io.outputs import prepare_folder, refuse_occupied
from denserk.io.topics import read_queries
from denserk.io.vector_block import refuse_non_finite
from denserk.io.vector_folder import VectorFolderWriter, begin_vectors
from denserk.io.vectors import open_writer
from denserk.models.devices import choose_device
from denserk.models.text_encoder import ComingVectors, TextEncoder
from denserk.records import Passage, Query
from denserk.reporting import Progress, track
from denserk.tasks.blocks import (
    blocks_of_shard,
    check_ids,
    dealt,
    numbered_blocks,
    refuse_other_run,
    survey,
    texts_sha256,
)
from denserk.tasks.pipeline import ahead, behind
from denserk.training.distributed import (
    device_of_rank,
    from_main_process,
    gather_objects,
    launched,
    process_group,
    world,
)

Records = Sequence[Passage] | Sequence[Query]
# Passages a block where --block-size is not given. A CPU makes 4,096 in minutes, which a kill would
# cost; a GPU makes them in a second, and 512 would not fill it.
BLOCK_SIZES = {"cpu": 512, "cuda": 4096}


@dataclass(frozen=True)
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

    count: int
    dimension: int
    encoded: int
    seconds: float
    tokens: int
    positions: int

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


class Tally:
    """Counts what went through the model, and the time since the first text."""

    def __init__(self) -> None:
        self.texts = self.tokens = self.positions = 0
        self.begun = time.perf_counter()

    def pass_over(self) -> None:
        """Skip a block that was finished before; time counts from the first one that was not."""
        if not self.texts:
            self.begun = time.perf_counter()

    def add(self, planned: PlannedTexts) -> None:
        """Count what the model receives now."""
        self.texts += planned.count
        self.tokens += planned.tokens
        self.positions += planned.positions

    @property
    def seconds(self) -> float:
        """The time since the first unfinished text was read."""
        return time.perf_counter() - self.begun if self.texts else 0.0

    def result(self, dimension: int) -> EncodeResult:
        """Return the work of this process."""
        work = self.texts, self.seconds, self.tokens, self.positions
        return EncodeResult(self.texts, dimension, *work)


@dataclass
class _Texts:
    """The texts of one side, read as often as needed (a stream: once)."""

    settings: EncodeSettings
    corpus: CorpusSettings
    fields: tuple[str, ...] | None = None
    _told: bool = field(default=False, init=False)

    @property
    def unit(self) -> str:
        return "passages" if self.settings.topics is None else "queries"

    def read(self) -> Iterator[Passage] | Iterator[Query]:
        self._told = True
        if self.settings.topics is None:
            return read_passages(self.settings.source, self.corpus, self.fields)
        chosen = self.settings
        return read_queries(chosen.source, chosen.topics_format, chosen.qrels)

    def plan(self, encoder: TextEncoder, records: Records) -> PlannedTexts:
        if self.settings.topics is None:
            return encoder.plan_passages(
                [record for record in records if isinstance(record, Passage)]
            )
        return encoder.plan_queries([record for record in records if isinstance(record, Query)])

    def begin(
        self, encoder: TextEncoder, planned: PlannedTexts, progress: Progress
    ) -> ComingVectors:
        if self.settings.topics is None:
            return encoder.begin_passages(planned, progress.advance)
        return encoder.begin_queries(planned, progress.advance)

    def vectors_each(self, encoder: TextEncoder) -> int:
        """How many vectors one text has; a query has one."""
        return encoder.vectors_per_passage if self.settings.topics is None else 1

    def survey(self) -> int | None:
        """Reads the source once, before any work; see `denserk.tasks.blocks`."""
        return survey(self.settings.source, self.unit, self.read)

    def check(self, ledger: IdLedger) -> None:
        """Refuses a source without texts, and one that names two texts alike."""
        check_ids(self.settings.source, self.unit, self.read, ledger)


def _parts(record: Passage | Query, text: TextSettings) -> list[str]:
    """What the tokenizer will see of a record, before it is joined."""
    return [record.field(f) for f in text.fields] if isinstance(record, Passage) else [record.text]


def _input_sha256(records: Records, text: TextSettings) -> str:
    """SHA-256 of ids and texts."""
    return texts_sha256([record[0], *_parts(record, text)] for record in records)


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


def _block_size(settings: EncodeSettings, device: str) -> int:
    """Passages a block: as asked, else of the folder that is continued, else by device."""
    if settings.block_size is not None:
        return settings.block_size
    if settings.resume and (Path(settings.output) / NAME).exists():
        begun = read_manifest(settings.output, Kind.VECTORS, unfinished=True)
        size = begun.settings.get("block_size")
        if isinstance(size, int) and size > 0:
            return size
    return BLOCK_SIZES[choose_device(device).type]


def _continue(folder: Path, manifest: Manifest) -> None:
    """Refuses to continue a folder that was begun with other settings or another model."""
    if not (folder / NAME).exists():
        return
    begun = read_manifest(folder, Kind.VECTORS, unfinished=True)
    refuse_other_run(folder, begun, manifest, ["model"])


def _writer(settings: EncodeSettings, manifest: Manifest) -> VectorFolderWriter:
    """The folder begun by the first process, and this one's way to write into it."""

    def begin() -> tuple[Manifest, dict[int, Block]]:
        folder = prepare_folder(
            settings.output, overwrite=settings.overwrite, resume=settings.resume
        )
        _continue(folder, manifest)
        return manifest, begin_vectors(folder, manifest)

    first, finished = from_main_process(begin)
    rank, _ = world()
    if rank:
        refuse_other_run(settings.output, first, manifest, ["model"])
    folder, dtype = Path(settings.output), settings.vector_dtype.value
    return VectorFolderWriter(folder, manifest, dtype, finished, rank)


def encode(
    settings: EncodeSettings,
    corpus: CorpusSettings,
    representation: Mapping[str, Any],
    text: Mapping[str, Any],
    compute: ComputeSettings,
) -> EncodeResult:
    """Encodes one side of a collection.

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
        _check_several(settings)
    device = device_of_rank(compute.device)
    with process_group(device):
        return _encode(settings, corpus, representation, text, replace(compute, device=device))


def _check_several(settings: EncodeSettings) -> None:
    """Raise UsageError for what only one process can do."""
    if settings.source == STREAM:
        raise UsageError(
            "torchrun: a stream can be read by one process only", "write it to a file first"
        )
    if settings.output_format is not VectorFormat.NPY:
        raise UsageError(
            f"torchrun: --output-format {settings.output_format} is written by one process only",
            "use --output-format npy, and denserk convert afterwards",
        )


def _encode(
    settings: EncodeSettings,
    corpus: CorpusSettings,
    representation: Mapping[str, Any],
    text: Mapping[str, Any],
    compute: ComputeSettings,
) -> EncodeResult:
    blocked = settings.output_format is VectorFormat.NPY
    flags = {"overwrite": settings.overwrite, "resume": settings.resume}
    texts = _Texts(settings, corpus, text.get("fields"))

    def look() -> tuple[int | None, int]:
        if blocked:
            refuse_occupied(settings.output, **flags)
        return texts.survey(), _block_size(settings, compute.device)

    count, size = from_main_process(look)
    settings = texts.settings = replace(settings, block_size=size)
    first, last = blocks_of_shard(count, size, settings.shard_id, settings.shard_num)
    encoder = TextEncoder.load(settings.model, representation, text, compute)
    manifest = _manifest(encoder, settings, corpus, compute)
    total = None
    if count is not None and last is not None:
        total = min(count, last * size) - first * size
    with track("encoding", total, texts.unit) as progress:
        if blocked:
            writer = _writer(settings, manifest)
            result = _encode_blocks(texts, encoder, writer, (first, last), progress)
        else:
            whole = replace(manifest, complete=True)
            result = _encode_stream(texts, encoder, whole, (first, last), progress)
    return result


def _shard_of(
    texts: _Texts, bounds: tuple[int, int | None], ledger: IdLedger | None
) -> Iterator[tuple[int, list[Any]]]:
    """Yields (block number, records) of the shard; a stream's ids are checked once it ends."""
    size = texts.settings.block_size
    assert size is not None  # `encode` chose it
    for number, block in numbered_blocks(texts.read(), size, bounds):
        for record in block if ledger is not None else ():
            ledger.add(record[0])  # type: ignore[union-attr]
        yield number, block
    if ledger is not None:
        texts.check(ledger)


def _encode_blocks(
    texts: _Texts,
    encoder: TextEncoder,
    writer: VectorFolderWriter,
    bounds: tuple[int, int | None],
    progress: Progress,
) -> EncodeResult:
    """The resumable folder: finished blocks are compared with the input and passed over."""
    settings = texts.settings
    before = frozenset(writer.finished)

    def prepare(one: tuple[int, Records, bool]) -> tuple[Block, list[str], PlannedTexts | None]:
        number, records, own = one
        if not own:
            return Block(number, len(records), ""), [], None
        block = Block(number, len(records), _input_sha256(records, encoder.text))
        finished = writer.finished.get(number)
        if finished is not None and finished != block:
            raise MismatchError(
                f"{block.name} of {settings.output} was made from other texts than "
                f"{settings.source} holds there now",
                "start over with --overwrite",
            )
        planned = None if finished is not None else texts.plan(encoder, records)
        return block, [record[0] for record in records], planned

    def write(made: tuple[Block, list[str], ComingVectors | None]) -> None:
        block, ids, vectors = made
        if vectors is not None:
            writer.write(block, ids, vectors.array())

    tally, seen = Tally(), set()
    with IdLedger() as ids:
        blocks = _shard_of(texts, bounds, ids if settings.source == STREAM else None)
        shares = dealt(blocks, before, *world())
        with closing(ahead(prepare, shares, settings.workers)) as ready, behind(write) as hand_over:
            for block, names, planned in ready:
                seen.add(block.number)
                if planned is None:
                    hand_over((block, names, None))
                    tally.pass_over()
                    progress.advance(block.count)
                else:
                    hand_over((block, names, texts.begin(encoder, planned, progress)))
                    tally.add(planned)
    if extra := sorted(writer.finished.keys() - seen):
        raise MismatchError(
            f"{settings.output} holds block {extra[0]}, past the end of {settings.source}",
            "start over with --overwrite",
        )
    made = {n: block for n, block in writer.finished.items() if n not in before}
    contents = {"dimension": encoder.dimension, "vectors_per_passage": texts.vectors_each(encoder)}
    if world()[1] > 1:
        progress.note("waiting for the other processes")
    everybody = gather_objects((made, tally.result(encoder.dimension)))
    return from_main_process(lambda: _finish(writer, contents, everybody))


def _finish(
    writer: VectorFolderWriter,
    contents: Mapping[str, Any],
    everybody: Sequence[tuple[Mapping[int, Block], EncodeResult]],
) -> EncodeResult:
    """Complete the folder, once all processes are done."""
    for blocks, _ in everybody:
        writer.finished |= blocks
    parts = [part for _, part in everybody]
    return EncodeResult(
        writer.finish(contents).contents["count"],
        parts[0].dimension,
        encoded=sum(part.encoded for part in parts),
        seconds=max(part.seconds for part in parts),
        tokens=sum(part.tokens for part in parts),
        positions=sum(part.positions for part in parts),
    )


def _encode_stream(
    texts: _Texts,
    encoder: TextEncoder,
    manifest: Manifest,
    bounds: tuple[int, int | None],
    progress: Progress,
) -> EncodeResult:
    """The shapes of other tools, whole or not at all; several vectors of d1 are d1#0, d1#1."""
    settings = texts.settings
    each = texts.vectors_each(encoder)

    def prepare(numbered: tuple[int, Records]) -> tuple[list[str], list[str], PlannedTexts]:
        records = numbered[1]
        names = [record[0] for record in records]
        contents = [" ".join(filter(None, _parts(r, encoder.text))) for r in records]
        if each > 1:
            names = [f"{name}#{i}" for name in names for i in range(each)]
            contents = [content for content in contents for _ in range(each)]
        return names, contents, texts.plan(encoder, records)

    def finish(made: tuple[list[str], list[str], ComingVectors]) -> None:
        names, contents, coming = made
        vectors = coming.array().astype(settings.vector_dtype.value, copy=False)
        refuse_non_finite(settings.output, names, vectors)
        writer.write(names, vectors, contents)

    tally = Tally()
    with (
        IdLedger() as ids,
        open_writer(
            settings.output,
            settings.output_format,
            overwrite=settings.overwrite,
            queries=settings.topics is not None,
            manifest=manifest,
        ) as writer,
    ):
        blocks = _shard_of(texts, bounds, ids if settings.source == STREAM else None)
        with (
            closing(ahead(prepare, blocks, settings.workers)) as ready,
            behind(finish) as hand_over,
        ):
            for names, contents, planned in ready:
                hand_over((names, contents, texts.begin(encoder, planned, progress)))
                tally.add(planned)
    return tally.result(encoder.dimension)
