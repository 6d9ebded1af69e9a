"""Presets and the resolved settings of a fine-tuning run."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from denserk.config.encoding import RepresentationSettings, TextSettings
from denserk.config.formats import CorpusSettings
from denserk.config.options import Settings, as_json, as_type, option, spelled, typed_values
from denserk.config.recipes import flatten, paper_sections, read_yaml
from denserk.config.training import (
    CacheSettings,
    FinetuneSettings,
    ObjectiveSettings,
    OptimizerSettings,
    RerankingSettings,
    SamplingSettings,
    ValidationSettings,
)
from denserk.errors import UsageError

# Classes of the settings that a preset can have; field names are unique over them.
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
OWNERS = {f.name: cls for cls in CLASSES for f in dataclasses.fields(cls)}

# Given option -> preset setting that it disables, because that one would override it.
RIVALS = {"epochs": "max_steps", "warmup_ratio": "warmup_steps", "train_fraction": "train_queries"}


@dataclass(frozen=True)
class Preset:
    """Settings of a paper, or of a user's own file.

    `settings` are typed values by field name. `start` (initial model), `data` (training data) and
    `notes` are descriptions only. `file` is the YAML file, with the sources as comments.
    """

    name: str
    file: Path
    settings: Mapping[str, Any]
    summary: str = ""
    start: str = ""
    data: str = ""
    notes: tuple[str, ...] = ()


def as_preset(name: str, file: Path, values: Mapping[str, Any]) -> Preset:
    """Validate the values of a preset's YAML mapping."""
    descriptions = {f.name: f.type for f in dataclasses.fields(Preset)[3:]}
    described: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    mistakes: list[str] = []
    for key, value in values.items():
        field = key.replace("-", "_")
        try:
            if field in descriptions:
                described[field] = as_type(descriptions[field], value)
            elif field in OWNERS:
                settings |= typed_values(OWNERS[field], {field: value})
            else:
                near = get_close_matches(field, OWNERS, n=1)
                meant = f" (did you mean {near[0]}?)" if near else ""
                mistakes.append(f"{key} is not a setting of finetune{meant}")
        except (UsageError, ValueError) as error:
            mistakes.append(f"{key}: {error}" if isinstance(error, ValueError) else error.message)
    if mistakes:
        raise UsageError(
            f"{file}: {'; '.join(mistakes)}",
            "denserk finetune --help shows the settings; summary, start, data and notes describe",
        )
    return Preset(name, file, settings, **described)


@cache
def presets() -> Mapping[str, Preset]:
    """Return every preset of the papers by name, paper by paper."""
    rows = paper_sections("presets")
    return {name: as_preset(name, file, values) for name, (file, values) in rows.items()}


