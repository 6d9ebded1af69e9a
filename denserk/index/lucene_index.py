"""BM25 in Lucene itself, through Anserini: a folder that Anserini and Pyserini open as it is.

The formula is that of `bm25_index`, over the words of Anserini's English analysis. Lucene keeps a
passage's length in one byte, exact up to 40 words and in steps of 2, 4, 8, ... beyond; passages
without text are not indexed; Anserini rounds scores to four decimals, and lowers a tied one by a
millionth.
"""

import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from denserk.errors import InputError, OutputError, UsageError
from denserk.formats.files import write_errors
from denserk.formats.outputs import scratch_folder
from denserk.formats.run_lookup import RunLookup
from denserk.index.java import anserini_jar, fault, find_java, run_anserini
from denserk.index.vector_index import Rows, Scores
from denserk.settings.retrieval import Bm25Settings, SearchSettings, StopWords

STEMMERS = ("porter", "krovetz", "none")
FILE = 1 << 16
"""Passages in a file; each thread of Lucene takes a file at a time."""
MEMORY = 512
"""Megabytes of an index that are gathered before they are written."""
TOGETHER = 1 << 20
"""Hits that are searched for in one process."""


class LuceneBuilder:
    """Has Lucene index passages; until then their texts lie in a temporary folder (see TMPDIR).

    Args:
        settings: how text becomes words.
        threads: files that are indexed side by side.

    Raises:
        UsageError: Lucene does not have the stemmer.
        MissingExtraError: Java or Pyserini is missing.
    """

    def __init__(self, settings: Bm25Settings, threads: int | None = None) -> None:
        self._analysis = analysis(settings)
        self._threads = threads or os.cpu_count() or 1
        find_java()
        anserini_jar()

    def build(self, folder: Path, passages: Iterable[tuple[str, str]]) -> tuple[int, int]:
        """Indexes (id, text) pairs; returns how many have text, and how many have none.

        Raises:
            InputError: no passage has text.
            OutputError: Lucene did not index all of them.
        """
        with scratch_folder("lucene") as texts:
            count = _write_texts(Path(texts), passages)
            done, told = run_anserini(
                "index.IndexCollection",
                *("-collection", "JsonCollection", "-input", texts, "-index", folder),
                *("-threads", str(self._threads), "-memoryBuffer", str(MEMORY), "-optimize"),
                *self._analysis,
            )
        indexed, empty = _counter("indexed", told), _counter("empty", told)
        if not done or indexed + empty != count:
            raise OutputError(
                f"{folder}: Lucene indexed {indexed:,} of {count:,} passages ({fault(told)})"
            )
        if not indexed:
            raise InputError(folder, None, "no word in any passage", "text", "see --fields")
        (folder / "write.lock").unlink(missing_ok=True)
        return indexed, empty


