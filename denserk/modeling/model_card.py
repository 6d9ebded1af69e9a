"""The model card of a saved model: what it is, and how to open it."""

import json
from pathlib import Path

from denserk import __version__
from denserk.data.tokenization import PAIR, SEPARATOR
from denserk.modeling.encoder import Encoder
from denserk.settings.encoding import TextSettings

JOINS = {
    " ": "joined by a space",
    SEPARATOR: "joined by the tokenizer's separator token",
    PAIR: "as a sentence pair",
}


def model_card(
    encoder: Encoder, text: TextSettings, base: str, *, tied: bool, standard: bool
) -> str:
    """Return README.md of a saved model, in Markdown under the metadata block of the hub.

    Args:
        encoder: of passages.
        text: how records become text.
        base: the model that it was made from: a name on the hub, or a folder.
        tied: whether queries and passages have the same encoder.
        standard: whether sentence-transformers opens it without code of denserk's.
    """
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
    """How it is opened in sentence-transformers, in lines."""
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
