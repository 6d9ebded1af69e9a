"""What the functions of the Python API take: a path, or an object in memory.

An object becomes records or scores in memory where a task takes these, and a file in a temporary
folder where it reads files.
"""

import os
import re
import shutil
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from math import isnan
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

from denserk.api.options import PathName
from denserk.config.formats import CorpusFormat, QrelsFormat, RunFormat, TopicsFormat
from denserk.config.options import NOTHING
from denserk.errors import DenserkError, UsageError
from denserk.io.corpus import write_passages
from denserk.io.data_sets import BEIR, IRDS
from denserk.io.exclusions import Exclusions, read_exclusions
from denserk.io.json_records import write_objects
from denserk.io.near_paths import no_such_path
from denserk.io.outputs import scratch_folder
from denserk.io.qrels import read_qrels_map, write_qrels
from denserk.io.run_lookup import RunByQuery, RunInMemory
from denserk.io.runs import RunLookup, read_run_scores
from denserk.io.scratch_records import ScratchRecords
from denserk.io.tables import HUB
from denserk.io.text_files import is_named
from denserk.io.topics import read_queries, write_queries
from denserk.io.versions import reading
from denserk.io.written_files import write_lines
from denserk.python_inputs import (
    grade,
    has_passage_fields,
    has_records,
    read_passages_of,
    read_queries_of,
    read_records,
    read_scores,
    wrong_argument,
)
from denserk.records import Qrel, Query, best_first

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

Vectors: TypeAlias = NDArray[np.float32]
Scores: TypeAlias = Mapping[str, Mapping[str, float]]
Records: TypeAlias = Sequence[Mapping[str, Any]]
RunLike: TypeAlias = "PathName | Scores | pd.DataFrame"
Texts: TypeAlias = (  # a str is one text
    "str | Mapping[str, str] | Mapping[str, Mapping[str, Any]] | Sequence[str] | Records"
    " | pd.DataFrame | pd.Series[Any]"
)
TextsLike: TypeAlias = "PathName | Texts"
TrainingLike: TypeAlias = "PathName | Records | Sequence[PathName] | pd.DataFrame"
VectorsLike: TypeAlias = "NDArray[Any] | Tensor"

# Options that name the fields of a corpus.
FIELD_OPTIONS = ("id_field", "docid_field", "text_field", "title_field")
# Endings of files of topics, perhaps with .gz behind: a text that ends so is a path.
TOPICS_ENDINGS = (".tsv", ".jsonl", ".json", ".txt", ".csv", ".xml")
# What the names of data sets begin with.
DATA_SETS = (IRDS, BEIR, HUB)
# A temporary file behind the path of its folder: the group is the argument that it was made of.
TEMPORARY_NAME = r"/([\w-]+)[^\s:,;)]*"


class ScratchFolder:
    """A temporary folder that is removed by `close`, or together with this object."""

    def __init__(self) -> None:
        self.path = Path(mkdtemp(prefix="denserk-"))
        self.close = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


@contextmanager
def without_names_of(folder: Path | None) -> Iterator[None]:
    """Name inputs in errors as the user knows them, not by their temporary files in a folder."""
    try:
        yield
    except DenserkError as error:
        if folder is not None:
            temporary_file = re.compile(re.escape(str(folder)) + TEMPORARY_NAME)
            error.message = temporary_file.sub(r"\1", error.message)
            if error.hint is not None:
                error.hint = temporary_file.sub(r"\1", error.hint)
        raise


@contextmanager
def stored_inputs(
    options: Mapping[str, Any] = NOTHING, /, **values: Any
) -> Iterator[tuple[dict[str, Any], Path]]:
    """Yield the inputs of a task by option, as paths, and a temporary folder.

    Objects in memory are written to the folder; None is left out. `options` are those that the task
    reads its inputs by.
    """
    with TemporaryDirectory(prefix="denserk-") as name, without_names_of(Path(name)):
        folder = Path(name)
        files = {}
        for option, value in values.items():
            if value is not None:
                files[option] = store_input(option, value, folder / f"{option}.jsonl", options)
        yield files, folder


