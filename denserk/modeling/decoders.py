"""Models that write text, a token at a time: how each kind begins and goes on.

A decoder reads a batch of texts once, multiplies it into one row a sample, and keeps what it needs
of them; finished rows are dropped. It knows nothing of how tokens are drawn.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.mt5.modeling_mt5 import MT5LayerNorm
from transformers.models.t5.modeling_t5 import T5LayerNorm
from transformers.utils import logging

from denserk.data.batches import TokenBatch, pad
from denserk.data.tokenization import TokenIds
from denserk.errors import ModelError
from denserk.modeling.model_config import read_config, read_model_type
from denserk.modeling.weight_files import UNREADABLE, weight_files


class Decoder(ABC):
    """One kind of model: how texts become first logits, and tokens the next ones.

    Args:
        model: transformers' model, on its device.
    """

    auto_class: ClassVar[Any]
    model_types: ClassVar[tuple[str, ...]]
    name: ClassVar[str]
    option: ClassVar[str]

    def __init__(self, model: Any) -> None:
        self.model = model

    @abstractmethod
    def begin(self, batch: TokenBatch, samples: int) -> Tensor:
        """Reads texts: (B, T) ids -> (B, V) logits of first tokens; then one row a sample."""

    @abstractmethod
    def go_on(self, tokens: Tensor) -> Tensor:
        """Takes the rows' newest tokens: (R,) ids -> (R, V) logits of the next ones."""

    @abstractmethod
    def select(self, rows: Tensor) -> None:
        """Goes on with some rows alone: (R',) positions."""

    @abstractmethod
    def logits_of(self, text: TokenIds, tokens: Tensor) -> Tensor:
        """Logits behind one text and (N,) tokens, at once and without padding: (V,)."""

    def batch(self, texts: Sequence[TokenIds]) -> TokenBatch:
        """Texts as one batch on the model's device; what fills them up is never seen."""
        return pad(texts, 0).to(self.model.device)

    def exact(self) -> "Decoder":
        """A copy that computes in float64."""
        return type(self)(copy.deepcopy(self.model).double())

    @abstractmethod
    def read(self, backend: Any, texts: Sequence[str], length: int) -> list[TokenIds]:
        """The ids of texts by a tokenizer's backend, `length` of them at most."""

    @abstractmethod
    def room(self, max_tokens: int) -> int | None:
        """How many tokens a text may have if `max_tokens` are to follow; None: any number."""


class Seq2SeqDecoder(Decoder):
    """T5 and its kin: an encoder reads the text, a decoder writes."""

    auto_class = AutoModelForSeq2SeqLM
    model_types = ("t5", "mt5")
    name = "sequence-to-sequence model"
    option = "--queries-model"

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        start = setting(model, "decoder_start_token_id")
        if start is None:
            raise ModelError(
                f"{self.option}: neither config.json nor generation_config.json of the model names "
                "a decoder_start_token_id, with which every query begins"
            )
        self._start = int(start)

    def begin(self, batch: TokenBatch, samples: int) -> Tensor:
        """Reads texts and their first decoder token; see `Decoder`."""
        states = self.model.get_encoder()(
            input_ids=batch.input_ids, attention_mask=batch.attention_mask
        ).last_hidden_state
        first = torch.full((len(states), 1), self._start, device=states.device)
        output = self.model(
            encoder_outputs=BaseModelOutput(last_hidden_state=states),
            attention_mask=batch.attention_mask,
            decoder_input_ids=first,
            use_cache=True,
        )
        self._cache = output.past_key_values
        self._cache.batch_repeat_interleave(samples)
        self._mask = batch.attention_mask.repeat_interleave(samples, 0)
        # keys and values of the text stand in the cache: of its states, the shape alone is read
        self._states = states[:1].expand(len(self._mask), -1, -1)
        logits: Tensor = output.logits[:, -1]
        return logits

    def go_on(self, tokens: Tensor) -> Tensor:
        """One decoder step; see `Decoder`."""
        output = self.model(
            encoder_outputs=BaseModelOutput(last_hidden_state=self._states),
            attention_mask=self._mask,
            decoder_input_ids=tokens.unsqueeze(1),
            past_key_values=self._cache,
            use_cache=True,
        )
        logits: Tensor = output.logits[:, -1]
        return logits

    def select(self, rows: Tensor) -> None:
        """Drops the other rows; see `Decoder`."""
        self._cache.batch_select_indices(rows)
        self._mask, self._states = self._mask[rows], self._states[: len(rows)]

    def logits_of(self, text: TokenIds, tokens: Tensor) -> Tensor:
        """One text alone; see `Decoder`."""
        start = tokens.new_full((1,), self._start)
        output = self.model(
            **self.batch([text])._asdict(),
            decoder_input_ids=torch.cat([start, tokens]).unsqueeze(0),
            use_cache=False,
        )
        logits: Tensor = output.logits[0, -1]
        return logits

    def exact(self) -> Decoder:
        """A copy in float64, its norms too, which T5 computes in float32 whatever it is in."""
        decoder = super().exact()
        for module in decoder.model.modules():
            if isinstance(module, T5LayerNorm | MT5LayerNorm):
                module.forward = partial(_norm, module)  # type: ignore[method-assign]
        return decoder

    def read(self, backend: Any, texts: Sequence[str], length: int) -> list[TokenIds]:
        """The first ids of a long text, end token included; see `Decoder`."""
        backend.enable_truncation(length)
        return [encoding.ids for encoding in backend.encode_batch_fast(texts)]

    def room(self, max_tokens: int) -> int | None:
        """Its positions are relative: there is no last one."""
        return None


