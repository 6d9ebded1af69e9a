"""Model folders of every known layout, read: settings, tensors, and the encoders."""

import copy
import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from torch import Tensor
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForTextEncoding, PretrainedConfig
from transformers.models.auto import modeling_auto

from denserk.config import encoding
from denserk.config.encoding import Representation, RepresentationSettings, TextSettings
from denserk.config.options import NOTHING, as_json, from_json
from denserk.config.retrieval import Metric
from denserk.config.values import as_type
from denserk.data.tokenization import TextTokenizer, load_tokenizer
from denserk.errors import DenserkError, InputError, ModelError, UsageError
from denserk.io.canary import Canary, read_canary
from denserk.io.locks import reject_being_written
from denserk.io.manifest import check
from denserk.io.model_files import TERM_WEIGHT_FILE, fingerprint_of, read_json, require_model
from denserk.io.outputs import DENSERK_FILE
from denserk.io.versions import Version, read_whole
from denserk.models import checkpoints
from denserk.models.backbone import STATIC, Architecture, Backbone, architecture_of, longest_input
from denserk.models.checkpoints import Tensors
from denserk.models.representation import Encoder, needs_mlm_head
from denserk.models.sentence_transformers_folder import (
    ACTIVATIONS,
    IDENTITY,
    SentenceTransformersFolder,
    is_sentence_transformers,
    read_sentence_transformers,
)

logger = logging.getLogger(__name__)
S = TypeVar("S")

# first parts of the names of a representation's own tensors
HEADS = ("tok_proj.", "cls_proj.", "agg_proj.", "scalar_mix.", "projection.")
# first parts of the names of tensors of DPR's two encoders
DPR_PREFIXES = ("question_encoder.bert_model.", "ctx_encoder.bert_model.")
# types of models that may encode texts
TEXT_MODELS = {
    *modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    *modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    *modeling_auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES,
    STATIC,
}

# of denserk.json: what `queries_of` records of a model, and the version of the format
TEACHER = {"name": str, "fingerprint": str, "representation": dict}
FORMAT_VERSION = 1
# sub-folders of untied query and passage encoders: denserk's, the Aggretriever authors'
QUERY_SIDE = "query"
PASSAGE_SIDE = "document"
AUTHORS_SIDES = ("query_model", "passage_model")
# files of the authors' heads, and the heads' names here
AUTHORS_HEADS = {TERM_WEIGHT_FILE: "tok_proj", "pooler.pt": "cls_proj"}


@cache
def _log_once(message: str) -> None:
    """Log a message once in a process: a model may be loaded for each of many steps."""
    logger.info(message)


def override(settings: S, overrides: Mapping[str, Any]) -> S:
    """Return settings with some fields replaced, by values as in JSON or typed."""
    return from_json(type(settings), {**as_json(settings), **overrides})


def fit_lengths(
    recorded: TextSettings, overrides: Mapping[str, Any], limit: int | None
) -> TextSettings:
    """Return text settings with some fields replaced and lengths within the model's positions.

    A length beyond `limit` (None: any) is a UsageError if it is an override, and else shortened.
    """
    settings = override(recorded, overrides)
    for name in ("query_max_length", "passage_max_length"):
        length = getattr(settings, name)
        if limit is None or length <= limit:
            continue
        if name in overrides:
            option = name.replace("_", "-")
            message = f"--{option} {length}: the model has {limit} positions"
            raise UsageError(message, f"give --{option} {limit}, or less")
        logger.info(f"{name} {length} becomes {limit}, the positions that the model has")
        settings = override(settings, {name: limit})
    return settings


def within_positions(text: TextSettings, limit: int | None) -> TextSettings:
    """Return text settings whose lengths the model has positions for; None: any length."""
    if limit is None:
        return text
    return replace(
        text,
        query_max_length=min(text.query_max_length, limit),
        passage_max_length=min(text.passage_max_length, limit),
    )


