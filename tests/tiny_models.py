"""Tiny random models with tokenizers, written as transformers writes them; nothing is downloaded.

Weights are drawn wide (standard deviation 0.3), so that states, logits and term weights differ
visibly from one token to the next.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from denserk.config.encoding import RepresentationSettings, TextSettings
from denserk.data.tokenization import load_tokenizer
from denserk.models.model_folder import read_model_folder, save_model
from denserk.models.representation import Aggretriever, refuse_architecture

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
MASKED_LM = {
    "bert": "BertForMaskedLM",
    "roberta": "RobertaForMaskedLM",
    "distilbert": "DistilBertForMaskedLM",
}
WITH_DISCRIMINATOR = {"electra": "ElectraForPreTraining"}
CLASSIFIERS = {
    "bert": "BertForSequenceClassification",
    "roberta": "RobertaForSequenceClassification",
    "distilbert": "DistilBertForSequenceClassification",
    "electra": "ElectraForSequenceClassification",
}


def words_of(vocabulary: list[str]) -> list[str]:
    """A vocabulary without its special tokens."""
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


def _sizes(vocabulary: int, hidden: int = HIDDEN) -> dict[str, Any]:
    return {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 2 * hidden,
        "initializer_range": 0.3,
    }


def tiny_config(kind: str, vocabulary: int, hidden: int = HIDDEN, positions: int = 64) -> Any:
    """The configuration of a two-layer model."""
    if kind in ("t5", "mt5"):
        sizes = {"d_model": hidden, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
        config = getattr(transformers, f"{kind.upper()}Config")
        return config(vocab_size=vocabulary, decoder_start_token_id=0, **sizes)
    if kind == "distilbert":
        sizes = {"dim": hidden, "n_layers": 2, "n_heads": 2, "hidden_dim": 2 * hidden}
        return transformers.DistilBertConfig(
            vocab_size=vocabulary,
            max_position_embeddings=positions,
            initializer_range=0.3,
            **sizes,  # type: ignore[arg-type]
        )
    extra = {
        "roberta": {"pad_token_id": 1, "max_position_embeddings": positions + 2},
        "electra": {"embedding_size": hidden // 2},  # the small one projects its embeddings
    }.get(kind, {})
    settings = {**_sizes(vocabulary, hidden), "max_position_embeddings": positions, **extra}
    name = {"bert": "BertConfig", "roberta": "RobertaConfig", "electra": "ElectraConfig"}[kind]
    return getattr(transformers, name)(**settings)


def tiny_other(kind: str, vocabulary: int) -> Any:
    """A random model of `OTHERS`, or a Qwen3, as transformers saves it."""
    sizes = _sizes(vocabulary)
    absolute = {**sizes, "max_position_embeddings": 66, "pad_token_id": 1}
    torch.manual_seed(7)
    t: Any = transformers
    match kind:
        case "xlm-roberta":
            return t.XLMRobertaForMaskedLM(t.XLMRobertaConfig(**absolute))
        case "mpnet":
            return t.MPNetForMaskedLM(t.MPNetConfig(**absolute))
        case "deberta-v2":  # as DeBERTa-v3 has it
            config = t.DebertaV2Config(
                **sizes,
                max_position_embeddings=64,
                relative_attention=True,
                position_buckets=8,
                norm_rel_ebd="layer_norm",
                share_att_key=True,
                pos_att_type=["p2c", "c2p"],
                position_biased_input=False,
                type_vocab_size=0,
            )
            return t.DebertaV2ForMaskedLM(config)
        case "modernbert":
            special = dict.fromkeys(("bos_token_id", "cls_token_id"), 2)
            special |= dict.fromkeys(("eos_token_id", "sep_token_id"), 3)
            layers = {"num_hidden_layers": 4, "local_attention": 8, "pad_token_id": 0}
            wide = {"initializer_cutoff_factor": 3.0, "max_position_embeddings": 64}
            return t.ModernBertForMaskedLM(
                t.ModernBertConfig(**{**sizes, **layers, **wide, **special})
            )
        case "qwen3":
            heads = {"num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 64}
            return t.Qwen3ForCausalLM(t.Qwen3Config(**sizes, **heads))
    config = t.DPRConfig(**sizes, max_position_embeddings=64)
    return {"dpr-question": t.DPRQuestionEncoder, "dpr-context": t.DPRContextEncoder}[kind](config)


def write_other(folder: Path, kind: str, vocabulary: list[str]) -> Path:
    """A model of `OTHERS`, or a Qwen3, with its tokenizer; Qwen3's pads on the left."""
    tokenizer = tiny_tokenizer(kind, vocabulary)
    if kind == "qwen3":
        tokenizer.padding_side = tokenizer.init_kwargs["padding_side"] = "left"
    tiny_other(kind, len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def tiny_model(
    kind: str,
    vocabulary: int,
    *,
    head: bool,
    seed: int = 7,
    hidden: int = HIDDEN,
    positions: int = 64,
) -> Any:
    """A random model, with its MLM head or as the encoder alone."""
    torch.manual_seed(seed)
    config = tiny_config(kind, vocabulary, hidden, positions)
    if kind == "t5":
        return transformers.T5EncoderModel(config).eval()
    model = getattr(transformers, (MASKED_LM | WITH_DISCRIMINATOR)[kind])(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model if head else getattr(model, kind)


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
    """A plain transformers folder."""
    tokenizer = tiny_tokenizer(kind, vocabulary, positions)
    model = tiny_model(
        kind, len(tokenizer), head=head, seed=seed, hidden=hidden, positions=positions
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_tiny_classifier(
    folder: Path, kind: str, vocabulary: list[str], *, labels: int = 1, seed: int = 7
) -> Path:
    """A sequence classifier's folder, as rerankers are published."""
    torch.manual_seed(seed)
    tokenizer = tiny_tokenizer(kind, vocabulary)
    config = tiny_config(kind, len(tokenizer))
    config.num_labels = labels
    getattr(transformers, CLASSIFIERS[kind])(config).eval().save_pretrained(folder)
    if kind in ("bert", "electra"):  # as the tokenizers of these models have it
        names = ["input_ids", "token_type_ids", "attention_mask"]
        tokenizer.model_input_names = tokenizer.init_kwargs["model_input_names"] = names
    tokenizer.save_pretrained(folder)
    return folder


def random_heads(
    settings: RepresentationSettings, hidden: int, vocabulary: int, seed: int = 3
) -> dict[str, Tensor]:
    """Weights for a representation's own layers; about half of the term weights are negative."""
    generator = torch.Generator().manual_seed(seed)
    empty = Aggretriever(settings, hidden, vocabulary).state_dict()
    return {n: torch.randn(t.shape, generator=generator) for n, t in empty.items()}


def write_tiny_aggretriever(
    folder: Path,
    plain: Path,
    settings: RepresentationSettings,
    text: Mapping[str, Any] | None = None,
    seed: int = 3,
    heads: dict[str, Tensor] | None = None,
) -> Path:
    """denserk's folder of an Aggretriever model on a plain folder's backbone, its heads random."""
    stored = read_model_folder(plain).passage
    refuse_architecture(settings, stored.architecture)
    embeddings = next(t for n, t in stored.tensors.items() if "word_embeddings" in n)
    vocabulary, hidden = embeddings.shape
    heads = heads or random_heads(settings, hidden, vocabulary, seed)
    encoder = dataclasses.replace(stored, heads=heads).build(settings)
    save_model(folder, encoder, load_tokenizer(plain), TextSettings(**(text or {})))
    return folder


def write_writer(folder: Path, kind: str, vocabulary: list[str], *, seed: int = 7) -> Path:
    """A random T5, mT5 or GPT-2 that writes text; it neither repeats itself nor flattens out."""
    torch.manual_seed(seed)
    tokenizer = tiny_tokenizer(kind, vocabulary, positions=10**30)  # cuts no text
    tokenizer.backend_tokenizer.decoder = decoders.WordPiece(cleanup=False)
    if kind == "gpt2":
        sizes = {"n_positions": POSITIONS, "n_embd": HIDDEN, "n_layer": 2, "n_head": 2}
        config: Any = transformers.GPT2Config(
            vocab_size=len(tokenizer),
            bos_token_id=0,
            eos_token_id=0,
            **sizes,  # type: ignore[arg-type]
        )
        model: Any = transformers.GPT2LMHeadModel(config)
    else:
        config = tiny_config(kind, len(tokenizer))
        model = getattr(transformers, f"{kind.upper()}ForConditionalGeneration")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.2 if parameter.dim() == 1 else 0.4))
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
