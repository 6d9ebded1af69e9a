"""Encode a corpus or queries: streaming, in independent blocks, resumable, in several processes.

`prefetch` tokenizes the next blocks while the model computes one in the caller's thread. It also
reads the source in that thread, so that an interrupt takes effect even while a stream has no data.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from denserk.config.encoding import Backend, EncodeSettings, ModelOptions, VectorFormat
from denserk.config.formats import CorpusSettings
from denserk.config.options import as_json
from denserk.data.batches import PlannedTexts
from denserk.errors import MismatchError, UsageError
from denserk.io import blocks
from denserk.io.blocks import Block, Hashes, refuse_other_run, text_hashes, texts_sha256
from denserk.io.corpus import read_passages
from denserk.io.files import STREAM, refuse_folder
from denserk.io.manifest import NAME, Kind, Manifest, read_manifest
from denserk.io.outputs import prepare_folder, refuse_occupied
from denserk.io.topics import read_queries
from denserk.io.vector_formats import VectorBlock, Vectors, is_single_file, write_vectors
from denserk.io.vectors import INT8_WEIGHTS, EncodedTexts, VectorFolderWriter
from denserk.models import devices
from denserk.models.text_encoder import CALIBRATION_TEXTS, CERTIFICATION_TEXTS, TextEncoder
from denserk.records import Passage, Query
from denserk.reporting import track

T = TypeVar("T")
R = TypeVar("R")
Records = Sequence[Any]  # passages, or queries
Encoded = tuple[Block, Records, Hashes, Vectors]
# of each text the passage to copy from, or -1; and the other texts, unless the block is finished
Prepared = tuple[Block, Records, Hashes, NDArray[np.int64], PlannedTexts | None]
# Passages per block without --block-size. A CPU encodes 4,096 in minutes, which a kill would cost;
# a GPU encodes them in a second, and 512 would not fill it.
BLOCK_SIZES = {"cpu": 512, "cuda": 4096}
# options in the manifest, which a resumed run must share
RECORDED = ("vector_dtype", "shard_id", "shard_num", "dtype", "batch_size", "threads")
PLACES = ("shard_id", "shard_num", "block_size")  # those which need not be those of --update


@dataclass
class EncodeResult:
    """`count` vectors of `dimension` in the output, `copied` by --update, and the work of this run.

    `encoded` texts, their `tokens`, and their `positions` with padding, in `seconds`.
    """

    count: int = 0
    dimension: int = 0
    copied: int = 0
    encoded: int = 0
    seconds: float = 0.0
    tokens: int = 0
    positions: int = 0


def encode(settings: EncodeSettings, corpus: CorpusSettings, options: ModelOptions) -> EncodeResult:
    """Encode passages or queries."""
    streams = settings.source == STREAM or settings.output_format is not VectorFormat.NPY
    if devices.launched() and streams:
        raise UsageError(
            "several processes cannot read a stream, or write other than --output-format npy",
            "start encode without torchrun, or use denserk convert afterwards",
        )
    with devices.process_group(options.compute.device):
        return _encode(settings, corpus, options)


def _encode(
    settings: EncodeSettings, corpus: CorpusSettings, options: ModelOptions
) -> EncodeResult:
    source, compute = settings.source, options.compute
    if settings.topics is None:
        fields = options.text.get("fields")
        texts = blocks.Texts(source, "passages", partial(read_passages, source, corpus, fields))
    else:
        read = partial(read_queries, source, settings.topics_format, settings.qrels)
        texts = blocks.Texts(source, "queries", read)
    to_folder = settings.output_format is VectorFormat.NPY

    def look() -> tuple[int | None, Manifest | None]:
        """Count the texts, and read the manifest of the folder that is resumed."""
        if is_single_file(settings.output_format):
            refuse_folder(settings.output)
        else:
            refuse_occupied(settings.output, overwrite=settings.overwrite, resume=settings.resume)
        count = texts.count()
        if not settings.resume or not (Path(settings.output) / NAME).exists():
            return count, None
        return count, read_manifest(settings.output, Kind.VECTORS, unfinished=True)

    old = EncodedTexts(settings.update) if settings.update else None
    count, resumed = devices.from_main_process(look)
    earlier = resumed or (old.folder.manifest if old else None)
    size = settings.block_size or (earlier and earlier.settings.get("block_size"))
    size = size or BLOCK_SIZES[devices.choose_device(compute.device).type]
    start, stop = blocks.shard_bounds(count, size, settings.shard_id, settings.shard_num)
    if earlier is not None and compute.backend is Backend.AUTO:
        # absent where the vectors were encoded before manifests recorded it: by torch
        backend = earlier.made_from["model"].get("backend", Backend.TORCH)
        compute = replace(compute, backend=Backend(backend))
    encoder = TextEncoder(settings.model, *options._replace(compute=compute))
    if encoder.queries_of and settings.topics is None:
        hint = f"encode the corpus with --model {encoder.queries_of['name']}"
        raise UsageError(f"{encoder.name} is an encoder of queries alone", hint)
    if settings.int8:
        folder, side = Path(settings.output), settings.side
        recorded = resumed.made_from["model"].get("int8") if resumed else None
        if recorded and (folder / INT8_WEIGHTS).exists():
            encoder.use_int8(side, folder, recorded)
        else:
            first = list(islice(texts.read(), CALIBRATION_TEXTS + CERTIFICATION_TEXTS))
            encoder.int8 = devices.from_main_process(lambda: encoder.quantize(side, first))
    asked = as_json(settings) | as_json(compute)
    chosen = {
        **{name: asked[name] for name in RECORDED},
        **as_json(corpus),
        "side": settings.side,
        "block_size": size,
        "device": encoder.device.type,
        "batch_tokens": encoder.batch_tokens,
        **({"qrels": settings.qrels} if settings.qrels else {}),
    }
    made_from = {"model": encoder.description(), "texts": settings.source}
    manifest = _updating(old, Manifest(Kind.VECTORS, False, chosen, made_from))
    result = EncodeResult(dimension=encoder.dimension)
    writer = _folder_writer(settings, manifest, encoder, resumed) if to_folder else None
    finished = dict(writer.finished) if writer else {}
    numbered = texts.blocks(size, start, stop)
    with track("encoding", stop and stop - start, texts.unit) as progress:
        advance = progress.advance
        encoded = _encode_blocks(settings, encoder, numbered, finished, old, result, advance)
        if writer is None:
            _to_file(encoded, settings, encoder.text.fields, replace(manifest, complete=True))
            return result
        several = 1 if settings.topics else encoder.vectors_per_passage
        contents = {"dimension": encoder.dimension, "vectors_per_passage": several}
        return _to_folder(encoded, writer, result, contents)


def _updating(old: EncodedTexts | None, manifest: Manifest) -> Manifest:
    """Add what vectors are copied from; other settings or another model are a MismatchError."""
    if old is None:
        return manifest
    where, before = old.folder.folder, old.folder.manifest
    places = {name: manifest.settings[name] for name in PLACES}
    before = replace(before, settings={**before.settings, **places})
    hint = "give the same settings, or encode without --update"
    refuse_other_run(where, before, manifest, ["model"], hint)
    source = {"name": str(where), "fingerprint": before.contents["journal_sha256"]}
    return replace(manifest, made_from={**manifest.made_from, "update": source})


def _folder_writer(
    settings: EncodeSettings, manifest: Manifest, encoder: TextEncoder, resumed: Manifest | None
) -> VectorFolderWriter:
    """Return this process' writer of the folder, which the main process prepares."""
    folder = Path(settings.output)

    def start() -> tuple[Manifest, dict[int, Block]]:
        prepare_folder(
            folder, overwrite=settings.overwrite, resume=settings.resume, restorable=True
        )
        if resumed is not None:
            refuse_other_run(folder, resumed, manifest, ["model", "update"])
        finished = blocks.start_folder(folder, manifest)
        if settings.int8 and not (folder / INT8_WEIGHTS).exists():
            encoder.save_int8(folder)
        return manifest, finished

    of_main, finished = devices.from_main_process(start)
    rank, _ = devices.world()
    if rank:
        refuse_other_run(folder, of_main, manifest, ["model"])
        if encoder.int8:
            encoder.use_int8(settings.side, folder, encoder.int8)
    return VectorFolderWriter(folder, manifest, settings.vector_dtype.value, finished, rank)


