"""Presets and the resolved settings of a fine-tuning run."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from denserk.config.encoding import RepresentationSettings, TextSettings
from denserk.config.formats import CorpusSettings
from denserk.config.options import as_json, as_type, option, typed_values
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


class PresetRow(NamedTuple):
    """One row of a listing, as text."""

    name: str
    summary: str
    values: str
    start: str
    data: str


def as_preset(name: str, file: Path, values: Mapping[str, Any]) -> Preset:
    """Validate the values of a preset's YAML mapping."""
    described: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    mistakes: list[str] = []
    fields = {f.name: f.type for f in dataclasses.fields(Preset)[3:]}
    for key, value in values.items():
        field = key.replace("-", "_")
        try:
            if field in fields:
                described[field] = as_type(fields[field], value)
            elif field in OWNERS:
                settings |= typed_values(OWNERS[field], {field: value})
            else:
                near = get_close_matches(field, OWNERS, n=1)
                meant = f" (did you mean {near[0]}?)" if near else ""
                mistakes.append(f"{key} is not a setting of finetune{meant}")
        except UsageError as error:
            mistakes.append(error.message)
        except ValueError as error:
            mistakes.append(f"{key}: {error}")
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

    >>> find_preset("condenser-marco").summary
    'MS MARCO: BM25 negatives'
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
    """Return a preset's values for one settings class, with given values overriding them.

    Args:
        preset: the preset.
        cls: the settings class.
        given: values by field name that override the preset's.

    >>> from denserk.config.training import OptimizerSettings
    >>> preset = find_preset("master-marco-retriever1-released")
    >>> OptimizerSettings(**apply(preset, OptimizerSettings)).max_steps
    30000
    >>> OptimizerSettings(**apply(preset, OptimizerSettings, {"epochs": 1.0})).max_steps is None
    True
    """
    given = given or {}
    beaten = {RIVALS[name] for name in given if name in RIVALS}
    values = {n: v for n, v in preset.settings.items() if OWNERS[n] is cls and n not in beaten}
    return values | dict(given)


def list_rows() -> tuple[PresetRow, ...]:
    """Return the listing of all presets."""
    return tuple(
        PresetRow(p.name, p.summary, key_values(p.settings), p.start, p.data)
        for p in presets().values()
    )


def key_values(settings: Mapping[str, Any]) -> str:
    """Return a one-line summary of the main settings.

    >>> key_values(find_preset("aggretriever-marco").settings)
    'agg, 8 queries x 8 passages, 32/128 tokens, lr 5e-06, warm-up 10 %, 3 epochs'
    """
    parts = [settings["representation"], f"{settings['batch_size']} queries"]
    if "group_size" in settings:
        parts[-1] += f" x {settings['group_size']} passages"
    if "pair_max_length" in settings:
        parts.append(f"{settings['pair_max_length']} tokens")
    elif "query_max_length" in settings:
        parts.append(f"{settings['query_max_length']}/{settings['passage_max_length']} tokens")
    parts.append(f"lr {settings['lr']:.0e}")
    if "warmup_steps" in settings:
        parts.append(f"warm-up {settings['warmup_steps']:,} steps")
    elif "warmup_ratio" in settings:
        parts.append(f"warm-up {100 * settings['warmup_ratio']:g} %")
    if "max_steps" in settings:
        parts.append(f"{settings['max_steps']:,} steps")
    else:
        parts.append(f"{settings['epochs']:g} epochs")
    return ", ".join(parts)


Given = Mapping[str, Any]
# Fields that depend on the run and are not part of a preset.
PATHS = frozenset(
    {"model", "train_data", "train_format", "corpus", "queries", "qrels", "output", "device"}
    | {"dev_data", "dev_corpus", "dev_topics", "dev_qrels", "skip_missing", "resume"}
    | {"overwrite"}
)
T = TypeVar("T")


