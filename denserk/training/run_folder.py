"""A training run in its output folder.

The model is written into the folder itself. Beneath it:

checkpoints/        to resume from
best/               the best weights so far, where a measure decides
steps/              weights after chosen steps
start/              the randomly initialised model that a run with --architecture starts from
training-data/      tokenised once; dev-data/ likewise; guide-data/: by the guide's tokenizer
logs/               TensorBoard's files
training.json       settings and versions from the start; the log is added at the end
training.png        training curves
config.yaml         the resolved config, for --config
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
import transformers
import yaml
from huggingface_hub import EvalResult, ModelCard
from transformers import TrainerControl, TrainerState, TrainingArguments, set_seed
from transformers.integrations import integration_utils as trackers

from denserk.config import recorded
from denserk.config.pretraining import PretrainRun, PretrainSettings
from denserk.config.training import FinetuneRun, FinetuneSettings, ValidationSettings
from denserk.errors import MismatchError, MissingExtraError, UsageError
from denserk.io.files import display_name, whole_binary, whole_text
from denserk.io.manifest import TRAINING_RECORD, Kind, differences, read_manifest, training_record
from denserk.io.outputs import discard_replaced, prepare_folder
from denserk.io.plots import look, new_axes, save_if_installed
from denserk.io.tables import HUB
from denserk.models import devices
from denserk.models.model_folder import CARD_FILE, card_template
from denserk.training.trainer import BEST, CHECKPOINTS, Trainer, Training
from denserk.version import __version__

logger = logging.getLogger(__name__)

DATA, DEV_DATA, START, LOGS = "training-data", "dev-data", "start", "logs"
RECORD, CURVES, CONFIG = TRAINING_RECORD, "training.png", "config.yaml"
# Settings that do not change the result, and may differ when a run is resumed.
FREE = {
    *("output", "device", "resume", "overwrite", "tokenize_to", "keep_checkpoints", "keep_steps"),
    *("num_workers", "report_to", "gradient_checkpointing"),
}
NOT_COMPARED = ("preset", "versions", "processes", "data", "log")
NEAR, FALLEN = 0.01, 0.95  # of the loss at chance; of another loss's first value
# What to do about a part of a vector that learns nothing.
DEAD = {
    "agg": "start from weights with a trained masked-language-model head (denserk pretrain "
    "--objective mlm, for longer), or give --mlm-head none",
    "cls": "raise --lr, or train for longer",
}


@dataclass(frozen=True)
class TrainingResult:
    """What a run did."""

    steps: int  # in all
    first_step: int  # done when it started or resumed
    loss: float | None  # the last
    best: float | None = None  # value of --best-by


def train(run: FinetuneRun | PretrainRun, build: Callable[[Path], Training]) -> TrainingResult:
    """Train in the output folder of a run; write the model, training.json and the curves there.

    `build` takes the output folder and returns model, step and data. A model to start from is
    loaded before the folder is touched, so that an unsuitable one costs nothing.
    """
    if isinstance(run, FinetuneRun):
        command, kind, seed = "finetune", Kind.TRAINING, run.sampling.seed
    else:
        command, kind, seed = "pretrain", Kind.PRETRAINING, run.masking.seed
    settings: FinetuneSettings | PretrainSettings = vars(run)[command]
    output = Path(settings.output)
    device = devices.choose_device(settings.device)
    devices.choose_dtype(run.optimizer.dtype, device)
    reports = Reports(run.optimizer.report_to, output)
    with devices.process_group(settings.device):
        main = devices.world()[0] == 0
        set_seed(seed)
        training = None if settings.model is None else build(output)
        if main:
            prepare_folder(
                output, overwrite=settings.overwrite, resume=settings.resume, restorable=True
            )
            if not (output / RECORD).exists():  # from now on the folder is known to be denserk's
                _write_json(output / RECORD, {"versions": {"denserk": __version__}})
        training = training or build(output)
        packages = {"torch": torch.__version__, "transformers": transformers.__version__}
        versions = {"denserk": __version__, **packages}
        record = {"versions": versions, "processes": devices.world()[1], **run.as_json()}
        record |= training.resolved
        if main and is_resumable(output):
            refuse_changes(output, record)  # before data is prepared again
        data = devices.main_process_first(partial(training.prepare, output))
        folders = [name for name in (DATA, DEV_DATA) if (output / name).is_dir()]
        record["data"] = {name: read_manifest(output / name, kind).made_from for name in folders}
        reports.arguments.settings = _as_written(output, record)
        if main:
            _write_record(output, record)
            config = _as_written(output, run.config())
            with whole_text(output / CONFIG) as out:
                out.write(f"# denserk {command} --config THIS_FILE --output FOLDER\n")
                yaml.safe_dump(config, out, sort_keys=False, default_flow_style=None, width=100)
            discard_replaced(output)  # from here on there is work to resume
        report = partial(reports.send, "on_log")
        checks = getattr(run, "validation", ValidationSettings())
        trainer = Trainer(
            training,
            data,
            run.optimizer,
            output,
            device,
            seed,
            validation=checks,
            report=report,
            # a run that was started by an earlier version can be finished
            warmup_must_fit=not (run.warmup_is_of_preset or is_resumable(output)),
        )
        reports.send("on_train_begin")
        trainer.run(resume=settings.resume)
        reports.send("on_train_end")
        if main:
            if trainer.best is not None:
                training.load(output / BEST)
            trainer.check_weights()
            training.save(output)
            if isinstance(run, FinetuneRun):
                counts = read_manifest(output / DATA, kind).contents
                done = {**record, "counts": counts, "steps": trainer.step_number}
                extend_card(output, done, trainer.kept)
            _write_record(output, {**record, "log": trainer.history})
            curves = partial(draw_curves, trainer.history)
            save_if_installed(curves, "training curves", output / CURVES)
            warn_of_dead_parts(trainer.history)
        if speed := trainer.speed():
            logger.info(speed)
        loss = next(reversed(trainer.logged("loss")), None)
        return TrainingResult(trainer.step_number, trainer.first_step, loss, trainer.best)


def share_of_batches(run: FinetuneRun | PretrainRun) -> dict[str, Any]:
    """Return the arguments that cut prepared data into this process's batches."""
    (rank, size), steps = devices.world(), run.optimizer.max_steps
    steps = steps and steps * run.optimizer.gradient_accumulation_steps
    return {"epochs": run.optimizer.epochs, "max_steps": steps, "rank": rank, "world": size}


