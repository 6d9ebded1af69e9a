"""Training data prepared for batches: every distinct text tokenised once.

passages.arrow     `input_ids` of each passage, distinct by id, or by text where it has no id
examples.arrow     `qid`, `query` (token ids), `positives` and `negatives` (rows of passages) and
                   `scores` of both, NaN where the teacher gave none
sentences.arrow    of sentence pairs and triplets instead: `input_ids`, `label`
manifest.json      what it was made from, and what was left out
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from datasets import Dataset, Features, List, Value
from numpy.typing import NDArray

from denserk.config.formats import DETECTED, CorpusSettings, TrainingFormat
from denserk.config.options import as_json
from denserk.data.prepared import (
    FORMAT,
    Lists,
    Store,
    batched,
    numbered,
    open_rows,
    plan_of,
    prepare_folder,
    rules_of,
    token_lists,
    write_rows,
)
from denserk.data.tokenization import TextTokenizer
from denserk.errors import InputError
from denserk.io.corpus import PassageTexts, read_passages
from denserk.io.files import ScratchRecords
from denserk.io.manifest import Kind
from denserk.io.qrels import read_qrels_map
from denserk.io.topics import read_queries
from denserk.io.training import random_negatives, read_sentences, read_training
from denserk.records import Candidate, Passage, Query, SentenceExample, TrainingExample
from denserk.reporting import track

logger = logging.getLogger(__name__)

BATCH = 256  # examples, each with its passages, tokenised at once
MAX_SCORE = float(np.finfo(np.float32).max)
# counts: name in the manifest -> warning
COUNTS = {
    "candidates": None,
    "unscored": None,
    "without_negatives": None,
    "without_positives": "queries without a positive are left out",
    "with_random_negatives": "queries without a hard negative use their random ones",
    "missing_passages": "passages that the corpus lacks are left out",
    "missing_queries": "queries without a text are left out",
}
NUMBERS = List(Value("int64"))
EXAMPLE = {"qid": Value("string"), "positives": NUMBERS, "negatives": NUMBERS}
EXAMPLE |= {"scores": List(Value("float32"))}


class TrainingStore(Store):
    """Prepared training data, memory-mapped.

    An item is the number of an example, from 0, in the order of the files. `queries` are token ids
    by item, `passages` by row; `positives` and `negatives` rows of passages by item, their counts
    (N,); `scores` those of an item's positives, then of its negatives.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, Kind.TRAINING)
        self.query_pad_id = int(self.settings["query"]["pad_id"])
        self.passage_pad_id = int(self.settings["passage"]["pad_id"])
        examples = open_rows(folder / "examples.arrow")
        self.passages = Lists(open_rows(folder / "passages.arrow"), "input_ids")
        self.qids = examples.data.column("qid")
        self.queries = Lists(examples, "query")
        self.positives, self.negatives = (Lists(examples, n) for n in ("positives", "negatives"))
        self.scores = Lists(examples, "scores")
        self.positive_counts = self.positives.lengths()
        self.negative_counts = self.negatives.lengths()

    def __len__(self) -> int:
        return len(self.queries)

    def refuse_unscored(self) -> None:
        """Raise an error where a candidate lacks the teacher's score."""
        if self.contents["unscored"]:
            first = self.contents["first_unscored"]
            raise InputError(
                first["source"],
                None,
                f"no teacher's score of passage {first['passage']} for query {first['query']}",
                "a score for every positive and negative, which distillation learns from",
                f"write them: denserk convert {first['source']} scored.jsonl --teacher MODEL",
            )


@dataclass(frozen=True)
class TrainingInputs:
    """The files of training data."""

    files: Sequence[str]  # in order; "-" is standard input
    form: TrainingFormat | None = None  # None detects it for each file
    corpus: str | None = None  # the passages of ids without text
    corpus_settings: CorpusSettings = DETECTED
    fields: Sequence[str] | None = None  # that Anserini's `contents` are split into
    queries: str | None = None  # the queries of ids without text
    qrels: str | None = None  # held in memory: the positives of queries that have none
    skip_missing: bool = False  # leave out and count ids that corpus or queries lack


