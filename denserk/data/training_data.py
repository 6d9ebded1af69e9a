"""Training data prepared for batches: every distinct text tokenised once.

passages.arrow     `input_ids` of each passage, distinct by id and by text: copies share a row
examples.arrow     `qid`, `query` (token ids), `positives` and `negatives` (rows of passages) and
                   `scores` of both, NaN where the teacher gave none
sentences.arrow    of sentence pairs and triplets instead: `input_ids`, `label`; also of queries to
                   align, whose label is the teacher's vector
manifest.json      what it was made from, and what was left out
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc
from datasets import Features, List, Value
from datasets.arrow_writer import ArrowWriter
from numpy.typing import NDArray

from denserk.config.finetuning import FinetuneRun
from denserk.config.options import as_json
from denserk.data import prepared
from denserk.data.tokenization import TextTokenizer
from denserk.errors import InputError
from denserk.io import training
from denserk.io.corpus import PassageTexts, read_passages
from denserk.io.known_positives import LEFT_OUT, text_key
from denserk.io.manifest import Kind
from denserk.io.qrels import read_qrels_map
from denserk.io.scratch_records import ScratchRecords
from denserk.io.topics import read_queries
from denserk.records import Candidate, Passage, Query, TrainingExample
from denserk.reporting import track

logger = logging.getLogger(__name__)

# counts in the manifest, and others with a warning if they are not 0
COUNTS = ("passages", "unscored", "without_negatives")
WARNINGS = {
    "known_positives": LEFT_OUT,
    "without_positives": "queries without a positive are left out",
    "with_random_negatives": "queries without a hard negative use their random ones",
    "missing_passages": "passages that the corpus lacks are left out",
    "missing_queries": "queries without a text are left out",
}
NO_ROW = -1  # in place of the row of a passage without a text


class TrainingStore(prepared.Store):
    """Prepared training data, memory-mapped.

    An item is the number of an example, from 0, in the order of the files; there are N. `queries`
    are token ids by item, `passages` by row; `positives` and `negatives` rows of passages by item;
    `negative_counts` (N,) how many negatives each has; `scores` the teacher's by item, those of its
    positives, then of its negatives.
    """

    unit = "queries"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, Kind.TRAINING)
        self.query_pad_id = int(self.settings["query"]["pad_id"])
        self.passage_pad_id = int(self.settings["passage"]["pad_id"])
        self.passages = prepared.open_rows(folder / "passages.arrow")["input_ids"]
        examples = prepared.open_rows(folder / "examples.arrow")
        self.qids = examples["qid"]
        self.queries = examples["query"]
        self.positives = examples["positives"]
        self.negatives = examples["negatives"]
        self.scores = examples["scores"]
        negative_counts = pc.list_value_length(examples.data.column("negatives"))
        self.negative_counts: NDArray[np.int64] = negative_counts.to_numpy()

    def __len__(self) -> int:
        return len(self.queries)


def prepare(
    run: FinetuneRun,
    folder: Path,
    query_tokenizer: TextTokenizer,
    passage_tokenizer: TextTokenizer,
    *,
    replace_outdated: bool = True,
    distinct_by: Sequence[str] | None = None,
) -> TrainingStore:
    """Prepare a run's training data, or open what an earlier call prepared from the same inputs.

    A query without positives is left out and counted; so is a negative that is a positive of its
    query, or of an equal one, by id or text. A DPR question without hard negatives takes its random
    ones. Passages are equal by the fields `distinct_by`; None: those that are tokenised.

    Texts stay on disk; memory holds about 200 bytes per distinct passage. Outdated data is prepared
    again; without `replace_outdated` it is a MismatchError.
    """
    fields = run.text.get("fields")
    settings = {
        "format": prepared.FORMAT,
        "form": run.finetune.train_format,
        "skip_missing": run.finetune.skip_missing,
        "corpus": as_json(run.corpus),
        "fields": None if fields is None else list(fields),
        "query": prepared.rules_of(query_tokenizer),
        "passage": prepared.rules_of(passage_tokenizer),
    }
    inputs = {
        "file": run.finetune.train_data,
        "corpus": run.finetune.corpus,
        "queries": run.finetune.queries,
        "qrels": run.finetune.qrels,
    }
    writer = _ExampleWriter(
        run,
        query_tokenizer,
        passage_tokenizer,
        distinct_by=distinct_by or passage_tokenizer.settings.fields,
    )
    prepared.prepare_folder(
        folder,
        prepared.plan_of(settings, inputs),
        writer.write,
        replace_outdated=replace_outdated,
    )
    store = TrainingStore(folder)
    store.warn(WARNINGS)
    return store


class _ExampleWriter:
    """Writes passages.arrow and examples.arrow, in two passes.

    The first reads the examples and keeps them on the disk, until the texts of the ids in them are
    read; the second tokenises them.
    """

    def __init__(
        self,
        run: FinetuneRun,
        query_tokenizer: TextTokenizer,
        passage_tokenizer: TextTokenizer,
        *,
        distinct_by: Sequence[str],
    ) -> None:
        self.run = run
        self.settings = run.finetune
        self.query_tokenizer = query_tokenizer
        self.passage_tokenizer = passage_tokenizer
        self.distinct_by = distinct_by
        self.counts: Counter[str] = Counter()

    def write(self, folder: Path, scratch: Path) -> dict[str, Any]:
        """Write the folder's files; return the manifest's counts."""
        fields = (*self.passage_tokenizer.settings.fields, *self.distinct_by)
        distinct_fields = tuple(dict.fromkeys(fields))
        passage_features = Features({"input_ids": prepared.token_lists(self.passage_tokenizer)})
        passages_path = str(folder / "passages.arrow")
        with (
            closing(_ScratchExamples(scratch, distinct_fields)) as examples,
            ArrowWriter(features=passage_features, path=passages_path) as passage_writer,
        ):
            for example in self._examples_with_positives():
                examples.append(example)
            examples.find_texts(self.run)
            passages = _DistinctPassages(
                examples, self.distinct_by, self.passage_tokenizer, passage_writer
            )
            # which writes the rows of passages, too, before those of the examples that name them
            rows = prepared.write_rows(
                folder / "examples.arrow", self._example_features(), self._rows(examples, passages)
            )
            passage_writer.finalize()
        self.counts["passages"] = passages.count
        if not len(rows):
            raise InputError(self._file_names(), None, "no query with a positive", "at least one")
        counts = {name: self.counts[name] for name in (*COUNTS, *WARNINGS)}
        return {"examples": len(rows), **counts}

    def _example_features(self) -> Features:
        """Return the columns of examples.arrow."""
        return Features(
            {
                "qid": Value("string"),
                "positives": List(Value("int64")),
                "negatives": List(Value("int64")),
                "scores": List(Value("float32")),
                "query": prepared.token_lists(self.query_tokenizer),
            }
        )

    def _file_names(self) -> str:
        """Return the names of the training data, for a message."""
        return ", ".join(self.settings.train_data)

    def _examples_with_positives(self) -> Iterator[TrainingExample]:
        """Read the examples of all files, and yield those that have a positive.

        Positives that a file does not give come from --qrels; hard negatives from the random ones.
        """
        judgments = read_qrels_map(self.settings.qrels) if self.settings.qrels else {}
        with track("reading training data", None, "queries") as progress:
            for source in self.settings.train_data:
                count_before = progress.done
                for example in training.read_training(source, self.settings.train_format):
                    progress.advance()
                    positives = example.positives
                    if not positives:
                        positives = _judged_positives(judgments.get(example.qid, {}))
                    if not positives:
                        self.counts["without_positives"] += 1
                        continue
                    negatives = example.negatives
                    if not negatives:
                        negatives = training.random_negatives(example, source)
                        self.counts["with_random_negatives"] += bool(negatives)
                    yield TrainingExample(example.qid, example.query, positives, negatives)
                if progress.done == count_before:
                    raise InputError(source, None, "no training examples", "at least one")

    def _rows(
        self, examples: "_ScratchExamples", passages: "_DistinctPassages"
    ) -> Iterator[dict[str, Any]]:
        """Yield the rows of examples.arrow, without what has no text; write their passages first.

        An example can lose its last positive here, because that has no text.
        """
        known_positives = _positives_of_repeated_queries(examples, passages)
        with track("tokenising", len(examples), "queries") as progress:
            for example in examples:
                progress.advance()
                query = examples.query_of(example)
                if query is None:
                    self._count_missing_query(example)
                    continue
                positives_of_query = known_positives.get(_query_hash(example), set())
                row = self._row(example, passages, positives_of_query)
                if not row["positives"]:
                    self.counts["without_positives"] += 1
                    continue
                [token_ids] = self.query_tokenizer.queries([query])
                yield {**row, "qid": example.qid, "query": token_ids}
                self.counts["unscored"] += int(np.isnan(row["scores"]).sum())
                self.counts["without_negatives"] += not row["negatives"]

    def _row(
        self, example: TrainingExample, passages: "_DistinctPassages", known_positives: set[int]
    ) -> dict[str, Any]:
        """Return the rows and scores of an example's passages with a text: columns of its own row.

        `known_positives` are hashes of passages that must not be negatives of the example.
        """
        positives = self._scored_rows(example, example.positives, passages)
        negatives = self._scored_rows(example, example.negatives, passages)
        passages.write_new()
        positive_rows = {passage.row for passage in positives}
        positive_rows |= passages.rows_of_hashes(known_positives)
        hard_negatives = [passage for passage in negatives if passage.row not in positive_rows]
        self.counts["known_positives"] += len(negatives) - len(hard_negatives)
        return {
            "positives": [passage.row for passage in positives],
            "negatives": [passage.row for passage in hard_negatives],
            "scores": [passage.score for passage in positives + hard_negatives],
        }

    def _scored_rows(
        self,
        example: TrainingExample,
        candidates: Iterable[Candidate],
        passages: "_DistinctPassages",
    ) -> list["_ScoredRow"]:
        """Return the rows and scores of an example's candidates that have a text."""
        scored_rows = []
        for candidate in candidates:
            row = passages.row_of(candidate)
            if row == NO_ROW:
                self._count_missing_passage(candidate, example)
                continue
            score = np.nan if candidate.score is None else candidate.score
            scored_rows.append(_ScoredRow(row, score))
        return scored_rows

    def _count_missing_passage(self, candidate: Candidate, example: TrainingExample) -> None:
        """Count a passage without a text; raise an InputError unless these are left out."""
        self.counts["missing_passages"] += 1
        if self.settings.skip_missing:
            return
        message = f"passage {candidate.docid} of query {example.qid} without its text"
        if self.settings.corpus:
            message = (
                f"passage {candidate.docid} of query {example.qid}, of which "
                f"{self.settings.corpus} has no text"
            )
        hint = "give a file that has it as --corpus, or leave such ids out: --skip-missing"
        raise self._missing_text_error(message, hint)

    def _count_missing_query(self, example: TrainingExample) -> None:
        """Count a query without a text; raise an InputError unless these are left out."""
        self.counts["missing_queries"] += 1
        if self.settings.skip_missing:
            return
        message = f"query {example.qid} without its text"
        if self.settings.queries:
            message = f"query {example.qid}, of which {self.settings.queries} has no text"
        hint = "give a file that has it as --queries, or leave such ids out: --skip-missing"
        raise self._missing_text_error(message, hint)

    def _missing_text_error(self, message: str, hint: str) -> InputError:
        """Return the error of training data that names what no file has, to raise."""
        expected = "texts of all queries and passages"
        return InputError(self._file_names(), None, message, expected, hint)


