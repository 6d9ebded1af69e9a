"""The Python API: models, indexes and runs in memory; training and evaluation by one call.

Wherever a command reads a file, these functions also take Python objects: a run or qrels as
{query id: {passage id: score}}, queries as {id: text} or a list, a corpus or training data as a
list of dicts, and each of them as a pandas DataFrame. Options have the names of the command line,
with underscores; an error of the input is a `denserk.errors.DenserkError`. Nothing is printed:
messages go to the logger `denserk`.
"""

import json
import os
import re
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
from denserk.errors import DenserkError, ModelError, UsageError
from denserk.extras import require
from denserk.io.corpus import write_passages
from denserk.io.files import write_lines
from denserk.io.json_records import write_objects
from denserk.io.runs import read_run_scores
from denserk.io.topics import read_queries, write_qrels, write_queries
from denserk.python_inputs import (
    PASSAGES,
    QUERIES,
    grade,
    is_single,
    is_vectors,
    read_ids,
    read_passage_texts,
    read_passages_of,
    read_queries_of,
    read_query_texts,
    read_records,
    read_scores,
    read_vectors,
)
from denserk.records import Qrel, Query, best_first

PathName = str | PathLike[str]
Vectors = NDArray[np.float32]
Scores = Mapping[str, Mapping[str, float]]
Records = Sequence[Mapping[str, Any]]
if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from denserk.index.opening import OpenedIndex
    from denserk.models.text_encoder import TextEncoder

    RunLike: TypeAlias = PathName | Scores | pd.DataFrame
    TextsLike: TypeAlias = (
        PathName
        | Mapping[str, str]
        | Mapping[str, Mapping[str, Any]]
        | Sequence[str]
        | Records
        | pd.DataFrame
        | pd.Series[Any]
    )
    VectorsLike: TypeAlias = NDArray[Any] | Tensor


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
        return cls(read_scores(frame, "run"))

    def save(self, path: PathName, *, tag: str = "denserk") -> None:
        """Write a TREC run, equal scores in their order. The file appears whole or not at all."""
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
        self.name = encoder.name
        self.dimension = encoder.dimension
        self.metric = encoder.metric.value

    @classmethod
    def load(cls, name: PathName, **options: Any) -> Self:
        """Load a short name such as "minilm", a folder, or a hub name; options of `encode`."""
        from denserk.models.text_encoder import TextEncoder

        classes = (RepresentationSettings, TextSettings, ComputeSettings)
        typed = typed_values("Encoder.load", options, *classes)
        representation = select(typed, RepresentationSettings)
        text = select(typed, TextSettings)
        compute = ComputeSettings(**select(typed, ComputeSettings))
        return cls(TextEncoder(str(name), representation, text, compute))

    def encode_queries(self, queries: "TextsLike") -> Vectors:
        """Encode one query to (D,), or N queries to (N, D), float32.

        Queries are a text, a list, a dict of texts by id, a list of dicts with `query` or `text`,
        or a DataFrame; the vectors are in their order.
        """
        vectors = self._encoder.encode_queries(read_query_texts(queries))
        self._refuse_non_finite(vectors, "query")
        return np.asarray(vectors[0]) if is_single(queries, QUERIES) else vectors

    def encode_passages(self, passages: "TextsLike | Mapping[str, Any]") -> Vectors:
        """Encode one passage to (D,), or N to (N, D), float32; (N, S, D) for multi-vector models.

        Passages are texts, or mappings with `text`, `title` and other fields: one, a list, a dict
        by id, or a DataFrame; the vectors are in their order. One mapping with other fields than
        `text` has an id or a title, too: without, it might be texts by id.
        """
        records = read_passage_texts(passages)
        vectors = self._encoder.encode_passages(records)
        self._refuse_non_finite(vectors, "passage")
        vectors_per_passage = self._encoder.vectors_per_passage
        if vectors_per_passage > 1:
            vectors = vectors.reshape(len(records), vectors_per_passage, -1)
        return np.asarray(vectors[0]) if is_single(passages, PASSAGES) else vectors

    def _refuse_non_finite(self, rows: Vectors, what: str) -> None:
        """Raise a ModelError if the model encoded a text to something that is no number."""
        finite = np.isfinite(rows).all(axis=1)
        if not finite.all():
            number = int(np.argmin(finite))
            message = f"{self.name} encodes {what} {number} (from 0) to a vector that is not finite"
            raise ModelError(message, "check its weights, or encode with dtype='float32'")


