"""A transformer's forward pass over packed tokens: nothing is computed for padding but embeddings.

For a GPU, and for training too: the layers' own weights are used, gradients flow, dropout falls
where transformers' modules let it fall. The products of queries, keys and values are one. It knows
layers of BERT's kind: norms behind the residuals.

Shapes: `B` texts, `T` tokens, `N` real tokens of all texts, `H` hidden, `A` heads.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PretrainedConfig
from transformers.activations import ACT2FN

from denserk.data.batches import TokenBatch
from denserk.modeling.architectures import Architecture, Dropouts, LayerParts
from denserk.modeling.unpadded_attention import attend
from denserk.modeling.unpadded_tokens import Packing


class UnpaddedForward:
    """The encoder without its head, as `Backbone.forward` and `Backbone.hidden_states` are.

    Args:
        architecture: its row of the table; `fits` must hold.
        config: its configuration.
        encoder: transformers' module, whose weights are used where they are.
    """

    def __init__(self, architecture: Architecture, config: PretrainedConfig, encoder: Any) -> None:
        assert fits(architecture)
        self.architecture, self.encoder = architecture, encoder
        self.heads = int(config.num_attention_heads)
        self.activation = ACT2FN[architecture.activation(config)]
        self.dropouts = architecture.dropouts(config)

    def __call__(self, batch: TokenBatch) -> Tensor:
        """Last hidden states, zeros at padding: (B, T) ids -> (B, T, H)."""
        packing = Packing.of(batch.attention_mask)
        return packing.unpack(deque(self.packed_states(batch, packing), maxlen=1).pop())

    def states(self, batch: TokenBatch) -> Iterator[Tensor]:
        """States of every layer, the embeddings' first: (B, T) ids -> L + 1 times (B, T, H)."""
        packing = Packing.of(batch.attention_mask)
        for states in self.packed_states(batch, packing):
            yield packing.unpack(states)

    def packed_states(self, batch: TokenBatch, packing: Packing) -> Iterator[Tensor]:
        """States of every layer, the embeddings' first: (B, T) ids -> L + 1 times (N, H)."""
        embedded = packing.pack(self.encoder.embeddings(input_ids=batch.input_ids))
        project = getattr(self.encoder, "embeddings_project", None)  # ELECTRA's
        states: Tensor = embedded if project is None else project(embedded)
        dropouts = self.dropouts if self.encoder.training else Dropouts()
        yield states
        for layer in self.encoder.get_submodule(self.architecture.layers):
            assert self.architecture.parts is not None
            states = self._layer(self.architecture.parts(layer), states, packing, dropouts)
            yield states

    def _layer(
        self, parts: LayerParts, states: Tensor, packing: Packing, dropouts: Dropouts
    ) -> Tensor:
        three = (parts.query, parts.key, parts.value)
        weight, bias = torch.cat([p.weight for p in three]), torch.cat([p.bias for p in three])
        projected = F.linear(states, weight, bias).view(len(states), 3, self.heads, -1)
        query, key, value = projected.unbind(1)
        context = attend(query, key, value, packing, dropouts.attention).flatten(1)
        attended = F.dropout(parts.attended(context), dropouts.attended)
        states = parts.attended_norm(attended + states)
        outer = parts.outer(self.activation(parts.inner(states)))
        result: Tensor = parts.norm(F.dropout(outer, dropouts.outer) + states)
        return result


def fits(architecture: Architecture) -> bool:
    """Whether an architecture is of the kind that the unpadded forward knows."""
    return architecture.parts is not None
