"""The output folder of a training run.

The model is written into the folder itself. Beneath it:

checkpoints/        to resume from
best/               the best weights so far, where a measure decides
steps/              weights after chosen steps
start/              the randomly initialised model that a run with --architecture starts from
training-data/      tokenised once; dev-data/ likewise
logs/               TensorBoard's files
training.json       settings and versions from the start; the log is added at the end
training.png        training curves
config.yaml         the resolved config, for --config
"""

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import torch
import transformers
import yaml

from denserk import __version__
from denserk.errors import InputError, MismatchError, UsageError
from denserk.io.files import whole_binary, write_lines
from denserk.io.manifest import Kind, differences, read_manifest
from denserk.io.outputs import foreign_items, prepare_folder
from denserk.io.plots import look, new_axes, save_if_installed
from denserk.training.distributed import world
from denserk.training.trainer import BEST, CHECKPOINTS, LOGS, STEPS, Speed, Trainer

logger = logging.getLogger(__name__)

DATA, DEV_DATA, START = "training-data", "dev-data", "start"
RECORD, CURVES = "training.json", "training.png"
# Settings that do not change the result, and may differ when a run is resumed.
FREE = {
    "finetune": ("output", "device", "resume", "overwrite"),
    "pretrain": ("output", "device", "resume", "overwrite", "tokenize_to"),
    "optimizer": ("keep_checkpoints", "keep_steps", "num_workers"),
}
NOT_COMPARED = ("preset", "versions", "processes", "log")
# Points up to which a curve marks each.
FEW = 40


def make_ready(output: Path, *, resume: bool, overwrite: bool) -> None:
    """Create the folder of a run; `overwrite` removes what an earlier run left.

    Raises:
        UsageError: see `denserk.io.outputs.refuse_occupied`.
        OutputError: it cannot be created or cleared.
    """
    prepare_folder(output, overwrite=overwrite, resume=resume)
    if not (output / RECORD).exists():  # from now on the folder is known to be denserk's
        _write(output, {"versions": {"denserk": __version__}})


