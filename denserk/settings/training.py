"""What a fine-tuning run is made of."""

from dataclasses import dataclass
from enum import StrEnum

from denserk.errors import UsageError
from denserk.settings.conversion import TrainingFormat
from denserk.settings.encoding import Dtype, resolve_dtype
from denserk.settings.options import REQUIRED, Settings, option


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
class ObjectiveSettings(Settings):
    """The loss."""

    objective: Objective = Objective.RETRIEVAL
    """What the training data teaches."""
    temperature: float = option(1.0, above=0)
    """Divides every score."""
    contrastive: ContrastiveKind = option(ContrastiveKind.IN_BATCH, rare=True)
    """What a query's positive is told apart from."""
    cls_weight: float = option(0.5, rare=True, at_least=0)
    """agg: weight of the loss of the [CLS] part alone."""
    agg_weight: float = option(0.5, rare=True, at_least=0)
    """agg: weight of the loss of the lexical part alone."""
    layer_weight: float = option(1.0, "--lambda", rare=True, at_least=0)
    """Self-contrastive pooling: weight of the softmax over the positive's own vectors."""
    layer_temperature: float = option(1.0, rare=True, above=0)
    """Self-contrastive pooling: divides the scores in the softmax over the positive's own vectors,
    which --temperature does not."""
    distillation: Distillation | None = option(None, shown_default="no teacher")
    """Learn from the teacher's scores in the training data."""
    contrastive_weight: float | None = option(
        None, shown_default="1; 0.2 beside --distillation", rare=True, at_least=0
    )
    """Weight of the contrastive loss."""
    label_scale: float = option(1.0, rare=True, above=0)
    """cosine-mse: the label of equal sentences; 5 for labels from 0 to 5."""
    margin: float = option(5.0, rare=True, at_least=0)
    """triplet: how much nearer the positive must be, in Euclidean distance."""

    @property
    def weight_of_contrastive(self) -> float:
        """The contrastive loss's weight, the default resolved."""
        if self.contrastive_weight is not None:
            return self.contrastive_weight
        return 1.0 if self.distillation is None else 0.2


@dataclass(frozen=True)
class RerankingSettings(Settings):
    """How a cross-encoder is trained."""

    r_drop: float = option(0.0, rare=True, at_least=0)
    """cross-encoder: weight of R-Drop, the agreement of two draws of dropout; 0: one draw."""
    pair_max_length: int | None = option(
        None,
        "--rerank-max-len",
        shown_default="the limits of query and passage together",
        at_least=5,
    )
    """cross-encoder: tokens of a query and its passage in one input; the passage is cut to fit."""


@dataclass(frozen=True)
class SamplingSettings(Settings):
    """Which queries, positives and negatives a run sees."""

    group_size: int = option(8, "--train-group-size", "--train-n-passages", at_least=1)
    """Passages of a query: one positive and the rest hard negatives."""
    positive: PositiveChoice = option(PositiveChoice.ROTATE, rare=True)
    """Which positive a visit uses."""
    negative: NegativeChoice = option(NegativeChoice.WINDOW, rare=True)
    """Which hard negatives a visit uses."""
    negative_pool: int | None = option(None, shown_default="all", rare=True, at_least=1)
    """Use only the first so many negatives of each list."""
    fill_negatives: FillNegatives = option(FillNegatives.MASK, rare=True)
    """What fills the group of a query with fewer negatives than --group-size asks for."""
    train_queries: int | None = option(None, shown_default="all", at_least=1)
    """Train on so many queries (pairs, triplets), drawn with --seed."""
    train_fraction: float | None = option(None, shown_default="1", rare=True, above=0, at_most=1)
    """Train on this share of the queries, drawn with --seed."""
    seed: int = 42
    """Seed of every random choice: queries, order, negatives, initial weights, dropout."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.train_queries is not None and self.train_fraction is not None:
            raise UsageError("--train-queries and --set train-fraction=SHARE exclude each other")


@dataclass(frozen=True)
class CacheSettings(Settings):
    """Large contrastive batches in small memory."""

    grad_cache: bool = False
    """Make vectors and send gradients back in chunks: the memory of a chunk, the same result."""
    q_chunk: int = option(4, "--gc-q-chunk-size", rare=True, at_least=1)
    """Queries a chunk."""
    p_chunk: int = option(32, "--gc-p-chunk-size", rare=True, at_least=1)
    """Passages a chunk."""
    chunk_tokens: int | None = option(
        None, shown_default="by --q-chunk and --p-chunk", rare=True, at_least=1
    )
    """Tokens a chunk, padding included, in place of a number of texts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chunk_tokens is not None and not self.grad_cache:
            raise UsageError(
                f"--set chunk-tokens={self.chunk_tokens}: nothing is cut into chunks",
                "add --grad-cache",
            )