@dataclass(frozen=True)
class StoredEncoder:
    """The weights of a transformer, not yet a model, and `heads` of a representation.

    `activation` follows the linear layer of `projection`, if there is one.
    """

    folder: Path  # of config.json and the tokenizer
    config: PretrainedConfig
    tensors: Tensors
    heads: Tensors
    activation: str = IDENTITY

    @classmethod
    def read(
        cls, folder: Path, heads: Tensors | None = None, activation: str = IDENTITY
    ) -> "StoredEncoder":
        """Read a transformers folder, `heads` from elsewhere; published layouts are renamed."""
        config = checkpoints.read_config(folder)
        if config.model_type not in TEXT_MODELS:
            raise ModelError(f"{folder}: the backbone {config.model_type!r} is not supported")
        if getattr(config, "projection_dim", 0):
            raise ModelError(f"{folder} projects its vectors, which denserk does not do")
        tensors = {**checkpoints.read_weights(folder), **(heads or {})}
        tensors = _without_published_prefixes(tensors, config.model_type)
        head_tensors: dict[str, Tensor] = {}
        backbone_tensors: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            if name.startswith(HEADS):
                head_tensors[name] = tensor
            else:
                backbone_tensors[name] = tensor
        return cls(folder, config, backbone_tensors, head_tensors, activation)

    @property
    def architecture(self) -> Architecture:
        """The row of the table of architectures."""
        return architecture_of(self.config)

    @property
    def max_length(self) -> int | None:
        """The longest text it has positions for, special tokens included; None: any length."""
        return longest_input(self.config)

    @property
    def has_mlm_head(self) -> bool:
        """True if the MLM head was saved."""
        return any(name.startswith(self.architecture.head) for name in self.tensors)

    def build(self, settings: RepresentationSettings, *, train: bool = False) -> Encoder:
        """Build the encoder; missing weights are a ModelError, or to `train` initialised."""
        self._reject_representation(settings.representation)
        with_head = needs_mlm_head(settings)
        if with_head and self.architecture.transform is None:
            raise ModelError(
                f"{self.folder}: --representation agg reads the masked-language-model head, and "
                f"that of the backbone {self.config.model_type!r} is not supported",
                "leave the head out: --set mlm-head=none",
            )
        is_fresh_chosen = settings.mlm_head is encoding.MlmHead.FRESH
        fresh = with_head and (is_fresh_chosen or not self.has_mlm_head)
        if fresh and not train:
            raise ModelError(
                f"{self.folder} has no masked-language-model head, or --set mlm-head=fresh was "
                "given: a new head is random, and for training only"
            )
        backbone = self.backbone(with_head=with_head, fresh=fresh)
        if fresh and not is_fresh_chosen:
            logger.warning(
                f"{self.folder} has no masked-language-model head, and a random one takes long to "
                "train: --set mlm-head=none leaves it out, pretrain --objective mlm --set "
                "head-only=yes trains one first"
            )
        encoder = Encoder(backbone, settings, self.activation)
        self._fill_heads(encoder, train=train)
        return encoder.train(train)

    def _reject_representation(self, representation: Representation) -> None:
        """Raise a ModelError for a representation that the backbone does not have."""
        if representation is Representation.CROSS_ENCODER:
            raise ModelError(
                "--representation cross-encoder: a cross-encoder makes no vectors",
                "rerank with it: denserk rerank --model MODEL --run RUN --topics Q --corpus C",
            )
        reads_cls = representation in (Representation.CLS, Representation.AGG)
        if reads_cls and not self.architecture.has_cls:
            raise ModelError(
                f"--representation {representation} reads [CLS], which a {self.config.model_type} "
                "backbone does not have",
                "choose --representation mean",
            )

    def _fill_heads(self, encoder: Encoder, *, train: bool) -> None:
        """Give a representation its stored tensors; to `train`, the others stay random."""
        random_heads = encoder.representation.state_dict()
        trained_heads = {name: self.heads[name] for name in random_heads if name in self.heads}
        checkpoints.fill(self.folder, encoder.representation, {**random_heads, **trained_heads})
        untrained = ", ".join(sorted(random_heads.keys() - trained_heads.keys()))
        if not untrained:
            return
        if not train:
            representation = encoder.settings.representation
            raise ModelError(
                f"{self.folder} has no trained {untrained}: --representation {representation} "
                "would be random"
            )
        logger.info(f"randomly initialised: {untrained}")

    def keep_layers(self, layers: Sequence[int]) -> "StoredEncoder":
        """Return the encoder with these of its layers alone, from 0, ascending; () keeps all."""
        if not layers:
            return self
        layer_count = getattr(self.config, "num_hidden_layers", 0)
        option = f"--set keep-layers={','.join(map(str, layers))}"
        if not self.architecture.layers:
            raise ModelError(
                f"{option}: the model has no layers to choose from, as a {self.config.model_type}"
            )
        # equal if they are ascending, each named once, and none is beyond the model's
        existing_layers = set(layers) & set(range(layer_count))
        if list(layers) != sorted(existing_layers):
            raise ModelError(
                f"{option}: the model has the layers 0 to {layer_count - 1}, to be named in this "
                "order"
            )
        config = copy.deepcopy(self.config)
        config.num_hidden_layers = len(layers)
        layer_types = getattr(config, "layer_types", None)  # of ModernBERT
        if layer_types:
            config.layer_types = [layer_types[layer] for layer in layers]
        return replace(self, config=config, tensors=self._tensors_of_layers(layers))

    def _tensors_of_layers(self, layers: Sequence[int]) -> dict[str, Tensor]:
        """Return the tensors with these layers alone, numbered anew from 0."""
        tensors = {}
        for name, tensor in self.tensors.items():
            before, layers_path, name_in_layers = name.partition(f"{self.architecture.layers}.")
            if not layers_path:
                tensors[name] = tensor
                continue
            number, _, name_in_layer = name_in_layers.partition(".")
            if int(number) in layers:
                position = layers.index(int(number))
                tensors[f"{before}{layers_path}{position}.{name_in_layer}"] = tensor
        return tensors

    def masked_lm(self) -> Backbone:
        """Build the backbone with its MLM head, to pre-train; a missing head is initialised."""
        missing_part = None
        if not self.architecture.has_cls:
            missing_part = "[CLS] token"
        elif self.architecture.transform is None:
            missing_part = "masked-language-model head"
        if missing_part is not None:
            raise ModelError(
                f"{self.folder}: {self.config.model_type} cannot be pre-trained: it has no "
                f"{missing_part}",
                "start from a BERT, RoBERTa, DistilBERT or ModernBERT",
            )
        return self.backbone(with_head=True, fresh=not self.has_mlm_head).train()

    def backbone(self, *, with_head: bool = False, fresh: bool = False) -> Backbone:
        """Build the transformer, bare or with its MLM head.

        A `fresh` head is initialised as transformers does, its decoder tied to the word embeddings.
        """
        tensors = self.tensors
        fresh_prefixes: tuple[str, ...] = ()
        if fresh:
            logger.info("randomly initialised: the masked-language-model head")
            fresh_prefixes = self.architecture.head
            tensors = {
                name: tensor
                for name, tensor in tensors.items()
                if not name.startswith(fresh_prefixes)
            }
        auto = self._auto_class(with_head=with_head)
        model = checkpoints.load_model(
            auto, self.folder, self.config, tensors, heads=fresh_prefixes
        )
        return Backbone(model, fresh_prefixes, checkpoints.pooler_tensors(model, self.tensors))

    def _auto_class(self, *, with_head: bool) -> Any:
        """Return the class of transformers that builds the model, bare or with its MLM head."""
        model_type = self.config.model_type
        if not with_head and model_type in modeling_auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES:
            return AutoModelForTextEncoding  # of T5 the encoder alone
        if self.config.is_encoder_decoder:
            raise ModelError(
                f"{self.folder}: the backbone {model_type!r} is not supported: its encoder cannot "
                "be loaded without its decoder"
            )
        return AutoModelForMaskedLM if with_head else AutoModel


