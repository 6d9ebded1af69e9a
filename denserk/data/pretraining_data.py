"""Text prepared for pre-training: token ids without special tokens around them.

texts.arrow      `input_ids` of a block, span or passage; of spans and passages the number of their
                 `document`; of passages `words` (see `keyword_weights`), the expansion as `queries`
                 (joined, [SEP] after each) and `next`, and whether they are `expanded`
words.arrow      passages: each `word` with its `count` and the number of `texts` with it
manifest.json    what it was made from, and what was left out
"""

import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from enum import StrEnum
from itertools import chain, islice, pairwise, repeat
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from datasets import Features, List, Value
from numpy.typing import NDArray

from denserk.config.encoding import TextSettings
from denserk.config.formats import DETECTED, CorpusSettings
from denserk.config.options import as_json
from denserk.config.pretraining import PretrainingObjective, Spans, TextUnitSettings
from denserk.data.masking import WORDS, SubwordTokens, WordCounter, entries_of
from denserk.data.prepared import (
    FORMAT,
    Lists,
    Rows,
    Store,
    batched,
    is_prepared,
    numbered,
    open_rows,
    plan_of,
    prepare_folder,
    token_lists,
    write_rows,
)
from denserk.data.sampling import Purpose, generator
from denserk.data.tokenization import TextTokenizer
from denserk.errors import InputError, MismatchError
from denserk.io.files import ScratchRecords, whole_binary
from denserk.io.json_records import write_objects
from denserk.io.manifest import NAME, Kind, Manifest, read_manifest, write_manifest
from denserk.io.outputs import whole_folder
from denserk.io.pretraining_text import TOKENS, Document, read_documents, read_expansions
from denserk.reporting import track

logger = logging.getLogger(__name__)

SPECIAL_TOKENS = 2  # [CLS] and [SEP] around a sequence
TITLE_SHARE = 4  # a title repeated before passages takes at most a fourth of each
UNTITLED = ("", "-")  # empty titles; the second is that of MS MARCO with titles
FREQUENCIES = "word-frequencies.json"
BATCH = 512  # documents tokenised at once
# of sentences: the end of one and what may follow it, and the word before
CLOSING = "\"'\u201d\u2019\u00bb)\\]"
CANDIDATE = re.compile(
    rf"(?P<mark>[.!?\u2026]+)[{CLOSING}]*\s+|(?P<full>[\u3002\uff01\uff1f][\u300d\u300f\uff09]*)\s*"
)
OPENING = "\"'\u201c\u2018\u00ab(["
WORD_BEFORE = re.compile(r"[^\s(\[\"'\u201c\u2018]*\Z")
NAMES = (
    "mr mrs ms mme mlle messrs dr prof rev fr hon pres gov gen col capt lt maj sgt sen rep st ste "
    "mt ft bros dept univ vs cf e.g i.e viz ca approx est ed eds trans"
)
BEFORE_NAMES = frozenset(NAMES.split())  # abbreviations that never end a sentence
NUMBERS = (
    "no nos vol vols ch chap fig figs eq eqs sec p pp art jan feb mar apr jun jul aug sep sept oct "
    "nov dec"
)
BEFORE_NUMBERS = frozenset(NUMBERS.split())  # that end none before a digit

TokenIds = list[int]


class Layout(StrEnum):
    """What an item of prepared text is."""

    BLOCKS = "blocks"  # packed sentences of a document: mlm, condenser, retromae
    SPANS = "spans"  # a document of two spans or more: cocondenser
    PASSAGES = "passages"  # a passage with its neighbour, expansion and words: master

    @classmethod
    def of(cls, objective: PretrainingObjective) -> "Layout":
        """Return the layout that an objective reads."""
        if objective is PretrainingObjective.COCONDENSER:
            return cls.SPANS
        return cls.PASSAGES if objective is PretrainingObjective.MASTER else cls.BLOCKS


