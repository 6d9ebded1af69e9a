"""Presets of fine-tuning: settings of papers, and users' own YAML files."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from denserk.config.options import Given, option, select, typed_values
from denserk.config.training import CLASSES
from denserk.config.values import plain, unknown_name
from denserk.config.yaml_files import paper_sections, read_options


@dataclass(frozen=True)
class PresetSettings:
    """Preset."""

    preset: str | None = option(None, metavar="NAME|FILE")
    """Preset of a paper (see --list-presets) or YAML file; options override it."""
    list_presets: bool = False
    """Print all presets and exit."""


# Given option -> setting of a preset or recipe that it disables, because that one would win.
RIVALS = {"epochs": "max_steps", "warmup_ratio": "warmup_steps", "train_fraction": "train_queries"}


def overridden(values: Given, given: Given) -> dict[str, Any]:
    """Return the values of a preset or recipe with the given ones in place of theirs.

    >>> overridden({"max_steps": 9, "lr": 1e-5}, {"epochs": 2})
    {'lr': 1e-05, 'epochs': 2}
    """
    disabled = {RIVALS.get(name) for name in given}
    kept_values = {name: value for name, value in values.items() if name not in disabled}
    return kept_values | dict(given)


@dataclass(frozen=True)
class Description:
    """Description of a preset: initial model, training data and notes."""

    summary: str = ""
    start: str = ""
    data: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Preset(Description):
    """Settings of a paper, or of a user's own YAML file, which has the sources as comments.

    `settings` are typed values by field name.
    """

    name: str
    file: Path
    settings: Given

    def lines(self, given: Given) -> Iterator[str]:
        """Describe the preset and the given options that override it."""
        summary = f": {self.summary}" if self.summary else ""
        yield f"preset {self.name}{summary}"
        yield f"  values from {self.file}: {shown(self.settings)}"
        overridden_values = {name: self.settings[name] for name in given if name in self.settings}
        if overridden_values:
            yield f"  overridden: {shown(overridden_values)}"
        if self.start:
            yield f"  starts from {self.start}"
        if self.data:
            yield f"  data: {self.data}"
        for note in self.notes:
            if note:
                yield f"  {note}"


def as_preset(name: str, file: Path, values: Given) -> Preset:
    """Validate the values of a preset's YAML mapping."""
    typed = typed_values(str(file), values, Description, *CLASSES)
    description = select(typed, Description)
    settings = {field: value for field, value in typed.items() if field not in description}
    return Preset(name=name, file=file, settings=settings, **description)


@cache
def presets() -> Mapping[str, Preset]:
    """Return every preset of the papers by name, paper by paper."""
    rows = paper_sections("presets")
    return {name: as_preset(name, file, values) for name, (file, values) in rows.items()}


def find_preset(name: str) -> Preset:
    """Return the preset of a name, or the one in a YAML file."""
    if Path(name).suffix in (".yaml", ".yml") or Path(name).is_file():
        return as_preset(name, Path(name), read_options(name))
    if name not in presets():
        hint = "denserk finetune --list-presets has all"
        raise unknown_name("preset or file", name, presets(), hint)
    return presets()[name]


# Columns of `list_presets`.
COLUMNS = ("preset", "summary", "start", "data", "settings")


def list_presets() -> list[tuple[str, ...]]:
    """Return all presets as rows of text."""
    return [
        (preset.name, preset.summary, preset.start, preset.data, shown(preset.settings))
        for preset in presets().values()
    ]


def shown(values: Given) -> str:
    """Format values by field name as YAML.

    >>> shown({"batch_size": 8, "fields": ("title", "text"), "l2_norm": True})
    'batch-size: 8, fields: [title, text], l2-norm: true'
    """
    import yaml

    named = {name.replace("_", "-"): plain(value) for name, value in values.items()}
    text: str = yaml.safe_dump(named, default_flow_style=True, sort_keys=False, width=math.inf)
    return text.strip()[1:-1]