def _to_folder(
    encoded: Iterable[Encoded], writer: VectorFolderWriter, result: EncodeResult, contents: Any
) -> EncodeResult:
    """Write the resumable folder, together with the other processes."""
    for block, records, hashes, vectors in encoded:
        writer.write(block, [record[0] for record in records], vectors, hashes)
    of_ranks = devices.gather_objects((writer.finished, result))

    def finish() -> EncodeResult:
        for finished, _ in of_ranks:
            writer.finished |= finished
        results = [other for _, other in of_ranks]
        summed = ("copied", "encoded", "tokens", "positions")
        work = {name: sum(getattr(each, name) for each in results) for name in summed}
        count = writer.finish({**contents, "copied": work["copied"]}).contents["count"]
        seconds = max(each.seconds for each in results)
        return EncodeResult(count, result.dimension, seconds=seconds, **work)

    return devices.from_main_process(finish)


def _to_file(
    encoded: Iterable[Encoded], settings: EncodeSettings, fields: Sequence[str], manifest: Manifest
) -> None:
    """Write another tool's format, in one pass; several vectors of d1 are d1#0, d1#1."""

    def named() -> Iterator[VectorBlock]:
        for _, records, _, vectors in encoded:
            names = [record[0] for record in records]
            contents = [" ".join(filter(None, _parts(record, fields))) for record in records]
            size = len(vectors) // len(records)
            if size > 1:
                names = [f"{name}#{i}" for name in names for i in range(size)]
                contents = [content for content in contents for _ in range(size)]
            with np.errstate(over="ignore"):
                stored = vectors.astype(settings.vector_dtype.value, copy=False)
            yield VectorBlock(names, stored, contents)

    path, form, queries = settings.output, settings.output_format, settings.topics is not None
    overwrite = settings.overwrite
    write_vectors(path, form, named(), overwrite=overwrite, queries=queries, manifest=manifest)


