"""Options and resolved settings of pre-training.

The defaults are Condenser's; `recipe` returns the differences of other objectives.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from typing import Any

from denserk.config.formats import CorpusSettings
from denserk.config.options import (
    REQUIRED,
    Given,
    Settings,
    build,
    fields_of,
    option,
    select,
    setting,
    spec_of,
    typed_values,
    unused_options,
)
from denserk.config.presets import (
    Preset,
    PresetListSettings,
    PresetRow,
    ShownPreset,
    overridden,
    presets_in,
    sizes,
)
from denserk.config.shared import DeviceSettings, ResumeSettings
from denserk.config.training import OptimizerSettings, ResolvedRun
from denserk.config.values import unknown_name
from denserk.errors import UsageError

# The losses are in `denserk.losses.pretraining`.
PretrainingObjective = StrEnum(
    "PretrainingObjective", "MLM CONDENSER COCONDENSER MASTER RETROMAE DUPMAE"
)
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


class PretrainingPreset(StrEnum):
    """Settings of an objective that options override."""

    PAPER = "paper"  # MASTER: one encoder pass, TF-IDF keywords, neighbouring passages
    # MASTER's code: three passes, inverse corpus frequency, halves of a passage
    RELEASED = "released"
    SMALL = "small"  # Batches and lengths for one's own data on one machine


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
Masking = StrEnum("Masking", "WORD TOKEN")
# MASTER's decoders: one per task, or one shared by all (the paper's ablation).
Decoders = StrEnum("Decoders", "SEPARATE SHARED")
DecoderInit = StrEnum("DecoderInit", "NORMAL LIBRARY")


class LossAverage(StrEnum):
    """Averaging of the token losses."""

    UPDATE = "update"  # Over all labelled tokens of an update, across chunks and processes
    MICRO_BATCH = "micro-batch"  # Per chunk, then over chunks, as in the released code


# Documents in plain text: lines, or paragraphs separated by empty lines.
RawText = StrEnum("RawText", "LINES PARAGRAPHS")

# Settings of every objective that --show-preset names although they are defaults.
SHOWN = (
    "max_length",
    "masking",
    "mlm_probability",
    "batch_size",
    "epochs",
    "max_steps",
    "lr",
    "weight_decay",
    "dtype",
)
MASTER = "master"
HEADED = "condenser cocondenser"
RETROMAE = "retromae dupmae"


class PretrainSettings(ResumeSettings, DeviceSettings, kw_only=True):
    """Input and output."""

    objective: PretrainingObjective = option(REQUIRED)
    """Pre-training objective."""
    model: str | None = option(
        None, "--model-name-or-path", metavar="NAME|DIR|HUB_ID", either="architecture"
    )
    """Model to start from, including its pre-training head or decoders."""
    architecture: Architecture | None = None
    """Train a randomly initialised BERT of this size instead of --model (2 x 128 to 12 x 768)."""
    vocabulary_size: int = setting(30522, at_least=100, needs="architecture", excludes="tokenizer")
    """--architecture: size of the vocabulary trained on the corpus."""
    tokenizer: str | None = option(
        None, "--tokenizer-name", metavar="NAME|DIR|HUB_ID", needs="architecture"
    )
    """--architecture: existing tokenizer to use. [default: trained on the corpus]"""
    corpus: tuple[str, ...] = option(REQUIRED, "--train-dir", metavar="FILE|DIR|NAME", repeat=True)
    """Training text (docs/commands/pretrain.md); repeatable."""
    expansions: str | None = option(None, metavar="FILE", used_by=MASTER)
    """master: generated queries and continuations, from `denserk generate`."""
    preset: PretrainingPreset = PretrainingPreset.PAPER
    """Settings of the paper, of MASTER's released code, or small batches for your own data."""
    output: str = option(REQUIRED, "--output-dir", metavar="DIR")
    """Model folder; data, checkpoints and logs are beside it, in DIR.training."""
    tokenize_to: str | None = setting(None, metavar="DIR")
    """Also write the tokenised text as JSON lines."""


