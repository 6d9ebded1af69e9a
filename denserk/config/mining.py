"""Options of negative mining, and its presets."""

from enum import StrEnum

from denserk.config import formats
from denserk.config.options import REQUIRED, Given, build, option, setting, typed_values
from denserk.config.shared import OverwriteSettings, ShardSettings
from denserk.config.values import unknown_name
from denserk.config.yaml_files import paper_sections
from denserk.errors import UsageError

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
    topics_field: tuple[str, ...] | None = setting(None, nonempty=True, needs="topics")
    """Fields of --topics that make the query, e.g. title,description. [default: title]"""
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
    output_format: formats.TrainingFormat = option(
        formats.TrainingFormat.TEVATRON, metavar="tevatron|dpr|flag|..."
    )
    """Format of the output."""
    preset: str | None = option(None, metavar="NAME", completes="mining")
    """Settings of a paper, nv-retriever; options override them."""

    def _check(self) -> None:
        if self.output_format in formats.READ_ONLY_TRAINING:
            message = f"--output-format {self.output_format}: this format is read alone"
            raise UsageError(message, f"write {formats.TrainingFormat.TEVATRON}")
        if self.train is None and (self.topics is None or self.qrels is None):
            raise UsageError("give --train, or both of --topics and --qrels")
        if self.corpus is None and self.output_format not in formats.WITHOUT_TEXTS:
            raise UsageError(
                f"--output-format {self.output_format} needs the passages' texts",
                f"add --corpus, or write ids: {', '.join(formats.WITHOUT_TEXTS)}",
            )


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
    max_passage: bool = False
    """--qrels judge documents, the runs hold their passages, "document<delimiter>part": the best
    passage of a relevant document in the runs is a positive, and no other of it a negative."""
    max_passage_delimiter: str = setting("#", nonempty=True)
    """Delimiter between document and part."""
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
    """Model, also openai:NAME, whose scores replace those of the run, for margins and in the
    output."""
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


def resolve_mining(preset: str | None, given_options: Given) -> MiningSettings:
    """Return the settings of a preset of the recipes with given ones in place of theirs."""
    values: Given = {} if preset is None else _values_of_preset(preset)
    return build(MiningSettings, {**values, **given_options})


def _values_of_preset(name: str) -> Given:
    """Return the settings of a preset of the recipes."""
    presets = paper_sections("mining")
    if name not in presets:
        raise unknown_name("preset", name, presets, f"give one of {', '.join(presets)}")
    _, values = presets[name]
    return typed_values(name, values, MiningSettings)
