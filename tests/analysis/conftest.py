"""The figure that a picture was saved from."""

import pytest


@pytest.fixture
def figures(monkeypatch):
    """All figures saved during a test, in order."""
    figure = pytest.importorskip("matplotlib.figure")
    kept = []
    savefig = figure.Figure.savefig

    def keep(self, *arguments, **named):
        kept.append(self)
        savefig(self, *arguments, **named)

    monkeypatch.setattr(figure.Figure, "savefig", keep)
    return kept