class RecipeListSettings(PresetListSettings):
    """Preset."""

    show_preset: str | None = option(None, metavar="NAME", completes="recipes")
    """Print the settings of a preset with their sources and exit."""


class TextUnitSettings(Settings):
    """Text: how it becomes training sequences."""

    max_length: int = option(512, "--max-seq-length", at_least=3)
    """Maximum tokens of a sequence, special tokens included; longer ones are cropped at random.
    [default: 512; cocondenser and master: 128]"""
    fields: tuple[str, ...] = option(("title", "text"), nonempty=True)
    """Passage fields to read, in order; each starts a new sentence."""
    raw_text: RawText | None = setting(None)
    """Document boundaries in plain text files (.txt). [default: detected by empty lines]"""
    spans: Spans | None = option(None, used_by=f"cocondenser {MASTER}")
    """cocondenser and master: segmentation of documents. [default: sentences; master: none]"""
    short_blocks: float = setting(0.1, at_least=0, at_most=1, used_by=f"mlm condenser {RETROMAE}")
    """mlm, condenser, retromae, dupmae: share of blocks with a random shorter length."""


class MaskingSettings(Settings):
    """Masking."""

    mlm_probability: float = option(0.15, "--encoder-mlm-probability", above=0, below=1)
    """Share of tokens masked in the encoder's input.
    [default: 0.15; master, retromae and dupmae: 0.3]"""
    decoder_mlm_probability: float = setting(0.5, above=0, below=1, used_by=f"{MASTER} {RETROMAE}")
    """master: share masked for MKP, NPR, DOR and GOR; retromae, dupmae: share masked in the
    decoder."""
    cmp_encoder_rate: float | None = setting(None, above=0, below=1, used_by=MASTER)
    """master: share masked in the encoder's input for CMP; its decoder predicts the rest.
    [default: --mlm-probability; released: 0.5]"""
    cmp_pass: bool = setting(False, used_by=MASTER)
    """master: separate encoder pass for CMP, as in --preset released."""
    masking: Masking = setting(Masking.WORD)
    """Masking unit: whole words or subword tokens."""
    all_mask: bool = setting(False)
    """Replace all selected tokens by [MASK], instead of 80% (10% random, 10% unchanged)."""
    keyword_weight: KeywordWeight = setting(KeywordWeight.TFIDF, used_by=MASTER)
    """master: word weights for sampling keywords. [default: tfidf; released: inverse-frequency]"""
    frequency_dict: str | None = setting(None, metavar="FILE", used_by=MASTER)
    """master: JSON file of word -> count, instead of corpus counts (for inverse-frequency)."""
    weigh_fragments: bool = setting(True, used_by=MASTER)
    """master: weight word fragments at crop edges like whole words. [default: yes; released: no]"""
    npr: NprKind = setting(NprKind.NEIGHBOUR, used_by=MASTER)
    """master: target of NPR's decoder. [default: neighbour; released: half]"""
    seed: int = 42
    """Random seed of order, crops, masks, initial weights and dropout."""

    def _check(self) -> None:
        has_rate_of_cmp = self.cmp_encoder_rate not in (None, self.mlm_probability)
        if has_rate_of_cmp and not self.cmp_pass:
            raise UsageError(
                f"--set cmp-encoder-rate={self.cmp_encoder_rate}: one encoder pass has one rate",
                "add --set cmp-pass=yes, or give --mlm-probability alone",
            )
        if self.frequency_dict and self.keyword_weight is KeywordWeight.TFIDF:
            raise UsageError(
                "--set frequency-dict has word counts, but TF-IDF needs document frequencies",
                "add --set keyword-weight=inverse-frequency",
            )


