"""Texts -> vectors: streaming, in blocks that stand alone, resumable and sharded."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from denserk.errors import MismatchError
from denserk.formats.block_journal import Block
from denserk.formats.files import STREAM, prepare_folder, refuse_occupied
from denserk.formats.id_ledger import IdLedger
from denserk.formats.manifest import NAME, Kind, Manifest, read_manifest
from denserk.formats.sources import read_passages, read_queries
from denserk.formats.vector_folder import VectorFolderWriter, refuse_non_finite
from denserk.formats.vectors import open_writer
from denserk.modeling.text_encoder import TextEncoder
from denserk.records import Passage, Query
from denserk.reporting import SILENT, Progress, Reporter
from denserk.settings.encode import EncodeSettings
from denserk.settings.encoding import ComputeSettings, TextSettings, VectorFormat
from denserk.settings.formats import CorpusSettings
from denserk.settings.options import as_json
from denserk.tasks.blocks import (
    blocks_of_shard,
    check_ids,
    numbered_blocks,
    refuse_other_run,
    survey,
    texts_sha256,
)

Records = Sequence[Passage] | Sequence[Query]


@dataclass(frozen=True)
class EncodeResult:
    """Vectors in the output, their dimension; how many were encoded now, in which time."""

    count: int
    dimension: int
    encoded: int
    seconds: float

    @property
    def per_second(self) -> float:
        """Texts a second, of those encoded now."""
        return self.encoded / self.seconds if self.seconds else 0.0


@dataclass
class _Texts:
    """The texts of one side, read as often as needed (a stream: once)."""

    settings: EncodeSettings
    corpus: CorpusSettings
    reporter: Reporter
    fields: tuple[str, ...] | None = None
    _told: bool = field(default=False, init=False)

    @property
    def unit(self) -> str:
        return "passages" if self.settings.topics is None else "queries"

    def read(self) -> Iterator[Passage] | Iterator[Query]:
        reporter = SILENT if self._told else self.reporter
        self._told = True
        if self.settings.topics is None:
            return read_passages(self.settings.source, self.corpus, reporter, self.fields)
        return read_queries(self.settings.source, self.settings.topics_format, reporter)

    def encode(self, encoder: TextEncoder, records: Records) -> NDArray[np.float32]:
        if self.settings.topics is None:
            return encoder.encode_passages(
                [record for record in records if isinstance(record, Passage)]
            )
        return encoder.encode_queries([record for record in records if isinstance(record, Query)])

    def vectors_each(self, encoder: TextEncoder) -> int:
        """How many vectors one text has; a query has one."""
        return encoder.vectors_per_passage if self.settings.topics is None else 1

    def survey(self) -> int | None:
        """Reads the source once, before any work; see `denserk.tasks.blocks`."""
        return survey(self.settings.source, self.unit, self.read, self.reporter)

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
        "batch_tokens": compute.batch_tokens,
        "batch_size": compute.batch_size,
        "threads": compute.threads,
    }
    return Manifest(
        kind=Kind.VECTORS,
        complete=False,
        settings=chosen,
        made_from={"model": encoder.description(), "texts": settings.source},
    )


def _continue(folder: Path, manifest: Manifest, reporter: Reporter) -> None:
    """Refuses to continue a folder that was begun with other settings or another model."""
    if not (folder / NAME).exists():
        return
    begun = read_manifest(folder, Kind.VECTORS, unfinished=True)
    refuse_other_run(folder, begun, manifest, ["model"], reporter)


def encode(
    settings: EncodeSettings,
    corpus: CorpusSettings,
    representation: Mapping[str, Any],
    text: Mapping[str, Any],
    compute: ComputeSettings,
    reporter: Reporter = SILENT,
) -> EncodeResult:
    """Encodes one side of a collection.

    Args:
        settings: what to encode, with which weights, to where.
        corpus: how passages are read.
        representation: fields of RepresentationSettings that override the model's own.
        text: fields of TextSettings that override the model's own.
        compute: where and how precisely.
        reporter: told what goes on.

    Raises:
        UsageError, InputError, MismatchError, OutputError, ModelError: see `denserk.errors`.
    """
    blocked = settings.output_format is VectorFormat.NPY
    flags = {"overwrite": settings.overwrite, "resume": settings.resume}
    if blocked:
        refuse_occupied(settings.output, **flags)
    texts = _Texts(settings, corpus, reporter, text.get("fields"))
    count = texts.survey()
    first, last = blocks_of_shard(count, settings.block_size, settings.shard_id, settings.shard_num)
    encoder = TextEncoder.load(settings.model, representation, text, compute, reporter)
    manifest = _manifest(encoder, settings, corpus, compute)
    total = None
    if count is not None and last is not None:
        total = min(count, last * settings.block_size) - first * settings.block_size
    with reporter.track("encoding", total, texts.unit) as progress:
        if blocked:
            folder = prepare_folder(settings.output, **flags)
            _continue(folder, manifest, reporter)
            writer = VectorFolderWriter(folder, manifest, settings.vector_dtype.value)
            result = _encode_blocks(texts, encoder, writer, (first, last), progress)
        else:
            result = _encode_stream(texts, encoder, (first, last), progress)
    return result


def _shard_of(
    texts: _Texts, bounds: tuple[int, int | None], ledger: IdLedger | None
) -> Iterator[tuple[int, list[Any]]]:
    """Yields (block number, records) of the shard; a stream's ids are checked once it ends."""
    for number, block in numbered_blocks(texts.read(), texts.settings.block_size, bounds):
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
    encoded, seconds, seen = 0, 0.0, set()
    with IdLedger() as ids:
        ledger = ids if texts.settings.source == STREAM else None
        for number, records in _shard_of(texts, bounds, ledger):
            seen.add(number)
            block = Block(number, len(records), _input_sha256(records, encoder.text))
            finished = writer.finished.get(number)
            if finished is not None and finished != block:
                raise MismatchError(
                    f"{block.name} of {texts.settings.output} was made from other texts than "
                    f"{texts.settings.source} holds there now",
                    "start over with --overwrite",
                )
            if finished is None:
                start = time.perf_counter()
                vectors = texts.encode(encoder, records)
                writer.write(block, [record[0] for record in records], vectors)
                seconds += time.perf_counter() - start
                encoded += len(records)
            progress.advance(len(records))
    if extra := sorted(writer.finished.keys() - seen):
        raise MismatchError(
            f"{texts.settings.output} holds block {extra[0]}, past the end of "
            f"{texts.settings.source}",
            "start over with --overwrite",
        )
    manifest = writer.finish(
        {"dimension": encoder.dimension, "vectors_per_passage": texts.vectors_each(encoder)}
    )
    return EncodeResult(manifest.contents["count"], encoder.dimension, encoded, seconds)


