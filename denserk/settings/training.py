"""What a fine-tuning run is made of."""

from dataclasses import dataclass
from enum import StrEnum

from denserk.errors import UsageError
from denserk.settings.conversion import TrainingFormat
from denserk.settings.encoding import Dtype, short_form
from denserk.settings.options import REQUIRED, option


class PositiveChoice(StrEnum):
    """Which of a query's positives is used at a visit."""

    ROTATE = "rotate"
    """In turn: (query + seed + epoch) modulo their number (Tevatron, Condenser)."""
    FIRST = "first"
    """Always the first (DPR, MLR)."""
    RANDOM = "random"
    """Drawn anew at each visit (MASTER)."""


class NegativeChoice(StrEnum):
    """Which of a query's hard negatives are used at a visit."""

    WINDOW = "window"
    """One shuffle a query, then a window that moves each epoch: no repeats until all are used."""
    SHUFFLE = "shuffle"
    """Shuffled anew at each visit."""
    TOP = "top"
    """The first of the list, always."""


class FillNegatives(StrEnum):
    """What fills the group of a query with fewer negatives than --group-size asks for."""

    MASK = "mask"
    """Nothing: the missing ones are masked. A passage of several groups of the batch is encoded
    once and counted once in each softmax."""
    REPEAT = "repeat"
    """Its negatives again, drawn with replacement; every occurrence is encoded and counted (the
    papers' code)."""


class Objective(StrEnum):
    """What training data teaches."""

    RETRIEVAL = "retrieval"
    """To tell a query's positives from other passages."""
    COSINE_MSE = "cosine-mse"
    """To give two sentences the cosine that their label says."""
    TRIPLET = "triplet"
    """To have a sentence nearer to a like one than to another, by a margin."""


class ContrastiveKind(StrEnum):
    """What a query's positive is told apart from."""

    IN_BATCH = "in-batch"
    """All passages of the batch."""
    FULL = "full"
    """SimLM's: all passages, and the batch's other queries and positives, in one softmax."""


class Distillation(StrEnum):
    """How the student is held to the teacher's scores over a query's own passages."""

    KL = "kl"
    """KL divergence from the teacher's distribution to the student's."""
    SOFT_CROSS_ENTROPY = "soft-cross-entropy"
    """What MASTER's released code computes; KL's gradient, up to 1e-7 inside the logarithm."""
    MARGIN_MSE = "margin-mse"
    """Squared difference of the margins between positive and negative."""


