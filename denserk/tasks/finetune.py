"""Weights + training data -> a retriever: the recipe of one fine-tuning run."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PrinterCallback, TrainerCallback, TrainingArguments, set_seed
from transformers.integrations.integration_utils import TensorBoardCallback
from transformers.trainer_utils import IntervalStrategy

from denserk.data.tokenization import TextTokenizer, load_tokenizer
from denserk.data.training_batches import TrainingBatches
from denserk.data.training_examples import prepare
from denserk.data.training_store import TrainingStore
from denserk.errors import UsageError
from denserk.extras import installed
from denserk.modeling.folder_layouts import read_model_folder
from denserk.modeling.model_folder import save_model
from denserk.modeling.model_names import find_model
from denserk.modeling.representation import Aggretriever
from denserk.modeling.retriever import Retriever
from denserk.modeling.stored_model import StoredModel
from denserk.modeling.text_encoder import fit_lengths, override
from denserk.objectives.retrieval import RetrievalObjective
from denserk.reporting import SILENT, Progress, Reporter
from denserk.settings.encoding import (
    AggOrder,
    Reduction,
    RepresentationSettings,
    TextSettings,
)
from denserk.settings.finetune import FinetuneRun
from denserk.settings.options import as_json
from denserk.settings.training import Precision
from denserk.tasks.dev_sets import dev_sets
from denserk.tasks.run_folder import (
    BEST,
    CHECKPOINTS,
    DATA,
    LOGS,
    begin,
    finish,
    make_ready,
    told_of,
)
from denserk.training.best import KeepBest, best_of, values_of
from denserk.training.dev_measures import DevSet, measure
from denserk.training.distributed import world
from denserk.training.retrieval_step import RetrievalStep
from denserk.training.trainer import StepTrainer


@dataclass(frozen=True)
class FinetuneResult:
    """What a run did: its steps, the one it began at, its last loss, its best validation."""

    steps: int
    first_step: int
    loss: float | None
    best: float | None


def finetune(run: FinetuneRun, reporter: Reporter = SILENT) -> FinetuneResult:
    """Trains a retriever and saves it as a folder that `encode` and `search` take.

    Args:
        run: everything that was chosen.
        reporter: told what goes on; only the first of several processes speaks.

    Raises:
        UsageError, InputError, ModelError, OutputError, DenserkError: see `denserk.errors`.
    """
    output, settings = Path(run.finetune.output), run.finetune
    arguments = _arguments(run, output / CHECKPOINTS)
    rank = world()[0]
    reporter = reporter if rank == 0 else SILENT
    for note in run.notes:
        reporter.note(note)
    stored, chosen, texts = _choose(run, reporter)
    if rank == 0:
        inputs = (stored.root, *run.input_paths())
        make_ready(output, inputs, resume=settings.resume, overwrite=settings.overwrite)
    tokenizers = _tokenizers(stored, texts)
    store = _first_then_others(lambda: _prepare(run, output, tokenizers, reporter))
    dev = _first_then_others(lambda: dev_sets(run, output, tokenizers, reporter))
    told = told_of(
        run.as_json() | {"representation": as_json(chosen), "text": as_json(texts)}, output
    )
    if rank == 0:
        begin(output, told, reporter)

    set_seed(run.sampling.seed)
    model = stored.begin(chosen, untie=run.finetune.untie, reporter=reporter)
    batches = _batches(run, store, reporter)
    arguments.max_steps = len(batches)
    if dev:
        arguments.eval_strategy = IntervalStrategy.STEPS
        arguments.eval_steps = run.validation.eval_steps or batches.steps_per_epoch
    save = _saver(model, load_tokenizer(stored.passage.folder), texts)
    objective = _objective(run, chosen, model)
    step = RetrievalStep(
        model, objective, run.cache, across_devices=run.finetune.negatives_x_device
    )
    with reporter.track("training", len(batches), "steps") as progress:
        trainer = StepTrainer(
            model,
            step,
            batches,
            arguments,
            steps_per_epoch=batches.steps_per_epoch,
            save=save,
            load=lambda where: _load(model, where),
            validate=lambda: _measure(model, dev, run),
            callbacks=_callbacks(run, output, save, progress),
        )
        trainer.remove_callback(PrinterCallback)
        first = trainer.run(resume=settings.resume)
    history = trainer.state.log_history
    if rank == 0:
        keep_best = run.validation.best_by is not None
        finish(output, save, told, history, reporter, keep_best=keep_best)
    return FinetuneResult(
        steps=trainer.state.global_step,
        first_step=first,
        loss=next((entry["loss"] for entry in reversed(history) if "loss" in entry), None),
        best=_best(run, history),
    )


def _choose(
    run: FinetuneRun, reporter: Reporter
) -> tuple[StoredModel, RepresentationSettings, TextSettings]:
    """The weights to start from, how vectors will be made, and how records become text."""
    name, folder = find_model(run.finetune.model, reporter)
    stored = read_model_folder(folder)
    chosen = override(stored.representation, run.representation)
    if not (stored.told or run.representation):
        reporter.note(
            f"{name} does not say how its vectors are made: training {chosen.representation}"
        )
    limit = stored.passage.max_length
    return stored, chosen, fit_lengths(stored.text, run.text, limit, reporter)


def _arguments(run: FinetuneRun, folder: Path) -> TrainingArguments:
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    device, optimizer = run.finetune.device, run.optimizer
    if device not in ("auto", "cpu", "cuda"):
        raise UsageError(
            f"--device {device}: training takes auto, cpu or cuda",
            "choose a GPU with CUDA_VISIBLE_DEVICES, several with torchrun",
        )
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: no GPU is seen", "use --device auto or --device cpu")
    on_cpu = device == "cpu" or not torch.cuda.is_available()
    if on_cpu and optimizer.precision is Precision.FLOAT16:
        raise UsageError("--dtype float16 needs a GPU", "use --dtype bfloat16 or float32")
    return TrainingArguments(
        output_dir=str(folder),
        learning_rate=optimizer.lr,
        weight_decay=optimizer.weight_decay,
        adam_epsilon=optimizer.adam_epsilon,
        max_grad_norm=optimizer.max_grad_norm,
        lr_scheduler_type="linear",
        warmup_steps=optimizer.warmup_ratio
        if optimizer.warmup_steps is None
        else optimizer.warmup_steps,
        bf16=optimizer.precision is Precision.BFLOAT16,
        fp16=optimizer.precision is Precision.FLOAT16,
        save_steps=optimizer.save_steps,
        save_total_limit=optimizer.keep_checkpoints or None,
        logging_steps=optimizer.logging_steps,
        dataloader_num_workers=optimizer.num_workers,
        seed=run.sampling.seed,
        use_cpu=on_cpu,
        disable_tqdm=True,
        report_to="none",  # TensorBoard's files are a callback's: see `_callbacks`
    )


def _first_then_others(work: Callable[[], Any]) -> Any:
    """Does work that writes files in the first process; the others follow, and find it done."""
    rank, size = world()
    if size > 1 and rank > 0:
        torch.distributed.barrier()
        return work()
    done = work()
    if size > 1:
        torch.distributed.barrier()
    return done


Tokenizers = tuple[TextTokenizer, TextTokenizer]


def _tokenizers(stored: StoredModel, texts: TextSettings) -> Tokenizers:
    query, passage = (load_tokenizer(side.folder) for side in (stored.query, stored.passage))
    return TextTokenizer(query, texts), TextTokenizer(passage, texts)


def _prepare(
    run: FinetuneRun, output: Path, tokenizers: Tokenizers, reporter: Reporter
) -> TrainingStore:
    settings = run.finetune
    return prepare(
        settings.train_data,
        output / DATA,
        *tokenizers,
        corpus=settings.corpus,
        corpus_settings=run.corpus,
        fields=run.text.get("fields"),
        queries=settings.queries,
        qrels=settings.qrels,
        form=settings.train_format,
        skip_missing=settings.skip_missing,
        require_scores=run.objective.distillation is not None,
        reporter=reporter,
    )


def _batches(run: FinetuneRun, store: TrainingStore, reporter: Reporter) -> TrainingBatches:
    rank, size = world()
    return TrainingBatches(
        store,
        run.sampling,
        run.optimizer.batch_size,
        epochs=run.optimizer.epochs,
        max_steps=run.optimizer.max_steps,
        rank=rank,
        world=size,
        with_scores=run.objective.distillation is not None,
        reporter=reporter,
    )


def _objective(
    run: FinetuneRun, settings: RepresentationSettings, model: Retriever
) -> RetrievalObjective:
    parts = None
    made = model.passage.representation
    if isinstance(made, Aggretriever) and made.cls_dim and made.agg_dim:
        cls_first = settings.agg_order is AggOrder.CLS_AGG
        split = made.cls_dim if cls_first else made.agg_dim
        halves = slice(0, split), slice(split, made.dimension)
        parts = halves if cls_first else halves[::-1]
    several = not isinstance(made, Aggretriever) and hasattr(made, "kept")
    return RetrievalObjective(
        run.objective,
        parts=parts,
        self_contrastive=several and settings.reduction is Reduction.SELF_CONTRASTIVE,
    )


def _saver(model: Retriever, tokenizer: Any, texts: TextSettings) -> Callable[[Path], None]:
    def save(folder: Path) -> None:
        query = None if model.shared else model.query
        save_model(folder, model.passage, tokenizer, texts, query)

    return save


def _load(model: Retriever, folder: Path) -> None:
    stored = read_model_folder(folder)
    query, passage = stored.build(stored.representation)
    model.load_state_dict(Retriever(query, passage).state_dict())


def _measure(model: Retriever, dev: list[DevSet], run: FinetuneRun) -> dict[str, float]:
    device = next(model.parameters()).device
    measured: dict[str, float] = {}
    for each in dev:  # a given collection comes last, and its RR@10 counts
        measured |= measure(
            model, each, run.optimizer.batch_size, run.objective.temperature, device
        )
    return measured


class _Told(TrainerCallback):
    """Moves the bar, with the loss and its parts beside it."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Counts what an earlier run did."""
        self._progress.advance(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Counts the step; the last one is logged whatever the interval."""
        self._progress.advance()
        control.should_log |= state.global_step == state.max_steps

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Shows the newest numbers."""
        shown = {n: v for n, v in (logs or {}).items() if n.startswith(("loss", "eval_"))}
        if shown:
            words = (
                f"{n.removeprefix('loss_').removeprefix('eval_')} {v:.4f}" for n, v in shown.items()
            )
            self._progress.tell(", ".join(words))


def _callbacks(
    run: FinetuneRun, output: Path, save: Callable[[Path], None], progress: Progress
) -> list[TrainerCallback]:
    told: list[TrainerCallback] = [_Told(progress)]
    metric = run.validation.best_by
    if metric is not None:
        told.append(KeepBest(output / BEST, save, metric, run.validation.early_stopping))
    if installed("tensorboard"):
        board = TensorBoardCallback()  # type: ignore[no-untyped-call]
        board.logging_dir = str(output / LOGS)
        told.append(board)
    return told


def _best(run: FinetuneRun, history: list[dict[str, Any]]) -> float | None:
    metric = run.validation.best_by
    values = [] if metric is None else values_of(history, metric)
    return values[best_of(values, metric)] if metric is not None and values else None