def _judged_positives(grades: Mapping[str, int]) -> tuple[Candidate, ...]:
    """Return the passages that the relevance judgments of a query hold relevant."""
    return tuple(Candidate(docid) for docid, grade in grades.items() if grade > 0)


def _query_hash(example: TrainingExample) -> int:
    """Return what examples of one query share: its text, or its id where a file has the text."""
    return hash(("text", example.query) if example.query else ("id", example.qid))


def _has_text(candidate: Candidate) -> bool:
    """Return whether a candidate is more than the id of a passage of the corpus."""
    return bool(candidate.text or candidate.title)


class _ScratchExamples:
    """Examples in a temporary file, and in others the texts that they name by id.

    Examples are appended first, then `find_texts` reads queries and corpus once. Memory holds the
    ids. `fields` are those of a passage that are needed.
    """

    def __init__(self, folder: Path, fields: Sequence[str]) -> None:
        self._records = ScratchRecords(folder / "examples")
        self._queries = PassageTexts(folder / "queries")  # as passages with a text alone
        self._corpus = PassageTexts(folder / "corpus", fields)
        self._examples_per_query: Counter[int] = Counter()  # by hash

    def close(self) -> None:
        """Close the temporary files."""
        self._records.close()
        self._queries.close()
        self._corpus.close()

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[TrainingExample]:
        for number in range(len(self._records)):
            yield training.unpacked(self._records[number])

    def append(self, example: TrainingExample) -> None:
        """Write an example, and note the ids that stand for texts."""
        self._examples_per_query[_query_hash(example)] += 1
        if not example.query:
            self._queries.refer([example.qid])
        for candidate in training.all_candidates(example):
            if candidate.docid and not _has_text(candidate):
                self._corpus.refer([candidate.docid])
        self._records.append(training.packed(example))

    def find_texts(self, run: FinetuneRun) -> None:
        """Read the texts of the noted ids from a run's queries and corpus."""
        queries_source = run.finetune.queries
        if queries_source is not None:
            queries = read_queries(queries_source)
            query_texts = (Passage(query.qid, query.text) for query in queries)
            self._queries.find(query_texts, queries_source)
        corpus_source = run.finetune.corpus
        if corpus_source is not None:
            passages = read_passages(corpus_source, run.corpus, run.text.get("fields"))
            self._corpus.find(passages, corpus_source)

    def of_repeated_queries(self) -> Iterator[TrainingExample]:
        """Yield the examples of queries that have several."""
        if max(self._examples_per_query.values(), default=0) < 2:
            return
        for example in self:
            if self._examples_per_query[_query_hash(example)] > 1:
                yield example

    def query_of(self, example: TrainingExample) -> Query | None:
        """Return the query of an example; None where no file has its text."""
        if example.query:
            return Query(example.qid, example.query)
        [query] = self._queries.get([example.qid])
        if query is None:
            return None
        return Query(example.qid, query.text)

    def passage_of(self, candidate: Candidate) -> Passage | None:
        """Return the passage of a candidate; None where the corpus lacks its text."""
        if candidate.docid and not _has_text(candidate):
            [passage] = self._corpus.get([candidate.docid])
            return passage
        return Passage(candidate.docid, candidate.text, candidate.title, candidate.extra)


