"""What tests of commands that write folders share."""

import shutil

import pytest


@pytest.fixture
def folder(tmp_path, prepared_folder, monkeypatch):
    """The working directory: a copy of the `prepared_folder` of the test's module."""
    shutil.copytree(prepared_folder, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"
