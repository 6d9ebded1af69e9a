"""Options, presets and resolved settings of fine-tuning, and what pre-training shares with it.

The options of negative mining, which writes training data, are at the end.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from denserk.config import formats
from denserk.config.encoding import PrecisionSettings, RepresentationSettings, TextSettings
from denserk.config.options import (
    REQUIRED,
    Given,
    Settings,
    as_json,
    build,
    option,
    select,
    setting,
    typed_values,
)
from denserk.config.shared import DeviceSettings, OverwriteSettings, ResumeSettings, ShardSettings
from denserk.config.values import plain, unknown_name
from denserk.config.yaml_files import paper_sections, read_options
from denserk.errors import UsageError

# Settings of one run, which its configuration does not record.
OF_ONE_RUN = ("output", "resume", "overwrite", "preset", "fp16", "bf16")

# Kinds of training that have an option (`of`), beside the objectives on sentences.
BI_ENCODER, CROSS_ENCODER = "bi-encoder", "cross-encoder"
RANKING = f"{BI_ENCODER} {CROSS_ENCODER}"

# Positive of a query: in turn, (query + seed + epoch) modulo their number (Tevatron, Condenser);
# always the first (DPR, MLR); or sampled at each visit (MASTER).
PositiveChoice = StrEnum("PositiveChoice", "ROTATE FIRST RANDOM")
# Hard negatives of a query: shuffled once, then a window that moves each epoch, without repeats
# until all are used; shuffled at each visit; or the first of the list.
NegativeChoice = StrEnum("NegativeChoice", "WINDOW SHUFFLE TOP")
# Queries with too few negatives: mask the missing ones (a passage of several groups is encoded and
# counted once), or sample with replacement, as in the papers' code (duplicates are counted).
FillNegatives = StrEnum("FillNegatives", "MASK REPEAT")


class Objective(StrEnum):
    """Training objectives."""

    RETRIEVAL = "retrieval"  # Contrastive learning: rank a query's positives above other passages
    COSINE_MSE = "cosine-mse"  # Regress the cosine of two sentences on their label
    TRIPLET = "triplet"  # Triplet margin loss between an anchor, a positive and a negative sentence
    ALIGN = "align"  # Learn the query vectors of --teacher, to search its index faster


class ContrastiveKind(StrEnum):
    """Negatives of the contrastive loss."""

    IN_BATCH = "in-batch"  # In-batch negatives: all passages of the batch
    FULL = "full"  # All passages of the batch and its other queries and positives, as in SimLM


class Distillation(StrEnum):
    """Knowledge distillation losses over a query's passages."""

    KL = "kl"  # KL divergence between the teacher's and the student's distribution
    SOFT_CROSS_ENTROPY = "soft-cross-entropy"  # As in MASTER's released code; KL's gradient
    MARGIN_MSE = "margin-mse"  # Squared error of the margins between positive and negative


class ObjectiveSettings(Settings):
    """Loss."""

    objective: Objective = Objective.RETRIEVAL
    """Training objective."""
    temperature: float = option(1.0, above=0, of=BI_ENCODER)
    """Temperature by which scores are divided."""
    contrastive: ContrastiveKind = setting(ContrastiveKind.IN_BATCH, of=BI_ENCODER)
    """Negatives: passages of the batch, or also its queries (full, as in SimLM)."""
    cls_weight: float = setting(0.5, at_least=0, of=BI_ENCODER)
    """agg: weight of the loss on the [CLS] part."""
    agg_weight: float = setting(0.5, at_least=0, of=BI_ENCODER)
    """agg: weight of the loss on the lexical part."""
    layer_weight: float = setting(1.0, at_least=0, of=BI_ENCODER)
    """Self-contrastive pooling: weight of the loss over the positive's own vectors."""
    layer_temperature: float = setting(1.0, above=0, of=BI_ENCODER)
    """Self-contrastive pooling: temperature of the loss over the positive's own vectors."""
    distillation: Distillation | None = option(None, of=BI_ENCODER)
    """Knowledge distillation loss on the teacher scores in the training data."""
    contrastive_weight: float | None = setting(None, at_least=0, of=BI_ENCODER)
    """Weight of the contrastive loss. [default: 1; 0.2 beside --distillation]"""
    dimensions: tuple[int, ...] | None = option(None, at_least=1, nonempty=True, of=BI_ENCODER)
    """Sum the loss over the vectors' first N dimensions, for each N of this list (Matryoshka), so
    that encode --truncate-dim N can cut them. [default: all dimensions]"""
    label_scale: float = setting(1.0, above=0, of="cosine-mse")
    """cosine-mse: label of equal sentences, e.g. 5 for labels from 0 to 5."""
    mask_false_negatives: bool = option(False, of=BI_ENCODER)
    """Leave known positives of a query out of its in-batch negatives."""
    guide: str | None = option(None, metavar="NAME|DIR|HUB_ID", of=BI_ENCODER)
    """Retriever that also leaves out what it scores above a query's own positive (GISTEmbed)."""
    guide_margin: float = setting(0.0, needs="guide", of=BI_ENCODER)
    """Leave out what the guide scores above the positive's score minus this margin."""
    margin: float = setting(5.0, at_least=0, of="triplet")
    """triplet: margin in Euclidean distance."""

    @property
    def weight_of_contrastive(self) -> float:
        """Return the contrastive loss weight, with the default resolved."""
        default = 1.0 if self.distillation is None else 0.2
        return default if self.contrastive_weight is None else self.contrastive_weight