def find_preset(name: str) -> Preset:
    """Return the preset of a name, or the one in a YAML file.

    Raises:
        UsageError: there is no such preset or file, or the file has wrong settings.
        InputError: the file is not YAML.
    """
    if Path(name).suffix in (".yaml", ".yml") or Path(name).is_file():
        return as_preset(name, Path(name), read_yaml(name))
    if name not in presets():
        near = get_close_matches(name, presets(), n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise UsageError(
            f"no preset is called {name!r}, and there is no such file",
            f"{hint}denserk finetune --list-presets shows all of them",
        )
    return presets()[name]


def apply(preset: Preset, cls: type, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a preset's values for one settings class, with given values overriding them."""
    given = given or {}
    beaten = {RIVALS[name] for name in given if name in RIVALS}
    values = {n: v for n, v in preset.settings.items() if OWNERS[n] is cls and n not in beaten}
    return values | dict(given)


# Columns of `list_presets`, and the settings in the third one.
COLUMNS = ("preset", "summary", "settings", "start", "data")
MAIN = (
    *("representation", "batch_size", "group_size", "query_max_length", "passage_max_length"),
    *("pair_max_length", "lr", "warmup_steps", "warmup_ratio", "max_steps", "epochs"),
)


def list_presets() -> list[tuple[str, ...]]:
    """Return all presets as rows of text."""
    rows: list[tuple[str, ...]] = []
    for preset in presets().values():
        chosen = {name: preset.settings[name] for name in MAIN if name in preset.settings}
        values = ", ".join(f"{name.replace('_', '-')} {v}" for name, v in chosen.items())
        rows.append((preset.name, preset.summary, values, preset.start, preset.data))
    return rows


Given = Mapping[str, Any]
# Fields that depend on the run and are not part of a preset.
PATHS = frozenset(
    {"model", "train_data", "train_format", "corpus", "queries", "qrels", "output", "device"}
    | {"dev_data", "dev_corpus", "dev_topics", "dev_qrels", "skip_missing", "resume"}
    | {"overwrite"}
)


@dataclass(frozen=True)
class PresetSettings:
    """Preset."""

    preset: str | None = option(None, metavar="NAME|FILE", shown_default="none")
    """Preset of a paper (see --list-presets) or YAML file; options override it."""
    list_presets: bool = False
    """Print all presets and exit."""


@dataclass(frozen=True)
class FinetuneRun:
    """Resolved settings of a run, and overrides of the model's own settings.

    `given` names the settings that were given explicitly; `notes` are messages for the user.
    """

    finetune: FinetuneSettings
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    cache: CacheSettings = field(default_factory=CacheSettings)
    reranking: RerankingSettings = field(default_factory=RerankingSettings)
    validation: ValidationSettings = field(default_factory=ValidationSettings)
    corpus: CorpusSettings = field(default_factory=CorpusSettings)
    representation: Given = field(default_factory=dict)
    text: Given = field(default_factory=dict)
    preset: Preset | None = None
    given: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        """Describe a run with a preset, one line per setting; * marks overrides."""
        preset = self.preset
        if preset is None:
            return
        yield f"preset {preset.name}" + (f": {preset.summary}" if preset.summary else "")
        if preset.start:
            yield f"  starts from {preset.start}"
        if preset.data:
            yield f"  data: {preset.data}"
        yield f"  values from {preset.file}; * marks overrides"
        groups = [group for group in self.as_json().values() if isinstance(group, dict)]
        for name, value in (item for group in groups for item in group.items()):
            flag, settings = name.replace("_", "-"), preset.settings
            if name in self.given:
                instead = f" (preset: {shown(settings[name])})" if name in settings else ""
                yield f"  * {flag} {shown(value)}{instead}"
            elif name in settings:
                yield f"    {flag} {shown(value)}"
        yield from (f"  {note}" for note in preset.notes)

    def config(self) -> dict[str, Any]:
        """Return the resolved settings as --config reads them."""
        return flatten(group for group in self.as_json().values() if isinstance(group, dict))

    def as_json(self) -> dict[str, Any]:
        """Return the resolved settings as plain JSON."""
        parts = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {"preset": self.preset and self.preset.name} | {
            name: dict(part) if isinstance(part, Mapping) else as_json(part)
            for name, part in parts.items()
            if isinstance(part, Mapping | Settings)
        }


def shown(value: Any) -> str:
    """Format a value as typed on the command line."""
    if isinstance(value, tuple | list):
        return ",".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


def resolve_run(preset_name: str | None, corpus: CorpusSettings, given: Given) -> FinetuneRun:
    """Resolve a run's settings: the preset's, overridden by given ones (by field name).

    Raises:
        UsageError: unknown preset or contradictory settings.
        InputError: invalid preset file.
    """
    preset = Preset("", Path(), {}) if preset_name is None else find_preset(preset_name)
    merged = {
        cls: apply(preset, cls, {n: v for n, v in given.items() if OWNERS[n] is cls})
        for cls in CLASSES
    }
    notes: tuple[str, ...] = ()
    validation = merged[ValidationSettings]
    if "best_by" in validation.keys() - given.keys() and not (
        {"dev_data", "dev_corpus"} & validation.keys()
    ):
        metric = validation.pop("best_by")
        notes = (f"without --dev-data the last weights are kept, not the best by {metric}",)
    required = ("model", "train_data", "output")
    missing = [spelled(n, FinetuneSettings) for n in required if n not in merged[FinetuneSettings]]
    if missing:
        start = f"; the preset starts from {preset.start}" if preset.start else ""
        raise UsageError(f"{' and '.join(missing)} must be given{start}", "denserk finetune --help")

    hints = get_type_hints(FinetuneRun)
    groups: Given = {name: cls(**merged[cls]) for name, cls in hints.items() if cls in merged}
    return FinetuneRun(
        **groups,
        corpus=corpus,
        representation=merged[RepresentationSettings],
        text=merged[TextSettings],
        preset=preset if preset_name else None,
        given=frozenset(given) - PATHS,
        notes=notes,
    )
