"""`denserk generate`: queries (doc2query) and continuations for the passages of a corpus."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

from denserk.config.encoding import ComputeSettings, DtypeChoice
from denserk.config.formats import CorpusSettings, GenerateSettings
from denserk.config.options import as_json
from denserk.errors import MismatchError
from denserk.io import blocks
from denserk.io.blocks import Block, ResumableLines, Texts
from denserk.io.corpus import read_passages, with_used_fields
from denserk.io.files import STREAM, whole_binary
from denserk.io.json_records import dump_json
from denserk.io.manifest import Kind, Manifest, beside, read_manifest, recorded_dtype
from denserk.io.outputs import unfinished_folder
from denserk.models.generation import CONTINUATIONS, MODELS, QUERIES, TextGenerator
from denserk.records import Passage
from denserk.reporting import track

# options in the manifest of a run that has the model, by their key there
SAMPLED = {
    QUERIES: ("queries", ("num_queries", "query_top_k", "query_max_tokens", "query_prompt")),
    CONTINUATIONS: (
        "continuations",
        ("num_continuations", "continuation_top_p", "continuation_max_tokens"),
    ),
}
# Settings that a resumed run must share. The batch size is none of them, though it changes which
# texts are drawn: a run that lacked memory can go on with a smaller one.
SHARED = ("seed", "block_size", "shard_id", "shard_num", "fields", "join", "passage_max_length")
FIELDS = ("title", "text")  # of passages, by default


@dataclass
class GenerateResult:
    """The size of the output, and the work of this run."""

    count: int = 0  # passages in the output
    generated: int = 0  # passages that this run read for the models, in `seconds`
    queries: int = 0
    continuations: int = 0
    empty: int = 0  # of the passages generated from: those without text
    seconds: float = 0.0


def generate(
    settings: GenerateSettings, corpus: CorpusSettings, compute: ComputeSettings
) -> GenerateResult:
    """Generate queries and continuations of every passage, in the order of the corpus."""
    started = started_manifest(settings)
    if compute.dtype is DtypeChoice.AUTO and started is not None:
        compute = replace(compute, dtype=DtypeChoice(recorded_dtype(started)))
    generators = load_generators(settings, compute)
    corpus = with_used_fields(settings.corpus, corpus)
    read = partial(read_passages, settings.corpus, corpus, settings.fields)
    texts = Texts(settings.corpus, "passages", read)
    block_size = settings.block_size
    count = texts.count()
    start, stop = blocks.shard_bounds(count, block_size, settings.shard_id, settings.shard_num)

    manifest = describe(settings, corpus, generators)
    resumed = resumed_manifest(settings, manifest)
    writer = None
    if settings.output != STREAM and (resumed is None or not resumed.complete):
        writer = ResumableLines(settings.output, manifest, overwrite=settings.overwrite)
    run = GenerationRun(settings, generators, resumed, writer)
    total = None if stop is None else stop - start
    with track("generating", total, "passages") as progress:
        for number, passages in texts.blocks(block_size, start, stop):
            run.process(number, passages)
            progress.advance(len(passages))
    run.finish()
    return run.result


def load_generators(
    settings: GenerateSettings, compute: ComputeSettings
) -> dict[str, TextGenerator]:
    """Load the models that are given, by their options."""
    return {
        option: TextGenerator(option, settings, compute)
        for option, field in MODELS.items()
        if getattr(settings, field) is not None
    }


def describe(
    settings: GenerateSettings,
    corpus: CorpusSettings,
    generators: Mapping[str, TextGenerator],
) -> Manifest:
    """Return the manifest of an unfinished output."""
    options = as_json(settings)
    recorded_settings: dict[str, Any] = {name: options[name] for name in SHARED}
    recorded_settings |= as_json(corpus)
    for option, (key, names) in SAMPLED.items():
        recorded_settings[key] = None
        if option in generators:
            recorded_settings[key] = {name: options[name] for name in names}
    recorded_settings["sampler"] = "transformers"
    recorded_settings["dtype"] = next(iter(generators.values())).dtype.value

    made_from: dict[str, Any] = {
        MODELS[option]: {"name": generator.name, "fingerprint": generator.fingerprint}
        for option, generator in generators.items()
    }
    made_from["texts"] = settings.corpus
    return Manifest(Kind.EXPANSIONS, False, recorded_settings, made_from)


def started_manifest(settings: GenerateSettings) -> Manifest | None:
    """Return the manifest of the output that is resumed."""
    path = unfinished_folder(settings.output)
    if not beside(path).exists():
        path = Path(settings.output)  # complete, if it is there
    if not settings.resume or not path.exists():
        return None
    return read_manifest(path, Kind.EXPANSIONS, unfinished=True)


def resumed_manifest(settings: GenerateSettings, manifest: Manifest) -> Manifest | None:
    """Return the manifest of the output that is resumed, which must be of an equal run."""
    resumed = started_manifest(settings)
    if resumed is not None:
        blocks.refuse_other_run(settings.output, resumed, manifest, [*MODELS.values()])
    return resumed


class GenerationRun:
    """Writes the blocks that are not finished yet, and compares the others; counts in `result`."""

    def __init__(
        self,
        settings: GenerateSettings,
        generators: Mapping[str, TextGenerator],
        resumed: Manifest | None,
        writer: ResumableLines | None,
    ) -> None:
        self._settings = settings
        self._generators = generators
        self._writer = writer  # None for standard output, and if the output is complete
        self._complete = resumed if resumed is not None and resumed.complete else None
        self._unread_blocks = {} if writer is None else dict(writer.finished)
        self._fields = settings.fields or FIELDS
        self._digest = sha256()
        self.result = GenerateResult()

    def process(self, number: int, passages: Sequence[Passage]) -> None:
        """Generate a block's texts and write them, unless they were written before."""
        texts = [[passage.docid, *map(passage.field, self._fields)] for passage in passages]
        block = Block(number, len(passages), blocks.texts_sha256(texts))
        finished_block = self._unread_blocks.pop(number, None)
        if finished_block is not None and finished_block != block:
            raise self._other_passages()
        if finished_block is None and self._complete is None:
            started = time.perf_counter()
            self._write(block, self._generate(number, passages))
            self.result.seconds += time.perf_counter() - started
        self.result.count += len(passages)
        self._digest.update(block.input_sha256.encode())

    def finish(self) -> None:
        """Write the output, whose blocks are all there, or compare a complete one's passages."""
        contents = {"count": self.result.count, "input_sha256": self._digest.hexdigest()}
        if self._unread_blocks:
            raise self._other_passages()
        if self._complete is not None and self._complete.contents != contents:
            raise self._other_passages()
        if self._writer is not None:
            self._writer.finish(contents)

    def _generate(self, number: int, passages: Sequence[Passage]) -> bytes:
        """Return the JSON lines of a block's passages, with their queries and continuations."""
        inputs = [self._input_text(passage) for passage in passages]
        queries = self._sample(QUERIES, number, inputs)
        continuations = self._sample(CONTINUATIONS, number, inputs)
        lines = []
        for passage, its_queries, its_continuations in zip(
            passages, queries, continuations, strict=True
        ):
            record = {
                "docid": passage.docid,
                "queries": its_queries,
                "next": its_continuations,
            }
            lines.append(dump_json(record))
        self.result.generated += len(passages)
        self.result.empty += inputs.count("")
        self.result.queries += sum(map(len, queries))
        self.result.continuations += sum(map(len, continuations))
        return b"".join(lines)

    def _input_text(self, passage: Passage) -> str:
        """Return the joined fields of a passage."""
        texts = (passage.field(name).strip() for name in self._fields)
        return self._settings.join.join(filter(None, texts))

    def _sample(self, option: str, number: int, inputs: Sequence[str]) -> list[list[str]]:
        """Return the texts that the model of an option samples for each input of a block."""
        if option not in self._generators:
            return [[]] * len(inputs)
        key = f"{self._settings.seed} {option} {number}".encode()
        seed = int.from_bytes(blake2b(key, digest_size=8).digest())
        prompt = self._settings.query_prompt if option == QUERIES else ""
        prompted_inputs = [prompt + text if text else "" for text in inputs]
        max_tokens = self._settings.passage_max_length
        return self._generators[option].generate(prompted_inputs, max_tokens, seed)

    def _write(self, block: Block, lines: bytes) -> None:
        """Write a block to the output's folder, or to standard output."""
        if self._writer is not None:
            self._writer.write_files(block, {"jsonl": lines})
            return
        with whole_binary(STREAM) as out:
            out.write(lines)

    def _other_passages(self) -> MismatchError:
        """Return the error of an output whose passages are not those of the corpus."""
        message = (
            f"{self._settings.output} was started with other passages than "
            f"{self._settings.corpus} holds now"
        )
        return MismatchError(message, "start over with --overwrite")
