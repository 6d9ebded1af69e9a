"""Folders of sentence-transformers: what they say, as settings of denserk. Nothing imports torch.

Each setting that changes a vector or a ranking is computed exactly, or is an error that names the
file, the setting and what to type. Settings that sentence-transformers itself does not read are
ignored.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from denserk.config.encoding import Representation, RepresentationSettings, TextSettings
from denserk.config.options import LARGEST
from denserk.config.retrieval import Metric
from denserk.errors import ModelError
from denserk.io.files import read_file
from denserk.io.model_files import (
    MODULES_FILE,
    SHOWN,
    look_for_model,
    path_inside,
    read_json,
    read_optional_json,
)
from denserk.io.outputs import DENSERK_FILE, MODEL_CONFIG

SETTINGS_FILE = "config_sentence_transformers.json"  # of the model as a whole
TOKENIZER_CONFIG = "tokenizer_config.json"
ADAPTER_CONFIG = "adapter_config.json"
OWN_MODULE = b"denserk.integrations"  # the class by which sentence-transformers opens denserk's
PACKAGE = "sentence_transformers."  # of the classes of its modules
# modules in their order; the last two may be absent
TRANSFORMER = "Transformer"
POOLING = "Pooling"
DENSE = "Dense"
NORMALIZE = "Normalize"
CHAINS = (
    (TRANSFORMER, POOLING),
    (TRANSFORMER, POOLING, NORMALIZE),
    (TRANSFORMER, POOLING, DENSE),
    (TRANSFORMER, POOLING, DENSE, NORMALIZE),
)
# sentence-transformers' name of a pooling -> denserk's
POOLING_MODES = {
    "cls": Representation.CLS,
    "mean": Representation.MEAN,
    "max": Representation.MAX,
    "lasttoken": Representation.LAST,
}
# flags of folders written before the pooling had one name
OLDER_POOLING_KEYS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
POOLING_DIMENSIONS = ("embedding_dimension", "word_embedding_dimension")
POOLING_KEYS = (*POOLING_DIMENSIONS, *OLDER_POOLING_KEYS, "pooling_mode", "include_prompt")
# classes of torch.nn that a linear layer may be followed by
IDENTITY = "Identity"
TANH = "Tanh"
ACTIVATIONS = (IDENTITY, TANH, "ReLU", "GELU", "Sigmoid", "SiLU", "LeakyReLU", "ELU", "Softplus")
# similarity_fn_name -> how vectors are compared; cosine compares normalised ones
COSINE = "cosine"
SIMILARITIES = {COSINE: Metric.INNER, "dot": Metric.INNER, "euclidean": Metric.L2}
# values of the transformer's settings that denserk computes, besides null, or no such setting
TRANSFORMER_VALUES: dict[str, tuple[Any, ...]] = {
    "transformer_task": ("feature-extraction",),
    "module_output_name": ("token_embeddings",),
}
# the transformer's settings that denserk reads, or that change no vector
TRANSFORMER_KEYS = (
    *TRANSFORMER_VALUES,
    "max_seq_length",
    "query_length",
    "document_length",
    "do_lower_case",
    "modality_config",
    "unpad_inputs",
)
TEXT_MODALITY = {"method": "forward", "method_output_name": "last_hidden_state"}
# settings that hold arguments of transformers' from_pretrained, and those that change no vector
ARGUMENTS = (
    "model_args",
    "model_kwargs",
    "tokenizer_args",
    "processor_kwargs",
    "config_args",
    "config_kwargs",
)
HARMLESS_ARGUMENTS = {
    "dtype",
    "torch_dtype",
    "attn_implementation",
    "low_cpu_mem_usage",
    "device_map",
    "use_safetensors",
    "use_fast",
    "trust_remote_code",
    "cache_dir",
    "revision",
    "token",
    "add_pooling_layer",  # BERT's own pooler, which no token's state depends on
}
LENGTH = range(1, LARGEST)
LENGTH_RULE = {"max_seq_length?": LENGTH, "query_length?": LENGTH, "document_length?": LENGTH}
# of a model that names no length
DEFAULT_LENGTH = 512
QUERY_PROMPTS = ("query",)
PASSAGE_PROMPTS = ("document", "passage", "corpus")
ENCODE_ELSEWHERE = (
    "encode with sentence-transformers, and index its vectors: denserk index --input VECTORS.npy"
)
RERANK_ELSEWHERE = "rerank with sentence-transformers"
PROMPTS_RULE = {"prompts?": dict, "default_prompt_name?": str}
# activations of scores that keep their order
MONOTONE_ACTIVATIONS = ("Identity", "Sigmoid", "Tanh", "Softplus", "LogSigmoid")


@dataclass(frozen=True)
class DenseLayer:
    """A linear layer after the pooling: the folder of its weights, its size, its activation."""

    folder: Path
    dimension: int
    activation: str  # a name of `ACTIVATIONS`


@dataclass(frozen=True)
class SentenceTransformersFolder:
    """A folder's settings. `files` are those that vectors depend on, besides the transformer's.

    `cosine_reason` is the setting for which vectors are L2-normalised although no module does it;
    empty if one does, or if the model is not for cosine. Without `has_length` the folder records no
    length of texts, and `text` has the default one.
    """

    root: Path
    transformer: Path
    representation: RepresentationSettings
    text: TextSettings
    metric: Metric
    files: tuple[Path, ...]
    dense: DenseLayer | None
    cosine_reason: str
    prompts: "Prompts"
    has_length: bool

    def remarks(
        self, replaced_representation: Collection[str], replaced_text: Collection[str]
    ) -> list[str]:
        """Return what a user should know of the settings, but for those that options replace.

        The arguments are the names of the replaced fields.
        """
        remarks = []
        if self.cosine_reason and "l2_norm" not in replaced_representation:
            remarks.append(
                f"{self.root} compares by cosine ({self.cosine_reason}): its vectors are "
                "L2-normalised; --no-l2-norm leaves their length"
            )
        if self.metric is Metric.L2:
            remarks.append(
                f"{self.root} compares by Euclidean distance: its vectors are indexed and searched "
                "with --metric l2, unless another --metric is given"
            )
        if not self.has_length and "passage_max_length" not in replaced_text:
            remarks.append(
                f"{self.root} records no length: texts are cut to {DEFAULT_LENGTH} tokens; "
                "--passage-max-length and --query-max-length take others"
            )
        if not {"query_prefix", "passage_prefix"} & set(replaced_text):
            remarks += self.prompts.remarks(self.root)
        return remarks


@dataclass(frozen=True)
class Prompts:
    """Texts in front of queries and passages.

    `default` is the name of the folder's default prompt, if queries or passages have it because
    none is named for them, or empty; `unused` are the names of prompts that neither has.
    """

    query: str
    passage: str
    default: str
    unused: tuple[str, ...]

    def remarks(self, root: Path) -> list[str]:
        """Return what a user should know of prompts whose names do not say whose they are."""
        remarks = []
        if self.default:
            remarks.append(
                f"{root} has the default prompt {self.default!r}, which queries or passages have "
                "that have no prompt of their own; --query-prefix and --passage-prefix replace it"
            )
        if self.unused:
            remarks.append(
                f"{root} has prompts that are neither for queries nor for passages by their names "
                f"({', '.join(self.unused)}): they are not used; --query-prefix and "
                "--passage-prefix take their texts"
            )
        return remarks


def is_sentence_transformers(root: Path) -> bool:
    """Return True for a folder of sentence-transformers' modules, unless denserk wrote it."""
    path = root / MODULES_FILE
    return path.is_file() and OWN_MODULE not in read_file(path)