class _ScratchFolder:
    """A temporary folder that is removed together with this object."""

    def __init__(self) -> None:
        self.path = Path(mkdtemp(prefix="denserk-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


class Index:
    """An index of vectors that is open for search."""

    def __init__(self, opened: "OpenedIndex") -> None:
        self._opened = opened
        self._passage_model: TextEncoder | None = None  # loaded by the first search that needs it
        self._scratch: _ScratchFolder | None = None

    @classmethod
    def build(
        cls,
        vectors: "VectorsLike | PathName",
        *,
        ids: Iterable[str] | None = None,
        type: str = "flat",
        output: PathName | None = None,
        **options: Any,
    ) -> Self:
        """Index (N, D) vectors, or a path of vectors; options as in `denserk index`.

        Vectors are a NumPy array or a torch tensor. The N `ids` are by default row numbers; without
        `output` the index goes with this object.
        """
        from denserk.config.encoding import VectorFormat
        from denserk.io.vector_formats import VectorBlock, write_vectors

        scratch = _ScratchFolder()
        if isinstance(vectors, str | PathLike):
            if ids is not None:
                raise UsageError("ids are for vectors in memory", "a file of vectors has its own")
            return cls._build(scratch, output, input=vectors, type=type, **options)
        rows = read_vectors(vectors, "vectors")
        if not len(rows) or np.ndim(vectors) == 1:
            raise UsageError(f"vectors: found an array of shape {vectors.shape}; expected (N, D)")
        block = VectorBlock(read_ids(ids, rows), rows)
        source = str(scratch.path / "vectors")
        write_vectors(source, VectorFormat.PYSERINI_FAISS, [block])
        return cls._build(scratch, output, input=source, type=type, **options)

    @classmethod
    def _build(cls, scratch: _ScratchFolder, output: PathName | None, **options: Any) -> Self:
        """Run `denserk index` and open its folder, by default in `scratch`."""
        from denserk.commands.retrieve import index

        folder = output or scratch.path / "index"
        with _without_names_of(scratch.path):
            index(output=folder, **options)
            opened = cls.open(folder)
        opened._scratch = scratch
        return opened

    @classmethod
    def open(cls, path: PathName | Sequence[PathName], **options: Any) -> Self:
        """Open an index or a folder of vectors, or several as one; options: device, threads."""
        from denserk.index.opening import open_index

        paths = [path] if isinstance(path, str | PathLike) else path
        compute = from_json(ComputeSettings, options)
        return cls(open_index([str(path) for path in paths], SearchSettings(), compute))

    def __len__(self) -> int:
        return len(self._opened.index) // self._opened.vectors_per_passage

    def search(
        self,
        queries: "TextsLike | VectorsLike",
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
        searcher = self._opened.searcher(settings)
        records: list[Query] = []
        if is_vectors(queries):
            encoded = self._query_vectors(queries)
            qids = [str(row) for row in range(len(encoded))]
        else:
            records = _queries(queries)
            encoded = self._encoded(records, model)
            qids = [query.qid for query in records]
        with _without_names_of(self._scratch.path if self._scratch else None):
            run = Run((qid, dict(hits)) for qid, hits in searcher.search(qids, encoded))
        searcher.report()
        if self._opened.bm25:
            texts = {query.qid: query.text for query in records}
            self._opened.warn_without_hits({qid: texts[qid] for qid in run if not run[qid]})
        return run

    def _query_vectors(self, queries: Any) -> Vectors:
        """Return the vectors of queries, which must fit the index."""
        from denserk.index.query_encoder import refuse_other_queries

        if self._opened.bm25:
            raise UsageError("a BM25 index is searched with texts, not with vectors")
        vectors = read_vectors(queries, "queries")
        refuse_other_queries(self._opened, vectors.shape[1], None, "the array of queries")
        return vectors

    def _encoded(
        self, queries: Sequence[Query], model: "Encoder | PathName | None"
    ) -> NDArray[Any]:
        """Return the vectors of queries, or their texts for a BM25 index."""
        from denserk.index.query_encoder import load_query_encoder, refuse_other_queries

        if self._opened.bm25:
            if model is not None:
                raise UsageError("BM25 takes no model", "leave out model=")
            return np.array([query.text for query in queries], dtype=object)
        if isinstance(model, Encoder):
            description = model._encoder.description()
            refuse_other_queries(self._opened, model.dimension, description, model.name)
            return model._encoder.encode_queries(queries)
        if model is not None:
            return load_query_encoder(self._opened, str(model)).encode_queries(queries)
        if self._passage_model is None:
            if self._opened.model is None:
                hint = "give model=, an Encoder or its name, or search with vectors"
                raise UsageError("the index names no model that encodes texts", hint)
            self._passage_model = load_query_encoder(self._opened)
        return self._passage_model.encode_queries(queries)


class BM25(Index):
    """A BM25 index that is open for search."""

    @classmethod
    def build(  # type: ignore[override]
        cls, corpus: "TextsLike", *, output: PathName | None = None, **options: Any
    ) -> Self:
        """Index the terms of a corpus; options as in `denserk index`: k1, b, stemmer, ..."""
        scratch = _ScratchFolder()
        stored = _stored("corpus", corpus, scratch.path / "corpus.jsonl")
        return cls._build(scratch, output, corpus=stored, type="bm25", **options)


@contextmanager
def _without_names_of(folder: Path | None) -> Iterator[None]:
    """Name inputs in errors as the user knows them, not by their temporary files in a folder."""
    try:
        yield
    except DenserkError as error:
        if folder is not None:
            temporary_file = re.compile(rf"{re.escape(str(folder))}/([\w-]+)[^\s:,;)]*")
            error.message = temporary_file.sub(r"\1", error.message)
            if error.hint is not None:
                error.hint = temporary_file.sub(r"\1", error.hint)
        raise


@contextmanager
def _files(**values: Any) -> Iterator[tuple[dict[str, Any], Path]]:
    """Yield the inputs of a command by option, as paths, and a temporary folder.

    Objects in memory are written to the folder; None is left out.
    """
    with TemporaryDirectory(prefix="denserk-") as name, _without_names_of(Path(name)):
        folder = Path(name)
        files = {
            option: _stored(option, value, folder / f"{option}.jsonl")
            for option, value in values.items()
            if value is not None
        }
        yield files, folder


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
    from denserk.evaluation.significance import compare
    from denserk.tasks.evaluate import evaluate as measure

    settings = from_json(EvaluationSettings, {"measures": measures, **options})
    is_single_run = not isinstance(run, Mapping) or all(map(_is_hits, run.values()))
    runs: Mapping[str, Any] = {"run": run} if is_single_run else run  # type: ignore[assignment]
    names = None if isinstance(run, str | PathLike) else [str(name) for name in runs]
    qrels_name = None if isinstance(qrels, str | PathLike) else "the qrels in memory"
    with _files(runs=list(runs.values()), qrels=qrels) as (files, _):
        result = measure(files["runs"], str(files["qrels"]), settings, names, qrels_name)
    result_by_name = dict(zip(runs, result.runs, strict=True))
    values = {name: dict(run_result.summary) for name, run_result in result_by_name.items()}
    if baseline is not None:
        if baseline not in runs:
            raise UsageError(f"baseline {baseline!r}: the runs are called {', '.join(runs)}")
        per_query = {name: run_result.per_query for name, run_result in result_by_name.items()}
        comparison = compare(per_query, result.measures, baseline, ComparisonSettings())
        for name, differences in comparison.differences.items():
            for measure_name, difference in differences.items():
                values[name][f"{measure_name} p"] = difference.corrected
    return values["run"] if is_single_run else values


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
    inputs = {"runs": runs, "topics": topics, "qrels": qrels, "train": train, "corpus": corpus}
    with _files(**inputs) as (files, folder):
        path = Path(output or folder / "mined.jsonl")
        command(run=files.pop("runs"), output=path, **files, **options)
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


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
    if not isinstance(value, Mapping):
        return False
    return not any(isinstance(score, Mapping | str | PathLike) for score in value.values())


def _run_lines(run: Any, tag: str = "denserk") -> Iterator[str]:
    """Yield the lines of a TREC run, scores with all their digits."""
    for qid, hits in read_scores(run, "run").items():
        ranked = list(hits.items())
        scores = [score for _, score in ranked]
        if scores != sorted(scores, reverse=True):
            ranked = best_first(ranked)
        for rank, (docid, score) in enumerate(ranked, start=1):
            yield f"{qid} Q0 {docid} {rank} {float(score)!r} {tag}\n"


def _queries(queries: Any) -> list[Query]:
    """Return queries of a file, or of objects in memory."""
    is_file = isinstance(queries, str) and os.path.exists(queries)  # noqa: PTH110 - any text
    if is_file or isinstance(queries, PathLike):
        return list(read_queries(str(queries)))
    return read_queries_of(queries)


def _stored(option: str, value: Any, path: Path) -> Any:
    """Return the path of a command's input; write an object in memory to `path` first."""
    if isinstance(value, str | PathLike):
        return value
    match option:
        case "runs":
            if not isinstance(value, list | tuple):
                raise UsageError("runs: expected a list of runs", "fuse([run, run])")
            return [
                _stored("run", run, path.with_name(f"run{number}.trec"))
                for number, run in enumerate(value)
            ]
        case "run":
            write_lines(path, _run_lines(value))
        case "qrels" | "tune":
            qrels = [
                Qrel(qid, docid, grade(relevance, qid))
                for qid, hits in read_scores(value, option).items()
                for docid, relevance in hits.items()
            ]
            write_qrels(path, qrels, QrelsFormat.TREC)
        case "corpus":
            write_passages(path, read_passages_of(value), CorpusFormat.BEIR)
        case "train" | "train_data":
            if isinstance(value, list | tuple) and value and isinstance(value[0], str | PathLike):
                return value
            write_objects(path, read_records(value, option))
        case _:
            write_queries(path, read_queries_of(value), TopicsFormat.BEIR)
    return path
