"""Resolved settings of fine-tuning: a preset's, overridden by given options."""

from dataclasses import dataclass, field
from typing import Any, get_type_hints

from denserk.config import formats
from denserk.config.encoding import RepresentationSettings, TextSettings
from denserk.config.options import Given, build, select, typed_values
from denserk.config.presets import PresetSettings, find_preset, overridden
from denserk.config.training import (
    CLASSES,
    CacheSettings,
    FinetuneSettings,
    LoraSettings,
    ObjectiveSettings,
    OptimizerSettings,
    RerankingSettings,
    ResolvedRun,
    SamplingSettings,
    ValidationSettings,
)


@dataclass(frozen=True)
class FinetuneRun(ResolvedRun):
    """Resolved settings of a run, overrides of the model's own settings, and notes for the log."""

    finetune: FinetuneSettings
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    adapters: LoraSettings = field(default_factory=LoraSettings)
    cache: CacheSettings = field(default_factory=CacheSettings)
    reranking: RerankingSettings = field(default_factory=RerankingSettings)
    validation: ValidationSettings = field(default_factory=ValidationSettings)
    corpus: formats.CorpusSettings = field(default_factory=formats.CorpusSettings)
    representation: Given = field(default_factory=dict)
    text: Given = field(default_factory=dict)
    preset: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def warmup_is_of_preset(self) -> bool:
        """See `ResolvedRun`."""
        if self.preset is None:
            return False
        return find_preset(self.preset).settings.get("warmup_steps") == self.optimizer.warmup_steps


def run_of_options(options: Given) -> FinetuneRun:
    """Resolve a run from the options of `denserk finetune` by name, as they are given."""
    typed = typed_values(
        "denserk finetune", options, PresetSettings, formats.CorpusSettings, *CLASSES
    )
    preset_name = build(PresetSettings, typed).preset
    corpus = build(formats.CorpusSettings, typed)
    return resolve_run(preset_name, corpus, select(typed, *CLASSES))


def resolve_run(
    preset_name: str | None, corpus: formats.CorpusSettings, given_options: Given
) -> FinetuneRun:
    """Resolve a run's settings: the preset's, overridden by given ones (by field name)."""
    if preset_name is None:
        values = dict(given_options)
        notes = []
        hint: str | None = None
    else:
        preset = find_preset(preset_name)
        values = overridden(preset.settings, given_options)
        notes = list(preset.lines(given_options))
        hint = f"the preset starts from {preset.start}"
    has_dev_data = "dev_data" in values or "dev_corpus" in values
    best_by_is_of_preset = "best_by" in values and "best_by" not in given_options
    if best_by_is_of_preset and not has_dev_data:
        metric = values.pop("best_by")
        notes.append(f"without --dev-data the last weights are kept, not the best by {metric}")
    sections: dict[str, Any] = {}
    for name, cls in get_type_hints(FinetuneRun).items():
        if cls in CLASSES:
            sections[name] = build(cls, values, hint)
    return FinetuneRun(
        **sections,
        corpus=corpus,
        representation=select(values, RepresentationSettings),
        text=select(values, TextSettings),
        preset=preset_name,
        notes=tuple(notes),
    )