@dataclass(frozen=True)
class PresetSettings:
    """Options of presets."""

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
    corpus: CorpusSettings = field(default_factory=CorpusSettings)
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    cache: CacheSettings = field(default_factory=CacheSettings)
    reranking: RerankingSettings = field(default_factory=RerankingSettings)
    validation: ValidationSettings = field(default_factory=ValidationSettings)
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
        names = [name for name in self._values() if name in preset.settings or name in self.given]
        width = max(map(len, names), default=0)
        for name in names:
            yield f"  {self._line(preset, name, width)}".rstrip()
        yield from (f"  {note}" for note in preset.notes)

    def _line(self, preset: Preset, name: str, width: int) -> str:
        flag, value = name.replace("_", "-"), shown(self._values()[name])
        replaced = name in self.given and name in preset.settings
        remark = f"preset: {shown(preset.settings[name])}" if replaced else ""
        return f"{'*' if name in self.given else ' '} {flag:{width}}  {value:12}  {remark}"

    def _values(self) -> dict[str, Any]:
        """Return all settings that a preset can have, by field name."""
        classes = ("sampling", "objective", "optimizer", "cache", "reranking", "validation")
        values = {**self.representation, **self.text}
        for settings in (*(getattr(self, name) for name in classes), self.finetune):
            values |= as_json(settings)
        return values

    def config(self) -> dict[str, Any]:
        """Return the resolved settings as --config reads them."""
        groups = {name: group for name, group in self.as_json().items() if name != "preset"}
        return flatten(groups.values())

    def as_json(self) -> dict[str, Any]:
        """Return the resolved settings as plain JSON."""
        classes = ("finetune", "corpus", "sampling", "objective", "optimizer", "cache")
        chosen = {
            name: as_json(getattr(self, name)) for name in (*classes, "reranking", "validation")
        }
        return {
            "preset": self.preset and self.preset.name,
            **chosen,
            "representation": dict(self.representation),
            "text": dict(self.text),
        }


def shown(value: Any) -> str:
    """Format a value as typed on the command line.

    >>> shown(("title", "text")), shown(False), shown(None)
    ('title,text', 'no', 'none')
    """
    if isinstance(value, tuple | list):
        return ",".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


def resolve_run(
    preset_name: str | None, corpus: CorpusSettings, given: Mapping[type, Given]
) -> FinetuneRun:
    """Resolve a run's settings: preset values, overridden by given ones.

    Args:
        preset_name: name or YAML file of a preset, or None.
        corpus: options for reading a corpus.
        given: settings class -> given values by field name.

    Raises:
        UsageError: unknown preset or contradictory settings.
        InputError: invalid preset file.
    """
    preset = None if preset_name is None else find_preset(preset_name)
    merged = {cls: _merged(preset, cls, values) for cls, values in given.items()}
    notes = _leave_out_best(merged[ValidationSettings], given[ValidationSettings])
    required = {"model": "--model", "train_data": "--train-data", "output": "--output"}
    missing = [flag for name, flag in required.items() if name not in merged[FinetuneSettings]]
    if missing:
        start = f"; the preset starts from {preset.start}" if preset and preset.start else ""
        raise UsageError(f"{' and '.join(missing)} must be given{start}", "denserk finetune --help")

    def build(cls: type[T]) -> T:
        return cls(**merged.get(cls, {}))

    return FinetuneRun(
        finetune=build(FinetuneSettings),
        corpus=corpus,
        sampling=build(SamplingSettings),
        objective=build(ObjectiveSettings),
        optimizer=build(OptimizerSettings),
        cache=build(CacheSettings),
        reranking=build(RerankingSettings),
        validation=build(ValidationSettings),
        representation=merged.get(RepresentationSettings, {}),
        text=merged.get(TextSettings, {}),
        preset=preset,
        given=frozenset(name for values in given.values() for name in values) - PATHS,
        notes=notes,
    )


def _leave_out_best(validation: dict[str, Any], given: Given) -> tuple[str, ...]:
    """Drop a preset's `best_by` when there is no dev data, and return a note about it."""
    asked = "best_by" in given or "dev_data" in validation or "dev_corpus" in validation
    if asked or "best_by" not in validation:
        return ()
    metric = validation.pop("best_by")
    return (f"without --dev-data the last weights are kept, not the best by {metric}",)


def _merged(preset: Preset | None, cls: type, given: Given) -> dict[str, Any]:
    return dict(given) if preset is None else apply(preset, cls, given)
