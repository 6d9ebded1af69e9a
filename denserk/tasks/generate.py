"""Passages -> what other models make of them: queries they answer, and how they could go on."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any

from denserk.data.tokenization import passage_input
from denserk.errors import MismatchError
from denserk.formats.block_journal import Block
from denserk.formats.expansions import Expansion
from denserk.formats.files import STREAM, whole_binary
from denserk.formats.id_ledger import IdLedger
from denserk.formats.json_lines import dump_json
from denserk.formats.manifest import Kind, Manifest, read_manifest
from denserk.formats.sources import read_passages
from denserk.formats.unfinished_lines import (
    LineBlock,
    UnfinishedLines,
    begun_manifest,
    refuse_occupied_file,
)
from denserk.modeling.decoders import CausalDecoder, Seq2SeqDecoder
from denserk.modeling.generator import Generator
from denserk.records import Passage
from denserk.reporting import SILENT, Progress, Reporter
from denserk.settings.encoding import BATCH_TOKENS, ComputeSettings, Dtype, TextSettings
from denserk.settings.formats import CorpusSettings
from denserk.settings.generate import (
    ContinuationDrawing,
    GenerateSettings,
    GenerateTextSettings,
    QueryDrawing,
    drawings,
)
from denserk.settings.options import as_json
from denserk.tasks.blocks import (
    blocks_of_shard,
    check_ids,
    numbered_blocks,
    refuse_other_run,
    survey,
    texts_sha256,
)

MODELS = ("queries_model", "continuation_model")


@dataclass
class GenerateResult:
    """Passages in the output; of those done now: how many, what they got, in which time.

    `empty` counts passages without text, which get nothing.
    """

    count: int = 0
    generated: int = 0
    queries: int = 0
    continuations: int = 0
    empty: int = 0
    seconds: float = 0.0

    @property
    def per_second(self) -> float:
        """Passages a second, of those done now."""
        return self.generated / self.seconds if self.seconds else 0.0


class _Stream:
    """Blocks that go to standard output at once; nothing of them is kept."""

    def __init__(self) -> None:
        self.finished: dict[int, LineBlock] = {}

    def write(self, block: Block, lines: bytes) -> None:
        with whole_binary(STREAM) as out:
            out.write(lines)

    def finish(self, contents: Mapping[str, Any]) -> None:
        """There is no file to name."""


@dataclass(frozen=True)
class _Plan:
    """What one run is told, and how its passages become the text that the models read."""

    settings: GenerateSettings
    queries: QueryDrawing | None
    continuations: ContinuationDrawing | None
    text: GenerateTextSettings
    corpus: CorpusSettings
    compute: ComputeSettings

    @property
    def fields(self) -> tuple[str, ...]:
        return self.text.fields or ("title", "text")

    def read(self, reporter: Reporter = SILENT) -> Iterator[Passage]:
        return read_passages(self.settings.corpus, self.corpus, reporter, self.text.fields)

    def text_of(self, passage: Passage) -> str:
        joined = passage_input(passage, TextSettings(self.fields, self.text.join), "")
        return joined if isinstance(joined, str) else " ".join(joined)

    def sha256(self, passages: Sequence[Passage]) -> str:
        return texts_sha256([p.docid, *(p.field(name) for name in self.fields)] for p in passages)

    def manifest(self, writers: "_Writers") -> Manifest:
        """Settings hold what the output depends on; in float32, the batch is none of it."""
        settings = self.settings
        chosen = {
            **{k: getattr(settings, k) for k in ("seed", "block_size", "shard_id", "shard_num")},
            **as_json(self.corpus),
            **as_json(self.text),
            "queries": None if self.queries is None else as_json(self.queries),
            "continuations": None if self.continuations is None else as_json(self.continuations),
            "dtype": self.compute.dtype.value,
        }
        if self.compute.dtype is not Dtype.FLOAT32:
            chosen |= {k: getattr(self.compute, k) for k in ("device", "batch_size")}
            chosen["batch_tokens"] = self.compute.batch_tokens or BATCH_TOKENS
        models = {key: made.description() for key, made in writers.by_key().items()}
        return Manifest(
            kind=Kind.EXPANSIONS,
            complete=False,
            settings=chosen,
            made_from={**models, "texts": settings.corpus},
        )


class _Writers:
    """The models of a run, and what they make of passages."""

    def __init__(self, plan: _Plan, reporter: Reporter) -> None:
        self._plan = plan
        settings = plan.settings
        self._asks = self._continues = None
        if settings.queries_model is not None and plan.queries is not None:
            self._asks = Generator(
                Seq2SeqDecoder,
                settings.queries_model,
                plan.queries.drawing,
                settings.seed,
                plan.compute,
                allow_pickle=settings.allow_pickle,
                reporter=reporter,
            )
        if settings.continuation_model is not None and plan.continuations is not None:
            self._continues = Generator(
                CausalDecoder,
                settings.continuation_model,
                plan.continuations.drawing,
                settings.seed,
                plan.compute,
                allow_pickle=settings.allow_pickle,
                reporter=SILENT if self._asks else reporter,
            )

    def by_key(self) -> dict[str, Generator]:
        """The models by their key in a manifest."""
        both = zip(MODELS, (self._asks, self._continues), strict=True)
        return {key: generator for key, generator in both if generator is not None}

    def generate(self, passages: Sequence[Passage]) -> tuple[list[Expansion], int]:
        """The expansions of passages, and how many of these have no text."""
        texts = [self._plan.text_of(passage) for passage in passages]
        names = [passage.docid for passage in passages]
        prompt = "" if self._plan.queries is None else self._plan.queries.query_prompt
        queries = self._write(self._asks, [prompt * bool(text) + text for text in texts], names)
        following = self._write(self._continues, texts, names)
        expansions = [
            Expansion(name, tuple(asked), tuple(after))
            for name, asked, after in zip(names, queries, following, strict=True)
        ]
        return expansions, sum(not text for text in texts)

    def _write(
        self, generator: Generator | None, texts: Sequence[str], names: Sequence[str]
    ) -> list[list[str]]:
        if generator is None:
            return [[] for _ in texts]
        return generator.generate(generator.read(texts, self._plan.text.passage_max_length), names)

    def tell(self, reporter: Reporter) -> None:
        """How many draws had to be settled, and whether the tolerance held."""
        for generator in self.by_key().values():
            tally = generator.tally
            if tally.settled:
                reporter.note(
                    f"{generator.name}: {tally.settled:,} of {tally.drawn:,} tokens were too close "
                    "to call in float32, and settled in float64"
                )
            if tally.worst > 1:
                reporter.warn(
                    f"{generator.name}: float32 strayed {tally.worst:.1f} times as far as is "
                    "allowed for; with another batch size, a few texts may differ"
                )


def generate(
    settings: GenerateSettings,
    queries: Mapping[str, Any],
    continuations: Mapping[str, Any],
    text: GenerateTextSettings,
    corpus: CorpusSettings,
    compute: ComputeSettings,
    reporter: Reporter = SILENT,
) -> GenerateResult:
    """Writes the queries and continuations of every passage, in the order of the corpus.

    Args:
        settings: which passages, whose weights, to where.
        queries: fields of `QueryDrawing` that differ from its defaults.
        continuations: fields of `ContinuationDrawing` that differ from its defaults.
        text: how passages become text.
        corpus: how passages are read.
        compute: where and how precisely.
        reporter: told what goes on.

    Raises:
        UsageError, InputError, MismatchError, OutputError, ModelError: see `denserk.errors`.
    """
    plan = _Plan(settings, *drawings(settings, queries, continuations), text, corpus, compute)
    streaming = settings.output == STREAM
    if not streaming:
        refuse_occupied_file(settings.output, overwrite=settings.overwrite, resume=settings.resume)
    writers = _Writers(plan, reporter)
    read = partial(plan.read, reporter)
    count = survey(settings.corpus, "passages", read, reporter)
    bounds = blocks_of_shard(count, settings.block_size, settings.shard_id, settings.shard_num)
    manifest = plan.manifest(writers)
    if settings.resume and (begun := begun_manifest(settings.output)) is not None:
        found = read_manifest(begun, Kind.EXPANSIONS, unfinished=True)
        refuse_other_run(settings.output, found, manifest, MODELS, reporter)
        if found.complete:
            return _compare_finished(plan, found, bounds)
    total = None
    if count is not None and bounds[1] is not None:
        total = min(count, bounds[1] * settings.block_size) - bounds[0] * settings.block_size
    lines = (
        _Stream()
        if streaming
        else UnfinishedLines(settings.output, manifest, overwrite=settings.overwrite)
    )
    with reporter.track("generating", total, "passages") as progress:
        passages = plan.read(reporter if count is None else SILENT)
        blocks = numbered_blocks(passages, settings.block_size, bounds)
        result = _generate_blocks(plan, writers, lines, blocks, progress)
    writers.tell(reporter)
    return result


def _generate_blocks(
    plan: _Plan,
    writers: _Writers,
    lines: _Stream | UnfinishedLines,
    blocks: Iterator[tuple[int, list[Passage]]],
    progress: Progress,
) -> GenerateResult:
    """Finished blocks are compared with the corpus and passed over; the others are made."""
    settings, result, digest, seen = plan.settings, GenerateResult(), sha256(), set()
    with IdLedger() as ledger:
        for number, passages in blocks:
            if settings.corpus == STREAM:
                for passage in passages:
                    ledger.add(passage.docid)
            block = Block(number, len(passages), plan.sha256(passages))
            finished = lines.finished.get(number)
            if finished is None:
                start = time.perf_counter()
                expansions, empty = writers.generate(passages)
                lines.write(block, b"".join(dump_json(made._asdict()) for made in expansions))
                result.seconds += time.perf_counter() - start
                result.generated += len(expansions)
                result.empty += empty
                result.queries += sum(len(made.queries) for made in expansions)
                result.continuations += sum(len(made.next) for made in expansions)
            elif (finished.count, finished.input_sha256) != (block.count, block.input_sha256):
                raise _changed(settings)
            result.count += len(passages)
            seen.add(number)
            digest.update(block.input_sha256.encode())
            progress.advance(len(passages))
        if settings.corpus == STREAM:
            check_ids(settings.corpus, "passages", plan.read, ledger)
    if lines.finished.keys() - seen:
        raise _changed(settings)
    lines.finish({"count": result.count, "input_sha256": digest.hexdigest()})
    return result


def _compare_finished(
    plan: _Plan, found: Manifest, bounds: tuple[int, int | None]
) -> GenerateResult:
    """Nothing is left to do, if the corpus is still what the output was made from."""
    digest, count = sha256(), 0
    for _, passages in numbered_blocks(plan.read(), plan.settings.block_size, bounds):
        digest.update(plan.sha256(passages).encode())
        count += len(passages)
    if found.contents != {"count": count, "input_sha256": digest.hexdigest()}:
        raise _changed(plan.settings)
    return GenerateResult(count)


def _changed(settings: GenerateSettings) -> MismatchError:
    return MismatchError(
        f"{settings.output} was begun with other passages than {settings.corpus} holds now",
        "start over with --overwrite",
    )