def prepare(
    inputs: TrainingInputs,
    folder: Path,
    query_tokenizer: TextTokenizer,
    passage_tokenizer: TextTokenizer,
    *,
    again: bool = True,
) -> TrainingStore:
    """Prepare training data, or open what an earlier call prepared from the same inputs.

    A query without positives is left out and counted. A DPR question without hard negatives takes
    its random ones. Texts stay on disk; memory holds about 100 bytes per distinct passage. Outdated
    data is prepared again; without `again` it is a MismatchError.
    """
    settings = {
        "format": FORMAT,
        "form": inputs.form,
        "skip_missing": inputs.skip_missing,
        "corpus": as_json(inputs.corpus_settings),
        "fields": None if inputs.fields is None else list(inputs.fields),
        "query": rules_of(query_tokenizer),
        "passage": rules_of(passage_tokenizer),
    }
    others = {"corpus": inputs.corpus, "queries": inputs.queries, "qrels": inputs.qrels}
    named = numbered("file", inputs.files)
    named |= {use: name for use, name in others.items() if name is not None}
    work = _Preparation(inputs, query_tokenizer, passage_tokenizer)
    prepare_folder(folder, plan_of(settings, named), work.write, again=again)
    store = TrainingStore(folder)
    for name, warning in COUNTS.items():
        if warning and store.contents[name]:
            logger.warning(f"{warning}: {store.contents[name]:,}")
    return store


