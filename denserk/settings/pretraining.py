"""What a pre-training run is made of.

The defaults here are Condenser's; `pretrain.py` says what other objectives set otherwise.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, NamedTuple

from denserk.errors import UsageError
from denserk.settings.formats import CorpusSettings
from denserk.settings.options import REQUIRED, Settings, as_json, option, spelled, typed_values
from denserk.settings.recipes import flatten, paper_sections
from denserk.settings.training import OptimizerSettings, Precision


class PretrainingObjective(StrEnum):
    """What a backbone is pre-trained for."""

    MLM = "mlm"
    """Masked-language modelling alone, the control."""
    CONDENSER = "condenser"
    """Condenser: a head on the middle layer's tokens and the last layer's [CLS]."""
    COCONDENSER = "cocondenser"
    """coCondenser: Condenser, and two spans of a document know each other in the batch."""
    MASTER = "master"
    """MASTER: five decoders behind one [CLS]."""
    RETROMAE = "retromae"
    """RetroMAE: one decoder layer recovers every token from [CLS] and half of the others."""


class Architecture(StrEnum):
    """Sizes of a BERT that starts from nothing: layers x hidden size (Google's miniatures)."""

    TINY = "tiny"
    """2 x 128."""
    MINI = "mini"
    """4 x 256."""
    SMALL = "small"
    """4 x 512."""
    MEDIUM = "medium"
    """8 x 512."""
    BASE = "base"
    """12 x 768."""


class Size(NamedTuple):
    """Layers and hidden size; a head has 64 dimensions, the inner layer is four times as wide."""

    layers: int
    hidden: int


SIZES: Mapping[Architecture, Size] = {
    Architecture.TINY: Size(2, 128),
    Architecture.MINI: Size(4, 256),
    Architecture.SMALL: Size(4, 512),
    Architecture.MEDIUM: Size(8, 512),
    Architecture.BASE: Size(12, 768),
}


class MasterPreset(StrEnum):
    """Which MASTER."""

    PAPER = "paper"
    """As the text says: one encoder pass, TF-IDF keywords, neighbouring passages."""
    RELEASED = "released"
    """As the released code runs: three passes, inverse corpus frequency, halves of a passage."""


class MasterTask(StrEnum):
    """What MASTER's decoders recover."""

    MKP = "mkp"
    """Masked keywords of the passage."""
    CMP = "cmp"
    """Contextual masked text: what the encoder saw."""
    NPR = "npr"
    """The neighbouring passage, or the second half."""
    DOR = "dor"
    """Generated queries (docT5query)."""
    GOR = "gor"
    """A generated continuation (GPT-2)."""


class KeywordWeight(StrEnum):
    """What a word weighs when keywords are drawn."""

    TFIDF = "tfidf"
    """Its count in the passage times ln(passages / passages with it)."""
    INVERSE_FREQUENCY = "inverse-frequency"
    """1 / its count in the corpus."""


class NprKind(StrEnum):
    """What NPR's decoder recovers."""

    NEIGHBOUR = "neighbour"
    """The neighbouring passage of the document; `half` where no documents are known."""
    HALF = "half"
    """The second half of the passage; an encoder pass of its own reads the first."""


class Spans(StrEnum):
    """How documents are cut."""

    SENTENCES = "sentences"
    """Whole sentences, packed up to the length."""
    FIXED = "fixed"
    """Windows of the length."""


class Masking(StrEnum):
    """What is masked as one."""

    WORD = "word"
    """Whole words."""
    TOKEN = "token"
    """Single pieces."""


class Decoders(StrEnum):
    """Whether MASTER's tasks share their decoder."""

    SEPARATE = "separate"
    """Each task has its own."""
    SHARED = "shared"
    """One decoder for all (the paper's ablation)."""


class DecoderInit(StrEnum):
    """How MASTER's decoders start."""

    NORMAL = "normal"
    """N(0, 0.02), as the backbone does."""
    LIBRARY = "library"
    """PyTorch's own, as the released code."""


class LossAverage(StrEnum):
    """Over what the token losses are averaged."""

    UPDATE = "update"
    """All labelled tokens of an update, over chunks and processes."""
    MICRO_BATCH = "micro-batch"
    """Those of each chunk, all chunks weighing the same, as the released code."""


class RawText(StrEnum):
    """Where a document ends in plain text."""

    LINES = "lines"
    """With its line."""
    PARAGRAPHS = "paragraphs"
    """At an empty line; a line's end is a sentence's."""


# Entries of BERT's vocabulary
VOCABULARY = 30522


@dataclass(frozen=True, kw_only=True)
class PretrainSettings(Settings):
    """One pre-training run: from which weights, on which text, to where."""

    objective: PretrainingObjective = option(REQUIRED)
    """What to train for: plain masked-language modelling, Condenser, coCondenser, MASTER or
    RetroMAE."""
    model: str | None = option(
        None, "--model-name-or-path", metavar="NAME|DIR|HUB_ID", shown_default="none"
    )
    """Weights to start from; a head or decoders beside them go on too, unless --fresh-heads."""
    architecture: Architecture | None = option(None, shown_default="the model's")
    """In place of --model, a random BERT: 2 layers x 128, 4 x 256, 4 x 512, 8 x 512, 12 x 768."""
    vocabulary_size: int = option(VOCABULARY, rare=True, at_least=100)
    """--architecture: entries of the vocabulary that is trained on the corpus."""
    tokenizer: str | None = option(
        None, "--tokenizer-name", metavar="NAME|DIR|HUB_ID", shown_default="trained on the corpus"
    )
    """--architecture: a tokenizer to take over."""
    corpus: tuple[str, ...] = option(REQUIRED, "--train-dir", metavar="FILE|DIR|NAME", repeat=True)
    """Text to train on (docs/pretraining-data.md); repeatable, one after another."""
    expansions: str | None = option(None, metavar="FILE", shown_default="none")
    """master: queries and continuations of the passages, as `denserk generate` writes them."""
    preset: MasterPreset = MasterPreset.PAPER
    """master: the paper's settings, or those of the released code."""
    output: str = option(REQUIRED, "--output-dir", metavar="DIR")
    """The model folder; prepared text, checkpoints and curves go beneath it."""
    tokenize_to: str | None = option(None, metavar="DIR", shown_default="not written", rare=True)
    """Also write the tokenised text as JSON lines, for later runs and other tools."""
    device: str = option("auto", metavar="auto|cpu|cuda")
    """Where to train; with torchrun, each process takes the GPU of its rank."""
    resume: bool = False
    """Continue from the last whole checkpoint, to the same weights."""
    overwrite: bool = False
    """Replace what is in the output folder."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.resume and self.overwrite:
            raise UsageError("--resume and --overwrite exclude each other")
        if (self.model is None) == (self.architecture is None):
            raise UsageError(
                "give either --model, weights to start from, or --architecture, to start anew"
            )
        if self.tokenizer is not None and self.architecture is None:
            raise UsageError(f"--tokenizer {self.tokenizer}: a model brings its own; leave it out")
        trains_one = self.architecture is not None and self.tokenizer is None
        if self.vocabulary_size != VOCABULARY and not trains_one:
            raise UsageError(
                f"--set vocabulary-size={self.vocabulary_size}: a tokenizer brings its own",
                "leave it out",
            )
        if self.preset is not MasterPreset.PAPER and (
            self.objective is not PretrainingObjective.MASTER
        ):
            raise UsageError(f"--preset {self.preset} is master's; --objective is {self.objective}")
        if self.expansions is not None and self.objective is not PretrainingObjective.MASTER:
            raise UsageError(f"--expansions are master's; --objective is {self.objective}")


@dataclass(frozen=True)
class TextUnitSettings(Settings):
    """How text becomes what the model reads at once."""

    max_length: int = option(
        512, "--max-seq-length", shown_default="512; cocondenser and master: 128", at_least=3
    )
    """Tokens of a sequence, special tokens included; a longer one is cropped at random."""
    fields: tuple[str, ...] = ("title", "text")
    """Fields of a passage that are read, in order; each begins a new sentence."""
    raw_text: RawText | None = option(
        None, shown_default="paragraphs where there are empty lines", rare=True
    )
    """Where a document ends in a file of plain text (.txt)."""
    spans: Spans | None = option(None, shown_default="sentences; master: passages are left whole")
    """cocondenser and master: how documents are cut."""
    short_blocks: float = option(0.1, rare=True, at_least=0, at_most=1)
    """mlm, condenser and retromae: share of the blocks whose length is drawn between 1 and the
    whole."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.fields:
            raise UsageError("--fields names no field", "for example --fields title,text")


@dataclass(frozen=True)
class MaskingSettings(Settings):
    """Which tokens are hidden."""

    mlm_probability: float = option(
        0.15, "--encoder-mlm-probability", shown_default="0.15; master and retromae: 0.3"
    )
    """Share of a text that the encoder must say."""
    decoder_mlm_probability: float = option(0.5, rare=True)
    """master: share that MKP, NPR, DOR and GOR must say; retromae: share hidden from a row."""
    cmp_encoder_rate: float | None = option(
        None, shown_default="--mlm-probability; released: 0.5", rare=True
    )
    """master: share hidden from the encoder for CMP, whose decoder must say all the rest."""
    cmp_pass: bool = option(False, rare=True)
    """master: CMP has an encoder pass of its own, as under --preset released."""
    masking: Masking = option(Masking.WORD, rare=True)
    """What is masked as one."""
    all_mask: bool = option(False, rare=True)
    """Every chosen token becomes [MASK]; otherwise 80 % do, 10 % turn into any other."""
    keyword_weight: KeywordWeight = option(
        KeywordWeight.TFIDF, shown_default="tfidf; released: inverse-frequency", rare=True
    )
    """master: what a word weighs when keywords are drawn."""
    frequency_dict: str | None = option(
        None, metavar="FILE", shown_default="counted in the corpus", rare=True
    )
    """master: JSON of word -> count, in place of counting (for inverse-frequency)."""
    weigh_fragments: bool = option(True, shown_default="yes; released: no", rare=True)
    """master: a word's rest at the edge of a crop weighs what the word weighs; otherwise 1."""
    npr: NprKind = option(NprKind.NEIGHBOUR, shown_default="neighbour; released: half", rare=True)
    """master: what NPR's decoder recovers, the passage's neighbour in its document or its second
    half."""
    seed: int = 42
    """Seed of every random choice: order, crops, masks, initial weights, dropout."""

    def __post_init__(self) -> None:
        super().__post_init__()
        shares = {
            "mlm_probability": self.mlm_probability,
            "decoder_mlm_probability": self.decoder_mlm_probability,
            "cmp_encoder_rate": self.cmp_encoder_rate,
        }
        for name, value in shares.items():
            if value is not None and not 0 < value < 1:
                raise UsageError(f"{name.replace('_', '-')} {value}: between 0 and 1")
        if self.cmp_encoder_rate not in (None, self.mlm_probability) and not self.cmp_pass:
            raise UsageError(
                f"--set cmp-encoder-rate={self.cmp_encoder_rate} beside --mlm-probability "
                f"{self.mlm_probability}: one encoder pass has one rate",
                "add --set cmp-pass=yes, or give one rate",
            )
        if self.frequency_dict and self.keyword_weight is KeywordWeight.TFIDF:
            raise UsageError(
                "--set frequency-dict=FILE counts words, and TF-IDF needs the passages with them",
                "add --set keyword-weight=inverse-frequency",
            )

    @property
    def cmp_rate(self) -> float:
        """The encoder's rate in the pass that CMP complements."""
        return self.mlm_probability if self.cmp_encoder_rate is None else self.cmp_encoder_rate


ALL_TASKS = tuple(MasterTask)


@dataclass(frozen=True)
class PretrainingObjectiveSettings(Settings):
    """The loss."""

    n_head_layers: int = option(2, "--decoder-layers", rare=True, at_least=1)
    """Layers of Condenser's head, or of each of MASTER's decoders."""
    skip_from: int | None = option(None, shown_default="half the layers", rare=True, at_least=0)
    """condenser: the layer whose tokens the head reads; 0 is the embeddings."""
    late_mlm: bool = option(True, rare=True)
    """condenser: the last layer's own loss is part of the sum."""
    tasks: tuple[str, ...] = option(tuple(map(str, ALL_TASKS)), rare=True)
    """master: which decoders there are."""
    decoders: Decoders = option(Decoders.SEPARATE, rare=True)
    """master: whether the tasks share one decoder."""
    decoder_init: DecoderInit = option(
        DecoderInit.NORMAL, shown_default="normal; released: library", rare=True
    )
    """master: how new decoders start, from N(0, 0.02) or as PyTorch draws them."""
    fresh_heads: bool = option(False, rare=True)
    """Start with a randomly initialised head or decoders, whatever lies beside --model."""
    loss_average: LossAverage = option(LossAverage.UPDATE, rare=True)
    """The token losses' mean is over all labels of an update, or over each chunk's, all chunks
    weighing the same (the released code)."""
    lm_scale: float = option(1.0, rare=True, at_least=0)
    """cocondenser: weight of the token losses beside the spans'; 2 is the released code's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        unknown = sorted(set(self.tasks) - set(ALL_TASKS))
        if unknown or not self.tasks:
            raise UsageError(
                f"--set tasks={','.join(self.tasks)}: {', '.join(unknown) or 'no task'}",
                f"some of {','.join(ALL_TASKS)}",
            )

    @property
    def master_tasks(self) -> frozenset[MasterTask]:
        """The tasks, as what they are."""
        return frozenset(map(MasterTask, self.tasks))


@dataclass(frozen=True)
class PretrainOptimizerSettings(OptimizerSettings):
    """How long, how fast, how often."""

    batch_size: int = option(256, shown_default="256; cocondenser and master: 2048", at_least=1)
    """Sequences an update, over all processes (cocondenser: documents, of two spans each)."""
    cache_chunk_size: int | None = option(
        None, "--micro-batch-size", shown_default="all at once", at_least=1
    )
    """Sequences of a process that pass through the model at once: fewer take less memory, and the
    result is the same."""
    chunk_tokens: int | None = option(None, shown_default="all at once", rare=True, at_least=1)
    """Tokens of a process, padding included, that pass through the model at once."""
    epochs: float = option(8.0, "--num-train-epochs", above=0)
    """Passes over the prepared text."""
    max_steps: int | None = option(None, shown_default="by --epochs; master: 120000", at_least=1)
    """Steps in all; wins over --epochs."""
    lr: float = option(1e-4, "--learning-rate", shown_default="0.0001; master: 0.0003", above=0)
    """Peak learning rate of AdamW, then linear to 0."""
    weight_decay: float = option(0.01, rare=True)
    """Decay of weights, biases and layer norms excepted."""
    keep_steps: tuple[int, ...] = option((), rare=True)
    """Steps after which the model is kept for good, in steps/, for curves of quality over steps."""


Given = Mapping[str, Any]

CLASSES: tuple[type, ...] = (
    TextUnitSettings,
    MaskingSettings,
    PretrainingObjectiveSettings,
    PretrainOptimizerSettings,
)


def recipe(objective: PretrainingObjective, preset: MasterPreset = MasterPreset.PAPER) -> Given:
    """Return where an objective's paper, or MASTER's released code, differs from the defaults.

    >>> recipe(PretrainingObjective.COCONDENSER)
    {'max_length': 128, 'batch_size': 2048}
    """
    rows = paper_sections("pretraining")
    values = dict(rows[objective][1])
    if objective is PretrainingObjective.MASTER and preset is MasterPreset.RELEASED:
        values |= rows["master-released"][1]
    owners = {f.name: cls for cls in CLASSES for f in fields(cls)}
    return {n: typed_values(owners[n], {n: value})[n] for n, value in values.items()}


_HEADED = (PretrainingObjective.CONDENSER, PretrainingObjective.COCONDENSER)
_MASTER = (PretrainingObjective.MASTER,)
# Settings that mean something to these objectives alone
OBJECTIVES_OF: Mapping[str, tuple[PretrainingObjective, ...]] = {
    "n_head_layers": (*_HEADED, *_MASTER),
    "fresh_heads": (*_HEADED, *_MASTER, PretrainingObjective.RETROMAE),
    "skip_from": _HEADED,
    "late_mlm": _HEADED,
    "lm_scale": (PretrainingObjective.COCONDENSER,),
    "short_blocks": (
        PretrainingObjective.MLM,
        PretrainingObjective.CONDENSER,
        PretrainingObjective.RETROMAE,
    ),
    "spans": (PretrainingObjective.COCONDENSER, *_MASTER),
    "decoder_mlm_probability": (*_MASTER, PretrainingObjective.RETROMAE),
    **dict.fromkeys(
        (
            "tasks",
            "decoders",
            "decoder_init",
            "cmp_encoder_rate",
            "cmp_pass",
            "keyword_weight",
            "frequency_dict",
            "weigh_fragments",
            "npr",
        ),
        _MASTER,
    ),
}


@dataclass(frozen=True)
class PretrainRun:
    """All that one pre-training run is told."""

    pretrain: PretrainSettings
    corpus: CorpusSettings = field(default_factory=CorpusSettings)
    units: TextUnitSettings = field(default_factory=TextUnitSettings)
    masking: MaskingSettings = field(default_factory=MaskingSettings)
    objective: PretrainingObjectiveSettings = field(default_factory=PretrainingObjectiveSettings)
    optimizer: PretrainOptimizerSettings = field(default_factory=PretrainOptimizerSettings)

    def __post_init__(self) -> None:
        if self.pretrain.objective is not PretrainingObjective.COCONDENSER:
            return
        if self.optimizer.precision is Precision.FLOAT16:
            raise UsageError(
                "--dtype float16: cocondenser's cached gradients would be scaled twice",
                "use --dtype bfloat16 or float32",
            )

    def config(self) -> dict[str, Any]:
        """Return the resolved settings as --config reads them."""
        other = [n for n, whose in OBJECTIVES_OF.items() if self.pretrain.objective not in whose]
        return flatten((as_json(getattr(self, f.name)) for f in fields(self)), other)

    def as_json(self) -> dict[str, Any]:
        """Everything that was chosen, as plain JSON."""
        names = ("pretrain", "corpus", "units", "masking", "objective", "optimizer")
        return {name: as_json(getattr(self, name)) for name in names}


def resolve_run(
    pretrain: PretrainSettings, corpus: CorpusSettings, given: Mapping[type, Given]
) -> PretrainRun:
    """A run from its objective's recipe, and from what was given by hand, which wins.

    Args:
        pretrain: the run's own settings.
        corpus: how a corpus is read.
        given: settings class -> what was given by hand, by field name.

    Raises:
        UsageError: settings contradict each other, or mean nothing to the objective.

    >>> run = resolve_run(
    ...     PretrainSettings(
    ...         objective=PretrainingObjective.MASTER, model="m", corpus=("c",), output="o"
    ...     ),
    ...     CorpusSettings(),
    ...     {PretrainOptimizerSettings: {"lr": 1e-4}},
    ... )
    >>> run.optimizer.lr, run.optimizer.batch_size, run.masking.mlm_probability
    (0.0001, 2048, 0.3)
    """
    _reject_others(pretrain.objective, given)
    values = recipe(pretrain.objective, pretrain.preset)

    def made(cls: type[Any]) -> Any:
        own = {name: values[name] for name in values.keys() & cls.__dataclass_fields__.keys()}
        by_hand = dict(given.get(cls, {}))
        if "epochs" in by_hand and "max_steps" not in by_hand:
            own.pop("max_steps", None)  # who gives epochs means them
        return cls(**(own | by_hand))

    return PretrainRun(pretrain, corpus, *map(made, CLASSES))


def _reject_others(objective: PretrainingObjective, given: Mapping[type, Given]) -> None:
    names = [name for values in given.values() for name in values]
    wrong = [name for name in names if objective not in OBJECTIVES_OF.get(name, (objective,))]
    if wrong:
        flags = {name: spelled(name, *given) for name in wrong}
        whose = {
            name: " and ".join(OBJECTIVES_OF[name]).replace(
                " and ", ", ", len(OBJECTIVES_OF[name]) - 2
            )
            for name in wrong
        }
        raise UsageError(
            f"not under --objective {objective}: "
            + "; ".join(f"{flags[name]} is for {whose[name]}" for name in wrong),
            f"leave out {', '.join(flags.values())}",
        )
