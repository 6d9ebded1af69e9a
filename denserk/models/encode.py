"""Encode a corpus or queries: streaming, in independent blocks, resumable, in several processes.

`prefetch` overlaps tokenising and writing with the model, which runs in the caller's thread. That
also reads the source, so that an interrupt is felt even while a stream keeps it waiting.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

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
from denserk.io.blocks import (
    Block,
    Texts,
    refuse_other_run,
    shard_bounds,
    start_folder,
    texts_sha256,
)
from denserk.io.corpus import read_passages
from denserk.io.files import STREAM
from denserk.io.manifest import NAME, Kind, Manifest, read_manifest
from denserk.io.outputs import prepare_folder, refuse_occupied
from denserk.io.topics import read_queries
from denserk.io.vector_formats import VectorBlock, Vectors, write_vectors
from denserk.io.vectors import INT8_WEIGHTS, VectorFolderWriter
from denserk.models.devices import choose_device
from denserk.models.distributed import (
    device_of_rank,
    from_main_process,
    gather_objects,
    launched,
    process_group,
    world,
)
from denserk.models.text_encoder import CALIBRATION_TEXTS, CERTIFICATION_TEXTS, TextEncoder
from denserk.records import Passage, Query
from denserk.reporting import Progress, track

T = TypeVar("T")
R = TypeVar("R")
Records = Sequence[Any]  # passages, or queries
Blocks = Iterable[tuple[int, Records]]  # with their numbers
Encoded = tuple[Block, Records, Vectors]
# Passages per block without --block-size. A CPU encodes 4,096 in minutes, which a kill would cost;
# a GPU encodes them in a second, and 512 would not fill it.
BLOCK_SIZES = {"cpu": 512, "cuda": 4096}
# options in the manifest, which a resumed run must share
RECORDED = ("vector_dtype", "shard_id", "shard_num", "dtype", "batch_size", "threads")


@dataclass
class EncodeResult:
    """`count` vectors of `dimension` in the output, and the work of this run.

    `encoded` texts, their `tokens`, and their `positions` with padding, in `seconds`.
    """

    count: int = 0
    dimension: int = 0
    encoded: int = 0
    seconds: float = 0.0
    tokens: int = 0
    positions: int = 0

    @property
    def per_second(self) -> float:
        """Texts encoded per second."""
        return self.encoded / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Tokens encoded per second."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def padding(self) -> float:
        """Share of the positions that was padding."""
        return 1 - self.tokens / self.positions if self.positions else 0.0


def encode(
    settings: EncodeSettings,
    corpus: CorpusSettings,
    representation: Mapping[str, Any],
    text: Mapping[str, Any],
    compute: ComputeSettings,
) -> EncodeResult:
    """Encode passages or queries.

    `representation` and `text` are fields of RepresentationSettings and of TextSettings that
    override the model's own.
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
    to_folder = settings.output_format is VectorFormat.NPY

    def look() -> tuple[int | None, Manifest | None]:
        """Count the texts, and read the manifest of the folder that is resumed."""
        if to_folder:
            refuse_occupied(settings.output, overwrite=settings.overwrite, resume=settings.resume)
        count = texts.count()
        if not settings.resume or not (Path(settings.output) / NAME).exists():
            return count, None
        return count, read_manifest(settings.output, Kind.VECTORS, unfinished=True)

    count, resumed = from_main_process(look)
    size = settings.block_size or (resumed and resumed.settings.get("block_size"))
    size = size or BLOCK_SIZES[choose_device(compute.device).type]
    start, stop = shard_bounds(count, size, settings.shard_id, settings.shard_num)
    if resumed is not None and compute.backend is Backend.AUTO:
        # earlier versions, which recorded none, computed by torch
        backend = resumed.made_from["model"].get("backend", Backend.TORCH)
        compute = replace(compute, backend=Backend(backend))
    encoder = TextEncoder.load(settings.model, representation, text, compute)
    if settings.int8:
        encoder.int8 = from_main_process(lambda: _int8(settings, texts, encoder, resumed))
    asked = as_json(settings) | as_json(compute) | as_json(corpus)
    chosen = {
        **{name: asked[name] for name in (*RECORDED, *as_json(corpus))},
        "side": settings.side,
        "block_size": size,
        "device": encoder.device.type,
        "batch_tokens": encoder.batch_tokens,
        **({"qrels": settings.qrels} if settings.qrels else {}),
    }
    made_from = {"model": encoder.description(), "texts": settings.source}
    manifest = Manifest(Kind.VECTORS, False, chosen, made_from)
    with track("encoding", stop and stop - start, texts.unit) as progress:
        encoding = _Encoding(settings, encoder, texts.blocks(size, start, stop), progress)
        if to_folder:
            return encoding.to_folder(_folder_writer(settings, manifest, encoder, resumed))
        return encoding.to_file(replace(manifest, complete=True))


