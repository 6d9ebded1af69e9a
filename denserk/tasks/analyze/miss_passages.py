"""Changes of passages: other texts, lengths and dimensions, encoded again."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil

import numpy as np
from numpy.typing import NDArray

from denserk.data.sentences import split_sentences
from denserk.data.splitting import Span, windows, word_spans
from denserk.models.text_encoder import PASSAGE
from denserk.records import Passage
from denserk.tasks.analyze.miss_hits import RERANKED_FACTOR
from denserk.tasks.analyze.miss_search import DenseSearch, rank_of
from denserk.tasks.analyze.miss_trials import Change, Evidence, Fix, Miss, TextChange, Trial

MOST_SENTENCES = 64  # of a passage: the first ones are tried in front
NO_LIMIT = 1 << 20  # tokens
# The relative difference of scores above which the stored vector is of an older text
LEAST_CHANGE = 0.01


class EncodedAgain(TextChange):
    """The passage is encoded as the corpus has it now: its stored vector is of an older text.

    It is no change of all queries: which other vectors are outdated is not known.
    """

    cause = "outdated"
    name = "encode again"
    task = "encoding missed passages"

    def _texts(self, miss: Miss) -> list[Passage]:
        """Return the passage of the corpus, if it is there."""
        return self._evidence.texts_of(miss)

    def _description(self, best: int, count: int) -> str:
        """Return what was changed."""
        return "encode it again"

    def _trial_of_scores(self, miss: Miss, scores: NDArray[np.float32]) -> Trial | None:
        """Return the trial of a passage; None if its text is not known, or scores no higher."""
        if not len(scores):
            return None
        score = float(scores[0])
        rivals = self._dense.rivals[miss.qid]
        lowest_score = rivals[-1][1] if rivals else -np.inf
        # a passage that is not among the hits scores at most as much as the last one
        stored_score = dict(rivals).get(miss.docid, lowest_score)
        if score - stored_score <= LEAST_CHANGE * abs(stored_score):
            return None
        return super()._trial_of_scores(miss, scores)


class FullDimensions(Change):
    """Vectors keep all their dimensions: the first hits and the passage are encoded again.

    `whole` is the search with a model that cuts no dimension. A missed passage is compared with the
    first hits of the run alone, so it is no change of all queries.
    """

    cause = "approximate"
    name = "keep all dimensions"

    def __init__(self, evidence: Evidence, whole: DenseSearch) -> None:
        super().__init__(evidence)
        self._whole = whole

    def try_change(self, misses: Sequence[Miss]) -> list[Trial | None]:
        """Encode the first hits and the missed passages, and order them."""
        depth = RERANKED_FACTOR * self._evidence.k
        docids_by_query = self._compared_docids(misses, depth)
        row_of_docid: dict[str, int] = {}
        for docids in docids_by_query.values():
            for docid in docids:
                row_of_docid.setdefault(docid, len(row_of_docid))
        passages = [self._evidence.texts[docid] for docid in row_of_docid]
        vectors = self._whole.encode("encoding all dimensions", passages)
        hits_by_query = {}
        for qid, docids in docids_by_query.items():
            rows = [row_of_docid[docid] for docid in docids]
            scores = self._whole.scores(qid, vectors[rows]).tolist()
            hits = zip(docids, scores, strict=True)
            hits_by_query[qid] = sorted(hits, key=lambda hit: hit[1], reverse=True)
        change = f"keep all dimensions (among the first {depth} hits)"
        return [Trial(change, rank_of(hits_by_query[miss.qid], miss.docid)) for miss in misses]

    def _compared_docids(self, misses: Sequence[Miss], depth: int) -> dict[str, list[str]]:
        """Return, by query, the first hits and then the missed passages whose texts are known."""
        docids_by_query: dict[str, dict[str, None]] = {}  # in their order, each once
        for miss in misses:
            if miss.qid not in docids_by_query:
                first_hits = self._evidence.hits[miss.qid][:depth]
                docids_by_query[miss.qid] = dict.fromkeys(docid for docid, _ in first_hits)
            docids_by_query[miss.qid][miss.docid] = None
        return {
            qid: [docid for docid in docids if docid in self._evidence.texts]
            for qid, docids in docids_by_query.items()
        }


@dataclass
class LongPassages:
    """Tells which passages are longer than the length limit under which the index was encoded."""

    dense: DenseSearch
    limit: int = field(init=False)  # tokens
    lengths: dict[str, int] = field(init=False, default_factory=dict)  # of those that were counted

    def __post_init__(self) -> None:
        self.limit = self.dense.passage_encoder.text.passage_max_length

    def length(self, passage: Passage) -> int:
        """Return the number of tokens of a whole passage, special tokens included."""
        if passage.docid not in self.lengths:
            tokenizer = self.dense.passage_encoder.sides[PASSAGE].tokenizer
            (ids,) = tokenizer.passages([passage], NO_LIMIT)
            self.lengths[passage.docid] = len(ids)
        return self.lengths[passage.docid]

    def is_long(self, passage: Passage) -> bool:
        """Return whether a passage is cut."""
        return self.length(passage) > self.limit

    def long_ones(self, passages: Sequence[Passage]) -> list[Passage]:
        """Return which passages are cut: as `is_long`, with many tokenised together."""
        tokenizer = self.dense.passage_encoder.sides[PASSAGE].tokenizer
        ids_of_passages = tokenizer.passages(passages, NO_LIMIT)
        long = []
        for passage, ids in zip(passages, ids_of_passages, strict=True):
            if len(ids) > self.limit:
                self.lengths[passage.docid] = len(ids)
                long.append(passage)
        return long


class LongerLimit(Change):
    """Passages are encoded with as many tokens as the model has positions for.

    `long_passages` are all of the collection that are cut, in the order of the corpus; None: too
    many to encode again.
    """

    cause = "length"

    def __init__(
        self,
        evidence: Evidence,
        passages: LongPassages,
        new_limit: int,
        long_passages: Sequence[Passage] | None,
    ) -> None:
        super().__init__(evidence)
        self._passages = passages
        self._new_limit = new_limit
        self._long_passages = long_passages
        self.name = f"encode {new_limit} tokens of a passage"

    def try_change(self, misses: Sequence[Miss]) -> list[Trial | None]:
        """Encode the long ones among the passages, and rank them among the hits."""
        dense = self._passages.dense
        long_passages: dict[str, Passage] = {}
        for miss in misses:
            for passage in self._evidence.texts_of(miss):
                if self._passages.is_long(passage):
                    long_passages[miss.docid] = passage
        task = f"encoding {self._new_limit} tokens"
        vectors = dense.encode_longer(task, list(long_passages.values()), self._new_limit)
        row_of_docid = {docid: row for row, docid in enumerate(long_passages)}
        trials: list[Trial | None] = []
        for miss in misses:
            if miss.docid not in row_of_docid:
                trials.append(None)
                continue
            row = row_of_docid[miss.docid]
            (score,) = dense.scores(miss.qid, vectors[row : row + 1])
            token_count = min(self._new_limit, self._passages.length(long_passages[miss.docid]))
            rank = dense.rank_with(miss.qid, miss.docid, float(score))
            trials.append(Trial(f"encode {token_count} tokens of it", rank))
        return trials

    def change_all_queries(self) -> Fix | None:
        """Encode all long passages of the collection."""
        if self._long_passages is None:
            return None
        dense = self._passages.dense
        task = f"encoding {self._new_limit} tokens of all long passages"
        vectors = dense.encode_longer(task, self._long_passages, self._new_limit)
        docids = [passage.docid for passage in self._long_passages]
        return Fix(dense.merged(docids, vectors))


class Windows(TextChange):
    """Long passages are cut into windows half as long as the limit, which overlap by half."""

    cause = "length"
    name = "cut long passages into windows"
    task = "encoding windows of long passages"

    def __init__(
        self,
        evidence: Evidence,
        passages: LongPassages,
        long_passages: Sequence[Passage] | None,
    ) -> None:
        super().__init__(evidence, passages.dense)
        self._passages = passages
        self._long_passages = long_passages

    def _description(self, best: int, count: int) -> str:
        """Return which window was the best."""
        return f"window {best + 1} of {count} beyond the limit"

    def _texts(self, miss: Miss) -> list[Passage]:
        """Return the windows of a long passage that reach beyond the limit; of others none."""
        passage = self._evidence.texts.get(miss.docid)
        if passage is None or not self._passages.is_long(passage):
            return []
        words = list(word_spans(passage.text))
        if not words:  # its title alone is long
            return []
        _, end_within_limit = words[max(int(self._words_within_limit(passage, words)), 1) - 1]
        return [
            passage._replace(text=passage.text[start:end])
            for start, end in self._window_spans(passage)
            if end > end_within_limit
        ]

    def _window_spans(self, passage: Passage) -> Iterator[Span]:
        """Yield where the windows of a passage's text start and end."""
        words = list(word_spans(passage.text))
        size = max(1, int(self._words_within_limit(passage, words) / 2))
        yield from windows(words, size, ceil(size / 2))

    def _words_within_limit(self, passage: Passage, words: Sequence[Span]) -> float:
        """Return about how many words of a passage's text the model reads."""
        return len(words) * self._passages.limit / self._passages.length(passage)

    def change_all_queries(self) -> Fix | None:
        """Cut all long passages of the collection; each counts with its best window."""
        if self._long_passages is None:
            return None
        parts = []
        for passage in self._long_passages:
            for start, end in self._window_spans(passage):
                parts.append(passage._replace(text=passage.text[start:end]))
        vectors = self._dense.encode("encoding windows of all long passages", parts)
        return Fix(self._dense.merged([part.docid for part in parts], vectors))


class SentenceInFront(TextChange):
    """One sentence of the passage is moved to its front; each is tried.

    It is no change of all queries: which sentence answers, a search does not know.
    """

    cause = "position"
    name = "move a sentence to the front"
    task = "encoding passages with a sentence in front"

    def _description(self, best: int, count: int) -> str:
        """Return which sentence came first, counted from 1."""
        return f"sentence {best + 2} first"

    def _texts(self, miss: Miss) -> list[Passage]:
        """Return the passage with its second sentence in front, its third, and so on."""
        passage = self._evidence.texts.get(miss.docid)
        if passage is None:
            return []
        sentences = split_sentences(passage.text)
        return [
            passage._replace(text=" ".join(with_item_first(sentences, position)))
            for position in range(1, min(len(sentences), MOST_SENTENCES))
        ]


def with_item_first(items: Sequence[str], position: int) -> list[str]:
    """Return items with one of them moved to the front.

    >>> with_item_first(["a", "b", "c"], 2)
    ['c', 'a', 'b']
    """
    return [items[position], *items[:position], *items[position + 1 :]]
