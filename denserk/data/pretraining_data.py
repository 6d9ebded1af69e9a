"""Text prepared for pre-training: token ids without special tokens around them.

texts.arrow      `input_ids` of a block, span or passage; of spans and passages the number of their
                 `document`; of passages `words` (see `keyword_weights`), the expansion as `queries`
                 (joined, [SEP] after each) and `next`, and whether they are `expanded`
words.arrow      passages: each `word` with its `count` and the number of `texts` with it
manifest.json    what it was made from, and what was left out
"""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from datasets import Dataset, Features, List, Value
from numpy.typing import NDArray

from denserk.config.encoding import TextSettings
from denserk.config.options import as_json
from denserk.config.pretraining import PretrainingObjective, PretrainRun, Spans
from denserk.data import prepared
from denserk.data.masking import WORDS, SubwordTokens, WordCounter
from denserk.data.sampling import Purpose, generator
from denserk.data.sentences import split_sentences
from denserk.data.tokenization import TextTokenizer
from denserk.errors import InputError, MismatchError
from denserk.io.json_records import write_objects
from denserk.io.manifest import Kind, Manifest, read_manifest
from denserk.io.outputs import MANIFEST
from denserk.io.pretraining_text import TOKENS, Document, Expansion, read_documents, read_expansions
from denserk.io.versions import Version
from denserk.io.written_files import whole_binary
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
            self.queries = data["queries"]
            self.next = data["next"]
            self.words = prepared.open_rows(folder / "words.arrow")
            self.word_numbers = data["words"]

    def __len__(self) -> int:
        if self.layout is Layout.SPANS:
            return len(self.document_ends) - 1
        return len(self.texts)


