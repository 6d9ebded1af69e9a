"""Writing models: denserk's one folder, the files that other libraries read, and the model card."""

import copy
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from denserk import __version__
from denserk.config.encoding import MlmHead, TextSettings
from denserk.config.options import as_json
from denserk.data.tokenization import PAIR, SEPARATOR
from denserk.io.files import whole_binary, whole_text, write_errors
from denserk.models.backbone import Backbone
from denserk.models.checkpoints import fill, read_tensors, write_tensors
from denserk.models.encoder import Encoder
from denserk.models.stored_model import (
    DENSERK_FILE,
    FORMAT_VERSION,
    MODULES_FILE,
    OLDER_POOLING_KEYS,
    PASSAGE_SIDE,
    POOLING_MODES,
    PROMPTS_FILE,
    QUERY_SIDE,
)

LENGTHS_FILE, POOLING_FOLDER, CARD_FILE = "sentence_bert_config.json", "1_Pooling", "README.md"
MODULES = "sentence_transformers.models."
ENCODER = "denserk.integrations.sentence_transformers.Encoder"
JOINS = {
    " ": "joined by a space",
    SEPARATOR: "joined by the tokenizer's separator token",
    PAIR: "as a sentence pair",
}


def save_model(
    folder: Path,
    passage: Encoder,
    tokenizer: Any,
    text: TextSettings,
    query: Encoder | None = None,
    base: str = "",
) -> None:
    """Save a model so that denserk, transformers, sentence-transformers and Pyserini load it.

    `model.safetensors` holds the masked-LM model's tensors by their usual names, tied ones
    included, and the representation's own beside them; `denserk.json` how vectors are made. A model
    whose sides have weights of their own has a whole folder for each, `query/` and `document/`.
    config.json comes last: a folder whose writing was cut short has none, and nothing loads it.

    Args:
        folder: where; made if absent, files of the same names are replaced.
        passage: the encoder of passages, and of queries where `query` is left out.
        tokenizer: a fast tokenizer of transformers.
        text: how records become text.
        query: the encoder of queries, where it has weights of its own.
        base: the model that it was made from, for the model card.
    """
    if query is None or query is passage:
        _save_side(folder, passage, tokenizer, text, base)
        return
    _save_side(folder / QUERY_SIDE, query, tokenizer, text, base)
    _save_side(folder / PASSAGE_SIDE, passage, tokenizer, text, base)
    write_sentence_transformers(folder, passage, text, base, tied=False)
    _write_own_file(folder, passage, text)


def _save_side(
    folder: Path, encoder: Encoder, tokenizer: Any, text: TextSettings, base: str
) -> None:
    heads = head_tensors(encoder)
    tensors = {**encoder.backbone.model.state_dict(), **heads}
    write_tensors(folder / "model.safetensors", tensors)
    if heads:  # Pyserini's newer readers take the heads from here
        write_pickled_tensors(folder / "pytorch_model.bin", heads)
    longest = max(text.query_max_length, text.passage_max_length)
    save_tokenizer(folder, tokenizer, longest, encoder.backbone.max_length)
    write_sentence_transformers(folder, encoder, text, base)
    _write_own_file(folder, encoder, text)
    write_config(folder, encoder.backbone.model, hidden_states=bool(heads))


def save_masked_lm(folder: Path, backbone: Backbone, tokenizer: Any) -> None:
    """Save a backbone with its MLM head as an ordinary model of transformers.

    config.json comes last, as in `save_model`.

    Args:
        folder: where; made if absent, files of the same names are replaced.
        backbone: with its MLM head.
        tokenizer: a fast tokenizer of transformers.
    """
    write_tensors(folder / "model.safetensors", backbone.model.state_dict())
    save_tokenizer(folder, tokenizer, tokenizer.model_max_length, backbone.max_length)
    write_config(folder, backbone.model, hidden_states=False)


def _write_own_file(folder: Path, encoder: Encoder, text: TextSettings) -> None:
    representation = as_json(encoder.settings)
    if representation["mlm_head"] == MlmHead.FRESH:
        representation["mlm_head"] = MlmHead.PRETRAINED.value
    backbone = encoder.backbone.architecture.model_type
    write_own_file(folder, backbone, {"representation": representation, "text": as_json(text)})


