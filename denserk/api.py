"""The Python API: models, indexes and runs in memory; training and evaluation by one call.

Wherever a command reads a file, these functions also take Python objects: a run or qrels as
{query id: {passage id: score}}, queries as {id: text} or a list, a corpus or training data as a
list of dicts, and each of them as a pandas DataFrame. Options have the names of the command line,
with underscores; an error of the input is a `denserk.errors.DenserkError`. Nothing is printed:
messages go to the logger `denserk`.
"""

import json
import shutil
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from denserk.config.encoding import ComputeSettings, RepresentationSettings, TextSettings
from denserk.config.evaluation import ComparisonSettings, EvaluationSettings
from denserk.config.formats import CorpusFormat, QrelsFormat, TopicsFormat
from denserk.config.options import from_json, select, typed_values
from denserk.config.retrieval import SearchSettings
from denserk.errors import UsageError
from denserk.extras import require
from denserk.io.corpus import write_passages
from denserk.io.files import write_lines
from denserk.io.json_records import write_objects
from denserk.io.runs import read_run_scores
from denserk.io.topics import read_queries, write_qrels, write_queries
from denserk.records import Passage, Qrel, Query, best_first

PathName = str | PathLike[str]
Vectors = NDArray[np.float32]
Scores = Mapping[str, Mapping[str, float]]
Records = Sequence[Mapping[str, Any]]
if TYPE_CHECKING:
    import pandas as pd

    from denserk.index.search import OpenedIndex
    from denserk.models.text_encoder import TextEncoder

    RunLike: TypeAlias = PathName | Scores | pd.DataFrame
    TextsLike: TypeAlias = PathName | Mapping[str, str] | Sequence[str] | Records | pd.DataFrame

# Columns of data frames and keys of records: the names that other toolkits use.
_QID = ("qid", "query_id", "query-id", "q_id", "_id", "id")
_DOCID = ("docid", "doc_id", "docno", "corpus-id", "_id", "id")
_SCORE = ("score", "relevance", "rel", "label")
_QUERY = ("query", "text", "query_text")


class Run(dict[str, dict[str, float]]):
    """A ranking of every query: {query id: {passage id: score}}, best first."""

    weights: tuple[float, ...] = ()  # of the runs that were fused into this one

    @classmethod
    def load(cls, path: PathName) -> Self:
        """Read a run in any format that `denserk eval` reads."""
        return cls(read_run_scores(str(path)))

    @classmethod
    def from_pandas(cls, frame: "pd.DataFrame") -> Self:
        """Take a run from columns qid, docid and score."""
        return cls(_as_scores(frame))

    def save(self, path: PathName, *, tag: str = "denserk") -> None:
        """Write a TREC run. The file appears whole or not at all."""
        write_lines(str(path), _run_lines(self, tag))

    def to_pandas(self) -> "pd.DataFrame":
        """Return columns qid, docid, rank (from 1) and score."""
        pandas = require("pandas", "Run.to_pandas")
        rows = [
            (qid, docid, rank, score)
            for qid, hits in self.items()
            for rank, (docid, score) in enumerate(hits.items(), start=1)
        ]
        frame: pd.DataFrame = pandas.DataFrame(rows, columns=["qid", "docid", "rank", "score"])
        return frame


class Encoder:
    """A model, `name`, that encodes queries and passages to vectors of `dimension`.

    `metric`, "inner" or "l2", compares them: `Index.build(vectors, metric=encoder.metric)`.
    """

    def __init__(self, encoder: "TextEncoder") -> None:
        self._encoder = encoder
        self.name, self.dimension = encoder.name, encoder.dimension
        self.metric = encoder.metric.value

    @classmethod
    def load(cls, name: PathName, **options: Any) -> Self:
        """Load a short name such as "minilm", a folder, or a hub name; options of `encode`."""
        from denserk.models.text_encoder import TextEncoder

        classes = (RepresentationSettings, TextSettings, ComputeSettings)
        typed = typed_values("Encoder.load", options, *classes)
        representation, text, compute = (select(typed, each) for each in classes)
        return cls(TextEncoder(str(name), representation, text, ComputeSettings(**compute)))

    def encode_queries(self, queries: str | Sequence[str]) -> Vectors:
        """Encode one query to (D,), or N queries to (N, D), float32."""
        if isinstance(queries, str):
            return np.asarray(self.encode_queries([queries])[0])
        return self._encoder.encode_queries([Query(str(i), q) for i, q in enumerate(queries)])

    def encode_passages(
        self, passages: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]]
    ) -> Vectors:
        """Encode one passage to (D,), or N to (N, D), float32; (N, S, D) for multi-vector models.

        A passage is its text, or a mapping with `text`, `title` and other fields.
        """
        if isinstance(passages, str | Mapping):
            return np.asarray(self.encode_passages([passages])[0])
        records = [_passage("", {"text": p} if isinstance(p, str) else p) for p in passages]
        rows = self._encoder.encode_passages(records)
        several = self._encoder.vectors_per_passage
        return rows if several == 1 else rows.reshape(len(passages), several, -1)