def look_for_encoder(model: str) -> None:
    """Raise an error, before anything slow, for a model that does not exist or is not supported."""
    folder = look_for_model(model)
    is_denserk = bool(read_optional_json(folder / DENSERK_FILE))
    if not is_denserk and is_sentence_transformers(folder):
        folder = read_sentence_transformers(folder).transformer
    read_optional_json(folder / MODEL_CONFIG)  # an error if it is no JSON


def check_cross_encoder(root: Path) -> None:
    """Raise a ModelError for a cross-encoder's setting by which its ranking would be another one.

    Scores are those before the activation, which has the same order.
    """
    settings_path = root / SETTINGS_FILE
    settings = read_optional_json(settings_path, PROMPTS_RULE)
    prompts = settings.get("prompts") or {}
    default = settings.get("default_prompt_name")
    if default is not None and prompts.get(default):
        hint = f"set default_prompt_name in {settings_path} to null to rerank without the prompt"
        _reject(settings_path, "default_prompt_name", default, hint)
    _check_activation(settings, settings_path)
    config = read_optional_json(root / MODEL_CONFIG, {"sentence_transformers?": dict})
    _check_activation(config.get("sentence_transformers") or {}, root / MODEL_CONFIG)
    for path in sorted(root.glob("sentence_*_config.json")):
        processing_kwargs = read_json(path).get("processing_kwargs")
        if processing_kwargs:
            _reject(path, "processing_kwargs", processing_kwargs, RERANK_ELSEWHERE)