def write_own_file(folder: Path, backbone: str, told: Mapping[str, Any]) -> None:
    """Write denserk.json: representation and text settings.

    Args:
        folder: where.
        backbone: its kind of transformer.
        told: settings by class, as JSON.
    """
    versions = {"format_version": FORMAT_VERSION, "denserk_version": __version__}
    with whole_text(folder / DENSERK_FILE) as out:
        text = json.dumps({**versions, "backbone": backbone, **told}, indent=2, ensure_ascii=False)
        out.write(text + "\n")


def head_tensors(encoder: Encoder) -> dict[str, Tensor]:
    """The representation's own tensors; empty where it has none."""
    return {n: t.detach() for n, t in encoder.representation.state_dict().items()}


def write_pickled_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors as a pickle, in float32."""
    owned = {name: t.detach().to("cpu", torch.float32).clone() for name, t in tensors.items()}
    buffer = io.BytesIO()
    torch.save(owned, buffer)
    with whole_binary(path) as handle:
        handle.write(buffer.getbuffer())


def write_config(folder: Path, model: Any, *, hidden_states: bool) -> None:
    """Write config.json.

    Args:
        folder: where.
        model: of transformers.
        hidden_states: ask for all hidden states, which Pyserini's Aggretriever class needs.
    """
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    values = {**config.to_dict(), "output_hidden_states": hidden_states, "dtype": "float32"}
    values.pop("_name_or_path", None)
    with whole_text(folder / "config.json") as out:
        out.write(json.dumps(values, indent=2, sort_keys=True) + "\n")


def save_tokenizer(folder: Path, tokenizer: Any, longest: int, limit: int | None) -> None:
    """Write a tokenizer that cuts at `longest`, or at the model's positions (`limit`)."""
    own = copy.deepcopy(tokenizer)
    own.backend_tokenizer.no_truncation()
    own.backend_tokenizer.no_padding()
    own.model_max_length = min(longest, limit or longest)
    with write_errors(folder):
        own.save_pretrained(folder)


