"""Model folders, written: weights, tokenizer, settings, and what other libraries open them by."""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from denserk.config import encoding
from denserk.config.encoding import RepresentationSettings, TextSettings
from denserk.config.options import as_json
from denserk.config.retrieval import Metric
from denserk.data.tokenization import PAIR
from denserk.io.canary import PASSAGE, QUERY, write_canary
from denserk.io.file_errors import write_errors
from denserk.io.model_files import MODULES_FILE
from denserk.io.outputs import DENSERK_FILE, MODEL_CONFIG
from denserk.io.written_files import flush_written, whole_text
from denserk.models.backbone import STATIC, longest_input
from denserk.models.canary_encoding import canary_of
from denserk.models.checkpoints import Tensors, write_tensors
from denserk.models.model_card import CARD_FILE, NO_ORIGIN, Origin, metadata, write_card
from denserk.models.model_folder import (
    FORMAT_VERSION,
    PASSAGE_SIDE,
    QUERY_SIDE,
    within_positions,
)
from denserk.models.representation import Encoder
from denserk.models.sentence_transformers_folder import (
    IDENTITY,
    OLDER_POOLING_KEYS,
    POOLING_MODES,
    SETTINGS_FILE,
)
from denserk.version import __version__

# files that denserk writes
WEIGHTS_FILE = "model.safetensors"
PICKLE_FILE = "pytorch_model.bin"
LENGTHS_FILE = "sentence_bert_config.json"
POOLING_FOLDER = "1_Pooling"
MODULES = "sentence_transformers.models."
ENCODER = "denserk.integrations.sentence_transformers.Encoder"
# left out, so that equal models get equal files: how transformers loaded a tokenizer
LOADING = ("is_local", "local_files_only")


def save_model(
    folder: Path,
    passage: Encoder,
    tokenizer: Any,
    text: TextSettings,
    query: Encoder | None = None,
    base: Origin = NO_ORIGIN,
    dimensions: Sequence[int] = (),
    queries_of: Mapping[str, Any] | None = None,
    metric: Metric = Metric.INNER,
    license_id: str | None = None,
) -> None:
    """Save a model so that denserk, transformers, sentence-transformers and Pyserini load it.

    `model.safetensors` contains the tensors by transformers' names, tied ones included, and the
    representation's own; `denserk.json` the settings; `canary.json` texts with their vectors.
    Untied encoders get a folder each, `query/` and `document/`. config.json is written last: an
    incomplete folder has none, and does not load.

    Without `query`, queries share the encoder of passages. The model card names `base` and the
    licence, which is that of `base` without `license_id`, and the `dimensions` that vectors were
    trained to be cut to. denserk.json has them too, as it has `queries_of` and `metric` (see
    `StoredModel`).
    """
    description = ModelDescription(
        text, base, tuple(dimensions), queries_of, metric, license_id or ""
    )
    save_canary(folder, passage, query or passage, tokenizer, text)
    if query is None or query is passage:
        _save_tied(folder, passage, tokenizer, description)
        return
    _write_description(folder, passage, description, tied=False)
    description_of_side = replace(description, queries_of=None)
    _save_tied(folder / QUERY_SIDE, query, tokenizer, description_of_side)
    _save_tied(folder / PASSAGE_SIDE, passage, tokenizer, description_of_side)


def save_canary(
    folder: Path, passage: Encoder, query: Encoder, tokenizer: Any, text: TextSettings
) -> None:
    """Write canary.json: texts with their token ids and vectors, to check the model by later."""
    encoders = {PASSAGE: passage, QUERY: query}
    canary = canary_of(encoders, tokenizer, text, recorded_representation(passage))
    if canary is not None:
        write_canary(folder, canary)


@dataclass(frozen=True)
class ModelDescription:
    """What is recorded of a model besides its encoders; see `save_model`."""

    text: TextSettings
    base: Origin
    dimensions: tuple[int, ...]
    queries_of: Mapping[str, Any] | None
    metric: Metric
    license_id: str


def _save_tied(
    folder: Path, encoder: Encoder, tokenizer: Any, description: ModelDescription
) -> None:
    """Save an encoder of queries and passages, its weights and config.json last."""
    _write_description(folder, encoder, description, tied=True)
    heads = encoder.representation.state_dict()
    if heads:  # Pyserini's newer readers take the heads from here
        write_tensors(folder / PICKLE_FILE, heads)
    model = encoder.backbone.model
    tensors = {**encoder.backbone.saved_tensors(), **heads}
    longest = max(description.text.query_max_length, description.text.passage_max_length)
    save_transformer(folder, model, tensors, tokenizer, longest, hidden_states=bool(heads))


def _write_description(
    folder: Path, encoder: Encoder, description: ModelDescription, *, tied: bool
) -> None:
    """Write the files that describe a model: sentence-transformers', the card, denserk.json."""
    _write_sentence_transformers(folder, encoder, description, tied=tied)
    recorded: dict[str, Any] = {
        "representation": recorded_representation(encoder),
        "text": description.text,
        "queries_of": description.queries_of,
    }
    if description.metric is not Metric.INNER:
        recorded["metric"] = description.metric.value
    if encoder.activation_name != IDENTITY:
        recorded["activation"] = encoder.activation_name
    model_type = encoder.backbone.model.config.model_type
    write_own_file(folder, model_type, description.dimensions, **recorded)


def recorded_representation(encoder: Encoder) -> RepresentationSettings:
    """Return the settings of a representation as they are saved with it."""
    settings = encoder.settings
    if settings.mlm_head is encoding.MlmHead.FRESH:  # it is trained now
        return replace(settings, mlm_head=encoding.MlmHead.PRETRAINED)
    return settings


