"""`denserk encode`: streaming, in independent blocks, resumable, in several processes.

While the model computes a block in the caller's thread, other threads read and tokenize the next
ones and write the last one. A stream is read in the caller's thread, so that an interrupt takes
effect even while it has no data.
"""

import gc
import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice, product, repeat
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from denserk.config.encoding import (
    NO_SERVER,
    Backend,
    ComputeSettings,
    Dtype,
    DtypeChoice,
    EncodeSettings,
    ModelOptions,
    ServerSettings,
    VectorFormat,
    is_served,
    reject_server,
)
from denserk.config.formats import CorpusSettings
from denserk.config.options import as_json
from denserk.errors import MismatchError, UsageError
from denserk.io import blocks
from denserk.io.blocks import Block, Finished, Hashes, Texts
from denserk.io.control_vectors import CONTROL_FILE, write_control_vectors
from denserk.io.corpus import read_passages, with_used_fields
from denserk.io.files import STREAM
from denserk.io.manifest import Kind, Manifest, read_manifest
from denserk.io.outputs import MANIFEST, prepare_folder, reject_occupied
from denserk.io.topics import read_queries
from denserk.io.vector_formats import VectorBlock, Vectors, is_single_file, write_vectors
from denserk.io.vectors import INT8_WEIGHTS, EncodedTexts, VectorFolderWriter
from denserk.io.writer_thread import WriterThread
from denserk.io.written_files import reject_folder
from denserk.models import compiled_cache, compiled_queries, devices, distributed, processor
from denserk.models.canary import check_start
from denserk.models.encoders import AnyEncoder, PlannedEncoder, PlannedRecords
from denserk.models.served_encoder import ServedEncoder, reject_computation
from denserk.models.text_encoder import CALIBRATION_TEXTS, CERTIFICATION_TEXTS, TextEncoder
from denserk.records import Passage, Query
from denserk.reporting import track

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")
Records = Sequence[Any]  # passages, or queries
# Passages per block without --block-size. A CPU encodes 4,096 in minutes, which a kill would cost;
# a GPU encodes them in a second, and 512 would not fill it.
BLOCK_SIZES = {"cpu": 512, "cuda": 4096}
BLOCK_SIZE_OF_SERVERS = 512
TURN = 1e-4  # seconds; see `quick_turns`
# options of the run that the manifest records, and that a resumed run must share
RECORDED = ("vector_dtype", "shard_id", "shard_num")
# recorded settings that say where a text is, and need not be those of --update
LOCATION = ("shard_id", "shard_num", "block_size")
START_OVER = "start over with --overwrite"


@dataclass
class EncodeResult:
    """The size of the output, and the work of this run."""

    count: int = 0  # texts in the output
    dimension: int = 0
    copied: int = 0  # texts whose vectors are those of --update
    encoded: int = 0  # texts that this run encoded, in `seconds`
    seconds: float = 0.0
    tokens: int = 0
    positions: int = 0  # tokens and padding


class PreparedBlock(NamedTuple):
    """A block of passages or queries, and those of its texts that this process encodes."""

    block: Block
    records: Records
    hashes: Hashes
    origins: NDArray[np.int64]  # of each text the passage of --update to copy from, or -1
    # the texts to encode, tokenized; None if the block is finished, or another process encodes it
    planned: PlannedRecords | None

    @property
    def copied(self) -> int:
        """The number of texts whose vectors are copied, now or when the block was finished."""
        return int(np.count_nonzero(self.origins >= 0))


class EncodedBlock(NamedTuple):
    """A block and its vectors."""

    block: Block
    records: Records
    hashes: Hashes
    vectors: Vectors


@dataclass(frozen=True)
class InitialState:
    """What is known before a model is loaded."""

    count: int | None  # texts of the input; None for a stream
    resumed_manifest: Manifest | None  # of the output, if it is a folder that is resumed


