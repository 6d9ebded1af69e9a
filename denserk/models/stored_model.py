"""Reading a model folder of any known layout: tensors, settings and the encoders to build."""

import copy
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForTextEncoding, PretrainedConfig
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
from denserk.errors import ModelError, UsageError
from denserk.models.backbone import Architecture, Backbone, architecture_of, longest_input
from denserk.models.checkpoints import (
    CONFIG,
    encoder_files,
    fill,
    fingerprint,
    inside,
    load_model,
    read_config,
    read_json,
    read_model_type,
    read_tensors,
    read_weights,
)
from denserk.models.representation import Encoder, needs_mlm_head, refuse_architecture

logger = logging.getLogger(__name__)

# first parts of the names of a representation's own tensors
HEADS = ("tok_proj.", "cls_proj.", "agg_proj.", "scalar_mix.")
# DPR's two encoders are BERTs under names of their own
DPR, DPR_PREFIXES = "dpr", ("question_encoder.bert_model.", "ctx_encoder.bert_model.")
TEXT_MODELS = {
    DPR,
    *MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    *MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    *MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES,
}

DENSERK_FILE = "denserk.json"
FORMAT_VERSION = 1
# sub-folders of untied query and passage encoders: denserk's, the Aggretriever authors'
QUERY_SIDE, PASSAGE_SIDE = "query", "document"
AUTHORS_SIDES = ("query_model", "passage_model")
# files of the authors' heads, and the heads' names here
TERM_WEIGHT_FILE = "TermWeightTrans.pt"
AUTHORS_HEADS = {TERM_WEIGHT_FILE: "tok_proj", "pooler.pt": "cls_proj"}

# files of sentence-transformers
MODULES_FILE, PROMPTS_FILE = "modules.json", "config_sentence_transformers.json"
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


@dataclass(frozen=True)
class StoredEncoder:
    """The weights of a transformer, not yet a model, and `heads` of a representation.

    `folder` has its config.json and its tokenizer.
    """

    folder: Path
    config: PretrainedConfig
    tensors: Mapping[str, Tensor]
    heads: Mapping[str, Tensor]

    @classmethod
    def read(cls, folder: Path, heads: Mapping[str, Tensor] | None = None) -> "StoredEncoder":
        """Read a transformers folder, `heads` from elsewhere; published layouts are renamed."""
        kind = read_model_type(folder)
        if kind not in TEXT_MODELS:
            raise ModelError(
                f"{folder}: the backbone {kind!r} is not supported",
                "any encoder or decoder of text is that transformers' AutoModel loads",
            )
        tensors = {**read_weights(folder), **(heads or {})}
        prefixes: tuple[str, ...] = ()
        if kind == DPR:
            kind, prefixes = "bert", DPR_PREFIXES
            if read_json(folder / CONFIG).get("projection_dim"):
                raise ModelError(f"{folder} projects its vectors, which denserk does not do")
        elif any(name.startswith(f"encoder.{kind}.") for name in tensors):
            prefixes = ("encoder.",)  # Pyserini's file of an Aggretriever
        for prefix in prefixes:
            tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
        own = {name: tensor for name, tensor in tensors.items() if name.startswith(HEADS)}
        backbone = {name: tensor for name, tensor in tensors.items() if name not in own}
        return cls(folder, read_config(folder, kind), backbone, own)

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
        """Build the encoder; to `train`, what the folder lacks is randomly initialised.

        A new MLM head is initialised as transformers does for the backbone, its decoder tied to
        the word embeddings. Without `train`, missing weights are a ModelError.
        """
        refuse_architecture(settings, self.architecture)
        if not needs_mlm_head(settings):
            backbone = self.backbone()
        else:
            asked = settings.mlm_head is MlmHead.FRESH
            fresh = asked or not self.has_mlm_head
            if fresh and not train:
                lacks = f"{self.folder} was saved without its masked-language-model head"
                raise ModelError(
                    f"{'--set mlm-head=fresh' if asked else lacks}: a new one is random, and for "
                    "training alone",
                    "choose another --representation, or a folder with the head",
                )
            if fresh:
                why = "" if self.has_mlm_head else f", for {self.folder} has none"
                logger.info(f"a new masked-language-model head, tied to the word embeddings{why}")
            backbone = self.backbone(with_head=True, fresh=fresh)
        encoder = Encoder(backbone, settings)
        own = encoder.representation.state_dict()
        kept = {name: self.heads[name] for name in own if name in self.heads}
        fill(self.folder, encoder.representation, {**own, **kept})
        new = ", ".join(sorted(own.keys() - kept.keys()))
        if new and not train:
            raise ModelError(
                f"{self.folder} holds no trained {new}: "
                f"--representation {settings.representation} would be random",
                "train it first, or choose another --representation or another --model",
            )
        if new:
            logger.info(f"randomly initialised: {new}")
        return encoder.train(train)

    def masked_lm(self) -> Backbone:
        """Build the backbone with its MLM head, to pre-train; a missing head is initialised."""
        if not self.architecture.has_cls or self.architecture.transform is None:
            lacks = "masked-language-model head" if self.architecture.has_cls else "[CLS] token"
            raise ModelError(
                f"{self.folder}: {self.architecture.model_type} cannot be pre-trained here, for it "
                f"has no {lacks}",
                "start from a BERT, RoBERTa, DistilBERT or ModernBERT",
            )
        fresh = not self.has_mlm_head
        if fresh:
            logger.info(f"{self.folder} has no masked-language-model head: a new one is trained")
        return self.backbone(with_head=True, fresh=fresh).train()

    def backbone(self, *, with_head: bool = False, fresh: bool = False) -> Backbone:
        """Build the transformer, with its MLM head, perhaps a randomly initialised one, or bare."""
        kind, head = self.config.model_type, self.architecture.head if fresh else ()
        auto: Any = AutoModelForMaskedLM if with_head else AutoModel
        if not with_head and kind in MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES:
            auto = AutoModelForTextEncoding  # of T5 the encoder alone
        elif self.config.is_encoder_decoder:
            raise ModelError(
                f"{self.folder}: the backbone {kind!r} is not supported: its encoder cannot be "
                "loaded without its decoder",
                "take an encoder, a decoder, or a T5",
            )
        tensors = {n: t for n, t in self.tensors.items() if not n.startswith(head)}
        model = load_model(auto, self.folder, self.config, tensors, may_lack=head)
        return Backbone(model, with_head=with_head)


