"""Writing models: denserk's folder, which other libraries open too, and published layouts."""

import copy
import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
from torch import Tensor, nn

from denserk import __version__
from denserk.config.encoding import (
    AggKind,
    AggLayout,
    MlmHead,
    ModelLayout,
    Representation,
    TermWeight,
    TextSettings,
)
from denserk.config.options import as_json
from denserk.data.tokenization import PAIR, load_tokenizer
from denserk.errors import ModelError
from denserk.io.files import whole_text, write_errors
from denserk.models.backbone import longest_input
from denserk.models.checkpoints import CONFIG, find_model, write_tensors
from denserk.models.representation import Encoder
from denserk.models.stored_model import (
    AUTHORS_HEADS,
    AUTHORS_SIDES,
    DENSERK_FILE,
    FORMAT_VERSION,
    MODULES_FILE,
    OLDER_POOLING_KEYS,
    PASSAGE_SIDE,
    POOLING_MODES,
    PROMPTS_FILE,
    QUERY_SIDE,
    read_model_folder,
)
from denserk.models.text_encoder import NOTHING, override

logger = logging.getLogger(__name__)

WEIGHTS_FILE, PICKLE_FILE = "model.safetensors", "pytorch_model.bin"
LENGTHS_FILE, POOLING_FOLDER, CARD_FILE = "sentence_bert_config.json", "1_Pooling", "README.md"
MODULES = "sentence_transformers.models."
ENCODER = "denserk.integrations.sentence_transformers.Encoder"


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

    The encoder of passages is that of queries, too, where `query` is left out. The model card names
    `base`, the model that it was made from.
    """
    query = query or passage
    tied = query is passage
    settings, model = passage.settings, passage.backbone.model
    if settings.mlm_head is MlmHead.FRESH:  # it is trained now
        settings = replace(settings, mlm_head=MlmHead.PRETRAINED)
    _write_sentence_transformers(folder, passage, text, base, tied=tied)
    write_own_file(folder, model.config.model_type, representation=settings, text=text)
    if not tied:
        for side, encoder in ((QUERY_SIDE, query), (PASSAGE_SIDE, passage)):
            save_model(folder / side, encoder, tokenizer, text, base=base)
        return
    heads = passage.representation.state_dict()
    if heads:  # Pyserini's newer readers take the heads from here
        write_tensors(folder / PICKLE_FILE, heads)
    tensors = {**model.state_dict(), **heads}
    save_transformer(folder, model, tensors, tokenizer, _longest(text), hidden_states=bool(heads))


def save_transformer(
    folder: Path,
    model: Any,
    tensors: Mapping[str, Tensor],
    tokenizer: Any,
    longest: int,
    *,
    file: str = WEIGHTS_FILE,
    hidden_states: bool = False,
) -> None:
    """Write weights, a tokenizer and config.json, which comes last.

    The tokenizer truncates at `longest` tokens, or at the model's positions. Pyserini's class of
    Aggretriever needs `hidden_states` in config.json.
    """
    write_tensors(folder / file, tensors)
    own = copy.deepcopy(tokenizer)
    own.backend_tokenizer.no_truncation()
    own.backend_tokenizer.no_padding()
    own.model_max_length = min(longest, longest_input(model.config) or longest)
    with write_errors(folder):
        own.save_pretrained(folder)
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    values = {**config.to_dict(), "output_hidden_states": hidden_states, "dtype": "float32"}
    values.pop("_name_or_path", None)
    _write_json(folder / CONFIG, values, sort_keys=True)


def _longest(text: TextSettings) -> int:
    return max(text.query_max_length, text.passage_max_length)


def write_own_file(folder: Path, backbone: str, **settings: Any) -> None:
    """Write denserk.json: the type of the backbone, and settings by class."""
    values = {
        "format_version": FORMAT_VERSION,
        "denserk_version": __version__,
        "backbone": backbone,
        **{name: as_json(value) for name, value in settings.items()},
    }
    _write_json(folder / DENSERK_FILE, values)


def _write_json(path: Path, value: Any, **options: Any) -> None:
    with whole_text(path) as out:
        out.write(json.dumps(value, indent=2, ensure_ascii=False, **options) + "\n")


def _write_sentence_transformers(
    folder: Path, encoder: Encoder, text: TextSettings, base: str, *, tied: bool = True
) -> None:
    """Write the files by which sentence-transformers opens a model, and its model card.

    What Transformer, Pooling and Normalize cannot express is opened by the module class that
    denserk ships, and fails to open without it.
    """
    settings, limit = encoder.settings, longest_input(encoder.backbone.config)
    query, passage = (
        min(length, limit or length) for length in (text.query_max_length, text.passage_max_length)
    )
    text = replace(text, query_max_length=query, passage_max_length=passage)
    modes = {representation: mode for mode, representation in POOLING_MODES.items()}
    pooling = modes.get(settings.representation)
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
            folder / POOLING_FOLDER / CONFIG,
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
        out.write(_model_card(encoder, text, base, tied=tied, standard=standard))


def _model_card(
    encoder: Encoder, text: TextSettings, base: str, *, tied: bool, standard: bool
) -> str:
    """Return README.md of a saved model, in Markdown under the metadata block of the hub."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("denserk", "models"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["code"] = _code
    return environment.get_template("card.md").render(
        base=base,
        local=Path(base).resolve().name if Path(base).is_dir() else "",
        architecture=encoder.backbone.architecture.model_type,
        settings=encoder.settings,
        dimension=encoder.dimension,
        count=encoder.vectors_per_passage,
        text=text,
        tied=tied,
        standard=standard,
        version=__version__,
    )


