"""How alike two texts are: one within the other word for word, or many trigrams of words shared."""

import re
from collections.abc import Sequence

_WORD = re.compile(r"\w+")


Trigrams = frozenset[tuple[str, ...]]


def words(text: str) -> list[str]:
    """The words of a text, without cases and signs.

    >>> words("The old -- River!")
    ['the', 'old', 'river']
    """
    return _WORD.findall(text.casefold())


def trigrams(found: Sequence[str]) -> Trigrams:
    """The runs of three words; fewer words are one run.

    >>> sorted(trigrams(words("The old river runs.")))
    [('old', 'river', 'runs'), ('the', 'old', 'river')]
    """
    if len(found) < 3:
        return frozenset([tuple(found)] if found else [])
    return frozenset(zip(found, found[1:], found[2:], strict=False))


def share(one: Trigrams, other: Trigrams) -> float:
    """Jaccard's coefficient of two sets; 0 where both are empty.

    >>> share(trigrams("abcd"), trigrams("xabc"))
    0.3333333333333333
    """
    both = len(one & other)
    return both / (len(one) + len(other) - both) if both else 0.0


def _between_blanks(found: Sequence[str]) -> str:
    return f" {' '.join(found)} "


class Likeness:
    """Texts made ready to be compared with the words of many others.

    Args:
        texts: the texts, of positives say; those without a word are like nothing.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        own = [found for found in map(words, texts) if found]
        self._texts = {_between_blanks(found) for found in own}
        self._trigrams = [trigrams(found) for found in own]

    def equals(self, found: Sequence[str]) -> bool:
        """Whether they are the words of one of the texts."""
        return _between_blanks(found) in self._texts

    def literal(self, found: Sequence[str]) -> bool:
        """Whether one of the texts stands in them word for word, or they stand in it.

        >>> Likeness(["the old river"]).literal(words("See: The old  river."))
        True
        """
        text = _between_blanks(found)
        return bool(found) and any(text in own or own in text for own in self._texts)

    def most_shared(self, found: Sequence[str]) -> float:
        """The largest share of trigrams that they have in common with one of the texts."""
        theirs = trigrams(found)
        return max((share(theirs, own) for own in self._trigrams), default=0.0)