def record_of(
    settings: Mapping[str, Any], output: Path, kind: Kind = Kind.TRAINING
) -> dict[str, Any]:
    """Return the contents of training.json: settings, fingerprints of the data, versions.

    Args:
        settings: as JSON, by settings class.
        output: the run's folder, with its prepared data.
        kind: of the data.
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
    return {"versions": versions, "processes": world()[1], **settings, "data": data}


def start(output: Path, record: Mapping[str, Any]) -> None:
    """Write training.json; a run that is resumed must have the settings it was started with.

    Raises:
        MismatchError: the checkpoint was written with other settings or data.
        InputError: the training.json beside it is broken.
    """
    if is_resumable(output):
        refuse_changes(output, record)
    else:  # a run that never came to a checkpoint may have left these
        left = [output / name for name in (BEST, STEPS, LOGS)]
        foreign = [item for item in foreign_items(output) if any(map(item.is_relative_to, left))]
        if foreign:
            raise UsageError(f"{foreign[0]}: denserk did not write it", "remove it yourself")
        for folder in left:
            shutil.rmtree(folder, ignore_errors=True)
    _write(output, record)


def write_config(folder: Path, command: str, config: Mapping[str, Any]) -> None:
    """Write config.yaml: the resolved settings of a run, which `--config` takes."""
    plain = orjson.loads(orjson.dumps(config))
    text = yaml.safe_dump(plain, sort_keys=False, default_flow_style=None, width=100)
    note = f"# denserk {command} --config THIS_FILE --output FOLDER\n"
    write_lines(folder / "config.yaml", text.splitlines(keepends=True), note)


def is_resumable(output: Path) -> bool:
    """Whether the folder has a checkpoint."""
    return any((output / CHECKPOINTS).glob("checkpoint-*"))


def refuse_changes(output: Path, record: Mapping[str, Any]) -> None:
    """Compare a record, or a part of it, with that of the run to resume.

    Raises:
        MismatchError: they differ in what changes the result.
        InputError: the run's training.json is broken.
    """
    path = output / RECORD
    if not path.is_file():
        return
    try:
        now = orjson.loads(orjson.dumps(record))
        found = orjson.loads(path.read_bytes())
        before = {name: value for name, value in found.items() if name in now}
        changes = differences(_compared(before), _compared(now))
        versions = differences(before["versions"], now["versions"]) if "versions" in now else []
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(path, None, f"a broken file ({error})", "the settings of a run") from None
    if changes:
        raise MismatchError(
            f"{output} cannot be resumed, it was started with other settings: {'; '.join(changes)}",
            "give the settings that it was started with, or --overwrite to start again",
        )
    if versions:
        logger.warning(f"resuming, the last bits may differ: {'; '.join(versions)}")


def _compared(record: Mapping[str, Any]) -> dict[str, Any]:
    compared = {name: value for name, value in record.items() if name not in NOT_COMPARED}
    for name in FREE.keys() & compared.keys():
        free = FREE[name]
        compared[name] = {key: v for key, v in compared[name].items() if key not in free}
    return compared


def _write(output: Path, record: Mapping[str, Any]) -> None:
    with whole_binary(output / RECORD) as handle:
        handle.write(orjson.dumps(record, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


@dataclass(frozen=True)
class TrainingResult:
    """What a run did: all its steps, the first one done now, the last loss, the best measure.

    `speed` is None where nothing was left to train.
    """

    steps: int
    first_step: int
    loss: float | None
    best: float | None = None
    speed: Speed | None = None


def train(trainer: Trainer, record: Mapping[str, Any], *, resume: bool) -> TrainingResult:
    """Train in the folder of a run; write the model, training.json and the curves there.

    Raises:
        DenserkError: training diverged.
        OutputError: a file cannot be written.
    """
    trainer.run(resume=resume)
    best, history = trainer.best, trainer.history
    if world()[0] == 0:
        save = trainer.trained.save
        finish(trainer.output, save, record, history, keep_best=best is not None)
    speed = trainer.speed()
    if speed is not None:
        logger.info(str(speed))
    return TrainingResult(
        steps=trainer.step_number,
        first_step=trainer.first_step,
        loss=trainer.last_loss,
        best=None if best is None else best.value(history),
        speed=speed,
    )


def finish(
    output: Path,
    save: Callable[[Path], None],
    record: Mapping[str, Any],
    history: list[dict[str, Any]],
    *,
    keep_best: bool,
) -> None:
    """Write the model, the best one where one was kept; then the log and its curves."""
    best = output / BEST
    if keep_best and best.is_dir():
        files = sorted(item for item in best.rglob("*") if item.is_file())
        for item in sorted(files, key=lambda file: file.name == "config.json"):  # last, as saved
            with item.open("rb") as source, whole_binary(output / item.relative_to(best)) as out:
                shutil.copyfileobj(source, out)
    else:
        save(output)
    _write(output, {**record, "log": history})
    save_if_installed(lambda: draw_curves(history), "training curves", output / CURVES)


def draw_curves(history: Sequence[Mapping[str, Any]]) -> Any:
    """Plot the log of a run, one quantity below the other: loss, learning rate, validation."""

    def names(prefix: str) -> list[str]:
        return list(dict.fromkeys(n for entry in history for n in entry if n.startswith(prefix)))

    parts, dev = names("loss_"), names("eval_")
    rows = [["loss", *(parts if len(parts) > 1 else [])], ["learning_rate"], *([n] for n in dev)]
    grid = new_axes(7, 2.4 * len(rows), rows=len(rows), sharey=False)
    for axes, quantities in zip(grid, rows, strict=True):
        for number, name in enumerate(quantities):
            entries = [entry for entry in history if name in entry]
            points = [entry["step"] for entry in entries], [entry[name] for entry in entries]
            shape = look(number) | ({} if len(entries) <= FEW else {"marker": ""})
            axes.plot(*points, label=name.removeprefix("loss_"), lw=1.4, ms=4, **shape)
        axes.set_ylabel(quantities[0].removeprefix("eval_").replace("_", " "))
    if len(rows[0]) > 1:
        grid[0].figure.legend(handles=grid[0].lines, loc="outside upper left", ncols=4)
    grid[-1].set_xlabel("step")
    return grid[0]