class RerankingSettings(Settings):
    """Cross-encoder."""

    r_drop: float = setting(0.0, at_least=0, of=CROSS_ENCODER)
    """cross-encoder: weight of R-Drop, the consistency loss of two dropout passes; 0 is off."""
    pair_max_length: int | None = option(None, "--rerank-max-len", at_least=5, of=CROSS_ENCODER)
    """cross-encoder: maximum tokens of query and passage together. [default: sum of both limits]"""


class SamplingSettings(Settings):
    """Sampling."""

    group_size: int = option(8, "--train-group-size", "--train-n-passages", at_least=1, of=RANKING)
    """Passages per query: one positive and hard negatives."""
    positive: PositiveChoice = setting(PositiveChoice.ROTATE, of=RANKING)
    """Positive of a query: in turn, always the first, or sampled."""
    negative: NegativeChoice = setting(NegativeChoice.WINDOW, of=RANKING)
    """Hard negatives of a query: moving window, shuffled each time, or the first."""
    negative_pool: int | None = setting(None, at_least=1, of=RANKING)
    """Use only the first N negatives of each query. [default: all]"""
    fill_negatives: FillNegatives = setting(FillNegatives.MASK, of=RANKING)
    """Queries with fewer negatives than --group-size needs: mask the missing or repeat some."""
    train_queries: int | None = option(None, at_least=1)
    """Train on N queries (pairs, triplets), sampled with --seed. [default: all]"""
    train_fraction: float | None = setting(None, above=0, at_most=1, excludes="train_queries")
    """Train on this share of the queries, sampled with --seed. [default: 1]"""
    seed: int = 42
    """Random seed of sampling, order, initial weights and dropout."""


class CacheSettings(Settings):
    """Gradient caching."""

    grad_cache: bool = False
    """Gradient cache: compute large batches in chunks, with the same result and less memory."""
    q_chunk: int = setting(4, at_least=1, of=BI_ENCODER)
    """Queries per chunk."""
    p_chunk: int = setting(32, at_least=1)
    """Passages per chunk."""
    chunk_tokens: int | None = setting(None, at_least=1, needs="grad_cache")
    """Tokens per chunk, padding included, instead of a number of texts."""


class LoraSettings(Settings):
    """Low-rank adapters."""

    lora: int | None = option(None, at_least=1, metavar="RANK")
    """Train low-rank adapters (LoRA) and new heads alone; the saved model has them merged."""
    lora_alpha: int | None = setting(None, at_least=1, needs="lora")
    """Scale of the adapters, times the rank. [default: twice the rank]"""
    lora_dropout: float = setting(0.0, at_least=0, below=1, needs="lora")
    """Dropout of the adapters' inputs."""
    lora_targets: tuple[str, ...] = setting((), needs="lora")
    """Linear layers that get adapters, e.g. query,value. [default: peft's choice, or all]"""


