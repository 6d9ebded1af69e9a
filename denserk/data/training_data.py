"""Training data prepared for batches: every distinct text tokenised once.

passages.arrow     `input_ids` of each passage, distinct by id, or by text where it has no id
examples.arrow     `qid`, `query` (token ids), `positives` and `negatives` (rows of passages) and
                   `scores` of both, NaN where the teacher gave none
sentences.arrow    of sentence pairs and triplets instead: `sentences` (token ids), `label`
manifest.json      what it was made from, and what was left out
"""

import logging
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow.compute as pc
from datasets import Features, List, Value
from numpy.typing import NDArray

from denserk.config.conversion import TrainingFormat
from denserk.config.formats import DETECTED, CorpusSettings
from denserk.config.options import as_json
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
    rules_of,
    token_type,
)
from denserk.data.tokenization import TextTokenizer
from denserk.errors import InputError
from denserk.io.corpus import read_passages
from denserk.io.files import STREAM, read_lines
from denserk.io.manifest import Kind, Manifest, read_manifest, write_manifest
from denserk.io.outputs import whole_folder
from denserk.io.passage_texts import PassageTexts
from denserk.io.qrels import read_qrels_map
from denserk.io.sentence_pairs import read_sentences
from denserk.io.topics import read_queries
from denserk.io.training import random_negatives, read_training
from denserk.records import Candidate, Passage, Query, TrainingExample
from denserk.reporting import track

logger = logging.getLogger(__name__)

BATCH = 256  # examples, each with its passages, tokenised at once
MAX_SCORE = float(np.finfo(np.float32).max)
# counts: name in the manifest -> warning
COUNTS = {
    "examples": None,
    "candidates": None,
    "unscored": None,
    "without_negatives": None,
    "without_positives": "queries without a positive are left out",
    "with_random_negatives": "queries without a hard negative use their random ones",
    "missing_passages": "passages that the corpus lacks are left out",
    "missing_queries": "queries without a text are left out",
}
STRINGS, NUMBERS = List(Value("string")), List(Value("int64"))
SCORES = List(Value("float32"))
DRAFT = Features(
    {
        "qid": Value("string"),
        "query": Value("string"),
        "positives": Value("int64"),
        "keys": NUMBERS,
        "docids": STRINGS,
        "texts": STRINGS,
        "titles": STRINGS,
        "extras": STRINGS,
        "scores": SCORES,
    }
)


class TrainingStore:
    """Prepared training data, memory-mapped.

    An item is the number of an example, from 0, in the order of the files.

    Args:
        folder: what `prepare` wrote.

    Attributes:
        queries: token ids by item.
        passages: token ids by row.
        positive_rows, negative_rows: rows of passages by item.
        scores: of an item's positives, then of its negatives.
        positive_counts, negative_counts: (N,).

    Raises:
        MismatchError: it holds something else.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        manifest = read_manifest(folder, Kind.TRAINING)
        self.contents: Mapping[str, Any] = manifest.contents
        self.query_pad_id = int(manifest.settings["query"]["pad_id"])
        self.passage_pad_id = int(manifest.settings["passage"]["pad_id"])
        self._examples = open_rows(folder / "examples.arrow")
        self.passages = Lists(open_rows(folder / "passages.arrow"), "input_ids")
        self.queries = Lists(self._examples, "query")
        self.positive_rows = Lists(self._examples, "positives")
        self.negative_rows = Lists(self._examples, "negatives")
        self.scores = Lists(self._examples, "scores")
        self.positive_counts = self.positive_rows.lengths()
        self.negative_counts = self.negative_rows.lengths()

    def __reduce__(self) -> tuple[type["TrainingStore"], tuple[Path]]:
        return TrainingStore, (self.folder,)  # another process maps the files itself

    def __len__(self) -> int:
        return len(self._examples)

    def qid(self, item: int) -> str:
        """Return an item's query id."""
        return str(self._examples[item]["qid"][0])

    def positives(self, item: int) -> Rows:
        """Return an item's positives, as rows of `passages`."""
        return self.positive_rows[item]

    def negatives(self, item: int) -> Rows:
        """Return an item's negatives, as rows of `passages`."""
        return self.negative_rows[item]

    def refuse_unscored(self) -> None:
        """Raise an error where a candidate lacks the teacher's score."""
        if self.contents["unscored"]:
            raise unscored(**self.contents["first_unscored"])