def store_input(option: str, value: Any, path: Path, options: Mapping[str, Any] = NOTHING) -> Any:
    """Return the path of a task's input, or those of several; write an object to `path` first.

    Several objects are written beside `path`. `options` may name the fields of a corpus.
    """
    if is_path(value):
        return value
    match option:
        case "runs":
            return [
                store_input("run", run, path.with_name(f"run{number}.trec"))
                for number, run in enumerate(listed_runs(value))
            ]
        case "run":
            write_lines(path, run_lines(value))
        case "qrels":
            write_qrels(path, read_qrels_of(value, option), QrelsFormat.TREC)
        case "corpus":
            if _has_other_fields(value, options):
                # read as a file of any fields is
                write_objects(path, map(_without_missing, read_records(value, option)))
            else:
                write_passages(path, read_passages_of(value), CorpusFormat.BEIR)
        case "train" | "train_data":
            if _is_list_of_paths(value):
                return value
            write_objects(path, read_records(value, option))
        case _:  # topics, queries
            write_queries(path, read_queries_of(value), TopicsFormat.BEIR)
    return path


def _has_other_fields(corpus: Any, options: Mapping[str, Any]) -> bool:
    """Return whether a corpus is a table whose fields are named, or not those of passages."""
    if not has_records(corpus):
        return False
    if any(options.get(name) is not None for name in FIELD_OPTIONS):
        return True
    return not has_passage_fields(corpus)


