import dataclasses
from enum import StrEnum

import pytest

from denserk.config.encoding import (
    ComputeSettings,
    EncodeSettings,
    RepresentationSettings,
    TextSettings,
)
from denserk.config.formats import CorpusSettings
from denserk.config.options import as_json, changed, field_docs, from_json, option
from denserk.config.retrieval import IndexSettings, SearchSettings
from denserk.errors import UsageError


class Colour(StrEnum):
    RED = "red"


@dataclasses.dataclass(frozen=True)
class Base:
    depth: int = 3
    """How deep."""


@dataclasses.dataclass(frozen=True)
class Paint(Base):
    colour: Colour = Colour.RED
    """Which colour,
    in a word."""
    layers: tuple[str, ...] = option(("a", "b"), "--coats")
    """Names."""
    trim: Colour | None = None
    """Which colour at the edges."""


ALL = [
    ComputeSettings,
    CorpusSettings,
    EncodeSettings,
    IndexSettings,
    RepresentationSettings,
    SearchSettings,
    TextSettings,
]


def test_docs_are_the_strings_under_the_fields_bases_first():
    assert field_docs(Paint) == {
        "depth": "How deep.",
        "colour": "Which colour, in a word.",
        "layers": "Names.",
        "trim": "Which colour at the edges.",
    }


@pytest.mark.parametrize("settings", ALL)
def test_every_field_has_its_docstring(settings):
    assert field_docs(settings).keys() >= {f.name for f in dataclasses.fields(settings)}


def test_json_round_trip():
    paint = Paint(depth=4, layers=("x",))
    assert as_json(paint) == {"depth": 4, "colour": "red", "layers": ["x"], "trim": None}
    assert from_json(Paint, as_json(paint)) == paint


def test_optional_enums_are_read_as_enums():
    assert from_json(Paint, {"trim": "red"}).trim is Colour.RED


def test_from_json_tells_all_mistakes():
    with pytest.raises(UsageError) as caught:
        from_json(Paint, {"colour": "blue", "width": 2})
    assert "colour: found 'blue', expected red" in caught.value.message
    assert "width is not a setting of Paint" in caught.value.message


def test_changed_leaves_what_is_none():
    assert changed(Paint(), {"depth": None, "layers": ("y",)}) == Paint(layers=("y",))
