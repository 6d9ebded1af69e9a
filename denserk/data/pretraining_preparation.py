"""Text -> a prepared folder, in one pass; used again for as long as its inputs stay the same."""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from denserk.data.masking import Pieces, entries_of
from denserk.data.prepared_folder import is_prepared, plan_of
from denserk.data.pretraining_blocks import block_limits, pack, windows
from denserk.data.pretraining_store import Layout, PretrainingStore
from denserk.data.pretraining_writers import BlockWriter, CutDocument, PassageWriter, SpanWriter
from denserk.data.sampling import Purpose, random_words
from denserk.data.sentences import split_sentences
from denserk.data.tokenization import TextTokenizer
from denserk.errors import InputError, MismatchError
from denserk.formats.expansions import read_expansions
from denserk.formats.id_ledger import IdLedger, digest
from denserk.formats.manifest import NAME, Kind, read_manifest, write_manifest
from denserk.formats.outputs import whole_folder
from denserk.formats.pretraining_text import Document, TokenDocument, read_documents
from denserk.reporting import track
from denserk.settings.encoding import TextSettings
from denserk.settings.formats import DETECTED, CorpusSettings
from denserk.settings.options import as_json
from denserk.settings.pretraining import PretrainingObjective, Spans, TextUnitSettings

logger = logging.getLogger(__name__)

LAYOUT = 1
"""Number of the layout of a prepared folder; another number is prepared again."""
DOCUMENTS, CHARACTERS = 1024, 1 << 21
"""Most documents that are tokenised at once, and characters after which no other joins them."""
OUTER = 2
"""Special tokens around a sequence."""
HEAD = 4
"""A title that stands before every passage takes at most this part of it: a fourth."""


@dataclass(frozen=True)
class PretrainingInputs:
    """Where text comes from, and how it is cut."""

    sources: Sequence[str]
    expansions: str | None
    corpus: CorpusSettings
    units: TextUnitSettings
    layout: Layout
    seed: int

    def named(self) -> dict[str, str]:
        """Every input by what it is for."""
        numbered = {f"corpus {number}": name for number, name in enumerate(self.sources, start=1)}
        return numbered | ({"expansions": self.expansions} if self.expansions else {})

    def settings(self) -> dict[str, Any]:
        """What decides how text is prepared; what a layout does not look at is left out."""
        units = as_json(self.units)
        if self.layout is not Layout.BLOCKS:
            del units["short_blocks"]
        if self.layout is Layout.BLOCKS:
            del units["spans"]
        if self.layout is Layout.PASSAGES and self.units.spans is None:
            del units["max_length"]
        seeded = {"seed": self.seed} if self.layout is Layout.BLOCKS else {}
        return {
            "version": LAYOUT,
            "layout": self.layout,
            "corpus": as_json(self.corpus),
            **units,
            **seeded,
        }


def prepare(
    sources: Sequence[str],
    folder: Path,
    tokenizer: Any,
    objective: PretrainingObjective,
    *,
    units: TextUnitSettings | None = None,
    corpus_settings: CorpusSettings = DETECTED,
    expansions: str | None = None,
    seed: int = 42,
    again: bool = True,
) -> PretrainingStore:
    """Prepares text, or opens what an earlier call prepared from the same inputs.

    Documents without text are left out and counted, and so are documents of one span where an
    objective needs two. The folder appears whole or not at all.

    Args:
        sources: what to read (see `pretraining_text.read_documents`), one after another.
        folder: where the prepared text is kept.
        tokenizer: a fast tokenizer of transformers.
        objective: decides what an item is.
        units: how documents are cut.
        corpus_settings: how a corpus is read.
        expansions: queries and continuations of passages.
        seed: of the blocks' limits.
        again: prepare again what the inputs would make otherwise; False refuses it.

    Raises:
        UsageError: there is no such input; `folder` holds something else.
        MismatchError: `folder` holds something else that denserk wrote; token ids were made by
            another tokenizer; `folder` was made otherwise and must not be made again.
        InputError: an input is broken, empty, or of another shape than the objective needs.
        OutputError: `folder` cannot be written.
    """
    units = TextUnitSettings() if units is None else units
    inputs = PretrainingInputs(
        sources, expansions, corpus_settings, units, Layout.of(objective), seed
    )
    text_tokenizer = TextTokenizer(tokenizer, TextSettings())
    settings = inputs.settings() | {"tokenizer": text_tokenizer.fingerprint()}
    plan = plan_of(settings, inputs.named(), Kind.PRETRAINING)
    if not is_prepared(folder, plan, again=again):
        with whole_folder(folder, own=True) as part:
            work = _Preparation(inputs, part, tokenizer, text_tokenizer)
            write_manifest(part, replace(plan, contents=work.run(), complete=True))
    store = PretrainingStore(folder)
    _tell(store, expansions is not None)
    return store