def _without_missing(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a record without NaN, which is a missing value of a DataFrame."""
    return {
        name: value
        for name, value in record.items()
        if not (isinstance(value, float) and isnan(value))
    }


def is_path(value: Any) -> TypeGuard[PathName]:
    """Return whether a value names a file or folder."""
    return isinstance(value, str | PathLike)


def path_text(value: Any, argument: str) -> str:
    """Return a path, or the name of a model, as text; `argument` is its name in errors."""
    if not is_path(value):
        raise wrong_argument(argument, value, "a path or a name")
    return str(value)


def listed_runs(runs: Any) -> Sequence[Any]:
    """Return a list or tuple of runs; raise a UsageError for anything else, as one run alone."""
    if not isinstance(runs, list | tuple):
        raise UsageError("runs: expected a list of runs", "fuse([run, run])")
    return runs


def _is_list_of_paths(value: Any) -> bool:
    """Return whether a value is a list that begins with a path."""
    return isinstance(value, list | tuple) and bool(value) and is_path(value[0])


def run_lines(run: Any, tag: str = "denserk") -> Iterator[str]:
    """Yield the lines of a TREC run, scores with all their digits."""
    for qid, hits in read_scores(run, "run").items():
        for rank, (docid, score) in enumerate(in_order(hits), start=1):
            yield f"{qid} Q0 {docid} {rank} {float(score)!r} {tag}\n"


def in_order(hits: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return the hits of a query, best first.

    Hits that have no score above that of an earlier hit stay as they are, equal scores among them.
    """
    ranked = list(hits.items())
    scores = [score for _, score in ranked]
    if scores != sorted(scores, reverse=True):
        return best_first(ranked)
    return ranked


def read_run_of(run: Any, argument: str) -> dict[str, dict[str, float]]:
    """Return a run, a path or an object, as query -> passage -> score."""
    if is_path(run):
        return read_run_scores(str(run))
    hits_by_qid = {}
    for qid, hits in read_scores(run, argument).items():
        hits_by_qid[qid] = {docid: float(score) for docid, score in hits.items()}
    return hits_by_qid


def read_grades(qrels: Any, argument: str) -> dict[str, dict[str, int]]:
    """Return qrels, a path or an object, as query -> passage -> grade.

    A query with a list of passages in place of grades has these passages with grade 1.
    """
    if is_path(qrels):
        return read_qrels_map(str(qrels))
    if isinstance(qrels, Mapping):
        qrels = {qid: _grades_of_list(judged) for qid, judged in qrels.items()}
    grades: dict[str, dict[str, int]] = {}
    for qid, scores in read_scores(qrels, argument).items():
        # scores are any numbers; grades must be whole ones
        grades[qid] = {docid: grade(score, qid) for docid, score in scores.items()}
    if not any(grades.values()):
        raise UsageError(f"{argument}: found no judgment; expected at least one")
    return grades


def _grades_of_list(judged: Any) -> Any:
    """Return the passages of a list with grade 1; anything else as it is."""
    is_list = isinstance(judged, list | tuple | set | frozenset)
    return dict.fromkeys(judged, 1) if is_list else judged


def read_qrels_of(qrels: Any, argument: str) -> list[Qrel]:
    """Return qrels, a path or an object, as judgments."""
    judgments = []
    for qid, grades in read_grades(qrels, argument).items():
        judgments += [Qrel(qid, docid, relevance) for docid, relevance in grades.items()]
    return judgments


def read_topics_of(queries: Any) -> list[Query]:
    """Return queries of a file or data set, or of objects in memory; another text is a query.

    A text that is like the name of an absent file of topics is a UsageError.
    """
    if isinstance(queries, PathLike) or (isinstance(queries, str) and _names_topics(queries)):
        return list(read_queries(str(queries)))
    if isinstance(queries, str) and _is_like_topics_file(queries):
        raise no_such_path(
            queries,
            f"queries: {queries} is named as a file of topics, and there is no such file",
            f'["{queries}"] searches with it as a text',
        )
    return read_queries_of(queries)


def _names_topics(text: str) -> bool:
    """Return whether a text is the path of a file or folder that exists, or names a data set.

    >>> _names_topics("beir:scifact/test")
    True
    >>> _names_topics("irds: the data sets of a library")
    False
    """
    if os.path.exists(text):  # noqa: PTH110 - any text
        return True
    return _is_one_word(text) and text.startswith(DATA_SETS)


def _is_like_topics_file(text: str) -> bool:
    """Return whether a text is like the name of a file of topics.

    >>> _is_like_topics_file("queries.tsv")
    True
    >>> _is_like_topics_file("what is in queries.tsv")
    False
    """
    return _is_one_word(text) and is_named(text, *TOPICS_ENDINGS)


def _is_one_word(text: str) -> bool:
    """Return whether a text has no white space, and is not empty."""
    return text.split() == [text]


def read_exclusions_of(exclude: Any) -> Exclusions:
    """Return a file or a dict as the passages that each query must not return, by query id."""
    if exclude is None:
        return {}
    if is_path(exclude):
        return read_exclusions(str(exclude))
    if not isinstance(exclude, Mapping):
        raise wrong_argument("exclude", exclude, "a path, or passage ids by query id")
    exclusions = {}
    for qid, docids in exclude.items():
        if isinstance(docids, str | bytes) or not isinstance(docids, Iterable):
            raise wrong_argument(f"exclude of query {qid}", docids, "a list of passage ids")
        exclusions[str(qid)] = frozenset(str(docid) for docid in docids)
    return exclusions


def run_names(runs: Sequence[Any]) -> list[str]:
    """Return what messages call runs: by their paths, or run0, run1, ... by their positions."""
    return [str(run) if is_path(run) else f"run{number}" for number, run in enumerate(runs)]


@contextmanager
def opened_runs(
    runs: Sequence[Any], run_format: RunFormat | None = None
) -> Iterator[list[RunByQuery]]:
    """Yield runs, paths or objects, whose queries can be read in any order.

    The hits of files are copied to a temporary one.
    """
    paths = [str(run) for run in runs if is_path(run)]
    with ExitStack() as stack:
        copied_hits = None  # needed by files alone
        if paths:
            scratch = stack.enter_context(scratch_folder("runs"))
            copied_hits = stack.enter_context(closing(ScratchRecords(scratch / "hits")))
        runs_by_query: list[RunByQuery] = []
        with reading(paths):  # an error if a file is replaced meanwhile
            for name, run in zip(run_names(runs), runs, strict=True):
                if copied_hits is not None and is_path(run):
                    runs_by_query.append(RunLookup(name, copied_hits, run_format))
                else:
                    runs_by_query.append(RunInMemory(name, read_run_of(run, name)))
        yield runs_by_query
