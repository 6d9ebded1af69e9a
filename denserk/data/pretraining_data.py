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
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from datasets import Features, List, Value
from numpy.typing import NDArray

from denserk.config.encoding import TextSettings
from denserk.config.options import as_json
from denserk.config.pretraining import PretrainingObjective, PretrainRun, Spans
from denserk.data import prepared
from denserk.data.masking import WORDS, SubwordTokens, WordCounter
from denserk.data.sampling import Purpose, generator
from denserk.data.tokenization import TextTokenizer
from denserk.errors import InputError, MismatchError
from denserk.io.files import whole_binary
from denserk.io.json_records import write_objects
from denserk.io.manifest import NAME, Kind, Manifest, read_manifest
from denserk.io.pretraining_text import TOKENS, Document, read_documents, read_expansions
from denserk.io.versions import Version
from denserk.reporting import track

logger = logging.getLogger(__name__)

SPECIAL_TOKENS = 2  # [CLS] and [SEP] around a sequence
TITLE_SHARE = 4  # a title repeated before passages takes at most a fourth of each
UNTITLED = ("", "-")  # empty titles; the second is that of MS MARCO with titles
FREQUENCIES = "word-frequencies.json"
# count in the manifest -> warning
WARNINGS = {
    "empty": "documents without text are left out",
    "short": "documents of fewer than two spans are left out",
    "unexpanded": "passages without an expansion",
}
OPENING, CLOSING = "\"'\u201c\u2018\u00ab([", "\"'\u201d\u2019\u00bb)\\]"
# abbreviations that never end a sentence, and those that end none before a digit
NAMES = (
    "mr|mrs|ms|mme|mlle|messrs|dr|prof|rev|fr|hon|pres|gov|gen|col|capt|lt|maj|sgt|sen|rep|st|ste|"
    r"mt|ft|bros|dept|univ|vs|cf|e\.g|i\.e|viz|ca|approx|est|ed|eds|trans"
)
NUMBERED = (
    "no|nos|vol|vols|ch|chap|fig|figs|eq|eqs|sec|p|pp|art|jan|feb|mar|apr|jun|jul|aug|sep|sept|oct|"
    "nov|dec"
)
SENTENCE_END = re.compile(
    rf"""(?<![^\s(\["'\u201c\u2018]) (?: (?i:{NAMES})\. | [A-HJ-Z]\. | (?i:{NUMBERED})\.(?=\s+\d) )
    | (?P<end> [.!?\u2026]+ [{CLOSING}]* \s+ (?=[{re.escape(OPENING)}]*(?P<next>.))
        | [\u3002\uff01\uff1f][\u300d\u300f\uff09]* )""",
    re.VERBOSE,
)

TokenIds = list[int]


class Layout(StrEnum):
    """What an item of prepared text is."""

    BLOCKS = "blocks"  # packed sentences of a document: every other objective
    SPANS = "spans"  # a document of two spans or more: cocondenser
    PASSAGES = "passages"  # a passage with its neighbour, expansion and words: master


LAYOUTS = {
    PretrainingObjective.COCONDENSER: Layout.SPANS,
    PretrainingObjective.MASTER: Layout.PASSAGES,
}


class PretrainingStore(prepared.Store):
    """Prepared text, memory-mapped: blocks, documents or passages, depending on the layout.

    Attributes:
        layout: what an item is; `unit` is its name in messages.
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
        self.unit = "documents" if self.layout is Layout.SPANS else self.layout.value
        data = prepared.open_rows(folder / "texts.arrow")
        self.texts = data["input_ids"]
        if self.layout is Layout.SPANS:
            starts = np.flatnonzero(np.diff(data["document"][:], prepend=-1))
            self.document_ends = np.append(starts, len(data))
        if self.layout is Layout.PASSAGES:
            self.neighbours = neighbours(data["document"][:])
            self.expanded: NDArray[np.bool_] = data["expanded"][:]
            self.queries, self.next = data["queries"], data["next"]
            self.words = prepared.open_rows(folder / "words.arrow")
            self.word_numbers = data["words"]

    def __len__(self) -> int:
        return len(self.texts) if self.layout is not Layout.SPANS else len(self.document_ends) - 1


def neighbours(documents: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each passage's neighbour: the next of its document, or the previous for the last."""
    follows = np.diff(documents, prepend=-1) == 0
    followed = np.append(follows[1:], False)
    return np.where(followed, 1, np.where(follows, -1, 0))