class _Preparation:
    """The pass over all documents."""

    def __init__(
        self,
        inputs: PretrainingInputs,
        folder: Path,
        tokenizer: Any,
        text_tokenizer: TextTokenizer,
    ) -> None:
        self.inputs, self.units, self.layout = inputs, inputs.units, inputs.layout
        self.tokenizer = text_tokenizer
        self.pieces = Pieces.of(tokenizer)
        self.room = inputs.units.max_length - OUTER
        self.found: Counter[str] = Counter()
        small = len(self.pieces.special) <= np.iinfo(np.uint16).max + 1
        dtype = np.uint16 if small else np.int32
        self.writer: BlockWriter
        if self.layout is Layout.PASSAGES:
            self.writer = PassageWriter(folder, dtype, self.pieces, entries_of(tokenizer))
        else:
            kinds = {Layout.BLOCKS: BlockWriter, Layout.SPANS: SpanWriter}
            self.writer = kinds[self.layout](folder, dtype)

    def run(self) -> dict[str, Any]:
        """Writes the folder's files; returns the manifest's counts."""
        with self.writer.files:
            with track("preparing text", None, "documents") as progress:
                for source in self.inputs.sources:
                    self._refuse_other_ids(source)
                    for documents in _batches(self._read(source)):
                        progress.advance(len(documents))
                        self._write(documents)
            if self.inputs.expansions is not None:
                self._expand(self.inputs.expansions)
            counts = self.writer.finish()
        if not counts["texts"]:
            self._refuse_nothing()
        if self.inputs.expansions is not None and not counts["expanded"]:
            self._refuse_strangers(self.inputs.expansions, counts["expansions"])
        return {name: self.found[name] for name in ("documents", "empty", "short")} | counts

    def _read(self, source: str) -> Iterator[Document | TokenDocument]:
        inputs = self.inputs
        return read_documents(source, inputs.corpus, self.units.fields, self.units.raw_text)

    def _refuse_other_ids(self, source: str) -> None:
        """Refuses a folder of token ids that another tokenizer made."""
        if (Path(source) / NAME).is_file():
            made = read_manifest(source, Kind.TOKENS).settings
            if made["tokenizer"] != self.tokenizer.fingerprint():
                raise MismatchError(
                    f"{source} holds token ids of another tokenizer ({made['name']})",
                    "give the text itself as --corpus, or the model that the ids were made for",
                )

    def _write(self, documents: list[Document | TokenDocument]) -> None:
        units = [self._units(d) if isinstance(d, Document) else [] for d in documents]
        ids = iter(self.tokenizer.pieces([text for texts in units for text in texts]))
        limits = self._limits([len(texts) for texts in units])
        made = []
        for document, texts, row in zip(documents, units, limits, strict=True):
            if isinstance(document, Document):
                pieces = list(islice(ids, len(texts)))
                cut = CutDocument(document.docid, document.title, self._cut(document, pieces, row))
            else:
                cut = self._take(document)
            if self._keeps(cut):
                made.append(cut)
        self.found["documents"] += len(documents)
        if made:
            self.writer.write(made)

    def _limits(self, sentences: list[int]) -> Any:
        """The limits of each document's blocks, drawn by its number: one row a document."""
        if self.layout is not Layout.BLOCKS:
            return np.full((len(sentences), 1), self.room)
        first = self.found["documents"]
        draws = random_words(
            self.inputs.seed,
            Purpose.BLOCK,
            np.arange(first, first + len(sentences)),
            0,
            max(sentences, default=0) + 1,
        )
        return block_limits(draws, self.room, self.units.short_blocks)

    def _keeps(self, document: CutDocument) -> bool:
        """Whether a document goes on; counts it otherwise."""
        if not document.texts:
            self.found["empty"] += 1
        elif self.layout is Layout.SPANS and len(document.texts) < 2:
            self.found["short"] += 1
        else:
            return True
        return False

    def _units(self, document: Document) -> list[str]:
        """What of a document is tokenised as one."""
        whole = document.cut and self.layout is not Layout.BLOCKS
        if whole or (self.layout is not Layout.BLOCKS and self.units.spans is Spans.FIXED):
            return list(document.parts)
        if self.layout is not Layout.PASSAGES:
            return _apart([s for part in document.parts for s in split_sentences(part)])
        if self.units.spans is None:
            return list(document.parts)
        return [*document.parts[:-1], *_apart(split_sentences("".join(document.parts[-1:])))]

    def _cut(self, document: Document, pieces: list[list[int]], limits: Any) -> list[list[int]]:
        """A document's tokenised units as blocks, spans or passages."""
        if self.layout is Layout.PASSAGES and not document.cut:
            return self._passages(len(document.parts) - 1, pieces)
        pieces = [piece for piece in pieces if piece]
        if document.cut and self.layout is not Layout.BLOCKS:
            return pieces
        flat = list(chain.from_iterable(pieces))
        if self.layout is Layout.SPANS and self.units.spans is Spans.FIXED:
            return _slices(flat, windows(len(flat), self.room))
        bound = limits.tolist() if self.layout is Layout.BLOCKS else [self.room] * len(pieces)
        return _slices(flat, pack([len(piece) for piece in pieces], bound))

    def _passages(self, titles: int, pieces: list[list[int]]) -> list[list[int]]:
        """`title [SEP] passage`, once, or with each passage that a document is cut into."""
        title, body = ([p for p in part if p] for part in (pieces[:titles], pieces[titles:]))
        if self.units.spans is None or not body:
            return [self._joined([*title, *body])] if title or body else []
        head = self._joined(title)[: self.room // HEAD]
        room = self.room - len(head) - bool(head)
        flat = list(chain.from_iterable(body))
        if self.units.spans is Spans.FIXED:
            parts = _slices(flat, windows(len(flat), room))
        else:
            parts = _slices(flat, pack([len(piece) for piece in body], [room] * len(body)))
        return [self._joined([head, part] if head else [part]) for part in parts]

    def _joined(self, pieces: list[list[int]]) -> list[int]:
        between = [self.pieces.sep_id]
        return [i for piece in pieces for i in (*between, *piece)][1:]

    def _take(self, document: TokenDocument) -> CutDocument:
        """A document of token ids, checked."""
        fields, size = document.fields, len(self.pieces.special)
        expansion = [*(document.queries or ()), *(document.next or ())]
        largest = max((max(ids, default=0) for ids in (*document.texts, *expansion)), default=0)
        if largest >= size:
            raise fields.error(
                f"token id {largest}",
                f"ids below {size:,}, the tokenizer's vocabulary",
                "give the model whose tokenizer made these ids",
            )
        if document.cut and self.layout is Layout.PASSAGES:
            raise fields.error("spans", 'passages for master: {"text": [ids]}')
        if not document.cut and self.layout is Layout.SPANS:
            raise fields.error("one text", 'documents for cocondenser: {"spans": [[ids], ...]}')
        given = document.queries is not None or document.next is not None
        return CutDocument(
            "",
            "",
            [ids for ids in document.texts if ids],
            self._expansion(document.queries or [], document.next or []) if given else None,
        )

    def _expansion(
        self, queries: Sequence[list[int]], following: Sequence[list[int]]
    ) -> tuple[list[int], list[int]]:
        """Queries as DOR joins them, a separator behind each; the first continuation."""
        behind = [self.pieces.sep_id]
        joined = [i for query in queries for i in (*query, *behind)]
        return joined, list(following[0]) if following else []

    def _expand(self, source: str) -> None:
        """Tokenises expansions; they find their passages by id."""
        writer = self.writer
        assert isinstance(writer, PassageWriter)
        stream = read_expansions(source)
        with IdLedger() as ledger:
            while block := list(islice(stream, DOCUMENTS)):
                texts = [text for made in block for text in (*made.queries, *made.next)]
                ids = iter(self.tokenizer.pieces(texts))
                for made in block:
                    ledger.add(made.docid)
                    queries = list(islice(ids, len(made.queries)))
                    following = list(islice(ids, len(made.next)))
                    writer.expand(*self._expansion(queries, following), digest(made.docid))
            repeat = ledger.first_repeat()
        if repeat is not None:
            first, second = (place + 1 for place in repeat)
            found = f"the docid of expansion {first:,} again at {second:,}"
            raise InputError(source, None, found, "each docid once")

    def _refuse_strangers(self, source: str, count: int) -> None:
        names = ", ".join(self.inputs.sources)
        found = f"expansions of {count:,} other passages" if count else "no expansion"
        raise InputError(
            source,
            None,
            found,
            f"docids of passages of {names}",
            "make them of this corpus, with denserk generate",
        )

    def _refuse_nothing(self) -> None:
        names, found = ", ".join(self.inputs.sources), self.found
        if found["short"]:
            raise InputError(
                names,
                None,
                f"{found['documents']:,} documents, none with two spans of {self.room} tokens",
                "documents of two spans or more",
                "give a smaller --max-length, or longer documents",
            )
        raise InputError(names, None, f"{found['documents']:,} documents without text", "some text")


def _batches(
    documents: Iterator[Document | TokenDocument],
) -> Iterator[list[Document | TokenDocument]]:
    batch: list[Document | TokenDocument] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += sum(map(len, document.parts if isinstance(document, Document) else document.texts))
        if len(batch) == DOCUMENTS or size > CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _apart(sentences: list[str]) -> list[str]:
    """A space before each sentence but the first: byte-level pieces know a beginning by it."""
    return [" " * (number > 0) + sentence for number, sentence in enumerate(sentences)]


def _slices(flat: list[int], lengths: Sequence[int]) -> list[list[int]]:
    ends = accumulate(lengths, initial=0)
    return [flat[start:end] for start, end in pairwise(ends)]


def _tell(store: PretrainingStore, with_expansions: bool) -> None:
    """Tells what the text lacks."""
    counts = store.contents
    if counts["empty"]:
        logger.warning(f"documents without text are left out: {counts['empty']:,}")
    if counts["short"]:
        logger.warning(f"documents of fewer than two spans are left out: {counts['short']:,}")
    if store.layout is Layout.PASSAGES and with_expansions:
        lacking = len(store) - counts["expanded"]
        strange = counts["expansions"] - counts["expanded"]
        if lacking:
            logger.warning(f"passages without an expansion: {lacking:,}")
        if strange > 0:
            logger.warning(f"expansions of passages that the corpus lacks: {strange:,}")