@dataclass(frozen=True)
class ObjectiveSettings:
    """The loss."""

    objective: Objective = Objective.RETRIEVAL
    """What the training data teaches."""
    temperature: float = 1.0
    """Divides every score."""
    contrastive: ContrastiveKind = ContrastiveKind.IN_BATCH
    """What a query's positive is told apart from."""
    cls_weight: float = 0.5
    """agg: weight of the loss of the [CLS] part alone."""
    agg_weight: float = 0.5
    """agg: weight of the loss of the lexical part alone."""
    layer_weight: float = option(1.0, "--lambda")
    """Self-contrastive pooling: weight of the softmax over the positive's own vectors."""
    layer_temperature: float = 1.0
    """Self-contrastive pooling: divides the scores in the softmax over the positive's own vectors,
    which --temperature does not."""
    distillation: Distillation | None = option(None, shown_default="no teacher")
    """Learn from the teacher's scores in the training data."""
    contrastive_weight: float | None = option(None, shown_default="1; 0.2 beside --distillation")
    """Weight of the contrastive loss."""
    label_scale: float = 1.0
    """cosine-mse: the label of equal sentences; 5 for labels from 0 to 5."""
    margin: float = 5.0
    """triplet: how much nearer the positive must be, in Euclidean distance."""

    def __post_init__(self) -> None:
        """Refuses a temperature or a scale that is none, and negative weights."""
        if self.label_scale <= 0:
            raise UsageError(f"--label-scale {self.label_scale}: above 0")
        for name in ("temperature", "layer_temperature"):
            if getattr(self, name) <= 0:
                flag = f"--{name.replace('_', '-')}"
                raise UsageError(f"{flag} {getattr(self, name)}: above 0")
        weights = ("cls_weight", "agg_weight", "layer_weight", "contrastive_weight")
        for name in (*weights, "margin"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise UsageError(f"--{name.replace('_', '-')} {value}: at least 0")

    @property
    def weight_of_contrastive(self) -> float:
        """The contrastive loss's weight, the default resolved."""
        if self.contrastive_weight is not None:
            return self.contrastive_weight
        return 1.0 if self.distillation is None else 0.2


@dataclass(frozen=True)
class RerankingSettings:
    """How a cross-encoder is trained."""

    r_drop: float = 0.0
    """cross-encoder: weight of R-Drop, the agreement of two draws of dropout; 0: one draw."""
    pair_max_length: int | None = option(
        None, "--rerank-max-len", shown_default="the limits of query and passage together"
    )
    """cross-encoder: tokens of a query and its passage in one input; the passage is cut to fit."""

    def __post_init__(self) -> None:
        """Refuses negative weights, and lengths without room for two words."""
        if self.r_drop < 0:
            raise UsageError(f"--r-drop {self.r_drop}: at least 0")
        if self.pair_max_length is not None and self.pair_max_length < 5:
            raise UsageError(
                f"--pair-max-length {self.pair_max_length}: at least 5 are needed, "
                "for three special tokens and two words"
            )


@dataclass(frozen=True)
class SamplingSettings:
    """Which queries, positives and negatives a run sees."""

    group_size: int = option(8, "--train-group-size", "--train-n-passages")
    """Passages of a query: one positive and the rest hard negatives."""
    positive: PositiveChoice = PositiveChoice.ROTATE
    """Which positive a visit uses."""
    negative: NegativeChoice = NegativeChoice.WINDOW
    """Which hard negatives a visit uses."""
    negative_pool: int | None = option(None, shown_default="all")
    """Use only the first so many negatives of each list."""
    fill_negatives: FillNegatives = FillNegatives.MASK
    """What fills the group of a query with fewer negatives than --group-size asks for."""
    train_queries: int | None = option(None, shown_default="all")
    """Train on so many queries (pairs, triplets), drawn with --seed."""
    train_fraction: float | None = option(None, shown_default="1")
    """Train on this share of the queries, drawn with --seed."""
    seed: int = 42
    """Seed of every random choice: queries, order, negatives, initial weights, dropout."""

    def __post_init__(self) -> None:
        """Refuses empty groups and contradicting shares."""
        if self.group_size < 1:
            raise UsageError(f"--group-size {self.group_size}: at least 1 is needed, the positive")
        if self.train_queries is not None and self.train_fraction is not None:
            raise UsageError("--train-queries and --train-fraction exclude each other")
        if self.train_queries is not None and self.train_queries < 1:
            raise UsageError(f"--train-queries {self.train_queries}: at least 1 is needed")
        if self.train_fraction is not None and not 0 < self.train_fraction <= 1:
            raise UsageError(f"--train-fraction {self.train_fraction}: above 0, at most 1")
        if self.negative_pool is not None and self.negative_pool < 1:
            raise UsageError(f"--negative-pool {self.negative_pool}: at least 1 is needed")


@dataclass(frozen=True)
class CacheSettings:
    """Large contrastive batches in small memory."""

    grad_cache: bool = False
    """Make vectors and send gradients back in chunks: the memory of a chunk, the same result."""
    q_chunk: int = option(4, "--gc-q-chunk-size")
    """Queries a chunk."""
    p_chunk: int = option(32, "--gc-p-chunk-size")
    """Passages a chunk."""
    chunk_tokens: int | None = option(None, shown_default="by --q-chunk and --p-chunk")
    """Tokens a chunk, padding included, in place of a number of texts."""

    def __post_init__(self) -> None:
        """Refuses empty chunks, and sizes of chunks where nothing is cut."""
        if self.q_chunk < 1 or self.p_chunk < 1:
            raise UsageError(f"--q-chunk {self.q_chunk} --p-chunk {self.p_chunk}: at least 1")
        if self.chunk_tokens is None:
            return
        if self.chunk_tokens < 1:
            raise UsageError(f"--chunk-tokens {self.chunk_tokens}: at least 1")
        if not self.grad_cache:
            raise UsageError(
                f"--chunk-tokens {self.chunk_tokens}: nothing is cut into chunks",
                "add --grad-cache",
            )


Precision = Dtype
"""Precision of the forward and backward passes; weights and their moments stay in float32."""


@dataclass(frozen=True)
class OptimizerSettings:
    """How long, how fast, how often."""

    batch_size: int = option(8, "--per-device-train-batch-size")
    """Queries a step, over all processes."""
    epochs: float = option(3.0, "--num-train-epochs")
    """Passes over the training queries."""
    max_steps: int | None = option(None, shown_default="by --epochs")
    """Steps in all; wins over --epochs."""
    lr: float = option(5e-6, "--learning-rate")
    """Peak learning rate of AdamW, then linear to 0."""
    warmup_ratio: float = 0.1
    """Share of the steps in which the learning rate rises."""
    warmup_steps: int | None = option(None, shown_default="by --warmup-ratio")
    """Steps in which the learning rate rises; wins over --warmup-ratio."""
    weight_decay: float = 0.0
    """Decay of weights, biases and layer norms excepted."""
    max_grad_norm: float = 1.0
    """Gradients of a longer norm are scaled down to it; 0 leaves them alone."""
    adam_epsilon: float = 1e-8
    """AdamW's epsilon; its betas are 0.9 and 0.999."""
    precision: Precision = option(Precision.FLOAT32, "--dtype")
    """Precision of the passes; float16 needs a GPU."""
    fp16: bool = False
    """Short for --dtype float16."""
    bf16: bool = False
    """Short for --dtype bfloat16."""
    save_steps: int = 1000
    """Steps between two checkpoints."""
    keep_checkpoints: int = option(1, "--save-total-limit")
    """Checkpoints that are kept, the newest; 0 keeps all."""
    logging_steps: int | None = option(
        None, shown_default="20, or as many as give a short run 20 lines"
    )
    """Steps between two lines of the log."""
    num_workers: int | None = option(
        None, "--dataloader-num-workers", shown_default="2 for a GPU, 0 for a CPU"
    )
    """Processes that prepare batches ahead; 0: the training process does, between two steps."""

    def __post_init__(self) -> None:
        """Refuses runs without steps, rates that are none, contradicting precisions."""
        object.__setattr__(self, "precision", short_form(self.precision, self.fp16, self.bf16))
        for name in ("batch_size", "save_steps", "logging_steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"--{name.replace('_', '-')} {value}: at least 1 is needed")
        if self.epochs <= 0 or (self.max_steps is not None and self.max_steps < 1):
            raise UsageError(f"--epochs {self.epochs} --max-steps {self.max_steps}: above 0")
        if self.num_workers is not None and self.num_workers < 0:
            raise UsageError(f"--num-workers {self.num_workers}: at least 0")
        if self.lr <= 0:
            raise UsageError(f"--lr {self.lr}: above 0")
        if not 0 <= self.warmup_ratio <= 1:
            raise UsageError(f"--warmup-ratio {self.warmup_ratio}: between 0 and 1")


class DevMetric(StrEnum):
    """What a validation is judged by."""

    LOSS = "dev-loss"
    """Cross-entropy over the dev data's passages; lower is better."""
    AVERAGE_RANK = "avg-rank"
    """DPR's: mean rank of the positive among all passages of the dev data; lower is better."""
    RR_10 = "RR@10"
    """Reciprocal rank over the dev collection; higher is better."""
    SPEARMAN = "spearman"
    """cosine-mse: rank correlation of cosines and labels; higher is better."""
    ACCURACY = "accuracy"
    """triplet: share of positives nearer than their negatives; higher is better."""


@dataclass(frozen=True)
class ValidationSettings:
    """Measuring on held-out queries while training."""

    dev_data: str | None = option(None, metavar="FILE")
    """Held-out training data, in any shape: dev-loss and avg-rank; or spearman, or accuracy."""
    dev_corpus: str | None = option(None, metavar="FILE|DIR|NAME")
    """Passages to search: RR@10; without it RR@10 is over the dev data's own passages."""
    dev_topics: str | None = option(None, metavar="FILE|DIR|NAME")
    """Queries to search --dev-corpus with."""
    dev_qrels: str | None = option(None, metavar="FILE|NAME")
    """Judgements of --dev-topics."""
    eval_steps: int | None = option(None, shown_default="once an epoch")
    """Steps between two validations."""
    best_by: DevMetric | None = option(
        None, "--metric-for-best-model", shown_default="keep the last"
    )
    """Keep the weights that were best by this, in place of the last."""
    early_stopping: int | None = option(None, "--early-stopping-patience", shown_default="never")
    """Stop after so many validations in a row without a better --best-by."""

    def __post_init__(self) -> None:
        """Refuses judging without data to judge on."""
        collection = (self.dev_corpus, self.dev_topics, self.dev_qrels)
        if any(collection) and not all(collection):
            raise UsageError(
                "--dev-corpus, --dev-topics and --dev-qrels go together: give all three"
            )
        if self.best_by is not None and not (self.dev_data or self.dev_corpus):
            raise UsageError(f"--best-by {self.best_by} needs --dev-data or --dev-corpus")
        if self.best_by not in (None, DevMetric.RR_10) and not self.dev_data:
            raise UsageError(f"--best-by {self.best_by} needs --dev-data")
        if self.early_stopping is not None and self.best_by is None:
            raise UsageError("--early-stopping needs --best-by, the measure that must improve")


@dataclass(frozen=True, kw_only=True)
class FinetuneSettings:
    """One fine-tuning run: from which weights, on which data, to where."""

    model: str = option(REQUIRED, "--model-name-or-path", metavar="NAME|DIR|HUB_ID")
    """Weights to start from."""
    train_data: tuple[str, ...] = option(
        REQUIRED, "--train", "--dataset-path", metavar="FILE", repeat=True
    )
    """Training data in any shape (docs/formats/training.md); repeatable, one after another."""
    train_format: TrainingFormat | None = option(None, shown_default="detected")
    """Shape of the training data."""
    corpus: str | None = option(None, metavar="FILE|DIR|NAME")
    """Texts of passages that the training data names by id."""
    queries: str | None = option(None, metavar="FILE|DIR|NAME")
    """Texts of queries that the training data names by id."""
    qrels: str | None = option(None, metavar="FILE|NAME")
    """Positives of queries whose training data names negatives alone."""
    output: str = option(REQUIRED, "--output-dir", metavar="DIR")
    """The model folder; checkpoints and curves go beneath it."""
    untie: bool = option(False, "--untie-encoder")
    """Train separate weights for queries and passages."""
    negatives_x_device: bool = True
    """Passages of other processes are negatives too."""
    device: str = option("auto", metavar="auto|cpu|cuda")
    """Where to train; with torchrun, each process takes the GPU of its rank."""
    skip_missing: bool = False
    """Count passages that the corpus lacks, in place of stopping at the first."""
    resume: bool = False
    """Continue from the last whole checkpoint, to the same weights."""
    overwrite: bool = False
    """Replace what is in the output folder."""

    def __post_init__(self) -> None:
        """Refuses flags that exclude each other."""
        if self.resume and self.overwrite:
            raise UsageError("--resume and --overwrite exclude each other")
