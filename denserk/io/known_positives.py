"""Known positives of a query, which are never its negatives.

A passage is a known positive by its id, or by its title and text under any id: collections hold
copies. Texts are equal if only their white space differs; case and punctuation count.
"""

import logging
from collections.abc import Iterable, Iterator

from denserk.io.short_texts import with_single_spaces
from denserk.records import Candidate, TrainingExample

logger = logging.getLogger(__name__)

LEFT_OUT = "negatives with the id or the text of a positive of their query are left out"


def text_key(*fields: str) -> tuple[str, ...] | None:
    r"""Return what passages of equal fields share; None where all fields are empty.

    >>> text_key("Moon", "it  rises\tat night ") == text_key("Moon", "it rises at night")
    True
    """
    key = tuple(map(with_single_spaces, fields))
    return key if any(key) else None


class KnownPositives:
    """The positives of a query, by id and by text."""

    def __init__(self, positives: Iterable[Candidate]) -> None:
        self._ids: set[str] = set()
        self._texts: set[tuple[str, ...]] = set()
        for positive in positives:
            if positive.docid:
                self._ids.add(positive.docid)
            key = text_key(positive.title, positive.text)
            if key is not None:
                self._texts.add(key)

    def has_text_of(self, candidate: Candidate) -> bool:
        """Return whether a passage has the title and the text of a positive."""
        return text_key(candidate.title, candidate.text) in self._texts

    def __contains__(self, candidate: Candidate) -> bool:
        """Return whether a passage is a positive."""
        return candidate.docid in self._ids or self.has_text_of(candidate)


def without_known_positives(examples: Iterable[TrainingExample]) -> Iterator[TrainingExample]:
    """Yield examples without the negatives that are positives; log their number at the end."""
    left_out = 0
    for example in examples:
        positives = KnownPositives(example.positives)
        negatives = tuple(passage for passage in example.negatives if passage not in positives)
        left_out += len(example.negatives) - len(negatives)
        yield example._replace(negatives=negatives)
    if left_out:
        logger.warning(f"{LEFT_OUT}: {left_out:,}")