class PretrainingStore(Store):
    """Prepared text, memory-mapped: blocks, documents or passages, depending on the layout.

    Attributes:
        layout: what an item is; `items` is its name in messages.
        contents: the manifest's counts.
        texts: token ids by row.
        document_ends: (N + 1,) of spans: document i is the rows ends[i] .. ends[i + 1] - 1.
        neighbours: (N,) of passages: 1 is the next, -1 the one before, 0 none.
        expanded: (N,) of passages, bool; `queries` and `next` are their expansions.
        word_numbers: of passages: the word of each token, a row of `words`, which has the counts.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, Kind.PRETRAINING)
        self.layout = Layout(self.settings["layout"])
        self.items = "documents" if self.layout is Layout.SPANS else self.layout.value
        data = open_rows(folder / "texts.arrow")
        self.texts = Lists(data, "input_ids")
        if self.layout is Layout.BLOCKS:
            return
        documents = data.data.column("document").to_numpy()
        if self.layout is Layout.SPANS:
            starts = np.flatnonzero(np.diff(documents, prepend=-1))
            self.document_ends: Rows = np.append(starts, len(data))
            return
        self.neighbours = neighbours(documents)
        self.expanded: NDArray[np.bool_] = data.data.column("expanded").to_numpy()
        self.queries, self.next = Lists(data, "queries"), Lists(data, "next")
        self.word_numbers = Lists(data, "words")
        self.words = open_rows(folder / "words.arrow")

    def __len__(self) -> int:
        return len(self.texts) if self.layout is not Layout.SPANS else len(self.document_ends) - 1


def neighbours(documents: Rows) -> Rows:
    """Return each passage's neighbour: the next of its document, or the previous for the last."""
    follows = np.diff(documents, prepend=-1) == 0
    followed = np.append(follows[1:], False)
    return np.where(followed, 1, np.where(follows, -1, 0))


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
    """Prepare text, or open what an earlier call prepared from the same inputs.

    Documents without text, or of one span where the objective needs two, are left out and counted.
    Outdated data is prepared again; without `again` it is a MismatchError. `tokenizer` is a fast
    tokenizer of transformers; `objective` decides what an item is; `expansions` is a file of
    generated queries and continuations of passages; `seed` is that of the blocks' limits.
    """
    layout, units = Layout.of(objective), units or TextUnitSettings()
    work = _Preparation(sources, expansions, corpus_settings, units, layout, seed, tokenizer)
    named = numbered("corpus", sources) | ({"expansions": expansions} if expansions else {})
    plan = plan_of(work.settings(), named, Kind.PRETRAINING)
    prepare_folder(folder, plan, work.write, again=again)
    store = PretrainingStore(folder)
    counts = store.contents
    warnings = {
        "documents without text are left out": counts["empty"],
        "documents of fewer than two spans are left out": counts["short"],
    }
    if layout is Layout.PASSAGES and expansions is not None:
        warnings["passages without an expansion"] = len(store) - counts["expanded"]
        unknown = counts["expansions"] - counts["expanded"]
        warnings["expansions of passages that the corpus lacks"] = unknown
    for warning, count in warnings.items():
        if count > 0:
            logger.warning(f"{warning}: {count:,}")
    return store


