"""Generate queries (doc2query) and continuations of passages, block by block, by transformers.

Tokens are drawn with torch's own generator, seeded for each block of passages. The texts of a block
depend on the block, the seed, the batch settings and the machine, but on no other block.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, GenerationConfig

from denserk.config.encoding import BATCH_TOKENS, ComputeSettings
from denserk.config.formats import CorpusSettings, GenerateSettings
from denserk.config.options import as_json
from denserk.data.batches import by_length
from denserk.data.tokenization import VOCABULARY, load_tokenizer
from denserk.errors import MismatchError, ModelError, UsageError
from denserk.io import blocks
from denserk.io.corpus import read_passages
from denserk.io.files import STREAM, whole_binary
from denserk.io.json_records import dump_json
from denserk.io.manifest import Kind, Manifest, beside, read_manifest
from denserk.io.model_files import CONFIG, find_model
from denserk.io.outputs import unfinished_folder
from denserk.io.versions import Version
from denserk.models import checkpoints
from denserk.models.devices import choose_dtype, prepare_device
from denserk.reporting import track

QUERIES, CONTINUATIONS = "--queries-model", "--continuation-model"
# fields of the models, which are their keys in the manifest
MODELS = {QUERIES: "queries_model", CONTINUATIONS: "continuation_model"}
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
# all that is kept of a model's own settings
SPECIAL_TOKENS = ("eos_token_id", "bos_token_id", "decoder_start_token_id")


class TextGenerator:
    """A model that samples texts, as the settings name it.

    `option` is `--queries-model` (sequence-to-sequence) or `--continuation-model` (causal).
    """

    def __init__(self, option: str, settings: GenerateSettings, compute: ComputeSettings) -> None:
        self.device = prepare_device(compute)
        self.name, folder = find_model(getattr(settings, MODELS[option]), option)
        version = Version.of(folder)
        sampling = settings.sampling[MODELS[option]]
        weights = checkpoints.weight_files(folder)
        if not settings.allow_pickle and weights[-1].suffix == ".bin":
            raise ModelError(
                f"{option} {self.name}: its weights are a pickle, {weights[-1].name}",
                "add --allow-pickle to read its tensors; nothing in it is run",
            )
        files = (folder / name for name in (CONFIG, *VOCABULARY, "merges.txt"))
        own = [*weights, *(path for path in files if path.is_file())]
        self.fingerprint = checkpoints.fingerprint(folder, own)
        self._causal, self._sampling, self._compute = option == CONTINUATIONS, sampling, compute
        auto: Any = AutoModelForCausalLM if self._causal else AutoModelForSeq2SeqLM
        self._model = checkpoints.load_model(
            auto, folder, checkpoints.read_config(folder), checkpoints.read_weights(folder)
        )
        self._tokenizer = load_tokenizer(folder)
        if self._causal:  # new text follows the end of a passage
            self._tokenizer.padding_side = self._tokenizer.truncation_side = "left"
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        # T5 has no limit
        room = getattr(self._model.config, "max_position_embeddings", None) or 10**9
        self._room = room - sampling.max_new_tokens if self._causal else room
        if self._room < 1:
            new = f"{sampling.max_new_tokens:,} new tokens leave no room for a passage"
            raise UsageError(f"{self.name} has {room:,} positions: {new}")
        recorded = self._model.generation_config
        if (folder / "generation_config.json").is_file():
            recorded = GenerationConfig.from_pretrained(folder)
        self._model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
            do_sample=True,
            **sampling._asdict(),
            pad_token_id=self._tokenizer.pad_token_id,
            **{name: getattr(recorded, name) for name in SPECIAL_TOKENS},
        )
        version.require_unchanged()
        self._model.to(self.device, choose_dtype(compute.dtype, self.device))

    def generate(self, texts: Sequence[str], longest: int, seed: int) -> list[list[str]]:
        """Sample texts for each of `texts`, cut to `longest` tokens; an empty text gets none.

        Samples without text are dropped.
        """
        found: list[list[str]] = [[] for _ in texts]
        filled = [place for place, text in enumerate(texts) if text]
        if not filled:
            return found
        encoded = self._tokenizer(
            [texts[place] for place in filled],
            truncation=True,
            max_length=min(longest, self._room),
            add_special_tokens=not self._causal,
            return_attention_mask=True,
        )
        samples, longest, *_ = self._sampling
        costs = [samples * (len(ids) + longest) for ids in encoded["input_ids"]]
        budget = self._compute.batch_tokens or BATCH_TOKENS
        gpu = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(gpu), torch.inference_mode():
            torch.manual_seed(seed)
            for rows in by_length(costs, budget, self._compute.batch_size):
                batch = self._tokenizer.pad(
                    {name: [values[row] for row in rows] for name, values in encoded.items()},
                    return_tensors="pt",
                ).to(self.device)
                ids = batch["input_ids"]
                drawn = self._model.generate(input_ids=ids, attention_mask=batch["attention_mask"])
                made = self._tokenizer.batch_decode(
                    drawn[:, ids.shape[1] if self._causal else 0 :],
                    skip_special_tokens=True,
                    clean_up_tokenization_spaces=False,
                )
                for number, row in enumerate(rows):
                    own = map(str.strip, made[number * samples : (number + 1) * samples])
                    found[filled[row]] = [text for text in own if text]
        return found


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
