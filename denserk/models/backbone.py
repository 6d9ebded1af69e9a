"""The transformer of a model, with its MLM head where one is needed; a table of architectures.

A static encoder has a table of its tokens' vectors in its place (Model2Vec, StaticEmbedding).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from inspect import signature
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import PretrainedConfig
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.auto import modeling_auto as auto

from denserk.data.batches import TokenBatch, pad
from denserk.errors import ModelError
from denserk.models.openvino_modules import Compiled, Traced, compile_module

STATIC = "static"
# in `layer_types` of a configuration
LOCAL_ATTENTION = "sliding_attention"
FULL_ATTENTION = "full_attention"


@dataclass(frozen=True)
class Architecture:
    """What denserk must know of an architecture beyond what AutoModel does.

    An architecture without a row in `ARCHITECTURES` can only be an encoder.
    """

    model_type: str  # as in config.json
    head: tuple[str, ...] = ()  # prefixes of the MLM head's tensors
    # that head up to its last layer, the decoder: a model of transformers, (..., H) -> (..., H)
    transform: Callable[[Any, Tensor], Tensor] | None = None
    final_norm: str = ""  # path of the norm after the last layer (T5)
    layers: str = ""  # path of the layers, if decoder layers of their kind can be added
    offset: bool = False  # positions are counted from the padding id on, as in RoBERTa
    full_masks: bool = False  # the encoder takes masks as `encoder_mask` makes them

    @property
    def has_cls(self) -> bool:
        """True if texts begin with a [CLS] token that attends to all others.

        Architectures that transformers knows as masked-language models are such.
        """
        return self.model_type in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES

    @property
    def is_decoder(self) -> bool:
        """True if a token attends to earlier ones only."""
        return not self.has_cls and self.model_type in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


_BERT = Architecture(
    "bert",
    head=("cls.predictions.",),
    transform=lambda model, hidden: model.cls.predictions.transform(hidden),
    layers="encoder.layer",
    full_masks=True,
)
_ROBERTA = Architecture(
    "roberta",
    head=("lm_head.",),
    transform=lambda m, hidden: m.lm_head.layer_norm(F.gelu(m.lm_head.dense(hidden))),
    layers="encoder.layer",
    offset=True,
    full_masks=True,
)
_DISTILBERT = Architecture(
    "distilbert",
    head=("vocab_transform.", "vocab_layer_norm.", "vocab_projector."),
    transform=lambda m, hidden: m.vocab_layer_norm(m.activation(m.vocab_transform(hidden))),
    layers="transformer.layer",
    full_masks=True,
)
_MODERNBERT = Architecture(
    "modernbert",
    head=("head.", "decoder."),
    transform=lambda model, hidden: model.head(hidden),
    layers="layers",
)
_T5 = Architecture("t5", final_norm="encoder.final_layer_norm")
_ROWS = (
    _BERT,
    _ROBERTA,
    _DISTILBERT,
    _MODERNBERT,
    _T5,
    replace(_ROBERTA, model_type="xlm-roberta"),
    # the layers of these two take relative positions as well
    replace(_ROBERTA, model_type="mpnet", layers="", full_masks=False),
    replace(_BERT, model_type="deberta-v2", layers="", full_masks=False),
    replace(_T5, model_type="mt5"),
    replace(_T5, model_type="umt5"),
    Architecture("camembert", offset=True),
    Architecture("data2vec-text", offset=True),
    Architecture("longformer", offset=True),
    Architecture("xlm-roberta-xl", offset=True),
    Architecture("xmod", offset=True),
)
ARCHITECTURES = {row.model_type: row for row in _ROWS}


def architecture_of(config: PretrainedConfig) -> Architecture:
    """Return the row of a model's type, or one with its name only."""
    return ARCHITECTURES.get(config.model_type, Architecture(config.model_type))


def first_position(config: PretrainedConfig) -> int:
    """Return the row of the position embeddings that a text begins with.

    With an offset, the rows up to the padding id's own are not for tokens.
    """
    if not architecture_of(config).offset:
        return 0
    return int(config.pad_token_id or 0) + 1