def _check_activation(settings: Mapping[str, Any], path: Path) -> None:
    """Reject an activation of scores that changes their order."""
    activation = settings.get("activation_fn")
    if activation and str(activation).rpartition(".")[2] not in MONOTONE_ACTIVATIONS:
        hint = f"set activation_fn in {path} to null to rank by the scores before it"
        _reject(path, "activation_fn", activation, hint)


def read_sentence_transformers(root: Path) -> SentenceTransformersFolder:
    """Read a folder's settings; a ModelError for one that denserk does not compute exactly."""
    modules = _read_modules(root)
    transformer = modules[TRANSFORMER]
    # sentence_bert_config.json, or after another architecture; more than one there should not be
    transformer_paths = sorted(transformer.glob("sentence_*_config.json"))
    transformer_settings: Mapping[str, Any] = {}
    if transformer_paths:
        transformer_settings = _read_transformer(transformer_paths[0])
    _check_adapter(transformer)
    pooling_path = modules[POOLING] / MODEL_CONFIG
    pooling = read_json(pooling_path)
    dense = _read_dense(modules[DENSE]) if DENSE in modules else None
    has_normalize = NORMALIZE in modules
    if has_normalize:
        _check_normalize(modules[NORMALIZE])

    settings_path = root / SETTINGS_FILE
    settings = _read_settings(settings_path)
    similarity = _read_similarity(settings, settings_path)
    truncate_dim = _read_truncation(settings, settings_path, pooling, dense)
    if truncate_dim is not None and has_normalize:
        _check_truncation_of_normalised(similarity, settings_path)
    representation = RepresentationSettings(
        _read_pooling(pooling, pooling_path),
        l2_norm=has_normalize or similarity == COSINE,
        truncate_dim=truncate_dim,
        projection=dense.dimension if dense else 0,
    )
    prompts = _read_prompts(settings, settings_path)
    max_length = transformer_settings.get("max_seq_length") or _tokenizer_length(transformer)

    files = [root / MODULES_FILE, pooling_path]
    files += [path for path in (settings_path, *transformer_paths) if path.is_file()]
    if dense is not None:
        files.append(dense.folder / MODEL_CONFIG)
    return SentenceTransformersFolder(
        root=root,
        transformer=transformer,
        representation=representation,
        text=_text_settings(transformer_settings, max_length, prompts),
        metric=SIMILARITIES[similarity],
        files=tuple(files),
        dense=dense,
        cosine_reason="" if has_normalize else _reason_for_cosine(similarity, settings),
        prompts=prompts,
        has_length=max_length is not None,
    )


def _read_transformer(path: Path) -> Mapping[str, Any]:
    """Return the settings of the transformer, in a file of its folder."""
    settings: Mapping[str, Any] = read_json(path, LENGTH_RULE)
    _check_transformer(settings, path)
    return settings


def _read_settings(path: Path) -> Mapping[str, Any]:
    """Return the settings of the model as a whole; those of another kind of model are rejected."""
    settings = read_optional_json(path, PROMPTS_RULE)
    model_type = settings.get("model_type")
    if model_type not in (None, "SentenceTransformer"):
        _reject(path, "model_type", model_type, ENCODE_ELSEWHERE)
    return settings


def _check_truncation_of_normalised(similarity: str, path: Path) -> None:
    """Reject vectors that are normalised, then cut, and compared as they are.

    denserk normalises after the cut, which is the same for cosine alone.
    """
    if similarity == COSINE:
        return
    raise ModelError(
        f"{path}: truncate_dim after the module Normalize with similarity_fn_name "
        f"{similarity} is not computed by denserk",
        f"remove truncate_dim from {path}, or set similarity_fn_name to cosine",
    )


def _reason_for_cosine(similarity: str, settings: Mapping[str, Any]) -> str:
    """Return why a model compares by cosine; empty if it does not."""
    if similarity != COSINE:
        return ""
    if settings.get("similarity_fn_name"):
        return f"similarity_fn_name of {SETTINGS_FILE}"
    return "the default of sentence-transformers"


def _text_settings(
    transformer_settings: Mapping[str, Any], max_length: int | None, prompts: Prompts
) -> TextSettings:
    """Return lengths and prompts of queries and passages."""
    return TextSettings(
        query_max_length=transformer_settings.get("query_length") or max_length or DEFAULT_LENGTH,
        passage_max_length=(
            transformer_settings.get("document_length") or max_length or DEFAULT_LENGTH
        ),
        query_prefix=prompts.query,
        passage_prefix=prompts.passage,
    )