def unscored(source: str, query: str, passage: str, line: int | None = None) -> InputError:
    """Return the error for a candidate without the teacher's score."""
    return InputError(
        source,
        line,
        f"no teacher's score of passage {passage} for query {query}",
        "a score for every positive and negative, which distillation learns from",
        f"write them: denserk convert {source} scored.jsonl --teacher MODEL",
    )


@dataclass(frozen=True)
class _Inputs:
    """The inputs of `prepare`."""

    files: Sequence[str]
    form: TrainingFormat | None
    corpus: str | None
    corpus_settings: CorpusSettings
    fields: Sequence[str] | None
    queries: str | None
    qrels: str | None
    skip_missing: bool


def prepare(
    sources: Sequence[str],
    folder: Path,
    query_tokenizer: TextTokenizer,
    passage_tokenizer: TextTokenizer,
    *,
    corpus: str | None = None,
    corpus_settings: CorpusSettings = DETECTED,
    fields: Sequence[str] | None = None,
    queries: str | None = None,
    qrels: str | None = None,
    form: TrainingFormat | None = None,
    skip_missing: bool = False,
    require_scores: bool = False,
    again: bool = True,
) -> TrainingStore:
    """Prepare training data, or open what an earlier call prepared from the same inputs.

    A query without positives is left out and counted. A DPR question without hard negatives takes
    its random ones. The folder is written to a temporary path and renamed. Texts stay on disk;
    memory holds some bytes per distinct passage.

    Args:
        sources: training files in order; "-" is standard input.
        folder: the output.
        query_tokenizer: tokenises queries.
        passage_tokenizer: tokenises passages.
        corpus: the passages of ids without text.
        corpus_settings: how the corpus is read.
        fields: fields that Anserini's `contents` are split into.
        queries: the queries of ids without text.
        qrels: relevance judgments, held in memory: the positives of queries that have none.
        form: the format of the training files; None detects it for each.
        skip_missing: leave out and count ids that corpus or queries lack.
        require_scores: raise an error for a candidate without the teacher's score.
        again: rebuild outdated data; False makes it an error.

    Raises:
        UsageError: there is no such input, or `folder` is something else.
        MismatchError: `folder` was made otherwise.
        InputError: an input is broken or empty, or a text or a score is missing.
    """
    inputs = _Inputs(sources, form, corpus, corpus_settings, fields, queries, qrels, skip_missing)
    settings = {
        "format": FORMAT,
        "form": form,
        "skip_missing": skip_missing,
        "corpus": as_json(corpus_settings),
        "fields": None if fields is None else list(fields),
        "query": rules_of(query_tokenizer),
        "passage": rules_of(passage_tokenizer),
    }
    others = {"corpus": corpus, "queries": queries, "qrels": qrels}
    named = _numbered(sources) | {use: name for use, name in others.items() if name is not None}
    plan = plan_of(settings, named)
    if not is_prepared(folder, plan, again=again):
        with whole_folder(folder, own=True) as part:
            work = _Preparation(inputs, part, query_tokenizer, passage_tokenizer, require_scores)
            _complete(part, plan, work.run())
    store = TrainingStore(folder)
    if require_scores:
        store.refuse_unscored()
    for name, warning in COUNTS.items():
        if warning and store.contents[name]:
            logger.warning(f"{warning}: {store.contents[name]:,}")
    return store


def _numbered(sources: Sequence[str]) -> dict[str, str]:
    return {f"file {number}": name for number, name in enumerate(sources, start=1)}


def _complete(part: Path, plan: Manifest, contents: Mapping[str, Any]) -> None:
    """Delete the scratch folder and write the manifest of a prepared folder."""
    shutil.rmtree(part / "scratch")
    write_manifest(part, replace(plan, contents=contents, complete=True))


