"""The work of preparing training data: every text tokenised once, every choice left open.

Three passes, each in constant memory. The training files stream by: inline texts are tokenised,
ids noted. The queries and the corpus stream by: texts that were referred to are tokenised, and no
others, as a corpus is often a hundred times what its training data refers to. Last, the noted ids
become rows.
"""

import re
import shutil
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from denserk.data.example_columns import BLOCK, Columns, ColumnsWriter, read_columns
from denserk.data.referenced_texts import Texts
from denserk.data.tokenization import TextTokenizer
from denserk.data.training_store import unscored
from denserk.errors import InputError
from denserk.formats.files import STREAM, read_lines
from denserk.formats.sources import read_passages, read_qrels_map, read_queries
from denserk.formats.training import read_training
from denserk.formats.training_dpr import random_negatives
from denserk.records import Candidate, Passage, Query, TrainingExample
from denserk.reporting import track
from denserk.settings.conversion import TrainingFormat
from denserk.settings.formats import CorpusSettings

LARGEST_SCORE = float(np.finfo(np.float32).max)
COUNTS = (
    "examples",
    "candidates",
    "unscored",
    "without_positives",
    "without_negatives",
    "with_random_negatives",
    "missing_passages",
    "missing_queries",
)
"""What is counted, under its name in the manifest."""


@dataclass(frozen=True)
class TrainingInputs:
    """Where training data comes from, as `training_examples.prepare` is told."""

    files: Sequence[str]
    form: TrainingFormat | None
    corpus: str | None
    corpus_settings: CorpusSettings
    fields: Sequence[str] | None
    queries: str | None
    qrels: str | None
    skip_missing: bool

    def named(self) -> dict[str, str]:
        """Every input by what it is for."""
        numbered = {f"file {number}": name for number, name in enumerate(self.files, start=1)}
        others = {"corpus": self.corpus, "queries": self.queries, "qrels": self.qrels}
        return numbered | {use: name for use, name in others.items() if name is not None}


class _Draft(NamedTuple):
    """An example whose texts are slots (see `Texts`)."""

    qid: bytes
    query: int
    positives: int
    candidates: list[int]
    scores: list[float]