class OptimizerSettings(PrecisionSettings):
    """Optimisation."""

    batch_size: int = option(8, "--per-device-train-batch-size", at_least=1)
    """Queries per batch, over all processes."""
    epochs: float = option(3.0, "--num-train-epochs", above=0)
    """Number of passes over the training queries."""
    max_steps: int | None = option(None, at_least=1)
    """Total number of steps; overrides --epochs. [default: by --epochs]"""
    lr: float = option(5e-6, "--learning-rate", above=0)
    """Peak learning rate of AdamW, with linear decay to 0."""
    warmup_ratio: float = option(0.1, at_least=0, at_most=1)
    """Share of steps with linear warm-up."""
    warmup_steps: int | None = setting(None)
    """Number of warm-up steps, fewer than those of the training; overrides --warmup-ratio.
    [default: by --warmup-ratio]"""
    weight_decay: float = setting(0.0)
    """Weight decay, not applied to biases and layer norms."""
    max_grad_norm: float = setting(1.0, at_least=0)
    """Maximum gradient norm for clipping; 0 is off."""
    adam_epsilon: float = setting(1e-8)
    """AdamW's epsilon (its betas are 0.9 and 0.999)."""
    gradient_accumulation_steps: int = option(1, at_least=1)
    """Batches per step; the loss is one mean over all of them. In-batch negatives come from one
    batch: more of them in the same memory need --grad-cache (pretrain: --cache-chunk-size)."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass: less memory, more time, the same result."""
    report_to: tuple[str, ...] = option((), metavar="tensorboard|wandb|...")
    """Experiment trackers that get the log, by transformers' names; separated by commas."""
    save_steps: int = option(1000, at_least=1)
    """Steps between checkpoints."""
    keep_checkpoints: int = setting(1, at_least=0)
    """Number of recent checkpoints to keep; 0 keeps all."""
    logging_steps: int | None = setting(None, at_least=1)
    """Steps between log lines. [default: 20, fewer in short runs]"""
    num_workers: int | None = option(None, "--dataloader-num-workers", at_least=0)
    """Worker processes that prepare batches; 0 uses the training process. [default: 2; CPU: 0]"""


class DevMetric(StrEnum):
    """Validation measures."""

    LOSS = "dev-loss"  # Cross-entropy over the dev passages; lower is better
    AVERAGE_RANK = "avg-rank"  # Mean rank of the positive in the dev passages; lower is better
    RR_10 = "RR@10"  # Reciprocal rank in the dev collection; higher is better
    SPEARMAN = "spearman"  # cosine-mse: rank correlation of cosines and labels; higher is better
    ACCURACY = "accuracy"  # triplet: share of positives closer than negatives; higher is better
    COSINE = "cosine"  # align: mean cosine to the teacher's vectors; higher is better


class ValidationSettings(Settings):
    """Validation."""

    dev_data: str | None = option(None, metavar="FILE")
    """Held-out training data for dev-loss, avg-rank, spearman, accuracy or cosine."""
    dev_corpus: str | None = option(None, metavar="FILE|DIR|NAME", of=BI_ENCODER)
    """Passages to search for RR@10, instead of the passages of --dev-data."""
    dev_topics: str | None = option(None, metavar="FILE|DIR|NAME", of=BI_ENCODER)
    """Queries to search in --dev-corpus."""
    dev_qrels: str | None = option(None, metavar="FILE|NAME", of=BI_ENCODER)
    """Relevance judgments (qrels) of --dev-topics."""
    eval_steps: int | None = None
    """Steps between validations. [default: once an epoch]"""
    best_by: DevMetric | None = option(None, "--metric-for-best-model", needs="dev_data dev_corpus")
    """Keep the weights with the best value of this measure. [default: keep the last]"""
    early_stopping: int | None = setting(None, needs="best_by")
    """Stop after N validations without improvement of --best-by. [default: never]"""

    def _check(self) -> None:
        collection = (self.dev_corpus, self.dev_topics, self.dev_qrels)
        if any(collection) and not all(collection):
            raise UsageError("--dev-corpus, --dev-topics and --dev-qrels go together")
        if self.best_by not in (None, DevMetric.RR_10) and not self.dev_data:
            raise UsageError(f"--best-by {self.best_by} needs --dev-data")