def _reject(path: Path, setting: str, value: object, hint: str) -> NoReturn:
    """Raise the error for a setting that is not computed."""
    raise ModelError(
        f"{path}: {setting} is {str(value)[:SHOWN]}, which denserk does not compute", hint
    )


def _read_modules(root: Path) -> dict[str, Path]:
    """Return the folders of a model's modules by their class names."""
    path = root / MODULES_FILE
    modules = read_json(path, [{"type": str, "path?": str}])
    class_paths = [module["type"] for module in modules]
    names = [class_path.rpartition(".")[2] for class_path in class_paths]
    # a class of another package may compute anything, whatever its name
    is_foreign = any(not class_path.startswith(PACKAGE) for class_path in class_paths)
    if is_foreign or tuple(names) not in CHAINS:
        shown_names = class_paths if is_foreign else names
        raise ModelError(
            f"{path} chains the modules {', '.join(shown_names)}; denserk computes Transformer, "
            "Pooling, and after them Dense and Normalize",
            ENCODE_ELSEWHERE,
        )
    folders = (path_inside(root, module.get("path") or "", path) for module in modules)
    return dict(zip(names, folders, strict=True))


def _check_transformer(settings: Mapping[str, Any], path: Path) -> None:
    """Reject settings of the transformer that change its token states in ways of their own."""
    for name, values in TRANSFORMER_VALUES.items():
        if settings.get(name) not in (None, *values):
            _reject(path, name, settings[name], ENCODE_ELSEWHERE)
    _check_modality(settings.get("modality_config"), path)
    tokenizer = read_optional_json(path.parent / TOKENIZER_CONFIG)
    if settings.get("do_lower_case") and not tokenizer.get("do_lower_case"):
        raise ModelError(
            f"{path}: do_lower_case lower-cases text before the tokenizer, which denserk does not",
            f"if the tokenizer lower-cases text itself, set do_lower_case to false in {path}",
        )
    for name, value in settings.items():
        if name in ARGUMENTS and isinstance(value, dict):
            for argument in value.keys() - HARMLESS_ARGUMENTS:
                _reject(path, f"{name}.{argument}", value[argument], ENCODE_ELSEWHERE)
        # what is unknown does nothing if it is false, null or empty
        elif value and name not in TRANSFORMER_KEYS:
            _reject(path, name, value, ENCODE_ELSEWHERE)


def _check_modality(modalities: Any, path: Path) -> None:
    """Reject another way to read text than by the last hidden states."""
    if not modalities:
        return
    text_modality = modalities.get("text") if isinstance(modalities, dict) else modalities
    if text_modality != TEXT_MODALITY:
        _reject(path, "modality_config.text", text_modality, ENCODE_ELSEWHERE)


def _check_adapter(transformer: Path) -> None:
    """Reject an adapter, whose base model is elsewhere."""
    path = transformer / ADAPTER_CONFIG
    if path.is_file():
        raise ModelError(
            f"{path}: the model is an adapter, which denserk does not load",
            "merge it into its base model by peft (merge_and_unload) and save that",
        )


def _read_pooling(pooling: Mapping[str, Any], path: Path) -> Representation:
    """Return the pooling of a folder."""
    modes = _pooling_modes(pooling)
    if len(modes) != 1 or modes[0] not in POOLING_MODES:
        _reject(path, "pooling_mode", " and ".join(map(str, modes)), ENCODE_ELSEWHERE)
    if pooling.get("include_prompt") is False:
        raise ModelError(
            f"{path}: include_prompt leaves the prompt out of the pooling, which denserk does not",
            ENCODE_ELSEWHERE,
        )
    for name, value in pooling.items():
        if value and name not in POOLING_KEYS:
            _reject(path, name, value, ENCODE_ELSEWHERE)
    return POOLING_MODES[modes[0]]


def _pooling_modes(pooling: Mapping[str, Any]) -> list[Any]:
    """Return the names of a folder's poolings, whose vectors would be concatenated if several."""
    modes = pooling.get("pooling_mode")
    if isinstance(modes, list) and modes:
        return modes
    if modes:
        return [modes]
    older_modes = [mode for key, mode in OLDER_POOLING_KEYS.items() if pooling.get(key)]
    return older_modes or ["mean"]


