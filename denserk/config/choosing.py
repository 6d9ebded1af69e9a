"""Options of `denserk choose`."""

import re

from denserk.config.formats import TopicsFormat
from denserk.config.options import REQUIRED, option, setting
from denserk.config.shared import ResumeSettings
from denserk.errors import UsageError

# Candidates where none are named.
DEFAULT_CANDIDATES = ("bm25", "minilm", "bm25+minilm")
# One more of them, where there are training queries.
DEFAULT_FINETUNED = "finetune:minilm"

INPUT_FILES = (
    "corpus",
    "topics",
    "qrels",
    "train_qrels",
    "train_topics",
    "test_qrels",
    "test_topics",
)
SECONDS_OF_UNITS = {"s": 1, "min": 60, "h": 3600}
BUDGET = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>s|min|h)")


def parse_budget(text: str) -> float:
    """Return the seconds of a budget, a number with its unit.

    >>> parse_budget("90s"), parse_budget("20min"), parse_budget("1.5h")
    (90.0, 1200.0, 5400.0)
    """
    match = BUDGET.fullmatch(text.strip())
    if match is None:
        message = f"--budget {text}: a number with the unit s, min or h is expected"
        raise UsageError(message, "for example --budget 20min")
    return float(match["number"]) * SECONDS_OF_UNITS[match["unit"]]


class ChooseSettings(ResumeSettings, kw_only=True):
    """Input and output."""

    corpus: str = option(REQUIRED, metavar="FILE|DIR|NAME")
    """Passages: a file, a folder, irds:NAME or beir:NAME."""
    topics: str = option(REQUIRED, "--queries", metavar="FILE|DIR|NAME")
    """Queries; those with judgments in --qrels are searched, and those of the other qrels."""
    topics_format: TopicsFormat | None = setting(None)
    """Format of the topics. [default: detected]"""
    topics_field: tuple[str, ...] | None = setting(None, nonempty=True)
    """Fields of the topics that make the query, e.g. title,description. [default: title]"""
    qrels: str = option(REQUIRED, metavar="FILE|DIR|NAME")
    """Relevance judgments that decide; without any, denserk eval --draw writes hits to judge."""
    output: str = option(REQUIRED, metavar="DIR")
    """Folder for all that is built, and for the result: choice.json, index.html, runs and more."""
    candidates: tuple[str, ...] = option((), "--candidate", metavar="[NAME=]RETRIEVER", repeat=True)
    """Retriever, repeatable: bm25, a model (also openai:NAME), a run file, an index folder; a
    hybrid bm25+minilm with fitted weights, or 0.3*bm25+0.7*minilm; bm25>>RERANKER, or
    bm25%50>>RERANKER for its first 50 hits; finetune:minilm. [default: bm25, minilm, bm25+minilm;
    with --train-qrels finetune:minilm]"""
    measure: str = option("nDCG@10", "-m", completes="measures")
    """Measure that decides, with values from 0 to 1."""
    budget: str | None = option(None, metavar="20min|2h|90s")
    """Time for this call, with all that is built. It ends between blocks of queries, after one at
    least; --resume continues. [default: no limit]"""
    train_qrels: str | None = option(None, metavar="FILE|DIR|NAME")
    """Judgments of training queries, for finetune:MODEL; their queries must not decide, too."""
    train_topics: str | None = option(None, metavar="FILE|DIR|NAME", needs="train_qrels")
    """Texts of the training queries. [default: --topics]"""
    drop_shared_training: bool = setting(False, needs="train_qrels")
    """Leave training queries that --qrels or --test-qrels judge, too, out of the training; without
    this they are an error."""
    test_qrels: str | None = option(None, metavar="FILE|DIR|NAME")
    """Judgments of sealed test queries: opened once, after the decision, for the systems that may
    be the best; each opening is recorded in sealed.jsonl."""
    test_topics: str | None = option(None, metavar="FILE|DIR|NAME", needs="test_qrels")
    """Texts of the test queries. [default: --topics]"""
    open_again: bool = option(False, needs="test_qrels")
    """Open test queries that were opened before; this is recorded, too."""
    alpha: float = option(0.05, above=0, below=1)
    """Probability of naming one system although another is as good; intervals are at 1 - alpha."""
    block_size: int = setting(25, at_least=1)
    """Queries of a block; after each one the candidates are compared."""
    seed: int = 42
    """Seed of the order of the queries, and of the fine-tuning."""
    hits: int = setting(1000, at_least=1)
    """Passages returned per query; a hybrid fuses, and normalises the scores of, so many."""
    rerank_depth: int = setting(100, at_least=1)
    """Passages per query that a reranker scores, unless %N names another number."""
    finetune_steps: int = setting(100, at_least=1)
    """finetune: number of training steps, of 32 queries each."""
    finetune_negatives: int = setting(4, at_least=1)
    """finetune: mined hard negatives per query."""

    def _check(self) -> None:
        if self.budget is not None:
            parse_budget(self.budget)
        for name in INPUT_FILES:
            if getattr(self, name) == "-":
                flag = f"--{name.replace('_', '-')}"
                raise UsageError(f"{flag} -: a file is expected, as it is read more than once")

    @property
    def expressions(self) -> tuple[str, ...]:
        """The candidates that are named, or the default ones."""
        if self.candidates:
            return self.candidates
        if self.train_qrels is not None:
            return (*DEFAULT_CANDIDATES, DEFAULT_FINETUNED)
        return DEFAULT_CANDIDATES

    @property
    def budget_seconds(self) -> float | None:
        """The seconds of the budget; None: no limit."""
        return None if self.budget is None else parse_budget(self.budget)
