"""Text prepared for pre-training: token ids without special tokens around them.

texts.arrow      `input_ids` of a block, span or passage; of spans and passages the number of their
                 `document`; of passages `words` (see `keyword_weights`), the expansion as `queries`
                 (joined, [SEP] after each) and `next`, and whether they are `expanded`
words.arrow      passages: each `word` with its `count` and the number of `texts` with it
manifest.json    what it was made from, and what was left out
"""

import logging
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import accumulate, chain, islice, pairwise
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
from denserk.data.keyword_weights import WORDS, WordCounter, WordCounts
from denserk.data.masking import SubwordTokens, entries_of, shares
from denserk.data.prepared import (
    FORMAT,
    Columns,
    Lists,
    Rows,
    is_prepared,
    map_rows,
    open_rows,
    plan_of,
    read_rows,
    token_type,
)
from denserk.data.sampling import Purpose, random_words
from denserk.data.sentences import split_sentences
from denserk.data.tokenization import TextTokenizer
from denserk.errors import InputError, MismatchError
from denserk.io.files import whole_binary
from denserk.io.json_records import write_objects
from denserk.io.manifest import NAME, Kind, Manifest, read_manifest, write_manifest
from denserk.io.outputs import whole_folder
from denserk.io.pretraining_text import (
    TOKENS,
    Document,
    TokenDocument,
    read_documents,
    read_expansions,
)
from denserk.reporting import track

logger = logging.getLogger(__name__)

SPECIAL_TOKENS = 2  # [CLS] and [SEP] around a sequence
TITLE_SHARE = 4  # a title repeated before passages takes at most a fourth of each
UNTITLED = ("", "-")  # empty titles; the second is that of MS MARCO with titles
FREQUENCIES = "word-frequencies.json"
BATCH = 512  # documents tokenised at once

TokenIds = list[int]
STRINGS, IDS = List(Value("string")), List(List(Value("int32")))
DRAFT = Features(
    {
        **{name: Value("string") for name in ("docid", "title")},
        **{name: Value("bool") for name in ("cut", "tokenised", "expanded")},
        "parts": STRINGS,
        "texts": IDS,
        "queries": IDS,
        "next": IDS,
    }
)
EXPANSION = Features({"docid": Value("string"), "queries": STRINGS, "next": STRINGS})


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


class PretrainingStore:
    """Prepared text, memory-mapped: blocks, documents or passages, depending on the layout.

    Args:
        folder: what `prepare` wrote.

    Attributes:
        layout: what an item is.
        contents: the manifest's counts.
        texts: token ids by row.
        document_ends: (N + 1,) of spans: document i is the rows ends[i] .. ends[i + 1] - 1.
        neighbours: (N,) of passages: 1 is the next, -1 the one before, 0 none.
        expanded: (N,) of passages, bool.
        queries, next: expansions of passages.
        word_numbers: of passages: the word that each token belongs to.
        words: of passages: the words by number.

    Raises:
        MismatchError: it holds something else.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        manifest = read_manifest(folder, Kind.PRETRAINING)
        self.contents: Mapping[str, Any] = manifest.contents
        self.layout = Layout(manifest.settings["layout"])
        self._tokenizer = str(manifest.settings["tokenizer"])
        data = open_rows(folder / "texts.arrow")
        self.texts = Lists(data, "input_ids")
        if self.layout is Layout.BLOCKS:
            return
        begins = np.diff(data.data.column("document").to_numpy(), prepend=-1) != 0
        if self.layout is Layout.SPANS:
            self.document_ends: Rows = np.append(np.flatnonzero(begins), len(data))
            return
        self.neighbours = _neighbours(~begins)
        self.expanded: NDArray[np.bool_] = data.data.column("expanded").to_numpy()
        self.queries, self.next = Lists(data, "queries"), Lists(data, "next")
        self.word_numbers = Lists(data, "words")
        self.words = WordCounts(open_rows(folder / "words.arrow"))

    def __reduce__(self) -> tuple[type["PretrainingStore"], tuple[Path]]:
        return PretrainingStore, (self.folder,)  # another process maps the files itself

    def __len__(self) -> int:
        return len(self.texts) if self.layout is not Layout.SPANS else len(self.document_ends) - 1

    @property
    def items(self) -> str:
        """The items' name in messages."""
        return "documents" if self.layout is Layout.SPANS else self.layout.value

    def refuse_other(self, fingerprint: str) -> None:
        """Raise an error unless the tokenizer with this fingerprint made the ids."""
        if fingerprint != self._tokenizer:
            raise MismatchError(
                f"{self.folder} was tokenised by another tokenizer than the model's",
                "prepare the text again, with the model's own tokenizer",
            )


