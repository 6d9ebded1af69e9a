"""A training run: the folder in which it works, and the folder of its model beside it.

OUT.training has what is not part of the model, and stays when the model is complete:

checkpoints/        to resume from
best/               the best weights so far, where a measure decides
steps/              weights after chosen steps
start/              the randomly initialised model that a run with --architecture starts from
training-data/      tokenised once; dev-data/ likewise; guide-data/: by the guide's tokenizer
logs/               TensorBoard's files
training.json       settings and versions
config.yaml         the resolved config, for --config

OUT, the folder of the model, appears whole at the end, and can be shared as it is. It also says how
the model was trained, for readers and for `denserk reproduce`:

training.json       settings, versions, the checksums of the data, and the log
training.png        training curves
config.yaml         the resolved config, for --config

Older versions kept all of it in OUT. Their unfinished runs are resumed: see `_adopt_older_run`.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
import torch
import transformers
import yaml
from transformers import TrainerControl, TrainerState, TrainingArguments, set_seed
from transformers.integrations import integration_utils as trackers

from denserk.config import recorded
from denserk.config.encoding import Dtype
from denserk.config.finetuning import FinetuneRun
from denserk.config.pretraining import PretrainRun, PretrainSettings
from denserk.config.training import FinetuneSettings, ValidationSettings
from denserk.errors import MismatchError, MissingExtraError, UsageError
from denserk.io.claims import NO_INPUTS
from denserk.io.durability import flush_names, make_folder
from denserk.io.file_errors import write_errors
from denserk.io.manifest import TRAINING_RECORD, Kind, differences, read_manifest, training_record
from denserk.io.outputs import (
    BEST,
    CHECKPOINTS,
    LOGS,
    MODEL_CONFIG,
    TAKEN,
    claim,
    discard_replaced,
    is_free,
    named_paths,
    prepare_folder,
    reject_occupied,
    training_folder,
    whole_folder,
)
from denserk.io.outputs import DATA as DATA
from denserk.io.outputs import DEV_DATA as DEV_DATA
from denserk.io.outputs import GUIDE_DATA as GUIDE_DATA
from denserk.io.outputs import START as START
from denserk.io.outputs import WORK_FOLDERS as WORK_FOLDERS
from denserk.io.written_files import whole_binary, whole_text
from denserk.models import devices, distributed
from denserk.plots import save_if_installed
from denserk.training.card import extend_card
from denserk.training.curves import draw_curves
from denserk.training.steps import CHANCE
from denserk.training.trainer import Prepared, Trainer, Training, measures_of
from denserk.version import __version__

logger = logging.getLogger(__name__)

# files of both folders (see above)
RECORD = TRAINING_RECORD
CURVES = "training.png"
CONFIG = "config.yaml"

# Settings that do not change the result, and may differ when a run is resumed.
FREE_SETTINGS = {
    "output",
    "device",
    "resume",
    "overwrite",
    "tokenize_to",
    "keep_checkpoints",
    "keep_steps",
    "num_workers",
    "report_to",
    "license",
    "gradient_checkpointing",
}
# Sections of training.json that are no settings, and are not compared when a run is resumed.
SECTIONS_NOT_COMPARED = ("preset", "versions", "processes", "data", "log")
NEAR_CHANCE = 0.01  # a loss this close to that of chance, as a share of it, stays at chance
FALLEN = 0.95  # a loss below this share of its first value has fallen
# What to do about a part of a vector that learns nothing, by its name.
DEAD_PART_HINTS = {
    "agg": "start from weights with a trained masked-language-model head (denserk pretrain "
    "--objective mlm, for longer), or give --mlm-head none",
    "cls": "raise --lr, or train for longer",
}


@dataclass(frozen=True)
class TrainingResult:
    """What a run did."""

    steps: int  # in all, those before it resumed included
    first_step: int  # steps that were done when it started or resumed
    loss: float | None  # the last in the log
    best: float | None = None  # value of --best-by
    # the last validation by measure, and the number of steps before it
    validation: Mapping[str, float] = field(default_factory=dict)
    validated_step: int = 0


def log_result(result: TrainingResult, output: str, best_by: str | None = None) -> None:
    """Log the steps of a run, its last loss, and its validation.

    Of the validation it is the best value of the measure `best_by`, or all of the last one.
    """
    facts = ["1 step" if result.steps == 1 else f"{result.steps:,} steps"]
    if result.first_step == result.steps:
        facts = ["finished before"]
    if result.loss is not None:
        facts.append(f"loss {result.loss:.4f}")
    if result.best is not None:
        facts.append(f"best {best_by} {result.best:.4f}")
    elif result.validation:
        measures = ", ".join(f"{name} {value:.4f}" for name, value in result.validation.items())
        if result.validated_step != result.steps:
            measures = f"at step {result.validated_step:,} {measures}"
        facts.append(measures)
    logger.info(f"{output}: {', '.join(facts)}")


def train(run: FinetuneRun | PretrainRun, build: Callable[[Path], Training]) -> TrainingResult:
    """Train in the folder beside the output of a run; write the model, complete, to the output.

    `build` takes the folder beside it and returns model, step and data. A model to start from is
    loaded before that folder is touched, so that an unsuitable one costs nothing; without one,
    `build` writes a new model to the folder, and is called once the folder is there.
    """
    command = _command_of(run)
    settings = command.settings
    output = Path(settings.output)
    work = training_folder(output)
    device = devices.use_device(settings.device)
    devices.choose_dtype(run.optimizer.dtype, device)  # rejects float16 on a CPU
    reports = Reports(run.optimizer.report_to, output, work / LOGS)
    with distributed.process_group(settings.device), ExitStack() as claims:
        suggest_bfloat16(run.optimizer.dtype, device)
        set_seed(command.seed)  # of weights that `build` initialises randomly
        training = _build_beside_folder(run, build, work, claims)
        record = _record_of(run, training)
        prepared = _prepare_data(training, work, record)
        record["data"] = _origins_of_data(work, command.data_kind)
        reports.arguments.settings = _as_written(output, record)
        if _is_main_process():
            _write_start(work, run, record)
        trainer = Trainer(
            training,
            prepared,
            run.optimizer,
            work,
            device,
            command.seed,
            validation=command.validation,
            report=partial(reports.send, "on_log"),
            # a preset's warm-up is kept, also for less data; and earlier versions, whose runs can
            # be finished, did not check it
            warmup_must_fit=not (run.warmup_is_of_preset or is_resumable(work)),
        )
        reports.send("on_train_begin")
        trainer.run(resume=settings.resume)
        reports.send("on_train_end")
        if _is_main_process():
            _write_model(output, run, training, trainer, record)
            draw = partial(draw_curves, trainer.history)
            save_if_installed(draw, "training curves", output / CURVES)
            warn_of_dead_parts(trainer.history)
        speed = trainer.speed()  # on all processes
        if speed:
            logger.info(speed)
        return _result_of(trainer)


def _is_main_process() -> bool:
    """Return whether this is the process that writes."""
    rank, _ = distributed.world()
    return rank == 0


def _build_beside_folder(
    run: FinetuneRun | PretrainRun,
    build: Callable[[Path], Training],
    work: Path,
    claims: ExitStack,
) -> Training:
    """Build the training of a run, and create the folder of its work, which `claims` locks.

    A given model is loaded before the folder is touched; see `train`.
    """
    settings = _command_of(run).settings
    training = None
    if settings.model is not None:
        training = build(work)
    if _is_main_process():
        claims.enter_context(_claimed(work, run, settings))
        _start_folder(work, Path(settings.output), settings)
    if training is None:
        training = build(work)
    return training


def _prepare_data(training: Training, work: Path, record: Mapping[str, Any]) -> Prepared:
    """Prepare the data of a training; other settings than those of a run to resume are rejected."""
    if _is_main_process() and is_resumable(work):
        reject_changes(work, record)  # before data is prepared again
    return distributed.main_process_first(partial(training.prepare, work))


def _write_start(work: Path, run: FinetuneRun | PretrainRun, record: Mapping[str, Any]) -> None:
    """Write the settings by which a run is resumed, and remove what its folder replaces."""
    _write_record(work, record, work)
    _write_config(work, run, work)
    discard_replaced(work)  # from here on there is work to resume


def _result_of(trainer: Trainer) -> TrainingResult:
    """Return what a run did."""
    losses = trainer.logged("loss")
    last_validation = trainer.final_validation
    return TrainingResult(
        steps=trainer.step_number,
        first_step=trainer.first_step,
        loss=losses[-1] if losses else None,
        best=trainer.best,
        validation=measures_of(last_validation),
        validated_step=last_validation.get("step", 0),
    )


def _write_model(
    output: Path,
    run: FinetuneRun | PretrainRun,
    training: Training,
    trainer: Trainer,
    record: Mapping[str, Any],
) -> None:
    """Write the folder of the model, with its card and how it was trained; it appears whole."""
    counts = read_manifest(trainer.folder / DATA, _command_of(run).data_kind).contents
    record_for_card = {**record, "counts": counts, "steps": trainer.step_number}
    with whole_folder(output, overwrite=True) as folder:
        _save_best(training, trainer, folder)
        extend_card(folder, output, run, record_for_card, trainer.final_validation)
        _write_record(folder, {**record, "log": trainer.history}, output)
        _write_config(folder, run, output)


def suggest_bfloat16(dtype: Dtype, device: torch.device) -> None:
    """Log which option trains faster, if a GPU is to train in float32 and has bfloat16."""
    if device.type == "cpu" or dtype is not Dtype.FLOAT32:
        return
    if devices.computes_in(Dtype.BFLOAT16, device):
        logger.info(f"training in float32: add --bf16 to train faster on {device}")


class _Command(NamedTuple):
    """What differs between the commands that train."""

    name: str
    settings: FinetuneSettings | PretrainSettings
    data_kind: Kind
    seed: int
    validation: ValidationSettings


def _command_of(run: FinetuneRun | PretrainRun) -> _Command:
    """Return the command of a run; a pre-training has no validation."""
    if isinstance(run, FinetuneRun):
        seed = run.sampling.seed
        return _Command("finetune", run.finetune, Kind.TRAINING, seed, run.validation)
    seed = run.masking.seed
    return _Command("pretrain", run.pretrain, Kind.PRETRAINING, seed, ValidationSettings())


def _claimed(
    work: Path, run: FinetuneRun | PretrainRun, settings: FinetuneSettings | PretrainSettings
) -> AbstractContextManager[None]:
    """Return a context that locks the folder of a run's work, and cleans up after an error.

    The command itself does so for the output.
    """
    inputs = []
    for section in run.as_json().values():
        if isinstance(section, Mapping):
            inputs += [value for name, value in section.items() if name not in NO_INPUTS]
    return claim(
        [str(work)],
        inputs=named_paths(inputs),
        overwrite=settings.overwrite,
        resume=settings.resume,
    )


def _start_folder(work: Path, output: Path, settings: FinetuneSettings | PretrainSettings) -> None:
    """Create the folder of a run, or keep that of a run to resume; check that of its model."""
    if (work / MODEL_CONFIG).exists():
        message = f"{work} is a model; the training of {output} needs a folder of this name"
        raise UsageError(message, "choose another output")
    reject_occupied(output, overwrite=settings.overwrite or settings.resume)
    if settings.resume:
        _adopt_older_run(work, output)
        if is_free(work) and not is_free(output):
            message = f"{output} is there, but not {work}, from which its training resumes"
            raise UsageError(message, "add --overwrite to train again, or choose another output")
    if is_resumable(work) and not (settings.resume or settings.overwrite):
        message = f"{work} holds the checkpoints of an earlier training of {output}"
        raise UsageError(message, TAKEN)
    prepare_folder(work, overwrite=settings.overwrite, resume=settings.resume, restorable=True)
    if not (work / RECORD).exists():  # from now on the folder is known to be denserk's
        _write_json(work / RECORD, {"versions": {"denserk": __version__}})


def _adopt_older_run(work: Path, output: Path) -> None:
    """Move the folders of a run's work to `work`, if an older version kept them in the output.

    A command that is killed meanwhile leaves the rest for the next one.
    """
    record = training_record(output)
    if record is None:
        return
    folders = [output / name for name in WORK_FOLDERS if (output / name).is_dir()]
    is_finished = "log" in record
    if is_finished and not folders:  # a model as this version writes it
        return
    with write_errors(work):
        make_folder(work)
        if not (work / RECORD).exists():
            _write_record(work, record, work)
        for folder in folders:
            target = work / folder.name
            if not target.exists():
                folder.replace(target)
        flush_names(work)
        flush_names(output)
    logger.info(f"{output} is of an older version: what is not part of the model is now in {work}")


def _record_of(run: FinetuneRun | PretrainRun, training: Training) -> dict[str, Any]:
    """Return the versions, processes and settings of a run, for training.json."""
    versions = {
        "denserk": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    _, process_count = distributed.world()
    record = {"versions": versions, "processes": process_count, **run.as_json()}
    return {**record, **training.resolved}


def _origins_of_data(work: Path, kind: Kind) -> dict[str, Any]:
    """Return what the training data and held-out data were prepared from, by their folders."""
    origins = {}
    for name in (DATA, DEV_DATA):
        if (work / name).is_dir():
            origins[name] = read_manifest(work / name, kind).made_from
    return origins


def _write_config(folder: Path, run: FinetuneRun | PretrainRun, final_folder: Path) -> None:
    """Write the resolved config, for --config; names are relative to `final_folder`."""
    config = _as_written(final_folder, run.config())
    with whole_text(folder / CONFIG) as out:
        out.write(f"# denserk {_command_of(run).name} --config THIS_FILE --output FOLDER\n")
        yaml.safe_dump(config, out, sort_keys=False, default_flow_style=None, width=100)


def _save_best(training: Training, trainer: Trainer, folder: Path) -> None:
    """Save the model with the best weights, or the last ones where no measure decides."""
    if trainer.best is not None:
        training.load(trainer.folder / BEST)
    trainer.check_weights()
    training.save(folder)


def share_of_batches(run: FinetuneRun | PretrainRun) -> dict[str, Any]:
    """Return the arguments that cut prepared data into this process's batches."""
    rank, process_count = distributed.world()
    # --max-steps counts updates of the weights; a step of the data is a batch
    max_batches = run.optimizer.max_steps
    if max_batches is not None:
        max_batches *= run.optimizer.gradient_accumulation_steps
    return {
        "epochs": run.optimizer.epochs,
        "max_steps": max_batches,
        "rank": rank,
        "world": process_count,
    }


