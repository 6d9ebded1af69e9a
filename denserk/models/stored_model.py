"""Reading a model folder of any known layout: tensors, settings and the encoders to build."""

import copy
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PretrainedConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES,
)

from denserk.config.encoding import (
    MlmHead,
    PairSettings,
    Representation,
    RepresentationSettings,
    TextSettings,
)
from denserk.config.options import from_json
from denserk.data.tokenization import TOKENIZER_FILES
from denserk.errors import ModelError, UsageError
from denserk.models.architectures import Architecture, architecture_of
from denserk.models.backbone import Backbone
from denserk.models.checkpoints import (
    fill,
    fingerprint,
    inside,
    read_config,
    read_json,
    read_json_list,
    read_model_type,
    read_tensors,
    read_weights,
    weight_files,
)
from denserk.models.encoder import Encoder, Retriever
from denserk.models.representation import needs_mlm_head, refuse_architecture

logger = logging.getLogger(__name__)

# First parts of the names of a representation's own tensors.
HEADS = ("tok_proj.", "cls_proj.", "agg_proj.", "scalar_mix.")
# DPR's two encoders are BERTs under names of their own.
RENAMED = {"dpr": ("bert", ("question_encoder.bert_model.", "ctx_encoder.bert_model."))}
TEXT_MODELS = {
    *RENAMED,
    *MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    *MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    *MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES,
}

DENSERK_FILE = "denserk.json"
FORMAT_VERSION = 1
# Sub-folders of untied query and passage encoders: denserk's, the Aggretriever authors'.
QUERY_SIDE, PASSAGE_SIDE = "query", "document"
AUTHORS_SIDES = ("query_model", "passage_model")
TERM_WEIGHT_FILE = "TermWeightTrans.pt"
POOLER_FILE = "pooler.pt"

# Files of sentence-transformers.
MODULES_FILE, PROMPTS_FILE = "modules.json", "config_sentence_transformers.json"
# sentence-transformers' name of a pooling -> denserk's.
POOLING_MODES = {
    "cls": Representation.CLS,
    "mean": Representation.MEAN,
    "max": Representation.MAX,
    "lasttoken": Representation.LAST,
}
# Flags of folders written before the pooling had one name.
OLDER_POOLING_KEYS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
# Names under which a prompt may stand; the first that is there counts.
QUERY_PROMPTS = ("query",)
PASSAGE_PROMPTS = ("document", "passage", "corpus")