@dataclass(frozen=True)
class StoredModel:
    """A folder that was read: one encoder for queries and passages, or one each.

    `representation` and `text` are the folder's own settings, or defaults where it has none
    (`has_settings`). `files` belong to the fingerprint, besides the encoders' own.
    """

    root: Path
    query: StoredEncoder
    passage: StoredEncoder
    representation: RepresentationSettings
    text: TextSettings = field(default_factory=TextSettings)
    files: tuple[Path, ...] = ()
    has_settings: bool = True

    @property
    def shared(self) -> bool:
        """True if queries and passages share one encoder."""
        return self.query is self.passage

    def fingerprint(self) -> str:
        """Return the SHA-256 of weights, tokenizer and configuration."""
        files = (*encoder_files(self.query.folder), *encoder_files(self.passage.folder))
        return fingerprint(self.root, (*self.files, *files))

    def build(
        self, settings: RepresentationSettings, *, train: bool = False, untie: bool = False
    ) -> tuple[Encoder, Encoder]:
        """Build the encoders of queries and passages, the same object if they share weights.

        To `train`, missing weights are initialised; `untie` gives each side weights of its own.
        """
        passage = self.passage.build(settings, train=train)
        if not self.shared:
            return self.query.build(settings, train=train), passage
        return (copy.deepcopy(passage) if untie else passage), passage


def read_own_file(folder: Path) -> tuple[RepresentationSettings, TextSettings, PairSettings]:
    """Read a folder's denserk.json."""
    values = read_json(folder / DENSERK_FILE)
    version = values.get("format_version")
    if version != FORMAT_VERSION:
        raise ModelError(
            f"{folder / DENSERK_FILE} has the format version {version}; "
            f"this denserk reads {FORMAT_VERSION}",
            "use the version of denserk that wrote it, or a later one",
        )
    try:
        return (
            from_json(RepresentationSettings, values["representation"]),
            from_json(TextSettings, values["text"]),
            from_json(PairSettings, values.get("pairs", {})),
        )
    except (KeyError, TypeError, UsageError) as error:
        raise ModelError(f"{folder / DENSERK_FILE} is broken: {error}") from None


def read_model_folder(folder: Path) -> StoredModel:
    """Read a model's folder, whatever its layout; a ModelError for an unknown or broken one."""
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder")
    if (folder / DENSERK_FILE).is_file():
        return _read_denserk(folder)
    modules = folder / MODULES_FILE
    if modules.is_file() and b"denserk.integrations" not in modules.read_bytes():
        return _read_sentence_transformers(folder)
    if (folder / TERM_WEIGHT_FILE).is_file():
        return _read_authors(folder)
    if (folder / CONFIG).is_file():
        return _read_plain(folder)
    raise ModelError(
        f"{folder} holds no model that denserk knows: it has no {CONFIG}",
        "it reads folders of transformers, sentence-transformers, Aggretriever's code and its own",
    )


def _read_denserk(folder: Path) -> StoredModel:
    representation, text, _ = read_own_file(folder)
    if representation.representation is Representation.CROSS_ENCODER:
        raise ModelError(
            f"{folder} is a cross-encoder: it makes no vectors",
            "rerank with it: denserk rerank --model MODEL --run RUN --topics Q --corpus C",
        )
    separate = (folder / PASSAGE_SIDE).is_dir()
    sides = [folder / QUERY_SIDE, folder / PASSAGE_SIDE] if separate else [folder]
    encoders = [StoredEncoder.read(side) for side in sides]
    files = (folder / DENSERK_FILE,)
    return StoredModel(folder, encoders[0], encoders[-1], representation, text, files)