def write_sentence_transformers(
    folder: Path, encoder: Encoder, text: TextSettings, base: str = "", *, tied: bool = True
) -> None:
    """Write the files by which sentence-transformers opens a model, and its model card.

    What Transformer, Pooling and Normalize cannot express is opened by the module class that
    denserk ships, and fails to open without it.
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


def model_card(
    encoder: Encoder, text: TextSettings, base: str, *, tied: bool, standard: bool
) -> str:
    """Return README.md of a saved model, in Markdown under the metadata block of the hub."""
    local = Path(base).is_dir()
    metadata = [
        "library_name: sentence-transformers",
        "pipeline_tag: sentence-similarity",
        *([f"base_model: {base}"] if base and not local else []),
        "tags:",
        *(f"- {tag}" for tag in ("denserk", "sentence-transformers", "feature-extraction")),
    ]
    settings, count = encoder.settings, encoder.vectors_per_passage
    scaled = ", L2-normalised" if settings.l2_norm else ""
    rows = {
        "Base model": _code(Path(base).resolve().name if local else base) if base else "",
        "Architecture": encoder.backbone.architecture.model_type,
        "Encoders": "" if tied else "one for queries, one for passages (untied)",
        "Embedding": f"`{settings.representation}`{scaled}, {encoder.dimension} dimensions"
        + (f", {count} per passage" if count > 1 else ""),
        "Similarity": "dot product",
        "Query": _reading(text.query_max_length, text.query_prefix),
        "Passage": _reading(text.passage_max_length, text.passage_prefix),
    }
    parts = ["---", *metadata, "---", "", "# Dense retrieval model", ""]
    parts += [f"Saved by denserk {__version__}.", "", "| | |", "|---|---|"]
    parts += [f"| {name} | {value} |" for name, value in rows.items() if value]
    parts += ["", "With denserk:", "", "```", *_COMMANDS, "```", ""]
    return "\n".join(parts + _opening(text, count, standard=standard)) + "\n"


_COMMANDS = (
    "denserk encode --model PATH --corpus corpus.jsonl --output vectors",
    "denserk index --input vectors --output index",
    "denserk search --index index --topics queries.tsv --output run.trec",
)


def _reading(length: int, prefix: str) -> str:
    return f"at most {length} tokens" + (f", prefix {_code(prefix)}" if prefix else "")


def _code(text: str) -> str:
    quoted = json.dumps(text, ensure_ascii=False).replace("|", "\\|")
    return f"`{quoted}`"


def _opening(text: TextSettings, count: int, *, standard: bool) -> list[str]:
    """Lines on how to open it in sentence-transformers."""
    if count > 1:
        return [f"sentence-transformers cannot open it: a passage has {count} embeddings, not one."]
    flag = "" if standard else ", trust_remote_code=True"
    lines = [
        "With sentence-transformers 6 or later"
        + ("" if standard else ", where denserk is installed")
        + ":",
        "",
        "```python",
        "from sentence_transformers import SentenceTransformer",
        "",
        f'model = SentenceTransformer("PATH"{flag})',
        'queries = model.encode_query(["a query"])',
        'passages = model.encode_document(["a passage"])',
        "scores = model.similarity(queries, passages)",
        "```",
    ]
    if len(text.fields) > 1:
        joined = JOINS.get(text.join, f"joined by {_code(text.join)}")
        lines += ["", f"A passage is its {' and '.join(text.fields)}, {joined}."]
    if standard and text.query_max_length != text.passage_max_length:
        lines += [
            "",
            f"`encode_query` reads {text.query_max_length} tokens; `encode` reads "
            f'{text.passage_max_length}, with `prompt_name="query"` too.',
        ]
    return lines


# Condenser's and MASTER's authors keep their heads here; only its tensors are read.
PUBLISHED_FILE = "model.pt"


@dataclass(frozen=True)
class HeadLayout:
    """Location and names of the heads of a pre-training objective, beside the backbone.

    `file` is denserk's, with keys `{head}.{layer}.…`; `heads` are those that it may hold.
    `published` maps the names in the authors' `model.pt` to denserk's; `ignored` are tensors of no
    head.
    """

    file: str
    heads: frozenset[str]
    published: Mapping[str, str] = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()

    @property
    def files(self) -> tuple[str, ...]:
        """The files that may hold them; the first that exists is read."""
        return (self.file, PUBLISHED_FILE) if self.published else (self.file,)


CONDENSER = HeadLayout(
    "condenser_head.safetensors",
    frozenset({"head"}),
    published={"c_head": "head"},
    ignored=frozenset({"co_target"}),
)
MASTER = HeadLayout(
    "master_decoders.safetensors",
    frozenset(f"{name}_decoder" for name in ("mkp", "cmp", "npr", "dor", "gor", "shared")),
    published={
        "c_head": "mkp_decoder",
        "overlap_head": "cmp_decoder",
        "next_head": "npr_decoder",
        "query_head": "dor_decoder",
        "gpt_head": "gor_decoder",
    },
)
RETROMAE = HeadLayout("retromae_decoder.safetensors", frozenset({"decoder"}))


def save_heads(folder: Path, layout: HeadLayout, heads: Mapping[str, nn.Module]) -> None:
    """Write the heads of an objective beside its backbone, in float32.

    Args:
        folder: the model's.
        layout: the objective's.
        heads: the layers by the first part of their names.
    """
    write_tensors(folder / layout.file, nn.ModuleDict(heads).state_dict())


def load_heads(folder: Path, layout: HeadLayout, heads: Mapping[str, nn.Module]) -> Path | None:
    """Load the heads of an objective from a folder, denserk's or the authors'.

    Decoders of the file that are not asked for are ignored.

    Args:
        folder: the model's.
        layout: the objective's.
        heads: the layers by the first part of their names, filled in place.

    Returns:
        The file that was read; None where there is none, and the layers stay as they are.

    Raises:
        ModelError: the file is unreadable, lacks a layer, or has other shapes.
    """
    path = next((folder / name for name in layout.files if (folder / name).is_file()), None)
    if path is None:
        return None
    tensors = read_tensors(path)
    if path.name == PUBLISHED_FILE:
        tensors = _renamed(layout, tensors)
    left = layout.heads - heads.keys()
    given = {n: t for n, t in tensors.items() if n.partition(".")[0] not in left}
    fill(path, nn.ModuleDict(heads), given)
    return path


def _renamed(layout: HeadLayout, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The authors' tensors by denserk's names; their layer norms may have names of old."""
    renamed = {}
    for name, tensor in tensors.items():
        head, _, rest = name.partition(".")
        rest = rest.replace("LayerNorm.gamma", "LayerNorm.weight")
        rest = rest.replace("LayerNorm.beta", "LayerNorm.bias")
        if name not in layout.ignored:
            renamed[f"{layout.published.get(head, head)}.{rest}"] = tensor
    return renamed
