"""How alike two texts are: one within the other word for word, or many trigrams of words shared."""

import re
from collections.abc import Sequence

_WORD = re.compile(r"\w+")


def plain(text: str) -> str:
    r"""A text without the difference of cases and white space.

    >>> plain("The  old\nRiver ")
    'the old river'
    """
    return " ".join(text.casefold().split())


def trigrams(text: str) -> frozenset[tuple[str, ...]]:
    """The runs of three words in a text; a shorter one is a run of its own.

    >>> sorted(trigrams("The old river runs."))
    [('old', 'river', 'runs'), ('the', 'old', 'river')]
    """
    words = _WORD.findall(text.casefold())
    if len(words) < 3:
        return frozenset([tuple(words)] if words else [])
    return frozenset(zip(words, words[1:], words[2:], strict=False))


def share(one: frozenset[tuple[str, ...]], other: frozenset[tuple[str, ...]]) -> float:
    """Jaccard's coefficient of two sets; 0 where both are empty.

    >>> share(trigrams("a b c d"), trigrams("x a b c"))
    0.3333333333333333
    """
    both = len(one & other)
    return both / (len(one) + len(other) - both) if both else 0.0


def _padded(text: str) -> str:
    """The words of a text between single blanks, so that whole words are found in it."""
    return f" {' '.join(_WORD.findall(text.casefold()))} "


class Likeness:
    """Texts made ready to be compared with many others.

    Args:
        texts: the texts, of positives say.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._plain = {plain(text) for text in texts} - {""}
        self._padded = {_padded(text) for text in texts} - {"  "}
        self._trigrams = [trigrams(text) for text in texts]

    def equals(self, text: str) -> bool:
        """Whether the text is one of them, cases and white space aside."""
        return plain(text) in self._plain

    def literal(self, text: str) -> bool:
        """Whether the text holds one of them word for word, or is held by one.

        >>> Likeness(["the old river"]).literal("See: The old  river."), Likeness(["a"]).literal("")
        (True, False)
        """
        words = _padded(text)
        return words != "  " and any(words in own or own in words for own in self._padded)

    def most_shared(self, text: str) -> float:
        """The largest share of word trigrams that the text has in common with one of them."""
        own = trigrams(text)
        return max((share(own, each) for each in self._trigrams), default=0.0)
