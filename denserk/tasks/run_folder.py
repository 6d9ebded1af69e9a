"""A training run in its folder: the model that comes out, and what the run keeps beneath it.

checkpoints/        to resume from
best/               the best weights so far, where a measure decides
steps/              weights after chosen steps
start/              the model that a run from nothing starts from
training-data/      tokenised once; dev-data/ likewise
logs/               TensorBoard's files
training.json       settings and versions from the start; the log is added at the end
training.png        curves of the log
config.yaml         the resolved settings, for --config
"""

import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import torch
import transformers
import yaml
from torch import nn

from denserk import __version__
from denserk.errors import InputError, MismatchError, UsageError
from denserk.extras import installed
from denserk.formats.files import whole_binary, write_lines
from denserk.formats.manifest import Kind, differences, read_manifest
from denserk.formats.outputs import foreign_items, prepare_folder
from denserk.settings.training import OptimizerSettings, ValidationSettings
from denserk.training.curves import draw
from denserk.training.distributed import world
from denserk.training.steps import Step
from denserk.training.trainer import Best, Speed, Trainer
from denserk.training.validation import best_of, values_of

logger = logging.getLogger(__name__)

CHECKPOINTS, BEST, DATA, DEV_DATA, LOGS = "checkpoints", "best", "training-data", "dev-data", "logs"
STEPS, START = "steps", "start"
TOLD, CURVES = "training.json", "training.png"
# Settings that do not change what comes out, and may differ when a run is resumed
FREE = {
    "finetune": ("output", "device", "resume", "overwrite"),
    "pretrain": ("output", "device", "resume", "overwrite", "tokenize_to"),
    "optimizer": ("keep_checkpoints", "keep_steps", "num_workers"),
}
NOT_COMPARED = ("preset", "versions", "processes", "log")


def make_ready(output: Path, *, resume: bool, overwrite: bool) -> None:
    """Make the folder of a run ready; what an earlier run left goes where `overwrite` says so.

    Raises:
        UsageError: see `denserk.formats.outputs.refuse_occupied`.
        OutputError: it cannot be made or cleared.
    """
    prepare_folder(output, overwrite=overwrite, resume=resume)
    if not (output / TOLD).exists():  # from now on the folder is known to be denserk's
        _write(output, {"versions": {"denserk": __version__}})


