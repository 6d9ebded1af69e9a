"""What negatives are mined from, which hits may become negatives, and how many are kept."""

from dataclasses import dataclass
from enum import StrEnum

from denserk.errors import UsageError
from denserk.settings.conversion import TrainingFormat
from denserk.settings.formats import QrelsFormat, RunFormat, TopicsFormat
from denserk.settings.options import REQUIRED, Settings, check_shard, option

# Shapes that name passages by id alone
WITHOUT_TEXTS = (
    TrainingFormat.TEVATRON_IDS,
    TrainingFormat.ST_IDS,
    TrainingFormat.TRIPLES,
    TrainingFormat.NEGATIVES,
)


class SamplingStrategy(StrEnum):
    """Which of the hits that passed become negatives."""

    RANDOM = "random"
    """Drawn at random, seeded by --seed and the query's id."""
    TOP = "top"
    """The best-ranked ones."""


class AnswerBearing(StrEnum):
    """What becomes of a hit that contains an answer of its query."""

    KEEP = "keep"
    """It is a hit like any other."""
    DROP = "drop"
    """It is no negative."""
    PROMOTE = "promote"
    """It becomes a positive."""


@dataclass(frozen=True, kw_only=True)
class MiningPaths(Settings):
    """What negatives are mined from, and where they go."""

    train: str | None = option(None, "--train-data", metavar="FILE|-")
    """Training data in any shape: its queries and positives are used, its negatives are not."""
    train_format: TrainingFormat | None = option(None, shown_default="detected")
    """Shape of --train."""
    topics: str | None = option(None, "--queries", metavar="FILE|DIR|NAME|-")
    """Queries in place of --train; beside it, the texts of queries it knows by id alone."""
    topics_format: TopicsFormat | None = option(None, shown_default="detected")
    """Shape of --topics."""
    qrels: str | None = option(None, metavar="FILE|DIR|NAME|-")
    """Judgements: the positives of --topics. Beside --train, they are never negatives."""
    qrels_format: QrelsFormat | None = option(None, shown_default="detected", rare=True)
    """Shape of --qrels."""
    run: tuple[str, ...] = option((), "--result-path", repeat=True, metavar="FILE|-")
    """A run over these queries; several are merged."""
    run_format: RunFormat | None = option(None, shown_default="detected", rare=True)
    """Shape of the runs."""
    corpus: str | None = option(None, metavar="FILE|DIR|NAME|-")
    """The passages that the runs name."""
    answers: str | None = option(None, metavar="FILE|DIR|NAME|-", shown_default="those of --train")
    """Answers of the queries, by query id."""
    output: str = option(REQUIRED, metavar="FILE|-")
    """The training data with the mined negatives."""
    output_format: TrainingFormat = TrainingFormat.TEVATRON
    """Shape of the output."""

    def __post_init__(self) -> None:
        if not self.run:
            raise UsageError("no run to mine from", "add --run FILE, as denserk search writes it")
        if self.train is None and (self.topics is None or self.qrels is None):
            raise UsageError(
                "no queries with positives", "give --train, or both of --topics and --qrels"
            )
        if self.corpus is None and self.output_format not in WITHOUT_TEXTS:
            raise UsageError(
                f"--output-format {self.output_format} holds texts, and there is no corpus",
                f"add --corpus, or write ids: {', '.join(WITHOUT_TEXTS)}",
            )
        if len(set(self.run)) < len(self.run):
            raise UsageError("--run names one run twice")
        named = (self.train, self.topics, self.qrels, self.corpus, self.answers, *self.run)
        if named.count("-") > 1:
            raise UsageError("standard input (-) can be only one of the inputs")


@dataclass(frozen=True)
class MiningSettings(Settings):
    """Which hits may become negatives, and which of them do."""

    depth: int = option(200, "--range-max", at_least=1)
    """How many hits of a query are looked at, by rank in each run."""
    num_negatives: int = option(30, "--negative-number", "--n-sample", at_least=1)
    """Negatives kept for a query; fewer where fewer are left."""
    sampling_strategy: SamplingStrategy = option(SamplingStrategy.RANDOM, "--sampling")
    """Which of the hits that passed become negatives."""
    seed: int = 42
    """Seed of the draws. What a query draws depends on nothing else than it, and its own hits."""
    min_relevance: int = option(1, rare=True)
    """Grade in --qrels from which a passage is a positive."""
    range_min: int = option(0, at_least=0)
    """The first so many hits of a query are no negatives: positives hide among them."""
    max_score: float | None = option(None, rare=True)
    """Hits that score more are no negatives."""
    min_score: float | None = option(None, rare=True)
    """Hits that score less are no negatives."""
    absolute_margin: float | None = option(None, rare=True)
    """A negative scores at least this much less than the best positive."""
    relative_margin: float | None = None
    """A negative scores less than the best positive by at least this part of its score: 0.05 lets
    pass what has at most 95 %."""
    answer_bearing: AnswerBearing | None = option(
        None, shown_default="drop with --answers, keep without", rare=True
    )
    """What becomes of hits whose text contains an answer, as DPR matches answers."""
    regex: bool = False
    """Answers are regular expressions (CuratedTREC)."""
    keep_gold: bool = option(True, rare=True)
    """With --answer-bearing promote: the query's own positives stay, before the promoted ones."""
    drop_literal: bool = option(False, rare=True)
    """Hits that hold a positive's text word for word, or are held by one, are no negatives."""
    near_duplicate: float | None = option(
        None, metavar="SHARE", shown_default="off", rare=True, above=0, at_most=1
    )
    """Hits that have this share of their word trigrams in common with a positive (Jaccard, 0 to 1)
    are no negatives."""
    teacher: str | None = option(None, metavar="DIR|HUB_ID", shown_default="none")
    """A cross-encoder: its scores stand in for the run's, in the output and for max-score,
    min-score and the margins."""
    skip_missing: bool = False
    """Leave out, and count, what does not fit: queries without hits, passages that the corpus
    lacks, a passage twice for a query, a last line that is cut off."""
    shard_id: int = 0
    """Which part of the queries, from 0."""
    shard_num: int = 1
    """Into how many parts the queries are divided; the outputs in order are the undivided one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.range_min >= self.depth:
            raise UsageError(
                f"--range-min {self.range_min} --depth {self.depth}: no rank lies between",
                "--range-min is at least 0 and less than --depth",
            )
        check_shard(self.shard_id, self.shard_num)
        if not self.keep_gold and self.answer_bearing is not AnswerBearing.PROMOTE:
            raise UsageError(
                "--set keep-gold=no leaves no positive", "add --set answer-bearing=promote"
            )

    @property
    def has_margin(self) -> bool:
        """Whether a negative's score is compared with that of a positive."""
        return self.absolute_margin is not None or self.relative_margin is not None

    @property
    def compares_texts(self) -> bool:
        """Whether a guard reads the texts of positives and hits."""
        return self.drop_literal or self.near_duplicate is not None