class PretrainingObjectiveSettings(Settings):
    """Loss."""

    head_only: bool = setting(False, used_by="mlm")
    """mlm: train the MLM head alone; the encoder keeps its weights, and runs without dropout."""
    n_head_layers: int = setting(2, at_least=1, used_by=f"{HEADED} {MASTER}")
    """Layers of Condenser's head or of each MASTER decoder."""
    skip_from: int | None = setting(None, at_least=0, used_by=HEADED)
    """condenser: layer whose token states feed the head; 0 is the embeddings. [default: half]"""
    late_mlm: bool = setting(True, used_by=HEADED)
    """condenser: add the MLM loss of the last layer."""
    tasks: tuple[MasterTask, ...] = setting(tuple(MasterTask), nonempty=True, used_by=MASTER)
    """master: decoder tasks."""
    decoders: Decoders = setting(Decoders.SEPARATE, used_by=MASTER)
    """master: separate or shared decoders."""
    decoder_init: DecoderInit = setting(DecoderInit.NORMAL, used_by=MASTER)
    """master: initialisation, N(0, 0.02) or PyTorch's. [default: normal; released: library]"""
    fresh_heads: bool = setting(False, used_by=f"{HEADED} {MASTER} {RETROMAE}")
    """Randomly initialise the head or decoders, ignoring those of --model."""
    loss_average: LossAverage = setting(LossAverage.UPDATE)
    """Average token losses over an update, or per chunk as in the released code."""
    lm_scale: float = setting(1.0, at_least=0, used_by="cocondenser")
    """cocondenser: weight of the token losses relative to the span loss (released code: 2)."""
    decoder_weight: float = setting(1.0, at_least=0, used_by="dupmae")
    """dupmae: weight of the decoder's loss, from [CLS]."""
    bow_weight: float = setting(1.0, at_least=0, used_by="dupmae")
    """dupmae: weight of the bag-of-words loss, from the other tokens."""


class PretrainOptimizerSettings(OptimizerSettings):
    """Optimisation."""

    batch_size: int = option(256, at_least=1)
    """Sequences per batch, over all processes (cocondenser: documents, two spans each).
    [default: 256; cocondenser and master: 2048]"""
    cache_chunk_size: int | None = option(None, "--micro-batch-size", at_least=1)
    """Sequences per forward pass and process; smaller needs less memory, with the same result."""
    chunk_tokens: int | None = setting(None, at_least=1)
    """Tokens per forward pass and process, padding included. [default: all at once]"""
    epochs: float = option(8.0, "--num-train-epochs", above=0)
    """Number of passes over the prepared text."""
    max_steps: int | None = option(None, at_least=1)
    """Total number of steps; overrides --epochs. [default: by --epochs; master: 120000]"""
    lr: float = option(1e-4, "--learning-rate", above=0)
    """Peak learning rate of AdamW. [default: 0.0001; master: 0.0003]"""
    weight_decay: float = setting(0.01)
    keep_steps: tuple[int, ...] = setting(())
    """Steps at which the model is saved permanently under steps/."""


CLASSES: tuple[type, ...] = (
    TextUnitSettings,
    MaskingSettings,
    PretrainingObjectiveSettings,
    PretrainOptimizerSettings,
)


def recipe(
    objective: PretrainingObjective, preset: PretrainingPreset = PretrainingPreset.PAPER
) -> Given:
    """Return the differences of an objective's preset from the defaults."""
    of_paper = _find_recipe(objective)
    if preset is PretrainingPreset.PAPER:
        return of_paper.settings
    name = f"{objective}-{preset}"
    if name not in recipes():
        raise UsageError(
            f"--preset {preset}: {objective} has no such preset",
            "denserk pretrain --list-presets has all",
        )
    return overridden(of_paper.settings, _find_recipe(name).settings)


@cache
def recipes() -> Mapping[str, Preset]:
    """Return the presets of pre-training: objectives, and objectives with a preset behind "-"."""
    return presets_in("pretraining", CLASSES)


def _find_recipe(name: str) -> Preset:
    if name not in recipes():
        hint = "denserk pretrain --list-presets has all"
        raise unknown_name("preset of pretrain", name, recipes(), hint)
    return recipes()[name]


