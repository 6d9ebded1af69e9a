"""All that one fine-tuning run is told, put together from a preset and what was given by hand."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from denserk.errors import UsageError
from denserk.settings.encoding import RepresentationSettings, TextSettings
from denserk.settings.formats import CorpusSettings
from denserk.settings.options import as_json, option
from denserk.settings.presets import Preset, apply, find_preset
from denserk.settings.recipes import flatten
from denserk.settings.training import (
    CacheSettings,
    FinetuneSettings,
    ObjectiveSettings,
    OptimizerSettings,
    RerankingSettings,
    SamplingSettings,
    ValidationSettings,
)

Given = Mapping[str, Any]
PATHS = frozenset(
    {"model", "train_data", "train_format", "corpus", "queries", "qrels", "output", "device"}
    | {"dev_data", "dev_corpus", "dev_topics", "dev_qrels", "skip_missing", "resume"}
    | {"overwrite"}
)
"""What is a run's own business, and no part of a recipe."""
T = TypeVar("T")


@dataclass(frozen=True)
class PresetSettings:
    """A paper's settings to start from."""

    preset: str | None = option(None, metavar="NAME|FILE", shown_default="none")
    """Settings of a paper, or of a YAML file of your own. Options that you give override them;
    --list-presets shows the names."""
    list_presets: bool = False
    """Print all presets and exit."""


@dataclass(frozen=True)
class FinetuneRun:
    """One run: its settings, class by class, and what replaces the weights' own settings.

    `given` names the settings that were given by hand where a preset could have said them; `notes`
    is what the user should know before it starts.
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
        """Describe a run with a preset, one line a setting; * marks what was given by hand."""
        preset = self.preset
        if preset is None:
            return
        yield f"preset {preset.name}" + (f": {preset.summary}" if preset.summary else "")
        if preset.start:
            yield f"  starts from {preset.start}"
        if preset.data:
            yield f"  data: {preset.data}"
        yield f"  values from {preset.file}; * was given by hand"
        told = [name for name in self._values() if name in preset.settings or name in self.given]
        width = max(map(len, told), default=0)
        for name in told:
            yield f"  {self._line(preset, name, width)}".rstrip()
        yield from (f"  {note}" for note in preset.notes)

    def _line(self, preset: Preset, name: str, width: int) -> str:
        flag, value = name.replace("_", "-"), shown(self._values()[name])
        replaced = name in self.given and name in preset.settings
        remark = f"preset: {shown(preset.settings[name])}" if replaced else ""
        return f"{'*' if name in self.given else ' '} {flag:{width}}  {value:12}  {remark}"

    def _values(self) -> dict[str, Any]:
        """Every setting that a preset may have, by field name."""
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
        """Everything that was chosen, as plain JSON."""
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
    """A setting's value as a person types it.

    >>> shown(("title", "text")), shown(False), shown(None)
    ('title,text', 'no', 'none')
    """
    if isinstance(value, tuple | list):
        return ",".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


def put_together(
    preset_name: str | None, corpus: CorpusSettings, given: Mapping[type, Given]
) -> FinetuneRun:
    """A run from a preset's settings, and from those given by hand, which win.

    Args:
        preset_name: the preset's name or its YAML file, or None.
        corpus: how a corpus is read.
        given: by settings class, the fields given by hand.

    Raises:
        UsageError: no preset has that name, or the settings contradict each other.
        InputError: a preset's file is wrong.
    """
    preset = None if preset_name is None else find_preset(preset_name)
    merged = {cls: _merged(preset, cls, values) for cls, values in given.items()}
    notes = _leave_out_best(merged[ValidationSettings], given[ValidationSettings])
    required = {"model": "--model", "train_data": "--train-data", "output": "--output"}
    missing = [flag for name, flag in required.items() if name not in merged[FinetuneSettings]]
    if missing:
        start = f"; the preset starts from {preset.start}" if preset and preset.start else ""
        raise UsageError(f"{' and '.join(missing)} must be given{start}", "denserk finetune --help")

    def made(cls: type[T]) -> T:
        return cls(**merged.get(cls, {}))

    return FinetuneRun(
        finetune=made(FinetuneSettings),
        corpus=corpus,
        sampling=made(SamplingSettings),
        objective=made(ObjectiveSettings),
        optimizer=made(OptimizerSettings),
        cache=made(CacheSettings),
        reranking=made(RerankingSettings),
        validation=made(ValidationSettings),
        representation=merged.get(RepresentationSettings, {}),
        text=merged.get(TextSettings, {}),
        preset=preset,
        given=frozenset(name for values in given.values() for name in values) - PATHS,
        notes=notes,
    )


def _leave_out_best(validation: dict[str, Any], given: Given) -> tuple[str, ...]:
    """Without dev data a preset cannot keep the best weights: it keeps the last, and says so."""
    asked = "best_by" in given or "dev_data" in validation or "dev_corpus" in validation
    if asked or "best_by" not in validation:
        return ()
    metric = validation.pop("best_by")
    return (f"the preset keeps the weights of the best {metric}; without --dev-data the last",)


def _merged(preset: Preset | None, cls: type, given: Given) -> dict[str, Any]:
    return dict(given) if preset is None else apply(preset, cls, given)
