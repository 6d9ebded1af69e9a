"""Models of transformers that sample queries (doc2query) or continuations for passages.

Tokens are drawn with torch's own generator, which is seeded for each block of passages. The texts
of a block depend on the block, the seed, the batch settings and the machine, but on no other block;
where memory lacked in an earlier block, also on the smaller batches since then.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, GenerationConfig

from denserk.config.encoding import ComputeSettings, default_batch_tokens
from denserk.config.formats import CONTINUATIONS, MODELS, GenerateSettings
from denserk.data.planning import by_length
from denserk.data.tokenization import VOCABULARY, load_tokenizer
from denserk.errors import ModelError, UsageError
from denserk.io.model_files import find_model, fingerprint_of
from denserk.io.outputs import MODEL_CONFIG
from denserk.io.versions import Version
from denserk.models import checkpoints
from denserk.models.devices import choose_dtype, choose_precision, prepare_device
from denserk.models.token_budget import TokenBudget

# all that is kept of a model's own settings
SPECIAL_TOKENS = ("eos_token_id", "bos_token_id", "decoder_start_token_id")
# The hint where there is no memory for a single passage.
SHORTEN = (
    "ask for fewer texts (--num-queries), cut passages (--passage-max-length), or --dtype bfloat16"
)
NO_LIMIT = 10**9  # positions of a model that states no number, such as T5


class TextGenerator:
    """A model that samples texts, as the settings name it.

    `option` is `--queries-model` (sequence-to-sequence) or `--continuation-model` (causal).
    """

    def __init__(self, option: str, settings: GenerateSettings, compute: ComputeSettings) -> None:
        self.device = prepare_device(compute)
        self.dtype = choose_precision(compute.dtype, self.device)
        self.name, folder = find_model(getattr(settings, MODELS[option]), option)
        version = Version.of(folder)
        self._compute = compute
        self._budget = self._token_budget()
        self._sampling = settings.sampling[MODELS[option]]
        self._is_causal = option == CONTINUATIONS

        weights = checkpoints.weight_files(folder)
        if not settings.allow_pickle and weights[-1].suffix == ".bin":
            raise ModelError(
                f"{option} {self.name}: its weights are a pickle, {weights[-1].name}",
                "add --allow-pickle to read its tensors; nothing in it is run",
            )
        files = [*weights, *config_and_vocabulary(folder)]
        self.fingerprint = fingerprint_of(folder, files)
        auto_class: Any = AutoModelForCausalLM if self._is_causal else AutoModelForSeq2SeqLM
        config = checkpoints.read_config(folder)
        self._model = checkpoints.load_model(
            auto_class, folder, config, checkpoints.read_weights(folder)
        )
        self._tokenizer = self._load_tokenizer(folder)
        self._passage_room = self._room_for_passages()
        self._model.generation_config = self._generation_config(folder)
        version.require_unchanged()
        self._model.to(self.device, choose_dtype(self.dtype, self.device))

    def _token_budget(self) -> TokenBudget:
        """Return the tokens of a batch; those that are generated count, too."""
        batch_tokens = self._compute.batch_tokens
        if not batch_tokens:
            batch_tokens = default_batch_tokens(self.device.type, self.dtype, generates=True)
        work = f"generating from {{texts}} passages, {{tokens}} tokens each, on {self.device}"
        return TokenBudget(batch_tokens, work, shorten=SHORTEN)

    def _load_tokenizer(self, folder: Path) -> Any:
        """Return the tokenizer, which pads and cuts at the left if new text follows a passage."""
        tokenizer = load_tokenizer(folder)
        if self._is_causal:
            tokenizer.padding_side = "left"
            tokenizer.truncation_side = "left"
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        return tokenizer

    def _room_for_passages(self) -> int:
        """Return the number of tokens that a passage may have."""
        positions = getattr(self._model.config, "max_position_embeddings", None) or NO_LIMIT
        if not self._is_causal:
            return int(positions)
        new_tokens = self._sampling.max_new_tokens
        if positions <= new_tokens:
            raise UsageError(
                f"{self.name} has {positions:,} positions: {new_tokens:,} new tokens leave no room "
                "for a passage"
            )
        return int(positions - new_tokens)

    def _generation_config(self, folder: Path) -> GenerationConfig:
        """Return the settings of sampling; of the model's own ones only the special tokens."""
        of_model = self._model.generation_config
        if (folder / "generation_config.json").is_file():
            of_model = GenerationConfig.from_pretrained(folder)
        special_tokens = {name: getattr(of_model, name) for name in SPECIAL_TOKENS}
        return GenerationConfig(  # type: ignore[no-untyped-call]
            do_sample=True,
            **self._sampling._asdict(),
            pad_token_id=self._tokenizer.pad_token_id,
            **special_tokens,
        )

    def generate(self, texts: Sequence[str], max_tokens: int, seed: int) -> list[list[str]]:
        """Sample texts for each of `texts`, cut to `max_tokens`; an empty text gets none.

        Samples without text are dropped.
        """
        filled_texts = [text for text in texts if text]
        if not filled_texts:
            return [[] for _ in texts]
        gpus = [self.device] if self.device.type == "cuda" else []
        samples = None
        with torch.random.fork_rng(gpus), torch.inference_mode():
            while samples is None:
                torch.manual_seed(seed)
                samples = self._sample(filled_texts, max_tokens)
        remaining_samples = iter(samples)
        return [next(remaining_samples) if text else [] for text in texts]

    def _sample(self, texts: Sequence[str], max_tokens: int) -> list[list[str]] | None:
        """Sample texts for each of `texts`, in batches of similar length.

        None if there was no memory for a batch: the texts are those of their batches, and all are
        to be sampled again, in smaller ones.
        """
        encoded = self._tokenizer(
            texts,
            truncation=True,
            max_length=min(max_tokens, self._passage_room),
            add_special_tokens=not self._is_causal,
            return_attention_mask=True,
        )
        samples_per_text = self._sampling.num_return_sequences
        new_tokens = self._sampling.max_new_tokens
        costs = [samples_per_text * (len(ids) + new_tokens) for ids in encoded["input_ids"]]
        budget = self._budget.tokens
        sampled: list[list[str]] = [[] for _ in texts]
        for rows in by_length(costs, budget, self._compute.batch_size):
            batch = {name: [values[row] for row in rows] for name, values in encoded.items()}
            samples = self._budget.attempt(
                len(rows), costs[rows[0]], partial(self._generate_batch, batch)
            )
            if samples is None:
                return None
            for position, row in enumerate(rows):
                start = position * samples_per_text
                samples_of_row = samples[start : start + samples_per_text]
                stripped = [sample.strip() for sample in samples_of_row]
                sampled[row] = [sample for sample in stripped if sample]
        return sampled

    def _generate_batch(self, batch: Mapping[str, Any]) -> list[str]:
        """Return the samples of each text of a tokenized batch, one text's after the other's."""
        padded = self._tokenizer.pad(batch, return_tensors="pt").to(self.device)
        ids = padded["input_ids"]
        generated = self._model.generate(input_ids=ids, attention_mask=padded["attention_mask"])
        if self._is_causal:
            generated = generated[:, ids.shape[1] :]
        decoded: list[str] = self._tokenizer.batch_decode(
            generated, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return decoded


def config_and_vocabulary(folder: Path) -> list[Path]:
    """Return the files beside the weights that decide what a model generates."""
    paths = [folder / name for name in (MODEL_CONFIG, *VOCABULARY, "merges.txt")]
    return [path for path in paths if path.is_file()]
