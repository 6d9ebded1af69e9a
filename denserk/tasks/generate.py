"""`denserk generate`: queries (doc2query) and continuations for the passages of a corpus."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b, sha256
from pathlib import Path

from denserk.config.encoding import ComputeSettings
from denserk.config.formats import CorpusSettings, GenerateSettings
from denserk.config.options import as_json
from denserk.errors import MismatchError
from denserk.io import blocks
from denserk.io.corpus import read_passages
from denserk.io.files import STREAM, whole_binary
from denserk.io.json_records import dump_json
from denserk.io.manifest import Kind, Manifest, beside, read_manifest
from denserk.io.outputs import unfinished_folder
from denserk.models.generation import CONTINUATIONS, MODELS, QUERIES, TextGenerator
from denserk.reporting import track

# options in the manifest of a run that has the model, by their key there
SAMPLED = {
    QUERIES: ("queries", "num_queries query_top_k query_max_tokens query_prompt"),
    CONTINUATIONS: (
        "continuations",
        "num_continuations continuation_top_p continuation_max_tokens",
    ),
}
# Settings that a resumed run must share; a smaller batch is allowed.
SHARED = ("seed", "block_size", "shard_id", "shard_num", "fields", "join", "passage_max_length")


@dataclass
class GenerateResult:
    """Passages in the output, and the work of this run; `empty` passages have no text."""

    count: int = 0
    generated: int = 0
    queries: int = 0
    continuations: int = 0
    empty: int = 0
    seconds: float = 0.0


def generate(
    settings: GenerateSettings, corpus: CorpusSettings, compute: ComputeSettings
) -> GenerateResult:
    """Generate queries and continuations of every passage, in the order of the corpus."""
    generators = {
        option: TextGenerator(option, settings, compute)
        for option, field in MODELS.items()
        if getattr(settings, field) is not None
    }
    prompts = {QUERIES: settings.query_prompt, CONTINUATIONS: ""}

    def sample(option: str, number: int, inputs: Sequence[str]) -> list[list[str]]:
        if option not in generators:
            return [[]] * len(inputs)
        key = f"{settings.seed} {option} {number}".encode()
        seed = int.from_bytes(blake2b(key, digest_size=8).digest())
        prompted = [prompts[option] + each if each else "" for each in inputs]
        return generators[option].generate(prompted, settings.passage_max_length, seed)

    fields = settings.fields or ("title", "text")
    source, output, size = settings.corpus, settings.output, settings.block_size
    texts = blocks.Texts(source, "passages", lambda: read_passages(source, corpus, settings.fields))
    start, stop = blocks.shard_bounds(texts.count(), size, settings.shard_id, settings.shard_num)
    asked = as_json(settings)
    chosen = {
        **{name: asked[name] for name in SHARED},
        **as_json(corpus),
        **{
            key: {name: asked[name] for name in names.split()} if option in generators else None
            for option, (key, names) in SAMPLED.items()
        },
        "sampler": "transformers",
        "dtype": compute.dtype.value,
    }
    models = {
        MODELS[option]: {"name": model.name, "fingerprint": model.fingerprint}
        for option, model in generators.items()
    }
    manifest = Manifest(Kind.EXPANSIONS, False, chosen, {**models, "texts": source})
    resumed = None
    unfinished = unfinished_folder(output)
    started = unfinished if beside(unfinished).exists() else Path(output)
    if settings.resume and started.exists():
        resumed = read_manifest(started, Kind.EXPANSIONS, unfinished=True)
        blocks.refuse_other_run(output, resumed, manifest, [*MODELS.values()])
    complete = resumed is not None and resumed.complete
    writes = output != STREAM and not complete
    writer = (
        blocks.ResumableLines(output, manifest, overwrite=settings.overwrite) if writes else None
    )
    changed = MismatchError(
        f"{output} was started with other passages than {source} holds now",
        "start over with --overwrite",
    )
    result, digest, left = GenerateResult(), sha256(), dict(writer.finished if writer else {})
    with track("generating", stop and stop - start, "passages") as progress:
        for number, passages in texts.blocks(size, start, stop):
            parts = ([p.docid, *map(p.field, fields)] for p in passages)
            block = blocks.Block(number, len(passages), blocks.texts_sha256(parts))
            if left.get(number, block) != block:
                raise changed
            if left.pop(number, None) is None and not complete:
                started_at = time.perf_counter()
                inputs = [
                    settings.join.join(filter(None, (p.field(name).strip() for name in fields)))
                    for p in passages
                ]
                made = {option: sample(option, number, inputs) for option in MODELS}
                lines = b"".join(
                    dump_json({"docid": passage.docid, "queries": own, "next": following})
                    for passage, own, following in zip(passages, *made.values(), strict=True)
                )
                if writer is not None:
                    writer.write_files(block, {"jsonl": lines})
                else:
                    with whole_binary(STREAM) as out:
                        out.write(lines)
                result.seconds += time.perf_counter() - started_at
                result.generated += len(passages)
                result.empty += inputs.count("")
                result.queries += sum(map(len, made[QUERIES]))
                result.continuations += sum(map(len, made[CONTINUATIONS]))
            result.count += len(passages)
            digest.update(block.input_sha256.encode())
            progress.advance(len(passages))
    contents = {"count": result.count, "input_sha256": digest.hexdigest()}
    if left or (resumed is not None and complete and resumed.contents != contents):
        raise changed
    if writer is not None:
        writer.finish(contents)
    return result