def longest_input(config: PretrainedConfig) -> int | None:
    """Return the positions of a model, special tokens included; None: any length."""
    position_count = getattr(config, "max_position_embeddings", None)
    if position_count is None or position_count <= 0:
        return None
    return int(position_count) - first_position(config)


def encoder_takes_full_masks(config: PretrainedConfig) -> bool:
    """Return whether an encoder takes masks that say which position sees which: (B, 1, T, T).

    One that is configured as a decoder must make its own, in which no position sees a later one.
    """
    return architecture_of(config).full_masks and not getattr(config, "is_decoder", False)


def encoder_mask(batch: TokenBatch, *, takes_full_masks: bool) -> Tensor | None:
    """Return a batch's mask in the format in which its encoder takes it: (B, T) int64, 1 at tokens.

    Of that mask, transformers first asks the GPU whether there is padding, and Python waits for the
    answer. Where that is known already, and the encoder `takes_full_masks`, it is given what
    transformers would make: (B, 1, T, T) bool, True where a position sees another, or None, if all
    see all.
    """
    mask = batch.attention_mask
    if batch.has_padding is None or not takes_full_masks:
        return mask.long()
    if not batch.has_padding:
        return None
    count, length = mask.shape
    return mask[:, None, None, :].expand(count, 1, length, length)


def without_cache(model: Any) -> dict[str, bool]:
    """Return the keyword argument by which an encoder keeps no keys and values, if it has one.

    Only generation needs them; with gradient checkpointing, transformers would warn of them.
    """
    if "use_cache" in signature(model.base_model.forward).parameters:
        return {"use_cache": False}
    return {}


