"""Options and resolved settings of pre-training.

The defaults are Condenser's; `recipe` returns the differences of other objectives.
"""

from collections.abc import Container
from dataclasses import dataclass, field, fields
from enum import StrEnum

from denserk.config.formats import CorpusSettings
from denserk.config.options import (
    REQUIRED,
    DeviceSettings,
    ResumeSettings,
    Settings,
    given_fields,
    option,
    paper_sections,
    spec_of,
    spelled,
    typed_values,
)
from denserk.config.training import Given, OptimizerSettings, ResolvedRun, overridden
from denserk.errors import UsageError

# Pre-training objectives; their losses are in `denserk.losses.pretraining`.
PretrainingObjective = StrEnum("PretrainingObjective", "MLM CONDENSER COCONDENSER MASTER RETROMAE")

# Sizes of a randomly initialised BERT (Google's miniatures).
Architecture = StrEnum("Architecture", "TINY MINI SMALL MEDIUM BASE")
# Layers and hidden size; heads have 64 dimensions, the intermediate size is 4 x hidden.
SIZES = {
    Architecture.TINY: (2, 128),
    Architecture.MINI: (4, 256),
    Architecture.SMALL: (4, 512),
    Architecture.MEDIUM: (8, 512),
    Architecture.BASE: (12, 768),
}

# MASTER as its paper (one encoder pass, TF-IDF keywords, neighbouring passages) or released code
# (three passes, inverse corpus frequency, halves of a passage).
MasterPreset = StrEnum("MasterPreset", "PAPER RELEASED")

# Tasks of MASTER's decoders: masked keyword prediction, complementary mask prediction (the tokens
# visible to the encoder), neighbouring passage recovery, and the recovery of generated queries
# (docT5query) and of a generated continuation (GPT-2).
MasterTask = StrEnum("MasterTask", "MKP CMP NPR DOR GOR")


class KeywordWeight(StrEnum):
    """Word weights for sampling keywords."""

    TFIDF = "tfidf"  # TF-IDF: count in the passage times ln(passages / passages with the word)
    INVERSE_FREQUENCY = "inverse-frequency"  # 1 / count in the corpus


# Target of NPR's decoder: the neighbouring passage (a half where documents are unknown), or the
# second half of the passage, of which a separate encoder pass reads the first.
NprKind = StrEnum("NprKind", "NEIGHBOUR HALF")

# Segmentation of documents: whole sentences up to the maximum length, or windows of it.
Spans = StrEnum("Spans", "SENTENCES FIXED")

# Masking units: whole words or subword tokens.
Masking = StrEnum("Masking", "WORD TOKEN")

# MASTER's decoders: one per task, or one shared by all (the paper's ablation).
Decoders = StrEnum("Decoders", "SEPARATE SHARED")

# Initialisation of MASTER's decoders: N(0, 0.02), or PyTorch's as in the released code.
DecoderInit = StrEnum("DecoderInit", "NORMAL LIBRARY")


class LossAverage(StrEnum):
    """Averaging of the token losses."""

    UPDATE = "update"  # Over all labelled tokens of an update, across chunks and processes
    MICRO_BATCH = "micro-batch"  # Per chunk, then over chunks, as in the released code


# Documents in plain text: lines, or paragraphs separated by empty lines.
RawText = StrEnum("RawText", "LINES PARAGRAPHS")

MASTER = "master"
HEADED = "condenser cocondenser"


@dataclass(frozen=True, kw_only=True)
class PretrainSettings(ResumeSettings, DeviceSettings):
    """Input and output."""

    objective: PretrainingObjective = option(REQUIRED)
    """Pre-training objective."""
    model: str | None = option(
        None,
        "--model-name-or-path",
        metavar="NAME|DIR|HUB_ID",
        shown_default="none",
        either="architecture",
    )
    """Model to start from, including its pre-training head or decoders."""
    architecture: Architecture | None = option(None, shown_default="the model's")
    """Train a randomly initialised BERT of this size instead of --model (2 x 128 to 12 x 768)."""
    vocabulary_size: int = option(
        30522, rare=True, at_least=100, needs="architecture", excludes="tokenizer"
    )
    """--architecture: size of the vocabulary trained on the corpus."""
    tokenizer: str | None = option(
        None,
        "--tokenizer-name",
        metavar="NAME|DIR|HUB_ID",
        shown_default="trained on the corpus",
        needs="architecture",
    )
    """--architecture: existing tokenizer to use."""
    corpus: tuple[str, ...] = option(REQUIRED, "--train-dir", metavar="FILE|DIR|NAME", repeat=True)
    """Training text (docs/pretraining-data.md); repeatable."""
    expansions: str | None = option(None, metavar="FILE", shown_default="none", of=MASTER)
    """master: generated queries and continuations, from `denserk generate`."""
    preset: MasterPreset = option(MasterPreset.PAPER, of=MASTER)
    """master: settings of the paper or of the released code."""
    output: str = option(REQUIRED, "--output-dir", metavar="DIR")
    """Model folder; prepared text, checkpoints and logs are written inside."""
    tokenize_to: str | None = option(None, metavar="DIR", shown_default="not written", rare=True)
    """Also write the tokenised text as JSON lines."""