def _encode_stream(
    texts: _Texts, encoder: TextEncoder, bounds: tuple[int, int | None], progress: Progress
) -> EncodeResult:
    """The shapes of other tools, whole or not at all; several vectors of d1 are d1#0, d1#1."""
    settings = texts.settings
    each = texts.vectors_each(encoder)
    encoded, start = 0, time.perf_counter()
    with (
        IdLedger() as ids,
        open_writer(
            settings.output,
            settings.output_format,
            overwrite=settings.overwrite,
            queries=settings.topics is not None,
            reporter=texts.reporter,
        ) as writer,
    ):
        ledger = ids if settings.source == STREAM else None
        for _, records in _shard_of(texts, bounds, ledger):
            names = [record[0] for record in records]
            contents = [" ".join(filter(None, _parts(r, encoder.text))) for r in records]
            if each > 1:
                names = [f"{name}#{i}" for name in names for i in range(each)]
                contents = [content for content in contents for _ in range(each)]
            vectors = texts.encode(encoder, records).astype(settings.vector_dtype.value, copy=False)
            refuse_non_finite(settings.output, names, vectors)
            writer.write(names, vectors, contents)
            encoded += len(records)
            progress.advance(len(records))
    return EncodeResult(encoded, encoder.dimension, encoded, time.perf_counter() - start)