@dataclass(frozen=True)
class EarlierWork:
    """What a run builds on: the folder that it resumes, and the vectors that it copies from."""

    resumed_manifest: Manifest | None  # of the output
    copied_vectors: EncodedTexts | None  # of --update

    @property
    def manifest(self) -> Manifest | None:
        """The manifest whose block size and way of computing this run takes over."""
        if self.resumed_manifest is not None:
            return self.resumed_manifest
        return None if self.copied_vectors is None else self.copied_vectors.folder.manifest


@dataclass(frozen=True)
class Shard:
    """The texts of the input that are encoded, in numbered blocks."""

    texts: Texts
    block_size: int
    start: int  # the first text
    stop: int | None  # the text behind the last one; None for a stream, which is read to its end

    @property
    def count(self) -> int | None:
        """The number of texts; None for a stream."""
        return None if self.stop is None else self.stop - self.start

    def blocks(self) -> Iterator[tuple[int, Records]]:
        """Yield the blocks with their numbers, those of a file read ahead."""
        numbered_blocks = self.texts.blocks(self.block_size, self.start, self.stop)
        is_stream = self.stop is None
        return numbered_blocks if is_stream else read_ahead(numbered_blocks)


def encode(
    settings: EncodeSettings,
    corpus: CorpusSettings,
    options: ModelOptions,
    server: ServerSettings = NO_SERVER,
) -> EncodeResult:
    """Encode passages or queries; `server` is for a model behind a URL.

    Under torchrun the processes share the blocks, and each returns the result of all.
    """
    reads_stream = settings.source == STREAM
    writes_folder = settings.output_format is VectorFormat.NPY
    if devices.launched() and (reads_stream or not writes_folder):
        raise UsageError(
            "several processes cannot read a stream, or write other than --output-format npy",
            "start encode without torchrun, or use denserk convert afterwards",
        )
    reject_server(server, settings.model)
    if is_served(settings.model):
        reject_computation(settings.model, options.compute)
        if settings.int8:
            raise UsageError(f"--int8: the server computes {settings.model}")
    with distributed.process_group(options.compute.device):
        return _encode(settings, corpus, options, server)


def _encode(
    settings: EncodeSettings,
    corpus: CorpusSettings,
    options: ModelOptions,
    server: ServerSettings,
) -> EncodeResult:
    """Encode the blocks of this process, and write them with the other processes."""
    compiled_cache.limit_bytes()  # a wrong value is an error now, and not after hours
    if settings.topics is None:
        corpus = with_used_fields(settings.source, corpus)
    given_fields = options.text.get("fields")  # also those inside Anserini's `contents`
    texts = open_texts(settings, corpus, given_fields)
    copied_vectors = EncodedTexts(settings.update) if settings.update else None
    initial = distributed.from_main_process(lambda: initial_state(settings, texts))
    earlier = EarlierWork(initial.resumed_manifest, copied_vectors)

    block_size = choose_block_size(settings, options.compute, earlier.manifest)
    start, stop = blocks.shard_bounds(
        initial.count, block_size, settings.shard_id, settings.shard_num
    )
    shard = Shard(texts, block_size, start, stop)
    encoder: AnyEncoder
    if is_served(settings.model):
        encoder = prepare_served_encoder(settings, options, server, earlier)
    else:
        encoder = prepare_encoder(settings, options, texts, earlier)
    manifest = describe(settings, corpus, given_fields, encoder, block_size)
    if copied_vectors is not None:
        manifest = describe_update(copied_vectors, manifest)
    if settings.output_format is VectorFormat.NPY:
        return _encode_into_folder(settings, shard, encoder, manifest, earlier)
    return _encode_into_file(settings, shard, encoder, manifest, copied_vectors)