@dataclass(frozen=True)
class StoredEncoder:
    """One encoder's weights, not yet a model.

    Attributes:
        folder: with its config.json and tokenizer.
        config: of the transformer.
        tensors: the transformer's, as the folder names them.
        heads: the representation's own.
    """

    folder: Path
    config: PretrainedConfig
    tensors: Mapping[str, Tensor]
    heads: Mapping[str, Tensor]

    @classmethod
    def read(cls, folder: Path) -> "StoredEncoder":
        """Read a transformers folder, with Aggretriever's heads where they lie beside.

        Raises:
            ModelError: it is no model of text, or cannot be read.
        """
        kind = read_model_type(folder)
        if kind not in TEXT_MODELS:
            raise ModelError(
                f"{folder}: the backbone {kind!r} is not supported",
                "any encoder or decoder of text is that transformers' AutoModel loads",
            )
        return cls.from_tensors(folder, read_weights(folder))

    @classmethod
    def from_tensors(cls, folder: Path, tensors: Mapping[str, Tensor]) -> "StoredEncoder":
        """Sort a folder's tensors into backbone and heads, and undo names of published layouts."""
        kind = read_model_type(folder)
        prefixes: tuple[str, ...] = ()
        if kind in RENAMED:
            kind, prefixes = RENAMED[kind]
            if read_json(folder / "config.json").get("projection_dim"):
                raise ModelError(f"{folder} projects its vectors, which denserk does not do")
        heads = {name: tensor for name, tensor in tensors.items() if name.startswith(HEADS)}
        backbone = {name: tensor for name, tensor in tensors.items() if name not in heads}
        if any(name.startswith(f"encoder.{kind}.") for name in backbone):
            prefixes = ("encoder.",)  # Pyserini's file of an Aggretriever
        for prefix in prefixes:
            backbone = {name.removeprefix(prefix): t for name, t in backbone.items()}
        return cls(folder, read_config(folder, kind), backbone, heads)

    @property
    def architecture(self) -> Architecture:
        """The row of the table of architectures."""
        return architecture_of(self.config.model_type)

    @property
    def max_length(self) -> int | None:
        """The longest text it has positions for, special tokens included; None: any length."""
        return self.architecture.positions(self.config)

    @property
    def has_mlm_head(self) -> bool:
        """True if the MLM head was saved."""
        return any(name.startswith(self.architecture.head) for name in self.tensors)

    def build(self, settings: RepresentationSettings) -> Encoder:
        """Build the encoder, every weight taken from the folder.

        Raises:
            ModelError: the folder lacks what the settings need, or cannot do it.
        """
        refuse_architecture(settings, self.architecture)
        if settings.mlm_head is MlmHead.FRESH and needs_mlm_head(settings):
            raise ModelError(
                "--mlm-head fresh is for training: a new head is random, and so are its vectors",
                "leave it out, or choose --set mlm-head=none",
            )
        with_head = needs_mlm_head(settings)
        if with_head and not self.has_mlm_head:
            raise ModelError(
                f"{self.folder} was saved without its masked-language-model head, "
                "and a new one would be random",
                "choose another --representation, or a folder with the head",
            )
        backbone = Backbone.load(self.folder, self.config, self.tensors, with_head=with_head)
        encoder = Encoder(backbone, settings)
        own = encoder.representation.state_dict().keys()
        if missing := sorted(own - self.heads.keys()):
            raise ModelError(
                f"{self.folder} holds no trained {', '.join(missing)}: "
                f"--representation {settings.representation} would be random",
                "train it first, or choose another --representation or another --model",
            )
        fill(self.folder, encoder.representation, {name: self.heads[name] for name in own})
        return encoder.eval()

    def begin(self, settings: RepresentationSettings) -> Encoder:
        """Build the encoder to train from this folder; what is missing is randomly initialised.

        A new MLM head is initialised as transformers does for the backbone, its decoder tied to
        the word embeddings.

        Raises:
            ModelError: the backbone cannot do it, or tensors are missing.
        """
        refuse_architecture(settings, self.architecture)
        with_head = needs_mlm_head(settings)
        fresh = with_head and (settings.mlm_head is MlmHead.FRESH or not self.has_mlm_head)
        if fresh:
            logger.info(
                "a new masked-language-model head in place of the pretrained one"
                if self.has_mlm_head
                else f"{self.folder} has no masked-language-model head: a new one, tied to the "
                "word embeddings, is trained; --set mlm-head=none does without"
            )
        encoder = Encoder(self._backbone(fresh) if with_head else self.bare(), settings)
        own = encoder.representation.state_dict()
        kept = {name: self.heads[name] for name in own if name in self.heads}
        fill(self.folder, encoder.representation, {**own, **kept})
        if new := sorted(own.keys() - kept.keys()):
            logger.info(f"randomly initialised: {', '.join(new)}")
        return encoder.train()

    def begin_masked_lm(self) -> Backbone:
        """Build the backbone with its MLM head, to pre-train; a missing head is initialised.

        Raises:
            ModelError: the backbone has no [CLS] token or no MLM head, or tensors are missing.
        """
        if not self.architecture.has_cls or self.architecture.transform is None:
            lacks = "masked-language-model head" if self.architecture.has_cls else "[CLS] token"
            raise ModelError(
                f"{self.folder}: {self.architecture.model_type} cannot be pre-trained here, for it "
                f"has no {lacks}",
                "start from a BERT, RoBERTa, DistilBERT or ModernBERT",
            )
        fresh = not self.has_mlm_head
        if fresh:
            logger.info(
                f"{self.folder} has no masked-language-model head to start from: a new one, tied "
                "to the word embeddings"
            )
        return self._backbone(fresh).train()

    def bare(self) -> Backbone:
        """Build the encoder without an MLM head, every weight taken from the folder."""
        return Backbone.load(self.folder, self.config, self.tensors, with_head=False)

    def _backbone(self, fresh: bool) -> Backbone:
        """The backbone with its MLM head, or a new one."""
        head = self.architecture.head
        kept = {n: t for n, t in self.tensors.items() if not (fresh and n.startswith(head))}
        return Backbone.load(self.folder, self.config, kept, with_head=True, may_lack_head=fresh)


