"""Tiny random models that write text, with their tokenizers, as transformers writes them."""

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from tests.conftest import VOCABULARY
from tests.tiny_models import numbered, words_of

SPECIALS = {
    "t5": {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"},
    "gpt2": {"eos": "<|endoftext|>", "unk": "<unk>"},
}
SPECIALS["mt5"] = SPECIALS["t5"]
POSITIONS = 64


def writing_tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """A lower-casing WordPiece tokenizer; T5's puts an end behind each text."""
    specials = SPECIALS[kind]
    ids = numbered([*specials.values(), *words_of(VOCABULARY)])
    backend = Tokenizer(models.WordPiece(ids, unk_token=specials["unk"]))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(cleanup=False)
    if kind != "gpt2":
        backend.post_processor = processors.TemplateProcessing(
            single="$A </s>", special_tokens=[("</s>", ids["</s>"])]
        )
    names: dict[str, Any] = {f"{role}_token": token for role, token in specials.items()}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


def tiny_writer(kind: str, size: int) -> Any:
    """A random model of two layers, its weights as transformers initialises them."""
    if kind == "gpt2":
        config: Any = transformers.GPT2Config(
            vocab_size=size,
            n_positions=POSITIONS,
            n_embd=16,
            n_layer=2,
            n_head=2,
            bos_token_id=0,
            eos_token_id=0,
        )
        return transformers.GPT2LMHeadModel(config)
    config = getattr(transformers, f"{kind.upper()}Config")(
        vocab_size=size,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=2,
        num_heads=2,
        decoder_start_token_id=0,
    )
    return getattr(transformers, f"{kind.upper()}ForConditionalGeneration")(config)


def write_writer(folder: Path, kind: str, *, seed: int = 7) -> Path:
    """Writes a model whose weights are drawn wide, so that it neither repeats nor flattens."""
    torch.manual_seed(seed)
    tokenizer = writing_tokenizer(kind)
    model = tiny_writer(kind, len(tokenizer))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.2 if parameter.dim() == 1 else 0.4))
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
