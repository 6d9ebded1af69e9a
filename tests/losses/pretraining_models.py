"""Tiny backbones, masked batches and literal layers for the tests of pre-training objectives."""

import json
import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import BertConfig

from denserk.data.batches import MaskedTexts, PretrainingBatch, TokenBatch
from denserk.data.masking import IGNORED
from denserk.losses.pretraining import PretrainingObjective
from denserk.models.backbone import Backbone
from denserk.models.model_folder import StoredEncoder


def backbone_of(folder: Path) -> Backbone:
    """A folder's backbone without dropout, in float64."""
    return StoredEncoder.read(folder).masked_lm().double().eval()


def random_texts(backbone: Backbone, lengths: list[int], seed: int = 0) -> MaskedTexts:
    """Padded texts of random tokens with random labels; position 0 is never asked."""
    torch.manual_seed(seed)
    shape = len(lengths), max(lengths)
    mask = torch.arange(shape[1]) < torch.tensor(lengths)[:, None]
    pad = backbone.config.pad_token_id
    ids = torch.randint(5, backbone.config.vocab_size, shape)
    asked = mask & (torch.rand(shape) < 0.5)
    asked[:, 0], asked[0, 2] = False, True
    labels = torch.randint(5, backbone.config.vocab_size, shape).where(asked, IGNORED)
    return MaskedTexts(TokenBatch(ids.where(mask, pad), mask), labels)


def example_backbone(config: dict[str, Any], weights: dict[str, Any]) -> Backbone:
    """The backbone of a paper's example vectors, without dropout."""
    names = {name: value for name, value in config.items() if name in BertConfig().to_dict()}
    made = BertConfig(**names, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    tensors = {
        name: torch.tensor(value)
        for name, value in weights.items()
        if name.startswith(("bert.", "cls.")) and isinstance(value, list)
    }
    return StoredEncoder(Path("example"), made, tensors, {}).backbone(with_head=True)


def fill_example(objective: PretrainingObjective, weights: dict[str, Any]) -> None:
    """Fills an objective's own layers from the example's weights."""
    for head, module in objective.heads().items():
        prefix = f"{head}."
        own = {n.removeprefix(prefix): v for n, v in weights.items() if n.startswith(prefix)}
        module.load_state_dict({n: torch.tensor(v) for n, v in own.items()})


def example_texts(ids: Any, mask: Any, labels: Any) -> MaskedTexts:
    """Lists of the example's inputs as texts."""
    return MaskedTexts(
        TokenBatch(torch.tensor(ids), torch.tensor(mask).bool()), torch.tensor(labels)
    )


def read_example(path: Path, part: str) -> dict[str, Any]:
    """One part of a file of example vectors."""
    example: dict[str, Any] = json.loads(path.read_text("utf-8"))[part]
    return example


def literal_loss(backbone: Backbone, hidden: Tensor, labels: Tensor) -> tuple[float, int]:
    """Token by token over all positions, through transformers' own head -> (sum, count)."""
    model = backbone.model
    if backbone.architecture.model_type == "distilbert":
        states = model.vocab_layer_norm(model.activation(model.vocab_transform(hidden)))
        logits = model.vocab_projector(states)
    else:
        logits = (model.cls if backbone.architecture.model_type == "bert" else model.lm_head)(
            hidden
        )
    total, count = 0.0, 0
    for row, asked in zip(logits, labels, strict=True):
        for scores, label in zip(row, asked.tolist(), strict=True):
            if label != IGNORED:
                total -= F.log_softmax(scores, 0)[label].item()
                count += 1
    return total, count


def only(texts: MaskedTexts) -> PretrainingBatch:
    """A batch of one encoder pass."""
    return PretrainingBatch(texts, {}, {})


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