class Backbone(nn.Module):
    """A transformer: a bare encoder, or a masked-language model.

    `new_heads` are the first parts of the names of randomly initialised layers. `unused_tensors`
    are weights of the stored model that no layer has here, and that are saved with it again: those
    of BERT's pooler.
    """

    def __init__(
        self,
        model: Any,
        new_heads: tuple[str, ...] = (),
        unused_tensors: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self.model: Any = model
        self.new_heads = new_heads
        self.unused_tensors = dict(unused_tensors)  # no buffers: they are not trained or moved
        self.config: Any = model.config
        self.compiled: Compiled | None = None
        self.takes_full_masks = encoder_takes_full_masks(model.config)
        self.without_cache = without_cache(model)

    @property
    def architecture(self) -> Architecture:
        """The row of the table of architectures; no attribute, so that models can be pickled."""
        return architecture_of(self.config)

    @property
    def has_local_attention(self) -> bool:
        """True if layers attend to a window of positions only."""
        return LOCAL_ATTENTION in (getattr(self.config, "layer_types", None) or ())

    @property
    def encoder(self) -> Any:
        """The transformer without its MLM head."""
        return self.model.base_model

    @property
    def decoder(self) -> Any:
        """The MLM head's last layer, (..., H) -> (..., V); None for a bare encoder."""
        return self.model.get_output_embeddings()

    def saved_tensors(self) -> dict[str, Tensor]:
        """Return the weights of the transformer as they are saved, by transformers' names."""
        return {**self.model.state_dict(), **self.unused_tensors}

    def _run(self, batch: TokenBatch, **outputs: bool) -> Any:
        """Run the encoder; `outputs` names what it returns besides the last hidden states."""
        return self.encoder(
            input_ids=batch.input_ids,
            attention_mask=self._mask(batch),
            return_dict=True,
            **self.without_cache,
            **outputs,
        )

    def _mask(self, batch: TokenBatch) -> Tensor | None:
        """See `encoder_mask`."""
        return encoder_mask(batch, takes_full_masks=self.takes_full_masks)

    def forward(self, batch: TokenBatch) -> Tensor:
        """Last hidden states: (B, T) ids -> (B, T, H)."""
        if self.compiled is not None:
            return self._compiled_states(self.compiled, batch)[-1]
        hidden: Tensor = self._run(batch, output_hidden_states=False).last_hidden_state
        return hidden

    def hidden_states(self, batch: TokenBatch) -> list[Tensor]:
        """States of every layer, item 0 the embeddings': (B, T) ids -> L + 1 times (B, T, H)."""
        if self.compiled is not None:
            return self._compiled_states(self.compiled, batch)
        return list(self._run(batch, output_hidden_states=True).hidden_states)

    def _compiled_states(self, compiled: Compiled, batch: TokenBatch) -> list[Tensor]:
        """Run what OpenVINO compiled: (B, T) ids -> states of the layers, each (B, T, H).

        Padding outside of every window of local attention attends to nothing, of which OpenVINO
        makes NaN, and the next layer spreads it: such models compute texts of one length together,
        without padding. States at padding are then zero.
        """
        ids = batch.input_ids
        mask = batch.attention_mask.bool()
        if not self.has_local_attention or bool(mask.all()):
            return compiled(ids, mask.long())
        lengths = mask.sum(1)
        states: list[Tensor] = []
        for length in sorted(set(lengths.tolist())):
            has_length = lengths == length
            token_mask = mask & has_length.unsqueeze(1)  # (B, T), texts of this length alone
            unpadded_ids = ids[token_mask].view(-1, length)
            states_of_layers = compiled(unpadded_ids, torch.ones_like(unpadded_ids))
            if not states:
                for layer_states in states_of_layers:
                    states.append(layer_states.new_zeros(*ids.shape, layer_states.shape[-1]))
            for padded_states, layer_states in zip(states, states_of_layers, strict=True):
                padded_states[token_mask] = layer_states.flatten(0, 1)
        return states

    def compile_states(self, dtype: torch.dtype, *, every_layer: bool) -> None:
        """Let OpenVINO compute `forward`, or with `every_layer` `hidden_states`, from now on."""

        def states(ids: Tensor, mask: Tensor) -> list[Tensor]:
            batch = TokenBatch(ids, mask.bool())
            return self.hidden_states(batch) if every_layer else [self(batch)]

        # two texts of any tokens, one of them padded; all models have eight positions
        long_text = [(7 + 97 * position) % self.config.vocab_size for position in range(8)]
        example = pad([long_text, long_text[:5]], int(self.config.pad_token_id or 0))
        inputs = (example.input_ids, example.attention_mask.long())
        self.compiled = compile_module(Traced(self, states), inputs, dtype)

    def attention_maps(self, batch: TokenBatch) -> list[Tensor]:
        """Return attention weights: (B, T) ids -> L times (B, A, T, T), A the heads.

        transformers' eager implementation, which alone returns them, is used from now on.
        """
        assert self.compiled is None
        self.encoder.set_attn_implementation("eager")
        self.takes_full_masks = False  # it adds masks to scores: numbers, not bool
        return list(self._run(batch, output_attentions=True).attentions)

    def embed(self, batch: TokenBatch) -> Tensor:
        """The embedding layer's output, norm and dropout included: (B, T) ids -> (B, T, H)."""
        embedded: Tensor = self.encoder.embeddings(input_ids=batch.input_ids)
        return embedded

    def position_signal(self, length: int) -> Tensor:
        """The embeddings of a text's first positions: (T, H)."""
        first_row = first_position(self.config)
        signal: Tensor = self.encoder.embeddings.position_embeddings.weight
        return signal[first_row : first_row + length]

    def new_layers(self, count: int) -> list[nn.Module]:
        """Return further layers of the encoder's own kind, as torch initialises them."""
        if not self.architecture.layers:
            raise ModelError(
                f"a {self.architecture.model_type} backbone cannot be given decoder layers",
                "start from a BERT, RoBERTa, DistilBERT or ModernBERT",
            )
        layers: Any = self.encoder.get_submodule(self.architecture.layers)
        layer_class: Any = type(layers[0])
        if not hasattr(self.config, "layer_types"):
            return [layer_class(self.config) for _ in range(count)]
        # ModernBERT: only some layers attend to the whole text, and the first has no norm
        layer_types = self.config.layer_types
        full_layers = [number for number, name in enumerate(layer_types) if name == FULL_ATTENTION]
        return [layer_class(self.config, full_layers[-1]) for _ in range(count)]

    def run_layers(self, layers: Iterable[nn.Module], states: Tensor, batch: TokenBatch) -> Tensor:
        """Run layers of `new_layers` one after the other on states of a batch's positions.

        (B, T, H) -> (B, T, H).
        """
        attention_mask = create_bidirectional_mask(self.config, states, self._mask(batch))
        if not hasattr(self.encoder, "rotary_emb"):
            for layer in layers:
                states = layer(states, attention_mask)
            return states
        # ModernBERT: rotary positions, and a norm after the last layer
        positions = torch.arange(states.shape[1], device=states.device).unsqueeze(0)
        for layer in layers:
            rotary = self.encoder.rotary_emb(states, positions, layer.attention_type)
            states = layer(states, attention_mask=attention_mask, position_embeddings=rotary)
        normed: Tensor = self.encoder.final_norm(states)
        return normed

    def run_cross_layer(
        self, layer: Any, queries: Tensor, states: Tensor, visible: Tensor
    ) -> Tensor:
        """Run a layer whose queries, and so its residual, differ from the states it attends to.

        The layer is BERT's, RoBERTa's or DistilBERT's.

        queries, states: (B, T, H); visible: (B, T, T) bool, whether query i sees state j
        -> (B, T, H).
        """
        is_bert = hasattr(layer.attention, "self")  # BERT's names, or DistilBERT's
        if is_bert:
            attention = layer.attention.self
            query = attention.query(queries)
            key = attention.key(states)
            value = attention.value(states)
        else:
            attention = layer.attention
            query = attention.q_lin(queries)
            key = attention.k_lin(states)
            value = attention.v_lin(states)
        head_size = attention.attention_head_size
        context = F.scaled_dot_product_attention(
            _by_head(query, head_size),
            _by_head(key, head_size),
            _by_head(value, head_size),
            visible.unsqueeze(1),
            attention.dropout.p if layer.training else 0.0,
        )
        context = context.transpose(1, 2).flatten(2)
        result: Tensor
        if is_bert:
            result = layer.feed_forward_chunk(layer.attention.output(context, queries))
        else:
            attended = layer.sa_layer_norm(attention.out_lin(context) + queries)
            result = layer.output_layer_norm(layer.ffn(attended) + attended)
        return result

    def vocabulary_logits(self, hidden: Tensor) -> Tensor:
        """The MLM head: (..., H) -> (..., V)."""
        logits: Tensor = self.decoder(self.transform(hidden))
        return logits

    def transform(self, hidden: Tensor) -> Tensor:
        """The MLM head up to its last layer: (..., H) -> (..., H)."""
        assert self.architecture.transform is not None
        return self.architecture.transform(self.model, hidden)


def _by_head(states: Tensor, head_size: int) -> Tensor:
    """Divide states among the heads of attention: (B, T, H) -> (B, A, T, H / A)."""
    by_head = states.reshape(*states.shape[:-1], -1, head_size)
    return by_head.transpose(1, 2)


class StaticConfig(PretrainedConfig):  # type: ignore[no-untyped-call]
    """The size of a static encoder's table: (V, H)."""

    model_type = STATIC
    vocab_size: int = 1
    hidden_size: int = 1


class StaticModel(transformers.PreTrainedModel):  # type: ignore[no-untyped-call]
    """A static encoder: a table of the tokens' vectors, which no context changes."""

    config_class = StaticConfig

    def __init__(self, config: StaticConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(self, input_ids: Tensor, **_: Any) -> BaseModelOutput:
        """Look vectors up: (B, T) ids -> (B, T, H)."""
        return BaseModelOutput(last_hidden_state=self.embedding(input_ids))


transformers.AutoConfig.register(STATIC, StaticConfig)
transformers.AutoModel.register(StaticConfig, StaticModel)


def without_special_tokens(tokenizer: Any) -> Any:
    """Return a tokenizer that adds no special tokens to a text."""
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.post_processor = None  # which adds them
    tokenizer_class: Any = transformers.PreTrainedTokenizerFast
    return tokenizer_class(tokenizer_object=backend, **tokenizer.special_tokens_map)
