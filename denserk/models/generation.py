"""Text generation by transformers' `generate`: doc2query queries and continuations of passages.

Tokens are drawn with torch's own generator, seeded for each block of passages. The texts of a block
depend on the block, the seed, the batch settings and the machine, but on no other block.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, GenerationConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)

from denserk.config.encoding import BATCH_TOKENS, ComputeSettings
from denserk.config.generate import Sampling
from denserk.data.batches import by_length
from denserk.data.tokenization import VOCABULARY_FILES, load_tokenizer
from denserk.errors import ModelError, UsageError
from denserk.models.checkpoints import (
    CONFIG,
    find_model,
    fingerprint,
    load_model,
    read_config,
    read_model_type,
    read_weights,
    weight_files,
)
from denserk.models.devices import choose_device, choose_dtype

QUERIES, CONTINUATIONS = "--queries-model", "--continuation-model"
SPECIAL_TOKENS = ("eos_token_id", "bos_token_id", "decoder_start_token_id")


class TextGenerator:
    """A causal or sequence-to-sequence model that samples texts.

    Args:
        option: `--queries-model` (sequence-to-sequence) or `--continuation-model` (causal).
        model: a folder or a name on the hub.
        sampling: how tokens are drawn.
        compute: device, dtype and batch size.
        allow_pickle: also read pytorch_model.bin (tensors only).
    """

    def __init__(
        self,
        option: str,
        model: str,
        sampling: Sampling,
        compute: ComputeSettings,
        *,
        allow_pickle: bool = False,
    ) -> None:
        if compute.threads is not None:
            torch.set_num_threads(compute.threads)
        self.device = choose_device(compute.device)
        self.name, folder = find_model(model, option)
        self._causal, self._sampling, self._compute = option == CONTINUATIONS, sampling, compute
        self._model = _load(option, self.name, folder, allow_pickle=allow_pickle)
        files = (folder / name for name in (CONFIG, *VOCABULARY_FILES, "merges.txt"))
        own = [*weight_files(folder), *(path for path in files if path.is_file())]
        self.fingerprint = fingerprint(folder, own)
        self._tokenizer = load_tokenizer(folder)
        if self._causal:  # what follows stands right behind a passage, and behind its end
            self._tokenizer.padding_side = self._tokenizer.truncation_side = "left"
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        self._room = getattr(self._model.config, "max_position_embeddings", None)
        if self._room is not None and self._causal:
            self._room -= sampling.max_tokens
            if self._room < 1:
                raise UsageError(
                    f"{self.name} has {self._room + sampling.max_tokens:,} positions: "
                    f"{sampling.max_tokens:,} new tokens leave no room for a passage"
                )
        sources = (self._model.generation_config, self._model.config)
        tokens = {  # all that is kept of the model's own generation settings
            name: next((v for s in sources if (v := getattr(s, name, None)) is not None), None)
            for name in SPECIAL_TOKENS
        }
        if not self._causal and tokens["decoder_start_token_id"] is None:
            raise ModelError(f"{option} {self.name}: its config.json has no decoder_start_token_id")
        self._model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
            do_sample=True,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            temperature=sampling.temperature,
            max_new_tokens=sampling.max_tokens,
            num_return_sequences=sampling.samples,
            pad_token_id=self._tokenizer.pad_token_id,
            **tokens,
        )
        self._model.to(self.device, choose_dtype(compute.dtype, self.device))

    def description(self) -> dict[str, Any]:
        """The model as plain JSON for manifests."""
        return {"name": self.name, "fingerprint": self.fingerprint}

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
            max_length=longest if self._room is None else min(longest, self._room),
            add_special_tokens=not self._causal,
            return_attention_mask=True,
        )
        new, samples = self._sampling.max_tokens, self._sampling.samples
        costs = [samples * (len(ids) + new) for ids in encoded["input_ids"]]
        budget = self._compute.batch_tokens or BATCH_TOKENS
        gpu = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(gpu), torch.inference_mode():
            torch.manual_seed(seed)
            for rows in by_length(costs, budget, self._compute.batch_size):
                batch = self._tokenizer.pad(
                    {name: [values[row] for row in rows] for name, values in encoded.items()},
                    return_tensors="pt",
                ).to(self.device)
                for row, drawn in zip(rows, self._sample(batch), strict=True):
                    found[filled[row]] = [text for text in map(str.strip, drawn) if text]
        return found

    def _sample(self, batch: Any) -> Iterator[list[str]]:
        """The samples of each text of a padded batch."""
        ids, samples = batch["input_ids"], self._sampling.samples
        try:
            drawn = self._model.generate(input_ids=ids, attention_mask=batch["attention_mask"])
        except torch.OutOfMemoryError:
            raise ModelError(
                f"{self.name}: {self.device} has no room for a batch of {len(ids)} passages with "
                f"{samples} samples each",
                "give a smaller --batch-tokens; with --resume, finished blocks are kept",
            ) from None
        except RuntimeError as error:
            if "probability tensor" not in str(error):
                raise
            raise ModelError(
                f"{self.name} gives logits that are not finite in {self._compute.dtype}",
                "try --dtype float32",
            ) from None
        texts = self._tokenizer.batch_decode(
            drawn[:, ids.shape[1] if self._causal else 0 :],
            skip_special_tokens=True,
            clean_up_tokenization_spaces=False,
        )
        return (texts[first : first + samples] for first in range(0, len(texts), samples))


def _load(option: str, name: str, folder: Path, *, allow_pickle: bool) -> Any:
    """Load a folder's model in float32 on the CPU."""
    kind = read_model_type(folder)
    causal = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys() - MODEL_FOR_MASKED_LM_MAPPING_NAMES.keys()
    known = {QUERIES: MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.keys(), CONTINUATIONS: causal}
    auto: Any = AutoModelForCausalLM if option == CONTINUATIONS else AutoModelForSeq2SeqLM
    if kind not in known[option]:
        expected = "causal" if option == CONTINUATIONS else "sequence-to-sequence"
        others = [f"give it as {other}" for other, kinds in known.items() if kind in kinds]
        raise ModelError(
            f"{option} {name} is a {kind} model; a {expected} model is expected", *others
        )
    if not allow_pickle and weight_files(folder)[-1].suffix == ".bin":
        raise ModelError(
            f"{option} {name}: its weights are a pickle, {weight_files(folder)[-1].name}",
            "add --allow-pickle to read its tensors; nothing in it is run",
        )
    model = load_model(auto, folder, read_config(folder), read_weights(folder))
    if (folder / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder)
    return model