def _without_published_prefixes(tensors: Tensors, model_type: str) -> dict[str, Tensor]:
    """Return tensors by transformers' names, without the prefixes of Pyserini's and DPR's."""
    # Pyserini's are those of transformers behind "encoder.", as in "encoder.bert."
    is_pyserini = any(name.startswith(f"encoder.{model_type}.") for name in tensors)
    prefixes = ("encoder.",) if is_pyserini else DPR_PREFIXES
    renamed = dict(tensors)
    for prefix in prefixes:
        renamed = {name.removeprefix(prefix): tensor for name, tensor in renamed.items()}
    return renamed


@dataclass(frozen=True)
class StoredModel:
    """A folder that was read: one encoder for queries and passages, or one each.

    `representation` and `text` are the folder's own settings, or defaults where it has none
    (`has_settings`). `files` belong to the fingerprint, besides the encoders' own. `dimensions` are
    those of `finetune --dimensions`. `queries_of` describes the model whose query vectors it
    learned, and for whose indexes alone it is. `metric` compares its vectors. `version` is that of
    the folder as it was read: what is read later must be of the same. `foreign` has the settings of
    a folder of sentence-transformers.
    """

    root: Path
    query: StoredEncoder
    passage: StoredEncoder
    representation: RepresentationSettings
    text: TextSettings = field(default_factory=TextSettings)
    files: tuple[Path, ...] = ()
    has_settings: bool = True
    dimensions: tuple[int, ...] = ()
    queries_of: Mapping[str, Any] | None = None
    version: Version | None = None
    metric: Metric = Metric.INNER
    foreign: SentenceTransformersFolder | None = None

    def choose(
        self, representation: Mapping[str, Any], text: Mapping[str, Any] = NOTHING
    ) -> RepresentationSettings:
        """Return the folder's representation with given fields replaced.

        What a user should know of a foreign folder's settings is logged, unless fields of
        `representation` and `text` replace them.
        """
        if self.foreign is not None:
            for remark in self.foreign.remarks(representation.keys(), text.keys()):
                _log_once(remark)
        return override(self.representation, representation)

    @property
    def is_for_cosine(self) -> bool:
        """True if vectors are normalised because the folder says cosine, and not by a module."""
        return self.foreign is not None and bool(self.foreign.cosine_reason)

    @property
    def shared(self) -> bool:
        """True if queries and passages share one encoder."""
        return self.query is self.passage

    def fingerprint(self) -> str:
        """Return the SHA-256 of weights, tokenizer and configuration."""
        with self._reading():
            return fingerprint_of(self.root, self.fingerprint_files())

    def fingerprint_files(self) -> list[Path]:
        """Return the files that the fingerprint is of."""
        query_files = checkpoints.encoder_files(self.query.folder)
        passage_files = checkpoints.encoder_files(self.passage.folder)
        return sorted({*self.files, *query_files, *passage_files})

    def load_tokenizer(self, folder: Path) -> Any:
        """Load the tokenizer of one side's folder, of the version that was read."""
        with self._reading():
            return load_tokenizer(folder)

    def read_canary(self) -> Canary | None:
        """Read the folder's canary.json, of the version that was read; None without one."""
        with self._reading():
            return read_canary(self.root)

    def _reading(self) -> AbstractContextManager[None]:
        """Context manager: files of another version of the folder are an error within it."""
        if self.version is None:
            return nullcontext()
        return self.version.reading()

    def shared_settings(self) -> dict[str, Any]:
        """Return what models must have in common for a mean of their weights."""
        tokenizer = self.load_tokenizer(self.passage.folder)
        return {
            # the folder's name and the stored precision may differ
            "config": {**self.passage.config.to_dict(), "_name_or_path": None, "dtype": None},
            "tokenizer": TextTokenizer(tokenizer, self.text).fingerprint(),
            "representation": as_json(self.representation),
            "text": as_json(self.text),
            "dimensions": self.dimensions,
            "metric": self.metric.value,
            "activation": self.passage.activation,
            "untied": not self.shared,
        }

    def build(
        self, settings: RepresentationSettings, *, train: bool = False, untie: bool = False
    ) -> tuple[Encoder, Encoder]:
        """Build the encoders of queries and passages, the same object if they share weights.

        To `train`, missing weights are initialised; `untie` gives each side weights of its own.
        """
        passage = self.passage.build(settings, train=train)
        if not self.shared:
            return self.query.build(settings, train=train), passage
        if untie:
            return copy.deepcopy(passage), passage
        return passage, passage