def _encode_into_folder(
    settings: EncodeSettings,
    shard: Shard,
    encoder: AnyEncoder,
    manifest: Manifest,
    earlier: EarlierWork,
) -> EncodeResult:
    """Encode what the folder lacks; finished blocks stay in it."""
    writer = open_folder(settings, manifest, encoder, earlier.resumed_manifest)
    finished_blocks = dict(writer.finished)  # a copy: the writer adds this run's blocks
    block_encoder = BlockEncoder(settings, encoder, finished_blocks, earlier.copied_vectors)
    with encoding_progress(shard) as advance:
        write_blocks(block_encoder, shard.blocks(), writer, advance)
        result = finish_folder(settings, encoder, writer, block_encoder.result)
    rank, _ = distributed.world()
    if rank == 0 and not isinstance(encoder, ServedEncoder):
        compiled_queries.keep(encoder)
    return result


def _encode_into_file(
    settings: EncodeSettings,
    shard: Shard,
    encoder: AnyEncoder,
    manifest: Manifest,
    copied_vectors: EncodedTexts | None,
) -> EncodeResult:
    """Encode all texts in one pass, for another tool's format."""
    block_encoder = BlockEncoder(settings, encoder, {}, copied_vectors)
    with encoding_progress(shard) as advance:
        write_file(
            block_encoder.encode(shard.blocks(), advance),
            settings,
            encoder.text.fields,
            replace(manifest, complete=True),
        )
    return block_encoder.result


@contextmanager
def encoding_progress(shard: Shard) -> Iterator[Callable[[int], None]]:
    """Show the progress of encoding, and let threads work side by side meanwhile.

    Yields the function that is called with numbers of texts that are done.
    """
    with (
        track("encoding", shard.count, shard.texts.unit) as progress,
        quick_turns(),
        gc_frozen(),
    ):
        yield progress.advance


@contextmanager
def quick_turns() -> Iterator[None]:
    """Let threads take turns soon.

    The thread that launches the kernels of a GPU gives up its turn with each of them, and by
    default waits 5 ms until a thread that tokenizes gives it back.
    """
    default_interval = sys.getswitchinterval()
    sys.setswitchinterval(TURN)
    try:
        yield
    finally:
        sys.setswitchinterval(default_interval)


@contextmanager
def gc_frozen() -> Iterator[None]:
    """Leave the objects that there are, most of them of libraries, out of garbage collection.

    All threads stand still while garbage is collected, and going through these objects takes a
    tenth of a second. A caller that froze objects itself, such as a server before it forks, finds
    them frozen afterwards.
    """
    if gc.get_freeze_count():  # `gc.unfreeze` would unfreeze the caller's, too
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def write_blocks(
    block_encoder: "BlockEncoder",
    numbered_blocks: Iterable[tuple[int, Records]],
    writer: VectorFolderWriter,
    advance: Callable[[int], None],
) -> None:
    """Encode blocks, and write each while the next one is encoded."""
    with WriterThread() as thread:

        def advance_if_written(count: int) -> None:
            thread.raise_error()  # of writing, now and not when the block is encoded
            advance(count)

        for encoded in block_encoder.encode(numbered_blocks, advance_if_written):
            ids = ids_of(encoded.records)
            thread.submit(
                partial(writer.write, encoded.block, ids, encoded.vectors, encoded.hashes)
            )


def open_texts(
    settings: EncodeSettings, corpus: CorpusSettings, fields: Sequence[str] | None
) -> Texts:
    """Return the passages of a corpus (with the fields that are encoded), or the queries."""
    source = settings.source
    if settings.topics is None:
        return Texts(source, "passages", partial(read_passages, source, corpus, fields))
    read = partial(
        read_queries, source, settings.topics_format, settings.qrels, settings.topics_field
    )
    return Texts(source, "queries", read)


def initial_state(settings: EncodeSettings, texts: Texts) -> InitialState:
    """Check the output, count the texts, and look for work to resume."""
    reject_output(settings)
    count = texts.count()
    resumed_manifest = None
    if settings.resume and (Path(settings.output) / MANIFEST).exists():
        resumed_manifest = read_manifest(settings.output, Kind.VECTORS, unfinished=True)
    return InitialState(count, resumed_manifest)


