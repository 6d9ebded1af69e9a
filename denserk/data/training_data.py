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
from typing import Any

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
from denserk.io.files import ScratchRecords
from denserk.io.known_positives import LEFT_OUT, text_key
from denserk.io.manifest import Kind
from denserk.io.topics import read_qrels_map, read_queries
from denserk.records import Candidate, Passage, Query, TrainingExample
from denserk.reporting import track

logger = logging.getLogger(__name__)

COUNTS = ("passages", "unscored", "without_negatives")
# count in the manifest -> warning
WARNINGS = {
    "known_positives": LEFT_OUT,
    "without_positives": "queries without a positive are left out",
    "with_random_negatives": "queries without a hard negative use their random ones",
    "missing_passages": "passages that the corpus lacks are left out",
    "missing_queries": "queries without a text are left out",
}
NUMBERS = List(Value("int64"))
EXAMPLE = {"qid": Value("string"), "positives": NUMBERS, "negatives": NUMBERS}
EXAMPLE |= {"scores": List(Value("float32"))}


class TrainingStore(prepared.Store):
    """Prepared training data, memory-mapped.

    An item is the number of an example, from 0, in the order of the files. `queries` are token ids
    by item, `passages` by row; `positives` and `negatives` rows of passages by item;
    `negative_counts` (N,); `scores` those of an item's positives, then of its negatives.
    """

    unit = "queries"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, Kind.TRAINING)
        self.query_pad_id = int(self.settings["query"]["pad_id"])
        self.passage_pad_id = int(self.settings["passage"]["pad_id"])
        self.passages = prepared.open_rows(folder / "passages.arrow")["input_ids"]
        examples = prepared.open_rows(folder / "examples.arrow")
        self.qids, self.queries = examples["qid"], examples["query"]
        self.positives, self.negatives = examples["positives"], examples["negatives"]
        self.scores = examples["scores"]
        counts = pc.list_value_length(examples.data.column("negatives"))
        self.negative_counts: NDArray[np.int64] = counts.to_numpy()

    def __len__(self) -> int:
        return len(self.queries)


def prepare(
    run: FinetuneRun,
    folder: Path,
    query: TextTokenizer,
    passage: TextTokenizer,
    *,
    again: bool = True,
    distinct_by: Sequence[str] | None = None,
) -> TrainingStore:
    """Prepare a run's training data, or open what an earlier call prepared from the same inputs.

    A query without positives is left out and counted; so is a negative that is a positive of its
    query, or of an equal one, by id or text. A DPR question without hard negatives takes its random
    ones. Passages are equal by the fields `distinct_by`; None: those that are tokenised.

    Texts stay on disk; memory holds about 200 bytes per distinct passage. Outdated data is prepared
    again; without `again` it is a MismatchError.
    """
    given, fields = run.finetune, run.text.get("fields")
    settings = {
        "format": prepared.FORMAT,
        "form": given.train_format,
        "skip_missing": given.skip_missing,
        "corpus": as_json(run.corpus),
        "fields": None if fields is None else list(fields),
        "query": prepared.rules_of(query),
        "passage": prepared.rules_of(passage),
    }
    sources = {use: getattr(given, use) for use in ("corpus", "queries", "qrels")}
    plan = prepared.plan_of(settings, {"file": given.train_data, **sources})
    work = _Preparation(run, query, passage, distinct_by or passage.settings.fields)
    prepared.prepare_folder(folder, plan, work.write, again=again)
    store = TrainingStore(folder)
    store.warn(WARNINGS)
    return store