class OwnFile(NamedTuple):
    """The settings in denserk.json, of a folder that denserk wrote.

    See `StoredModel` for those from `dimensions` on.
    """

    representation: RepresentationSettings
    text: TextSettings
    pairs: encoding.PairSettings
    dimensions: tuple[int, ...]
    queries_of: Mapping[str, Any] | None
    metric: Metric
    activation: str


def read_own_file(folder: Path) -> OwnFile:
    """Read a folder's denserk.json."""
    path = folder / DENSERK_FILE
    values = read_json(path)
    version = values.get("format_version")
    if version != FORMAT_VERSION:
        raise ModelError(
            f"{path} has the format version {version}, expected {FORMAT_VERSION}",
            "use the version of denserk that wrote it, or a later one",
        )
    check(values, {"queries_of?": TEACHER, "metric?": tuple(Metric), "activation?": str}, path)
    activation = values.get("activation", IDENTITY)
    if activation not in ACTIVATIONS:
        raise InputError(path, None, f"activation {activation}", ", ".join(ACTIVATIONS))
    try:
        return OwnFile(
            representation=from_json(RepresentationSettings, values["representation"]),
            text=from_json(TextSettings, values["text"]),
            pairs=from_json(encoding.PairSettings, values.get("pairs", {})),
            dimensions=as_type(tuple[int, ...], values.get("dimensions", ())),
            queries_of=values.get("queries_of"),
            metric=Metric(values.get("metric") or Metric.INNER),
            activation=activation,
        )
    except (KeyError, TypeError, ValueError, UsageError) as error:
        raise ModelError(f"{path} is not valid: {error}") from None


