"""Documents to passages: windows of words or of sentences."""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from denserk.errors import InputError
from denserk.records import Passage, document_of

WORD = re.compile(r"\S+")

Span = tuple[int, int]  # start and end in a text


class DocumentSplitter:
    """Splits documents into passages, and counts documents and characters.

    A passage is `size` units of its document's text: words or sentences, as `spans` finds them. The
    next one starts `stride` units behind it; the last one ends with the document and may have fewer
    units. Passages keep title and other fields of their document. Those of document d1 are d1#0,
    d1#1, ... with the `delimiter` "#". A document without text becomes one passage without text.

    `source` names the documents in errors.
    """

    def __init__(
        self,
        spans: Callable[[str], Iterable[Span]],
        size: int,
        stride: int,
        delimiter: str,
        source: str,
    ) -> None:
        self._spans = spans
        self._size = size
        self._stride = stride
        self._delimiter = delimiter
        self._source = source
        self.documents = 0
        self.characters = 0  # of all passages
        self.longest = 0  # characters of a passage
        self._units = 0
        self._unit_characters = 0

    @property
    def mean_unit(self) -> float:
        """Mean length of a unit, in characters."""
        return self._unit_characters / max(self._units, 1)

    def split(self, documents: Iterable[Passage]) -> Iterator[Passage]:
        """Yield the passages of documents, in their order; one document is in memory."""
        for document in documents:
            self.documents += 1
            for number, (start, end) in enumerate(self._passage_spans(document.text)):
                self.characters += end - start
                self.longest = max(self.longest, end - start)
                docid = self._passage_id(document.docid, number)
                yield document._replace(docid=docid, text=document.text[start:end])

    def _passage_spans(self, text: str) -> Iterator[Span]:
        """Yield where the passages of a text start and end; of a text without units one, empty."""
        is_empty = True
        for span in windows(self._counted_spans(text), self._size, self._stride):
            is_empty = False
            yield span
        if is_empty:
            yield 0, 0

    def _counted_spans(self, text: str) -> Iterator[Span]:
        """Yield where the units of a text start and end, and count them."""
        for span in self._spans(text):
            start, end = span
            self._units += 1
            self._unit_characters += end - start
            yield span

    def _passage_id(self, docid: str, number: int) -> str:
        """Return the id of a passage; reject one from which the document's id does not follow."""
        passage_id = f"{docid}{self._delimiter}{number}"
        document_id = document_of(passage_id, self._delimiter)
        if document_id != docid:
            raise InputError(
                self._source,
                None,
                f"the document id {docid!r}, which search --max-passage would read as "
                f"{document_id!r}",
                f"ids without {self._delimiter!r}, the delimiter between document and part",
                "choose another with --set max-passage-delimiter=TEXT, here and in search",
            )
        return passage_id


def windows(spans: Iterable[Span], size: int, stride: int) -> Iterator[Span]:
    """Yield where windows of `size` spans start and end, the last of which may have fewer.

    Each begins `stride` spans, at most `size`, behind the one before. The last ends with the last
    span. One window is in memory.

    >>> list(windows([(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)], 3, 2))
    [(0, 5), (4, 9)]
    """
    window: deque[Span] = deque()
    for span in spans:
        if len(window) == size:
            yield window[0][0], window[-1][1]
            for _ in range(stride):
                window.popleft()
        window.append(span)
    if window:
        yield window[0][0], window[-1][1]


def word_spans(text: str) -> Iterator[Span]:
    """Yield where the words of a text start and end: what stands between white space.

    >>> list(word_spans(" two  words"))
    [(1, 4), (6, 11)]
    """
    for match in WORD.finditer(text):
        yield match.span()
