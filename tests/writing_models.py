"""Tiny random models that write text, with their tokenizers, as transformers writes them."""

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from tests.conftest import VOCABULARY
from tests.tiny_models import words_of

SPECIALS = {
    "t5": {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"},
    "gpt2": {"eos": "<|endoftext|>", "unk": "<unk>"},
}
SPECIALS["mt5"] = SPECIALS["t5"]
POSITIONS = 64


def writing_tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """A lower-casing WordPiece tokenizer; T5's puts an end behind each text."""
    specials = SPECIALS[kind]
    ids = {word: i for i, word in enumerate([*specials.values(), *words_of(VOCABULARY)])}
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


def write_writer(folder: Path, kind: str, *, seed: int = 7, width: float = 1.5) -> Path:
    """Writes a model of two layers; `width` spreads its logits: some tokens become likelier."""
    torch.manual_seed(seed)
    tokenizer = writing_tokenizer(kind)
    size = len(tokenizer)
    if kind == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=size,
            n_positions=POSITIONS,
            n_embd=16,
            n_layer=2,
            n_head=2,
            bos_token_id=0,
            eos_token_id=0,
        )
        model: Any = transformers.GPT2LMHeadModel(config)
    else:
        config = getattr(transformers, f"{kind.upper()}Config".replace("MT5", "MT5"))(
            vocab_size=size,
            d_model=16,
            d_kv=8,
            d_ff=32,
            num_layers=2,
            num_heads=2,
            decoder_start_token_id=0,
        )
        name = "MT5ForConditionalGeneration" if kind == "mt5" else "T5ForConditionalGeneration"
        model = getattr(transformers, name)(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
        model.get_input_embeddings().weight.copy_(
            width * torch.randn(size, 16, generator=generator)
        )
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
