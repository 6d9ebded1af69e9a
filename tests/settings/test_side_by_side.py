from dataclasses import dataclass
from pathlib import Path

import pytest

from denserk.errors import UsageError
from denserk.settings.side_by_side import SideBySide


@dataclass(frozen=True)
class Example(SideBySide):
    model: tuple[str, ...]
    output: str = "example.csv"
    plot: str | None = None


@pytest.mark.parametrize(
    ("models", "names"),
    [
        (("runs/a", "Luyu/condenser", "mean"), ["a", "condenser", "mean"]),
        (("BERT=runs/a", "fine tuned=runs/b/"), ["BERT", "fine tuned"]),
        (("runs/a", "old/a", "x/b/"), ["runs/a", "old/a", "b"]),
        (("runs/lr=1e-4", "./k=v", "."), ["lr=1e-4", "k=v", "."]),
        (("a=runs/x=y",), ["a"]),
        (("a=b/c", "runs/a"), ["a", "runs/a"]),
    ],
)
def test_curves_are_called_by_label_or_folder(models, names):
    labelled = Example(models).labelled
    assert [label for label, _ in labelled] == names
    for model, (label, folder) in zip(models, labelled, strict=True):
        assert model in (folder, f"{label}={folder}")


@pytest.mark.parametrize(
    ("models", "more", "said"),
    [
        (("runs/a", "runs/a"), {}, "two models are called runs/a"),
        (("x=runs/a", "x=runs/b"), {}, "two models are called x"),
        (("=runs/a",), {}, "one of the two is empty"),
        (("a=",), {}, "one of the two is empty"),
        (("a",), {"plot": "x.gif"}, r"--plot x\.gif: it ends in \.png, \.pdf, \.svg"),
        (("a",), {"output": "x.png"}, "table and plot would be one file"),
        (("a",), {"output": "x.svg", "plot": "x.svg"}, "table and plot would be one file"),
    ],
)
def test_what_cannot_be_drawn(models, more, said):
    with pytest.raises(UsageError, match=said):
        Example(models, **more).refuse_outputs()


@pytest.mark.parametrize(
    ("more", "picture"),
    [
        ({}, Path("example.png")),
        ({"output": "runs/e.csv"}, Path("runs/e.png")),
        ({"output": "-"}, None),
        ({"output": "-", "plot": "e.pdf"}, Path("e.pdf")),
    ],
)
def test_where_the_curves_go(more, picture):
    assert Example(("a",), **more).picture == picture