def neighbours(documents: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each passage's neighbour: the next of its document, or the previous for the last.

    >>> neighbours(np.array([0, 0, 0, 1])).tolist()
    [1, 1, -1, 0]
    """
    continues = np.diff(documents, prepend=-1) == 0
    is_continued = np.append(continues[1:], False)
    return np.select([is_continued, continues], [1, -1], default=0)


def prepare(
    run: PretrainRun, folder: Path, tokenizer: Any, *, replace_outdated: bool = True
) -> PretrainingStore:
    """Prepare text, or open what an earlier call prepared from the same inputs.

    Documents without text, or of one span where the objective needs two, are left out and counted.
    Outdated data is prepared again; without `replace_outdated` it is a MismatchError. `tokenizer`
    is a fast tokenizer of transformers.
    """
    writer = _TextWriter(run, tokenizer)
    inputs = {"corpus": run.pretrain.corpus, "expansions": run.pretrain.expansions}
    plan = prepared.plan_of(writer.settings(), inputs, Kind.PRETRAINING)
    prepared.prepare_folder(folder, plan, writer.write, replace_outdated=replace_outdated)
    store = PretrainingStore(folder)
    store.warn(WARNINGS)
    return store


def documents_of(run: PretrainRun, source: str) -> Iterator[Document]:
    """Read the documents of one of the run's sources."""
    return read_documents(source, run.corpus, run.units.fields, run.units.raw_text)


class _TextWriter:
    """Writes texts.arrow, and of passages words.arrow, in one pass over all documents.

    Documents are tokenised, and cut or grouped into blocks, spans or passages.
    """

    def __init__(self, run: PretrainRun, tokenizer: Any) -> None:
        self.run = run
        self.units = run.units
        self.sources = run.pretrain.corpus
        self.layout = LAYOUTS.get(run.pretrain.objective, Layout.BLOCKS)
        self.text_tokenizer = TextTokenizer(tokenizer, TextSettings())
        self.vocabulary = SubwordTokens.of(tokenizer)
        self.words = WordCounter(self.vocabulary)
        self.room = self.units.max_length - SPECIAL_TOKENS
        self.counts: Counter[str] = Counter()
        self.document_numbers = _DocumentNumbers()
        self.expansions = _Expansions(None)

    def settings(self) -> dict[str, Any]:
        """Return the settings that decide the result, for the manifest."""
        unused = "spans" if self.layout is Layout.BLOCKS else "short_blocks"
        units = {name: value for name, value in as_json(self.units).items() if name != unused}
        settings = {
            "format": prepared.FORMAT,
            "layout": self.layout,
            "corpus": as_json(self.run.corpus),
            **units,
        }
        if self.layout is Layout.BLOCKS:
            settings["seed"] = self.run.masking.seed
        elif self.layout is Layout.PASSAGES and self.units.spans is None:
            del settings["max_length"]
        settings["tokenizer"] = self.text_tokenizer.fingerprint()
        return settings

    def write(self, folder: Path, _: Path) -> dict[str, Any]:
        """Write the folder's files; return the manifest's counts."""
        if self.layout is Layout.PASSAGES:
            self.expansions = _Expansions(self.run.pretrain.expansions)
        texts = prepared.write_rows(folder / "texts.arrow", self._features(), self._rows())
        if not len(texts):
            self._reject_empty()
        self.expansions.reject_unused(", ".join(self.sources))
        counts = {name: self.counts[name] for name in ("documents", "empty", "short", "tokens")}
        counts["texts"] = len(texts)
        if self.layout is Layout.PASSAGES:
            words = prepared.write_rows(folder / "words.arrow", WORDS, self.words.rows())
            counts["with_neighbour"] = int((neighbours(texts["document"][:]) != 0).sum())
            counts["words"] = len(words) - 1
            counts["expanded"] = self.counts["expanded"]
            counts["unexpanded"] = 0
            if self.run.pretrain.expansions:
                counts["unexpanded"] = len(texts) - self.counts["expanded"]
        return counts

    def _features(self) -> Features:
        """Return the columns of texts.arrow."""
        ids = prepared.token_lists(self.text_tokenizer)
        features: dict[str, Any] = {"input_ids": ids}
        if self.layout is not Layout.BLOCKS:
            features["document"] = Value("int64")
        if self.layout is Layout.PASSAGES:
            features["words"] = List(Value("uint32"))
            features["queries"] = ids
            features["next"] = ids
            features["expanded"] = Value("bool")
        return Features(features)

    def _reject_empty(self) -> None:
        """Raise an InputError that counts the documents that were left out."""
        counts = self.counts
        documents = f"{counts['documents']:,} documents, {counts['empty']:,} of them without text"
        hint = None
        if counts["short"]:
            documents += f" and {counts['short']:,} of fewer than two spans of {self.room} tokens"
            hint = "give longer documents, or a smaller --max-length"
        raise InputError(", ".join(self.sources), None, documents, "some text", hint)

    def _rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of texts.arrow of all sources."""
        with track("tokenising", None, "documents") as progress:
            for source in self.sources:
                for document in self._documents(source):
                    progress.advance()
                    yield from self._rows_of(document)

    def _documents(self, source: str) -> Iterator[Document]:
        """Return the documents of a source; token ids must be of this tokenizer."""
        version = Version.of(source)
        documents = documents_of(self.run, source)
        if not (Path(source) / MANIFEST).is_file():
            return documents
        documents = version.guard(documents)  # tokens of the manifest's version
        settings = read_manifest(source, Kind.TOKENS).settings
        if settings["tokenizer"] != self.text_tokenizer.fingerprint():
            raise MismatchError(
                f"{source} holds token ids of another tokenizer ({settings['name']})",
                "give the text itself as --corpus, or the model that made the ids",
            )
        return documents

    def _rows_of(self, document: Document) -> Iterator[dict[str, Any]]:
        """Yield the rows of a document, unless it is left out."""
        texts = self._texts(document)
        self.counts["documents"] += 1
        if not texts:
            self.counts["empty"] += 1
            return
        if self.layout is Layout.SPANS and len(texts) < 2:
            self.counts["short"] += 1
            return
        self.counts["tokens"] += sum(map(len, texts))
        if self.layout is Layout.BLOCKS:
            for text in texts:
                yield {"input_ids": text}
        elif self.layout is Layout.SPANS:
            number = self.document_numbers.new()
            for text in texts:
                yield {"input_ids": text, "document": number}
        else:
            yield from self._passage_rows(document, texts)

    def _passage_rows(
        self, document: Document, texts: Sequence[TokenIds]
    ) -> Iterator[dict[str, Any]]:
        """Yield the rows of the passages of a document."""
        number = self.document_numbers.of_passage(document)
        for position, text in enumerate(texts):
            docid = document.docid
            if len(texts) > 1:
                docid = f"{document.docid}#{position}"
            yield {
                "input_ids": text,
                "document": number,
                "words": self.words.add(text),
                **self._expansion_of(docid, document),
            }

    def _expansion_of(self, docid: str, document: Document) -> dict[str, Any]:
        """Return the columns of a passage's expansion: its own, or that of --expansions."""
        queries = document.queries
        continuations = document.continuations
        expansion = self.expansions.take(docid)
        if expansion is not None:
            texts = [*expansion.queries, *expansion.continuations]
            ids = self.text_tokenizer.subword_tokens(texts)
            queries = ids[: len(expansion.queries)]
            continuations = ids[len(expansion.queries) :]
        is_expanded = queries is not None or continuations is not None
        self.counts["expanded"] += is_expanded
        # each of the queries ends with a separator, and one continuation is kept
        query_ids: TokenIds = []
        for query in queries or []:
            query_ids += [*query, self.vocabulary.sep_id]
        continuation = continuations[0] if continuations else []
        return {"queries": query_ids, "expanded": is_expanded, "next": continuation}

    def _texts(self, document: Document) -> list[TokenIds]:
        """Tokenise a document, and cut it into blocks, spans or passages."""
        if document.tokens is not None:
            self._check_tokens(document, document.tokens)
            return [text for text in document.tokens if text]
        if self.layout is Layout.BLOCKS:
            return self._packed(document.texts, self.room, self.units.short_blocks)
        if document.has_spans:
            return self._ids(document.texts)
        if self.layout is Layout.SPANS:
            return self._divide(document.texts, self.room)
        if self.units.spans is None:
            passage = self._joined(self._ids(document.texts))
            return [passage] if passage else []
        # the last field is the text; slices, as a document may be empty
        titles = document.texts[:-1]
        body = document.texts[-1:]
        title = self._joined(self._ids(titles))[: self.room // TITLE_SHARE]
        if not title:
            return self._divide(body, self.room)
        room = self.room - len(title) - 1  # for the separator
        return [self._joined([title, span]) for span in self._divide(body, room)]

    def _check_tokens(self, document: Document, tokens: list[TokenIds]) -> None:
        """Raise an InputError for ids beyond the vocabulary, and text that is cut otherwise."""
        texts = [*tokens, *(document.queries or []), *(document.continuations or [])]
        largest = max(chain.from_iterable(texts), default=0)
        if largest >= self.vocabulary.size:
            raise InputError(
                document.path,
                document.line,
                f"token id {largest}",
                f"ids below {self.vocabulary.size:,}, the tokenizer's vocabulary",
                "give the model whose tokenizer made these ids",
            )
        wants_spans = self.layout is Layout.SPANS
        if self.layout is not Layout.BLOCKS and document.has_spans != wants_spans:
            raise InputError(
                document.path,
                document.line,
                "spans" if document.has_spans else "one text",
                '{"text": [ids]} for master, {"spans": [[ids], ...]} for cocondenser',
            )

    def _divide(self, texts: Sequence[str], room: int) -> list[TokenIds]:
        """Divide texts into spans, at sentences or after a fixed number of tokens."""
        if self.units.spans is not Spans.FIXED:
            return self._packed(texts, room)
        ids = list(chain.from_iterable(self._ids(texts)))
        return [ids[start : start + room] for start in range(0, len(ids), room)]

    def _packed(self, texts: Sequence[str], room: int, short: float = 0.0) -> list[TokenIds]:
        """Pack sentences into blocks as Condenser does; one beyond the limit begins the next.

        The limit is `room`, or for the share `short` of blocks a random number up to it.
        """
        random = generator(self.run.masking.seed, Purpose.BLOCK, self.counts["documents"])
        sentences: list[str] = []
        for text in texts:
            sentences += split_sentences(text)
        # a space before each but the first, which byte-level tokens need
        spaced = sentences[:1] + [f" {sentence}" for sentence in sentences[1:]]
        blocks: list[TokenIds] = []
        limit = 0
        for ids in self._ids(spaced):
            if not blocks or len(blocks[-1]) + len(ids) > limit:
                blocks.append([])
                limit = room
                if random.random() < short:
                    limit = int(random.integers(1, room + 1))
            blocks[-1] += ids
        return blocks

    def _ids(self, texts: Sequence[str]) -> list[TokenIds]:
        return [ids for ids in self.text_tokenizer.subword_tokens(texts) if ids]

    def _joined(self, texts: list[TokenIds]) -> TokenIds:
        """Return the ids of texts with a separator between two."""
        joined: TokenIds = []
        for text in texts:
            if joined:
                joined.append(self.vocabulary.sep_id)
            joined += text
        return joined


class _DocumentNumbers:
    """Numbers documents; a passage continues one, by the title or the id of the passage before."""

    def __init__(self) -> None:
        self._number = -1
        self._title = ""
        self._stem = ""  # of an id, up to the #

    def new(self) -> int:
        """Return the number of a new document."""
        self._number += 1
        return self._number

    def of_passage(self, passage: Document) -> int:
        """Return the number of a passage's document."""
        stem = passage.docid.rpartition("#")[0]
        same_title = passage.title == self._title and passage.title not in UNTITLED
        same_stem = stem != "" and stem == self._stem
        self._title = passage.title
        self._stem = stem
        if same_title or same_stem:
            return self._number
        return self.new()


class _Expansions:
    """Generated queries and continuations, in the order of their passages."""

    def __init__(self, source: str | None) -> None:
        self._source = source or ""
        self._rest = read_expansions(source) if source else iter(())
        self._next = next(self._rest, None)

    def take(self, docid: str) -> Expansion | None:
        """Return the expansion of a passage if it is the next one."""
        expansion = self._next
        if expansion is None or expansion.docid != docid:
            return None
        self._next = next(self._rest, None)
        return expansion

    def reject_unused(self, sources: str) -> None:
        """Raise an InputError if an expansion was not taken."""
        if self._next is not None:
            raise InputError(
                self._source,
                None,
                f"an expansion of {self._next.docid}, which {sources} does not have there",
                "expansions in the order of the corpus",
                "make them of this corpus, with denserk generate",
            )


def write_tokens(store: PretrainingStore, folder: Path, name: str, separator: int) -> None:
    """Write prepared text as token ids for other tools, unless the folder holds the same already.

    `name` is the tokenizer's. `tokens.jsonl` has one document a line, as `pretraining_text` reads
    it; of passages, `word-frequencies.json` has the words' counts for --set frequency-dict.
    """

    def write(unfinished_folder: Path, _: Path) -> dict[str, Any]:
        if store.layout is Layout.PASSAGES:
            _write_frequencies(unfinished_folder / FREQUENCIES, store.words)
        count = write_objects(unfinished_folder / TOKENS, _records(store, separator))
        return {"documents": count}

    settings = {**store.settings, "name": name}
    plan = Manifest(Kind.TOKENS, complete=False, settings=settings, made_from=store.made_from)
    prepared.prepare_folder(folder, plan, write, is_part=False)


def _write_frequencies(path: Path, words: Dataset) -> None:
    """Write the count of each word; the first row of `words` means no word."""
    names = words.data.column("word").to_pylist()
    counts = words["count"][:].tolist()
    count_by_word = dict(zip(names[1:], counts[1:], strict=True))
    with whole_binary(path) as out:
        out.write(orjson.dumps(count_by_word))


def _records(store: PretrainingStore, separator: int) -> Iterator[dict[str, Any]]:
    """Yield the records of `tokens.jsonl`."""
    if store.layout is Layout.BLOCKS:
        for text in store.texts:
            yield {"text": text}
    elif store.layout is Layout.SPANS:
        for start, end in pairwise(store.document_ends):
            yield {"spans": list(store.texts[start:end])}
    else:
        columns = store.texts, store.queries, store.next, store.expanded
        for text, queries, continuation, is_expanded in zip(*columns, strict=True):
            record: dict[str, Any] = {"text": text}
            if is_expanded:
                record["queries"] = _split(queries, separator)
                record["next"] = [continuation] if len(continuation) else []
            yield record


def _split(ids: NDArray[Any], separator: int) -> list[NDArray[Any]]:
    """Split token ids into the texts that end with a separator, which is left out."""
    ends = np.flatnonzero(ids == separator)
    starts = [0, *(end + 1 for end in ends)]
    return [ids[start:end] for start, end in zip(starts, ends, strict=False)]