def prepare(
    run: PretrainRun, folder: Path, tokenizer: Any, *, again: bool = True
) -> PretrainingStore:
    """Prepare text, or open what an earlier call prepared from the same inputs.

    Documents without text, or of one span where the objective needs two, are left out and counted.
    Outdated data is prepared again; without `again` it is a MismatchError. `tokenizer` is a fast
    tokenizer of transformers.
    """
    work = _Preparation(run, tokenizer)
    unused = "spans" if work.layout is Layout.BLOCKS else "short_blocks"
    settings = {"format": prepared.FORMAT, "layout": work.layout, "corpus": as_json(run.corpus)}
    settings |= {name: value for name, value in as_json(run.units).items() if name != unused}
    if work.layout is Layout.BLOCKS:
        settings["seed"] = run.masking.seed
    elif work.layout is Layout.PASSAGES and run.units.spans is None:
        del settings["max_length"]
    settings["tokenizer"] = work.text_tokenizer.fingerprint()
    inputs = {"corpus": work.sources, "expansions": work.expansions}
    plan = prepared.plan_of(settings, inputs, Kind.PRETRAINING)
    prepared.prepare_folder(folder, plan, work.write, again=again)
    store = PretrainingStore(folder)
    store.warn(WARNINGS)
    return store


def documents_of(run: PretrainRun, source: str) -> Iterator[Document]:
    """Read the documents of one of the run's sources."""
    return read_documents(source, run.corpus, run.units.fields, run.units.raw_text)


