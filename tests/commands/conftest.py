"""What tests of commands that write folders share."""

import shutil

import pytest


@pytest.fixture
def at(tmp_path, made, monkeypatch):
    """The working directory: a copy of the folder `made` of the test's module."""
    shutil.copytree(made, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"