def read_model_folder(folder: Path) -> StoredModel:
    """Read a model's folder, whatever its layout; a ModelError for an unknown or broken one."""
    return read_whole([folder], partial(_read_one_version, folder))


def _read_one_version(folder: Path) -> StoredModel:
    """Read one version of a folder, which may be replaced meanwhile."""
    version = Version.of(folder)
    try:
        return replace(_read_folder(folder), version=version)
    except DenserkError:  # perhaps of a file that another process is about to write
        reject_being_written(folder, around=False)
        raise


def _read_folder(folder: Path) -> StoredModel:
    """Read a folder of any layout as it is now."""
    if (folder / DENSERK_FILE).is_file():
        return _read_own_folder(folder)
    if is_sentence_transformers(folder):
        return _read_foreign_folder(folder)
    if (folder / TERM_WEIGHT_FILE).is_file():
        return _read_authors(folder)
    require_model(folder)
    encoder = StoredEncoder.read(folder)
    if "tok_proj.weight" in encoder.heads:  # Aggretriever's one-file layout
        return StoredModel(folder, encoder, encoder, _aggretriever_settings(encoder.heads))
    settings = RepresentationSettings(_default_pooling(encoder.architecture))
    return StoredModel(folder, encoder, encoder, settings, has_settings=False)


def _default_pooling(architecture: Architecture) -> Representation:
    """Return the pooling of a folder that records none."""
    if architecture.is_decoder:
        return Representation.LAST
    return Representation.CLS if architecture.has_cls else Representation.MEAN