def told_of(chosen: Mapping[str, Any], output: Path, kind: Kind = Kind.TRAINING) -> dict[str, Any]:
    """What training.json says from the start: settings, the data's fingerprints, versions.

    Args:
        chosen: the settings, class by class, as JSON.
        output: the run's folder, its data prepared.
        kind: of data.
    """
    versions = {
        "denserk": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    data = {
        name: read_manifest(output / name, kind).made_from
        for name in (DATA, DEV_DATA)
        if (output / name).is_dir()
    }
    return {"versions": versions, "processes": world()[1], **chosen, "data": data}


def begin(output: Path, told: Mapping[str, Any]) -> None:
    """Writes training.json; a run that is resumed must have begun with the same settings.

    Raises:
        MismatchError: a checkpoint is there, and was made with other settings or data.
        InputError: the training.json beside it is broken.
    """
    if goes_on(output):
        refuse_changes(output, told)
    else:  # nothing to resume: what a run left that never came to a checkpoint is not this one's
        left = [output / name for name in (BEST, STEPS, LOGS)]
        foreign = [item for item in foreign_items(output) if any(map(item.is_relative_to, left))]
        if foreign:
            raise UsageError(f"{foreign[0]}: denserk did not write it", "remove it yourself")
        for folder in left:
            shutil.rmtree(folder, ignore_errors=True)
    _write(output, told)


def write_config(folder: Path, command: str, config: Mapping[str, Any]) -> None:
    """Write config.yaml: the resolved settings of a run, which `--config` takes.

    Raises:
        OutputError: it cannot be written.
    """
    plain = orjson.loads(orjson.dumps(config))
    text = yaml.safe_dump(plain, sort_keys=False, default_flow_style=None, width=100)
    note = f"# denserk {command} --config THIS_FILE --output FOLDER\n"
    write_lines(folder / "config.yaml", text.splitlines(keepends=True), note)


def goes_on(output: Path) -> bool:
    """Whether a run would continue from a checkpoint."""
    return any((output / CHECKPOINTS).glob("checkpoint-*"))


def refuse_changes(output: Path, told: Mapping[str, Any]) -> None:
    """Refuses to continue a run otherwise than it was begun, as far as `told` tells.

    Args:
        output: the run's folder, with a checkpoint.
        told: what training.json would say, or a part of it.

    Raises:
        MismatchError: the run was begun otherwise.
        InputError: its training.json is broken.
    """
    path = output / TOLD
    if not path.is_file():
        return
    try:
        now = orjson.loads(orjson.dumps(told))
        found = orjson.loads(path.read_bytes())
        before = {name: value for name, value in found.items() if name in now}
        changes = differences(_compared(before), _compared(now))
        versions = differences(before["versions"], now["versions"]) if "versions" in now else []
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(path, None, f"a broken file ({error})", "the settings of a run") from None
    if changes:
        raise MismatchError(
            f"{output} cannot be resumed, it was begun otherwise: {'; '.join(changes)}",
            "give what it was begun with, or --overwrite to begin again",
        )
    if versions:
        logger.warning(f"resuming, the last bits may differ: {'; '.join(versions)}")


def _compared(told: Mapping[str, Any]) -> dict[str, Any]:
    compared = {name: value for name, value in told.items() if name not in NOT_COMPARED}
    for name in FREE.keys() & compared.keys():
        free = FREE[name]
        compared[name] = {key: v for key, v in compared[name].items() if key not in free}
    return compared


def _write(output: Path, told: Mapping[str, Any]) -> None:
    with whole_binary(output / TOLD) as handle:
        handle.write(orjson.dumps(told, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


@dataclass(frozen=True)
class TrainingResult:
    """What a run did.

    Attributes:
        steps: of the whole run.
        first_step: the step that it started or resumed at.
        loss: the last one of the log.
        best: the best validation.
        speed: None where nothing was left to train.
    """

    steps: int
    first_step: int
    loss: float | None
    best: float | None = None
    speed: Speed | None = None


@dataclass(frozen=True)
class Trained:
    """What a run trains.

    Attributes:
        model: its weights.
        step: a batch -> gradients.
        save: writes the model into a folder.
        load: fills the model from a folder that `save` wrote.
    """

    model: nn.Module
    step: Step
    save: Callable[[Path], None]
    load: Callable[[Path], None]


def train(
    output: Path,
    trained: Trained,
    batches: Any,
    optimizer: OptimizerSettings,
    told: Mapping[str, Any],
    *,
    device: torch.device,
    seed: int,
    resume: bool,
    validation: ValidationSettings = ValidationSettings(),  # noqa: B008  (frozen)
    measure: Callable[[], Mapping[str, float]] | None = None,
    keep_steps: tuple[int, ...] = (),
) -> TrainingResult:
    """Train over batches in the folder of a run, and write the model there.

    Args:
        output: the run's folder.
        trained: model and step.
        batches: a dataset of steps, with `steps_per_epoch`.
        optimizer: how long, how fast, how often.
        told: what training.json says.
        device: where to train.
        seed: of dropout.
        resume: continue from the last checkpoint.
        validation: how often, and what is best.
        measure: validates; None for no validation.
        keep_steps: steps after which the weights are kept.

    Raises:
        DenserkError: training diverged.
        OutputError: a file cannot be written.
    """
    metric = validation.best_by
    best = metric and Best(output / BEST, trained.save, metric, validation.early_stopping)
    trainer = Trainer(
        trained.model,
        trained.step,
        batches,
        optimizer,
        folder=output / CHECKPOINTS,
        device=device,
        seed=seed,
        steps_per_epoch=batches.steps_per_epoch,
        save=trained.save,
        load=trained.load,
        validate=measure,
        eval_steps=validation.eval_steps or batches.steps_per_epoch,
        best=best or None,
        kept=keep_steps,
        kept_folder=output / STEPS,
        logs=output / LOGS,
    )
    trainer.run("training", resume=resume)
    if world()[0] == 0:
        finish(output, trained.save, told, trainer.history, keep_best=best is not None)
    speed = trainer.speed()
    if speed is not None:
        logger.info(str(speed))
    values = [] if metric is None else values_of(trainer.history, metric)
    return TrainingResult(
        steps=trainer.step_number,
        first_step=trainer.first_step,
        loss=trainer.last_loss,
        best=values[best_of(values, metric)] if metric is not None and values else None,
        speed=speed,
    )


def finish(
    output: Path,
    save: Callable[[Path], None],
    told: Mapping[str, Any],
    history: list[dict[str, Any]],
    *,
    keep_best: bool,
) -> None:
    """Writes the model, the best one where one was kept; then the log and its curves.

    Raises:
        OutputError: they cannot be written.
    """
    best = output / BEST
    if keep_best and best.is_dir():
        files = sorted(item for item in best.rglob("*") if item.is_file())
        for item in sorted(files, key=lambda file: file.name == "config.json"):  # last, as saved
            with item.open("rb") as source, whole_binary(output / item.relative_to(best)) as out:
                shutil.copyfileobj(source, out)
    else:
        save(output)
    _write(output, {**told, "log": history})
    if installed("matplotlib"):
        draw(history, output / CURVES)
    else:
        logger.info("no curves: matplotlib is not installed (pip install matplotlib)")
