"""The papers' fine-tuning settings as data: a name, the settings, and where each comes from."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from denserk.errors import UsageError
from denserk.settings import (
    presets_aggretriever,
    presets_condenser,
    presets_master,
    presets_master_released,
    presets_mlr,
)
from denserk.settings.options import typed_values
from denserk.settings.preset import Preset, Source

PRESETS: tuple[Preset, ...] = (
    *presets_aggretriever.PRESETS,
    *presets_condenser.PRESETS,
    *presets_master.PRESETS,
    *presets_master_released.PRESETS,
    *presets_mlr.PRESETS,
)
"""Every preset, paper by paper."""


class PresetRow(NamedTuple):
    """One line of the listing; all of it text."""

    name: str
    summary: str
    source: str
    values: str
    differing: str
    start: str
    data: str


def find_preset(name: str) -> Preset:
    """The preset of a name.

    Raises:
        UsageError: no preset is called so; the nearest names are told.

    >>> find_preset("condenser-marco").summary
    'MS MARCO: BM25 negatives'
    """
    by_name = {preset.name: preset for preset in PRESETS}
    if name not in by_name:
        near = get_close_matches(name, by_name, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise UsageError(
            f"no preset is called {name!r}",
            f"{hint}denserk finetune --list-presets shows all of them",
        )
    return by_name[name]


RIVALS = {"epochs": "max_steps", "warmup_ratio": "warmup_steps", "train_fraction": "train_queries"}
"""Given by hand -> what a preset then no longer says, because it would win over it."""


def apply(preset: Preset, cls: type, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What a preset says about one settings class: field name -> value, enums and tuples made.

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
    values = typed_values(cls, preset.values.get(cls.__name__, {}))
    beaten = {RIVALS[name] for name in given if name in RIVALS}
    return {name: value for name, value in values.items() if name not in beaten} | dict(given)


def list_rows() -> tuple[PresetRow, ...]:
    """The listing of all presets."""
    return tuple(
        PresetRow(
            preset.name,
            preset.summary,
            preset.source.value,
            key_values(preset.settings),
            differing(preset),
            preset.start,
            preset.data,
        )
        for preset in PRESETS
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


def differing(preset: Preset) -> str:
    """The fields whose source is not the preset's, by source.

    >>> differing(find_preset("master-nq-retriever1"))
    'library default: max_grad_norm, weight_decay; decision: batch_size, normalize_quotes'
    """
    by_source = {
        source: sorted(name for name, mark in preset.sources.items() if mark is source)
        for source in Source
        if source is not preset.source
    }
    return "; ".join(
        f"{source}: {', '.join(names)}" for source, names in by_source.items() if names
    )