class _Preparation:
    """Read examples, number their distinct passages, look up texts of ids, tokenise."""

    def __init__(
        self, inputs: TrainingInputs, query: TextTokenizer, passage: TextTokenizer
    ) -> None:
        self.inputs, self.query, self.passage = inputs, query, passage
        self.counts: Counter[str] = Counter()
        self.first_unscored: dict[str, str] | None = None
        self.rows: dict[int, int] = {}  # hash of a passage's id or text -> its row

    def write(self, folder: Path, scratch: Path) -> dict[str, Any]:
        """Write the folder's files; return the manifest's counts."""
        fields = self.passage.settings.fields
        with (
            closing(PassageTexts(scratch / "queries")) as self.queries,
            closing(PassageTexts(scratch / "corpus", fields)) as self.corpus,
            closing(ScratchRecords(scratch / "passages")) as self.distinct,
        ):
            draft = Features(EXAMPLE | {"query": Value("string")})
            drafts = write_rows(scratch / "drafts.arrow", draft, self._drafts())
            inputs = self.inputs
            if inputs.queries is not None and self.queries.referred:
                texts = (Passage(query.qid, query.text) for query in read_queries(inputs.queries))
                self.queries.find(texts, inputs.queries)
            if inputs.corpus is not None and self.corpus.referred:
                found = read_passages(inputs.corpus, inputs.corpus_settings, inputs.fields)
                self.corpus.find(found, inputs.corpus)
            self.there = np.ones(len(self.distinct), dtype=bool)
            features = Features({"input_ids": token_lists(self.passage.vocabulary_size)})
            passages = write_rows(folder / "passages.arrow", features, self._passages())
            features = Features(EXAMPLE | {"query": token_lists(self.query.vocabulary_size)})
            examples = write_rows(folder / "examples.arrow", features, self._examples(drafts))
        if not len(examples):
            names = ", ".join(self.inputs.files)
            raise InputError(names, None, "no query with a positive", "at least one")
        counts = {"examples": len(examples), "passages": len(passages)}
        counts |= {name: self.counts[name] for name in COUNTS}
        return counts | {"first_unscored": self.first_unscored}

    def _drafts(self) -> Iterator[dict[str, Any]]:
        """Yield the examples, with numbers of their distinct passages."""
        qrels = read_qrels_map(self.inputs.qrels) if self.inputs.qrels else {}
        with track("reading training data", None, "queries") as progress:
            for source in self.inputs.files:
                empty = True
                for example in read_training(source, self.inputs.form):
                    empty = False
                    progress.advance()
                    judged = qrels.get(example.qid, {}).items()
                    relevant = tuple(Candidate(docid) for docid, grade in judged if grade > 0)
                    if positives := example.positives or relevant:
                        yield self._draft(example._replace(positives=positives), source)
                    else:
                        self.counts["without_positives"] += 1
                if empty:
                    raise InputError(source, None, "no training examples", "at least one")

    def _draft(self, example: TrainingExample, source: str) -> dict[str, Any]:
        qid, negatives = example.qid, example.negatives
        if not negatives:
            negatives = random_negatives(example, source)
            self.counts["with_random_negatives"] += bool(negatives)
        if not example.query:
            if self.inputs.queries is None:
                raise _no_text(source, f"query {qid}", "queries")
            self.queries.refer([qid])
        candidates = (*example.positives, *negatives)
        return {
            "qid": qid,
            "query": example.query,
            "positives": [self._number(each, qid, source) for each in example.positives],
            "negatives": [self._number(each, qid, source) for each in negatives],
            "scores": [self._score(each, qid, source) for each in candidates],
        }

    def _number(self, candidate: Candidate, qid: str, source: str) -> int:
        """Return the number of a passage; the text of a new one is copied to the disk."""
        docid, text, title = candidate.docid, candidate.text, candidate.title
        key = hash(docid or (text, title))
        if key not in self.rows:
            if docid and not (text or title):
                if self.inputs.corpus is None:
                    raise _no_text(source, f"passage {docid} of query {qid}", "corpus")
                self.corpus.refer([docid])
            fields, extra = self.passage.settings.fields, candidate.extra
            kept = {name: extra[name] for name in fields if name in extra}
            self.rows[key] = self.distinct.append(orjson.dumps([docid, text, title, kept]))
        return self.rows[key]

    def _score(self, candidate: Candidate, qid: str, source: str) -> float:
        score = candidate.score
        if score is None:
            name = candidate.docid or repr(candidate.text[:40])
            first = {"source": source, "query": qid, "passage": name}
            self.first_unscored = self.first_unscored or first
            return np.nan
        if abs(score) > MAX_SCORE:
            found = f"the score {score} in query {qid}"
            raise InputError(source, None, found, "a number within float32's range")
        return score

    def _passages(self) -> Iterator[dict[str, Any]]:
        """Yield the distinct passages, but those that the corpus lacks."""
        with track("tokenising", len(self.distinct), "passages") as progress:
            for rows in batched(range(len(self.distinct)), BATCH):
                progress.advance(len(rows))
                found = [Passage(*orjson.loads(self.distinct[row])) for row in rows]
                bare = [p.docid for p in found if p.docid and not (p.text or p.title)]
                texts = dict(zip(bare, self.corpus.get(bare), strict=True))
                passages = [texts.get(passage.docid, passage) for passage in found]
                self.there[rows] = [passage is not None for passage in passages]
                ids = self.passage.passages([p for p in passages if p is not None])
                yield from ({"input_ids": each} for each in ids)

    def _examples(self, drafts: Dataset) -> Iterator[dict[str, Any]]:
        """Yield the examples, without what has no text."""
        self.numbers = np.cumsum(self.there) - 1  # rows of the passages that have a text
        for batch in drafts.with_format(None).iter(BATCH):
            bare = [q for q, text in zip(batch["qid"], batch["query"], strict=True) if not text]
            texts = dict(zip(bare, self.queries.get(bare), strict=True))
            rows = (dict(zip(batch, row, strict=True)) for row in zip(*batch.values(), strict=True))
            kept = [example for row in rows if (example := self._example(row, texts))]
            tokens = self.query.queries([Query(e["qid"], e["query"]) for e in kept])
            yield from (e | {"query": ids} for e, ids in zip(kept, tokens, strict=True))

    def _example(
        self, draft: Mapping[str, Any], texts: Mapping[str, Passage | None]
    ) -> dict[str, Any] | None:
        """Return an example; None if its query or all its positives have no text."""
        qid, query = draft["qid"], draft["query"]
        if not query:
            found = texts[qid]
            if found is None:
                self._miss("missing_queries", qid, self.inputs.queries)
                return None
            query = found.text
        rows = np.array([*draft["positives"], *draft["negatives"]])
        count, there = len(draft["positives"]), self.there[rows]
        for row in rows[~there].tolist():
            docid = orjson.loads(self.distinct[row])[0]
            self._miss("missing_passages", f"{docid} of query {qid}", self.inputs.corpus)
        if not there[:count].any():
            self.counts["without_positives"] += 1
            return None
        placed, scores = self.numbers[rows], np.array(draft["scores"], dtype=np.float32)[there]
        negatives = placed[count:][there[count:]]
        self.counts["candidates"] += len(scores)
        self.counts["unscored"] += int(np.isnan(scores).sum())
        self.counts["without_negatives"] += not len(negatives)
        positives = placed[:count][there[:count]]
        example = {"positives": positives, "negatives": negatives, "scores": scores}
        return {"qid": qid, "query": query, **example}

    def _miss(self, count: str, name: str, where: str | None) -> None:
        """Count an id without a text; raise an error unless these are left out."""
        self.counts[count] += 1
        if not self.inputs.skip_missing:
            raise InputError(
                ", ".join(self.inputs.files),
                None,
                f"the id {name}, which {where} does not hold",
                "ids that are there",
                "add --skip-missing to leave such ids out and count them",
            )