class _Preparation:
    """Two passes: examples wait on the disk until their ids have texts, then are tokenised."""

    def __init__(
        self,
        run: FinetuneRun,
        query: TextTokenizer,
        passage: TextTokenizer,
        distinct_by: Sequence[str],
    ) -> None:
        self.run, self.given, self.query, self.passage = run, run.finetune, query, passage
        self.distinct_by = distinct_by
        self.counts: Counter[str] = Counter()
        # hash of a passage's id, or of its text -> its row, -1 without a text
        self.rows: dict[int, int] = {}
        # hash of a query -> its examples; -> hashes of the positives of all its examples
        self.query_counts: Counter[int] = Counter()
        self.known_positives: dict[int, set[int]] = {}

    def write(self, folder: Path, scratch: Path) -> dict[str, Any]:
        """Write the folder's files; return the manifest's counts."""
        given = self.given
        fields = tuple(dict.fromkeys((*self.passage.settings.fields, *self.distinct_by)))
        of_passages = Features({"input_ids": prepared.token_lists(self.passage)})
        of_examples = Features(EXAMPLE | {"query": prepared.token_lists(self.query)})
        with (
            closing(ScratchRecords(scratch / "examples")) as read,
            closing(PassageTexts(scratch / "queries")) as self.queries,
            closing(PassageTexts(scratch / "corpus", fields)) as self.corpus,
            ArrowWriter(features=of_passages, path=str(folder / "passages.arrow")) as self.writer,
        ):
            for example in self._read():
                self.query_counts[_query_hash(example)] += 1
                if not example.query:
                    self.queries.refer([example.qid])
                bare = (c for c in training.all_candidates(example) if not (c.text or c.title))
                self.corpus.refer(candidate.docid for candidate in bare if candidate.docid)
                read.append(training.packed(example))
            if given.queries is not None:
                texts = (Passage(query.qid, query.text) for query in read_queries(given.queries))
                self.queries.find(texts, given.queries)
            if given.corpus is not None:
                found = read_passages(given.corpus, self.run.corpus, self.run.text.get("fields"))
                self.corpus.find(found, given.corpus)
            self._note_positives(read)
            examples = prepared.write_rows(folder / "examples.arrow", of_examples, self._rows(read))
            self.writer.finalize()
        if not len(examples):
            names = ", ".join(given.train_data)
            raise InputError(names, None, "no query with a positive", "at least one")
        return {"examples": len(examples)} | {n: self.counts[n] for n in (*COUNTS, *WARNINGS)}

    def _read(self) -> Iterator[TrainingExample]:
        """Yield the examples that have a positive."""
        qrels = read_qrels_map(self.given.qrels) if self.given.qrels else {}
        with track("reading training data", None, "queries") as progress:
            for source in self.given.train_data:
                before = progress.done
                for example in training.read_training(source, self.given.train_format):
                    progress.advance()
                    positives, negatives = example.positives, example.negatives
                    if not positives:
                        judged = qrels.get(example.qid, {}).items()
                        positives = tuple(Candidate(docid) for docid, grade in judged if grade > 0)
                    if not positives:
                        self.counts["without_positives"] += 1
                        continue
                    if not negatives:
                        negatives = training.random_negatives(example, source)
                        self.counts["with_random_negatives"] += bool(negatives)
                    yield TrainingExample(example.qid, example.query, positives, negatives)
                if progress.done == before:
                    raise InputError(source, None, "no training examples", "at least one")

    def _note_positives(self, read: ScratchRecords) -> None:
        """Note the positives of queries that have several examples."""
        repeated = {query for query, count in self.query_counts.items() if count > 1}
        for number in range(len(read)) if repeated else ():
            example = training.unpacked(read[number])
            query = _query_hash(example)
            if query in repeated:
                hashes = self.known_positives.setdefault(query, set())
                for positive in example.positives:
                    hashes.update(self._hashes(positive, self._passage(positive)))

    def _passage(self, candidate: Candidate) -> Passage | None:
        """Return a passage with its text; None where the corpus lacks it."""
        if candidate.docid and not (candidate.text or candidate.title):
            [passage] = self.corpus.get([candidate.docid])
            return passage
        return Passage(candidate.docid, candidate.text, candidate.title, candidate.extra)

    def _hashes(self, candidate: Candidate, passage: Passage | None) -> list[int]:
        """Return the hashes by which equal passages are found: of the id, and of the text."""
        hashes = [hash(candidate.docid)] if candidate.docid else []
        key = passage and text_key(*map(passage.field, self.distinct_by))
        if key:
            hashes.append(hash(key))
        return hashes

    def _rows(self, read: ScratchRecords) -> Iterator[dict[str, Any]]:
        """Yield the rows of examples, without what has no text; write their passages."""
        with track("tokenising", len(read), "queries") as progress:
            for number in range(len(read)):
                progress.advance()
                example = training.unpacked(read[number])
                query = Query(example.qid, example.query)
                if not example.query:
                    [found] = self.queries.get([example.qid])
                    if found is None:
                        self._miss("missing_queries", f"query {example.qid}", "queries")
                        continue
                    query = query._replace(text=found.text)
                row = self._row(example)
                if row["positives"]:
                    [ids] = self.query.queries([query])
                    yield row | {"qid": example.qid, "query": ids}
                    self.counts["unscored"] += int(np.isnan(row["scores"]).sum())
                    self.counts["without_negatives"] += not row["negatives"]
                else:
                    self.counts["without_positives"] += 1

    def _row(self, example: TrainingExample) -> dict[str, Any]:
        """Return the rows and scores of an example's passages with a text; write the new ones."""
        new: list[Passage] = []
        positives = self._scored_rows(example, example.positives, new)
        negatives = self._scored_rows(example, example.negatives, new)
        for ids in self.passage.passages(new):
            self.writer.write({"input_ids": ids})
        known = {row for row, _ in positives}
        hashes = self.known_positives.get(_query_hash(example), ())
        known.update(self.rows[each] for each in hashes if each in self.rows)
        hard_negatives = [(row, score) for row, score in negatives if row not in known]
        self.counts["known_positives"] += len(negatives) - len(hard_negatives)
        return {
            "positives": [row for row, _ in positives],
            "negatives": [row for row, _ in hard_negatives],
            "scores": [score for _, score in positives + hard_negatives],
        }

    def _scored_rows(
        self, example: TrainingExample, candidates: Iterable[Candidate], new: list[Passage]
    ) -> list[tuple[int, float]]:
        """Return the rows and scores of passages with a text; add those without a row to `new`."""
        rows = []
        for candidate in candidates:
            row = self._row_of(candidate, new)
            if row < 0:
                lacking = f"passage {candidate.docid} of query {example.qid}"
                self._miss("missing_passages", lacking, "corpus")
                continue
            rows.append((row, np.nan if candidate.score is None else candidate.score))
        return rows

    def _row_of(self, candidate: Candidate, new: list[Passage]) -> int:
        """Return the row of a passage, -1 without a text; one without a row is added to `new`."""
        if candidate.docid and (row := self.rows.get(hash(candidate.docid))) is not None:
            return row
        passage = self._passage(candidate)
        if passage is None:
            self.rows[hash(candidate.docid)] = -1
            return -1
        hashes = self._hashes(candidate, passage)
        row = next((self.rows[each] for each in hashes if each in self.rows), None)
        if row is None:
            row = self.counts["passages"]
            self.counts["passages"] += 1
            new.append(passage)
        self.rows.update(dict.fromkeys(hashes, row))
        return row

    def _miss(self, count: str, what: str, option: str) -> None:
        """Count an id without a text; raise an error unless these are left out."""
        self.counts[count] += 1
        if not self.given.skip_missing:
            names, source = ", ".join(self.given.train_data), getattr(self.given, option)
            found = what + (f", of which {source} has no text" if source else " without its text")
            hint = f"give a file that has it as --{option}, or leave such ids out: --skip-missing"
            raise InputError(names, None, found, "texts of all queries and passages", hint)


