"""Generate queries (doc2query) and continuations of passages, block by block, by transformers.

Tokens are drawn with torch's own generator, seeded for each block of passages. The texts of a block
depend on the block, the seed, the batch settings and the machine, but on no other block.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, GenerationConfig

from denserk.config.encoding import BATCH_TOKENS, ComputeSettings
from denserk.config.formats import GenerateSettings
from denserk.data.batches import by_length
from denserk.data.tokenization import VOCABULARY, load_tokenizer
from denserk.errors import ModelError, UsageError
from denserk.io.model_files import CONFIG, find_model
from denserk.io.versions import Version
from denserk.models import checkpoints
from denserk.models.devices import choose_dtype, prepare_device

QUERIES, CONTINUATIONS = "--queries-model", "--continuation-model"
# fields of the models, which are their keys in the manifest
MODELS = {QUERIES: "queries_model", CONTINUATIONS: "continuation_model"}
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
