"""The transformer of a model, with its masked-language-model head where one is needed."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForTextEncoding, PretrainedConfig
from transformers.masking_utils import create_bidirectional_mask
from transformers.models.auto.modeling_auto import MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES

from denserk.data.batches import TokenBatch, pad
from denserk.errors import ModelError
from denserk.models.architectures import Architecture, architecture_of
from denserk.models.checkpoints import load_model
from denserk.models.openvino import Compiled, compile_function


class Backbone(nn.Module):
    """A transformer: a bare encoder, or a masked-language model (`with_head`)."""

    def __init__(self, model: Any, *, with_head: bool) -> None:
        super().__init__()
        self.model: Any = model
        self.with_head = with_head
        self.compiled: Compiled | None = None

    @classmethod
    def load(
        cls,
        folder: Path,
        config: PretrainedConfig,
        tensors: Mapping[str, Tensor],
        *,
        with_head: bool,
        may_lack_head: bool = False,
    ) -> "Backbone":
        """Build the backbone of a folder from its tensors, with its MLM head or without.

        With `may_lack_head`, a head that is not among the tensors is randomly initialised.
        """
        kind = config.model_type
        auto: Any = AutoModelForMaskedLM if with_head else AutoModel
        if not with_head and kind in MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES:
            auto = AutoModelForTextEncoding  # of T5 the encoder alone
        elif config.is_encoder_decoder:
            raise ModelError(
                f"{folder}: the backbone {kind!r} is not supported: its encoder cannot be loaded "
                "without its decoder",
                "take an encoder, a decoder, or a T5",
            )
        head = architecture_of(kind).head if may_lack_head else ()
        return cls(load_model(auto, folder, config, tensors, may_lack=head), with_head=with_head)

    @property
    def architecture(self) -> Architecture:
        """The row of the table of architectures."""
        return architecture_of(self.config.model_type)

    def _run(self, batch: TokenBatch, **asked: bool) -> Any:
        """Run the encoder; `asked` names what it returns besides the last hidden states."""
        if self.architecture.is_decoder:  # which alone know this argument
            asked["use_cache"] = False
        return self.encoder(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask.long(),
            return_dict=True,
            **asked,
        )

    @property
    def config(self) -> Any:
        """The configuration."""
        return self.model.config

    def forward(self, batch: TokenBatch) -> Tensor:
        """Last hidden states: (B, T) ids -> (B, T, H)."""
        if self.compiled is not None:
            return self.compiled(batch.input_ids, batch.attention_mask.long())[-1]
        hidden: Tensor = self._run(batch, output_hidden_states=False).last_hidden_state
        return hidden

    def hidden_states(self, batch: TokenBatch, *, norm_intermediate: bool = False) -> list[Tensor]:
        """States of every layer, item 0 the embeddings': (B, T) ids -> L + 1 times (B, T, H).

        With `norm_intermediate`, a norm that the backbone has after its last layer (T5) is applied
        to the layers before it too.
        """
        if self.compiled is not None:
            return self.compiled(batch.input_ids, batch.attention_mask.long())
        states: list[Tensor] = list(self._run(batch, output_hidden_states=True).hidden_states)
        if norm_intermediate and self.architecture.final_norm:
            norm = self.encoder.get_submodule(self.architecture.final_norm)
            states[1:-1] = [norm(state) for state in states[1:-1]]
        return states

    def compile_states(
        self, dtype: torch.dtype, *, every_layer: bool, norm_intermediate: bool = False
    ) -> None:
        """Let OpenVINO compute the states from now on, for inference on a CPU.

        Args:
            dtype: precision of the products, float32 or bfloat16.
            every_layer: `hidden_states` will be called, not `forward` alone.
            norm_intermediate: as in `hidden_states`.

        Raises:
            ModelError: see `denserk.models.openvino.compile_function`.
        """

        def states(ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
            batch = TokenBatch(ids, mask.bool())
            if every_layer:
                return tuple(self.hidden_states(batch, norm_intermediate=norm_intermediate))
            return (self(batch),)

        lengths = (9, 5)
        texts = [[(7 + 97 * i) % self.vocabulary for i in range(length)] for length in lengths]
        ids, mask = pad(texts, int(self.config.pad_token_id or 0))
        self.compiled = compile_function(states, [self.encoder], (ids, mask.long()), dtype)

    def attention_maps(self, batch: TokenBatch) -> list[Tensor]:
        """Return attention weights: (B, T) ids -> L times (B, A, T, T), A the heads.

        From the first call on, attention is computed by transformers' eager implementation, the
        only one that returns its weights. Not available from a compiled backbone.
        """
        assert self.compiled is None
        self.encoder.set_attn_implementation("eager")
        return list(self._run(batch, output_attentions=True).attentions)

    def embed(self, batch: TokenBatch) -> Tensor:
        """The embedding layer's output, norm and dropout included: (B, T) ids -> (B, T, H)."""
        embedded: Tensor = self.encoder.embeddings(input_ids=batch.input_ids)
        return embedded

    def position_signal(self, length: int) -> Tensor:
        """The embeddings of a text's first positions: (T, H)."""
        first = self.architecture.first_position(self.config)
        signal: Tensor = self.encoder.embeddings.position_embeddings.weight
        return signal[first : first + length]

    def new_layers(self, count: int) -> list[nn.Module]:
        """Further layers of the encoder's own kind, as torch initialises them.

        Raises:
            ModelError: denserk does not know the layers of this architecture.
        """
        if not self.architecture.layers:
            raise ModelError(
                f"a {self.architecture.model_type} backbone cannot be given decoder layers",
                "start from a BERT, RoBERTa, DistilBERT or ModernBERT, or pre-train with "
                "--objective mlm",
            )
        layers: Any = self.encoder.get_submodule(self.architecture.layers)
        kind: Any = type(layers[0])
        if not hasattr(self.config, "layer_types"):
            return [kind(self.config) for _ in range(count)]
        # ModernBERT: only some layers attend to the whole text, and the first has no norm
        whole = [i for i, name in enumerate(self.config.layer_types) if name == "full_attention"]
        return [kind(self.config, whole[-1]) for _ in range(count)]

    def run_layers(self, layers: Iterable[nn.Module], states: Tensor, mask: Tensor) -> Tensor:
        """Run layers of `new_layers` one after the other: (B, T, H), mask (B, T) -> (B, T, H)."""
        bias = create_bidirectional_mask(self.config, states, mask)
        if not hasattr(self.encoder, "rotary_emb"):
            for layer in layers:
                states = layer(states, bias)
            return states
        # ModernBERT: rotary positions, and a norm after the last layer
        places = torch.arange(states.shape[1], device=states.device).unsqueeze(0)
        for layer in layers:
            rotary = self.encoder.rotary_emb(states, places, layer.attention_type)
            states = layer(states, attention_mask=bias, position_embeddings=rotary)
        normed: Tensor = self.encoder.final_norm(states)
        return normed

    def run_cross_layer(self, layer: Any, queries: Tensor, states: Tensor, seen: Tensor) -> Tensor:
        """Run a layer whose queries, and so its residual, differ from the states it attends to.

        The layer is BERT's, RoBERTa's or DistilBERT's.

        queries, states: (B, T, H); seen: (B, T, T) bool, whether query i sees state j -> (B, T, H).
        """
        is_bert = hasattr(layer.attention, "self")  # BERT's names, or DistilBERT's
        own = layer.attention.self if is_bert else layer.attention
        linears = (own.query, own.key, own.value) if is_bert else (own.q_lin, own.k_lin, own.v_lin)
        query, key, value = (
            linear(part).unflatten(-1, (-1, own.attention_head_size)).transpose(1, 2)
            for linear, part in zip(linears, (queries, states, states), strict=True)
        )
        dropout = own.dropout.p if layer.training else 0.0
        context = F.scaled_dot_product_attention(query, key, value, seen.unsqueeze(1), dropout)
        context = context.transpose(1, 2).flatten(2)
        result: Tensor
        if is_bert:
            result = layer.feed_forward_chunk(layer.attention.output(context, queries))
        else:
            attended = layer.sa_layer_norm(own.out_lin(context) + queries)
            result = layer.output_layer_norm(layer.ffn(attended) + attended)
        return result

    def vocabulary_logits(self, hidden: Tensor) -> Tensor:
        """The MLM head: (..., H) -> (..., V)."""
        logits: Tensor = self.decoder(self.transform(hidden))
        return logits

    def transform(self, hidden: Tensor) -> Tensor:
        """The MLM head up to its last layer: (..., H) -> (..., H)."""
        assert self.with_head
        assert self.architecture.transform is not None
        return self.architecture.transform(self.model, hidden)

    @property
    def decoder(self) -> nn.Linear:
        """The MLM head's last layer: (..., H) -> (..., V)."""
        decoder = self.model.get_output_embeddings()
        assert isinstance(decoder, nn.Linear)
        return decoder

    @property
    def encoder(self) -> Any:
        """The transformer without its MLM head."""
        return self.model.base_model if self.with_head else self.model

    @property
    def hidden_size(self) -> int:
        """H."""
        return int(self.config.hidden_size)

    @property
    def last_layer(self) -> int:
        """L: how many layers there are, and the number of the last."""
        return int(self.config.num_hidden_layers)

    @property
    def heads(self) -> int:
        """A: the attention heads of a layer."""
        return int(self.config.num_attention_heads)

    @property
    def vocabulary(self) -> int:
        """V, as the model has it; a tokenizer may know fewer ids."""
        return int(self.config.vocab_size)

    @property
    def max_length(self) -> int | None:
        """The longest text it has positions for, special tokens included; None: any length."""
        return self.architecture.positions(self.config)
