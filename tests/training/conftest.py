"""Fixtures of all training tests."""

import pytest

from denserk.training import run_folder


@pytest.fixture(autouse=True)
def plain(request, monkeypatch):
    """Curves cost as much as a small run: they are drawn where a test asks for them."""
    if "curves" not in request.node.name:
        monkeypatch.setattr(run_folder, "save_if_installed", lambda *_: None)
