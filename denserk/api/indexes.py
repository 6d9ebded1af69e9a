"""Indexes that are open for search."""

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

import numpy as np
from numpy.typing import NDArray

from denserk.api.encoder import Encoder
from denserk.api.inputs import (
    ScratchFolder,
    TextsLike,
    Vectors,
    VectorsLike,
    is_path,
    path_text,
    read_exclusions_of,
    read_topics_of,
    store_input,
    without_names_of,
)
from denserk.api.options import BM25Options, IndexOptions, OpenOptions, PathName, SearchOptions
from denserk.api.runs import Run
from denserk.api.signatures import BM25_INDEX, INDEX, OPEN, SEARCH, Typed, documented
from denserk.config.encoding import ComputeSettings, VectorFormat
from denserk.config.formats import CorpusSettings
from denserk.config.options import NOTHING, build
from denserk.config.retrieval import (
    Bm25Settings,
    Engine,
    IndexPaths,
    IndexSettings,
    IndexType,
    SearchSettings,
)
from denserk.errors import UsageError
from denserk.io.exclusions import chosen_exclusions
from denserk.io.vector_formats import VectorBlock, write_vectors
from denserk.python_inputs import (
    is_vectors,
    read_docids,
    read_ids,
    read_vectors,
    wrong_argument,
)
from denserk.records import Query
from denserk.reporting import track

if TYPE_CHECKING:
    from denserk.index.opening import OpenedIndex
    from denserk.index.passage_sources import Passages
    from denserk.index.query_encoder import QueryEncoder

# The folder of an index without `output` in its temporary folder, beside the corpus or the vectors
# that it is made of.
TEMPORARY_INDEX = "index"
# Held while a model is loaded: models that threads load at once may give other vectors.
LOADING = Lock()