class _Preparation:
    """One pass over all documents: cut, tokenised, grouped into blocks, spans or passages."""

    def __init__(self, run: PretrainRun, tokenizer: Any) -> None:
        self.run, self.units = run, run.units
        self.sources, self.expansions = run.pretrain.corpus, run.pretrain.expansions
        self.layout = LAYOUTS.get(run.pretrain.objective, Layout.BLOCKS)
        self.text_tokenizer = TextTokenizer(tokenizer, TextSettings())
        self.vocabulary = SubwordTokens.of(tokenizer)
        self.words = WordCounter(self.vocabulary)
        self.room = self.units.max_length - SPECIAL_TOKENS
        self.found: Counter[str] = Counter()
        self.document = -1
        self.last = "", ""  # title and id's stem of the document before

    def write(self, folder: Path, _: Path) -> dict[str, Any]:
        """Write the folder's files; return the manifest's counts."""
        ids, passages = prepared.token_lists(self.text_tokenizer), self.layout is Layout.PASSAGES
        features: dict[str, Any] = {"input_ids": ids}
        if self.layout is not Layout.BLOCKS:
            features["document"] = Value("int64")
        if passages:
            features |= {"words": List(Value("uint32")), "queries": ids, "next": ids}
            features["expanded"] = Value("bool")
        source, names = self.expansions or "", ", ".join(self.sources)
        self.waiting = read_expansions(source) if source and passages else iter(())
        self.expansion = next(self.waiting, None)
        texts = prepared.write_rows(folder / "texts.arrow", Features(features), self._rows())
        found = self.found
        if not len(texts):
            hint, what = None, f"{found['documents']:,} documents"
            what += f", {found['empty']:,} of them without text"
            if found["short"]:
                what += f" and {found['short']:,} of fewer than two spans of {self.room} tokens"
                hint = "give longer documents, or a smaller --max-length"
            raise InputError(names, None, what, "some text", hint)
        if self.expansion is not None:
            problem = f"an expansion of {self.expansion.docid}, which {names} does not have there"
            hint = "make them of this corpus, with denserk generate"
            raise InputError(source, None, problem, "expansions in the order of the corpus", hint)
        counts = {name: found[name] for name in ("documents", "empty", "short", "tokens")}
        counts["texts"] = len(texts)
        if passages:
            words = prepared.write_rows(folder / "words.arrow", WORDS, self.words.rows())
            beside = int((neighbours(texts["document"][:]) != 0).sum())
            counts |= {"with_neighbour": beside, "words": len(words) - 1}
            counts["expanded"] = found["expanded"]
            counts["unexpanded"] = (len(texts) - found["expanded"]) * bool(source)
        return counts

    def _rows(self) -> Iterator[dict[str, Any]]:
        with track("tokenising", None, "documents") as progress:
            for source in self.sources:
                version = Version.of(source)
                documents = documents_of(self.run, source)
                if (Path(source) / NAME).is_file():
                    documents = version.guard(documents)  # tokens of the manifest's version
                    made = read_manifest(source, Kind.TOKENS).settings
                    if made["tokenizer"] != self.text_tokenizer.fingerprint():
                        raise MismatchError(
                            f"{source} holds token ids of another tokenizer ({made['name']})",
                            "give the text itself as --corpus, or the model that made the ids",
                        )
                for document in documents:
                    progress.advance()
                    texts = self._texts(document)
                    self.found["documents"] += 1
                    if not texts:
                        self.found["empty"] += 1
                    elif self.layout is Layout.SPANS and len(texts) < 2:
                        self.found["short"] += 1
                    else:
                        self.found["tokens"] += sum(map(len, texts))
                        yield from self._rows_of(document, texts)

    def _texts(self, document: Document) -> list[TokenIds]:
        """Tokenise a document, and cut it into blocks, spans or passages."""
        if document.tokens is not None:
            made = chain(document.tokens, document.queries or [], document.next or [])
            largest, size = max(chain.from_iterable(made), default=0), self.vocabulary.size
            if largest >= size:
                expected = f"ids below {size:,}, the tokenizer's vocabulary"
                hint = "give the model whose tokenizer made these ids"
                raise InputError(*document.place, f"token id {largest}", expected, hint)
            if self.layout is not Layout.BLOCKS and document.cut != (self.layout is Layout.SPANS):
                found = "spans" if document.cut else "one text"
                expected = '{"text": [ids]} for master, {"spans": [[ids], ...]} for cocondenser'
                raise InputError(*document.place, found, expected)
            return [text for text in document.tokens if text]
        parts = document.parts
        if self.layout is Layout.BLOCKS:
            return self._packed(parts, self.room, self.units.short_blocks)
        if document.cut:
            return self._ids(parts)
        if self.layout is Layout.SPANS:
            return self._divide(parts, self.room)
        if self.units.spans is None:
            return list(filter(None, [self._joined(self._ids(parts))]))
        head = self._joined(self._ids(parts[:-1]))[: self.room // TITLE_SHARE]
        divided = self._divide(parts[-1:], self.room - len(head) - bool(head))
        return [self._joined([head, part] if head else [part]) for part in divided]

    def _divide(self, parts: Sequence[str], room: int) -> list[TokenIds]:
        if self.units.spans is not Spans.FIXED:
            return self._packed(parts, room)
        flat = list(chain.from_iterable(self._ids(parts)))
        return [flat[start : start + room] for start in range(0, len(flat), room)]

    def _packed(self, parts: Sequence[str], room: int, short: float = 0.0) -> list[TokenIds]:
        """Pack sentences into blocks as Condenser does; one beyond the limit begins the next.

        The limit is `room`, or for the share `short` of blocks a random number up to it.
        """
        rng = generator(self.run.masking.seed, Purpose.BLOCK, self.found["documents"])
        sentences = [sentence for part in parts for sentence in split_sentences(part)]
        # a space before each but the first, which byte-level tokens need
        spaced = [" " * (number > 0) + sentence for number, sentence in enumerate(sentences)]
        blocks: list[TokenIds] = []
        limit = 0
        for ids in self._ids(spaced):
            if not blocks or len(blocks[-1]) + len(ids) > limit:
                blocks.append([])
                limit = int(rng.integers(1, room + 1)) if rng.random() < short else room
            blocks[-1] += ids
        return blocks

    def _ids(self, texts: Sequence[str]) -> list[TokenIds]:
        return [ids for ids in self.text_tokenizer.subword_tokens(texts) if ids]

    def _joined(self, units: list[TokenIds]) -> TokenIds:
        return [i for unit in units for i in (self.vocabulary.sep_id, *unit)][1:]

    def _rows_of(self, document: Document, texts: list[TokenIds]) -> Iterator[dict[str, Any]]:
        docid, title, passages = document.docid, document.title, self.layout is Layout.PASSAGES
        # a passage continues its document with the title of the one before, or its id up to the #
        stem = docid.rpartition("#")[0]
        before, self.last = self.last, (title, stem)
        same = (title == before[0] and title not in UNTITLED) or (stem and stem == before[1])
        self.document += not (passages and same)
        for number, text in enumerate(texts):
            row: dict[str, Any] = {"input_ids": text}
            if self.layout is not Layout.BLOCKS:
                row["document"] = self.document
            if passages:
                queries, following = document.queries, document.next
                name, made = f"{docid}#{number}" if len(texts) > 1 else docid, self.expansion
                if made is not None and made.docid == name:
                    ids = self.text_tokenizer.subword_tokens([*made.queries, *made.next])
                    queries, following = ids[: len(made.queries)], ids[len(made.queries) :]
                    self.expansion = next(self.waiting, None)
                expanded = not (queries is None and following is None)
                self.found["expanded"] += expanded
                # of the queries each ends with a separator, and one continuation is kept
                joined = [i for query in queries or [] for i in (*query, self.vocabulary.sep_id)]
                row |= {"words": self.words.add(text), "queries": joined, "expanded": expanded}
                row["next"] = (following or [[]])[0]
            yield row


def write_tokens(store: PretrainingStore, folder: Path, name: str, separator: int) -> None:
    """Write prepared text as token ids for other tools, unless the folder holds the same already.

    `name` is the tokenizer's. `tokens.jsonl` has one document a line, as `pretraining_text` reads
    it; of passages, `word-frequencies.json` has the words' counts for --set frequency-dict.
    """

    def write(part: Path, _: Path) -> dict[str, Any]:
        if store.layout is Layout.PASSAGES:
            names = store.words.data.column("word").to_pylist()
            counts = zip(names, store.words["count"][:].tolist(), strict=True)
            with whole_binary(part / FREQUENCIES) as out:
                out.write(orjson.dumps(dict(islice(counts, 1, None))))
        return {"documents": write_objects(part / TOKENS, _records(store, separator))}

    settings = {**store.settings, "name": name}
    plan = Manifest(Kind.TOKENS, complete=False, settings=settings, made_from=store.made_from)
    prepared.prepare_folder(folder, plan, write, is_part=False)


def _records(store: PretrainingStore, separator: int) -> Iterator[dict[str, Any]]:
    if store.layout is Layout.SPANS:
        yield from ({"spans": [*store.texts[a:b]]} for a, b in pairwise(store.document_ends))
    elif store.layout is Layout.BLOCKS:
        yield from ({"text": text} for text in store.texts)
    else:
        columns = store.texts, store.queries, store.next, store.expanded
        for text, queries, following, expanded in zip(*columns, strict=True):
            record: dict[str, Any] = {"text": text}
            if expanded:
                ends = [0, *(np.flatnonzero(queries == separator) + 1).tolist()]
                record["queries"] = [queries[begin : end - 1] for begin, end in pairwise(ends)]
                record["next"] = [following] if len(following) else []
            yield record


def split_sentences(text: str) -> list[str]:
    """Split a text into sentences, stripped and not empty, by rules.

    A line break ends a sentence, so text that is already split stays so. A full stop after a title,
    an initial or a common abbreviation ends none, nor does a mark before a lower-case letter,
    unless white space precedes it as in tokenised text ("wing . the").

    >>> split_sentences('Mr. J. Smith came at 5 p.m. He said "No." Then he left.')
    ['Mr. J. Smith came at 5 p.m.', 'He said "No."', 'Then he left.']
    """
    sentences = []
    for line in text.splitlines():
        start = 0
        for found in SENTENCE_END.finditer(line):
            place, lower = found.start(), (found["next"] or "").islower()
            if found["end"] and place > start and (line[place - 1].isspace() or not lower):
                sentences.append(line[start : found.end()].strip())
                start = found.end()
        sentences.append(line[start:].strip())
    return [sentence for sentence in sentences if sentence]