# Precision of the forward and backward passes; weights and their moments stay in float32
Precision = Dtype


@dataclass(frozen=True)
class OptimizerSettings(Settings):
    """How long, how fast, how often."""

    batch_size: int = option(8, "--per-device-train-batch-size", at_least=1)
    """Queries a step, over all processes."""
    epochs: float = option(3.0, "--num-train-epochs", above=0)
    """Passes over the training queries."""
    max_steps: int | None = option(None, shown_default="by --epochs", at_least=1)
    """Steps in all; wins over --epochs."""
    lr: float = option(5e-6, "--learning-rate", above=0)
    """Peak learning rate of AdamW, then linear to 0."""
    warmup_ratio: float = option(0.1, at_least=0, at_most=1)
    """Share of the steps in which the learning rate rises."""
    warmup_steps: int | None = option(None, shown_default="by --warmup-ratio", rare=True)
    """Steps in which the learning rate rises; wins over --warmup-ratio."""
    weight_decay: float = option(0.0, rare=True)
    """Decay of weights, biases and layer norms excepted."""
    max_grad_norm: float = option(1.0, rare=True, at_least=0)
    """Gradients of a longer norm are scaled down to it; 0 leaves them alone."""
    adam_epsilon: float = option(1e-8, rare=True)
    """AdamW's epsilon; its betas are 0.9 and 0.999."""
    precision: Precision = option(Precision.FLOAT32, "--dtype")
    """Precision of the passes; float16 needs a GPU."""
    fp16: bool = False
    """Short for --dtype float16."""
    bf16: bool = False
    """Short for --dtype bfloat16."""
    save_steps: int = option(1000, at_least=1)
    """Steps between two checkpoints."""
    keep_checkpoints: int = option(1, "--save-total-limit", rare=True, at_least=0)
    """Checkpoints that are kept, the newest; 0 keeps all."""
    logging_steps: int | None = option(
        None, shown_default="20, or as many as give a short run 20 lines", rare=True, at_least=1
    )
    """Steps between two lines of the log."""
    num_workers: int | None = option(
        None, "--dataloader-num-workers", shown_default="2 for a GPU, 0 for a CPU", at_least=0
    )
    """Processes that prepare batches ahead; 0: the training process does, between two steps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "precision", resolve_dtype(self.precision, self.fp16, self.bf16))


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
class ValidationSettings(Settings):
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
    early_stopping: int | None = option(
        None, "--early-stopping-patience", shown_default="never", rare=True
    )
    """Stop after so many validations in a row without a better --best-by."""

    def __post_init__(self) -> None:
        super().__post_init__()
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
            raise UsageError("--set early-stopping needs --best-by, the measure that must improve")


@dataclass(frozen=True, kw_only=True)
class FinetuneSettings(Settings):
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
    negatives_x_device: bool = option(True, rare=True)
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
        super().__post_init__()
        if self.resume and self.overwrite:
            raise UsageError("--resume and --overwrite exclude each other")
