"""Two tiny models that write MASTER's expansions, trained from nothing: passages' queries by a T5,
their continuations by a GPT-2."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainingArguments,
)

PAD, END, UNKNOWN = "<pad>", "</s>", "<unk>"
ENTRIES, LENGTH, QUERY_LENGTH = 8000, 80, 24
Rows = Sequence[Mapping[str, list[int]]]


def byte_pairs(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """A tokenizer of byte pairs that ends each text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=ENTRIES,
            special_tokens=[PAD, END, UNKNOWN],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, tokenizer.token_to_id(END))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, unk_token=UNKNOWN
    )


def _ids(tokenizer: Any, texts: Sequence[str], longest: int) -> list[list[int]]:
    return tokenizer(list(texts), truncation=True, max_length=longest)["input_ids"]


def _collate(rows: Rows) -> dict[str, torch.Tensor]:
    def padded(name: str, value: int) -> torch.Tensor:
        texts = [torch.tensor(row[name]) for row in rows]
        return pad_sequence(texts, batch_first=True, padding_value=value)

    ids = padded("input_ids", -1)
    return {
        "input_ids": ids.clamp(min=0),
        "attention_mask": (ids >= 0).long(),
        "labels": padded("labels", -100),
    }


def _train(model: Any, rows: Rows, steps: int, tokenizer: Any, output: Path) -> None:
    arguments = TrainingArguments(
        output_dir=str(output / "run"),
        max_steps=steps,
        per_device_train_batch_size=32,
        learning_rate=2e-3,
        warmup_steps=steps // 10,
        logging_steps=100,
        save_strategy="no",
        report_to="none",
        remove_unused_columns=False,
        use_cpu=True,
        bf16=True,
        seed=1,
    )
    torch.manual_seed(1)
    Trainer(model, arguments, data_collator=_collate, train_dataset=rows).train()
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)


def train_asker(pairs: Sequence[tuple[str, str]], steps: int, output: Path) -> None:
    """A T5 that learns to ask, from pairs of a passage and its question."""
    passages, questions = zip(*pairs, strict=True)
    tokenizer = byte_pairs([*passages, *questions])
    rows = [
        {"input_ids": read, "labels": asked}
        for read, asked in zip(
            _ids(tokenizer, passages, LENGTH), _ids(tokenizer, questions, QUERY_LENGTH), strict=True
        )
    ]
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=128,
        d_kv=32,
        d_ff=512,
        num_layers=2,
        num_heads=4,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    config.decoder_start_token_id = tokenizer.pad_token_id
    _train(T5ForConditionalGeneration(config), rows, steps, tokenizer, output)


def train_continuer(texts: Sequence[str], steps: int, output: Path) -> None:
    """A GPT-2 that learns to write on."""
    tokenizer = byte_pairs(texts)
    rows = [{"input_ids": ids, "labels": ids} for ids in _ids(tokenizer, texts, LENGTH)]
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_embd=128,
        n_layer=2,
        n_head=2,
        n_positions=256,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    _train(GPT2LMHeadModel(config), rows, steps, tokenizer, output)
