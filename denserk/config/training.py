"""Options of fine-tuning, and what pre-training shares with it."""

import re
from enum import StrEnum
from typing import Any

from denserk.config import formats
from denserk.config.encoding import Dtype, PrecisionSettings, RepresentationSettings, TextSettings
from denserk.config.options import REQUIRED, Settings, as_json, option, setting
from denserk.config.shared import DeviceSettings, ResumeSettings
from denserk.config.values import plain
from denserk.errors import UsageError

# Settings of one run, which its configuration does not record.
OF_ONE_RUN = ("output", "resume", "overwrite", "preset", "fp16", "bf16")

# Kinds of training that have an option (`used_by`), beside the objectives on sentences.
BI_ENCODER = "bi-encoder"
CROSS_ENCODER = "cross-encoder"
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

# names of licences on the hub
LICENSE = re.compile(r"[a-z0-9][a-z0-9.-]*")


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
    temperature: float = option(1.0, above=0, used_by=BI_ENCODER)
    """Temperature by which scores are divided."""
    contrastive: ContrastiveKind = setting(ContrastiveKind.IN_BATCH, used_by=BI_ENCODER)
    """Negatives: passages of the batch, or also its queries (full, as in SimLM)."""
    cls_weight: float = setting(0.5, at_least=0, used_by=BI_ENCODER)
    """agg: weight of the loss on the [CLS] part."""
    agg_weight: float = setting(0.5, at_least=0, used_by=BI_ENCODER)
    """agg: weight of the loss on the lexical part."""
    layer_weight: float = setting(1.0, at_least=0, used_by=BI_ENCODER)
    """Self-contrastive pooling: weight of the loss over the positive's own vectors."""
    layer_temperature: float = setting(1.0, above=0, used_by=BI_ENCODER)
    """Self-contrastive pooling: temperature of the loss over the positive's own vectors."""
    distillation: Distillation | None = option(None, used_by=BI_ENCODER)
    """Knowledge distillation loss on the teacher scores in the training data."""
    contrastive_weight: float | None = setting(None, at_least=0, used_by=BI_ENCODER)
    """Weight of the contrastive loss. [default: 1; 0.2 beside --distillation]"""
    dimensions: tuple[int, ...] | None = option(None, at_least=1, nonempty=True, used_by=BI_ENCODER)
    """Sum the loss over the vectors' first N dimensions, for each N of this list (Matryoshka), so
    that encode --truncate-dim N can cut them. [default: all dimensions]"""
    label_scale: float = setting(1.0, above=0, used_by="cosine-mse")
    """cosine-mse: label of equal sentences, e.g. 5 for labels from 0 to 5."""
    mask_false_negatives: bool = option(False, used_by=BI_ENCODER)
    """Leave known positives of a query out of its in-batch negatives."""
    guide: str | None = option(
        None, metavar="NAME|DIR|HUB_ID", used_by=BI_ENCODER, completes="models"
    )
    """Retriever that also leaves out what it scores above a query's own positive (GISTEmbed)."""
    guide_margin: float = setting(0.0, needs="guide", used_by=BI_ENCODER)
    """Leave out what the guide scores above the positive's score minus this margin."""
    margin: float = setting(5.0, at_least=0, used_by="triplet")
    """triplet: margin in Euclidean distance."""

    @property
    def weight_of_contrastive(self) -> float:
        """Return the contrastive loss weight, with the default resolved."""
        if self.contrastive_weight is not None:
            return self.contrastive_weight
        return 1.0 if self.distillation is None else 0.2


class RerankingSettings(Settings):
    """Cross-encoder."""

    r_drop: float = setting(0.0, at_least=0, used_by=CROSS_ENCODER)
    """cross-encoder: weight of R-Drop, the consistency loss of two dropout passes; 0 is off."""
    pair_max_length: int | None = option(
        None, "--rerank-max-len", at_least=5, used_by=CROSS_ENCODER
    )
    """cross-encoder: maximum tokens of query and passage together. [default: sum of both limits]"""