@dataclass(frozen=True)
class TextUnitSettings(Settings):
    """Text: how it becomes training sequences."""

    max_length: int = option(
        512, "--max-seq-length", shown_default="512; cocondenser and master: 128", at_least=3
    )
    """Maximum tokens of a sequence, special tokens included; longer ones are cropped at random."""
    fields: tuple[str, ...] = option(("title", "text"), nonempty=True)
    """Passage fields to read, in order; each starts a new sentence."""
    raw_text: RawText | None = option(
        None, shown_default="paragraphs if there are empty lines", rare=True
    )
    """Document boundaries in plain text files (.txt)."""
    spans: Spans | None = option(
        None, shown_default="sentences; master: whole passages", of=f"cocondenser {MASTER}"
    )
    """cocondenser and master: segmentation of documents."""
    short_blocks: float = option(0.1, rare=True, at_least=0, at_most=1, of="mlm condenser retromae")
    """mlm, condenser and retromae: share of blocks with a random shorter length."""


@dataclass(frozen=True)
class MaskingSettings(Settings):
    """Masking."""

    mlm_probability: float = option(
        0.15,
        "--encoder-mlm-probability",
        shown_default="0.15; master and retromae: 0.3",
        above=0,
        below=1,
    )
    """Share of tokens masked in the encoder's input."""
    decoder_mlm_probability: float = option(
        0.5, rare=True, above=0, below=1, of=f"{MASTER} retromae"
    )
    """master: share masked for MKP, NPR, DOR and GOR; retromae: share masked in the decoder."""
    cmp_encoder_rate: float | None = option(
        None,
        shown_default="--mlm-probability; released: 0.5",
        rare=True,
        above=0,
        below=1,
        of=MASTER,
    )
    """master: share masked in the encoder's input for CMP; its decoder predicts the rest."""
    cmp_pass: bool = option(False, rare=True, of=MASTER)
    """master: separate encoder pass for CMP, as in --preset released."""
    masking: Masking = option(Masking.WORD, rare=True)
    """Masking unit: whole words or subword tokens."""
    all_mask: bool = option(False, rare=True)
    """Replace all selected tokens by [MASK], instead of 80% (10% random, 10% unchanged)."""
    keyword_weight: KeywordWeight = option(
        KeywordWeight.TFIDF,
        shown_default="tfidf; released: inverse-frequency",
        rare=True,
        of=MASTER,
    )
    """master: word weights for sampling keywords."""
    frequency_dict: str | None = option(
        None, metavar="FILE", shown_default="counted in the corpus", rare=True, of=MASTER
    )
    """master: JSON file of word -> count, instead of corpus counts (for inverse-frequency)."""
    weigh_fragments: bool = option(True, shown_default="yes; released: no", rare=True, of=MASTER)
    """master: weight word fragments at crop edges like the whole word, instead of 1."""
    npr: NprKind = option(
        NprKind.NEIGHBOUR, shown_default="neighbour; released: half", rare=True, of=MASTER
    )
    """master: target of NPR's decoder, the neighbouring passage or the second half."""
    seed: int = 42
    """Random seed of order, crops, masks, initial weights and dropout."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cmp_encoder_rate not in (None, self.mlm_probability) and not self.cmp_pass:
            raise UsageError(
                f"--set cmp-encoder-rate={self.cmp_encoder_rate}: one encoder pass has one rate",
                "add --set cmp-pass=yes, or give --mlm-probability alone",
            )
        if self.frequency_dict and self.keyword_weight is KeywordWeight.TFIDF:
            raise UsageError(
                "--set frequency-dict has word counts, but TF-IDF needs document frequencies",
                "add --set keyword-weight=inverse-frequency",
            )

    @property
    def cmp_rate(self) -> float:
        """Return the encoder's masking rate in the CMP pass."""
        return self.mlm_probability if self.cmp_encoder_rate is None else self.cmp_encoder_rate


