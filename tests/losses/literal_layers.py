"""Layers of transformers restated: one head, one query at a time, from their weights alone."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def _parts(layer: Any) -> tuple[Any, ...]:
    """(query, key, value, output, norm, first, second, norm, heads) of either kind of layer."""
    if hasattr(layer, "sa_layer_norm"):
        own = layer.attention
        linear = own.q_lin, own.k_lin, own.v_lin, own.out_lin
        feed = layer.sa_layer_norm, layer.ffn.lin1, layer.ffn.lin2, layer.output_layer_norm
        return *linear, *feed, own.n_heads
    own, out = layer.attention.self, layer.attention.output
    feed = out.LayerNorm, layer.intermediate.dense, layer.output.dense, layer.output.LayerNorm
    return own.query, own.key, own.value, out.dense, *feed, own.num_attention_heads


def literal_layer(layer: Any, queries: Tensor, states: Tensor, seen: Tensor) -> Tensor:
    """One text's layer: (T, H), (T, H), (T, T) bool -> (T, H); exact GELU, no dropout."""
    query, key, value, output, norm, first, second, last_norm, heads = _parts(layer)
    width = queries.shape[1] // heads
    rows = []
    for i in range(len(queries)):
        context = []
        for h in range(heads):
            part = slice(h * width, (h + 1) * width)
            visible = [j for j in range(len(states)) if seen[i, j]]
            scores = [
                query(queries[i])[part] @ key(states[j])[part] / math.sqrt(width) for j in visible
            ]
            weights = torch.softmax(torch.stack(scores), 0)
            values = torch.stack([value(states[j])[part] for j in visible])
            context.append(weights @ values)
        attended = norm(output(torch.cat(context)) + queries[i])
        rows.append(last_norm(second(F.gelu(first(attended))) + attended))
    return torch.stack(rows)