def _norm(module: Any, states: Tensor) -> Tensor:
    """T5's norm, root mean square without a mean, in the precision of the states."""
    scale = torch.rsqrt(states.square().mean(-1, keepdim=True) + module.variance_epsilon)
    normed: Tensor = module.weight * (states * scale)
    return normed


class CausalDecoder(Decoder):
    """GPT-2: the text is the beginning of what is written."""

    auto_class = AutoModelForCausalLM
    model_types = ("gpt2",)
    name = "causal language model"
    option = "--continuation-model"

    def begin(self, batch: TokenBatch, samples: int) -> Tensor:
        """Reads texts, all but the longest moved to the right; see `Decoder`."""
        width = batch.attention_mask.shape[1]
        lengths = batch.attention_mask.sum(1, keepdim=True)
        columns = torch.arange(width, device=lengths.device) - (width - lengths)
        mask = columns >= 0
        places = columns.clamp_min(0)
        output = self.model(
            input_ids=batch.input_ids.gather(1, places),
            attention_mask=mask,
            position_ids=places,
            use_cache=True,
            logits_to_keep=1,
        )
        self._cache = output.past_key_values
        self._cache.batch_repeat_interleave(samples)
        self._mask = mask.repeat_interleave(samples, 0)
        self._next = lengths.repeat_interleave(samples, 0)
        logits: Tensor = output.logits[:, -1]
        return logits

    def go_on(self, tokens: Tensor) -> Tensor:
        """One step; see `Decoder`."""
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(tokens), 1)], 1)
        output = self.model(
            input_ids=tokens.unsqueeze(1),
            attention_mask=self._mask,
            position_ids=self._next,
            past_key_values=self._cache,
            use_cache=True,
        )
        self._next = self._next + 1
        logits: Tensor = output.logits[:, -1]
        return logits

    def select(self, rows: Tensor) -> None:
        """Drops the other rows; see `Decoder`."""
        self._cache.batch_select_indices(rows)
        self._mask, self._next = self._mask[rows], self._next[rows]

    def logits_of(self, text: TokenIds, tokens: Tensor) -> Tensor:
        """One text alone; see `Decoder`."""
        ids = torch.cat([torch.tensor(text, device=tokens.device), tokens]).unsqueeze(0)
        logits: Tensor = self.model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[0, -1]
        return logits

    def read(self, backend: Any, texts: Sequence[str], length: int) -> list[TokenIds]:
        """The last ids of a long text, lest what follows it follow something else."""
        backend.no_truncation()
        encodings = backend.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids[-length:] for encoding in encodings]

    def room(self, max_tokens: int) -> int | None:
        """Positions are shared by the text and what follows it; see `Decoder`."""
        return int(self.model.config.n_positions) - max_tokens


def setting(model: Any, name: str) -> Any:
    """What a model's generation_config.json says, or else its config.json; None for neither."""
    told = getattr(model.generation_config, name, None)
    return getattr(model.config, name, None) if told is None else told


DECODERS: tuple[type[Decoder], ...] = (Seq2SeqDecoder, CausalDecoder)
D = TypeVar("D", bound=Decoder)


def load_decoder(kind: type[D], name: str, folder: Path, *, allow_pickle: bool) -> D:
    """The model of a folder, in float32 on the CPU; no code of the folder is run.

    Args:
        kind: what it must be.
        name: what the user called it.
        folder: where it lies.
        allow_pickle: also read pytorch_model.bin, tensors alone.

    Raises:
        ModelError: it is another kind of model, lacks weights, or cannot be read.
    """
    _refuse_kind(kind, name, read_model_type(folder))
    if any(path.suffix == ".bin" for path in weight_files(folder)) and not allow_pickle:
        raise ModelError(
            f"{kind.option} {name}: its weights are a pickle, {weight_files(folder)[-1].name}",
            "add --allow-pickle to read its tensors; nothing in it is run",
        )
    told = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        model, info = kind.auto_class.from_pretrained(
            folder,
            config=read_config(folder),
            dtype=torch.float32,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
    except UNREADABLE as error:
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(
            f"{kind.option} {name} cannot be loaded ({reason})", "fetch its files again"
        ) from None
    finally:
        logging.set_verbosity(told[0])
        if told[1]:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
    if missing := sorted(info["missing_keys"]):
        raise ModelError(
            f"{kind.option} {name} is no whole {kind.name}: it lacks {len(missing)} tensors, "
            f"the first is {missing[0]}"
        )
    return kind(model.eval())


def _refuse_kind(kind: type[Decoder], name: str, found: str | None) -> None:
    if found in kind.model_types:
        return
    other = next((decoder for decoder in DECODERS if found in decoder.model_types), None)
    raise ModelError(
        f"{kind.option} {name} is a {found} model; "
        f"a {kind.name} is expected ({', '.join(kind.model_types)})",
        f"give it as {other.option}" if other else None,
    )