def shown_recipe(name: str) -> ShownPreset:
    """Return an objective or a preset of it, with the defaults of `denserk pretrain` filled in."""
    shown = _find_recipe(name)
    objective, _, preset_name = name.partition("-")
    preset = PretrainingPreset(preset_name or PretrainingPreset.PAPER)
    settings = _settings_of_objective(PretrainingObjective(objective), preset)
    sources = dict.fromkeys(settings, "default")
    sources.update(_find_recipe(objective).sources)
    sources.update(shown.sources)
    usage = f"denserk pretrain --objective {objective}"
    if preset is not PretrainingPreset.PAPER:
        usage += f" --preset {preset}"
    return ShownPreset(usage, replace(shown, settings=settings), sources)


def _settings_of_objective(
    objective: PretrainingObjective, preset: PretrainingPreset
) -> dict[str, Any]:
    """Return the settings of a preset, with the defaults of those that --show-preset names."""
    recipe_values = recipe(objective, preset)
    settings = {}
    for name, declared_field in fields_of(*CLASSES).items():
        users = spec_of(declared_field).used_by.split()
        if users and objective not in users:
            continue
        if name in recipe_values:
            value = recipe_values[name]
        elif users or name in SHOWN:
            value = declared_field.default
        else:
            continue
        if value is not None:
            settings[name] = value
    if "max_steps" in settings:
        del settings["epochs"]
    return settings


def list_recipes() -> list[PresetRow]:
    """Return all objectives and their presets as rows of text."""
    rows = []
    for name, preset in recipes().items():
        settings = shown_recipe(name).preset.settings
        row = PresetRow(
            preset=name,
            what_for=preset.summary,
            trained=f"{settings['max_length']} tokens",
            size=sizes(settings),
            starts_from=preset.start,
            data="",
        )
        rows.append(row)
    return rows


@dataclass(frozen=True)
class PretrainRun(ResolvedRun):
    """Resolved settings of a pre-training run."""

    pretrain: PretrainSettings
    corpus: CorpusSettings = field(default_factory=CorpusSettings)
    units: TextUnitSettings = field(default_factory=TextUnitSettings)
    masking: MaskingSettings = field(default_factory=MaskingSettings)
    objective: PretrainingObjectiveSettings = field(default_factory=PretrainingObjectiveSettings)
    optimizer: PretrainOptimizerSettings = field(default_factory=PretrainOptimizerSettings)


def run_of_options(options: Given) -> PretrainRun:
    """Resolve a run from the options of `denserk pretrain` by name, as they are given."""
    typed = typed_values("denserk pretrain", options, PretrainSettings, CorpusSettings, *CLASSES)
    pretraining = build(PretrainSettings, typed)
    corpus = build(CorpusSettings, typed)
    return resolve_run(pretraining, corpus, select(typed, *CLASSES))


def resolve_run(
    pretrain: PretrainSettings, corpus: CorpusSettings, given_options: Given
) -> PretrainRun:
    """Resolve a run's settings: the objective's recipe, with given ones by field name in place."""
    values = overridden(recipe(pretrain.objective, pretrain.preset), given_options)
    sections: list[Any] = [build(cls, values) for cls in CLASSES]
    unused_flags = unused_options(pretrain.objective, pretrain, *sections)
    if unused_flags:
        raise UsageError(f"{', '.join(unused_flags)}: not used by --objective {pretrain.objective}")
    if pretrain.objective is PretrainingObjective.COCONDENSER:
        _reject_accumulation(build(PretrainOptimizerSettings, values))
    return PretrainRun(pretrain, corpus, *sections)


def _reject_accumulation(optimizer: PretrainOptimizerSettings) -> None:
    """Raise a UsageError if coCondenser, whose spans compare with all of a batch, has several."""
    steps = optimizer.gradient_accumulation_steps
    if steps > 1:
        message = (
            f"--gradient-accumulation-steps {steps}: the spans of a cocondenser batch are "
            "each other's negatives, and accumulated batches would have fewer of them"
        )
        hint = (
            f"give the whole batch, --batch-size {optimizer.batch_size * steps}, and limit the "
            f"memory with --cache-chunk-size {optimizer.batch_size}: the result is that of one pass"
        )
        raise UsageError(message, hint)
