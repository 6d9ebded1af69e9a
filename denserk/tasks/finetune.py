"""Weights + training data -> a retriever or a cross-encoder: the recipe of one run."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from torch import nn
from torch.utils.data import Dataset
from transformers import TrainerCallback, set_seed
from transformers.trainer_utils import IntervalStrategy

from denserk.data.tokenization import TextTokenizer
from denserk.data.training_batches import TrainingBatches
from denserk.data.training_data import TrainingStore, prepare
from denserk.reporting import Progress, track
from denserk.settings.encoding import RepresentationSettings, TextSettings
from denserk.settings.finetuning import FinetuneRun
from denserk.settings.options import as_json
from denserk.settings.training import Precision
from denserk.tasks.dev_sets import dev_sets
from denserk.tasks.finetune_reranker import begin_reranker_training, trains_reranker
from denserk.tasks.finetune_retriever import begin_retriever_training
from denserk.tasks.finetune_sentences import (
    begin_sentence_training,
    prepare_dev_sentences,
    prepare_training_sentences,
    refuse_other_measures,
    sentence_batches,
    trains_on_sentences,
)
from denserk.tasks.run_folder import (
    BEST,
    CHECKPOINTS,
    DATA,
    LOGS,
    begin,
    finish,
    goes_on,
    make_ready,
    refuse_changes,
    told_of,
    write_config,
)
from denserk.training.arguments import set_steps, training_arguments
from denserk.training.best import KeepBest, best_of, values_of
from denserk.training.distributed import first_then_others, leaving, world
from denserk.training.speed import Clock, Speed, estimate
from denserk.training.step import Step
from denserk.training.telling import follow
from denserk.training.trainer import StepTrainer

logger = logging.getLogger(__name__)

Tokenizers = tuple[TextTokenizer, TextTokenizer]


class Training(Protocol):
    """What a run trains: a retriever or a cross-encoder."""

    @property
    def root(self) -> Path:
        """The folder it starts from."""

    @property
    def representation(self) -> RepresentationSettings:
        """How vectors are made."""

    @property
    def texts(self) -> TextSettings:
        """How records become text."""

    @property
    def tokenizers(self) -> Tokenizers:
        """Of queries, and of passages."""

    @property
    def model(self) -> nn.Module:
        """Its weights."""

    @property
    def step(self) -> Step:
        """One of `batches` -> gradients."""

    def batches(self, batches: Any, /) -> "Dataset[Any]":
        """What the step takes, made of the run's batches."""

    def save(self, folder: Path, /) -> None:
        """Writes the model."""

    def load(self, folder: Path, /) -> None:
        """Takes the weights from a folder that `save` wrote."""

    def measure(self, dev: Any, /) -> dict[str, float]:
        """Measures the dev sets; the model is in evaluation mode."""


@dataclass(frozen=True)
class FinetuneResult:
    """What a run did: its steps, the one it began at, its last loss, its best validation.

    `speed` is None where nothing was left to train.
    """

    steps: int
    first_step: int
    loss: float | None
    best: float | None
    speed: Speed | None = None


@leaving()
def finetune(run: FinetuneRun) -> FinetuneResult:
    """Trains a retriever, or a cross-encoder, and saves it as a folder that other commands take.

    Args:
        run: everything that was chosen.

    Raises:
        UsageError, InputError, ModelError, OutputError, DenserkError: see `denserk.errors`.
    """
    output, settings = Path(run.finetune.output), run.finetune
    arguments = training_arguments(
        run.optimizer, settings.device, run.sampling.seed, output / CHECKPOINTS
    )
    rank = world()[0]
    for note in run.notes:
        logger.info(note)
    set_seed(run.sampling.seed)
    refuse_other_measures(run)
    trained: Training
    if trains_on_sentences(run):
        trained = begin_sentence_training(run)
    elif trains_reranker(run):
        trained = begin_reranker_training(run)
    else:
        trained = begin_retriever_training(run)
    chosen = {"representation": as_json(trained.representation), "text": as_json(trained.texts)}
    if rank == 0:
        make_ready(output, resume=settings.resume, overwrite=settings.overwrite)
        if goes_on(output):
            refuse_changes(output, run.as_json() | chosen)  # before anything is made again
    source = SENTENCES if trains_on_sentences(run) else QUERIES
    tokenizers = trained.tokenizers
    store = first_then_others(lambda: source.prepare(run, output, tokenizers))
    dev = first_then_others(lambda: source.dev(run, output, tokenizers))
    told = told_of(run.as_json() | chosen, output)
    if rank == 0:
        begin(output, told)
        write_config(output, "finetune", run.config())

    batches = source.batches(run, store)
    set_steps(arguments, run.optimizer, len(batches))
    if dev:
        arguments.eval_strategy = IntervalStrategy.STEPS
        arguments.eval_steps = run.validation.eval_steps or batches.steps_per_epoch
    steps = trained.batches(batches)
    halved = run.optimizer.precision is not Precision.FLOAT32
    logger.info(estimate(steps[0], trained.model, run.cache, halved=halved))
    clock = Clock(trained.step.work)
    with track("training", len(batches), "steps") as progress:
        trainer = StepTrainer(
            trained.model,
            trained.step,
            steps,
            arguments,
            steps_per_epoch=batches.steps_per_epoch,
            save=trained.save,
            load=trained.load,
            validate=lambda: trained.measure(dev),
            callbacks=_callbacks(run, output, trained.save, progress, clock),
        )
        first = trainer.run(resume=settings.resume)
    history = trainer.state.log_history
    if rank == 0:
        keep_best = run.validation.best_by is not None
        finish(output, trained.save, told, history, keep_best=keep_best)
    speed = clock.speed(arguments.device)
    if speed is not None:
        logger.info(str(speed))
    return FinetuneResult(
        steps=trainer.state.global_step,
        first_step=first,
        loss=trainer.last_loss,
        best=_best(run, history),
        speed=speed,
    )


def _prepare(run: FinetuneRun, output: Path, tokenizers: Tokenizers) -> TrainingStore:
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
        again=not goes_on(output),
    )


def _batches(run: FinetuneRun, store: TrainingStore) -> TrainingBatches:
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
    )


def _callbacks(
    run: FinetuneRun,
    output: Path,
    save: Callable[[Path], None],
    progress: Progress,
    clock: Clock,
) -> list[TrainerCallback]:
    told = follow(progress, clock, output / LOGS)
    metric = run.validation.best_by
    if metric is not None:
        told.append(KeepBest(output / BEST, save, metric, run.validation.early_stopping))
    return told


class Source(NamedTuple):
    """What a run learns from: its data and its dev sets prepared, and the batches of the data."""

    prepare: Callable[[FinetuneRun, Path, Tokenizers], Any]
    dev: Callable[[FinetuneRun, Path, Tokenizers], list[Any]]
    batches: Callable[[FinetuneRun, Any], Any]


QUERIES = Source(_prepare, dev_sets, _batches)
SENTENCES = Source(prepare_training_sentences, prepare_dev_sentences, sentence_batches)


def _best(run: FinetuneRun, history: list[dict[str, Any]]) -> float | None:
    metric = run.validation.best_by
    values = [] if metric is None else values_of(history, metric)
    return values[best_of(values, metric)] if metric is not None and values else None
