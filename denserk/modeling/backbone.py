"""The pretrained transformer and its MLM head, whatever its architecture."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import transformers
from torch import Tensor, nn
from transformers import PretrainedConfig
from transformers.initialization import no_init_weights
from transformers.masking_utils import create_bidirectional_mask

from denserk.data.batches import TokenBatch
from denserk.modeling.architectures import Architecture
from denserk.modeling.lean_forward import LeanForward
from denserk.modeling.model_config import config_errors, read_config
from denserk.modeling.tensor_names import check_names, check_shapes


class Backbone(nn.Module):
    """A transformer, with its MLM head where one is asked for.

    Args:
        architecture: its row of the table.
        config: its configuration.
        with_head: whether the MLM head is part of it; only for an architecture that has one.
    """

    def __init__(
        self, architecture: Architecture, config: PretrainedConfig, *, with_head: bool
    ) -> None:
        super().__init__()
        assert architecture.masked_lm or not with_head
        self.architecture = architecture
        self.config = config
        self.with_head = with_head
        name = architecture.masked_lm if with_head else architecture.encoder
        arguments = {} if with_head else architecture.encoder_arguments
        with no_init_weights():
            self.model: Any = getattr(transformers, str(name))(config, **arguments)
        self.lean: LeanForward | None = None

    @classmethod
    def from_tensors(
        cls,
        architecture: Architecture,
        folder: Path,
        tensors: Mapping[str, Tensor],
        *,
        with_head: bool,
    ) -> "Backbone":
        """The backbone of a folder, its tensors given under their canonical names.

        Raises:
            ModelError: tensors are missing or left over; all of them are named.
        """
        config = read_config(folder)
        with config_errors(folder):
            backbone = cls(architecture, config, with_head=with_head)
        backbone.load_tensors(folder, tensors)
        return backbone.float().eval()

    def load_tensors(self, folder: Path, tensors: Mapping[str, Tensor]) -> None:
        """Fills every parameter from tensors of canonical names, then ties what must be tied."""
        head = self.architecture.head
        prefix = "" if self.with_head else self.architecture.prefix
        given = {
            name.removeprefix(prefix): tensor
            for name, tensor in tensors.items()
            if self.with_head or not (head and name.startswith(head))
        }
        expected = self.model.state_dict()
        check_names(folder, set(expected), set(given))
        check_shapes(folder, expected, given)
        self.model.load_state_dict(given, assign=True)
        self.tie()

    def tie(self) -> None:
        """Makes tied tensors one parameter; a decoder that a file lacks would stay random."""
        cut = 0 if self.with_head else len(self.architecture.prefix)
        for name, source in self.architecture.tied.items():
            if not self.with_head and name.startswith(self.architecture.head or "\0"):
                continue
            owner, _, leaf = name[cut:].rpartition(".")
            setattr(self.model.get_submodule(owner), leaf, self.model.get_parameter(source[cut:]))

    def canonical(self) -> dict[str, Tensor]:
        """Every tensor under its canonical name, tied ones included."""
        prefix = "" if self.with_head else self.architecture.prefix
        return {prefix + name: tensor.detach() for name, tensor in self.model.state_dict().items()}

    def forward(self, batch: TokenBatch) -> Tensor:
        """Last hidden states: (B, T) ids -> (B, T, H)."""
        if self.lean is not None:
            return self.lean(batch)
        hidden: Tensor = self.encoder(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            output_hidden_states=False,
            return_dict=True,
        ).last_hidden_state
        return hidden

    def hidden_states(self, batch: TokenBatch, *, norm_intermediate: bool = False) -> list[Tensor]:
        """States of every layer, item 0 the embeddings': (B, T) ids -> L + 1 times (B, T, H).

        Args:
            batch: the tokens.
            norm_intermediate: apply the final layer norm, where the backbone has one after its last
                layer (T5), to the layers before it too.
        """
        if self.lean is not None:
            return list(self.lean.states(batch))
        states: list[Tensor] = list(
            self.encoder(
                input_ids=batch.input_ids,
                attention_mask=batch.attention_mask,
                output_hidden_states=True,
                return_dict=True,
            ).hidden_states
        )
        if norm_intermediate and self.architecture.final_norm:
            norm = self.encoder.get_submodule(self.architecture.final_norm)
            states[1:-1] = [norm(state) for state in states[1:-1]]
        return states

    def become_lean(self, lean: LeanForward) -> None:
        """Computes states by the lean forward from now on, for inference alone.

        The weights of the layers, which it holds in a layout of its own, are given up: the backbone
        can no longer be trained, saved or asked for its attention.
        """
        self.lean = lean
        self.encoder.get_submodule(self.architecture.layers).to_empty(device="meta")

    def attention_maps(self, batch: TokenBatch) -> list[Tensor]:
        """Who attends to whom, after the softmax: (B, T) ids -> L times (B, A, T, T), A the heads.

        From the first call on, the backbone computes attention in its eager form: no other one
        gives its weights away. A backbone with a lean forward has none to give.
        """
        assert self.lean is None
        self.encoder.set_attn_implementation("eager")
        maps = self.encoder(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            output_attentions=True,
            return_dict=True,
        ).attentions
        return list(maps)

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
        """Further layers of the encoder's own kind, as torch initialises them."""
        kind: Any = type(self.encoder.get_submodule(self.architecture.layers)[0])
        return [kind(self.model.config) for _ in range(count)]

    def run_layers(self, layers: Iterable[nn.Module], states: Tensor, mask: Tensor) -> Tensor:
        """Layers of the encoder's kind, one after the other.

        Args:
            layers: from `new_layers`.
            states: (B, T, H).
            mask: (B, T) bool, True = a real token.

        Returns:
            (B, T, H).
        """
        bias = create_bidirectional_mask(self.model.config, states, mask)
        for layer in layers:
            states = layer(states, bias)
        return states

    def run_cross_layer(
        self, layer: nn.Module, queries: Tensor, states: Tensor, seen: Tensor
    ) -> Tensor:
        """A layer whose queries, and with them the residual, are not what keys and values are of.

        Args:
            layer: from `new_layers`.
            queries: (B, T, H).
            states: (B, T, H).
            seen: (B, T, T) bool, whether query i sees state j.

        Returns:
            (B, T, H).
        """
        assert self.architecture.cross is not None
        return self.architecture.cross(layer, queries, states, seen)

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
        decoder = self.model.get_submodule(self.architecture.decoder)
        assert isinstance(decoder, nn.Linear)
        return decoder

    @property
    def encoder(self) -> Any:
        """The transformer of transformers without its MLM head."""
        if self.with_head:
            return getattr(self.model, self.architecture.prefix.rstrip("."))
        return self.model

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