def _int8(
    settings: EncodeSettings, texts: Texts, encoder: TextEncoder, resumed: Manifest | None
) -> dict[str, Any] | None:
    """Quantise the encoder: by the int8 model of a resumed folder, else on the first texts."""
    recorded = resumed.made_from["model"].get("int8") if resumed else None
    folder = Path(settings.output)
    if recorded and (folder / INT8_WEIGHTS).exists():
        encoder.use_int8(settings.side, folder, recorded)
    else:
        first = list(islice(texts.read(), CALIBRATION_TEXTS + CERTIFICATION_TEXTS))
        encoder.quantize(settings.side, first)
    return encoder.int8


def _folder_writer(
    settings: EncodeSettings, manifest: Manifest, encoder: TextEncoder, resumed: Manifest | None
) -> VectorFolderWriter:
    """Return this process' writer of the folder, which the main process prepares."""
    folder = Path(settings.output)

    def start() -> tuple[Manifest, dict[int, Block]]:
        prepare_folder(folder, overwrite=settings.overwrite, resume=settings.resume)
        if resumed is not None:
            refuse_other_run(folder, resumed, manifest, ["model"])
        finished = start_folder(folder, manifest)
        if settings.int8 and not (folder / INT8_WEIGHTS).exists():
            encoder.save_int8(folder)
        return manifest, finished

    of_main, finished = from_main_process(start)
    rank, _ = world()
    if rank:
        refuse_other_run(folder, of_main, manifest, ["model"])
        if encoder.int8:
            encoder.use_int8(settings.side, folder, encoder.int8)
    return VectorFolderWriter(folder, manifest, settings.vector_dtype.value, finished, rank)


def _parts(record: Passage | Query, text: TextSettings) -> list[str]:
    """Return the texts of a record that the tokenizer joins."""
    return [record.field(f) for f in text.fields] if isinstance(record, Passage) else [record.text]