class _ScoredRow(NamedTuple):
    """A row of passages.arrow, and the teacher's score of the passage for a query."""

    row: int
    score: float  # NaN without one


class _DistinctPassages:
    """The rows of passages.arrow: passages with one id, or one text, share a row.

    Texts are compared by the fields `distinct_by`. New passages are numbered by `row_of`, and
    tokenised together by `write_new`.
    """

    def __init__(
        self,
        examples: _ScratchExamples,
        distinct_by: Sequence[str],
        tokenizer: TextTokenizer,
        writer: ArrowWriter,
    ) -> None:
        self._examples = examples
        self._distinct_by = distinct_by
        self._tokenizer = tokenizer
        self._writer = writer
        self._rows: dict[int, int] = {}  # by hashes of ids and of texts; NO_ROW without a text
        self._new_passages: list[Passage] = []  # they have a row, but are not written
        self.count = 0

    def hashes(self, candidate: Candidate) -> list[int]:
        """Return the hashes by which equal passages are found: of the id, and of the text."""
        return self._hashes(candidate.docid, self._examples.passage_of(candidate))

    def _hashes(self, docid: str, passage: Passage | None) -> list[int]:
        """Return the hash of an id, unless it is empty, and of a text, unless there is none."""
        hashes = []
        if docid:
            hashes.append(hash(docid))
        if passage is not None:
            key = text_key(*map(passage.field, self._distinct_by))
            if key is not None:
                hashes.append(hash(key))
        return hashes

    def row_of(self, candidate: Candidate) -> int:
        """Return the row of a passage, a new one if it has none; NO_ROW without a text."""
        docid_hash = hash(candidate.docid)
        if candidate.docid and docid_hash in self._rows:
            return self._rows[docid_hash]
        passage = self._examples.passage_of(candidate)
        if passage is None:
            self._rows[docid_hash] = NO_ROW
            return NO_ROW
        hashes = self._hashes(candidate.docid, passage)
        known_rows = [self._rows[key] for key in hashes if key in self._rows]
        if known_rows:  # of its text, as the id is new
            row = known_rows[0]
        else:
            row = self.count
            self.count += 1
            self._new_passages.append(passage)
        self._rows.update(dict.fromkeys(hashes, row))
        return row

    def rows_of_hashes(self, hashes: Iterable[int]) -> set[int]:
        """Return the rows of the passages that have one of these hashes."""
        return {self._rows[key] for key in hashes if key in self._rows}

    def write_new(self) -> None:
        """Tokenise the passages that are new since the last call, and write their rows."""
        for token_ids in self._tokenizer.passages(self._new_passages):
            self._writer.write({"input_ids": token_ids})
        self._new_passages.clear()