def reject_output(settings: EncodeSettings) -> None:
    """Raise an error if the output is a folder where a file is written, or must not be replaced."""
    if is_single_file(settings.output_format):
        reject_folder(settings.output)
    else:
        reject_occupied(settings.output, overwrite=settings.overwrite, resume=settings.resume)


def choose_block_size(
    settings: EncodeSettings, compute: ComputeSettings, earlier_manifest: Manifest | None
) -> int:
    """Return the texts per block: as asked for, as in earlier work, or by the device."""
    if settings.block_size:
        return settings.block_size
    if earlier_manifest is not None and earlier_manifest.settings.get("block_size"):
        return int(earlier_manifest.settings["block_size"])
    if is_served(settings.model):
        return BLOCK_SIZE_OF_SERVERS
    return BLOCK_SIZES[devices.choose_device(compute.device).type]


def as_in_earlier_work(
    compute: ComputeSettings, earlier_manifest: Manifest | None
) -> ComputeSettings:
    """Return the settings with backend, precision and batches of earlier work, unless given."""
    if earlier_manifest is None:
        return compute
    earlier_model = earlier_manifest.made_from["model"]
    if compute.backend is Backend.AUTO:
        # absent where the vectors were encoded before manifests recorded it: by torch
        backend = Backend(earlier_model.get("backend") or Backend.TORCH)
        compute = replace(compute, backend=backend)
    if compute.batch_tokens is None:
        batch_tokens = earlier_manifest.settings.get("batch_tokens")
        compute = replace(compute, batch_tokens=batch_tokens)
    if compute.dtype is DtypeChoice.AUTO:
        dtype = Dtype(earlier_model.get("dtype") or Dtype.FLOAT32)
        compute = in_earlier_dtype(compute, dtype)
    return compute


def in_earlier_dtype(compute: ComputeSettings, dtype: Dtype) -> ComputeSettings:
    """Return the settings with the precision of earlier work.

    No CPU computes in float16, and no device continues the work of another: that is an error when
    the manifests are compared, so the settings stay as they are.
    """
    device = devices.use_device(compute.device)
    if device.type == "cpu" and dtype is Dtype.FLOAT16:
        return compute
    if devices.computes_in(dtype, device):
        logger.info(f"computing in {dtype}, as before")
    else:
        logger.info(
            f"computing in {dtype}, as before; to start over in float32: --overwrite "
            "--dtype float32"
        )
    return replace(compute, dtype=DtypeChoice(dtype))


def choose_workers(settings: EncodeSettings, encoder: AnyEncoder) -> int:
    """Return the number of threads that tokenise: as asked for, or by the device."""
    if settings.workers is not None:
        return settings.workers
    if isinstance(encoder, ServedEncoder):
        return 1
    workers = devices.default_workers(encoder.device)
    if workers > 1:
        logger.info(f"tokenising on {workers} threads (--workers)")
    return workers


def prepare_encoder(
    settings: EncodeSettings, options: ModelOptions, texts: Texts, earlier: EarlierWork
) -> TextEncoder:
    """Load the model, to compute as earlier work did, and quantise it for --int8."""
    compute = as_in_earlier_work(options.compute, earlier.manifest)
    if settings.int8:
        compute = in_float32_for_int8(compute)
    encoder = load_encoder_of_all(settings, options._replace(compute=compute))
    if earlier.manifest is not None:
        # a precision that is taken over is not tried again, so its certificate is taken over, too
        encoder.certificate = earlier.manifest.made_from["model"].get("certificate")
    if settings.int8:
        quantize(settings, encoder, texts, earlier.resumed_manifest)
    side = encoder.canary_side(settings.side)
    # two at once: one alone would be computed on one thread, unlike the texts of this command
    check_start(encoder.canary, side, encoder.name, texts_at_once=2)
    return encoder