def _read_own_folder(folder: Path) -> StoredModel:
    """Read a folder that denserk wrote."""
    settings = read_own_file(folder)
    if (folder / PASSAGE_SIDE).is_dir():
        passage = StoredEncoder.read(folder / PASSAGE_SIDE, activation=settings.activation)
        query = StoredEncoder.read(folder / QUERY_SIDE, activation=settings.activation)
    else:
        passage = StoredEncoder.read(folder, activation=settings.activation)
        query = passage
    return StoredModel(
        folder,
        query,
        passage,
        settings.representation,
        settings.text,
        files=(folder / DENSERK_FILE,),
        dimensions=settings.dimensions,
        queries_of=settings.queries_of,
        metric=settings.metric,
    )


def _read_foreign_folder(folder: Path) -> StoredModel:
    """Read a folder that sentence-transformers wrote."""
    foreign = read_sentence_transformers(folder)
    files = foreign.files
    if foreign.dense is None:
        encoder = StoredEncoder.read(foreign.transformer)
    else:
        files += tuple(checkpoints.weight_files(foreign.dense.folder))
        heads = _dense_heads(checkpoints.read_weights(foreign.dense.folder))
        encoder = StoredEncoder.read(foreign.transformer, heads, foreign.dense.activation)
    return StoredModel(
        folder,
        encoder,
        encoder,
        foreign.representation,
        foreign.text,
        files,
        metric=foreign.metric,
        foreign=foreign,
    )


def _dense_heads(tensors: Tensors) -> Tensors:
    """Return the tensors of sentence-transformers' linear layer by their names here."""
    heads = {name.replace("linear.", "projection.", 1): tensor for name, tensor in tensors.items()}
    if "projection.weight" in heads and "projection.bias" not in heads:
        # a layer without a bias is computed with one of zeros
        weight = heads["projection.weight"]
        heads["projection.bias"] = weight.new_zeros(len(weight))
    return heads


def _read_authors(folder: Path) -> StoredModel:
    """Read the Aggretriever authors' layout.

    It does not record the variant, which is then the default. The transformer is in the folder
    itself, or one for each side in a sub-folder; heads of both sides are in files of the folder.
    """
    files = tuple(folder / name for name in AUTHORS_HEADS if (folder / name).is_file())
    query_heads, passage_heads = _read_authors_heads(files)
    missing_heads = sorted(passage_heads.keys() - query_heads.keys())
    if missing_heads:
        names = " and ".join(path.name for path in files)
        message = f"{folder}: {names} hold the heads of passages (linear_p), and of queries "
        message += f"(linear_q) no {missing_heads[0]}"
        raise ModelError(message, "fetch the files again: both sides' heads are needed")
    folders = [folder / side for side in AUTHORS_SIDES if (folder / side).is_dir()]
    if not folders:
        folders = [folder]
    query = StoredEncoder.read(folders[0], query_heads)
    passage = query
    # passages are encoded as queries unless the folder has another transformer or heads for them
    has_equal_heads = all(query_heads[name].equal(tensor) for name, tensor in passage_heads.items())
    if len(folders) > 1 or not has_equal_heads:
        passage = StoredEncoder.read(folders[-1], passage_heads)
    return StoredModel(folder, query, passage, _aggretriever_settings(query_heads), files=files)


def _read_authors_heads(files: Sequence[Path]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the heads of queries and of passages, by the names of their tensors here."""
    query_heads: dict[str, Tensor] = {}
    passage_heads: dict[str, Tensor] = {}
    heads_by_side = {"linear_q": query_heads, "linear_p": passage_heads}
    for path in files:
        head = AUTHORS_HEADS[path.name]
        for name, tensor in checkpoints.read_tensors(path).items():
            side, _, parameter = name.partition(".")
            if side in heads_by_side:
                heads_by_side[side][f"{head}.{parameter}"] = tensor
    return query_heads, passage_heads


def _aggretriever_settings(heads: Tensors) -> RepresentationSettings:
    """Return the settings of a published Aggretriever, whose size of [CLS] its tensors show."""
    cls_dim = len(heads.get("cls_proj.weight", ()))  # (cls_dim, H); without it, there is no [CLS]
    return RepresentationSettings(Representation.AGG, cls_dim=cls_dim)