def save_transformer(
    folder: Path,
    model: Any,
    tensors: Tensors,
    tokenizer: Any,
    longest: int,
    *,
    file: str = WEIGHTS_FILE,
    hidden_states: bool = False,
) -> None:
    """Write weights, a tokenizer that truncates at `longest` tokens, and last config.json.

    Pyserini's class of Aggretriever needs `hidden_states` in config.json.
    """
    write_tensors(folder / file, tensors)
    saved_tokenizer = copy.deepcopy(tokenizer)
    saved_tokenizer.backend_tokenizer.no_truncation()
    saved_tokenizer.backend_tokenizer.no_padding()
    saved_tokenizer.model_max_length = min(longest, longest_input(model.config) or longest)
    for name in LOADING:
        saved_tokenizer.init_kwargs.pop(name, None)
    with write_errors(folder):
        flush_written(map(Path, saved_tokenizer.save_pretrained(folder)))
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    values = {**config.to_dict(), "output_hidden_states": hidden_states, "dtype": "float32"}
    values.pop("_name_or_path", None)
    write_json(folder / MODEL_CONFIG, values, sort_keys=True)


def write_own_file(
    folder: Path, backbone: str, dimensions: Sequence[int] = (), **settings: Any
) -> None:
    """Write denserk.json: the type of the backbone, and settings by class or as they are."""
    values: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "denserk_version": __version__,
        "backbone": backbone,
    }
    for name, value in settings.items():
        if not value:
            continue
        is_json = isinstance(value, Mapping | str)
        values[name] = value if is_json else as_json(value)
    if dimensions:
        values["dimensions"] = list(dimensions)
    write_json(folder / DENSERK_FILE, values)


def write_json(path: Path, value: Any, **options: Any) -> None:
    """Write a value as indented JSON; `options` are those of json.dumps."""
    with whole_text(path) as out:
        out.write(json.dumps(value, indent=2, ensure_ascii=False, **options) + "\n")


def _write_sentence_transformers(
    folder: Path, encoder: Encoder, description: ModelDescription, *, tied: bool
) -> None:
    """Write the files by which sentence-transformers opens a model, and its model card.

    What Transformer, Pooling and Normalize cannot express needs denserk's own module class.
    """
    text = within_positions(description.text, longest_input(encoder.backbone.config))
    is_standard = tied and _is_standard(encoder.settings, text)
    modules = [{"idx": 0, "name": "0", "path": "", "type": ENCODER}]
    if is_standard:
        modules = _standard_modules(encoder)
        write_json(folder / POOLING_FOLDER / MODEL_CONFIG, _pooling_config(encoder))
        write_json(folder / LENGTHS_FILE, _lengths_config(text))
    prompts = {
        "model_type": "SentenceTransformer",
        "prompts": {"query": text.query_prefix, "document": text.passage_prefix},
        "default_prompt_name": "document" if is_standard and text.passage_prefix else None,
        "similarity_fn_name": "euclidean" if description.metric is Metric.L2 else "dot",
    }
    write_json(folder / SETTINGS_FILE, prompts)
    write_json(folder / MODULES_FILE, modules)
    _write_card(folder, encoder, description, text, tied=tied, is_standard=is_standard)


def _write_card(
    folder: Path,
    encoder: Encoder,
    description: ModelDescription,
    text: TextSettings,
    *,
    tied: bool,
    is_standard: bool,
) -> None:
    """Write the model card of a retriever."""
    opens_elsewhere = encoder.vectors_per_passage == 1
    tags = ["denserk", "feature-extraction"]
    if opens_elsewhere:
        tags.insert(1, "sentence-transformers")
    data = metadata(
        description.base,
        description.license_id,
        library_name="sentence-transformers" if opens_elsewhere else "denserk",
        pipeline_tag="sentence-similarity" if opens_elsewhere else "feature-extraction",
        tags=tags,
    )
    write_card(
        folder / CARD_FILE,
        "card.md",
        data,
        dimensions=description.dimensions,
        metric=description.metric.value,
        encoder=encoder,
        text=text,
        tied=tied,
        standard=is_standard,
    )


def _is_standard(settings: RepresentationSettings, text: TextSettings) -> bool:
    """Return whether sentence-transformers' own modules make the same embeddings."""
    reads_pairs = text.join == PAIR and len(text.fields) > 1
    return (
        settings.representation in POOLING_MODES.values()
        and settings.truncate_dim is None
        and not settings.projection
        and not text.normalize_quotes
        and not reads_pairs
    )


def _standard_modules(encoder: Encoder) -> list[dict[str, Any]]:
    """Return sentence-transformers' modules of an encoder, for modules.json."""
    if encoder.backbone.config.model_type == STATIC:
        names = ["StaticEmbedding"]
    else:
        names = ["Transformer", "Pooling"]
    if encoder.settings.l2_norm:
        names.append("Normalize")
    modules = []
    for index, name in enumerate(names):
        path = "" if index == 0 else f"{index}_{name}"
        modules.append({"idx": index, "name": str(index), "path": path, "type": MODULES + name})
    return modules


def _pooling_config(encoder: Encoder) -> dict[str, Any]:
    """Return the config of the module Pooling."""
    mode_by_representation = {value: mode for mode, value in POOLING_MODES.items()}
    pooling_mode = mode_by_representation[encoder.settings.representation]
    return {
        "word_embedding_dimension": encoder.dimension,
        **{key: mode == pooling_mode for key, mode in OLDER_POOLING_KEYS.items()},
        "include_prompt": True,
    }


def _lengths_config(text: TextSettings) -> dict[str, Any]:
    """Return the config of the module Transformer."""
    config = {"max_seq_length": text.passage_max_length, "do_lower_case": False}
    if text.query_max_length != text.passage_max_length:
        config["query_length"] = text.query_max_length
    return config