def prepare_served_encoder(
    settings: EncodeSettings, options: ModelOptions, server: ServerSettings, earlier: EarlierWork
) -> ServedEncoder:
    """Reach the server of a model; it must have the model that earlier work was encoded by.

    The URL is that of earlier work where none is given.
    """
    recorded_url = None
    if earlier.manifest is not None:
        earlier_model = earlier.manifest.made_from["model"]
        if earlier_model.get("name") == settings.model:
            recorded_url = earlier_model.get("base_url")
    encoder = ServedEncoder(
        settings.model,
        options.representation,
        options.text,
        options.compute,
        server,
        recorded_url=recorded_url,
    )
    if earlier.resumed_manifest is not None:
        encoder.compare_with_folder(Path(settings.output))
    if earlier.copied_vectors is not None:
        encoder.compare_with_folder(earlier.copied_vectors.folder.folder)
    return encoder


def load_encoder(settings: EncodeSettings, options: ModelOptions) -> TextEncoder:
    """Load the model; one that encodes only queries is rejected for a corpus.

    Such a model was trained to encode queries like another one, `queries_of`.
    """
    encoder = TextEncoder(settings.model, *options)
    if encoder.queries_of and settings.topics is None:
        hint = f"encode the corpus with --model {encoder.queries_of['name']}"
        raise UsageError(f"{encoder.name} is an encoder of queries alone", hint)
    return encoder


def load_encoder_of_all(settings: EncodeSettings, options: ModelOptions) -> TextEncoder:
    """Load the model in every process, to compute in the same precision.

    Where bfloat16 is tried on a CPU, the main process decides for all: processors of several
    machines may differ.
    """
    rank, size = distributed.world()
    if size == 1 or options.compute.dtype is not DtypeChoice.AUTO:
        return load_encoder(settings, options)
    if devices.use_device(options.compute.device).type != "cpu":
        return load_encoder(settings, options)
    encoders: list[TextEncoder] = []  # the one of this process: encoders are not sent to others

    def try_precision() -> tuple[Dtype, Mapping[str, Any] | None]:
        encoder = load_encoder(settings, options)
        encoders.append(encoder)
        return encoder.dtype, encoder.certificate

    dtype, certificate = distributed.from_main_process(try_precision)
    if rank != 0:
        compute = replace(options.compute, dtype=DtypeChoice(dtype))
        encoders.append(load_encoder(settings, options._replace(compute=compute)))
        encoders[0].certificate = certificate
    return encoders[0]


def in_float32_for_int8(compute: ComputeSettings) -> ComputeSettings:
    """Return the settings of a model for --int8: what is not quantised is computed in float32."""
    if processor.has_amx():
        logger.info(
            "--int8: this CPU multiplies bfloat16 as fast (AMX); --dtype bfloat16 is closer to "
            "float32"
        )
    if compute.dtype is DtypeChoice.AUTO:
        return replace(compute, dtype=DtypeChoice.FLOAT32)
    return compute


def quantize(
    settings: EncodeSettings,
    encoder: TextEncoder,
    texts: Texts,
    resumed_manifest: Manifest | None,
) -> None:
    """Let the encoder compute in int8: by the weights of the resumed folder, or by new ones.

    New ones are calibrated and certified on the first texts by the main process; the others read
    them in `open_folder`, after it has saved them.
    """
    folder = Path(settings.output)
    int8_record = None
    if resumed_manifest is not None:
        int8_record = resumed_manifest.made_from["model"].get("int8")
    if int8_record and (folder / INT8_WEIGHTS).exists():
        encoder.use_int8(settings.side, folder, int8_record)
        return
    records = list(islice(texts.read(), CALIBRATION_TEXTS + CERTIFICATION_TEXTS))
    encoder.int8 = distributed.from_main_process(lambda: encoder.quantize(settings.side, records))