def _neighbours(continues: NDArray[np.bool_]) -> NDArray[np.int8]:
    """Return each passage's neighbour: the next one of its document, the last one's the previous.

    >>> _neighbours(np.array([0, 1, 1, 0, 0, 1], dtype=bool)).tolist()
    [1, 1, -1, 0, 1, -1]
    """
    followed = np.append(continues[1:], False)
    return np.where(followed, 1, np.where(continues, -1, 0)).astype(np.int8)


@dataclass(frozen=True)
class _Inputs:
    """The inputs, and how documents are divided."""

    sources: Sequence[str]
    expansions: str | None
    corpus: CorpusSettings
    units: TextUnitSettings
    layout: Layout
    seed: int

    def settings(self) -> dict[str, Any]:
        """Return the settings that matter for the layout."""
        units = as_json(self.units)
        if self.layout is not Layout.BLOCKS:
            del units["short_blocks"]
        if self.layout is Layout.BLOCKS:
            del units["spans"]
        if self.layout is Layout.PASSAGES and self.units.spans is None:
            del units["max_length"]
        seeded = {"seed": self.seed} if self.layout is Layout.BLOCKS else {}
        corpus = as_json(self.corpus)
        return {"format": FORMAT, "layout": self.layout, "corpus": corpus, **units, **seeded}


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
    The folder is written to a temporary path and renamed.

    Args:
        sources: inputs in order; see `pretraining_text.read_documents`.
        folder: the output.
        tokenizer: a fast tokenizer of transformers.
        objective: decides what an item is.
        units: how documents are divided.
        corpus_settings: how a corpus is read.
        expansions: generated queries and continuations of passages.
        seed: of the blocks' limits.
        again: rebuild outdated data; False makes it an error.

    Raises:
        UsageError: there is no such input, or `folder` is something else.
        MismatchError: `folder` or token ids were made otherwise.
        InputError: an input is broken, empty, or not in the format that the objective needs.
    """
    units = TextUnitSettings() if units is None else units
    layout = Layout.of(objective)
    inputs = _Inputs(sources, expansions, corpus_settings, units, layout, seed)
    text_tokenizer = TextTokenizer(tokenizer, TextSettings())
    named = {f"corpus {number}": name for number, name in enumerate(sources, start=1)}
    named |= {"expansions": expansions} if expansions else {}
    settings = inputs.settings() | {"tokenizer": text_tokenizer.fingerprint()}
    plan = plan_of(settings, named, Kind.PRETRAINING)
    if not is_prepared(folder, plan, again=again):
        with whole_folder(folder, own=True) as part:
            work = _Preparation(inputs, part, tokenizer, text_tokenizer)
            write_manifest(part, replace(plan, contents=work.run(), complete=True))
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
    """The pass over all documents."""

    def __init__(
        self, inputs: _Inputs, folder: Path, tokenizer: Any, text_tokenizer: TextTokenizer
    ) -> None:
        self.inputs, self.units, self.layout = inputs, inputs.units, inputs.layout
        self.folder, self.tokenizer = folder, text_tokenizer
        self.subwords = SubwordTokens.of(tokenizer)
        self.room = inputs.units.max_length - SPECIAL_TOKENS
        self.words = WordCounter(self.subwords, entries_of(tokenizer))
        self.found: Counter[str] = Counter()
        self.expansions: _Expansions | None = None
        self.last = "", ""  # title and id's stem of the document before
        self.document = -1

    def run(self) -> dict[str, Any]:
        """Write the folder's files; return the manifest's counts."""
        scratch = self.folder / "scratch"
        scratch.mkdir()
        if self.inputs.expansions is not None and self.layout is Layout.PASSAGES:
            self.expansions = _Expansions(self.inputs.expansions, self.tokenizer, scratch)
        drafts = read_rows(self._drafts, DRAFT, scratch / "documents")
        ids = List(token_type(len(self.subwords.special)))
        features = {"input_ids": ids}
        if self.layout is not Layout.BLOCKS:
            features["document"] = Value("int64")
        if self.layout is Layout.PASSAGES:
            features |= {"words": List(Value("uint32")), "queries": ids, "next": ids}
            features["expanded"] = Value("bool")
        with track("tokenising", len(drafts), "documents") as self.progress:
            path = self.folder / "texts.arrow"
            map_rows(drafts, self._map, Features(features), path, BATCH)
        if not self.found["texts"]:
            raise self._no_text()
        names = ("documents", "empty", "short", "texts", "tokens")
        counts = {name: self.found[name] for name in names}
        if self.layout is Layout.PASSAGES:
            counts |= self._finish_passages(scratch)
        shutil.rmtree(scratch)
        return counts

    def _finish_passages(self, scratch: Path) -> dict[str, int]:
        """Write the words; return the counts of passages."""
        words = read_rows(self.words.rows, WORDS, scratch / "words")
        map_rows(words, dict, WORDS, self.folder / "words.arrow")
        data = open_rows(self.folder / "texts.arrow").data
        continues = np.diff(data.column("document").to_numpy(), prepend=-1) == 0
        expansions = self.found["own expansions"]
        if self.expansions is not None:
            expansions += len(self.expansions)
            if not self.found["expanded"]:
                raise self._unknown_expansions(expansions)
        return {
            "with_neighbour": int((_neighbours(continues) != 0).sum()),
            "expanded": self.found["expanded"],
            "expansions": expansions,
            "words": len(words) - 1,
        }

    def _drafts(self) -> Iterator[dict[str, Any]]:
        inputs, units = self.inputs, self.units
        count = 0
        with track("reading text", None, "documents") as progress:
            for source in inputs.sources:
                self._check_tokenizer(source)
                for document in read_documents(source, inputs.corpus, units.fields, units.raw_text):
                    progress.advance()
                    count += 1
                    yield self._draft(document)
        if not count:
            raise self._no_text()

    def _check_tokenizer(self, source: str) -> None:
        """Raise an error for a folder of token ids that another tokenizer made."""
        if (Path(source) / NAME).is_file():
            made = read_manifest(source, Kind.TOKENS).settings
            if made["tokenizer"] != self.tokenizer.fingerprint():
                raise MismatchError(
                    f"{source} holds token ids of another tokenizer ({made['name']})",
                    "give the text itself as --corpus, or the model that the ids were made for",
                )

    def _draft(self, document: Document | TokenDocument) -> dict[str, Any]:
        row: dict[str, Any] = {name: [] for name in ("parts", "texts", "queries", "next")}
        row |= {"docid": "", "title": "", "cut": document.cut}
        row |= {"tokenised": isinstance(document, TokenDocument), "expanded": False}
        if isinstance(document, Document):
            row |= {"docid": document.docid, "title": document.title}
            return row | {"parts": document.parts}
        fields, size = document.fields, len(self.subwords.special)
        queries, following = document.queries or [], document.next or []
        all_ids = (*document.texts, *queries, *following)
        largest = max((max(ids, default=0) for ids in all_ids), default=0)
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
        expanded = document.queries is not None or document.next is not None
        own = {"queries": queries, "next": following, "expanded": expanded}
        return row | own | {"texts": [ids for ids in document.texts if ids]}

    def _map(self, batch: Columns) -> Columns:
        """Tokenise documents, and cut them into blocks, spans or passages."""
        count = len(batch["docid"])
        self.progress.advance(count)
        parts, cut = batch["parts"], batch["cut"]
        units = [self._units(parts[n], cut[n]) for n in range(count)]
        ids = iter(self.tokenizer.pieces(list(chain.from_iterable(units))))
        limits = self._limits(list(map(len, units)))
        made: dict[str, list[Any]] = {name: [] for name in ("input_ids", "document", "docids")}
        own: list[tuple[TokenIds, TokenIds] | None] = []
        for n in range(count):
            tokens = list(islice(ids, len(units[n])))
            texts = batch["texts"][n]
            if not batch["tokenised"][n]:
                texts = self._cut(tokens, len(parts[n]) - 1, cut[n], limits[n])
            if not self._keeps(texts):
                continue
            docid = batch["docid"][n]
            self.document += not self._continues(docid, batch["title"][n])
            made["input_ids"] += texts
            made["document"] += [self.document] * len(texts)
            several = len(texts) > 1
            made["docids"] += [f"{docid}#{i}" if several else docid for i in range(len(texts))]
            expansion = batch["queries"][n], batch["next"][n]
            own += [_expansion(*expansion, self.subwords.sep_id) if batch["expanded"][n] else None]
            own += [None] * (len(texts) - 1)
        self.found["documents"] += count
        self.found["texts"] += len(made["input_ids"])
        self.found["tokens"] += sum(map(len, made["input_ids"]))
        docids = made.pop("docids")
        if self.layout is Layout.BLOCKS:
            del made["document"]
        if self.layout is Layout.PASSAGES:
            made["words"] = self.words.add(made["input_ids"])
            self.found["own expansions"] += sum(each is not None for each in own)
            if self.expansions is not None:
                own = self.expansions.add_to(own, docids, self.subwords.sep_id)
            made["expanded"] = [each is not None for each in own]
            made["queries"], made["next"] = (
                [each[i] if each else [] for each in own] for i in (0, 1)
            )
            self.found["expanded"] += sum(made["expanded"])
        return made

    def _limits(self, sentences: list[int]) -> Any:
        """Return the limits of each document's blocks, drawn by its number: (N, W)."""
        if self.layout is not Layout.BLOCKS:
            return np.full((len(sentences), 1), self.room)
        first = self.found["documents"]
        numbers = np.arange(first, first + len(sentences))
        width = max(sentences, default=0) + 1
        draws = random_words(self.inputs.seed, Purpose.BLOCK, numbers, 0, width)
        return block_limits(draws, self.room, self.units.short_blocks)

    def _keeps(self, texts: list[TokenIds]) -> bool:
        """Return whether to keep a document; count one that is left out."""
        if not texts:
            self.found["empty"] += 1
        elif self.layout is Layout.SPANS and len(texts) < 2:
            self.found["short"] += 1
        else:
            return True
        return False

    def _continues(self, docid: str, title: str) -> bool:
        """Return whether a passage belongs to the document of the previous one.

        It does if the titles are equal, or the ids up to the last "#".
        """
        stem = docid.rpartition("#")[0]
        before, self.last = self.last, (title, stem)
        if self.layout is not Layout.PASSAGES:
            return False
        titled = title not in UNTITLED and title == before[0]
        return titled or (stem != "" and stem == before[1])

    def _units(self, parts: list[str], cut: bool) -> list[str]:
        """Return the parts of a document that are tokenised separately."""
        whole = cut or self.units.spans is Spans.FIXED
        if whole and self.layout is not Layout.BLOCKS:
            return parts
        if self.layout is not Layout.PASSAGES:
            return _apart([s for part in parts for s in split_sentences(part)])
        if self.units.spans is None:
            return parts
        return [*parts[:-1], *_apart(split_sentences("".join(parts[-1:])))]

    def _cut(self, units: list[TokenIds], titles: int, cut: bool, limits: Any) -> list[TokenIds]:
        """Group a document's tokenised units into blocks, spans or passages."""
        if self.layout is Layout.PASSAGES and not cut:
            return self._passages(max(titles, 0), units)
        units = [unit for unit in units if unit]
        if cut and self.layout is not Layout.BLOCKS:
            return units
        flat = list(chain.from_iterable(units))
        if self.layout is Layout.SPANS and self.units.spans is Spans.FIXED:
            return _slices(flat, windows(len(flat), self.room))
        bound = limits.tolist() if self.layout is Layout.BLOCKS else [self.room] * len(units)
        return _slices(flat, pack([len(unit) for unit in units], bound))

    def _passages(self, titles: int, units: list[TokenIds]) -> list[TokenIds]:
        """Return `title [SEP] passage` for each passage of a document."""
        title, body = ([u for u in part if u] for part in (units[:titles], units[titles:]))
        if self.units.spans is None or not body:
            return [self._joined([*title, *body])] if title or body else []
        head = self._joined(title)[: self.room // TITLE_SHARE]
        room = self.room - len(head) - bool(head)
        flat = list(chain.from_iterable(body))
        if self.units.spans is Spans.FIXED:
            parts = _slices(flat, windows(len(flat), room))
        else:
            parts = _slices(flat, pack([len(unit) for unit in body], [room] * len(body)))
        return [self._joined([head, part] if head else [part]) for part in parts]

    def _joined(self, units: list[TokenIds]) -> TokenIds:
        return [i for unit in units for i in (self.subwords.sep_id, *unit)][1:]

    def _unknown_expansions(self, count: int) -> InputError:
        names = ", ".join(self.inputs.sources)
        return InputError(
            str(self.inputs.expansions),
            None,
            f"expansions of {count:,} other passages" if count else "no expansion",
            f"docids of passages of {names}",
            "make them of this corpus, with denserk generate",
        )

    def _no_text(self) -> InputError:
        names, found = ", ".join(self.inputs.sources), self.found
        if found["short"]:
            return InputError(
                names,
                None,
                f"{found['documents']:,} documents, none with two spans of {self.room} tokens",
                "documents of two spans or more",
                "give a smaller --max-length, or longer documents",
            )
        return InputError(
            names, None, f"{found['documents']:,} documents without text", "some text"
        )


class _Expansions:
    """Generated queries and continuations, on disk, found by the ids of their passages."""

    def __init__(self, source: str, tokenizer: TextTokenizer, scratch: Path) -> None:
        self._tokenizer = tokenizer
        keys: list[int] = []

        def rows() -> Iterator[dict[str, Any]]:
            for expansion in read_expansions(source):
                keys.append(hash(expansion.docid))
                yield expansion._asdict()
            if not keys:
                raise InputError(source, None, "no expansion", "generated queries", None)

        self._data = read_rows(rows, EXPANSION, scratch / "expansions")
        unsorted = np.array(keys, dtype=np.int64)
        self._order = np.argsort(unsorted, kind="stable")
        self._keys = unsorted[self._order]
        repeats = self._order[1:][self._keys[1:] == self._keys[:-1]]
        if len(repeats):
            second = int(repeats.min())
            first = int(np.flatnonzero(unsorted == unsorted[second])[0])
            found = f"the docid of expansion {first + 1:,} again at {second + 1:,}"
            raise InputError(source, None, found, "each docid once")

    def __len__(self) -> int:
        return len(self._keys)

    def add_to(
        self, own: list[tuple[TokenIds, TokenIds] | None], docids: list[str], separator: int
    ) -> list[tuple[TokenIds, TokenIds] | None]:
        """Add the expansions of passages that have none of their own."""
        wanted = np.array(list(map(hash, docids)), dtype=np.int64)
        places = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
        there = self._keys[places] == wanted
        found = [n for n in np.flatnonzero(there).tolist() if own[n] is None]
        if not found:
            return own
        made = self._data[self._order[places[found]].tolist()]
        lists = [*made["queries"], *made["next"]]
        ids = iter(self._tokenizer.pieces(list(chain.from_iterable(lists))))
        tokens = [list(islice(ids, len(texts))) for texts in lists]
        for n, queries, following in zip(
            found, tokens[: len(found)], tokens[len(found) :], strict=True
        ):
            own[n] = _expansion(queries, following, separator)
        return own


def _expansion(
    queries: Sequence[TokenIds], following: Sequence[TokenIds], separator: int
) -> tuple[TokenIds, TokenIds]:
    """Return queries joined, a separator after each, and the first continuation."""
    joined = [i for query in queries for i in (*query, separator)]
    return joined, list(following[0]) if following else []


def _apart(sentences: list[str]) -> list[str]:
    """Put a space before each sentence but the first, which byte-level tokens need."""
    return [" " * (number > 0) + sentence for number, sentence in enumerate(sentences)]


def _slices(flat: TokenIds, lengths: Sequence[int]) -> list[TokenIds]:
    ends = accumulate(lengths, initial=0)
    return [flat[start:end] for start, end in pairwise(ends)]


def block_limits(draws: NDArray[np.uint64], target: int, short: float) -> NDArray[np.int64]:
    """Return the most tokens of each block: the target, or for a share of blocks a drawn number.

    Args:
        draws: random integers of any shape.
        target: tokens of a whole block.
        short: share of the blocks whose limit is drawn from 1 to the target.
    """
    # the upper bits decide whether a limit is drawn, the lower 32 bits the limit
    low = draws & np.uint64(2**32 - 1)
    lengths = ((low * np.uint64(target)) >> np.uint64(32)).astype(np.int64) + 1
    return np.where(shares(draws) <= short, lengths, target)


def pack(lengths: Sequence[int], limits: Iterable[int]) -> list[int]:
    """Pack sentences into blocks as Condenser does; return the tokens of each block.

    A sentence that would exceed the limit of a block begins the next one; a sentence longer than a
    limit is a block of its own.

    >>> pack([5, 7, 3, 9, 2], [12, 12, 12]), pack([20, 3, 1], [12, 12])
    ([12, 12, 2], [20, 4])
    """
    room = iter(limits)
    blocks: list[int] = []
    filled = limit = 0
    for length in lengths:
        if filled and filled + length > limit:
            blocks.append(filled)
            filled = 0
        if not filled:
            limit = next(room) if length else limit
        filled += length
    return [*blocks, filled] if filled else blocks


def windows(length: int, size: int) -> list[int]:
    """Return the lengths of consecutive windows of a text.

    >>> windows(7, 3)
    [3, 3, 1]
    """
    return [min(size, length - start) for start in range(0, length, size)]


def write_tokens(
    store: PretrainingStore, folder: Path, tokenizer_name: str, separator: int
) -> None:
    """Write prepared text as token ids for other tools, unless the folder holds the same already.

    `tokens.jsonl` has one document a line, as `pretraining_text` reads it; of passages,
    `word-frequencies.json` has the words' counts, as --set frequency-dict reads them.

    Args:
        store: the prepared text.
        folder: the output.
        tokenizer_name: named in the manifest.
        separator: the id after each query of an expansion.

    Raises:
        UsageError, MismatchError: the folder holds something else.
    """
    source = read_manifest(store.folder, Kind.PRETRAINING)
    settings = {**source.settings, "name": tokenizer_name}
    plan = Manifest(Kind.TOKENS, complete=False, settings=settings, made_from=source.made_from)
    if is_prepared(folder, plan):
        return
    with whole_folder(folder, overwrite=True) as part:
        count = write_objects(part / TOKENS, _records(store, separator))
        if store.layout is Layout.PASSAGES:
            with whole_binary(part / FREQUENCIES) as out:
                out.write(orjson.dumps(store.words.table()))
        write_manifest(part, replace(plan, contents={"documents": count}, complete=True))


def _records(store: PretrainingStore, separator: int) -> Iterator[dict[str, Any]]:
    if store.layout is Layout.SPANS:
        for first, end in pairwise(store.document_ends):
            spans = store.texts.take(np.arange(first, end))
            yield {"spans": [span.tolist() for span in spans]}
        return
    for start in range(0, len(store), BATCH):
        rows = np.arange(start, min(start + BATCH, len(store)))
        records: list[dict[str, Any]] = [{"text": t.tolist()} for t in store.texts.take(rows)]
        if store.layout is Layout.PASSAGES:
            expansions = store.queries.take(rows), store.next.take(rows), store.expanded[rows]
            for record, queries, following, expanded in zip(records, *expansions, strict=True):
                if expanded:
                    ends = np.flatnonzero(queries == separator)
                    pairs = zip([0, *(ends + 1)], ends, strict=False)
                    record["queries"] = [queries[begin:end].tolist() for begin, end in pairs]
                    record["next"] = [following.tolist()] if len(following) else []
        yield from records
