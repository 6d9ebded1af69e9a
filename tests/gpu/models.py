"""Models that the check computes with: random weights from a seed, in the sizes of real ones."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    T5Config,
    T5ForConditionalGeneration,
)

from denserk.config.encoding import Representation, RepresentationSettings
from denserk.training.pretrain import train_vocabulary
from tests.gpu.setup import Setup
from tests.gpu.texts import training_collection
from tests.support.tiny_models import write_tiny_aggretriever

# layers, hidden size, attention heads
SIZES = {"base": (12, 768, 12), "minilm": (6, 384, 12), "small": (2, 128, 2)}
REHEARSED = (2, 64, 2)
POSITIONS = 512
NARROW = 0.02  # deviation of a new BERT's weights


def has_minilm(setup: Setup) -> bool:
    """Return True if there are real weights to compute with."""
    return setup.minilm is not None and not setup.rehearsal


@cache
def tokenizer_folder(setup: Setup) -> Path:
    """Return a folder with BERT's vocabulary, MiniLM's own or one that is trained here."""
    if setup.minilm is not None and not setup.rehearsal:
        return setup.minilm
    passages = training_collection(setup).passages

    def texts() -> Iterator[str]:
        return (passage.text for passage in passages)

    folder = setup.work / "tokenizer"
    size = setup.choose(30_522, 800)
    train_vocabulary(texts, size, "the passages", POSITIONS).save_pretrained(folder)
    return folder


def size_of(setup: Setup, size: str) -> tuple[int, int, int]:
    """Return layers, hidden size and heads of a size; all are tiny in a rehearsal."""
    return setup.choose(SIZES[size], REHEARSED)


@cache
def random_bert(
    setup: Setup, size: str, *, dropout: float = 0.0, deviation: float | None = None
) -> str:
    """Write a random BERT with its masked-language-model head, and return the folder.

    By default weights deviate so far that the vectors of different texts differ clearly, and not so
    far that rounding grows from layer to layer.
    """
    if deviation is None:
        deviation = setup.choose(0.1, 0.2)
    layers, hidden, heads = size_of(setup, size)
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder(setup))
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        max_position_embeddings=POSITIONS,
        initializer_range=deviation,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        pad_token_id=tokenizer.pad_token_id,
    )
    folder = setup.work / f"bert-{size}-{dropout}-{deviation}"
    torch.manual_seed(1)
    BertForMaskedLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def random_aggretriever(setup: Setup, size: str, **settings: Any) -> str:
    """Write a random Aggretriever on a random BERT, and return the folder."""
    chosen = RepresentationSettings(Representation.AGG, **settings)
    name = "-".join(map(str, settings.values()))
    folder = setup.work / f"agg-{size}-{name}"
    if not folder.exists():
        write_tiny_aggretriever(folder, Path(random_bert(setup, size)), chosen)
    return str(folder)


@cache
def random_t5(setup: Setup) -> str:
    """Write a random T5 that generates text, and return the folder."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder(setup))
    width = setup.choose(256, 32)
    settings: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "d_model": width,
        "d_ff": 2 * width,
        "num_layers": 2,
        "num_heads": 4,
        "d_kv": width // 4,
        "decoder_start_token_id": tokenizer.pad_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.sep_token_id,
    }
    folder = setup.work / "t5"
    torch.manual_seed(2)
    T5ForConditionalGeneration(T5Config(**settings)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