@dataclass(frozen=True)
class StoredModel:
    """A folder that was read: one encoder for queries and passages, or one each.

    `representation` and `text` are the folder's own settings, or defaults where it has none (`told`
    is False). `files` are those of the fingerprint.
    """

    root: Path
    layout: str
    query: StoredEncoder
    passage: StoredEncoder
    representation: RepresentationSettings
    text: TextSettings
    files: tuple[Path, ...]
    told: bool = True

    @property
    def shared(self) -> bool:
        """True if queries and passages share one encoder."""
        return self.query is self.passage

    def fingerprint(self) -> str:
        """Return the SHA-256 of weights, tokenizer and configuration."""
        return fingerprint(self.root, self.files)

    def build(self, settings: RepresentationSettings) -> tuple[Encoder, Encoder]:
        """Build the encoders of queries and passages, the same object if they share weights."""
        passage = self.passage.build(settings)
        return (passage if self.shared else self.query.build(settings)), passage

    def begin(self, settings: RepresentationSettings, *, untie: bool) -> Retriever:
        """Build both encoders for training; `untie` gives each side weights of its own."""
        passage = self.passage.begin(settings)
        if not self.shared:
            return Retriever(self.query.begin(settings), passage)
        return Retriever(copy.deepcopy(passage) if untie else passage, passage)


def encoder_files(folder: Path) -> list[Path]:
    """Return the files of a transformers folder that an encoder depends on."""
    names = [folder / "config.json", *(folder / name for name in TOKENIZER_FILES)]
    return [*weight_files(folder), *(path for path in names if path.is_file())]


def read_own_file(folder: Path) -> tuple[RepresentationSettings, TextSettings, PairSettings]:
    """Read a folder's denserk.json.

    Raises:
        ModelError: a later version of denserk wrote it, or it is broken.
    """
    told = read_json(folder / DENSERK_FILE)
    version = told.get("format_version")
    if version != FORMAT_VERSION:
        raise ModelError(
            f"{folder / DENSERK_FILE} has the format version {version}; "
            f"this denserk reads {FORMAT_VERSION}",
            "use the version of denserk that wrote it, or a later one",
        )
    try:
        return (
            from_json(RepresentationSettings, told["representation"]),
            from_json(TextSettings, told["text"]),
            from_json(PairSettings, told.get("pairs", {})),
        )
    except (KeyError, TypeError, UsageError) as error:
        raise ModelError(f"{folder / DENSERK_FILE} is broken: {error}") from None


def read_denserk(folder: Path) -> StoredModel:
    """Read a folder that denserk saved."""
    representation, text, _ = read_own_file(folder)
    if representation.representation is Representation.CROSS_ENCODER:
        raise ModelError(
            f"{folder} is a cross-encoder: it makes no vectors",
            "rerank with it: denserk rerank --model MODEL --run RUN --topics Q --corpus C",
        )
    separate = (folder / PASSAGE_SIDE).is_dir()
    sides = [folder / QUERY_SIDE, folder / PASSAGE_SIDE] if separate else [folder]
    encoders = [StoredEncoder.read(side) for side in sides]
    return StoredModel(
        root=folder,
        layout="denserk",
        query=encoders[0],
        passage=encoders[-1],
        representation=representation,
        text=text,
        files=(folder / DENSERK_FILE, *(path for side in sides for path in encoder_files(side))),
    )


def read_plain(folder: Path) -> StoredModel:
    """Read a transformers folder, or Aggretriever's one-file layout, detected by its tensors."""
    encoder = StoredEncoder.read(folder)
    told = "tok_proj.weight" in encoder.heads
    if told:
        settings = _aggretriever(encoder.heads)
    elif encoder.architecture.is_decoder:
        settings = RepresentationSettings(Representation.LAST)
    else:
        chosen = Representation.CLS if encoder.architecture.has_cls else Representation.MEAN
        settings = RepresentationSettings(chosen)
    return StoredModel(
        root=folder,
        layout="aggretriever-pyserini" if told else "transformers",
        query=encoder,
        passage=encoder,
        representation=settings,
        text=TextSettings(),
        files=tuple(encoder_files(folder)),
        told=told,
    )


