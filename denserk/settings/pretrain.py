"""All that one pre-training run is told, put together from a recipe and what was given by hand."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from denserk.errors import UsageError
from denserk.settings.formats import CorpusSettings
from denserk.settings.options import as_json, spelled, typed_values
from denserk.settings.pretraining import (
    MaskingSettings,
    MasterPreset,
    PretrainingObjective,
    PretrainingObjectiveSettings,
    PretrainOptimizerSettings,
    PretrainSettings,
    TextUnitSettings,
)
from denserk.settings.recipes import flatten, paper_sections
from denserk.settings.training import Precision

Given = Mapping[str, Any]

CLASSES: tuple[type, ...] = (
    TextUnitSettings,
    MaskingSettings,
    PretrainingObjectiveSettings,
    PretrainOptimizerSettings,
)


def recipe(objective: PretrainingObjective, preset: MasterPreset = MasterPreset.PAPER) -> Given:
    """Return where an objective's paper, or MASTER's released code, differs from the defaults.

    >>> recipe(PretrainingObjective.COCONDENSER)
    {'max_length': 128, 'batch_size': 2048}
    """
    rows = paper_sections("pretraining")
    values = dict(rows[objective][1])
    if objective is PretrainingObjective.MASTER and preset is MasterPreset.RELEASED:
        values |= rows["master-released"][1]
    owners = {f.name: cls for cls in CLASSES for f in fields(cls)}
    return {n: typed_values(owners[n], {n: value})[n] for n, value in values.items()}


_HEADED = (PretrainingObjective.CONDENSER, PretrainingObjective.COCONDENSER)
_MASTER = (PretrainingObjective.MASTER,)
OF_SOME: Mapping[str, tuple[PretrainingObjective, ...]] = {
    "n_head_layers": (*_HEADED, *_MASTER),
    "fresh_heads": (*_HEADED, *_MASTER, PretrainingObjective.RETROMAE),
    "skip_from": _HEADED,
    "late_mlm": _HEADED,
    "lm_scale": (PretrainingObjective.COCONDENSER,),
    "short_blocks": (
        PretrainingObjective.MLM,
        PretrainingObjective.CONDENSER,
        PretrainingObjective.RETROMAE,
    ),
    "spans": (PretrainingObjective.COCONDENSER, *_MASTER),
    "decoder_mlm_probability": (*_MASTER, PretrainingObjective.RETROMAE),
    **dict.fromkeys(
        (
            "tasks",
            "decoders",
            "decoder_init",
            "cmp_encoder_rate",
            "cmp_pass",
            "keyword_weight",
            "frequency_dict",
            "weigh_fragments",
            "npr",
        ),
        _MASTER,
    ),
}
"""Settings that mean something to these objectives alone."""


@dataclass(frozen=True)
class PretrainRun:
    """All that one pre-training run is told."""

    pretrain: PretrainSettings
    corpus: CorpusSettings = field(default_factory=CorpusSettings)
    units: TextUnitSettings = field(default_factory=TextUnitSettings)
    masking: MaskingSettings = field(default_factory=MaskingSettings)
    objective: PretrainingObjectiveSettings = field(default_factory=PretrainingObjectiveSettings)
    optimizer: PretrainOptimizerSettings = field(default_factory=PretrainOptimizerSettings)

    def __post_init__(self) -> None:
        """Refuses what coCondenser's gradient cache cannot do."""
        if self.pretrain.objective is not PretrainingObjective.COCONDENSER:
            return
        if self.optimizer.precision is Precision.FLOAT16:
            raise UsageError(
                "--dtype float16: cocondenser's cached gradients would be scaled twice",
                "use --dtype bfloat16 or float32",
            )

    def config(self) -> dict[str, Any]:
        """Return the resolved settings as --config reads them."""
        other = [n for n, whose in OF_SOME.items() if self.pretrain.objective not in whose]
        return flatten((as_json(getattr(self, f.name)) for f in fields(self)), other)

    def as_json(self) -> dict[str, Any]:
        """Everything that was chosen, as plain JSON."""
        names = ("pretrain", "corpus", "units", "masking", "objective", "optimizer")
        return {name: as_json(getattr(self, name)) for name in names}


def put_together(
    pretrain: PretrainSettings, corpus: CorpusSettings, given: Mapping[type, Given]
) -> PretrainRun:
    """A run from its objective's recipe, and from what was given by hand, which wins.

    Args:
        pretrain: the run's own settings.
        corpus: how a corpus is read.
        given: settings class -> what was given by hand, by field name.

    Raises:
        UsageError: settings contradict each other, or mean nothing to the objective.

    >>> run = put_together(
    ...     PretrainSettings(
    ...         objective=PretrainingObjective.MASTER, model="m", corpus=("c",), output="o"
    ...     ),
    ...     CorpusSettings(),
    ...     {PretrainOptimizerSettings: {"lr": 1e-4}},
    ... )
    >>> run.optimizer.lr, run.optimizer.batch_size, run.masking.mlm_probability
    (0.0001, 2048, 0.3)
    """
    _refuse_others(pretrain.objective, given)
    values = recipe(pretrain.objective, pretrain.preset)

    def made(cls: type[Any]) -> Any:
        own = {name: values[name] for name in values.keys() & cls.__dataclass_fields__.keys()}
        by_hand = dict(given.get(cls, {}))
        if "epochs" in by_hand and "max_steps" not in by_hand:
            own.pop("max_steps", None)  # who gives epochs means them
        return cls(**(own | by_hand))

    return PretrainRun(pretrain, corpus, *map(made, CLASSES))


def _refuse_others(objective: PretrainingObjective, given: Mapping[type, Given]) -> None:
    names = [name for values in given.values() for name in values]
    wrong = [name for name in names if objective not in OF_SOME.get(name, (objective,))]
    if wrong:
        flags = {name: spelled(name, *given) for name in wrong}
        whose = {
            name: " and ".join(OF_SOME[name]).replace(" and ", ", ", len(OF_SOME[name]) - 2)
            for name in wrong
        }
        raise UsageError(
            f"not under --objective {objective}: "
            + "; ".join(f"{flags[name]} is for {whose[name]}" for name in wrong),
            f"leave out {', '.join(flags.values())}",
        )