def describe(
    settings: EncodeSettings,
    corpus: CorpusSettings,
    given_fields: Sequence[str] | None,
    encoder: AnyEncoder,
    block_size: int,
) -> Manifest:
    """Return the manifest of an unfinished output."""
    options = as_json(settings)
    recorded_settings = {name: options[name] for name in RECORDED}
    recorded_settings |= as_json(corpus)
    recorded_settings |= {"side": settings.side, "block_size": block_size}
    if not isinstance(encoder, ServedEncoder):
        recorded_settings |= recorded_computation(encoder)
    if settings.qrels:
        recorded_settings["qrels"] = settings.qrels
    if settings.topics_field:
        recorded_settings["topics_field"] = list(settings.topics_field)
    made_from = {"model": encoder.description(), "texts": settings.source}
    if given_fields is not None:
        made_from["fields"] = list(given_fields)
    return Manifest(
        kind=Kind.VECTORS, complete=False, settings=recorded_settings, made_from=made_from
    )


def recorded_computation(encoder: TextEncoder) -> dict[str, Any]:
    """Return what the manifest records of a model's computation."""
    return {
        "batch_size": encoder.compute.batch_size,
        "threads": encoder.compute.threads,
        "device": encoder.device.type,
        "dtype": encoder.dtype.value,
        "batch_tokens": encoder.batch_tokens,
    }


def describe_update(copied_vectors: EncodedTexts, manifest: Manifest) -> Manifest:
    """Return the manifest with the folder of --update among the inputs.

    Raises a MismatchError if that folder's vectors are of other settings or another model.
    """
    folder = copied_vectors.folder.folder
    earlier_manifest = copied_vectors.folder.manifest
    location = {name: manifest.settings[name] for name in LOCATION}
    comparable = replace(earlier_manifest, settings={**earlier_manifest.settings, **location})
    hint = "give the same settings, or encode without --update"
    blocks.reject_other_run(folder, comparable, manifest, ["model"], hint)
    fingerprint = earlier_manifest.contents["journal_sha256"]
    source = {"name": str(folder), "fingerprint": fingerprint}
    return replace(manifest, made_from={**manifest.made_from, "update": source})


def open_folder(
    settings: EncodeSettings,
    manifest: Manifest,
    encoder: AnyEncoder,
    resumed_manifest: Manifest | None,
) -> VectorFolderWriter:
    """Return this process' writer of the folder, which the main process prepares."""
    folder = Path(settings.output)

    def prepare() -> tuple[Manifest, Finished]:
        prepare_folder(
            folder, overwrite=settings.overwrite, resume=settings.resume, restorable=True
        )
        if resumed_manifest is not None:
            blocks.reject_other_run(folder, resumed_manifest, manifest, ["model", "update"])
        finished = blocks.start_folder(folder, manifest)
        if isinstance(encoder, ServedEncoder):
            if not (folder / CONTROL_FILE).exists():
                write_control_vectors(folder, encoder.control_vectors())
        elif settings.int8 and not (folder / INT8_WEIGHTS).exists():
            encoder.save_int8(folder)
        return manifest, finished

    main_manifest, finished = distributed.from_main_process(prepare)
    rank, _ = distributed.world()
    if rank != 0:
        # another machine may have another model of this name, or another device
        blocks.reject_other_run(folder, main_manifest, manifest, ["model"])
        if not isinstance(encoder, ServedEncoder) and encoder.int8:
            encoder.use_int8(settings.side, folder, encoder.int8)
    return VectorFolderWriter(folder, manifest, settings.vector_dtype.value, finished, rank)


