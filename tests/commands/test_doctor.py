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
    versions = {
        name: next((s.version for s in specs if s.operator == ">="), "1.0")
        for name, specs in wanted.items()
    }
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


def test_each_missing_package_has_its_fix(complete, capsys):
    names = EXTRAS.keys() - {"gpu", "test", "dev"}
    lines = sorted({line for extra in names for line in EXTRAS[extra]})
    for line in lines:
        del complete[Requirement(line).name]
    assert run(["doctor"]) == 0
    facts, _, fixes = capsys.readouterr().out.partition("\nFix\n")
    for line in lines:
        assert fixes.count(f"pip install '{line}' ") == 1
        assert f"\n  {Requirement(line).name:<20} missing" in facts


def test_without_torch_and_faiss_nothing_works(monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    monkeypatch.setattr(doctor, "installed", lambda _: False)
    assert run(["doctor"]) == 1
    assert "pip install --force-reinstall torch" in capsys.readouterr().out


def test_nothing_to_fix(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "_java", lambda _: [("java", "21")])
    assert run(["doctor"]) == 0
    assert capsys.readouterr().out.endswith("\nnothing to fix\n")
