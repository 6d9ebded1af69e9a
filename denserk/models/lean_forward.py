"""A transformer's forward pass for inference on the CPU, in as few operators as it has steps.

The literal path calls transformers' modules, one small operator after the other. Here a layer is
four products with packed weights (queries, keys and values in one; the activation and the residual
computed inside them), the attention, and two norms. It knows layers of BERT's kind alone: norms
behind the residuals, GELU in its exact form.

Axes: `B` texts, `T` tokens, `H` hidden, `A` heads.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig

from denserk.data.batches import TokenBatch
from denserk.models.architectures import Architecture, LayerParts
from denserk.models.packed_linear import PackedLinear, pack


class Norm(NamedTuple):
    """A layer norm; its weights stay in float32, and so does its arithmetic."""

    weight: Tensor
    bias: Tensor
    epsilon: float

    @classmethod
    def of(cls, module: nn.LayerNorm) -> "Norm":
        """The weights of a module."""
        weight, bias = (each.detach().float() for each in (module.weight, module.bias))
        return cls(weight, bias, module.eps)

    def __call__(self, states: Tensor) -> Tensor:
        """(..., H) -> (..., H), of the same dtype."""
        return F.layer_norm(states, self.weight.shape, self.weight, self.bias, self.epsilon)


class LeanEmbeddings:
    """Word, position and type embeddings, summed and normed in float32.

    Args:
        embeddings: transformers' module; the word embeddings stay its own.
        first_position: the row of the position embeddings that a text begins with; from 1 on, the
            row before it belongs to padding, as RoBERTa counts.
        pad_id: the id of padding.
        project: ELECTRA's layer between embeddings and states.
    """

    def __init__(
        self, embeddings: Any, first_position: int, pad_id: int, project: nn.Linear | None
    ) -> None:
        self.words: nn.Embedding = embeddings.word_embeddings
        self.norm = Norm.of(embeddings.LayerNorm)
        self.counted = first_position > 0
        self.pad_id = pad_id
        positions = embeddings.position_embeddings.weight.detach().float()
        self.positions = positions[max(first_position - 1, 0) :].clone()
        if hasattr(embeddings, "token_type_embeddings"):
            self.positions += embeddings.token_type_embeddings.weight[0].detach().float()
        self.project = None
        if project is not None:
            self.project = (project.weight.detach().float(), project.bias.detach().float())

    def __call__(self, ids: Tensor) -> Tensor:
        """(B, T) ids -> (B, T, H), float32."""
        if self.counted:
            real = ids != self.pad_id
            places = F.embedding(real.cumsum(1) * real, self.positions)
        else:
            places = self.positions[: ids.shape[1]]
        states = self.norm(F.embedding(ids, self.words.weight.detach()) + places)
        return states if self.project is None else F.linear(states, *self.project)


class LeanLayer:
    """One layer.

    Args:
        parts: what it computes with; nothing of it is needed afterwards.
        heads: A.
        dtype: the precision of products and attention.
    """

    def __init__(self, parts: LayerParts, heads: int, dtype: torch.dtype) -> None:
        three = (parts.query, parts.key, parts.value)
        weight, bias = torch.cat([p.weight for p in three]), torch.cat([p.bias for p in three])
        self.heads = heads
        self.projections = pack(weight, bias, dtype)
        self.attended = _packed(parts.attended, dtype)
        self.attended_norm = Norm.of(parts.attended_norm)
        self.inner = pack(parts.inner.weight, parts.inner.bias, dtype, activation="gelu")
        self.outer = _packed(parts.outer, dtype)
        self.norm = Norm.of(parts.norm)

    def __call__(self, states: Tensor, bias: Tensor | None) -> Tensor:
        """States of B texts and what attention adds to its scores: (B, T, H) -> (B, T, H)."""
        texts, length, hidden = states.shape
        projected = self.projections(states).view(texts, length, 3, self.heads, -1)
        query, key, value = projected.permute(2, 0, 3, 1, 4)
        context = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        context = context.transpose(1, 2).reshape(texts, length, hidden)
        states = self.attended_norm(self.attended.added(context, states))
        return self.norm(self.outer.added(self.inner(states), states))


def _packed(linear: nn.Linear, dtype: torch.dtype) -> PackedLinear:
    return pack(linear.weight, linear.bias, dtype)


class LeanForward:
    """The whole encoder, without its head.

    Args:
        architecture: its row of the table; `fits` must hold.
        config: its configuration.
        encoder: transformers' module. Of it, only the embeddings are needed afterwards.
        dtype: the precision of products and attention.
    """

    def __init__(
        self, architecture: Architecture, config: PretrainedConfig, encoder: Any, dtype: torch.dtype
    ) -> None:
        assert architecture.parts is not None
        self.dtype = dtype
        self.embeddings = LeanEmbeddings(
            encoder.embeddings,
            architecture.first_position(config),
            int(config.pad_token_id or 0),
            getattr(encoder, "embeddings_project", None),
        )
        heads = int(config.num_attention_heads)
        layers: Sequence[nn.Module] = list(encoder.get_submodule(architecture.layers))
        self.layers = [LeanLayer(architecture.parts(layer), heads, dtype) for layer in layers]

    def states(self, batch: TokenBatch) -> Iterator[Tensor]:
        """States of every layer, the embeddings' first: (B, T) ids -> L + 1 times (B, T, H)."""
        states = self.embeddings(batch.input_ids).to(self.dtype)
        yield states
        bias = attention_bias(batch.attention_mask, self.dtype)
        for layer in self.layers:
            states = layer(states, bias)
            yield states

    def __call__(self, batch: TokenBatch) -> Tensor:
        """Last hidden states: (B, T) ids -> (B, T, H)."""
        return deque(self.states(batch), maxlen=1).pop()


def attention_bias(mask: Tensor, dtype: torch.dtype) -> Tensor | None:
    """What keeps attention from padding: (B, T) bool -> (B, 1, 1, T), or None without padding."""
    if bool(mask.all()):
        return None
    lowest = torch.finfo(dtype).min
    return torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, lowest)[:, None, None]


def fits(architecture: Architecture, config: PretrainedConfig) -> bool:
    """Whether a model is of the kind that the lean forward knows."""
    return architecture.parts is not None and architecture.activation(config) == "gelu"