class _OwnFolder:
    """A temporary folder that is removed together with this object."""

    def __init__(self) -> None:
        self.path = Path(mkdtemp(prefix="denserk-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


class Index:
    """An index of vectors that is open for search."""

    def __init__(self, opened: "OpenedIndex") -> None:
        self._opened = opened
        self._own: TextEncoder | None = None
        self._scratch: _OwnFolder | None = None

    @classmethod
    def build(
        cls,
        vectors: Vectors | PathName,
        *,
        ids: Sequence[str] | None = None,
        type: str = "flat",
        output: PathName | None = None,
        **options: Any,
    ) -> Self:
        """Index (N, D) vectors, or a path of vectors; options as in `denserk index`.

        The N `ids` are by default row numbers; without `output` the index goes with this object.
        """
        from denserk.config.encoding import VectorFormat
        from denserk.io.vector_formats import VectorBlock, write_vectors

        source, scratch = vectors, _OwnFolder()
        if isinstance(vectors, np.ndarray):
            names = [str(i) for i in (range(len(vectors)) if ids is None else ids)]
            if len(names) != len(vectors):
                raise ValueError(f"{len(names):,} ids for {len(vectors):,} vectors")
            source = str(scratch.path / "vectors")
            block = VectorBlock(names, vectors.astype(np.float32, copy=False))
            write_vectors(source, VectorFormat.PYSERINI_FAISS, [block])
        return cls._build(scratch, output, input=source, type=type, **options)

    @classmethod
    def _build(cls, scratch: _OwnFolder, output: PathName | None, **options: Any) -> Self:
        """Run `denserk index` and open its folder, by default in `scratch`."""
        from denserk.commands.retrieve import index

        folder = output or scratch.path / "index"
        index(output=folder, **options)
        opened = cls.open(folder)
        opened._scratch = scratch
        return opened

    @classmethod
    def open(cls, path: PathName | Sequence[PathName], **options: Any) -> Self:
        """Open an index or a folder of vectors, or several as one; options: device, threads."""
        from denserk.index.search import open_index

        paths = [path] if isinstance(path, str | PathLike) else path
        compute = from_json(ComputeSettings, options)
        return cls(open_index([str(each) for each in paths], SearchSettings(), compute))

    def __len__(self) -> int:
        return len(self._opened.index) // self._opened.vectors_per_passage

    def search(
        self,
        queries: "TextsLike | Vectors",
        *,
        model: Encoder | PathName | None = None,
        hits: int = 100,
        **options: Any,
    ) -> Run:
        """Search with texts by id, a list of texts, one text, a file, or (N, D) vectors.

        Queries without ids are "0", "1", ...; `model` is by default that of the passages. Options
        as in `denserk search`; a query of another model is a MismatchError.
        """
        settings = from_json(SearchSettings, {"hits": hits, **options})
        if isinstance(queries, np.ndarray) and queries.dtype.kind == "f":
            asked: NDArray[Any] = np.atleast_2d(queries).astype(np.float32, copy=False)
            qids = [str(i) for i in range(len(asked))]
        else:
            records = list(_queries(queries))
            qids = [query.qid for query in records]
            if not self._opened.bm25:
                from denserk.index.search import load_query_encoder, refuse_other_queries

                if isinstance(model, Encoder):
                    encoder, described = model._encoder, model._encoder.description()
                    refuse_other_queries(self._opened, model.dimension, described, model.name)
                elif model is not None:
                    encoder = load_query_encoder(self._opened, str(model))
                else:  # the index's own model is loaded once
                    encoder = self._own = self._own or load_query_encoder(self._opened)
                asked = encoder.encode_queries(records)
            elif model is None:
                asked = np.array([query.text for query in records], dtype=object)
            else:
                raise TypeError("BM25 has no model")
        found = self._opened.searcher(settings).search(qids, asked)
        return Run((qid, dict(hits)) for qid, hits in found)


class BM25(Index):
    """A BM25 index that is open for search."""

    @classmethod
    def build(  # type: ignore[override]
        cls, corpus: "TextsLike", *, output: PathName | None = None, **options: Any
    ) -> Self:
        """Index the terms of a corpus; options as in `denserk index`: k1, b, stemmer, ..."""
        scratch = _OwnFolder()
        stored = _stored("corpus", corpus, scratch.path / "corpus.jsonl")
        return cls._build(scratch, output, corpus=stored, type="bm25", **options)


@contextmanager
def _files(**values: Any) -> Iterator[tuple[dict[str, Any], Path]]:
    """Yield the inputs of a command by option, as paths, and a temporary folder.

    Objects in memory are written to the folder; None is left out.
    """
    with TemporaryDirectory(prefix="denserk-") as name:
        folder, given = Path(name), {key: v for key, v in values.items() if v is not None}
        yield {key: _stored(key, v, folder / f"{key}.jsonl") for key, v in given.items()}, folder


def fuse(runs: "Sequence[RunLike]", *, tune: "RunLike | None" = None, **options: Any) -> Run:
    """Fuse runs; options as in `denserk fuse`: method, weights, rrf_k, normalization, ...

    With `tune`, qrels, the weights that are best for them are the `weights` of the returned run.
    """
    from denserk.commands.retrieve import fuse as command

    with _files(runs=runs, tune=tune) as (files, folder):
        result = command(output=folder / "fused", **files, **options)
        run = Run.load(folder / "fused")
    run.weights = result.weights
    return run


def evaluate(
    run: "RunLike | Mapping[str, RunLike]",
    qrels: "RunLike",
    measures: str | Sequence[str] = (),
    *,
    baseline: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Return {measure: mean over the judged queries}; for {name: run}, that of each by name.

    `measures` is "nDCG@10 R@100" or a list, by default nDCG@10, RR@10 and R@100; options as in
    `denserk eval`. With `baseline`, one of the names, the other runs also have "nDCG@10 p" and so
    on: the p-value of the difference by a paired t-test, corrected by Holm.
    """
    from denserk.evaluation.evaluator import evaluate as measure
    from denserk.evaluation.significance import compare

    settings = from_json(EvaluationSettings, {"measures": measures, **options})
    several = isinstance(run, Mapping) and any(not _is_hits(each) for each in run.values())
    named: Mapping[str, Any] = run if several else {"run": run}  # type: ignore[assignment]
    names = None if isinstance(run, str | PathLike) else [str(name) for name in named]
    source = None if isinstance(qrels, str | PathLike) else "the qrels in memory"
    with _files(runs=list(named.values()), qrels=qrels) as (files, _):
        result = measure(files["runs"], str(files["qrels"]), settings, names, source)
    found = {name: dict(each.summary) for name, each in zip(named, result.runs, strict=True)}
    if baseline is not None:
        if baseline not in named:
            raise UsageError(f"baseline {baseline!r}: the runs are called {', '.join(named)}")
        values = {name: each.per_query for name, each in zip(named, result.runs, strict=True)}
        tested = compare(values, result.measures, baseline, ComparisonSettings()).differences
        for name, row in tested.items():
            found[name] |= {f"{measure} p": each.corrected for measure, each in row.items()}
    return found if several else found["run"]


def mine_negatives(
    run: "RunLike | Sequence[RunLike]",
    *,
    topics: "TextsLike | None" = None,
    qrels: "RunLike | None" = None,
    train: "PathName | Records | pd.DataFrame | None" = None,
    corpus: "TextsLike | None" = None,
    output: PathName | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """Mine hard negatives from runs; return training examples for `finetune`.

    The queries are `topics` with `qrels`, or training data (`train`); `output` keeps the file.
    """
    from denserk.commands.train import mine_negatives as command

    runs = run if isinstance(run, list | tuple) else [run]
    with _files(runs=runs, topics=topics, qrels=qrels, train=train, corpus=corpus) as (files, tmp):
        kept = Path(output or tmp / "mined.jsonl")
        command(run=files.pop("runs"), output=kept, **files, **options)
        return [json.loads(line) for line in kept.read_text("utf-8").splitlines()]


def finetune(
    model: PathName,
    train_data: "PathName | Records | Sequence[PathName] | pd.DataFrame",
    output: PathName,
    *,
    corpus: "TextsLike | None" = None,
    queries: "TextsLike | None" = None,
    **options: Any,
) -> Path:
    """Train a retriever or a cross-encoder; return `output`, which `Encoder.load` takes.

    `corpus` and `queries` hold the texts that training data names by id.
    """
    from denserk.commands.train import finetune as command

    with _files(train_data=train_data, corpus=corpus, queries=queries) as (files, _):
        command(model=model, output=output, **files, **options)
    return Path(output)


def pretrain(
    objective: str,
    corpus: "TextsLike",
    output: PathName,
    *,
    model: PathName | None = None,
    **options: Any,
) -> Path:
    """Pre-train a backbone by an objective such as condenser or retromae; return `output`.

    Without a model to start from, architecture="tiny" is a randomly initialised BERT.
    """
    from denserk.commands.train import pretrain as command

    with _files(corpus=corpus) as (files, _):
        command(objective=objective, output=output, model=model, **files, **options)
    return Path(output)


def _is_hits(value: Any) -> bool:
    """Tell {passage id: score} from a run."""
    return isinstance(value, Mapping) and not any(
        isinstance(each, Mapping | str | PathLike) for each in value.values()
    )


def _records(value: Any) -> Iterator[Mapping[str, Any]]:
    rows = value.to_dict("records") if hasattr(value, "to_dict") else value
    yield from ({str(name): cell for name, cell in row.items()} for row in rows)


def _first(row: Mapping[str, Any], names: Sequence[str]) -> Any:
    for name in names:
        if name in row:
            return row[name]
    raise ValueError(f"none of {', '.join(names)} among {', '.join(row)}")


def _as_scores(value: Any) -> dict[str, dict[str, float]]:
    """Return a run or qrels as a dict of dicts."""
    if isinstance(value, Mapping):
        return {str(q): {str(d): s for d, s in hits.items()} for q, hits in value.items()}
    found: dict[str, dict[str, float]] = {}
    for row in _records(value):
        hits = found.setdefault(str(_first(row, _QID)), {})
        hits[str(_first(row, _DOCID))] = _first(row, _SCORE)
    return found


def _run_lines(run: Any, tag: str = "denserk") -> Iterator[str]:
    """Yield the lines of a TREC run, scores with all their digits."""
    for qid, hits in _as_scores(run).items():
        for rank, (docid, score) in enumerate(best_first(hits.items()), start=1):
            yield f"{qid} Q0 {docid} {rank} {float(score)!r} {tag}\n"


def _rows(value: Any, ids: Sequence[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield records by id, a text as {"text": text}; the ids of a list of texts count from 0."""
    if isinstance(value, Mapping):
        rows: Iterable[tuple[Any, Any]] = value.items()
    elif not hasattr(value, "to_dict") and all(isinstance(each, str) for each in value):
        rows = enumerate(value)
    else:
        rows = ((_first(row, ids), row) for row in _records(value))
    for id, row in rows:
        yield str(id), {"text": row} if isinstance(row, str) else row


def _passage(docid: str, record: Mapping[str, Any]) -> Passage:
    rest = {name: v for name, v in record.items() if name not in ("text", "title", *_DOCID)}
    text, title = _first(record, ("text", "contents")), record.get("title")
    return Passage(docid, str(text), str(title or ""), rest)


def _queries(queries: Any) -> Iterator[Query]:
    if isinstance(queries, PathLike) or (isinstance(queries, str) and Path(queries).exists()):
        yield from read_queries(str(queries))
        return
    for qid, record in _rows([queries] if isinstance(queries, str) else queries, _QID):
        yield Query(qid, str(_first(record, _QUERY)))


def _stored(option: str, value: Any, path: Path) -> Any:
    """Return the path of a command's input; write an object in memory to `path` first."""
    if isinstance(value, str | PathLike):
        return value
    match option:
        case "runs":
            named = ((run, path.with_name(f"run{i}.trec")) for i, run in enumerate(value))
            return [_stored("run", run, each) for run, each in named]
        case "run":
            write_lines(path, _run_lines(value))
        case "qrels" | "tune":
            judged = ((q, *one) for q, hits in _as_scores(value).items() for one in hits.items())
            qrels = (Qrel(qid, docid, int(relevance)) for qid, docid, relevance in judged)
            write_qrels(path, qrels, QrelsFormat.TREC)
        case "corpus":
            passages = (_passage(docid, record) for docid, record in _rows(value, _DOCID))
            write_passages(path, passages, CorpusFormat.BEIR)
        case "train" | "train_data":
            if isinstance(value, list | tuple) and isinstance(value[0], str | PathLike):
                return value
            write_objects(path, _records(value))
        case _:
            write_queries(path, _queries(value), TopicsFormat.BEIR)
    return path