class _Preparation:
    """Read the examples, look up texts of ids, tokenise, replace passages by row numbers."""

    def __init__(
        self,
        inputs: _Inputs,
        folder: Path,
        query: TextTokenizer,
        passage: TextTokenizer,
        require_scores: bool,
    ) -> None:
        self.inputs, self.folder = inputs, folder
        self.query, self.passage, self.require_scores = query, passage, require_scores
        self.scratch = folder / "scratch"
        self.scratch.mkdir()
        self.counts: Counter[str] = Counter()
        self.first_unscored: dict[str, str] | None = None
        self.passages = 0

    def run(self) -> dict[str, Any]:
        """Write the folder's files; return the manifest's counts."""
        fields = self.passage.settings.fields
        with (
            closing(PassageTexts(self.scratch / "queries")) as self.queries,
            closing(PassageTexts(self.scratch / "passages", fields)) as self.texts,
        ):
            drafts = read_rows(self._drafts, DRAFT, self.scratch / "drafts")
            self._find_texts()
            self.keys = np.unique(pc.list_flatten(drafts.data.column("keys")).to_numpy())
            self.rows = np.full(len(self.keys), -1, dtype=np.int64)
            ids = List(token_type(self.passage.vocabulary_size))
            path = self.folder / "passages.arrow"
            with track("tokenising", len(drafts), "queries") as self.progress:
                map_rows(drafts, self._tokenise_new, Features({"input_ids": ids}), path, BATCH)
            features = Features(
                {
                    "qid": Value("string"),
                    "query": List(token_type(self.query.vocabulary_size)),
                    "positives": NUMBERS,
                    "negatives": NUMBERS,
                    "scores": SCORES,
                }
            )
            map_rows(drafts, self._examples, features, self.folder / "examples.arrow", BATCH)
        if not self.counts["examples"]:
            raise self._no_examples()
        counts = {name: self.counts[name] for name in COUNTS}
        return counts | {"passages": self.passages, "first_unscored": self.first_unscored}

    def _drafts(self) -> Iterator[dict[str, Any]]:
        """Yield the examples with the texts of their files."""
        qrels = read_qrels_map(self.inputs.qrels) if self.inputs.qrels else {}
        found = False
        with track("reading training data", None, "queries") as progress:
            for source in self.inputs.files:
                empty = True
                for example in read_training(source, self.inputs.form):
                    empty = False
                    progress.advance()
                    positives = example.positives or tuple(
                        Candidate(docid)
                        for docid, relevance in qrels.get(example.qid, {}).items()
                        if relevance > 0
                    )
                    if positives:
                        found = True
                        yield self._draft(example._replace(positives=positives), source)
                    else:
                        self.counts["without_positives"] += 1
                if empty:
                    raise InputError(source, None, "no training examples", "at least one")
        if not found:
            raise self._no_examples()

    def _no_examples(self) -> InputError:
        names = ", ".join(self.inputs.files)
        return InputError(names, None, "no query with a positive", "at least one")

    def _draft(self, example: TrainingExample, source: str) -> dict[str, Any]:
        qid, negatives = example.qid, example.negatives
        if not negatives:
            negatives = random_negatives(example, source)
            self.counts["with_random_negatives"] += bool(negatives)
        if not example.query:
            if self.inputs.queries is None:
                raise _no_text(source, f"query {qid}", "queries", (qid,))
            self.queries.refer([qid])
        candidates = (*example.positives, *negatives)
        bare = [c.docid for c in candidates if c.docid and not (c.text or c.title)]
        if bare and self.inputs.corpus is None:
            raise _no_text(source, f"passage {bare[0]}", "corpus", (qid, bare[0]))
        self.texts.refer(bare)
        fields = self.passage.settings.fields
        return {
            "qid": qid,
            "query": example.query,
            "positives": len(example.positives),
            "keys": [hash(c.docid or (c.text, c.title)) for c in candidates],
            "docids": [c.docid for c in candidates],
            "texts": [c.text for c in candidates],
            "titles": [c.title for c in candidates],
            "extras": [_packed(c.extra, fields) for c in candidates],
            "scores": [self._score(c, qid, source) for c in candidates],
        }

    def _score(self, candidate: Candidate, qid: str, source: str) -> float:
        if candidate.score is None:
            name = candidate.docid or repr(candidate.text[:40])
            if self.require_scores:
                raise unscored(source, qid, name, line_of(source, qid, name))
            if self.first_unscored is None:
                self.first_unscored = {"source": source, "query": qid, "passage": name}
            return np.nan
        if abs(candidate.score) > MAX_SCORE:
            found, line = f"the score {candidate.score} in query {qid}", line_of(source, qid)
            raise InputError(source, line, found, "a number within float32's range")
        return candidate.score

    def _find_texts(self) -> None:
        """Copy the texts of ids without text to disk."""
        inputs = self.inputs
        if inputs.queries is not None and self.queries.referred:
            queries = read_queries(inputs.queries)
            with track("reading queries", None, "queries") as progress:
                records = (Passage(query.qid, query.text) for query in queries)
                self.queries.find(records, inputs.queries, progress)
        if inputs.corpus is not None and self.texts.referred:
            passages = read_passages(inputs.corpus, inputs.corpus_settings, inputs.fields)
            with track("reading the corpus", None, "passages") as progress:
                self.texts.find(passages, inputs.corpus, progress)

    def _tokenise_new(self, batch: Columns) -> Columns:
        """Tokenise passages that are new; record their rows."""
        self.progress.advance(len(batch["qid"]))
        places = self._places(list(chain.from_iterable(batch["keys"])))
        first = np.sort(np.unique(places, return_index=True)[1])
        first = first[self.rows[places[first]] < 0]
        names = ("docids", "texts", "titles", "extras")
        columns = [list(chain.from_iterable(batch[name])) for name in names]
        found = [tuple(column[n] for column in columns) for n in first.tolist()]
        bare = [docid for docid, text, title, _ in found if docid and not (text or title)]
        looked_up = dict(zip(bare, self.texts.get(bare), strict=True))
        passages, taken = [], []
        for (docid, text, title, extra), place in zip(found, places[first].tolist(), strict=True):
            passage = Passage(docid, text, title, orjson.loads(extra))
            passage = looked_up.get(docid, passage)
            if passage is not None:
                passages.append(passage)
                taken.append(place)
        self.rows[taken] = np.arange(self.passages, self.passages + len(taken))
        self.passages += len(taken)
        return {"input_ids": self.passage.passages(passages)}

    def _places(self, keys: list[int]) -> Rows:
        return np.searchsorted(self.keys, np.array(keys, dtype=np.int64))

    def _examples(self, batch: Columns) -> Columns:
        """Replace passages by rows; leave out those without a text."""
        bare = [q for q, text in zip(batch["qid"], batch["query"], strict=True) if not text]
        texts = dict(zip(bare, self.queries.get(bare), strict=True))
        kept: dict[str, list[Any]] = {"qid": [], "positives": [], "negatives": [], "scores": []}
        queries = []
        columns = (batch[name] for name in ("qid", "query", "positives", "keys", "scores"))
        for number, (qid, query, positives, keys, scores) in enumerate(zip(*columns, strict=True)):
            known = Passage(qid, query) if query else texts[qid]
            if known is None:
                self._miss(qid, qid, self.inputs.queries)
                self.counts["missing_queries"] += 1
            rows = self.rows[self._places(keys)]
            for place in np.flatnonzero(rows < 0).tolist():
                self._miss(qid, batch["docids"][number][place], self.inputs.corpus)
                self.counts["missing_passages"] += 1
            there = rows >= 0
            if known is None:
                continue
            if not there[:positives].any():
                self.counts["without_positives"] += 1
                continue
            queries.append(Query(qid, known.text))
            kept["qid"].append(qid)
            kept["positives"].append(rows[:positives][there[:positives]])
            kept["negatives"].append(rows[positives:][there[positives:]])
            kept["scores"].append(np.array(scores, dtype=np.float32)[there])
        self.counts["examples"] += len(queries)
        self.counts["candidates"] += sum(map(len, kept["scores"]))
        self.counts["unscored"] += sum(int(np.isnan(scores).sum()) for scores in kept["scores"])
        self.counts["without_negatives"] += sum(not len(rows) for rows in kept["negatives"])
        return kept | {"query": self.query.queries(queries)}

    def _miss(self, qid: str, name: str, where: str | None) -> None:
        """Raise an error for an id without a text, unless these are left out."""
        if self.inputs.skip_missing:
            return
        places = ((source, line_of(source, qid, name)) for source in self.inputs.files)
        source, line = next((p for p in places if p[1]), (self.inputs.files[0], None))
        what = name if name == qid else f"{name} of query {qid}"
        raise InputError(
            source,
            line,
            f"the id {what}, which {where} does not hold",
            "ids that are there",
            "add --skip-missing to leave such ids out and count them",
        )


