from functools import partial

import pytest

from denserk.analysis import pictures
from denserk.analysis.pictures import draw_if_installed, new_figure, save
from denserk.errors import MissingExtraError, OutputError
from denserk.reporting import Reporter


class Told(Reporter):
    """Keeps what it is told."""

    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


@pytest.mark.parametrize(
    ("suffix", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")]
)
def test_kinds_of_pictures(tmp_path, suffix, start):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"p.{suffix}"
    save(new_figure(2, 2, "a test").figure, path)
    assert path.read_bytes().startswith(start)


def test_a_picture_that_cannot_be_written(tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        save(new_figure(2, 2, "a test").figure, tmp_path / "file" / "p.png")


def test_where_a_picture_goes_is_told(tmp_path):
    pytest.importorskip("matplotlib")
    told = Told()
    drawn: list[object] = []
    draw_if_installed(drawn.append, "the dots", tmp_path / "p.png", told)
    draw_if_installed(drawn.append, "the dots", None, told)
    assert drawn == [tmp_path / "p.png"]
    assert told.notes == [f"the dots are in {tmp_path / 'p.png'}"]


def test_without_matplotlib(tmp_path, monkeypatch):
    told = Told()
    monkeypatch.setattr(pictures, "installed", lambda module: False)
    draw_if_installed(partial(pytest.fail), "the dots", tmp_path / "p.png", told)
    assert told.notes == ["no plot: matplotlib is not installed (pip install 'denserk[report]')"]


def test_a_figure_needs_matplotlib(monkeypatch):
    def missing(module, purpose):
        raise MissingExtraError(f"{purpose} needs {module}")

    monkeypatch.setattr(pictures, "require", missing)
    with pytest.raises(MissingExtraError, match="a test needs matplotlib"):
        new_figure(1, 1, "a test")
