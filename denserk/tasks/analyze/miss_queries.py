"""Changes of the search: a field more, a weight for BM25, and other spellings of queries."""

import difflib
import re
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from denserk.config.retrieval import FusionSettings
from denserk.index.fusion import score_contributions
from denserk.index.ranking import Hits
from denserk.models.text_encoder import QUERY
from denserk.records import Query
from denserk.tasks.analyze.miss_search import DenseSearch, HitsByQuery, rank_of
from denserk.tasks.analyze.miss_trials import Change, Evidence, Fix, Miss, SingleChange, Trial

MANY_SUBWORDS = 4  # a word of so many subword tokens is one that the model hardly knows
LEAST_SIMILARITY = 0.75  # of two spellings of a word, by difflib
OUTER_PUNCTUATION = "\"'()[]{}.,;:!?\u2018\u2019\u201c\u201d\u00ab\u00bb"


class FieldSearched(SingleChange):
    """The queries have a further field of the topics, and are searched again.

    `fields` is what --set topics-field takes for it, such as "title,text".
    """

    cause = "fields"

    def __init__(self, evidence: Evidence, fields: str, new_hits: HitsByQuery) -> None:
        super().__init__(evidence)
        self.name = f"search with {fields}"
        self._new_hits = new_hits

    def _trial(self, miss: Miss) -> Trial | None:
        """Return the rank of a passage in the search with the field."""
        return Trial(self.name, rank_of(self._new_hits.get(miss.qid, []), miss.docid))

    def change_all_queries(self) -> Fix | None:
        """Return the hits of the search with the field."""
        return Fix(self._new_hits)


class WeightOfWords(SingleChange):
    """BM25 has a share in the score, with each weight of a grid.

    `runs_by_query` holds the hits of the two runs that are fused, that of BM25 second. To be a
    change of all queries, it needs a weight, which `miss_gains` chooses by cross-validation.
    """

    cause = "words"

    def __init__(
        self,
        evidence: Evidence,
        runs_by_query: Mapping[str, tuple[Hits, Hits]],
        fusion: FusionSettings,
        current_weight: float,
    ) -> None:
        super().__init__(evidence)
        self._current_weight = current_weight
        weights = evidence.settings.word_weights
        # the smallest change of the weight comes first
        self.weights = sorted(weights, key=lambda weight: abs(weight - current_weight))
        self.name = "fuse with BM25" if not current_weight else "another weight of BM25"
        self._fused = {
            qid: _fuse(runs, fusion, self.weights) for qid, runs in runs_by_query.items()
        }

    def _trial(self, miss: Miss) -> Trial | None:
        """Return the trial of the weight nearest to the present one that brings a passage in.

        None if neither run has the passage.
        """
        fused = self._fused.get(miss.qid)
        if fused is None or miss.docid not in fused.docids:
            return None
        column = fused.docids.index(miss.docid)
        passage_scores = fused.scores[:, column : column + 1]  # (W, 1)
        higher_scores = (fused.scores > passage_scores).sum(axis=1)
        ties_above = (fused.scores[:, :column] == passage_scores).sum(axis=1)
        ranks = higher_scores + ties_above + 1  # (W,)
        bringing_in = np.flatnonzero(ranks <= self._evidence.k)
        chosen = int(bringing_in[0]) if len(bringing_in) else int(ranks.argmin())
        change = f"fuse with weight {self.weights[chosen]:g} of BM25"
        return Trial(change, int(ranks[chosen]))

    def hits_with(self, weight: float) -> dict[str, Hits]:
        """Return the hits of all queries with a weight of the grid."""
        position = self.weights.index(weight)
        hits_by_query = {}
        for qid, fused in self._fused.items():
            scores = fused.scores[position].tolist()
            ranked = sorted(
                zip(fused.docids, scores, strict=True),
                key=lambda hit: (hit[1], hit[0]),
                reverse=True,
            )
            hits_by_query[qid] = ranked
        return hits_by_query


class _FusedScores(NamedTuple):
    """The fused scores of a query's passages for W weights."""

    docids: list[str]  # in the order of hits with equal scores
    scores: NDArray[np.float64]  # (W, N)


def _fuse(
    runs: tuple[Hits, Hits], fusion: FusionSettings, weights: Sequence[float]
) -> _FusedScores:
    """Return the scores of two runs' passages for each weight of the second."""
    contributions = score_contributions(runs, fusion)
    docids = sorted(contributions, reverse=True)
    values = np.array([contributions[docid] for docid in docids]).reshape(-1, 2)  # (N, 2)
    bm25_weights = np.array(weights)  # (W,)
    scores = np.outer(1 - bm25_weights, values[:, 0]) + np.outer(bm25_weights, values[:, 1])
    return _FusedScores(docids, scores)