def _parts(record: Passage | Query, fields: Sequence[str]) -> list[str]:
    """Return the texts of a record that the tokenizer joins."""
    return [record.field(f) for f in fields] if isinstance(record, Passage) else [record.text]


def _encode_blocks(
    settings: EncodeSettings,
    encoder: TextEncoder,
    numbered: Iterable[tuple[int, Records]],
    finished: Mapping[int, Block],
    old: EncodedTexts | None,
    result: EncodeResult,
    advance: Callable[[int], None],
) -> Iterator[Encoded]:
    """Encode this process' blocks; finished ones are compared with the input and skipped."""
    (rank, size), side = devices.world(), settings.side
    start, unseen = time.perf_counter(), set(finished)
    output, source, again = settings.output, settings.source, "start over with --overwrite"

    def prepare(item: tuple[int, Records]) -> Prepared:
        number, records = item
        if number % size != rank:
            return Block(number, len(records), ""), records, text_hashes([]), np.empty(0, int), None
        texts = [_parts(record, encoder.text.fields) for record in records]
        digest = texts_sha256([r[0], *parts] for r, parts in zip(records, texts, strict=True))
        block = Block(number, len(records), digest)
        if finished.get(number, block) != block:
            raise MismatchError(
                f"{block.name} of {output} was made from other texts than {source} holds now", again
            )
        hashes = text_hashes(texts)
        kept = np.full(len(records), -1) if old is None else old.find(hashes)
        new = [records[place] for place in np.flatnonzero(kept < 0).tolist()]
        planned = None if number in finished else encoder.plan(side, new)
        return block, records, hashes, kept, planned

    for block, records, hashes, kept, planned in prefetch(prepare, numbered, settings.workers):
        unseen.discard(block.number)
        copied = int(np.count_nonzero(kept >= 0))
        result.copied += copied
        if planned is None:
            advance(block.count)
            if not result.encoded:  # time counts from the first text that is encoded
                start = time.perf_counter()
            continue
        vectors = encoder.encode_planned(side, planned, advance)
        if old is not None:
            vectors = old.with_encoded(kept, vectors)
            advance(copied)
        result.encoded += planned.count
        result.tokens += planned.tokens
        result.positions += planned.positions
        result.seconds = time.perf_counter() - start
        yield block, records, hashes, vectors
    result.count = result.encoded
    if unseen:
        raise MismatchError(f"{output} holds block {min(unseen)}, past the end of {source}", again)


def prefetch(work: Callable[[T], R], items: Iterable[T], workers: int = 1) -> Iterator[R]:
    """Yield the results of `work` in order, computed by other threads.

    Items are read in the caller's thread, at most `workers` beyond the last result yielded.

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