class Index:
    """An index of vectors that is open for search.

    A pickled index is the path of its folders, which must be there where it is unpickled; an index
    without `output`, in a temporary folder, takes its files along. `close`, or the end of a `with`,
    frees its memory, and removes a temporary folder.
    """

    def __init__(
        self,
        opened: "OpenedIndex",
        options: Mapping[str, Any] = NOTHING,
        scratch: ScratchFolder | None = None,
    ) -> None:
        if not hasattr(opened, "searcher"):
            name = type(self).__name__
            raise UsageError(f"{name} takes an open index", f"{name}.open(path), or {name}.build")
        self._opened: OpenedIndex | None = opened
        self._options = options  # a pickled index is opened again with them
        self._scratch = scratch  # the temporary folder of the index
        self._corpus_folder: ScratchFolder | None = None  # of a corpus that was in memory
        self._passage_model: QueryEncoder | None = None  # loaded by the first search that needs it
        self._passages: dict[str | None, Passages] = {}  # by the corpus that was named, or None
        self._reading_passages = Lock()

    @classmethod
    @documented(INDEX)
    def build(
        cls,
        vectors: "VectorsLike | PathName",
        *,
        ids: Iterable[str] | None = None,
        type: str = "flat",
        output: PathName | None = None,
        **options: Unpack[IndexOptions],
    ) -> Self:
        """Index (N, D) vectors, or a path of vectors; options as in `denserk index`.

        Vectors are a NumPy array or a torch tensor. The N `ids` are by default row numbers; without
        `output` the index goes with this object.
        """
        scratch = ScratchFolder()  # goes with this call if the index is in `output`
        folder = output or scratch.path / TEMPORARY_INDEX
        if isinstance(vectors, str | PathLike):
            if ids is not None:
                raise UsageError("ids are for vectors in memory", "a file of vectors has its own")
            source = str(vectors)
        else:
            rows = read_vectors(vectors, "vectors")
            if not len(rows) or np.ndim(vectors) == 1:  # one vector alone is read as (1, D)
                raise wrong_argument("vectors", vectors, "an array of shape (N, D)")
            source = str(scratch.path / "vectors")
            block = VectorBlock(read_ids(ids, rows), rows)
            write_vectors(source, VectorFormat.PYSERINI_FAISS, [block])
        typed = INDEX.typed(options, input=source, output=folder, type=type)
        with without_names_of(scratch.path):
            with INDEX.claimed(typed):
                _build(typed)
            return cls._open_built(folder, None if output else scratch)

    @classmethod
    def _open_built(cls, folder: PathName, scratch: ScratchFolder | None) -> Self:
        """Open an index that was just built, which may be in a temporary folder."""
        index = cls.open(folder)
        index._scratch = scratch
        return index

    @classmethod
    @documented(OPEN)
    def open(cls, path: PathName | Sequence[PathName], **options: Unpack[OpenOptions]) -> Self:
        """Open an index or a folder of vectors, or several as one; options: device, threads."""
        paths = _paths(path)
        typed = OPEN.typed(options)
        from denserk.index.opening import open_index

        return cls(open_index(paths, SearchSettings(), build(ComputeSettings, typed)), typed)

    @property
    def opened(self) -> "OpenedIndex":
        """The open index; a UsageError if it is closed."""
        if self._opened is None:
            raise UsageError("the index is closed", "open it again: Index.open")
        return self._opened

    def _reject_closed(self) -> None:
        """Raise a UsageError if the index is closed."""
        _ = self.opened

    def __len__(self) -> int:
        return len(self.opened.index) // self.opened.vectors_per_passage

    def __repr__(self) -> str:
        name = type(self).__name__
        if self._opened is None:
            return f"<{name}: closed>"
        location = "temporary" if self._scratch else self._opened.name
        return f"<{name} {_description(self._opened)}: {len(self):,} passages, {location}>"

    def __reduce__(self) -> tuple[Any, ...]:
        opened = self.opened
        if self._scratch is None:
            paths = [str(Path(name).absolute()) for name in opened.names]
            return _open_again, (type(self), paths, dict(self._options))
        return _restore, (type(self), _files_of(self._scratch.path))

    def __enter__(self) -> Self:
        self._reject_closed()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free the index's memory and remove its temporary folder; it cannot be searched then."""
        self._opened = None
        self._passage_model = None
        self._passages.clear()
        for folder in (self._scratch, self._corpus_folder):
            if folder is not None:
                folder.close()

    @documented(SEARCH)
    def search(
        self,
        queries: "TextsLike | VectorsLike",
        *,
        model: Encoder | PathName | None = None,
        hits: int = 100,
        exclude: "PathName | Mapping[str, Iterable[str]] | None" = None,
        **options: Unpack[SearchOptions],
    ) -> Run:
        """Search with texts by id, a list of texts, one text, a file, or (N, D) vectors.

        Queries without ids are "0", "1", ...; `model` is by default that of the passages. Options
        as in `denserk search`; a query of another model is a MismatchError. `exclude` has ids of
        passages that queries must not return, by query id, or names a file of them.
        """
        settings = build(SearchSettings, SEARCH.typed(options, hits=hits))
        scratch_path = self._scratch.path if self._scratch else None
        with without_names_of(scratch_path):
            return self._search(queries, model, settings, exclude)

    def _search(self, queries: Any, model: Any, settings: SearchSettings, exclude: Any) -> Run:
        """Search with texts or vectors, and warn of queries without hits."""
        searcher = self.opened.searcher(settings)
        if is_vectors(queries):
            query_vectors = self._read_query_vectors(queries)
            records = [Query(str(row), "") for row in range(len(query_vectors))]
        else:
            records = read_topics_of(queries)
            query_vectors = self._encode_queries(records, model)
        exclusions = chosen_exclusions(
            records,
            topics="queries",
            given_exclusions=read_exclusions_of(exclude),
            source=str(exclude) if is_path(exclude) else "exclude",
            use_listed=settings.exclude_listed,
        )
        searcher.exclude(exclusions)
        qids = [query.qid for query in records]
        run = Run()
        with track("searching", len(qids), "queries") as progress:
            for qid, hits in searcher.search(qids, query_vectors):
                run[qid] = dict(hits)
                progress.advance()
        searcher.report()
        if self.opened.bm25:
            texts = {query.qid: query.text for query in records}
            texts_without_hits = {qid: texts[qid] for qid in run if not run[qid]}
            self.opened.warn_without_hits(texts_without_hits, in_python=True)
        return run

    def passages(
        self, docids: Iterable[str], *, corpus: PathName | None = None
    ) -> dict[str, dict[str, str]]:
        """Return passages by their ids: {docid: {"title": title, "text": text}}.

        They are in the order of the ids; those that the corpus lacks are left out. The first call
        reads the corpus that the index was made of, or `corpus`, and copies it to a temporary file.
        A UsageError says which corpus is not there.
        """
        listed_docids = [docids] if isinstance(docids, str) else read_docids(docids, "docids")
        corpus_name = None if corpus is None else path_text(corpus, "corpus")
        passages = self._passages_of(corpus_name).get(listed_docids)
        fields_by_docid = {}
        for docid, passage in zip(listed_docids, passages, strict=True):
            if passage is not None:
                fields_by_docid[docid] = {"title": passage.title, "text": passage.text}
        return fields_by_docid

    def _passages_of(self, corpus: str | None) -> "Passages":
        """Return the passages of a corpus, by default that of the index; it is read once."""
        from denserk.index.passage_sources import Passages, corpora_of_index

        opened = self.opened
        with self._reading_passages:
            if corpus not in self._passages:
                scratch_path = self._scratch.path if self._scratch else None
                with without_names_of(scratch_path), TemporaryDirectory(prefix="denserk-") as name:
                    corpora = corpora_of_index(opened, corpus)
                    # the copy stays open when its folder is gone
                    self._passages[corpus] = Passages(corpora, Path(name) / "passages")
            return self._passages[corpus]

    def _read_query_vectors(self, queries: Any) -> Vectors:
        """Return the vectors of queries, which must fit the index."""
        from denserk.index.query_encoder import reject_other_queries

        if self.opened.bm25:
            raise UsageError("a BM25 index is searched with texts, not with vectors")
        vectors = read_vectors(queries, "queries")
        reject_other_queries(self.opened, vectors.shape[1], model=None, name="the array of queries")
        return vectors

    def _encode_queries(self, queries: Sequence[Query], model: Any) -> NDArray[Any]:
        """Return the vectors of queries, or their texts for a BM25 index."""
        from denserk.index.bm25 import query_texts
        from denserk.index.query_encoder import load_query_encoder, reject_other_queries

        opened = self.opened
        if opened.bm25:
            if model is not None:
                raise UsageError("BM25 takes no model", "leave out model=")
            return query_texts(queries)
        if isinstance(model, Encoder):
            encoder = model.any_encoder
            reject_other_queries(opened, model.dimension, encoder.description(), model.name)
            return encoder.encode_queries(queries)
        if model is not None:
            name = path_text(model, "model")
            with LOADING:
                encoder_of_name = load_query_encoder(opened, name, query_count=len(queries))
            return encoder_of_name.encode_queries(queries)
        return self._encoder_of_index(len(queries)).encode_queries(queries)

    def _encoder_of_index(self, query_count: int) -> "QueryEncoder":
        """Return the encoder of the model that the index records; it is loaded once."""
        from denserk.index.query_encoder import load_query_encoder

        with LOADING:
            if self._passage_model is None:
                if self.opened.model is None:
                    hint = "give model=, an Encoder or its name, or search with vectors"
                    raise UsageError("the index names no model that encodes texts", hint)
                self._passage_model = load_query_encoder(self.opened, query_count=query_count)
            return self._passage_model


