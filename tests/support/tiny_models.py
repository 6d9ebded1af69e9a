"""Tiny random models with tokenizers, written as transformers writes them; nothing is downloaded.

Weights are drawn wide (standard deviation 0.3), so that states, logits and term weights differ
visibly from one token to the next.
"""

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from denserk.config.encoding import RepresentationSettings, TextSettings
from denserk.data.tokenization import load_tokenizer
from denserk.models.model_folder import read_model_folder
from denserk.models.representation import Aggretriever
from denserk.models.saving import save_model

HIDDEN = 16
POSITIONS = 64
BACKBONES = ("bert", "roberta", "distilbert", "electra", "t5")
WITH_HEADS = ("bert", "roberta", "distilbert")
RERANKERS = ("bert", "roberta", "distilbert", "electra")
SPECIALS = {
    "bert": {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
    "roberta": {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"},
    "t5": {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"},
}
SPECIALS["distilbert"] = SPECIALS["electra"] = SPECIALS["bert"]
TEMPLATES = {
    "bert": ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"),
    "roberta": ("<s> $A </s>", "<s> $A </s> </s> $B </s>"),
    "t5": ("$A </s>", "$A </s> $B </s>"),
}
TEMPLATES["distilbert"] = TEMPLATES["electra"] = TEMPLATES["bert"]
for _kind, _like in (
    *(("deberta-v2", "bert"), ("modernbert", "bert"), ("dpr-question", "bert")),
    *(("dpr-context", "bert"), ("xlm-roberta", "roberta"), ("mpnet", "roberta")),
):
    SPECIALS[_kind], TEMPLATES[_kind] = SPECIALS[_like], TEMPLATES[_like]
SPECIALS["qwen3"] = {"pad": "<|endoftext|>", "unk": "<unk>", "eos": "<|im_end|>"}
TEMPLATES["qwen3"] = ("$A <|endoftext|>", "$A $B <|endoftext|>")
SPECIALS["mt5"], TEMPLATES["mt5"] = SPECIALS["t5"], TEMPLATES["t5"]
SPECIALS["gpt2"], TEMPLATES["gpt2"] = {"eos": "<|endoftext|>", "unk": "<unk>"}, ("$A", "$A $B")
OTHERS = ("xlm-roberta", "mpnet", "deberta-v2", "modernbert", "dpr-question", "dpr-context")
# settings besides the sizes, by model type
SETTINGS: dict[str, dict[str, Any]] = {
    "electra": {"embedding_size": HIDDEN // 2},  # the small one projects its embeddings
    "deberta-v2": {  # as DeBERTa-v3 has it
        "relative_attention": True,
        "position_buckets": 8,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
        "type_vocab_size": 0,
    },
    "modernbert": {
        **dict.fromkeys(("bos_token_id", "cls_token_id"), 2),
        **dict.fromkeys(("eos_token_id", "sep_token_id"), 3),
        "pad_token_id": 0,
        "num_hidden_layers": 4,
        "local_attention": 8,
        "initializer_cutoff_factor": 3.0,
    },
    "qwen3": {"num_key_value_heads": 1, "head_dim": 8},
}


def words_of(vocabulary: list[str]) -> list[str]:
    return [word for word in vocabulary if not word.startswith("[")]


def numbered(words: list[str]) -> dict[str, int]:
    """Ids of words; of one that stands twice the later, and the last words fill the gaps."""
    ids = {word: i for i, word in enumerate(words)}
    free = iter(sorted(set(range(len(ids))) - set(ids.values())))
    return {word: i if i < len(ids) else next(free) for word, i in ids.items()}


def tiny_tokenizer(
    kind: str, vocabulary: list[str], positions: int = 64
) -> PreTrainedTokenizerFast:
    """A lower-casing WordPiece tokenizer with the special tokens of that kind of model."""
    specials = SPECIALS[kind]
    ids = numbered([*specials.values(), *words_of(vocabulary)])
    backend = Tokenizer(models.WordPiece(ids, unk_token=specials["unk"]))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    single, pair = TEMPLATES[kind]
    used = [(s, ids[s]) for s in specials.values()]
    backend.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=used
    )
    names = {f"{role}_token": token for role, token in specials.items()}
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=positions, **names)


def tiny_config(kind: str, vocabulary: int, hidden: int = HIDDEN, positions: int = 64) -> Any:
    """The configuration of a model of two layers, ModernBERT's of four."""
    kind = "dpr" if kind.startswith("dpr") else kind
    wide: dict[str, Any] = {"max_position_embeddings": positions, "initializer_range": 0.3}
    if kind in ("roberta", "xlm-roberta", "mpnet"):
        wide |= {"max_position_embeddings": positions + 2, "pad_token_id": 1}
    if kind in ("t5", "mt5"):
        sizes = {"d_model": hidden, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
        wide = {"decoder_start_token_id": 0}
    elif kind == "distilbert":
        sizes = {"dim": hidden, "n_layers": 2, "n_heads": 2, "hidden_dim": 2 * hidden}
    else:
        sizes = {"hidden_size": hidden, "num_hidden_layers": 2, "num_attention_heads": 2}
        sizes["intermediate_size"] = 2 * hidden
    settings = {**sizes, **wide, **SETTINGS.get(kind, {})}
    return transformers.AutoConfig.for_model(kind, vocab_size=vocabulary, **settings)


def write_tiny(
    folder: Path,
    kind: str,
    vocabulary: list[str],
    *,
    head: bool = True,
    seed: int = 7,
    hidden: int = HIDDEN,
    positions: int = 64,
) -> Path:
    """A plain transformers folder of a random model, with its MLM head or the encoder alone."""
    tokenizer = tiny_tokenizer(kind, vocabulary, positions)
    if kind == "qwen3":
        tokenizer.padding_side = tokenizer.init_kwargs["padding_side"] = "left"
    config = tiny_config(kind, len(tokenizer), hidden, positions)
    torch.manual_seed(seed)
    t: Any = transformers
    make = {
        "t5": t.AutoModelForTextEncoding.from_config,
        "electra": t.AutoModelForPreTraining.from_config,
        "qwen3": t.AutoModelForCausalLM.from_config,
        "dpr-question": t.DPRQuestionEncoder,
        "dpr-context": t.DPRContextEncoder,
    }.get(kind, t.AutoModelForMaskedLM.from_config)
    model = make(config)
    if kind in RERANKERS:
        shift(model, 0.05)
    (model if head else model.base_model).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def shift(model: torch.nn.Module, deviation: float, of_vectors: float | None = None) -> None:
    """Add noise to all parameters, so that biases are not 0; `of_vectors` to those of one axis."""
    with torch.no_grad():
        for parameter in model.parameters():
            wide = deviation if of_vectors is None or parameter.dim() > 1 else of_vectors
            parameter.add_(torch.randn_like(parameter) * wide)


def write_tiny_classifier(
    folder: Path, kind: str, vocabulary: list[str], *, labels: int = 1
) -> Path:
    torch.manual_seed(7)
    tokenizer = tiny_tokenizer(kind, vocabulary)
    config = tiny_config(kind, len(tokenizer))
    config.num_labels = labels
    transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    if kind in ("bert", "electra"):  # as the tokenizers of these models have it
        names = ["input_ids", "token_type_ids", "attention_mask"]
        tokenizer.model_input_names = tokenizer.init_kwargs["model_input_names"] = names
    tokenizer.save_pretrained(folder)
    return folder


def write_tiny_aggretriever(
    folder: Path,
    plain: Path,
    settings: RepresentationSettings,
    text: Mapping[str, Any] | None = None,
) -> Path:
    """denserk's folder of an Aggretriever model on a plain folder's backbone, its heads random."""
    stored = read_model_folder(plain).passage
    drawn = torch.Generator().manual_seed(3)  # about half of the term weights are negative
    empty = Aggretriever(settings, stored.config.hidden_size, stored.config.vocab_size)
    heads = {n: torch.randn(t.shape, generator=drawn) for n, t in empty.state_dict().items()}
    encoder = dataclasses.replace(stored, heads=heads).build(settings)
    save_model(folder, encoder, load_tokenizer(plain), TextSettings(**(text or {})))
    return folder


def write_writer(folder: Path, kind: str, vocabulary: list[str]) -> Path:
    """A random T5, mT5 or GPT-2 that writes text; it neither repeats itself nor flattens out."""
    torch.manual_seed(7)
    tokenizer = tiny_tokenizer(kind, vocabulary, positions=10**30)  # cuts no text
    tokenizer.backend_tokenizer.decoder = decoders.WordPiece(cleanup=False)
    if kind == "gpt2":
        sizes: dict[str, Any] = {"n_embd": HIDDEN, "n_layer": 2, "n_head": 2}
        sizes |= {"n_positions": POSITIONS, "bos_token_id": 0, "eos_token_id": 0}
        config: Any = transformers.GPT2Config(vocab_size=len(tokenizer), **sizes)
        model: Any = transformers.GPT2LMHeadModel(config)
    else:
        config = tiny_config(kind, len(tokenizer))
        model = transformers.AutoModelForSeq2SeqLM.from_config(config)
    shift(model, 0.4, of_vectors=0.2)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def without_dropout(source: Path, folder: Path) -> Path:
    """Copy a tiny model whose training is to have no noise."""
    shutil.copytree(source, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (folder / "config.json").write_text(json.dumps(config))
    return folder