class BlockEncoder:
    """Encodes this process' blocks; `result` counts its work.

    `finished_blocks` are those that the output had before; `copied_vectors` are of --update.
    """

    def __init__(
        self,
        settings: EncodeSettings,
        encoder: AnyEncoder,
        finished_blocks: Finished,
        copied_vectors: EncodedTexts | None,
    ) -> None:
        self._settings = settings
        self._encoder: PlannedEncoder = encoder
        self._finished_blocks = finished_blocks
        self._copied_vectors = copied_vectors
        self._workers = choose_workers(settings, encoder)
        self._rank, self._processes = distributed.world()
        self.result = EncodeResult(dimension=encoder.dimension)

    def encode(
        self, numbered_blocks: Iterable[tuple[int, Records]], advance: Callable[[int], None]
    ) -> Iterator[EncodedBlock]:
        """Yield the blocks that were not finished before, in order.

        Finished ones are compared with the input and skipped. `advance` is called with numbers of
        texts that are done.
        """
        settings = self._settings
        result = self.result
        unread_blocks = set(self._finished_blocks)
        start_time = time.perf_counter()
        for prepared in prefetch(self._prepare, numbered_blocks, self._workers):
            unread_blocks.discard(prepared.block.number)
            result.copied += prepared.copied
            if prepared.planned is None:
                advance(prepared.block.count)
                if not result.encoded:  # skipped blocks before the first work take no time
                    start_time = time.perf_counter()
                continue
            vectors = self._vectors(prepared, prepared.planned, advance)
            result.seconds = time.perf_counter() - start_time
            yield EncodedBlock(prepared.block, prepared.records, prepared.hashes, vectors)
        result.count = result.encoded  # of a file; `finish_folder` counts all blocks of a folder
        if unread_blocks:
            message = (
                f"{settings.output} holds block {min(unread_blocks)}, past the end of "
                f"{settings.source}"
            )
            raise MismatchError(message, START_OVER)

    def _vectors(
        self, prepared: PreparedBlock, planned: PlannedRecords, advance: Callable[[int], None]
    ) -> Vectors:
        """Return the vectors of a block's texts, encoded here or copied."""
        vectors = self._encoder.encode_planned(self._settings.side, planned, advance)
        if self._copied_vectors is not None:
            vectors = self._copied_vectors.with_encoded(prepared.origins, vectors)
            advance(prepared.copied)
        self.result.encoded += planned.count
        self.result.tokens += planned.tokens
        self.result.positions += planned.positions
        return vectors

    def _prepare(self, numbered_block: tuple[int, Records]) -> PreparedBlock:
        """Compare a block with the journal, look for vectors to copy, and tokenize the others.

        Runs in other threads. Of a finished block, only the vectors that were copied are counted.
        """
        number, records = numbered_block
        if number % self._processes != self._rank:
            return block_of_other_process(number, records)
        texts = [field_texts(record, self._encoder.text.fields) for record in records]
        block = Block(number, len(records), records_sha256(records, texts))
        finished_block = self._finished_blocks.get(number)
        if finished_block is not None and finished_block != block:
            message = (
                f"{block.name} of {self._settings.output} was made from other texts than "
                f"{self._settings.source} holds now"
            )
            raise MismatchError(message, START_OVER)
        hashes = blocks.text_hashes(texts)
        origins = np.full(len(records), -1)
        if self._copied_vectors is not None:
            origins = self._copied_vectors.find(hashes)
        planned = None
        if finished_block is None:
            new_records = [records[row] for row in np.flatnonzero(origins < 0).tolist()]
            planned = self._encoder.plan(self._settings.side, new_records)
        return PreparedBlock(block, records, hashes, origins, planned)


def block_of_other_process(number: int, records: Records) -> PreparedBlock:
    """Return a block that is only counted: its texts are neither compared nor tokenized."""
    block = Block(number, len(records), "")
    return PreparedBlock(block, records, blocks.text_hashes([]), np.empty(0, int), None)


def ids_of(records: Records) -> list[str]:
    """Return the ids of passages, or of queries: the first field of both."""
    return [record[0] for record in records]


def field_texts(record: Passage | Query, fields: Sequence[str]) -> list[str]:
    """Return the texts of a record that the tokenizer joins."""
    if isinstance(record, Query):
        return [record.text]
    return [record.field(name) for name in fields]


def records_sha256(records: Records, texts: Sequence[Sequence[str]]) -> str:
    """Return the SHA-256 of the ids and texts of records."""
    return blocks.texts_sha256(
        [record_id, *fields] for record_id, fields in zip(ids_of(records), texts, strict=True)
    )