def _read_plain(folder: Path) -> StoredModel:
    """A transformers folder, or Aggretriever's one-file layout, detected by its tensors."""
    encoder = StoredEncoder.read(folder)
    if "tok_proj.weight" in encoder.heads:
        return StoredModel(folder, encoder, encoder, _aggretriever(encoder.heads))
    chosen = Representation.CLS if encoder.architecture.has_cls else Representation.MEAN
    if encoder.architecture.is_decoder:
        chosen = Representation.LAST
    settings = RepresentationSettings(chosen)
    return StoredModel(folder, encoder, encoder, settings, has_settings=False)


def _read_authors(folder: Path) -> StoredModel:
    """The Aggretriever authors' layout, one encoder for both sides or one each.

    Dimensions of the lexical part and its variant are not recorded there: they are denserk's
    defaults, the authors' own.
    """
    files = tuple(folder / name for name in AUTHORS_HEADS if (folder / name).is_file())
    query_heads: dict[str, Tensor] = {}
    passage_heads: dict[str, Tensor] = {}
    for path in files:
        tensors = read_tensors(path)
        for letter, heads in (("q", query_heads), ("p", passage_heads)):
            for leaf in ("weight", "bias"):
                if f"linear_{letter}.{leaf}" not in tensors:
                    raise ModelError(f"{path} lacks linear_{letter}.{leaf}")
                heads[f"{AUTHORS_HEADS[path.name]}.{leaf}"] = tensors[f"linear_{letter}.{leaf}"]
    sides = [folder / side for side in AUTHORS_SIDES if (folder / side).is_dir()] or [folder]
    query = passage = StoredEncoder.read(sides[0], query_heads)
    if len(sides) > 1 or any(not query_heads[n].equal(t) for n, t in passage_heads.items()):
        passage = StoredEncoder.read(sides[-1], passage_heads)
    settings = _aggretriever(query_heads)
    return StoredModel(folder, query, passage, settings, files=files)


def _aggretriever(heads: Mapping[str, Tensor]) -> RepresentationSettings:
    projection = heads.get("cls_proj.weight")
    return RepresentationSettings(
        Representation.AGG, cls_dim=0 if projection is None else len(projection)
    )


def _read_sentence_transformers(folder: Path) -> StoredModel:
    """A sentence-transformers folder; what denserk does not compute exactly is an error."""

    def check(supported: object, what: str) -> None:
        if not supported:
            raise ModelError(
                f"{folder} {what}, which denserk does not do",
                f"it loads Transformer, Pooling ({', '.join(POOLING_MODES)}) and Normalize",
            )

    modules = read_json(folder / MODULES_FILE, [dict])
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    chains = (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])
    check(kinds in chains, f"chains the modules {', '.join(kinds)}")
    inner, second = (
        inside(folder, str(module.get("path", "")), folder / MODULES_FILE) for module in modules[:2]
    )
    pooling = read_json(second / CONFIG)
    modes = pooling.get("pooling_mode")
    if modes is None:
        modes = [mode for key, mode in OLDER_POOLING_KEYS.items() if pooling.get(key)] or ["mean"]
    modes = [modes] if isinstance(modes, str) else modes
    pools = len(modes) == 1 and modes[0] in POOLING_MODES
    check(pools, f"pools by {' and '.join(map(str, modes))}")
    check(pooling.get("include_prompt") is not False, "leaves the prompt out of its pooling")
    transformer = sorted(inner.glob("sentence_*_config.json"))
    settings = read_json(transformer[0]) if transformer else {}
    config, tokenizer = (_optional(inner / name) for name in (CONFIG, "tokenizer_config.json"))
    task = settings.get("transformer_task", "feature-extraction")
    check(task == "feature-extraction", f"runs its transformer for the task {task}")
    check(not settings.get("query_expansion"), "expands queries")
    lower_cases = settings.get("do_lower_case") and not tokenizer.get("do_lower_case")
    check(not lower_cases, "lower-cases text before its tokenizer")
    limits = (tokenizer.get("model_max_length"), config.get("max_position_embeddings"))
    length = settings.get("max_seq_length") or min((int(n) for n in limits if n), default=512)
    prompts = _optional(folder / PROMPTS_FILE)
    encoder = StoredEncoder.read(inner)
    others = [path for path in (folder / PROMPTS_FILE, *transformer) if path.is_file()]
    return StoredModel(
        folder,
        encoder,
        encoder,
        RepresentationSettings(POOLING_MODES[modes[0]], l2_norm="Normalize" in kinds),
        TextSettings(
            query_max_length=settings.get("query_length") or length,
            passage_max_length=settings.get("document_length") or length,
            query_prefix=_prompt(prompts, "query"),
            passage_prefix=_prompt(prompts, "document", "passage", "corpus"),
        ),
        (folder / MODULES_FILE, second / CONFIG, *others),
    )


def _optional(path: Path) -> dict[str, Any]:
    return dict(read_json(path)) if path.is_file() else {}


def _prompt(config: Mapping[str, Any], *names: str) -> str:
    """The first prompt that is there of those that may be meant, or the default one."""
    prompts = config.get("prompts") or {}
    found = (prompts[n] for n in (*names, config.get("default_prompt_name")) if n in prompts)
    return str(next(found, None) or "")