class SamplingSettings(Settings):
    """Sampling."""

    group_size: int = option(
        8, "--train-group-size", "--train-n-passages", at_least=1, used_by=RANKING
    )
    """Passages per query: one positive and hard negatives."""
    positive: PositiveChoice = setting(PositiveChoice.ROTATE, used_by=RANKING)
    """Positive of a query: in turn, always the first, or sampled."""
    negative: NegativeChoice = setting(NegativeChoice.WINDOW, used_by=RANKING)
    """Hard negatives of a query: moving window, shuffled each time, or the first."""
    negative_pool: int | None = setting(None, at_least=1, used_by=RANKING)
    """Use only the first N negatives of each query. [default: all]"""
    fill_negatives: FillNegatives = setting(FillNegatives.MASK, used_by=RANKING)
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
    q_chunk: int = setting(4, at_least=1, used_by=BI_ENCODER)
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

    dtype: Dtype = option(Dtype.FLOAT32, "--precision")
    """Precision of the computation; the weights stay in float32. float16 needs a GPU."""
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
    license: str | None = setting(None)
    """Licence in the model card, by the hub's name of it (apache-2.0, mit, cc-by-4.0, other).
    [default: that of --model, if its card has one]"""
    logging_steps: int | None = setting(None, at_least=1)
    """Steps between log lines. [default: 20, fewer in short runs]"""
    num_workers: int | None = option(None, "--dataloader-num-workers", at_least=0)
    """Worker processes that prepare batches; 0 uses the training process. [default: 2; CPU: 0]"""

    def _check(self) -> None:
        if self.license is not None and LICENSE.fullmatch(self.license) is None:
            raise UsageError(
                f"--set license={self.license}: a licence has a name in small letters, without "
                "spaces",
                "the hub's name of it, such as apache-2.0, mit, cc-by-4.0 or other",
            )


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
    """Held-out training data for RR@10, dev-loss, avg-rank, spearman, accuracy or cosine."""
    dev_corpus: str | None = option(None, metavar="FILE|DIR|NAME", used_by=BI_ENCODER)
    """Passages to search for RR@10, instead of the passages of --dev-data."""
    dev_topics: str | None = option(None, metavar="FILE|DIR|NAME", used_by=BI_ENCODER)
    """Queries to search in --dev-corpus."""
    dev_qrels: str | None = option(None, metavar="FILE|NAME", used_by=BI_ENCODER)
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

    model: str = option(
        REQUIRED, "--model-name-or-path", metavar="NAME|DIR|HUB_ID", completes="models"
    )
    """Model to start from: a short name, a folder or a Hugging Face name."""
    train_data: tuple[str, ...] = option(
        REQUIRED, "--train", "--dataset-path", metavar="FILE", repeat=True
    )
    """Training data in any format (docs/formats.md), or queries for --objective align; repeatable.
    """
    teacher: str | None = option(
        None, metavar="NAME|DIR|HUB_ID", used_by="align", completes="models"
    )
    """align: model whose query vectors are learned."""
    keep_layers: tuple[int, ...] = setting((), at_least=0, used_by="align")
    """align: layers of --model to start from, the first is 0. [default: all]"""
    train_format: formats.TrainingFormat | None = option(None, used_by=RANKING)
    """Format of the training data. [default: detected]"""
    corpus: str | None = option(None, metavar="FILE|DIR|NAME", used_by=f"{RANKING} align")
    """Corpus with the texts of passages given by id; align: its sentences are queries, too."""
    queries: str | None = option(None, metavar="FILE|DIR|NAME", used_by=RANKING)
    """Topics with the texts of queries given by id."""
    qrels: str | None = option(None, metavar="FILE|NAME", used_by=RANKING)
    """Qrels with the positives of queries whose training data has negatives only."""
    output: str = option(REQUIRED, "--output-dir", metavar="DIR")
    """Model folder; data, checkpoints and logs are beside it, in DIR.training."""
    untie: bool = option(False, "--untie-encoder", used_by=BI_ENCODER)
    """Train separate (untied) query and passage encoders."""
    negatives_x_device: bool = setting(True, used_by=BI_ENCODER)
    """Share in-batch negatives across processes."""
    skip_missing: bool = option(False, used_by=RANKING)
    """Skip and count passages missing from the corpus instead of stopping."""


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


class ResolvedRun:
    """Base of the resolved settings of a run: a dataclass of settings objects."""

    @property
    def warmup_is_of_preset(self) -> bool:
        """Whether the number of warm-up steps is that of a preset, and not chosen by the user."""
        return False

    def as_json(self) -> dict[str, Any]:
        """Return the settings as plain JSON, by section."""
        sections = {}
        for name, section in vars(self).items():
            if name != "notes":
                sections[name] = as_json(section) if isinstance(section, Settings) else section
        return sections

    def config(self) -> dict[str, Any]:
        """Return the settings as --config reads them, without unset ones and those of one run."""
        sections = [section for section in self.as_json().values() if isinstance(section, dict)]
        config = {}
        for section in sections:
            for name, value in section.items():
                if value is not None and name not in OF_ONE_RUN:
                    config[name.replace("_", "-")] = plain(value)
        return config