def _packed(extra: Mapping[str, Any], fields: Sequence[str]) -> str:
    return orjson.dumps({name: extra[name] for name in fields if name in extra}).decode()


def _no_text(source: str, what: str, flag: str, words: tuple[str, ...]) -> InputError:
    holder = "the corpus" if flag == "corpus" else "the file"
    kind = "passages" if flag == "corpus" else "queries"
    return InputError(
        source,
        line_of(source, *words),
        f"{what} without its text",
        f"a text, or {holder} that holds it",
        f"add --{flag}, the file with the texts of the {kind}",
    )


def line_of(source: str, *words: str) -> int | None:
    """Return the first line of a text file with all the words, for an error; None without one."""
    if source == STREAM or not Path(source).is_file() or source.endswith(".parquet"):
        return None
    edge = rb'[\s",\[\]]'
    patterns = [
        re.compile(rb"(?:^|%b)%b(?:$|%b)" % (edge, re.escape(word.encode()), edge))
        for word in words
    ]
    for number, line in read_lines(source):
        if all(pattern.search(line) for pattern in patterns):
            return number
    return None


class SentenceStore:
    """Prepared pairs or triplets, memory-mapped.

    Args:
        folder: what `prepare_sentences` wrote.

    Attributes:
        size: sentences of an example, 2 or 3; those of example i begin at row size * i.
        sentences: token ids by row.
        labels: (N,) float32, of pairs; empty for triplets.
        pad_id: for batches.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        settings = read_manifest(folder, Kind.TRAINING).settings
        self.size = int(settings["size"])
        self.pad_id = int(settings["sentence"]["pad_id"])
        data = open_rows(folder / "sentences.arrow")
        self.sentences = Lists(data, "input_ids")
        labels: NDArray[np.float32] = data.data.column("label").to_numpy()
        self.labels = labels[:: self.size] if self.size == 2 else labels[:0]

    def __reduce__(self) -> tuple[type["SentenceStore"], tuple[Path]]:
        return SentenceStore, (self.folder,)

    def __len__(self) -> int:
        return len(self.sentences) // self.size


def prepare_sentences(
    sources: Sequence[str],
    folder: Path,
    tokenizer: TextTokenizer,
    *,
    size: int,
    label_scale: float = 1.0,
    again: bool = True,
) -> SentenceStore:
    """Prepare pairs or triplets, or open what an earlier call prepared from the same inputs.

    Args:
        sources: files in order; "-" is standard input.
        folder: the output.
        tokenizer: tokenises sentences.
        size: 2 for pairs with labels, 3 for triplets.
        label_scale: the largest absolute label.
        again: rebuild outdated data; False makes it an error.

    Raises:
        MismatchError: `folder` was made otherwise.
        InputError: a file has another format, or a label exceeds the scale.
    """
    scale = label_scale if size == 2 else None
    settings = {"format": FORMAT, "size": size, "label_scale": scale}
    plan = plan_of(settings | {"sentence": rules_of(tokenizer)}, _numbered(sources))
    if is_prepared(folder, plan, again=again):
        return SentenceStore(folder)
    label = Value("float32")

    def rows() -> Iterator[dict[str, Any]]:
        what = "pairs" if size == 2 else "triplets"
        with track("reading training data", None, what) as progress:
            for source in sources:
                for number, example in enumerate(read_sentences(source, size), start=1):
                    if scale is not None and abs(example.label or 0) > scale:
                        raise InputError(
                            source,
                            None,
                            f"the label {example.label:g} of pair {number:,}",
                            f"labels up to {scale:g}, that of equal sentences",
                            "give the largest label, for example --set label-scale=5",
                        )
                    progress.advance()
                    yield {"texts": example.texts, "label": example.label}

    def tokenise(batch: Columns) -> Columns:
        texts = list(chain.from_iterable(batch["texts"]))
        labels = np.repeat(np.array(batch["label"], dtype=np.float32), size)
        return {"input_ids": tokenizer.sentences(texts), "label": labels.tolist()}

    with whole_folder(folder, own=True) as part:
        read = read_rows(rows, Features({"texts": STRINGS, "label": label}), part / "scratch")
        ids = List(token_type(tokenizer.vocabulary_size))
        features = Features({"input_ids": ids, "label": label})
        map_rows(read, tokenise, features, part / "sentences.arrow")
        _complete(part, plan, {"examples": len(read)})
    return SentenceStore(folder)