class FinetuneSettings(ResumeSettings, DeviceSettings, kw_only=True):
    """Input and output."""

    model: str = option(REQUIRED, "--model-name-or-path", metavar="NAME|DIR|HUB_ID")
    """Model to start from: a short name, a folder or a Hugging Face name."""
    train_data: tuple[str, ...] = option(
        REQUIRED, "--train", "--dataset-path", metavar="FILE", repeat=True
    )
    """Training data in any format (docs/formats.md), of align queries; repeatable."""
    teacher: str | None = option(None, metavar="NAME|DIR|HUB_ID", of="align")
    """align: model whose query vectors are learned."""
    keep_layers: tuple[int, ...] = setting((), at_least=0, of="align")
    """align: layers of --model to start from, the first is 0. [default: all]"""
    train_format: formats.TrainingFormat | None = option(None, of=RANKING)
    """Format of the training data. [default: detected]"""
    corpus: str | None = option(None, metavar="FILE|DIR|NAME", of=f"{RANKING} align")
    """Corpus with the texts of passages given by id; align: its sentences are queries, too."""
    queries: str | None = option(None, metavar="FILE|DIR|NAME", of=RANKING)
    """Topics with the texts of queries given by id."""
    qrels: str | None = option(None, metavar="FILE|NAME", of=RANKING)
    """Qrels with the positives of queries whose training data has negatives only."""
    output: str = option(REQUIRED, "--output-dir", metavar="DIR")
    """Model folder; checkpoints and logs are written inside."""
    untie: bool = option(False, "--untie-encoder", of=BI_ENCODER)
    """Train separate (untied) query and passage encoders."""
    negatives_x_device: bool = setting(True, of=BI_ENCODER)
    """Share in-batch negatives across processes."""
    skip_missing: bool = option(False, of=RANKING)
    """Skip and count passages missing from the corpus instead of stopping."""


@dataclass(frozen=True)
class PresetSettings:
    """Preset."""

    preset: str | None = option(None, metavar="NAME|FILE")
    """Preset of a paper (see --list-presets) or YAML file; options override it."""
    list_presets: bool = False
    """Print all presets and exit."""


# Classes of the settings that a preset can have; field names are unique over them.
CLASSES: tuple[type, ...] = (
    FinetuneSettings,
    RepresentationSettings,
    TextSettings,
    SamplingSettings,
    ObjectiveSettings,
    OptimizerSettings,
    LoraSettings,
    CacheSettings,
    RerankingSettings,
    ValidationSettings,
)
# Given option -> setting of a preset or recipe that it disables, because that one would win.
RIVALS = {"epochs": "max_steps", "warmup_ratio": "warmup_steps", "train_fraction": "train_queries"}


def overridden(values: Given, given: Given) -> dict[str, Any]:
    """Return the values of a preset or recipe with the given ones in place of theirs."""
    beaten = {RIVALS.get(name) for name in given}
    return {name: value for name, value in values.items() if name not in beaten} | dict(given)


@dataclass(frozen=True)
class Description:
    """Description of a preset: initial model, training data and notes."""

    summary: str = ""
    start: str = ""
    data: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Preset(Description):
    """Settings of a paper, or of a user's own YAML file, which has the sources as comments.

    `settings` are typed values by field name.
    """

    name: str
    file: Path
    settings: Given

    def lines(self, given: Given) -> Iterator[str]:
        """Describe the preset and the given options that override it."""
        yield f"preset {self.name}" + (f": {self.summary}" if self.summary else "")
        yield f"  values from {self.file}: {shown(self.settings)}"
        if changed := {name: self.settings[name] for name in given if name in self.settings}:
            yield f"  overridden: {shown(changed)}"
        texts = (self.start and f"starts from {self.start}", self.data and f"data: {self.data}")
        yield from (f"  {text}" for text in (*texts, *self.notes) if text)


def as_preset(name: str, file: Path, values: Given) -> Preset:
    """Validate the values of a preset's YAML mapping."""
    typed = typed_values(str(file), values, Description, *CLASSES)
    described = select(typed, Description)
    settings = {n: value for n, value in typed.items() if n not in described}
    return Preset(name=name, file=file, settings=settings, **described)


@cache
def presets() -> Mapping[str, Preset]:
    """Return every preset of the papers by name, paper by paper."""
    rows = paper_sections("presets")
    return {name: as_preset(name, file, values) for name, (file, values) in rows.items()}


def find_preset(name: str) -> Preset:
    """Return the preset of a name, or the one in a YAML file."""
    if Path(name).suffix in (".yaml", ".yml") or Path(name).is_file():
        return as_preset(name, Path(name), read_options(name))
    if name not in presets():
        raise unknown_name(
            "preset or file", name, presets(), "denserk finetune --list-presets has all"
        )
    return presets()[name]


# Columns of `list_presets`.
COLUMNS = ("preset", "summary", "start", "data", "settings")


def list_presets() -> list[tuple[str, ...]]:
    """Return all presets as rows of text."""
    return [(p.name, p.summary, p.start, p.data, shown(p.settings)) for p in presets().values()]