def _query_hash(example: TrainingExample) -> int:
    """Return what examples of one query share: its text, or its id where a file has the text."""
    return hash(("text", example.query) if example.query else ("id", example.qid))


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
        self.labels: Any = data["label"]  # vectors stay on the disk
        if self.size > 1:
            labels: NDArray[np.float32] = data.data.column("label").to_numpy()
            self.labels = labels[:: self.size] if self.size == 2 else labels[:0]

    def __len__(self) -> int:
        return len(self.sentences) // self.size


def tokenize_sentences(
    sources: Sequence[str],
    folder: Path,
    tokenizer: TextTokenizer,
    *,
    size: int,
    label_scale: float = 1.0,
    again: bool = True,
) -> SentenceStore:
    """Prepare pairs or triplets, or open what an earlier call prepared from the same inputs."""
    scale = label_scale if size == 2 else None
    counts: Counter[str] = Counter()

    def rows() -> Iterator[dict[str, Any]]:
        with track("reading training data", None, "pairs" if size == 2 else "triplets") as progress:
            for source in sources:
                for number, example in enumerate(training.read_sentences(source, size), start=1):
                    progress.advance()
                    if scale is not None and abs(example.label or 0) > scale:
                        found = f"the label {example.label:g} of pair {number:,}"
                        expected = f"labels up to {scale:g}, that of equal sentences"
                        hint = "give the largest label, for example --set label-scale=5"
                        raise InputError(source, None, found, expected, hint)
                    if size == 3 and text_key(example.texts[1]) == text_key(example.texts[2]):
                        counts["copies"] += 1
                        continue
                    for ids in tokenizer.sentences(example.texts):
                        yield {"input_ids": ids, "label": example.label}
        if counts["copies"]:
            left_out = "triplets whose negative is their positive are left out"
            logger.warning(f"{left_out}: {counts['copies']:,}")

    settings, label = {"size": size, "label_scale": scale}, Value("float32")
    return write_sentences(folder, tokenizer, settings, {"file": sources}, label, rows, again=again)


def write_sentences(
    folder: Path,
    tokenizer: TextTokenizer,
    settings: Mapping[str, Any],
    inputs: prepared.Inputs,
    label: Any,
    rows: Callable[[], Iterable[Mapping[str, Any]]],
    *,
    again: bool,
) -> SentenceStore:
    """Write rows of `input_ids` and a `label` of that type, unless the folder holds the same."""
    settings = {"format": prepared.FORMAT, **settings, "sentence": prepared.rules_of(tokenizer)}
    features = Features({"input_ids": prepared.token_lists(tokenizer), "label": label})

    def write(part: Path, scratch: Path) -> dict[str, Any]:
        written = prepared.write_rows(part / "sentences.arrow", features, rows())
        return {"examples": len(written) // settings["size"]}

    prepared.prepare_folder(folder, prepared.plan_of(settings, inputs), write, again=again)
    return SentenceStore(folder)
