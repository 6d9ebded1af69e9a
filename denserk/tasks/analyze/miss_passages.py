"""Changes of passages: other texts, lengths and dimensions, encoded again."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil

import numpy as np
from numpy.typing import NDArray

from denserk.data.sentences import split_sentences
from denserk.data.splitting import windows, word_spans
from denserk.models.text_encoder import PASSAGE
from denserk.records import Passage
from denserk.tasks.analyze.miss_causes import (
    RERANKED_FACTOR,
    Evidence,
    Fix,
    Miss,
    Trial,
    scores_of_texts,
)
from denserk.tasks.analyze.miss_search import (
    DenseSearch,
    rank_of,
)

MOST_SENTENCES = 64  # of a passage, that are tried in front
NO_LIMIT = 1 << 20  # tokens
MOVED = 0.01  # relative difference of scores from which a stored vector is another one


class EncodedAgain:
    """The passage is encoded as it is now; its stored vector is another one."""

    cause = "outdated"
    name = "encode again"

    def __init__(self, evidence: Evidence, dense: DenseSearch) -> None:
        self._evidence = evidence
        self._dense = dense

    def try_change(self, misses: Sequence[Miss]) -> list[Trial | None]:
        """Encode the passages and rank them among the hits."""
        task = "encoding missed passages"
        scores = scores_of_texts(self._dense, task, misses, self._text)
        return [self._trial(miss, scores[miss]) for miss in misses]

    def everywhere(self) -> Fix | None:
        """Which other vectors are outdated is not known."""
        return None

    def _text(self, miss: Miss) -> list[Passage]:
        """Return the passage of the corpus, if it is there."""
        passage = self._evidence.texts.get(miss.docid)
        return [] if passage is None else [passage]

    def _trial(self, miss: Miss, scores: NDArray[np.float32]) -> Trial | None:
        """Return the trial of a passage; None if its score is the one that it had."""
        if not len(scores):
            return None
        score = float(scores[0])
        rivals = self._dense.rivals[miss.qid]
        stored_scores = dict(rivals)
        lowest = rivals[-1][1] if rivals else -np.inf
        stored_score = stored_scores.get(miss.docid, lowest)
        if score - stored_score <= MOVED * abs(stored_score):
            return None
        return Trial("encode it again", self._dense.rank_with(miss.qid, miss.docid, score))


class FullDimensions:
    """Vectors keep all their dimensions: the first hits and the passage are encoded again.

    `whole` is the search with a model that cuts no dimension. Only passages among the hits of the
    run are compared.
    """

    cause = "approximate"
    name = "keep all dimensions"

    def __init__(self, evidence: Evidence, whole: DenseSearch) -> None:
        self._evidence = evidence
        self._whole = whole

    def try_change(self, misses: Sequence[Miss]) -> list[Trial | None]:
        """Encode the first hits and the missed passages, and order them."""
        settings = self._evidence.settings
        depth = RERANKED_FACTOR * settings.k
        docids_by_query: dict[str, dict[str, None]] = {}
        for miss in misses:
            if miss.qid not in docids_by_query:
                first_hits = self._evidence.hits[miss.qid][:depth]
                docids_by_query[miss.qid] = dict.fromkeys(docid for docid, _ in first_hits)
            docids_by_query[miss.qid][miss.docid] = None
        texts = self._evidence.texts
        needed: dict[str, None] = {}
        for docids in docids_by_query.values():
            needed |= {docid: None for docid in docids if docid in texts}
        passages = [texts[docid] for docid in needed]
        vectors = self._whole.encode("encoding all dimensions", passages)
        row_of = {docid: row for row, docid in enumerate(needed)}
        hits_by_query = {}
        for qid, docids in docids_by_query.items():
            encoded = [docid for docid in docids if docid in row_of]
            rows = [row_of[docid] for docid in encoded]
            scores = self._whole.scores(qid, vectors[rows]).tolist()
            ranked = sorted(zip(encoded, scores, strict=True), key=lambda hit: hit[1], reverse=True)
            hits_by_query[qid] = ranked
        name = f"keep all dimensions (among the first {depth} hits)"
        return [Trial(name, rank_of(hits_by_query[miss.qid], miss.docid)) for miss in misses]

    def everywhere(self) -> Fix | None:
        """Hits beyond the first are not encoded again."""
        return None


@dataclass
class LongPassages:
    """The passages that are longer than the limit of the model."""

    evidence: Evidence
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
        """Return which of some passages are cut."""
        tokenizer = self.dense.passage_encoder.sides[PASSAGE].tokenizer
        ids_of_passages = tokenizer.passages(passages, NO_LIMIT)
        long = []
        for passage, ids in zip(passages, ids_of_passages, strict=True):
            if len(ids) > self.limit:
                self.lengths[passage.docid] = len(ids)
                long.append(passage)
        return long


class LongerLimit:
    """Passages are encoded with as many tokens as the model has positions for.

    `long_passages` are all of the collection that are cut, in the order of the corpus; None: too
    many to encode again.
    """

    cause = "length"

    def __init__(
        self, passages: LongPassages, new_limit: int, long_passages: Sequence[Passage] | None
    ) -> None:
        self._passages = passages
        self._new_limit = new_limit
        self._long_passages = long_passages
        self.name = f"encode {new_limit} tokens of a passage"

    def try_change(self, misses: Sequence[Miss]) -> list[Trial | None]:
        """Encode the long ones among the passages, and rank them among the hits."""
        texts = self._passages.evidence.texts
        dense = self._passages.dense
        long: dict[str, Passage] = {}
        for miss in misses:
            passage = texts.get(miss.docid)
            if passage is not None and self._passages.is_long(passage):
                long[miss.docid] = passage
        passages = list(long.values())
        task = f"encoding {self._new_limit} tokens"
        vectors = dense.encode_longer(task, passages, self._new_limit)
        row_of = {docid: row for row, docid in enumerate(long)}
        trials: list[Trial | None] = []
        for miss in misses:
            if miss.docid not in row_of:
                trials.append(None)
                continue
            row = row_of[miss.docid]
            (score,) = dense.scores(miss.qid, vectors[row : row + 1])
            limit = min(self._new_limit, self._passages.length(long[miss.docid]))
            rank = dense.rank_with(miss.qid, miss.docid, float(score))
            trials.append(Trial(f"encode {limit} tokens of it", rank))
        return trials

    def everywhere(self) -> Fix | None:
        """Encode all long passages of the collection."""
        if self._long_passages is None:
            return None
        dense = self._passages.dense
        task = f"encoding {self._new_limit} tokens of all long passages"
        vectors = dense.encode_longer(task, self._long_passages, self._new_limit)
        docids = [passage.docid for passage in self._long_passages]
        return Fix(dense.merged(docids, vectors))


class Windows:
    """Long passages are cut into windows half as long as the limit, which overlap by half."""

    cause = "length"
    name = "cut long passages into windows"

    def __init__(self, passages: LongPassages, long_passages: Sequence[Passage] | None) -> None:
        self._passages = passages
        self._long_passages = long_passages

    def try_change(self, misses: Sequence[Miss]) -> list[Trial | None]:
        """Rank the best window of each long passage among the hits."""
        dense = self._passages.dense
        task = "encoding windows of long passages"
        scores = scores_of_texts(dense, task, misses, self._windows_beyond_limit)
        trials: list[Trial | None] = []
        for miss in misses:
            if not len(scores[miss]):
                trials.append(None)
                continue
            best = int(scores[miss].argmax())
            rank = dense.rank_with(miss.qid, miss.docid, float(scores[miss][best]))
            count = len(scores[miss])
            trials.append(Trial(f"window {best + 1} of {count} beyond the limit", rank))
        return trials

    def _windows_beyond_limit(self, miss: Miss) -> list[Passage]:
        """Return the windows of a long passage that reach beyond the limit; of others none."""
        passage = self._passages.evidence.texts.get(miss.docid)
        if passage is None or not self._passages.is_long(passage):
            return []
        spans = list(word_spans(passage.text))
        words_within = int(len(spans) * self._passages.limit / self._passages.length(passage))
        _, end_within = spans[max(words_within, 1) - 1]
        return [
            passage._replace(text=passage.text[start:end])
            for start, end in self._window_spans(passage)
            if end > end_within
        ]

    def _window_spans(self, passage: Passage) -> Iterator[tuple[int, int]]:
        """Yield where the windows of a passage start and end."""
        spans = list(word_spans(passage.text))
        words_within = len(spans) * self._passages.limit / self._passages.length(passage)
        size = max(1, int(words_within / 2))
        yield from windows(spans, size, ceil(size / 2))

    def everywhere(self) -> Fix | None:
        """Cut all long passages of the collection; each counts with its best window."""
        if self._long_passages is None:
            return None
        parts = []
        for passage in self._long_passages:
            for start, end in self._window_spans(passage):
                parts.append(passage._replace(text=passage.text[start:end]))
        dense = self._passages.dense
        vectors = dense.encode("encoding windows of all long passages", parts)
        return Fix(dense.merged([part.docid for part in parts], vectors))


class SentenceInFront:
    """One sentence of the passage is moved to its front; each is tried."""

    cause = "position"
    name = "move a sentence to the front"

    def __init__(self, evidence: Evidence, dense: DenseSearch) -> None:
        self._evidence = evidence
        self._dense = dense

    def try_change(self, misses: Sequence[Miss]) -> list[Trial | None]:
        """Rank the best order of each passage among the hits."""
        task = "encoding passages with a sentence in front"
        scores = scores_of_texts(self._dense, task, misses, self._orders)
        trials: list[Trial | None] = []
        for miss in misses:
            if not len(scores[miss]):
                trials.append(None)
                continue
            best = int(scores[miss].argmax())
            rank = self._dense.rank_with(miss.qid, miss.docid, float(scores[miss][best]))
            trials.append(Trial(f"sentence {best + 2} first", rank))
        return trials

    def _orders(self, miss: Miss) -> list[Passage]:
        """Return the passage with its second sentence in front, its third, and so on."""
        passage = self._evidence.texts.get(miss.docid)
        if passage is None:
            return []
        sentences = split_sentences(passage.text)[:MOST_SENTENCES]
        return [
            passage._replace(text=" ".join(with_item_first(sentences, position)))
            for position in range(1, len(sentences))
        ]

    def everywhere(self) -> Fix | None:
        """Which sentence answers, a search does not know."""
        return None


def with_item_first(items: Sequence[str], position: int) -> list[str]:
    """Return items with one of them moved to the front.

    >>> with_item_first(["a", "b", "c"], 2)
    ['c', 'a', 'b']
    """
    return [items[position], *items[:position], *items[position + 1 :]]