def shown(values: Given) -> str:
    """Format values by field name as YAML.

    >>> shown({"batch_size": 8, "fields": ("title", "text"), "l2_norm": True})
    'batch-size: 8, fields: [title, text], l2-norm: true'
    """
    import yaml

    named = {name.replace("_", "-"): plain(value) for name, value in values.items()}
    text: str = yaml.safe_dump(named, default_flow_style=True, sort_keys=False, width=math.inf)
    return text.strip()[1:-1]


class ResolvedRun:
    """Base of the resolved settings of a run: a dataclass of settings objects."""

    @property
    def warmup_is_of_preset(self) -> bool:
        """Whether the number of warm-up steps is that of a preset, and not chosen by the user."""
        return False

    def as_json(self) -> dict[str, Any]:
        """Return the settings as plain JSON, by section."""
        parts = {name: part for name, part in vars(self).items() if name != "notes"}
        return {n: as_json(p) if isinstance(p, Settings) else p for n, p in parts.items()}

    def config(self) -> dict[str, Any]:
        """Return the settings as --config reads them, without unset ones and those of one run."""
        sections = (each for each in self.as_json().values() if isinstance(each, dict))
        return {
            name.replace("_", "-"): plain(value)
            for section in sections
            for name, value in section.items()
            if value is not None and name not in OF_ONE_RUN
        }


@dataclass(frozen=True)
class FinetuneRun(ResolvedRun):
    """Resolved settings of a run, overrides of the model's own settings, and notes for the log."""

    finetune: FinetuneSettings
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    adapters: LoraSettings = field(default_factory=LoraSettings)
    cache: CacheSettings = field(default_factory=CacheSettings)
    reranking: RerankingSettings = field(default_factory=RerankingSettings)
    validation: ValidationSettings = field(default_factory=ValidationSettings)
    corpus: formats.CorpusSettings = field(default_factory=formats.CorpusSettings)
    representation: Given = field(default_factory=dict)
    text: Given = field(default_factory=dict)
    preset: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def warmup_is_of_preset(self) -> bool:
        """See `ResolvedRun`."""
        if self.preset is None:
            return False
        return find_preset(self.preset).settings.get("warmup_steps") == self.optimizer.warmup_steps


def run_of_options(options: Given) -> FinetuneRun:
    """Resolve a run from the options of `denserk finetune` by name, as they are given."""
    typed = typed_values(
        "denserk finetune", options, PresetSettings, formats.CorpusSettings, *CLASSES
    )
    preset_name = build(PresetSettings, typed).preset
    return resolve_run(preset_name, build(formats.CorpusSettings, typed), select(typed, *CLASSES))


def resolve_run(
    preset_name: str | None, corpus: formats.CorpusSettings, given: Given
) -> FinetuneRun:
    """Resolve a run's settings: the preset's, overridden by given ones (by field name)."""
    preset = None if preset_name is None else find_preset(preset_name)
    values = overridden(preset.settings if preset else {}, given)
    notes = list(preset.lines(given)) if preset else []
    if "best_by" in values.keys() - given.keys() and not {"dev_data", "dev_corpus"} & values.keys():
        metric = values.pop("best_by")
        notes.append(f"without --dev-data the last weights are kept, not the best by {metric}")
    start = f"the preset starts from {preset.start}" if preset else "denserk finetune --help"
    hints = get_type_hints(FinetuneRun)
    sections: Given = {n: build(cls, values, start) for n, cls in hints.items() if cls in CLASSES}
    return FinetuneRun(
        **sections,
        corpus=corpus,
        representation=select(values, RepresentationSettings),
        text=select(values, TextSettings),
        preset=preset_name,
        notes=tuple(notes),
    )


SamplingStrategy = StrEnum("SamplingStrategy", "RANDOM TOP")
# Hits that contain an answer: used like others, not used as negatives, or used as positives.
AnswerBearing = StrEnum("AnswerBearing", "KEEP DROP PROMOTE")


