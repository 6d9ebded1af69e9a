import dataclasses
from enum import StrEnum
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from denserk.commands.options import command
from denserk.config.options import REQUIRED, Given, Settings, as_json, from_json, option, setting
from denserk.errors import UsageError


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Paint(Settings, kw_only=True):
    """Paint: of a wall."""

    target: str = option(REQUIRED, "--to", metavar="WALL")
    """What is painted."""
    colour: Colour = Colour.RED
    """Which colour,
    in a word."""
    coats: tuple[str, ...] = option(("base", "top"), nonempty=True)
    """Coats in order."""
    brush: tuple[str, ...] = option((), repeat=True, needs="depth glossy")
    """Brushes."""
    depth: int | None = option(None, at_least=1)
    """Depth. [default: that of the wall]"""
    shares: tuple[float, ...] = setting((), above=0, below=1)
    """Shares."""
    glossy: bool = option(False, excludes="depth")
    """Shine."""
    hue: str | None = option(None, either="tone")
    """Hue."""
    tone: str | None = None
    """Tone."""


@dataclasses.dataclass(frozen=True)
class Weather:
    """Weather."""

    own_defaults = "the model's own"

    warm: bool = True
    """Is it warm."""
    wind: int = 3
    """How strong."""
    hours: tuple[int, ...] = ()
    """When."""


WALL = ("--to", "w", "--hue", "h")
APP = typer.Typer(
    context_settings={"token_normalize_func": lambda token: token.replace("_", "-")},
    rich_markup_mode=None,
)


@command(APP, "paint")
def paint(
    paint: Paint,
    weather: Annotated[Given, Weather],
    names: Annotated[list[str] | None, typer.Argument()] = None,
) -> tuple[Paint, Annotated[Given, Weather]]:
    """Paint a wall."""
    typer.echo((as_json(paint), dict(weather), names))
    return paint, weather


def invoke(*arguments):
    return CliRunner().invoke(APP, list(arguments), catch_exceptions=False).stdout


def test_options_by_any_spelling():
    default = as_json(Paint(target="w", hue="h"))
    assert invoke("--target", "w", "--hue", "h") == f"{(default, {}, None)}\n"
    chosen = Paint(
        target="w", colour=Colour.BLUE, coats=("a", "b"), brush=("x", "y"), depth=4, hue="h"
    )
    printed = invoke(
        *(*WALL, "--colour", "blue", "--coats", "a, b", "--brush", "x", "--brush", "y"),
        *("--depth", "4", "--no_warm", "--hours", "9,10", "n1", "n2"),
    )
    assert printed == f"{(as_json(chosen), {'warm': False, 'hours': (9, 10)}, ['n1', 'n2'])}\n"
    assert from_json(Paint, as_json(chosen)) == chosen


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--hue", "h"), "--target must be given"),
        ((*WALL, "--hours", "9,x"), "hours: found 'x', expected a whole number"),
        ((*WALL, "--depth", "0"), "--depth 0: at least 1 is expected"),
        ((*WALL, "--set", "shares=0.5,1"), "--set shares=1.0: above 0, below 1 is expected"),
        ((*WALL, "--set", "shares=nan"), "--set shares=nan: a finite number"),
        ((*WALL, "--coats", ""), "--coats is empty"),
        ((*WALL, "--brush", "b"), "--brush needs --depth or --glossy"),
        ((*WALL, "--depth", "1", "--glossy"), "--glossy and --depth exclude each other"),
        (("--to", "w"), "give --hue or --tone"),
        ((*WALL, "--tone", "t"), "--hue and --tone exclude each other"),
    ],
)
def test_declared_rules(arguments, message):
    with pytest.raises(UsageError, match=message):
        invoke(*arguments)


@pytest.mark.parametrize("shares", ["0.5, 0.25", [0.5, 0.25], ("0.5", "0.25")])
def test_lists_from_text_yaml_and_python(shares):
    assert paint(target="w", hue="h", shares=shares)[0].shares == (0.5, 0.25)


def test_json_mistakes_are_reported_together():
    with pytest.raises(UsageError) as caught:
        from_json(Paint, {"colour": "pink", "width": 2, "depth": True, "brush": 3})
    assert "colour: found 'pink', expected red or blue" in caught.value.message
    assert "brush: found 3, expected a list" in caught.value.message
    assert "width is not a setting" in caught.value.message
    assert "depth: found True, expected a whole number" in caught.value.message
