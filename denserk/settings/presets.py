"""The papers' fine-tuning settings by name, and presets from users' own YAML files."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from denserk.errors import UsageError
from denserk.settings.encoding import RepresentationSettings, TextSettings
from denserk.settings.options import as_type, typed_values
from denserk.settings.recipes import paper_sections, read_yaml
from denserk.settings.training import (
    CacheSettings,
    FinetuneSettings,
    ObjectiveSettings,
    OptimizerSettings,
    RerankingSettings,
    SamplingSettings,
    ValidationSettings,
)

# What a preset may set; no field name occurs in two of them.
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

# Given by hand -> what a preset then no longer sets, because it would win over it.
RIVALS = {"epochs": "max_steps", "warmup_ratio": "warmup_steps", "train_fraction": "train_queries"}


@dataclass(frozen=True)
class Preset:
    """One row of a paper's settings, or a user's own file.

    `settings` are typed values by field name. `start` names the weights to start from and `data`
    describes the training data; the user gives both with --model and --train-data. `notes` are
    what else belongs to the recipe. `file` is the YAML file, which has the sources as comments.
    """

    name: str
    file: Path
    settings: Mapping[str, Any]
    summary: str = ""
    start: str = ""
    data: str = ""
    notes: tuple[str, ...] = ()


class PresetRow(NamedTuple):
    """One line of the listing; all of it text."""

    name: str
    summary: str
    values: str
    start: str
    data: str


def as_preset(name: str, file: Path, values: Mapping[str, Any]) -> Preset:
    """Validate a preset as YAML has it.

    Raises:
        UsageError: a name that is not a setting, or a value of the wrong type; all are named.
    """
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
    """Return what a preset sets of one settings class: field name -> value.

    Args:
        preset: the preset.
        cls: the settings class.
        given: values by field name that were chosen by hand; they win.

    >>> from denserk.settings.training import OptimizerSettings
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
    """The settings one compares presets by, in one line.

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
