"""sentence-transformers folders: Transformer, Pooling, Normalize, prompts, maximal length."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from denserk.data.tokenization import PAIR, TOKENIZER_FILES
from denserk.errors import ModelError
from denserk.formats.files import whole_text
from denserk.modeling.encoder import Encoder
from denserk.modeling.model_card import model_card
from denserk.modeling.stored_model import StoredEncoder, StoredModel
from denserk.modeling.weight_files import (
    inside,
    read_json,
    read_json_list,
    weight_files,
)
from denserk.settings.encoding import Representation, RepresentationSettings, TextSettings

MODULES_FILE, PROMPTS_FILE = "modules.json", "config_sentence_transformers.json"
LENGTHS_FILE, POOLING_FOLDER, CARD_FILE = "sentence_bert_config.json", "1_Pooling", "README.md"
MODULES = "sentence_transformers.models."
ENCODER = "denserk.integrations.sentence_transformers.Encoder"

POOLING_MODES = {
    "cls": Representation.CLS,
    "mean": Representation.MEAN,
    "max": Representation.MAX,
    "lasttoken": Representation.LAST,
}
"""sentence-transformers' name of a pooling -> denserk's."""

OLDER_POOLING_KEYS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
"""Flags of folders written before the pooling had one name."""

QUERY_PROMPTS = ("query",)
PASSAGE_PROMPTS = ("document", "passage", "corpus")
"""Names under which the prompts of the two sides may stand, the first that is there counts."""


def is_sentence_transformers(folder: Path) -> bool:
    """Whether a folder is one of theirs; not one whose only module is denserk's own class."""
    path = folder / MODULES_FILE
    return path.is_file() and b"denserk.integrations" not in path.read_bytes()


def read_sentence_transformers(folder: Path) -> StoredModel:
    """Reads a folder whose vectors denserk makes exactly; anything else in it is refused by name.

    Raises:
        ModelError: a module, a pooling or a setting that denserk does not have; all of them are
            named.
    """
    modules = read_json_list(folder / MODULES_FILE)
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ModelError(
            f"{folder} chains the modules {', '.join(kinds)}",
            "denserk loads Transformer, Pooling and, where it is there, Normalize",
        )
    inner, second = (
        inside(folder, str(module.get("path", "")), folder / MODULES_FILE) for module in modules[:2]
    )
    pooling_file = second / "config.json"
    pooling = _pooling(folder, read_json(pooling_file))
    transformer = sorted(inner.glob("sentence_*_config.json"))
    settings = read_json(transformer[0]) if transformer else {}
    prompts = read_json(folder / PROMPTS_FILE) if (folder / PROMPTS_FILE).is_file() else {}
    _refuse_settings(inner, settings)
    encoder = StoredEncoder.read(inner)
    length = settings.get("max_seq_length") or _tokenizer_limit(inner)
    lengths = [settings.get(f"{task}_length") or length for task in ("query", "document")]
    files = [folder / MODULES_FILE, pooling_file, inner / "config.json", *weight_files(inner)]
    files += [path for path in (folder / PROMPTS_FILE, *transformer) if path.is_file()]
    files += [inner / name for name in TOKENIZER_FILES if (inner / name).is_file()]
    return StoredModel(
        root=folder,
        layout="sentence-transformers",
        query=encoder,
        passage=encoder,
        representation=RepresentationSettings(pooling, l2_norm="Normalize" in kinds),
        text=TextSettings(
            query_max_length=lengths[0],
            passage_max_length=lengths[1],
            query_prefix=_prompt(prompts, QUERY_PROMPTS),
            passage_prefix=_prompt(prompts, PASSAGE_PROMPTS),
        ),
        files=tuple(files),
    )