class BM25(Index):
    """A BM25 index that is open for search; see `Index` for what both can do."""

    @classmethod
    @documented(BM25_INDEX)
    def build(  # type: ignore[override]
        cls,
        corpus: "TextsLike",
        *,
        output: PathName | None = None,
        **options: Unpack[BM25Options],
    ) -> Self:
        """Index the terms of a corpus; options as in `denserk index`: k1, b, language, ..."""
        scratch = ScratchFolder()
        folder = output or scratch.path / TEMPORARY_INDEX
        with without_names_of(scratch.path):
            source = store_input("corpus", corpus, scratch.path / "corpus.jsonl", options)
            typed = BM25_INDEX.typed(options, corpus=source, output=folder, type=IndexType.BM25)
            with BM25_INDEX.claimed(typed):
                _build(typed)
            index = cls._open_built(folder, None if output else scratch)
        index._corpus_folder = scratch  # `passages` reads it, also where the index is in `output`
        return index

    @classmethod
    @documented(OPEN)
    def open(cls, path: PathName | Sequence[PathName], **options: Unpack[OpenOptions]) -> Self:
        """Open a BM25 index; `Index.open` opens those of vectors, too. Options: device, threads."""
        index = super().open(path, **options)
        if not index.opened.bm25:
            raise UsageError(f"{index.opened.name} is no BM25 index", "open it by Index.open")
        return index


def _build(typed: Typed) -> None:
    """Run the task of `denserk index`."""
    settings = build(IndexSettings, typed)
    if settings.engine is Engine.MILVUS:
        hint = "denserk index --engine milvus writes one"
        raise UsageError("Index.build makes no collection of Milvus", hint)
    from denserk.tasks.build_index import build_index

    build_index(
        build(IndexPaths, typed),
        settings,
        build(Bm25Settings, typed),
        build(CorpusSettings, typed),
    )


def _paths(path: Any) -> list[str]:
    """Return the paths of one or several folders as text."""
    if is_path(path):
        return [str(path)]
    if not isinstance(path, Sequence) or not path:
        raise wrong_argument("path", path, "a path, or a list of paths")
    return [path_text(folder, "path") for folder in path]


def _description(opened: "OpenedIndex") -> str:
    """Return the type of an open index and, of vectors, their dimension."""
    if opened.bm25:
        return str(opened.bm25)
    manifest = opened.manifests[0]
    settings = {} if manifest is None else manifest.settings
    index_type = settings.get("factory") or settings.get("type") or "flat"
    return f"{index_type}, {opened.index.dimension:,} dimensions, {opened.metric}"


def _files_of(folder: Path) -> dict[str, bytes]:
    """Return the contents of a folder's files by their paths in it."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def _open_again(cls: type[Index], paths: Sequence[str], options: OpenOptions) -> Index:
    """Open a pickled index of which only the paths are kept."""
    return cls.open(paths, **options)


def _restore(cls: type[Index], files: Mapping[str, bytes]) -> Index:
    """Open a pickled index that has its files with it, in a temporary folder."""
    scratch = ScratchFolder()
    for name, content in files.items():
        path = scratch.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    index = cls.open(scratch.path / TEMPORARY_INDEX)
    index._scratch = scratch
    return index