def _read_dense(folder: Path) -> DenseLayer:
    """Return the linear layer after the pooling."""
    path = folder / MODEL_CONFIG
    config = read_json(path, {"in_features": range(1, LARGEST), "out_features": range(1, LARGEST)})
    _check_text_vectors(config, path)
    if config.get("use_residual"):
        _reject(path, "use_residual", config["use_residual"], ENCODE_ELSEWHERE)
    # without one, the default of sentence-transformers
    class_path = str(config.get("activation_function", f"torch.nn.{TANH}"))
    activation = class_path.rpartition(".")[2]
    if not class_path.startswith("torch.nn.") or activation not in ACTIVATIONS:
        _reject(path, "activation_function", class_path, ENCODE_ELSEWHERE)
    return DenseLayer(folder, config["out_features"], activation)


def _check_normalize(folder: Path) -> None:
    """Reject a normalisation of anything but the vectors of texts."""
    path = folder / MODEL_CONFIG
    _check_text_vectors(read_optional_json(path), path)


def _check_text_vectors(config: Mapping[str, Any], path: Path) -> None:
    """Reject a module that reads or writes anything but the vectors of texts."""
    for name in ("module_input_name", "module_output_name"):
        if config.get(name) not in (None, "sentence_embedding"):
            _reject(path, name, config[name], ENCODE_ELSEWHERE)


def _read_similarity(settings: Mapping[str, Any], path: Path) -> str:
    """Return the similarity by which vectors are compared; cosine is the default."""
    similarity = settings.get("similarity_fn_name") or COSINE
    if not isinstance(similarity, str) or similarity not in SIMILARITIES:
        hint = f"set similarity_fn_name in {path} to one of {', '.join(SIMILARITIES)}"
        _reject(path, "similarity_fn_name", similarity, hint)
    return similarity


def _read_truncation(
    settings: Mapping[str, Any],
    path: Path,
    pooling: Mapping[str, Any],
    dense: DenseLayer | None,
) -> int | None:
    """Return the number of dimensions that are kept; None for all of them."""
    size = settings.get("truncate_dim")
    if size is None:
        return None
    if type(size) is not int or size < 1:
        hint = f"set truncate_dim in {path} to a whole number, or null"
        _reject(path, "truncate_dim", size, hint)
    dimension = _pooled_dimension(pooling) if dense is None else dense.dimension
    if dimension is not None and size >= dimension:
        return None
    return int(size)


def _pooled_dimension(pooling: Mapping[str, Any]) -> int | None:
    """Return the dimension of pooled vectors; None if the pooling does not record it."""
    for name in POOLING_DIMENSIONS:
        dimension = pooling.get(name)
        if type(dimension) is int:
            return dimension
    return None


def _tokenizer_length(transformer: Path) -> int | None:
    """Return the length of texts by the tokenizer and the transformer; None if neither has one."""
    tokenizer = read_optional_json(transformer / TOKENIZER_CONFIG)
    config = read_optional_json(transformer / MODEL_CONFIG)
    limits = [tokenizer.get("model_max_length"), config.get("max_position_embeddings")]
    # transformers writes a huge number where a tokenizer has no limit of its own
    lengths = [limit for limit in limits if type(limit) is int and 0 < limit <= LARGEST]
    return min(lengths, default=None)


def _read_prompts(settings: Mapping[str, Any], path: Path) -> Prompts:
    """Return the prompts of queries and of passages."""
    prompts = settings.get("prompts") or {}
    default = settings.get("default_prompt_name")
    if default is not None and default not in prompts:
        hint = f"set default_prompt_name in {path} to null, or to one of its prompts"
        _reject(path, "default_prompt_name", default, hint)
    query = _side_prompt(prompts, QUERY_PROMPTS, default)
    passage = _side_prompt(prompts, PASSAGE_PROMPTS, default)
    read_names = {*QUERY_PROMPTS, *PASSAGE_PROMPTS, default}
    unused = [name for name, text in prompts.items() if text and name not in read_names]
    used_default = ""
    if default is not None and (query.is_default or passage.is_default):
        used_default = default
    return Prompts(
        query=query.text,
        passage=passage.text,
        default=used_default,
        unused=tuple(unused),
    )


class SidePrompt(NamedTuple):
    """The prompt of queries or of passages; `is_default` if it is not named for them."""

    text: str
    is_default: bool


def _side_prompt(
    prompts: Mapping[str, Any], names: Sequence[str], default: str | None
) -> SidePrompt:
    """Return the prompt of the first of `names` that there is, or the one named `default`."""
    for name in names:
        if name in prompts:
            return SidePrompt(str(prompts[name] or ""), is_default=False)
    if default is None:
        return SidePrompt("", is_default=False)
    return SidePrompt(str(prompts[default] or ""), is_default=True)