def finish_folder(
    settings: EncodeSettings,
    encoder: PlannedEncoder,
    writer: VectorFolderWriter,
    local_result: EncodeResult,
) -> EncodeResult:
    """Finish the folder of all processes, and return the result of all."""
    finished_by_rank = distributed.gather_objects(writer.finished)
    results_by_rank = distributed.gather_objects(local_result)
    vectors_per_text = 1 if settings.topics else encoder.vectors_per_passage
    contents = {"dimension": encoder.dimension, "vectors_per_passage": vectors_per_text}

    def finish() -> EncodeResult:
        for finished in finished_by_rank:
            writer.finished |= finished
        result = summed(results_by_rank)
        manifest = writer.finish({**contents, "copied": result.copied})
        return replace(result, count=manifest.contents["count"])

    return distributed.from_main_process(finish)


def summed(results: Iterable[EncodeResult]) -> EncodeResult:
    """Return the work of several processes, in the time of the slowest; their counts are not added.

    >>> summed([EncodeResult(encoded=2, seconds=3.0), EncodeResult(encoded=1, seconds=4.0)])
    EncodeResult(count=0, dimension=0, copied=0, encoded=3, seconds=4.0, tokens=0, positions=0)
    """
    total = EncodeResult()
    for result in results:
        total.dimension = result.dimension
        total.copied += result.copied
        total.encoded += result.encoded
        total.tokens += result.tokens
        total.positions += result.positions
        total.seconds = max(total.seconds, result.seconds)
    return total


def write_file(
    encoded_blocks: Iterable[EncodedBlock],
    settings: EncodeSettings,
    fields: Sequence[str],
    manifest: Manifest,
) -> None:
    """Write another tool's format, in one pass."""
    write_vectors(
        settings.output,
        settings.output_format,
        named_vectors(encoded_blocks, settings, fields),
        overwrite=settings.overwrite,
        queries=settings.topics is not None,
        manifest=manifest,
    )


def named_vectors(
    encoded_blocks: Iterable[EncodedBlock], settings: EncodeSettings, fields: Sequence[str]
) -> Iterator[VectorBlock]:
    """Yield vectors with their ids and texts; several vectors of d1 are d1#0, d1#1."""
    for encoded in encoded_blocks:
        records = encoded.records
        ids = ids_of(records)
        texts = [" ".join(filter(None, field_texts(record, fields))) for record in records]
        vectors_per_text = len(encoded.vectors) // len(records)
        if vectors_per_text > 1:
            ids = numbered_ids(ids, vectors_per_text)
            texts = list(chain.from_iterable(repeat(text, vectors_per_text) for text in texts))
        with np.errstate(over="ignore"):  # the writer rejects what float16 cannot hold
            stored_vectors = encoded.vectors.astype(settings.vector_dtype.value, copy=False)
        yield VectorBlock(ids, stored_vectors, texts)


def numbered_ids(ids: Iterable[str], count: int) -> list[str]:
    """Return an id for each of several vectors of a text.

    >>> numbered_ids(["d1", "d2"], 2)
    ['d1#0', 'd1#1', 'd2#0', 'd2#1']
    """
    return [f"{docid}#{number}" for docid, number in product(ids, range(count))]


def read_ahead(items: Iterable[T]) -> Iterator[T]:
    """Yield the items, one of them read ahead by another thread.

    >>> list(read_ahead(["a", "b", "c"]))
    ['a', 'b', 'c']
    """
    iterator = iter(items)
    end = object()
    with ThreadPoolExecutor(1, thread_name_prefix="reader") as pool:
        reading: Future[Any] = pool.submit(next, iterator, end)
        item = reading.result()
        while item is not end:
            reading = pool.submit(next, iterator, end)
            yield item
            item = reading.result()


def prefetch(work: Callable[[T], R], items: Iterable[T], workers: int = 1) -> Iterator[R]:
    """Yield the results of `work` in order, computed by other threads.

    Items are taken in the caller's thread, at most `workers` beyond the last result yielded.

    >>> list(prefetch(str.upper, ["a", "b", "c"]))
    ['A', 'B', 'C']
    """
    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="prefetch") as pool:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