def write_sentence_transformers(
    folder: Path, encoder: Encoder, text: TextSettings, base: str = "", *, tied: bool = True
) -> None:
    """Write the files by which sentence-transformers opens a model, and its model card.

    What Transformer, Pooling and Normalize cannot express is opened by the module class that
    denserk ships, and fails to open without it.

    Args:
        folder: the model's.
        encoder: of passages.
        text: how records become text.
        base: the model that it was made from.
        tied: whether queries and passages have the same encoder.

    Raises:
        OutputError: the folder cannot be written.
    """
    settings, limit = encoder.settings, encoder.backbone.max_length
    query, passage = (
        min(length, limit or length) for length in (text.query_max_length, text.passage_max_length)
    )
    text = replace(text, query_max_length=query, passage_max_length=passage)
    poolings = {representation: mode for mode, representation in POOLING_MODES.items()}
    pooling = poolings.get(settings.representation)
    pairs = text.join == PAIR and len(text.fields) > 1
    standard = tied and pooling is not None and not text.normalize_quotes and not pairs
    modules = [{"idx": 0, "name": "0", "path": "", "type": ENCODER}]
    if standard:
        chain = ["Transformer", "Pooling", *["Normalize"] * settings.l2_norm]
        modules = [
            {"idx": i, "name": str(i), "path": f"{i}_{name}" if i else "", "type": MODULES + name}
            for i, name in enumerate(chain)
        ]
        flags = {key: mode == pooling for key, mode in OLDER_POOLING_KEYS.items()}
        _write_json(
            folder / POOLING_FOLDER / "config.json",
            {"word_embedding_dimension": encoder.dimension, **flags, "include_prompt": True},
        )
        own = {} if query == passage else {"query_length": query}
        lengths = {"max_seq_length": passage, "do_lower_case": False, **own}
        _write_json(folder / LENGTHS_FILE, lengths)
    prompts = {
        "model_type": "SentenceTransformer",
        "prompts": {"query": text.query_prefix, "document": text.passage_prefix},
        "default_prompt_name": "document" if standard and text.passage_prefix else None,
        "similarity_fn_name": "dot",
    }
    _write_json(folder / PROMPTS_FILE, prompts)
    _write_json(folder / MODULES_FILE, modules)
    with whole_text(folder / CARD_FILE) as out:
        out.write(model_card(encoder, text, base, tied=tied, standard=standard))


def _write_json(path: Path, value: Any) -> None:
    with whole_text(path) as out:
        out.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def _pooling(folder: Path, config: dict[str, Any]) -> Representation:
    modes = config.get("pooling_mode")
    if modes is None:
        modes = [mode for key, mode in OLDER_POOLING_KEYS.items() if config.get(key)] or ["mean"]
    modes = [modes] if isinstance(modes, str) else list(modes)
    if len(modes) != 1 or modes[0] not in POOLING_MODES:
        raise ModelError(
            f"{folder} pools by {' and '.join(map(str, modes))}",
            f"denserk loads one of {', '.join(POOLING_MODES)}",
        )
    if config.get("include_prompt") is False:
        raise ModelError(
            f"{folder} leaves the prompt out of its pooling, which denserk does not do"
        )
    return POOLING_MODES[modes[0]]


def _refuse_settings(folder: Path, settings: dict[str, Any]) -> None:
    task = settings.get("transformer_task", "feature-extraction")
    if task != "feature-extraction":
        raise ModelError(
            f"{folder} runs its transformer for the task {task}, which denserk does not do"
        )
    if settings.get("query_expansion"):
        raise ModelError(f"{folder} expands queries, which denserk does not do")
    tokenizer = folder / "tokenizer_config.json"
    lowers = tokenizer.is_file() and read_json(tokenizer).get("do_lower_case")
    if settings.get("do_lower_case") and not lowers:
        raise ModelError(
            f"{folder} lower-cases text before its tokenizer, which denserk does not do"
        )


def _tokenizer_limit(folder: Path) -> int:
    """Where the folder names no length: the tokenizer's limit, within the model's positions."""
    config = read_json(folder / "config.json")
    tokenizer = folder / "tokenizer_config.json"
    limits = [read_json(tokenizer).get("model_max_length")] if tokenizer.is_file() else []
    limits.append(config.get("max_position_embeddings"))
    return min((int(limit) for limit in limits if limit), default=512)


def _prompt(config: dict[str, Any], names: tuple[str, ...]) -> str:
    prompts = config.get("prompts") or {}
    for name in (*names, config.get("default_prompt_name")):
        if name in prompts:
            return str(prompts[name] or "")
    return ""