def _no_text(source: str, what: str, flag: str) -> InputError:
    hint = f"add --{flag}, the file that holds it"
    return InputError(source, None, f"{what} without its text", "a text", hint)


class SentenceStore(Store):
    """Prepared pairs or triplets, memory-mapped.

    `sentences` are token ids by row; the `size` (2 or 3) of example i begin at row size * i.
    `labels`: (N,) float32, of pairs; empty for triplets.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, Kind.TRAINING)
        self.size = int(self.settings["size"])
        self.pad_id = int(self.settings["sentence"]["pad_id"])
        data = open_rows(folder / "sentences.arrow")
        self.sentences = Lists(data, "input_ids")
        labels: NDArray[np.float32] = data.data.column("label").to_numpy()
        self.labels = labels[:: self.size] if self.size == 2 else labels[:0]

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
    """Prepare pairs or triplets, or open what an earlier call prepared from the same inputs."""
    scale = label_scale if size == 2 else None
    settings = {"format": FORMAT, "size": size, "label_scale": scale}
    plan = plan_of(settings | {"sentence": rules_of(tokenizer)}, numbered("file", sources))

    def examples() -> Iterator[SentenceExample]:
        with track("reading training data", None, "pairs" if size == 2 else "triplets") as progress:
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
                    yield example

    def rows() -> Iterator[dict[str, Any]]:
        for batch in batched(examples(), BATCH):
            texts = [(text, example.label) for example in batch for text in example.texts]
            ids = tokenizer.sentences([text for text, _ in texts])
            for (_, label), each in zip(texts, ids, strict=True):
                yield {"input_ids": each, "label": label}

    def write(part: Path, scratch: Path) -> dict[str, Any]:
        ids = token_lists(tokenizer.vocabulary_size)
        features = Features({"input_ids": ids, "label": Value("float32")})
        return {"examples": len(write_rows(part / "sentences.arrow", features, rows())) // size}

    prepare_folder(folder, plan, write, again=again)
    return SentenceStore(folder)
