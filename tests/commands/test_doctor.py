import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from denserk.commands import inspect as doctor
from denserk.commands.app import run
from denserk.errors import MissingExtraError
from denserk.extras import package_folder, require

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


@pytest.fixture(autouse=True)
def needs(monkeypatch):
    """The requirements of pyproject.toml, in place of those of an older installation."""
    lines = list(PROJECT["dependencies"])
    lines += [f'{line}; extra == "{extra}"' for extra, group in EXTRAS.items() for line in group]
    monkeypatch.setattr(doctor, "requires", lambda _: lines)


def test_each_missing_package_has_its_fix(monkeypatch, capsys):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "version", missing)
    assert run(["doctor"]) == 0
    facts, _, fixes = capsys.readouterr().out.partition("\nFix\n")
    extras = EXTRAS.keys() - {"gpu", "test", "dev", "docs"}
    for line in {*PROJECT["dependencies"]}.union(*map(EXTRAS.get, extras)):
        assert fixes.count(f"pip install '{line}' ") == 1
        assert f"\n  {Requirement(line).name:<20} missing" in facts


def test_without_torch_and_faiss_nothing_works(monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    monkeypatch.setattr(doctor, "installed", lambda _: False)
    assert run(["doctor"]) == 1
    assert "pip install --force-reinstall torch" in capsys.readouterr().out


def test_a_missing_extra_names_its_install_command(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    with pytest.raises(MissingExtraError, match="this needs the package faiss") as caught:
        require("faiss", "this")
    assert str(caught.value.hint).startswith("pip install faiss-cpu")
    with pytest.raises(MissingExtraError, match="this needs the package no_such_module"):
        package_folder("no_such_module", "this")