class Preparation:
    """The three passes of one preparation.

    Args:
        inputs: where everything comes from.
        folder: an empty folder.
        query: tokenizer.
        passage: tokenizer.
        require_scores: refuse a candidate without a score as soon as it is met.
    """

    def __init__(
        self,
        inputs: TrainingInputs,
        folder: Path,
        query: TextTokenizer,
        passage: TextTokenizer,
        require_scores: bool,
    ) -> None:
        (
            self.inputs,
            self.folder,
        ) = (
            inputs,
            folder,
        )
        self.require_scores = require_scores
        self.scratch = folder / "scratch"
        self.scratch.mkdir()
        self.queries: Texts[Query] = Texts(
            folder, self.scratch, "queries", query.queries, query.vocabulary_size
        )
        self.passages: Texts[Passage] = Texts(
            *(folder, self.scratch, "passages", passage.passages, passage.vocabulary_size),
            keyed=True,
        )
        self.found: Counter[str] = Counter()
        self.first_unscored: dict[str, str] | None = None
        self.starts: list[int] = []

    def run(self) -> dict[str, Any]:
        """Writes the folder's files; returns the manifest's counts.

        Raises:
            InputError: see `training_examples.prepare`.
        """
        with closing(self.queries), closing(self.passages):
            self._draft()
            self._find_texts()
            self._settle()
        shutil.rmtree(self.scratch)
        if not self.found["examples"]:
            names = ", ".join(self.inputs.files)
            raise InputError(names, None, "no query with a positive", "at least one")
        return {
            **{name: self.found[name] for name in COUNTS},
            "queries": self.queries.count,
            "query_tokens": self.queries.tokens,
            "passages": self.passages.count,
            "passage_tokens": self.passages.tokens,
            "first_unscored": self.first_unscored,
        }

    def _draft(self) -> None:
        """The first pass: examples with slots where rows will be."""
        with closing(ColumnsWriter(self.scratch)) as writer:
            drafts: list[_Draft] = []
            for draft in self._drafts():
                drafts.append(draft)
                if len(drafts) == BLOCK:
                    writer.append(_columns(drafts))
                    drafts.clear()
            writer.append(_columns(drafts))

    def _drafts(self) -> Iterator[_Draft]:
        judged = read_qrels_map(self.inputs.qrels) if self.inputs.qrels else {}
        taken = 0
        with track("reading training data", None, "queries") as progress:
            for source in self.inputs.files:
                self.starts.append(taken)
                empty = True
                for example in read_training(source, self.inputs.form):
                    empty = False
                    progress.advance()
                    positives = example.positives or tuple(
                        Candidate(docid)
                        for docid, relevance in judged.get(example.qid, {}).items()
                        if relevance > 0
                    )
                    if positives:
                        taken += 1
                        yield self._drafted(example._replace(positives=positives), source)
                    else:
                        self.found["without_positives"] += 1
                if empty:
                    raise InputError(source, None, "no training examples", "at least one")

    def _drafted(self, example: TrainingExample, source: str) -> _Draft:
        negatives = example.negatives
        if not negatives:
            negatives = random_negatives(example, source)
            self.found["with_random_negatives"] += bool(negatives)
        candidates = (*example.positives, *negatives)
        return _Draft(
            example.qid.encode(),
            self._query_slot(example, source),
            len(example.positives),
            [self._slot(candidate, example.qid, source) for candidate in candidates],
            [self._score(candidate, example.qid, source) for candidate in candidates],
        )

    def _query_slot(self, example: TrainingExample, source: str) -> int:
        if example.query:
            return self.queries.add(Query(example.qid, example.query))
        if self.inputs.queries is None:
            raise InputError(
                source,
                line_of(source, example.qid),
                f"query {example.qid} without its text",
                "a text, or the file that holds it",
                "add --queries, the file with the texts of the queries",
            )
        return self.queries.refer(example.qid)

    def _slot(self, candidate: Candidate, qid: str, source: str) -> int:
        docid, text, title, _, extra = candidate
        if text or title or not docid:
            return self.passages.add(Passage(docid, text, title, extra))
        if self.inputs.corpus is None:
            raise InputError(
                source,
                line_of(source, qid, docid),
                f"passage {docid} without its text",
                "a text, or the corpus that holds it",
                "add --corpus, the file with the texts of the passages",
            )
        return self.passages.refer(docid)

    def _score(self, candidate: Candidate, qid: str, source: str) -> float:
        if candidate.score is None:
            name = candidate.docid or repr(candidate.text[:40])
            if self.require_scores:
                raise unscored(source, qid, name, line_of(source, qid, name))
            if self.first_unscored is None:
                self.first_unscored = {"source": source, "query": qid, "passage": name}
            return np.nan
        if abs(candidate.score) > LARGEST_SCORE:
            raise InputError(
                source,
                line_of(source, qid),
                f"the score {candidate.score} in query {qid}",
                "a number within float32's range",
            )
        return candidate.score

    def _find_texts(self) -> None:
        """The second pass: the texts behind the ids that were noted."""
        with track("reading queries", None, "queries") as progress:
            queries = self.inputs.queries if self.queries.references else None
            records = read_queries(queries) if queries else iter(())
            self.queries.find(records, str(queries), progress)
        with track("reading the corpus", None, "passages") as progress:
            corpus = self.inputs.corpus if self.passages.references else None
            passages = (
                read_passages(corpus, self.inputs.corpus_settings, self.inputs.fields)
                if corpus
                else iter(())
            )
            self.passages.find(passages, str(corpus), progress)

    def _settle(self) -> None:
        """The last pass: slots become rows; what has no text goes, or is refused."""
        before = 0
        with closing(ColumnsWriter(self.folder)) as writer:
            for draft in read_columns(self.scratch):
                rows = self.passages.rows_of(draft.candidates)
                queries = self.queries.rows_of(draft.queries)
                if not self.inputs.skip_missing:
                    self._refuse_missing(draft, rows, queries, before)
                before += len(draft.counts)
                settled = draft._replace(candidates=rows, queries=queries)
                kept = settled.keep(rows >= 0, queries >= 0)
                writer.append(kept)
                self._count(settled, kept)

    def _count(self, settled: Columns, kept: Columns) -> None:
        lost = int((settled.queries < 0).sum())
        self.found["missing_queries"] += lost
        self.found["missing_passages"] += int((settled.candidates < 0).sum())
        self.found["without_positives"] += len(settled.counts) - len(kept.counts) - lost
        self.found["examples"] += len(kept.counts)
        self.found["candidates"] += len(kept.candidates)
        self.found["unscored"] += int(np.isnan(kept.scores).sum())
        self.found["without_negatives"] += int((kept.counts == kept.positive_counts).sum())

    def _refuse_missing(
        self, draft: Columns, rows: np.ndarray[Any, Any], queries: np.ndarray[Any, Any], before: int
    ) -> None:
        """Refuses the first text that is nowhere.

        Args:
            draft: a block with slots.
            rows: what its candidates became.
            queries: what its queries became.
            before: examples in earlier blocks.
        """
        lost, lost_queries = np.flatnonzero(rows < 0), np.flatnonzero(queries < 0)
        if len(lost_queries):
            example = int(lost_queries[0])
            name = what = self.queries.id_of(int(draft.queries[example]))
            where = str(self.inputs.queries)
        elif len(lost):
            example = int(np.searchsorted(np.cumsum(draft.counts), lost[0], side="right"))
            name = self.passages.id_of(int(draft.candidates[lost[0]]))
            what = f"{name} of query {draft.qid(example)}"
            where = str(self.inputs.corpus)
        else:
            return
        source = self.inputs.files[bisect_right(self.starts, before + example) - 1]
        raise InputError(
            source,
            line_of(source, draft.qid(example), name) or line_of(source, name),
            f"the id {what}, which {where} does not hold",
            "ids that are there",
            "add --skip-missing to leave such ids out and count them",
        )


def _columns(drafts: Sequence[_Draft]) -> Columns:
    def numbers(values: Any, dtype: Any = np.int64) -> Any:
        return np.fromiter(values, dtype)

    return Columns(
        numbers(chain.from_iterable(draft.candidates for draft in drafts)),
        numbers(chain.from_iterable(draft.scores for draft in drafts), np.float32),
        numbers(len(draft.candidates) for draft in drafts),
        numbers(draft.positives for draft in drafts),
        numbers(draft.query for draft in drafts),
        np.frombuffer(b"".join(draft.qid for draft in drafts), np.uint8),
        numbers(len(draft.qid) for draft in drafts),
    )


def line_of(source: str, *words: str) -> int | None:
    """The first line of a file that holds all the words, each whole; None where none does.

    Readers yield examples, not lines: a line is looked up once it is needed, for an error.
    """
    if source == STREAM:
        return None
    edge = rb'[\s",\[\]]'
    patterns = [
        re.compile(rb"(?:^|%b)%b(?:$|%b)" % (edge, re.escape(word.encode()), edge))
        for word in words
    ]
    for number, line in read_lines(source):
        if all(pattern.search(line) for pattern in patterns):
            return number
    return None
