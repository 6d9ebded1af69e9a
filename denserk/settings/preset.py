"""What a preset is: one row of a paper's settings, and where each value comes from."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

from denserk.settings.encoding import RepresentationSettings, TextSettings
from denserk.settings.training import (
    CacheSettings,
    FinetuneSettings,
    ObjectiveSettings,
    OptimizerSettings,
    RerankingSettings,
    SamplingSettings,
    ValidationSettings,
)

CLASSES: tuple[type, ...] = (
    RepresentationSettings,
    TextSettings,
    SamplingSettings,
    ObjectiveSettings,
    OptimizerSettings,
    CacheSettings,
    RerankingSettings,
    ValidationSettings,
    FinetuneSettings,
)
"""What a preset may set; no field name occurs in two of them."""

OWNERS = {f.name: cls.__name__ for cls in CLASSES for f in dataclasses.fields(cls)}
"""Field name -> the class that has it."""


class Source(StrEnum):
    """Where a value comes from."""

    PAPER = "paper"
    """The paper itself."""
    RELEASED = "released code"
    """The authors' code or scripts."""
    CITED = "cited work"
    """The work or toolkit that the paper points to for it, named in the preset's steps."""
    LIBRARY = "library default"
    """The default of the library that the authors used."""
    GUESS = "guess"
    """Nobody says it; the results or the rest of the settings suggest it."""
    LOST = "lost"
    """The paper prints it, but not in the copy that was read; the value is denserk's decision."""
    DECISION = "decision"
    """denserk's, where the sources are silent or disagree."""


@dataclass(frozen=True)
class Preset:
    """One row of a paper's settings.

    `settings` holds values as JSON has them, by field name; `source` is where they come from, and
    `sources` names the fields for which that differs (also `start` and `data`). `start` are the
    weights to start from and `data` is what the training data must be: both are for the reader,
    who names them with --model and --train-data. `steps` are what else belongs to the recipe.
    """

    name: str
    paper: str
    summary: str
    source: Source
    start: str
    data: str
    settings: Mapping[str, Any]
    sources: Mapping[str, Source] = field(default_factory=dict)
    steps: tuple[str, ...] = ()

    @cached_property
    def values(self) -> Mapping[str, Mapping[str, Any]]:
        """The settings by the name of their class."""
        by_class: dict[str, dict[str, Any]] = {}
        for name, value in self.settings.items():
            by_class.setdefault(OWNERS[name], {})[name] = value
        return by_class

    def source_of(self, name: str) -> Source:
        """Where the value of a field comes from."""
        return self.sources.get(name, self.source)


def marked(source: Source, *names: str) -> dict[str, Source]:
    """The same mark for several fields.

    >>> marked(Source.GUESS, "start", "lr")
    {'start': <Source.GUESS: 'guess'>, 'lr': <Source.GUESS: 'guess'>}
    """
    return dict.fromkeys(names, source)


def marks_of(settings: Mapping[str, Any], marks: Mapping[str, Source]) -> dict[str, Source]:
    """The marks that concern a preset: those of its settings, of `start` and of `data`.

    >>> marks_of({"lr": 5e-6}, marked(Source.RELEASED, "lr", "seed", "start"))
    {'lr': <Source.RELEASED: 'released code'>, 'start': <Source.RELEASED: 'released code'>}
    """
    return {
        name: mark for name, mark in marks.items() if name in settings.keys() | {"start", "data"}
    }