@dataclass(frozen=True)
class PretrainingObjectiveSettings(Settings):
    """Loss."""

    n_head_layers: int = option(
        2, "--decoder-layers", rare=True, at_least=1, of=f"{HEADED} {MASTER}"
    )
    """Layers of Condenser's head or of each MASTER decoder."""
    skip_from: int | None = option(
        None, shown_default="half the layers", rare=True, at_least=0, of=HEADED
    )
    """condenser: layer whose token states feed the head; 0 is the embeddings."""
    late_mlm: bool = option(True, rare=True, of=HEADED)
    """condenser: add the MLM loss of the last layer."""
    tasks: tuple[MasterTask, ...] = option(tuple(MasterTask), rare=True, nonempty=True, of=MASTER)
    """master: decoder tasks."""
    decoders: Decoders = option(Decoders.SEPARATE, rare=True, of=MASTER)
    """master: separate or shared decoders."""
    decoder_init: DecoderInit = option(
        DecoderInit.NORMAL, shown_default="normal; released: library", rare=True, of=MASTER
    )
    """master: initialisation of new decoders: N(0, 0.02) or PyTorch's default."""
    fresh_heads: bool = option(False, rare=True, of=f"{HEADED} {MASTER} retromae")
    """Randomly initialise the head or decoders, ignoring those of --model."""
    loss_average: LossAverage = option(LossAverage.UPDATE, rare=True)
    """Average token losses over an update, or per chunk as in the released code."""
    lm_scale: float = option(1.0, rare=True, at_least=0, of="cocondenser")
    """cocondenser: weight of the token losses relative to the span loss (released code: 2)."""


@dataclass(frozen=True)
class PretrainOptimizerSettings(OptimizerSettings):
    """Optimisation."""

    batch_size: int = option(256, shown_default="256; cocondenser and master: 2048", at_least=1)
    """Sequences per batch, over all processes (cocondenser: documents, two spans each)."""
    cache_chunk_size: int | None = option(
        None, "--micro-batch-size", shown_default="all at once", at_least=1
    )
    """Sequences per forward pass and process; smaller needs less memory, with the same result."""
    chunk_tokens: int | None = option(None, shown_default="all at once", rare=True, at_least=1)
    """Tokens per forward pass and process, padding included."""
    epochs: float = option(8.0, "--num-train-epochs", above=0)
    """Number of passes over the prepared text."""
    max_steps: int | None = option(None, shown_default="by --epochs; master: 120000", at_least=1)
    lr: float = option(1e-4, "--learning-rate", shown_default="0.0001; master: 0.0003", above=0)
    weight_decay: float = option(0.01, rare=True)
    keep_steps: tuple[int, ...] = option((), rare=True)
    """Steps at which the model is saved permanently under steps/."""


CLASSES: tuple[type, ...] = (
    TextUnitSettings,
    MaskingSettings,
    PretrainingObjectiveSettings,
    PretrainOptimizerSettings,
)
# Settings that only some objectives have.
OBJECTIVES_OF = {
    f.name: spec_of(f).of.split()
    for cls in (PretrainSettings, *CLASSES)
    for f in fields(cls)
    if spec_of(f).of
}


def recipe(objective: PretrainingObjective, preset: MasterPreset = MasterPreset.PAPER) -> Given:
    """Return the differences of an objective's paper (or released code) from the defaults."""
    rows = paper_sections("pretraining")
    values = dict(rows[objective][1])
    if objective is PretrainingObjective.MASTER and preset is MasterPreset.RELEASED:
        values |= rows["master-released"][1]
    owners = {f.name: cls for cls in CLASSES for f in fields(cls)}
    return {n: typed_values(owners[n], {n: value})[n] for n, value in values.items()}


@dataclass(frozen=True)
class PretrainRun(ResolvedRun):
    """Resolved settings of a pre-training run."""

    pretrain: PretrainSettings
    corpus: CorpusSettings = field(default_factory=CorpusSettings)
    units: TextUnitSettings = field(default_factory=TextUnitSettings)
    masking: MaskingSettings = field(default_factory=MaskingSettings)
    objective: PretrainingObjectiveSettings = field(default_factory=PretrainingObjectiveSettings)
    optimizer: PretrainOptimizerSettings = field(default_factory=PretrainOptimizerSettings)

    def unused(self) -> Container[str]:
        """Return the settings of other objectives."""
        return {n for n, of in OBJECTIVES_OF.items() if self.pretrain.objective not in of}


def resolve_run(pretrain: PretrainSettings, corpus: CorpusSettings, given: Given) -> PretrainRun:
    """Resolve a run's settings: the objective's recipe, with given ones by field name in place."""
    for name in (*given_fields(pretrain), *given):
        if pretrain.objective not in (of := OBJECTIVES_OF.get(name, [pretrain.objective])):
            flag = spelled(name, PretrainSettings, *CLASSES)
            raise UsageError(f"{flag} is for {', '.join(of)}; --objective is {pretrain.objective}")
    values = overridden(recipe(pretrain.objective, pretrain.preset), given)
    sections = [
        cls(**{f.name: values[f.name] for f in fields(cls) if f.name in values}) for cls in CLASSES
    ]
    return PretrainRun(pretrain, corpus, *sections)