def is_resumable(work: Path) -> bool:
    """Whether the folder in which a run works has a checkpoint."""
    return any((work / CHECKPOINTS).glob("checkpoint-*"))


def reject_changes(work: Path, record: Mapping[str, Any]) -> None:
    """Raise a MismatchError where a run to resume was started with other settings.

    Other versions of denserk, torch or transformers are only a warning.
    """
    old_record = training_record(work) or {}
    new_record = orjson.loads(orjson.dumps(record))  # with JSON's types, as the old one
    changes = differences(_compared(old_record), _compared(new_record))
    if changes:
        message = f"{work} was started with other settings: {'; '.join(changes)}"
        raise MismatchError(message, "resume with those settings, or start again with --overwrite")
    old_versions = {"versions": old_record.get("versions")}
    new_versions = {"versions": new_record.get("versions")}
    changes = differences(old_versions, new_versions)
    if changes:
        logger.warning(f"resuming, the last bits may differ: {'; '.join(changes)}")


def _compared(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a training.json that decide the result, by section."""
    compared: dict[str, dict[str, Any]] = {}
    for section, settings in record.items():
        if section in SECTIONS_NOT_COMPARED or not isinstance(settings, Mapping):
            continue
        compared[section] = {}
        for name, value in settings.items():
            if name not in FREE_SETTINGS:
                compared[section][name] = value
    return compared


def _as_written(folder: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings for a file in a folder, to which its names of inputs are relative."""
    names = recorded.change_names(values, partial(recorded.record_name, folder=folder))
    return {recorded.MARK: recorded.RELATIVE, **names}


def _write_record(folder: Path, record: Mapping[str, Any], final_folder: Path) -> None:
    """Write training.json to `folder`; names are relative to `final_folder`, which it becomes."""
    _write_json(folder / RECORD, _as_written(final_folder, record))


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    with whole_binary(path) as handle:
        handle.write(orjson.dumps(values, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def warn_of_dead_parts(history: Sequence[Mapping[str, Any]]) -> None:
    """Warn of parts whose loss is at chance in the last half of the log while another falls."""
    entries = [entry for entry in history if "loss" in entry]
    if not entries:
        return
    last_entries = entries[len(entries) // 2 :]
    for part, hint in DEAD_PART_HINTS.items():
        if _stays_at_chance(part, last_entries) and _another_fell(part, entries[0], last_entries):
            logger.warning(
                f"the {part} part has learned nothing: its loss stayed at chance (loss_{part} and "
                f"chance_{part} in {RECORD}) while another fell; {hint}"
            )


def _stays_at_chance(part: str, entries: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the loss of a part is that of equal scores in each entry of the log.

    False without such a part, or where chance is 0, to which nothing is close.
    """
    for entry in entries:
        chance = entry.get(f"{CHANCE}{part}", 0)
        margin = abs(chance) * NEAR_CHANCE
        distance = abs(entry.get(f"loss_{part}", 0) - chance)
        is_at_chance = margin > 0 and distance < margin
        if not is_at_chance:
            return False
    return True


def _another_fell(
    part: str, first_entry: Mapping[str, Any], last_entries: Sequence[Mapping[str, Any]]
) -> bool:
    """Return whether another loss than that of a part, or their sum, fell from the first entry."""
    for name in last_entries[-1]:
        if name.startswith("loss") and name != f"loss_{part}":
            mean = np.mean([entry.get(name, 0) for entry in last_entries])
            if mean < FALLEN * first_entry.get(name, 0):
                return True
    return False


class _Arguments(TrainingArguments):
    """What transformers' integrations read of a run: its folder and name, denserk's settings."""

    settings: Mapping[str, Any]  # set once the run's record is complete

    def __post_init__(self) -> None:
        """Prepare no device: denserk's loop does."""

    def to_dict(self) -> dict[str, Any]:
        """Return the settings of the run."""
        return dict(self.settings)


class Reports:
    """Sends events to experiment trackers by transformers' integrations, from the main process.

    `names` are those of --report-to; `logs` is the folder of TensorBoard's files.
    """

    def __init__(self, names: Sequence[str], output: Path, logs: Path) -> None:
        self.arguments = _Arguments(output_dir=str(output), run_name=output.name)
        try:
            classes = trackers.get_reporting_integration_callbacks(list(names))  # type: ignore[no-untyped-call]
            self._callbacks = [callback_class() for callback_class in classes]
        except ValueError as error:
            raise UsageError(f"--report-to {error}") from None
        except (RuntimeError, ImportError) as error:  # its message names the package to install
            raise MissingExtraError(f"--report-to {', '.join(names)}: {error}") from None
        for callback in self._callbacks:
            if isinstance(callback, trackers.TensorBoardCallback) and callback.logging_dir is None:
                callback.logging_dir = str(logs)

    def send(self, event: str, step: int = 0, **options: Any) -> None:
        """Call a method of transformers' callbacks: on_train_begin, on_log or on_train_end.

        `options` are its further arguments: `logs` of on_log.
        """
        if not _is_main_process():
            return
        for callback in self._callbacks:
            state = TrainerState(global_step=step)
            control = TrainerControl()
            getattr(callback, event)(self.arguments, state, control, model=None, **options)