class _Encoding:
    """Encodes this process' blocks; finished ones are compared with the input and skipped."""

    def __init__(
        self, settings: EncodeSettings, encoder: TextEncoder, blocks: Blocks, progress: Progress
    ) -> None:
        self._settings, self._encoder, self._progress = settings, encoder, progress
        self._side = settings.side
        self._blocks = blocks
        self._vectors_per_text = 1 if settings.topics else encoder.vectors_per_passage
        self._finished: Mapping[int, Block] = {}
        self._seen: set[int] = set()
        self._result = EncodeResult(dimension=encoder.dimension)

    def to_folder(self, writer: VectorFolderWriter) -> EncodeResult:
        """Write the resumable folder, together with the other processes."""
        self._finished = dict(writer.finished)

        def write(encoded: Encoded) -> None:
            block, records, vectors = encoded
            writer.write(block, [record[0] for record in records], vectors)

        with closing(self._encoded()) as encoded:
            for _ in prefetch(write, encoded):
                pass
        if world()[1] > 1:
            self._progress.note("waiting for the other processes")
        of_ranks = gather_objects((writer.finished, self._result))

        def finish() -> EncodeResult:
            for finished, _ in of_ranks:
                writer.finished |= finished
            dimension, size = self._encoder.dimension, self._vectors_per_text
            manifest = writer.finish({"dimension": dimension, "vectors_per_passage": size})
            results = [result for _, result in of_ranks]
            return EncodeResult(
                manifest.contents["count"],
                dimension,
                encoded=sum(result.encoded for result in results),
                seconds=max(result.seconds for result in results),
                tokens=sum(result.tokens for result in results),
                positions=sum(result.positions for result in results),
            )

        return from_main_process(finish)

    def to_file(self, manifest: Manifest) -> EncodeResult:
        """Write another tool's format, in one pass; several vectors of d1 are d1#0, d1#1."""
        settings, text, size = self._settings, self._encoder.text, self._vectors_per_text

        def as_block(encoded: Encoded) -> VectorBlock:
            _, records, vectors = encoded
            names = [record[0] for record in records]
            contents = [" ".join(filter(None, _parts(record, text))) for record in records]
            if size > 1:
                names = [f"{name}#{i}" for name in names for i in range(size)]
                contents = [content for content in contents for _ in range(size)]
            with np.errstate(over="ignore"):
                stored = vectors.astype(settings.vector_dtype.value, copy=False)
            return VectorBlock(names, stored, contents)

        with closing(self._encoded()) as encoded:
            write_vectors(
                settings.output,
                settings.output_format,
                prefetch(as_block, encoded),
                overwrite=settings.overwrite,
                queries=settings.topics is not None,
                manifest=manifest,
            )
        return self._result

    def _encoded(self) -> Generator[Encoded, None, None]:
        """Read and encode the blocks."""
        result, side = self._result, self._side
        start = time.perf_counter()
        shares = deal(self._blocks, self._finished, *world())
        with closing(prefetch(self._prepare, shares, self._settings.workers)) as prepared:
            for block, records, planned in prepared:
                if planned is None:
                    self._progress.advance(block.count)
                    if not result.encoded:  # time counts from the first text that is encoded
                        start = time.perf_counter()
                    continue
                vectors = self._encoder.encode_planned(side, planned, self._progress.advance)
                result.encoded += planned.count
                result.tokens += planned.tokens
                result.positions += planned.positions
                yield block, records, vectors
        result.count = result.encoded
        result.seconds = time.perf_counter() - start if result.encoded else 0.0
        if extra := sorted(self._finished.keys() - self._seen):
            raise MismatchError(
                f"{self._settings.output} holds block {extra[0]}, past the end of "
                f"{self._settings.source}",
                "start over with --overwrite",
            )

    def _prepare(
        self, share: tuple[int, Records, bool]
    ) -> tuple[Block, Records, PlannedTexts | None]:
        """Tokenise a block, unless it is finished or another process'."""
        number, records, own = share
        self._seen.add(number)
        if not own:
            return Block(number, len(records), ""), records, None
        text = self._encoder.text
        digest = texts_sha256([record[0], *_parts(record, text)] for record in records)
        block = Block(number, len(records), digest)
        if number not in self._finished:
            return block, records, self._encoder.plan(self._side, records)
        if self._finished[number] != block:
            raise MismatchError(
                f"{block.name} of {self._settings.output} was made from other texts than "
                f"{self._settings.source} holds there now",
                "start over with --overwrite",
            )
        return block, records, None


def deal(
    blocks: Iterable[tuple[int, T]], finished: Collection[int], rank: int, size: int
) -> Iterator[tuple[int, T, bool]]:
    """Yield numbered blocks, and whether each is processed by this rank.

    Finished and unfinished blocks are dealt separately: all share what a lost process left.

    >>> [number for number, _, own in deal(enumerate("abcdefg"), {0, 2, 4}, 1, 2) if own]
    [2, 3, 6]
    """
    turn = {True: 0, False: 0}
    for number, block in blocks:
        done = number in finished
        yield number, block, turn[done] % size == rank
        turn[done] += 1


def prefetch(
    work: Callable[[T], R], items: Iterable[T], workers: int = 1
) -> Generator[R, None, None]:
    """Yield the results of `work` in order, computed by other threads.

    Items are read in the caller's thread, at most `workers` + 1 beyond the last result yielded. An
    error is raised once everything before it was yielded. Close the generator
    (`contextlib.closing`) if the caller may stop early.

    >>> list(prefetch(str.upper, ["a", "b", "c"]))
    ['A', 'B', 'C']
    """
    reading = iter(items)
    waiting: deque[Future[R]] = deque()

    with ThreadPoolExecutor(workers, thread_name_prefix="prefetch") as pool:

        def start_next() -> None:
            try:
                waiting.append(pool.submit(work, next(reading)))
            except StopIteration:
                pass
            except Exception as error:  # noqa: BLE001 - raised again, in its turn
                waiting.append(Future())
                waiting[-1].set_exception(error)

        for _ in range(workers + 1):
            start_next()
        while waiting:
            yield waiting.popleft().result()
            start_next()