def read_authors(folder: Path) -> StoredModel:
    """Read the Aggretriever authors' layout, one encoder for both sides or one each.

    Dimensions of the lexical part and its variant are not recorded there: they are denserk's
    defaults, the authors' own.
    """
    sides = [folder / side for side in AUTHORS_SIDES if (folder / side).is_dir()] or [folder]
    files = [folder / TERM_WEIGHT_FILE, folder / POOLER_FILE]
    present = [path for path in files if path.is_file()]
    stored = {path.name: read_tensors(path) for path in present}
    heads = [_authors_heads(folder, stored, letter) for letter in "qp"]
    tied = all(heads[0][name].equal(heads[1][name]) for name in heads[0])
    shared = tied and len(sides) == 1
    encoders: list[StoredEncoder] = []
    for side, own in zip((sides[0], sides[-1]), heads, strict=True):
        if shared and encoders:
            break
        tensors = read_weights(side) if side != folder or not encoders else encoders[0].tensors
        encoders.append(StoredEncoder.from_tensors(side, {**tensors, **own}))
    return StoredModel(
        root=folder,
        layout="aggretriever-authors",
        query=encoders[0],
        passage=encoders[-1],
        representation=_aggretriever(encoders[0].heads),
        text=TextSettings(),
        files=(*present, *(path for side in sides for path in encoder_files(side))),
    )


def _authors_heads(
    folder: Path, stored: Mapping[str, Mapping[str, Tensor]], letter: str
) -> dict[str, Tensor]:
    heads = {}
    for file, name in ((TERM_WEIGHT_FILE, "tok_proj"), (POOLER_FILE, "cls_proj")):
        for leaf in ("weight", "bias") if file in stored else ():
            key = f"linear_{letter}.{leaf}"
            if key not in stored[file]:
                raise ModelError(f"{folder / file} lacks {key}")
            heads[f"{name}.{leaf}"] = stored[file][key]
    return heads


def _aggretriever(heads: Mapping[str, Tensor]) -> RepresentationSettings:
    projection = heads.get("cls_proj.weight")
    return RepresentationSettings(
        Representation.AGG, cls_dim=0 if projection is None else len(projection)
    )


def is_sentence_transformers(folder: Path) -> bool:
    """Return True for a sentence-transformers folder, unless its module is denserk's class."""
    path = folder / MODULES_FILE
    return path.is_file() and b"denserk.integrations" not in path.read_bytes()


def read_sentence_transformers(folder: Path) -> StoredModel:
    """Read a sentence-transformers folder; what denserk does not compute exactly is an error."""
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
    """The length of a folder that names none: the tokenizer's limit, within the positions."""
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


# name, the files that are expected, how the layout is recognised, how it is read; tried in order
LAYOUTS: tuple[tuple[str, str, Callable[[Path], bool], Callable[[Path], StoredModel]], ...] = (
    (
        "denserk",
        f"{DENSERK_FILE}, config.json, model.safetensors",
        lambda folder: (folder / DENSERK_FILE).is_file(),
        read_denserk,
    ),
    ("sentence-transformers", MODULES_FILE, is_sentence_transformers, read_sentence_transformers),
    (
        "aggretriever-authors",
        f"config.json, pytorch_model.bin, {TERM_WEIGHT_FILE}",
        lambda folder: (folder / TERM_WEIGHT_FILE).is_file(),
        read_authors,
    ),
    (
        "transformers",
        "config.json, model.safetensors or pytorch_model.bin",
        lambda folder: (folder / "config.json").is_file(),
        read_plain,
    ),
)


def read_model_folder(folder: Path) -> StoredModel:
    """Read a model's folder, whatever its layout.

    Raises:
        ModelError: it has none of the layouts, or does not hold what its layout says.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder")
    for _, _, recognised, read in LAYOUTS:
        if recognised(folder):
            return read(folder)
    known = "; ".join(f"{name} ({files})" for name, files, _, _ in LAYOUTS)
    raise ModelError(f"{folder} holds no model that denserk knows", f"layouts it reads: {known}")
