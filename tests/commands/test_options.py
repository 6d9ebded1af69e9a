import dataclasses
from enum import StrEnum
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from denserk.commands.options import Overrides, command
from denserk.config.options import REQUIRED, option
from denserk.errors import UsageError


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Paint:
    """Paint: of a wall."""

    target: str = option(REQUIRED, "--to", metavar="WALL")
    """What is painted."""
    colour: Colour = Colour.RED
    """Which colour."""
    coats: tuple[str, ...] = ("base", "top")
    """Coats in order."""
    brush: tuple[str, ...] = option((), repeat=True)
    """Brushes."""
    dry_time: int | None = option(None, shown_default="until it is dry")
    """Hours."""
    glossy: bool = False
    """Shine."""


@dataclasses.dataclass(frozen=True)
class Weather:
    """Weather."""

    warm: bool = True
    """Is it warm."""
    wind: int = 3
    """How strong."""
    hours: tuple[int, ...] = ()
    """When."""


@pytest.fixture
def invoke():
    app = typer.Typer(
        context_settings={"token_normalize_func": lambda token: token.replace("_", "-")},
        rich_markup_mode=None,
    )
    calls = []

    @command(app, "paint")
    def paint(
        paint: Paint,
        weather: Overrides[Weather],
        names: Annotated[list[str] | None, typer.Argument()] = None,
    ) -> None:
        """Paint a wall."""
        calls.append((paint, dict(weather), names))

    def run(*arguments):
        result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
        return result, calls[-1] if calls else None

    return run


def test_defaults_stand_once(invoke):
    _, (paint, weather, names) = invoke("--target", "wall")
    assert paint == Paint(target="wall")
    assert weather == {}
    assert not names


def test_options_by_any_spelling(invoke):
    _, (paint, weather, names) = invoke(
        *("--to", "w", "--colour", "blue", "--coats", "a, b", "--brush", "x", "--brush", "y"),
        *("--dry_time", "4", "--glossy", "--no-warm", "--hours", "9,10", "n1", "n2"),
    )
    assert paint == Paint(
        target="w", colour=Colour.BLUE, coats=("a", "b"), brush=("x", "y"), dry_time=4, glossy=True
    )
    assert weather == {"warm": False, "hours": (9, 10)}
    assert names == ["n1", "n2"]


def test_a_missing_option_is_wrong_usage(invoke):
    with pytest.raises(UsageError, match="--target must be given"):
        invoke("--glossy")


def test_a_list_of_numbers_takes_numbers(invoke):
    with pytest.raises(UsageError, match="--hours: found 'x', expected a whole number"):
        invoke("--target", "w", "--hours", "9,x")


def test_help_by_panels_with_defaults(invoke):
    result, _ = invoke("--help")
    text = " ".join(result.stdout.split())
    assert "Paint: --target, --to WALL" in text
    assert "Which colour. [default: red]" in text
    assert "Hours. [default: until it is dry]" in text
    assert "--no-glossy" not in text
    assert "--warm / --no-warm Is it warm." in text
    assert "How strong. [default: the model's own]" in text
    titles = ("Paint:", "Weather (overrides the model's):", "Console:")
    assert [text.index(title) for title in titles] == sorted(map(text.index, titles))
