import dataclasses
from enum import StrEnum

import pytest

from denserk.commands.options import _Group
from denserk.config import encoding, retrieval
from denserk.config.options import Settings, as_json, field_docs, from_json, option
from denserk.errors import UsageError


class Colour(StrEnum):
    RED = "red"


@dataclasses.dataclass(frozen=True)
class Base(Settings):
    depth: int = option(3, at_least=1)
    """How deep."""


@dataclasses.dataclass(frozen=True)
class Paint(Base):
    colour: Colour = Colour.RED
    """Which colour,
    in a word."""
    layers: tuple[str, ...] = option(("a", "b"), "--coats", nonempty=True)
    """Names."""
    trim: Colour | None = None
    """Which colour at the edges."""
    shares: tuple[float, ...] = option((), rare=True, above=0, below=1)
    """Shares."""
    brush: str | None = option(None, needs="layers depth")
    """Brush."""
    hue: str | None = option(None, either="tone")
    """Hue."""
    tone: str | None = None
    """Tone."""


def test_docs_are_the_strings_under_the_fields_bases_first():
    assert list(field_docs(Paint).items())[:3] == [
        ("depth", "How deep."),
        ("colour", "Which colour, in a word."),
        ("layers", "Names."),
    ]


@pytest.mark.parametrize("module", [encoding, retrieval])
def test_every_option_has_its_help(module):
    for name, settings in vars(module).items():
        if name.endswith("Settings") and name != "Settings":
            assert field_docs(settings).keys() >= {f.name for f in dataclasses.fields(settings)}


def test_json_round_trip():
    paint = Paint(depth=4, layers=("x",), hue="h")
    assert as_json(paint)["layers"] == ["x"]
    assert as_json(paint)["colour"] == "red"
    assert from_json(Paint, as_json(paint)) == paint
    assert from_json(Paint, {"trim": "red", "hue": "h"}).trim is Colour.RED


def test_from_json_reports_all_mistakes():
    with pytest.raises(UsageError) as caught:
        from_json(Paint, {"colour": "blue", "width": 2, "depth": True})
    assert "colour: found 'blue', expected red" in caught.value.message
    assert "width is not a setting of Paint" in caught.value.message
    assert "depth: found True, expected a whole number" in caught.value.message


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"depth": 0}, "--depth 0: at least 1 is expected"),
        ({"shares": (0.5, 1.0)}, "--set shares=1.0: above 0, below 1 is expected"),
        ({"shares": (float("nan"),)}, "--set shares=nan: a finite number"),
        ({"layers": ()}, "--layers is empty"),
        ({"brush": "b"}, "--brush needs --layers or --depth"),
        ({"hue": None}, "give --hue or --tone"),
        ({"tone": "t"}, "--hue and --tone exclude each other"),
    ],
)
def test_declared_rules(given, told):
    Paint(depth=4, brush="b", hue="h")
    with pytest.raises(UsageError, match=told):
        Paint(**{"hue": "h", **given})


@pytest.mark.parametrize("value", ["0.5, 0.25", [0.5, 0.25], ("0.5", "0.25")])
def test_a_list_from_the_command_line_from_yaml_and_from_python(value):
    assert _Group(Paint).build({"hue": "h", "shares": value}).shares == (0.5, 0.25)