class RespelledQuery(Change):
    """Broken words of the query, those that are many subword tokens, are spelled otherwise.

    It is no change of all queries: one of the spellings is that of the passage, which a search does
    not know.
    """

    cause = "subwords"
    name = "spell broken words otherwise"

    def __init__(self, evidence: Evidence, dense: DenseSearch) -> None:
        super().__init__(evidence)
        self._dense = dense

    def try_change(self, misses: Sequence[Miss]) -> list[Trial | None]:
        """Search with each spelling of the queries, and return the best rank of each passage."""
        spellings_of_miss = {miss: self._spellings(miss) for miss in misses}
        queries: dict[str, Query] = {}  # by id: a spelling is searched once for each query
        for miss, spellings in spellings_of_miss.items():
            for text in spellings:
                qid = f"{miss.qid}\t{text}"
                queries[qid] = Query(qid, text)
        hits_by_spelling = self._dense.search(list(queries.values())) if queries else {}
        trials: list[Trial | None] = []
        for miss in misses:
            best: Trial | None = None
            for text, change in spellings_of_miss[miss].items():
                rank = rank_of(hits_by_spelling.get(f"{miss.qid}\t{text}", []), miss.docid)
                trial = Trial(change, rank)
                if best is None or _is_better(trial, best):
                    best = trial
            trials.append(best)
        return trials

    def _spellings(self, miss: Miss) -> dict[str, str]:
        """Return other texts of the query, each with what was changed; none if no word is broken.

        The cheapest rewriting comes first.
        """
        query = self._evidence.queries[miss.qid]
        broken = self._broken_words(query.text)
        if not broken:
            return {}
        passage = self._evidence.texts.get(miss.docid)
        passage_words: set[str] = set()
        if passage is not None:
            text = f"{passage.title} {passage.text}"
            passage_words = {word.strip(OUTER_PUNCTUATION) for word in text.split()}
        rewritings: dict[str, Callable[[str], str]] = {
            "in lower case": str.lower,
            "without accents": without_accents,
            "split": split_word,
            "in one word": joined_word,
            "as the passage spells it": lambda word: nearest_word(word, passage_words),
        }
        spellings: dict[str, str] = {}
        for name, rewrite in rewritings.items():
            new_words = {word: rewrite(word) for word in broken}
            text = replace_words(query.text, new_words)
            if text.strip() and text != query.text and text not in spellings:
                changed = [f"{old} to {new}" for old, new in new_words.items() if old != new]
                spellings[text] = f"{name}: {', '.join(changed)}"
        return spellings

    def _broken_words(self, text: str) -> list[str]:
        """Return the words of a query that are many subword tokens."""
        bare_words = [word.strip(OUTER_PUNCTUATION) for word in text.split()]
        words = list(dict.fromkeys(filter(None, bare_words)))  # each once
        tokenizer = self._dense.passage_encoder.sides[QUERY].tokenizer
        ids_of_words = tokenizer.subword_tokens([f" {word}" for word in words])
        broken_words = []
        for word, ids in zip(words, ids_of_words, strict=True):
            if len(ids) >= MANY_SUBWORDS:
                broken_words.append(word)
        return broken_words


def _is_better(trial: Trial, other: Trial) -> bool:
    """Return whether a trial has a better rank than another."""
    if trial.rank is None:
        return False
    return other.rank is None or trial.rank < other.rank


def without_accents(word: str) -> str:
    """Return a word without diacritical marks.

    >>> without_accents("Curaçao")
    'Curacao'
    """
    decomposed = unicodedata.normalize("NFKD", word)
    return "".join(char for char in decomposed if not unicodedata.combining(char))


def split_word(word: str) -> str:
    """Split a word at hyphens and the like, before capitals, and between letters and digits.

    >>> split_word("getFileName"), split_word("HTTP-Server/v2"), split_word("snake_case")
    ('get File Name', 'HTTP Server v 2', 'snake case')
    """
    text = re.sub(r"[-_/.\u2010-\u2015+:@#]+", " ", word)
    text = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", text)
    text = re.sub(r"(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])", " ", text)
    return " ".join(text.split())


def joined_word(word: str) -> str:
    """Return a word without hyphens, dots and underscores.

    >>> joined_word("e-mail")
    'email'
    """
    return re.sub(r"[-_.\u2010-\u2015]+", "", word)


def nearest_word(word: str, words: Collection[str]) -> str:
    """Return the word of a text that is spelled most alike; the word itself if none is.

    >>> nearest_word("fotosynthesis", {"photosynthesis", "light"})
    'photosynthesis'
    """
    lowered = {candidate.lower(): candidate for candidate in sorted(words)}
    matches = difflib.get_close_matches(word.lower(), sorted(lowered), n=1, cutoff=LEAST_SIMILARITY)
    return lowered[matches[0]] if matches else word


def replace_words(text: str, new_words: Mapping[str, str]) -> str:
    """Replace whole words of a text.

    >>> replace_words("what is getFileName?", {"getFileName": "get File Name"})
    'what is get File Name?'
    """
    for word, new_word in new_words.items():
        pattern = rf"(?<!\w){re.escape(word)}(?!\w)"
        # a template of re.sub would interpret a backslash
        template = new_word.replace("\\", r"\\")
        text = re.sub(pattern, template, text)
    return text
