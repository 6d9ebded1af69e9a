"""Which passages are copies of each other: by the word trigrams that they share."""

import re
from collections.abc import Mapping

from denserk.records import Passage

WORD = re.compile(r"\w+")
TRIGRAM_WORDS = 3

Trigrams = frozenset[tuple[str, ...]]


def trigrams(text: str) -> Trigrams:
    """Return the word trigrams of a text without case and punctuation; of a short one, its words.

    >>> sorted(trigrams("The cat sleeps, here."))
    [('cat', 'sleeps', 'here'), ('the', 'cat', 'sleeps')]
    >>> trigrams("Cat!")
    frozenset({('cat',)})
    """
    words = WORD.findall(text.casefold())
    if not words:
        return frozenset()
    last_start = max(len(words) - TRIGRAM_WORDS, 0)
    return frozenset(tuple(words[start : start + TRIGRAM_WORDS]) for start in range(last_start + 1))


def overlap(first: Trigrams, second: Trigrams) -> float:
    """Return the Jaccard coefficient of two sets: 0 if nothing is shared, 1 if all is.

    >>> overlap(trigrams("a b c d"), trigrams("a b c e"))
    0.3333333333333333
    """
    shared = len(first & second)
    if not shared:
        return 0.0
    return shared / (len(first) + len(second) - shared)


class NearCopies:
    """Compares passages by their texts; one whose text is not known is a copy of none."""

    def __init__(self, texts: Mapping[str, Passage], least_overlap: float) -> None:
        self._texts = texts
        self._least_overlap = least_overlap
        self._trigrams: dict[str, Trigrams] = {}

    def are_copies(self, docid: str, other_docid: str) -> bool:
        """Return whether two passages are copies of each other."""
        first = self._trigrams_of(docid)
        second = self._trigrams_of(other_docid)
        if not first or not second:
            return False
        smaller_size, larger_size = sorted((len(first), len(second)))
        if smaller_size < self._least_overlap * larger_size:  # they cannot share enough
            return False
        return overlap(first, second) >= self._least_overlap

    def _trigrams_of(self, docid: str) -> Trigrams:
        """Return the trigrams of a passage, which are computed once."""
        if docid not in self._trigrams:
            passage = self._texts.get(docid)
            text = "" if passage is None else f"{passage.title} {passage.text}"
            self._trigrams[docid] = trigrams(text)
        return self._trigrams[docid]
