"""Training data by id -> training data with texts, from a corpus and queries.

Two passes over the training data: the first notes which ids lack a text, the second fills them in.
Held in memory are the texts that the training data names, not the corpus.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from denserk.errors import InputError, UsageError
from denserk.formats.files import STREAM
from denserk.formats.sources import read_passages, read_queries
from denserk.formats.training import read_training
from denserk.records import Candidate, TrainingExample
from denserk.reporting import track
from denserk.settings.conversion import TrainingFormat

SHOWN = 5


@dataclass
class TextFiller:
    """Fills in the texts of queries and passages that are known by id alone.

    Args:
        source: the training data; read twice, so not a stream.
        form: its shape; None detects it.
        corpus: where passages come from, or None to leave them.
        queries: where queries come from, or None to leave them.
    """

    source: str
    form: TrainingFormat | None
    corpus: str | None
    queries: str | None
    _passages: dict[str, tuple[str, str]] = field(default_factory=dict, init=False)
    _texts: dict[str, str] = field(default_factory=dict, init=False)

    def examples(self) -> Iterator[TrainingExample]:
        """Yields the examples with their texts.

        Raises:
            UsageError: the training data is a stream.
            InputError: the corpus or the queries lack some of the ids; the first few are named.
        """
        if self.corpus is None and self.queries is None:
            yield from read_training(self.source, self.form)
            return
        if STREAM in (self.source, self.corpus, self.queries):
            raise UsageError(
                "--corpus and --queries need the training data twice, and - comes once",
                "write it to a file first",
            )
        self._gather()
        for example in read_training(self.source, self.form):
            yield self._filled(example)

    def _gather(self) -> None:
        qids, docids = set(), set()
        for example in read_training(self.source, self.form):
            if not example.query:
                qids.add(example.qid)
            for candidate in (*example.positives, *example.negatives):
                if not candidate.text:
                    docids.add(candidate.docid)
        if self.queries is not None:
            for query in read_queries(self.queries):
                if query.qid in qids:
                    self._texts[query.qid] = query.text
            _refuse_missing(qids - self._texts.keys(), "queries", self.queries)
        if self.corpus is not None:
            self._gather_passages(self.corpus, docids)

    def _gather_passages(self, corpus: str, docids: set[str]) -> None:
        with track("gathering texts", None, "passages") as progress:
            for passage in read_passages(corpus):
                if passage.docid in docids:
                    self._passages[passage.docid] = (passage.title, passage.text)
                progress.advance()
        _refuse_missing(docids - self._passages.keys(), "passages", corpus)

    def _filled(self, example: TrainingExample) -> TrainingExample:
        return example._replace(
            query=example.query or self._texts.get(example.qid, ""),
            positives=tuple(map(self._with_text, example.positives)),
            negatives=tuple(map(self._with_text, example.negatives)),
        )

    def _with_text(self, candidate: Candidate) -> Candidate:
        if candidate.text or candidate.docid not in self._passages:
            return candidate
        title, text = self._passages[candidate.docid]
        return candidate._replace(title=candidate.title or title, text=text)


def _refuse_missing(missing: set[str], what: str, where: str) -> None:
    if missing:
        named = ", ".join(sorted(missing)[:SHOWN]) + (", ..." if len(missing) > SHOWN else "")
        raise InputError(
            where,
            None,
            f"no {what} with {len(missing):,} of the ids that the training data names ({named})",
            f"all its {what}",
        )