class _Preparation:
    """The inputs, how documents are divided, and the pass over all documents."""

    def __init__(
        self,
        sources: Sequence[str],
        expansions: str | None,
        corpus: CorpusSettings,
        units: TextUnitSettings,
        layout: Layout,
        seed: int,
        tokenizer: Any,
    ) -> None:
        self.sources, self.expansions, self.corpus = sources, expansions, corpus
        self.units, self.layout, self.seed = units, layout, seed
        self.tokenizer = TextTokenizer(tokenizer, TextSettings())
        self.vocabulary = SubwordTokens.of(tokenizer)
        self.words = WordCounter(self.vocabulary, entries_of(tokenizer))
        self.room = units.max_length - SPECIAL_TOKENS
        self.found: Counter[str] = Counter()
        self.expansion_of: dict[int, int] = {}  # hash of a docid -> its expansion's number
        self.document = -1
        self.last = "", ""  # title and id's stem of the document before

    def settings(self) -> dict[str, Any]:
        """Return the settings that matter for the layout."""
        settings = {"format": FORMAT, "layout": self.layout, "corpus": as_json(self.corpus)}
        settings |= as_json(self.units)
        if self.layout is Layout.BLOCKS:
            del settings["spans"]
            settings["seed"] = self.seed
        else:
            del settings["short_blocks"]
        if self.layout is Layout.PASSAGES and self.units.spans is None:
            del settings["max_length"]
        return settings | {"tokenizer": self.tokenizer.fingerprint()}

    def write(self, folder: Path, scratch: Path) -> dict[str, Any]:
        """Write the folder's files; return the manifest's counts."""
        ids = token_lists(len(self.vocabulary.special))
        features: dict[str, Any] = {"input_ids": ids}
        if self.layout is not Layout.BLOCKS:
            features["document"] = Value("int64")
        if self.layout is Layout.PASSAGES:
            features |= {"words": List(Value("uint32")), "queries": ids, "next": ids}
            features["expanded"] = Value("bool")
        with closing(ScratchRecords(scratch / "expansions")) as self.records:
            if self.expansions is not None and self.layout is Layout.PASSAGES:
                self._read_expansions(self.expansions)
            texts = write_rows(folder / "texts.arrow", Features(features), self._rows())
        counts = {name: self.found[name] for name in ("documents", "empty", "short")}
        counts |= {"texts": len(texts), "tokens": self.found["tokens"]}
        if not counts["texts"]:
            names, documents = ", ".join(self.sources), f"{counts['documents']:,} documents"
            if not counts["short"]:
                raise InputError(names, None, f"{documents} without text", "some text")
            raise InputError(
                names,
                None,
                f"{documents}, none with two spans of {self.room} tokens",
                "documents of two spans or more",
                "give a smaller --max-length, or longer documents",
            )
        if self.layout is Layout.PASSAGES:
            words = write_rows(folder / "words.arrow", WORDS, self.words.rows())
            beside = neighbours(texts.data.column("document").to_numpy())
            counts |= {"with_neighbour": int((beside != 0).sum()), "words": len(words) - 1}
            known = self.found["own expansions"] + len(self.records)
            counts |= {"expanded": self.found["expanded"], "expansions": known}
            if self.expansions is not None and not self.found["expanded"]:
                raise InputError(
                    self.expansions,
                    None,
                    f"expansions of {known:,} other passages" if known else "no expansion",
                    f"docids of passages of {', '.join(self.sources)}",
                    "make them of this corpus, with denserk generate",
                )
        return counts

    def _read_expansions(self, source: str) -> None:
        """Copy expansions to the disk; memory holds about 100 bytes for each."""
        for expansion in read_expansions(source):
            key, docid = hash(expansion.docid), expansion.docid
            if key in self.expansion_of:
                raise InputError(source, None, f"the docid {docid} again", "each docid once")
            self.expansion_of[key] = self.records.append(orjson.dumps(list(expansion)))

    def _documents(self) -> Iterator[Document]:
        units = self.units
        with track("tokenising", None, "documents") as progress:
            for source in self.sources:
                self._check_tokenizer(source)
                for document in read_documents(source, self.corpus, units.fields, units.raw_text):
                    progress.advance()
                    if document.tokens is not None:
                        self._check_ids(document, document.tokens)
                    yield document

    def _check_tokenizer(self, source: str) -> None:
        """Raise an error for a folder of token ids that another tokenizer made."""
        if (Path(source) / NAME).is_file():
            made = read_manifest(source, Kind.TOKENS).settings
            if made["tokenizer"] != self.tokenizer.fingerprint():
                raise MismatchError(
                    f"{source} holds token ids of another tokenizer ({made['name']})",
                    "give the text itself as --corpus, or the model that the ids were made for",
                )

    def _check_ids(self, document: Document, tokens: list[TokenIds]) -> None:
        """Raise an error for ids beyond the vocabulary, and for another format of document."""
        size = len(self.vocabulary.special)
        texts = chain(tokens, document.queries or [], document.next or [])
        largest = max(chain.from_iterable(texts), default=0)
        if largest >= size:
            expected = f"ids below {size:,}, the tokenizer's vocabulary"
            hint = "give the model whose tokenizer made these ids"
            raise InputError(*document.place, f"token id {largest}", expected, hint)
        if document.cut and self.layout is Layout.PASSAGES:
            raise InputError(*document.place, "spans", 'passages for master: {"text": [ids]}')
        if not document.cut and self.layout is Layout.SPANS:
            expected = 'documents for cocondenser: {"spans": [[ids], ...]}'
            raise InputError(*document.place, "one text", expected)

    def _rows(self) -> Iterator[dict[str, Any]]:
        """Tokenise documents, and cut them into blocks, spans or passages."""
        for batch in batched(self._documents(), BATCH):
            units = [self._units(document) for document in batch]
            ids = iter(self.tokenizer.subword_tokens(list(chain.from_iterable(units))))
            for document, own in zip(batch, units, strict=True):
                texts = self._texts(document, list(islice(ids, len(own))))
                self.found["documents"] += 1
                if not texts:
                    self.found["empty"] += 1
                elif self.layout is Layout.SPANS and len(texts) < 2:
                    self.found["short"] += 1
                else:
                    self.found["tokens"] += sum(map(len, texts))
                    yield from self._rows_of(document, texts)

    def _rows_of(self, document: Document, texts: list[TokenIds]) -> Iterator[dict[str, Any]]:
        docid = document.docid
        self.document += not self._continues(docid, document.title)
        for number, text in enumerate(texts):
            row: dict[str, Any] = {"input_ids": text, "document": self.document}
            if self.layout is Layout.PASSAGES:
                name = f"{docid}#{number}" if len(texts) > 1 else docid
                row |= {"words": self.words.add(text), **self._expansion(document, name)}
            yield row

    def _continues(self, docid: str, title: str) -> bool:
        """Return whether a passage has the title of the one before, or its id up to the last #."""
        stem = docid.rpartition("#")[0]
        before, self.last = self.last, (title, stem)
        if self.layout is not Layout.PASSAGES:
            return False
        titled = title not in UNTITLED and title == before[0]
        return titled or (stem != "" and stem == before[1])

    def _expansion(self, document: Document, docid: str) -> dict[str, Any]:
        """Return a passage's queries, a separator after each, and its first continuation."""
        queries, following = document.queries, document.next
        if document.tokens is not None:
            self.found["own expansions"] += not (queries is None and following is None)
        elif (number := self.expansion_of.get(hash(docid))) is not None:
            _, asked, continuations = orjson.loads(self.records[number])
            ids = self.tokenizer.subword_tokens([*asked, *continuations])
            queries, following = ids[: len(asked)], ids[len(asked) :]
        expanded = not (queries is None and following is None)
        self.found["expanded"] += expanded
        joined = [i for query in queries or [] for i in (*query, self.vocabulary.sep_id)]
        return {"queries": joined, "next": (following or [[]])[0], "expanded": expanded}

    def _units(self, document: Document) -> list[str]:
        """Return the parts of a document that are tokenised separately."""
        if document.tokens is not None:
            return []
        parts, cut = document.parts, document.cut
        if self.layout is Layout.PASSAGES and self.units.spans is Spans.SENTENCES and not cut:
            return [*parts[:-1], *_sentences(parts[-1:])]
        whole = cut or self.units.spans is Spans.FIXED or self.layout is Layout.PASSAGES
        return list(parts) if whole and self.layout is not Layout.BLOCKS else _sentences(parts)

    def _texts(self, document: Document, tokens: list[TokenIds]) -> list[TokenIds]:
        """Group a document's tokenised units into blocks, spans or passages."""
        if document.tokens is not None:
            return [text for text in document.tokens if text]
        if self.layout is Layout.PASSAGES and not document.cut:
            titles = max(len(document.parts) - 1, 0)
            title, body = ([u for u in part if u] for part in (tokens[:titles], tokens[titles:]))
            return self._passages(title, body)
        units = [unit for unit in tokens if unit]
        if self.layout is Layout.BLOCKS:
            rng = generator(self.seed, Purpose.BLOCK, self.found["documents"])
            return pack(units, block_limits(rng, self.room, self.units.short_blocks))
        return units if document.cut else self._divide(units, self.room)

    def _divide(self, units: list[TokenIds], room: int) -> list[TokenIds]:
        if self.units.spans is not Spans.FIXED:
            return pack(units, repeat(room))
        flat = list(chain.from_iterable(units))
        return [flat[start : start + room] for start in range(0, len(flat), room)]

    def _passages(self, title: list[TokenIds], body: list[TokenIds]) -> list[TokenIds]:
        """Return `title [SEP] passage` for each passage of a document."""
        if self.units.spans is None or not body:
            return [self._joined([*title, *body])] if title or body else []
        head = self._joined(title)[: self.room // TITLE_SHARE]
        parts = self._divide(body, self.room - len(head) - bool(head))
        return [self._joined([head, part] if head else [part]) for part in parts]

    def _joined(self, units: list[TokenIds]) -> TokenIds:
        return [i for unit in units for i in (self.vocabulary.sep_id, *unit)][1:]


def _sentences(parts: Sequence[str]) -> list[str]:
    """Split texts; a space before each sentence but the first, which byte-level tokens need."""
    sentences = [sentence for part in parts for sentence in split_sentences(part)]
    return [" " * (number > 0) + sentence for number, sentence in enumerate(sentences)]


def block_limits(rng: np.random.Generator, target: int, short: float) -> Iterator[int]:
    """Yield the most tokens of each block: the target, or for a share of blocks 1 to the target."""
    while True:
        yield int(rng.integers(1, target + 1)) if rng.random() < short else target


def pack(sentences: Iterable[TokenIds], limits: Iterator[int]) -> list[TokenIds]:
    """Pack sentences into blocks as Condenser does.

    A sentence that would exceed the limit of a block begins the next one; a sentence longer than a
    limit is a block of its own.
    """
    blocks: list[TokenIds] = []
    limit = 0
    for sentence in sentences:
        if not blocks or len(blocks[-1]) + len(sentence) > limit:
            blocks.append([])
            limit = next(limits)
        blocks[-1] += sentence
    return blocks


def write_tokens(
    store: PretrainingStore, folder: Path, tokenizer_name: str, separator: int
) -> None:
    """Write prepared text as token ids for other tools, unless the folder holds the same already.

    `tokens.jsonl` has one document a line, as `pretraining_text` reads it; of passages,
    `word-frequencies.json` has the words' counts, as --set frequency-dict reads them.
    """
    source = read_manifest(store.folder, Kind.PRETRAINING)
    settings = {**source.settings, "name": tokenizer_name}
    plan = Manifest(Kind.TOKENS, complete=False, settings=settings, made_from=source.made_from)
    if is_prepared(folder, plan):
        return
    with whole_folder(folder, overwrite=True) as part:
        count = write_objects(part / TOKENS, _records(store, separator))
        if store.layout is Layout.PASSAGES:
            words = store.words.data.to_pydict()
            table = dict(zip(words["word"][1:], words["count"][1:], strict=True))
            with whole_binary(part / FREQUENCIES) as out:
                out.write(orjson.dumps(table))
        write_manifest(part, replace(plan, contents={"documents": count}, complete=True))


def _records(store: PretrainingStore, separator: int) -> Iterator[dict[str, Any]]:
    if store.layout is Layout.SPANS:
        for first, end in pairwise(store.document_ends):
            yield {"spans": store.texts.take(np.arange(first, end))}
        return
    for rows in batched(range(len(store)), BATCH):
        records: list[dict[str, Any]] = [{"text": text} for text in store.texts.take(rows)]
        if store.layout is Layout.PASSAGES:
            columns = store.queries.take(rows), store.next.take(rows), store.expanded[rows]
            for record, queries, following, expanded in zip(records, *columns, strict=True):
                if expanded:
                    ends = np.flatnonzero(queries == separator) + 1
                    parts = pairwise([0, *ends.tolist()])
                    record["queries"] = [queries[begin : end - 1] for begin, end in parts]
                    record["next"] = [following] if len(following) else []
        yield from records


def split_sentences(text: str) -> list[str]:
    """Split a text into sentences, stripped and not empty, by rules.

    A line break ends a sentence, so text that is already split stays so. A full stop after a title,
    an initial or a common abbreviation ends none, nor does a mark before a lower-case letter,
    unless white space precedes it as in tokenised text ("wing . the").

    >>> split_sentences('Mr. J. Smith came at 5 p.m. He said "No." Then he left.')
    ['Mr. J. Smith came at 5 p.m.', 'He said "No."', 'Then he left.']
    """
    return [
        sentence
        for line in text.splitlines()
        for part in _split_line(line)
        if (sentence := part.strip())
    ]


def _split_line(line: str) -> list[str]:
    parts, start = [], 0
    for found in CANDIDATE.finditer(line):
        if found["full"] or _ends(line, start, found):
            parts.append(line[start : found.end()])
            start = found.end()
    parts.append(line[start:])
    return parts


def _ends(line: str, start: int, found: re.Match[str]) -> bool:
    """Return whether a mark ends a sentence."""
    place, following = found.start(), line[found.end() :].lstrip(OPENING)[:1]
    if place == start or line[place - 1].isspace():
        return place > start
    if following.islower():
        return False
    if found["mark"] != ".":
        return True
    match = WORD_BEFORE.search(line, start, place)
    word = match[0] if match else ""
    if word.lower() in BEFORE_NAMES or (word.lower() in BEFORE_NUMBERS and following.isdigit()):
        return False
    return not (len(word) == 1 and word.isupper() and word != "I")