def _positives_of_repeated_queries(
    examples: _ScratchExamples, passages: _DistinctPassages
) -> dict[int, set[int]]:
    """Return the hashes of the positives of queries that have several examples, by query's hash."""
    positives: dict[int, set[int]] = {}
    for example in examples.of_repeated_queries():
        hashes = positives.setdefault(_query_hash(example), set())
        for candidate in example.positives:
            hashes.update(passages.hashes(candidate))
    return positives


class SentenceStore(prepared.Store):
    """Prepared pairs, triplets, or queries to align, memory-mapped.

    `sentences` are token ids by row; the `size` (2, 3 or 1) of example i begin at row size * i.
    `labels`: (N,) float32, of pairs; (N, D), the teacher's vectors, of queries; empty for triplets.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, Kind.TRAINING)
        self.size = int(self.settings["size"])
        self.pad_id = int(self.settings["sentence"]["pad_id"])
        data = prepared.open_rows(folder / "sentences.arrow")
        self.sentences = data["input_ids"]
        self.labels: Any
        if self.size == 1:
            self.labels = data["label"]  # vectors stay on the disk
        elif self.size == 2:
            # both sentences of a pair have its label
            self.labels = data.data.column("label").to_numpy()[::2]
        else:
            self.labels = np.empty(0, dtype=np.float32)

    def __len__(self) -> int:
        return len(self.sentences) // self.size


def tokenize_sentences(
    sources: Sequence[str],
    folder: Path,
    tokenizer: TextTokenizer,
    *,
    size: int,
    label_scale: float = 1.0,
    replace_outdated: bool = True,
) -> SentenceStore:
    """Prepare pairs or triplets, or open what an earlier call prepared from the same inputs.

    `size` is 2 or 3; `label_scale` is the label of two equal sentences.
    """
    largest_label = label_scale if size == 2 else None
    return write_sentences(
        folder,
        tokenizer,
        {"size": size, "label_scale": largest_label},
        {"file": sources},
        Value("float32"),
        lambda: _sentence_rows(sources, tokenizer, size, largest_label),
        replace_outdated=replace_outdated,
    )


def _sentence_rows(
    sources: Sequence[str], tokenizer: TextTokenizer, size: int, largest_label: float | None
) -> Iterator[dict[str, Any]]:
    """Yield the rows of pairs or triplets, `size` of each; only pairs have a `largest_label`."""
    copies = 0
    with track("reading training data", None, "pairs" if size == 2 else "triplets") as progress:
        for source in sources:
            for number, example in enumerate(training.read_sentences(source, size), start=1):
                progress.advance()
                if largest_label is not None:
                    _check_label(example.label or 0, largest_label, source, number)
                if size == 3 and text_key(example.texts[1]) == text_key(example.texts[2]):
                    copies += 1
                    continue
                for token_ids in tokenizer.sentences(example.texts):
                    yield {"input_ids": token_ids, "label": example.label}
    if copies:
        logger.warning(f"triplets whose negative is their positive are left out: {copies:,}")


def _check_label(label: float, largest_label: float, source: str, number: int) -> None:
    """Raise an InputError for a label beyond that of equal sentences; pairs count from 1."""
    if abs(label) > largest_label:
        raise InputError(
            source,
            None,
            f"the label {label:g} of pair {number:,}",
            f"labels up to {largest_label:g}, that of equal sentences",
            "give the largest label, for example --set label-scale=5",
        )


def write_sentences(
    folder: Path,
    tokenizer: TextTokenizer,
    settings: Mapping[str, Any],
    inputs: prepared.Inputs,
    label: Any,
    rows: Callable[[], Iterable[Mapping[str, Any]]],
    *,
    replace_outdated: bool,
) -> SentenceStore:
    """Write rows of `input_ids` and a `label`, unless the folder holds those of the same inputs.

    `label` is the column's type in Arrow; `settings` have the `size` of an example, and all else
    that decides the rows. `rows` is called only if they are to be written.
    """
    all_settings = {
        "format": prepared.FORMAT,
        **settings,
        "sentence": prepared.rules_of(tokenizer),
    }
    features = Features({"input_ids": prepared.token_lists(tokenizer), "label": label})

    def write(unfinished_folder: Path, _scratch: Path) -> dict[str, Any]:
        path = unfinished_folder / "sentences.arrow"
        sentences = prepared.write_rows(path, features, rows())
        return {"examples": len(sentences) // settings["size"]}

    plan = prepared.plan_of(all_settings, inputs)
    prepared.prepare_folder(folder, plan, write, replace_outdated=replace_outdated)
    return SentenceStore(folder)
