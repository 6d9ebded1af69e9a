"""Presets: settings for one's own data, settings of papers, and users' own YAML files."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from denserk.config.options import Given, Settings, option, select, typed_values
from denserk.config.training import CLASSES
from denserk.config.values import plain, unknown_name
from denserk.config.yaml_files import comments_of_values, paper_sections, read_options

# The recipe that is of no paper.
OWN_DATA = "own-data"


class PresetListSettings(Settings):
    """Preset."""

    list_presets: bool = False
    """Print all presets and exit."""
    show_preset: str | None = option(None, metavar="NAME", completes="presets")
    """Print the settings of a preset with their sources and exit."""


class PresetSettings(PresetListSettings):
    """Preset."""

    preset: str | None = option(None, metavar="NAME|FILE", completes="presets")
    """Preset (see --list-presets) or YAML file; options override it."""


# Given option -> setting of a preset or recipe that it disables, because that one would win.
RIVALS = {"epochs": "max_steps", "warmup_ratio": "warmup_steps", "train_fraction": "train_queries"}


def overridden(values: Given, given_options: Given) -> dict[str, Any]:
    """Return the values of a preset or recipe with the given ones in place of theirs.

    >>> overridden({"max_steps": 9, "lr": 1e-5}, {"epochs": 2})
    {'lr': 1e-05, 'epochs': 2}
    """
    disabled_names = {RIVALS.get(name) for name in given_options}
    kept_values = {name: value for name, value in values.items() if name not in disabled_names}
    return kept_values | dict(given_options)


@dataclass(frozen=True)
class Description:
    """Description of a preset: initial model, training data and notes."""

    summary: str = ""
    start: str = ""
    data: str = ""
    notes: tuple[str, ...] = ()
    values_from: str = ""  # the source of the values without a comment


@dataclass(frozen=True, kw_only=True)
class Preset(Description):
    """Settings of a paper, or of a user's own YAML file, which has the sources as comments.

    `settings` are typed values by field name.
    """

    name: str
    file: Path
    settings: Given
    keys: tuple[str, ...] = ()  # of the file, which lead to this preset

    @property
    def sources(self) -> Mapping[str, str]:
        """The source of each setting: the comment behind it in the file, or `values_from`."""
        comments = comments_of_values(self.file, *self.keys)
        return {name: comments.get(name) or self.values_from for name in self.settings}

    def lines(self, given_options: Given) -> Iterator[str]:
        """Describe the preset and the given options that override it."""
        summary = f": {self.summary}" if self.summary else ""
        yield f"preset {self.name}{summary}"
        yield f"  values from {self.file}: {shown(self.settings)}"
        overrides = {name: value for name, value in given_options.items() if name in self.settings}
        if overrides:
            yield f"  overridden by options: {shown(overrides)}"
        if self.start:
            yield f"  starts from {self.start}"
        if self.data:
            yield f"  data: {self.data}"
        for note in self.notes:
            if note:
                yield f"  {note}"


def as_preset(
    name: str,
    file: Path,
    values: Given,
    classes: Sequence[type] = CLASSES,
    keys: Sequence[str] = (),
) -> Preset:
    """Validate the values of a preset's YAML mapping, to which the `keys` of the file lead."""
    typed = typed_values(str(file), values, Description, *classes)
    description = select(typed, Description)
    settings = {field: value for field, value in typed.items() if field not in description}
    return Preset(name=name, file=file, settings=settings, keys=tuple(keys), **description)


@cache
def presets() -> Mapping[str, Preset]:
    """Return every preset by name: those for one's own data, and those of the papers."""
    return presets_in("presets", CLASSES)


def presets_in(section: str, classes: Sequence[type]) -> Mapping[str, Preset]:
    """Return the presets in a section of the recipes by name, those for one's own data first."""
    own_data = {}
    papers = {}
    for name, (file, values) in paper_sections(section).items():
        preset = as_preset(name, file, values, classes, (section, name))
        if file.stem == OWN_DATA:
            own_data[name] = preset
        else:
            papers[name] = preset
    return own_data | papers


def find_preset(name: str) -> Preset:
    """Return the preset of a name, or the one in a YAML file."""
    if Path(name).suffix in (".yaml", ".yml") or Path(name).is_file():
        return as_preset(name, Path(name), read_options(name))
    if name not in presets():
        hint = "denserk finetune --list-presets has all"
        raise unknown_name("preset or file", name, presets(), hint)
    return presets()[name]


class ShownPreset(NamedTuple):
    """A preset as --show-preset prints it."""

    usage: str  # the command line that applies it
    preset: Preset
    sources: Mapping[str, str]  # of its settings

    def lines(self) -> Iterator[str]:
        """Yield the lines of a YAML file; comments name the source of each setting."""
        yield f"# {self.usage}"
        for name, value in select(vars(self.preset), Description).items():
            if value and name not in ("notes", "values_from"):
                yield shown({name: value})
        if self.preset.notes:
            yield "notes:"
            for note in filter(None, self.preset.notes):
                yield f"- {shown_value(note)}"
        line_by_name = {name: shown({name: value}) for name, value in self.preset.settings.items()}
        width = max(map(len, line_by_name.values()), default=0)
        for name, line in line_by_name.items():
            source = self.sources.get(name)
            yield f"{line:<{width}}  # {source}" if source else line


def shown_preset(name: str) -> ShownPreset:
    """Return a preset of fine-tuning, or the one in a YAML file, to be shown."""
    preset = find_preset(name)
    return ShownPreset(f"denserk finetune --preset {name}", preset, preset.sources)


class PresetRow(NamedTuple):
    """A preset in the list of all."""

    preset: str
    what_for: str
    trained: str  # the representation; in pre-training, the length of the texts
    size: str  # of a batch, and the length of the training
    starts_from: str
    data: str


def list_presets() -> list[PresetRow]:
    """Return all presets of fine-tuning as rows of text."""
    rows = []
    for preset in presets().values():
        row = PresetRow(
            preset=preset.name,
            what_for=preset.summary,
            trained=str(preset.settings["representation"]),
            size=sizes(preset.settings),
            starts_from=preset.start,
            data=preset.data,
        )
        rows.append(row)
    return rows


def sizes(settings: Given) -> str:
    """Return the size of the batches and the length of a training.

    >>> sizes({"batch_size": 64, "group_size": 16, "max_steps": 20000})
    '64 x 16, 20,000 steps'
    >>> sizes({"batch_size": 8, "epochs": 1.0})
    '8, 1 epoch'
    """
    batch = str(settings["batch_size"])
    if "group_size" in settings:
        batch += f" x {settings['group_size']}"
    steps = settings.get("max_steps")
    if steps is not None:
        return f"{batch}, {steps:,} steps"
    epochs = settings["epochs"]
    return f"{batch}, {epochs:g} epoch{'' if epochs == 1 else 's'}"


def shown(values: Given) -> str:
    """Format values by field name as YAML.

    >>> shown({"batch_size": 8, "fields": ("title", "text"), "l2_norm": True})
    'batch-size: 8, fields: [title, text], l2-norm: true'
    """
    options = {name.replace("_", "-"): plain(value) for name, value in values.items()}
    return shown_value(options)[1:-1]  # without the braces of a mapping


def shown_value(value: Any) -> str:
    """Format a value as YAML in one line.

    >>> shown_value("a: b"), shown_value(["title", "text"])
    ("'a: b'", '[title, text]')
    """
    import yaml

    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=math.inf)
    return text.removesuffix("...\n").strip()
