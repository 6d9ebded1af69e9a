"""A new model: a WordPiece vocabulary trained on a corpus, and random weights.

The vocabulary is deterministic. The library's trainer alone is not: it numbers the characters that
continue words in hash order, and breaks ties between pairs by number. A first pass over the texts
therefore finds these characters and numbers them by code point.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from denserk.config.pretraining import SIZES, Architecture
from denserk.errors import InputError

SPECIALS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
MOST_CHARACTERS = 1000  # size of the alphabet; rarer characters become [UNK]
POSITIONS = 512  # maximum sequence length of a new model


def train_vocabulary(
    texts: Callable[[], Iterator[str]], size: int, source: str, positions: int = POSITIONS
) -> PreTrainedTokenizerFast:
    """Train a lower-casing WordPiece tokenizer as BERT's."""
    alphabet, continuing = _characters(texts(), min(MOST_CHARACTERS, size // 4))
    if not alphabet:
        raise InputError(source, None, "no text to train a vocabulary on", "some text")
    first = [*SPECIALS.values(), *(f"##{character}" for character in continuing)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        special_tokens=first,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    learner = _bert(models.WordPiece(unk_token=SPECIALS["unk"]))
    learner.train_from_iterator(texts(), trainer)
    # rebuilt, since the trainer marked all of `first` as special tokens
    tokenizer = _bert(models.WordPiece(learner.get_vocab(), unk_token=SPECIALS["unk"]))
    cls, sep = SPECIALS["cls"], SPECIALS["sep"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (cls, sep)],
    )
    names: dict[str, Any] = {f"{role}_token": token for role, token in SPECIALS.items()}
    made: Callable[..., PreTrainedTokenizerFast] = PreTrainedTokenizerFast
    return made(
        tokenizer_object=tokenizer,
        model_max_length=positions,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        do_lower_case=True,
        **names,
    )


def _bert(model: models.Model) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def _characters(texts: Iterator[str], most: int) -> tuple[list[str], list[str]]:
    """Return the most frequent characters, and those that continue words, by code point."""
    normalizer = normalizers.BertNormalizer(lowercase=True)
    splitter = pre_tokenizers.BertPreTokenizer()
    counts: Counter[str] = Counter()
    continuing: set[str] = set()
    for text in texts:
        normal = normalizer.normalize_str(text)
        counts.update(normal)
        for word, _ in splitter.pre_tokenize_str(normal):
            continuing.update(word[1:])
    printed = (character for character in counts if not character.isspace())
    ranked = sorted(printed, key=lambda character: (-counts[character], character))
    alphabet = sorted(ranked[:most])
    return alphabet, [character for character in alphabet if character in continuing]


def new_model(
    architecture: Architecture, vocabulary_size: int, seed: int, positions: int = POSITIONS
) -> BertForMaskedLM:
    """Return a randomly initialised BERT with its MLM head."""
    layers, hidden = SIZES[architecture]
    config = BertConfig(
        vocab_size=vocabulary_size,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        intermediate_size=4 * hidden,
        max_position_embeddings=positions,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return BertForMaskedLM(config)