class MiningPaths(OverwriteSettings, kw_only=True):
    """Input and output."""

    train: str | None = option(None, "--train-data", metavar="FILE|-")
    """Training data in any format; its queries and positives are used."""
    train_format: formats.TrainingFormat | None = None
    """Format of --train. [default: detected]"""
    topics: str | None = option(None, "--queries", metavar="FILE|DIR|NAME|-")
    """Queries, instead of --train or to supply the query texts it lacks."""
    topics_format: formats.TopicsFormat | None = None
    """Format of --topics. [default: detected]"""
    qrels: str | None = option(None, metavar="FILE|DIR|NAME|-")
    """Relevance judgments: positives of --topics; with --train, further positives to exclude."""
    qrels_format: formats.QrelsFormat | None = setting(None)
    """Format of --qrels. [default: detected]"""
    run: tuple[str, ...] = option(REQUIRED, "--result-path", repeat=True, metavar="FILE|-")
    """Run to mine from; several runs are merged."""
    run_format: formats.RunFormat | None = setting(None)
    """Format of the runs. [default: detected]"""
    corpus: str | None = option(None, metavar="FILE|DIR|NAME|-")
    """Passages of the runs."""
    answers: str | None = option(None, metavar="FILE|DIR|NAME|-")
    """Answers by query id. [default: those of --train]"""
    output: str = option(REQUIRED, metavar="FILE|-")
    """Training data with the mined negatives."""
    output_format: formats.TrainingFormat = formats.TrainingFormat.TEVATRON
    """Format of the output."""
    preset: str | None = option(None, metavar="NAME")
    """Settings of a paper, nv-retriever; options override them."""

    def _check(self) -> None:
        if self.train is None and (self.topics is None or self.qrels is None):
            raise UsageError("give --train, or both of --topics and --qrels")
        if self.corpus is None and self.output_format not in formats.WITHOUT_TEXTS:
            why = f"--output-format {self.output_format} needs the passages' texts"
            raise UsageError(why, f"add --corpus, or write ids: {', '.join(formats.WITHOUT_TEXTS)}")


class MiningSettings(ShardSettings):
    """Mining."""

    depth: int = option(200, "--range-max", at_least=1)
    """Hits per query to consider in each run."""
    num_negatives: int = option(30, "--negative-number", "--n-sample", at_least=1)
    """Maximum negatives per query."""
    sampling_strategy: SamplingStrategy = option(SamplingStrategy.RANDOM, "--sampling")
    """Sample negatives at random or take the highest-ranked hits."""
    seed: int = 42
    """Random seed; the sample of a query does not depend on other queries."""
    min_relevance: int = setting(1)
    """Minimum grade of a positive in --qrels."""
    range_min: int = option(0, at_least=0)
    """Skip the top N hits of each query, which often contain unlabelled positives."""
    max_score: float | None = setting(None)
    """Maximum score of a negative."""
    min_score: float | None = setting(None)
    """Minimum score of a negative."""
    absolute_margin: float | None = setting(None)
    """Minimum score difference between the best positive and a negative."""
    relative_margin: float | None = None
    """Minimum relative score difference to the best positive; 0.05: up to 95% of its score."""
    answer_bearing: AnswerBearing | None = setting(None)
    """Handling of hits whose text contains an answer (DPR). [default: drop with --answers]"""
    regex: bool = False
    """Answers are regular expressions (CuratedTREC)."""
    keep_gold: bool = setting(True)
    """With answer-bearing=promote, keep the original positives before the promoted ones."""
    drop_literal: bool = setting(False)
    """Exclude hits whose text contains a positive's text, or is contained in one."""
    teacher: str | None = option(None, metavar="DIR|HUB_ID")
    """Cross-encoder whose scores replace those of the run, for margins and in the output."""
    skip_missing: bool = False
    """Skip and count missing passages and queries without hits instead of stopping."""

    def _check(self) -> None:
        if self.range_min >= self.depth:
            raise UsageError(f"--range-min {self.range_min} is not below --depth {self.depth}")
        if not self.keep_gold and self.answer_bearing is not AnswerBearing.PROMOTE:
            raise UsageError("--set keep-gold=no needs --set answer-bearing=promote")

    @property
    def has_margin(self) -> bool:
        """Whether negatives are compared with a positive's score."""
        return self.absolute_margin is not None or self.relative_margin is not None


def resolve_mining(preset: str | None, given: Given) -> MiningSettings:
    """Return the settings of a preset of the recipes with given ones in place of theirs."""
    values: Given = {}
    if preset is not None:
        presets = paper_sections("mining")
        if preset not in presets:
            raise unknown_name("preset", preset, presets, f"give one of {', '.join(presets)}")
        values = typed_values(preset, presets[preset][1], MiningSettings)
    return build(MiningSettings, {**values, **given})