def _code(text: str) -> str:
    quoted = json.dumps(text, ensure_ascii=False).replace("|", "\\|")
    return f"`{quoted}`"


# Settings that readers of the published Aggretriever layouts assume.
AGGRETRIEVER: dict[str, Any] = {
    "representation": Representation.AGG,
    "l2_norm": False,
    "agg_layout": AggLayout.STRIDED,
    "term_weight": TermWeight.CLAMP,
    "mlm_head": MlmHead.PRETRAINED,
}
PYSERINI = {"agg_dim": 640, "cls_dim": 128, "agg_kind": AggKind.STAR}
# Backbones that those readers know.
WORD_LIST_BACKBONES = ("bert", "distilbert")


def convert_model(
    source: str,
    target: Path,
    layout: ModelLayout,
    representation: Mapping[str, Any] = NOTHING,
    text: Mapping[str, Any] = NOTHING,
) -> None:
    """Write a model, given by a short name, a folder or a name on the hub, in another layout.

    `representation` and `text` replace settings of the source; the authors' layout does not record
    its dimensions.
    """
    name, folder = find_model(source)
    stored = read_model_folder(folder)
    query, passage = stored.build(override(stored.representation, representation))
    tokenizer = load_tokenizer(stored.passage.folder)
    texts = override(stored.text, text)
    if layout is ModelLayout.DENSERK:
        save_model(target, passage, tokenizer, texts, query, name)
        return
    _refuse_layout(layout, query, passage)
    made = passage.settings
    logger.info(
        f"{layout} does not record agg-kind {made.agg_kind}, agg-dim {made.agg_dim}, agg-order "
        f"{made.agg_order}, lengths {texts.query_max_length} and {texts.passage_max_length}"
    )
    write = partial(
        save_transformer,
        tokenizer=tokenizer,
        longest=_longest(texts),
        file=PICKLE_FILE,
        hidden_states=True,
    )
    if layout is ModelLayout.AGGRETRIEVER_PYSERINI:
        model = passage.backbone.model
        tensors = {f"encoder.{name}": tensor for name, tensor in model.state_dict().items()}
        write(target, model, tensors | passage.representation.state_dict())
        return
    for file, head in AUTHORS_HEADS.items():
        q, p = (getattr(encoder.representation, head) for encoder in (query, passage))
        if p is None:
            continue
        write_tensors(target / file, nn.ModuleDict({"linear_q": q, "linear_p": p}).state_dict())
        sizes = {"input_dim": p.in_features, "output_dim": p.out_features}
        with whole_text(target / f"{Path(file).stem}_config.json") as out:
            out.write(json.dumps({**sizes, "tied": query is passage}) + "\n")
    words = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    for side, encoder in zip(AUTHORS_SIDES, (query, passage), strict=True):
        place, model = target if query is passage else target / side, encoder.backbone.model
        with whole_text(place / "vocab.txt") as out:  # for the released code's tokenizer
            out.writelines(f"{word}\n" for word, _ in words)
        write(place, model, model.state_dict())


def _refuse_layout(layout: ModelLayout, query: Encoder, passage: Encoder) -> None:
    """Raise a ModelError that names all that a published Aggretriever layout cannot hold."""
    pyserini = layout is ModelLayout.AGGRETRIEVER_PYSERINI
    settings = passage.settings
    wrong = [
        f"{name.replace('_', '-')} is {getattr(settings, name)}, not {value}"
        for name, value in (AGGRETRIEVER | PYSERINI if pyserini else AGGRETRIEVER).items()
        if getattr(settings, name) != value
    ]
    if pyserini and query is not passage:
        wrong.append("queries have weights of their own")
    if not pyserini and settings.agg_kind in (AggKind.LINEAR, AggKind.AVERAGE):
        wrong.append(f"agg-kind is {settings.agg_kind}")
    kinds = {encoder.backbone.architecture.model_type for encoder in (query, passage)}
    wrong += [f"its backbone is {kind}" for kind in kinds.difference(WORD_LIST_BACKBONES)]
    if wrong:
        raise ModelError(
            f"the layout {layout} cannot hold this model: {'; '.join(wrong)}",
            f"write it with --to {ModelLayout.DENSERK}",
        )