def is_resumable(output: Path) -> bool:
    """Whether the folder has a checkpoint."""
    return any((output / CHECKPOINTS).glob("checkpoint-*"))


def refuse_changes(output: Path, record: Mapping[str, Any]) -> None:
    """Raise a MismatchError where a run to resume was started with other settings."""
    before = training_record(output) or {}
    now = orjson.loads(orjson.dumps(record))
    changes = differences(_compared(before), _compared(now))
    if changes:
        message = f"{output} was started with other settings: {'; '.join(changes)}"
        raise MismatchError(message, "resume with those settings, or start again with --overwrite")
    versions_before = {"versions": before.get("versions")}
    versions_now = {"versions": now.get("versions")}
    changes = differences(versions_before, versions_now)
    if changes:
        logger.warning(f"resuming, the last bits may differ: {'; '.join(changes)}")


def _compared(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that decide the result."""
    return {
        name: {key: value for key, value in part.items() if key not in FREE}
        for name, part in record.items()
        if name not in NOT_COMPARED and isinstance(part, Mapping)
    }


def _as_written(output: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings for a file in the output folder, to which its names are relative."""
    names = recorded.change_names(values, partial(recorded.record_name, folder=output))
    return {recorded.MARK: recorded.RELATIVE, **names}


def _write_record(output: Path, record: Mapping[str, Any]) -> None:
    _write_json(output / RECORD, _as_written(output, record))


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    with whole_binary(path) as handle:
        handle.write(orjson.dumps(values, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def warn_of_dead_parts(history: Sequence[Mapping[str, Any]]) -> None:
    """Warn of parts whose loss is at chance in the last half of the log while another falls."""
    entries = [entry for entry in history if "loss" in entry]
    first, last = entries[:1], entries[len(entries) // 2 :]
    for part, hint in DEAD.items() if last else ():
        pairs = [(e.get(f"loss_{part}", 0), e.get(f"chance_{part}", 0)) for e in last]
        stays = all(0 < abs(chance) * NEAR > abs(loss - chance) for loss, chance in pairs)
        others = [n for n in last[-1] if n.startswith("loss") and n != f"loss_{part}"]
        means = {name: np.mean([entry.get(name, 0) for entry in last]) for name in others}
        if stays and any(means[n] < FALLEN * first[0].get(n, 0) for n in others):
            logger.warning(
                f"the {part} part has learned nothing: its loss stayed at chance (loss_{part} and "
                f"chance_{part} in {RECORD}) while another fell; {hint}"
            )


def extend_card(folder: Path, record: Mapping[str, Any], measured: Mapping[str, Any]) -> None:
    """Add a run to the card of its model, if it has one: a cross-encoder has none.

    `record` has the settings by section, `counts` of the training data, and `steps`; `measured` is
    an entry of the log, whose measures have names that begin with `eval_`.
    """
    path = folder / CARD_FILE
    if not path.is_file():
        return
    card = ModelCard.load(path)
    train, validation = record["finetune"]["train_data"], record["validation"]
    names = (source.removeprefix(HUB).partition(":")[0] for source in filter(_is_on_hub, train))
    hub = dict.fromkeys("/".join(name.split("/")[:2]) for name in names)
    card.data.datasets = list(hub) or None
    results = {n.removeprefix("eval_"): v for n, v in measured.items() if n.startswith("eval_")}
    dev = display_name(validation["dev_corpus"] or validation["dev_data"] or "")
    if results:
        card.data.model_name = folder.resolve().name
        card.data.eval_results = [
            EvalResult("text-retrieval", "custom", dev, name, round(value, 4))
            for name, value in results.items()
        ]
    # without the folders of this machine
    shown = [source if _is_on_hub(source) else display_name(source) for source in train]
    about = {"sources": shown, "results": results, "dev": dev, "step": measured.get("step")}
    card.text += card_template("training_card.md").render(**record, **about)
    with whole_text(path) as out:
        out.write(str(card))


def _is_on_hub(source: str) -> bool:
    """Return whether training data is a dataset of the hub: hf:NAME may also be a folder."""
    name = source.removeprefix(HUB).partition(":")[0]
    return source.startswith(HUB) and not Path(name).exists()


def draw_curves(history: Sequence[Mapping[str, Any]]) -> Any:
    """Draw the log of a run in panels over the steps: loss, learning rate, each validation.

    Losses are smoothed over a tenth of the log, above the raw values in light colour.
    """
    names = list(dict.fromkeys(name for entry in history for name in entry))
    parts = [name for name in names if name.startswith("loss_")]
    dev = [[name] for name in names if name.startswith("eval_")]
    rows = [["loss", *(parts if len(parts) > 1 else [])], ["learning_rate"], *dev]
    heights = [2.4, *[1.1] * (len(rows) - 1)]
    grid = new_axes(5.5, 0.5 + sum(heights), len(rows), sharey=False, height_ratios=heights)
    for axes, quantities in zip(grid, rows, strict=True):
        for number, name in enumerate(quantities):
            steps, values = np.array([(e["step"], e[name]) for e in history if name in e]).T
            style, label = look(number), name.removeprefix("loss_")
            if axes is grid[0]:
                axes.plot(steps, values, color=style["color"], lw=0.8, alpha=0.3)
                window = np.ones(max(1, len(values) // 10))
                counts = np.convolve(np.ones(len(values)), window, "same")
                values = np.convolve(values, window, "same") / counts
                label = "total" if label == "loss" else label
            every = -(-len(steps) // 10)
            axes.plot(steps, values, label=label, lw=1.4, ms=4, markevery=every, **style)
        axes.set_ylabel(quantities[0].removeprefix("eval_").replace("_", " "))
    grid[1].ticklabel_format(axis="y", scilimits=(0, 0))
    if len(rows[0]) > 1:
        grid[0].legend(loc="upper right", ncols=2)
    grid[-1].set_xlabel("step")
    return grid[0]


class _Arguments(TrainingArguments):
    """What the integrations read of a run: its folder, and denserk's settings."""

    settings: Mapping[str, Any]

    def __post_init__(self) -> None:
        """Prepare no device: denserk's loop does."""

    def to_dict(self) -> dict[str, Any]:
        """Return the settings of the run."""
        return dict(self.settings)


class Reports:
    """Sends events to experiment trackers by transformers' integrations, from the main process."""

    def __init__(self, names: Sequence[str], output: Path) -> None:
        self.arguments = _Arguments(output_dir=str(output), run_name=output.name)
        try:
            kinds = trackers.get_reporting_integration_callbacks(list(names))  # type: ignore[no-untyped-call]
            self._callbacks = [kind() for kind in kinds]
        except ValueError as error:
            raise UsageError(f"--report-to {error}") from None
        except (RuntimeError, ImportError) as error:  # which names the package to install
            raise MissingExtraError(f"--report-to {', '.join(names)}: {error}") from None
        for callback in self._callbacks:
            if isinstance(callback, trackers.TensorBoardCallback) and callback.logging_dir is None:
                callback.logging_dir = str(output / LOGS)

    def send(self, event: str, step: int = 0, **options: Any) -> None:
        """Call a method of transformers' callbacks: on_train_begin, on_log or on_train_end."""
        for callback in () if devices.world()[0] else self._callbacks:
            state, control = TrainerState(global_step=step), TrainerControl()
            getattr(callback, event)(self.arguments, state, control, model=None, **options)