def _write_texts(folder: Path, passages: Iterable[tuple[str, str]]) -> int:
    """Writes passages as Anserini reads them, in files of at most `FILE`; returns how many."""
    numbered = enumerate(passages)
    count = 0
    with write_errors(folder):
        for number, part in groupby(numbered, lambda item: item[0] // FILE):
            with (folder / f"{number:06}.jsonl").open("w", encoding="ascii") as out:
                for _, (docid, text) in part:
                    out.write(json.dumps({"id": docid, "contents": text}) + "\n")
                    count += 1
    return count


def analysis(settings: Bm25Settings) -> list[str]:
    """Anserini's options for how text becomes words.

    Raises:
        UsageError: Lucene does not have the stemmer.
    """
    if settings.stemmer not in STEMMERS:
        raise UsageError(
            f"--stemmer {settings.stemmer}: --engine lucene has {', '.join(STEMMERS)}",
            "choose one of them, or --engine bm25s",
        )
    keep = ["-keepStopwords"] if settings.stopwords is StopWords.NONE else []
    return ["-stemmer", settings.stemmer, *keep]


def _counter(name: str, told: str) -> int:
    found = re.search(rf" - {name}: +([\d,]+)", told)
    return int(found.group(1).replace(",", "")) if found else 0


class LuceneIndex:
    """An index of Lucene. A row means a passage of the last answer only: `ids` has its id.

    Args:
        folder: what `LuceneBuilder` wrote, or Anserini.
        settings: how it was built, and how words are weighed.
        passages: how many it holds; None counts them.
        threads: queries that are searched side by side.

    Raises:
        InputError: Lucene cannot read it.
        MissingExtraError: Java or Pyserini is missing.
    """

    is_exhaustive = True

    def __init__(
        self,
        folder: Path,
        settings: Bm25Settings,
        passages: int | None = None,
        threads: int | None = None,
    ) -> None:
        self._folder, self._settings = folder, settings
        self._threads = threads or os.cpu_count() or 1
        self._passages = self._counted() if passages is None else passages
        self.ids: list[str] = []

    def __len__(self) -> int:
        return self._passages

    def _counted(self) -> int:
        _, told = run_anserini("index.IndexReaderUtils", "-index", self._folder, "-stats")
        found = re.search(r"^documents: +(\d+)", told, re.MULTILINE)
        if found is None:
            raise self._unreadable(told)
        return int(found.group(1))

    def many_at_once(self, settings: SearchSettings) -> SearchSettings:
        """The settings with so many queries together that starting Java does not matter."""
        return replace(settings, query_batch=max(settings.query_batch, TOGETHER // settings.hits))

    def search(self, queries: NDArray[Any], depth: int) -> tuple[Scores, Rows]:
        """The `depth` best passages for each of B texts; those without a word of it are no hits.

        Raises:
            InputError: Lucene cannot read the index, or a query has too many words for it.
        """
        scores = np.full((len(queries), depth), -np.inf, dtype=np.float32)
        rows = np.full((len(queries), depth), -1, dtype=np.int64)
        self.ids.clear()
        with scratch_folder("lucene") as name:
            run = RunLookup(self._run(list(queries), depth, Path(name)), Path(name))
            for query in range(len(queries)):
                hits = run.hits(str(query))
                scores[query, : len(hits)] = [hit.score for hit in hits]
                rows[query, : len(hits)] = range(len(self.ids), len(self.ids) + len(hits))
                self.ids.extend(hit.docid for hit in hits)
        return scores, rows

    def _run(self, texts: Sequence[str], depth: int, scratch: Path) -> Path:
        """Lucene's run for texts that are called 0, 1, 2, ..."""
        topics, run = scratch / "topics.jsonl", scratch / "run.trec"
        with topics.open("w", encoding="ascii") as out:
            for number, text in enumerate(texts):
                out.write(json.dumps({"id": str(number), "title": text}) + "\n")
        done, told = run_anserini(
            "search.SearchCollection",
            *("-index", self._folder, "-topics", topics, "-topicReader", "JsonString"),
            *("-output", run, "-hits", str(depth)),
            *("-threads", "1", "-parallelism", str(self._threads), *analysis(self._settings)),
            *("-bm25", "-bm25.k1", f"{self._settings.k1}", "-bm25.b", f"{self._settings.b}"),
        )
        if "TooManyClauses" in told:
            raise InputError(
                self._folder,
                None,
                "a query with more than 1,024 different words, Lucene's limit",
                "shorter queries",
                "an index of --engine bm25s has no such limit",
            )
        if not done or not run.exists():
            raise self._unreadable(told)
        return run

    def _unreadable(self, told: str) -> InputError:
        heap = "JAVA_TOOL_OPTIONS=-Xmx8g gives Java more memory" if "OutOfMemory" in told else None
        return InputError(
            self._folder,
            None,
            f"what Lucene does not search ({fault(told)})",
            "an index of words that Lucene reads",
            heap,
        )
