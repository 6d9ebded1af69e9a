"""Weights + training data -> a retriever or a cross-encoder: the recipe of one run."""

import logging
from pathlib import Path

import torch
from transformers import set_seed

from denserk.settings.finetuning import FinetuneRun
from denserk.settings.options import as_json
from denserk.settings.training import Precision
from denserk.tasks.finetune_reranker import begin_reranker_training, trains_reranker
from denserk.tasks.finetune_retriever import begin_retriever_training
from denserk.tasks.finetune_sentences import (
    begin_sentence_training,
    refuse_other_measures,
    trains_on_sentences,
)
from denserk.tasks.run_folder import (
    TrainingResult,
    begin,
    goes_on,
    make_ready,
    refuse_changes,
    told_of,
    train,
    write_config,
)
from denserk.training.distributed import main_process_first, process_group, world
from denserk.training.trainer import estimate, training_device

logger = logging.getLogger(__name__)


def finetune(run: FinetuneRun) -> TrainingResult:
    """Train a retriever or a cross-encoder, and save it as a folder that other commands take.

    Args:
        run: everything that was chosen.

    Raises:
        UsageError, InputError, ModelError, OutputError, DenserkError: see `denserk.errors`.
    """
    device = training_device(run.finetune.device, run.optimizer.precision)
    with process_group(str(device)):
        return _finetune(run, device)


def _finetune(run: FinetuneRun, device: torch.device) -> TrainingResult:
    output, settings = Path(run.finetune.output), run.finetune
    for note in run.notes:
        logger.info(note)
    set_seed(run.sampling.seed)
    refuse_other_measures(run)
    if trains_on_sentences(run):
        trained = begin_sentence_training(run)
    elif trains_reranker(run):
        trained = begin_reranker_training(run)
    else:
        trained = begin_retriever_training(run)
    chosen = {"representation": as_json(trained.representation), "text": as_json(trained.texts)}
    main = world()[0] == 0
    if main:
        make_ready(output, resume=settings.resume, overwrite=settings.overwrite)
        if goes_on(output):
            refuse_changes(output, run.as_json() | chosen)  # before anything is made again
    store = main_process_first(lambda: trained.prepare(output))
    dev = main_process_first(lambda: trained.dev(output))
    told = told_of(run.as_json() | chosen, output)
    if main:
        begin(output, told)
        write_config(output, "finetune", run.config())
    batches = trained.batches(store)
    halved = run.optimizer.precision is not Precision.FLOAT32
    logger.info(estimate(batches[0], trained.model, run.cache, halved=halved))
    return train(
        output,
        trained,
        batches,
        run.optimizer,
        told,
        device=device,
        seed=run.sampling.seed,
        resume=settings.resume,
        validation=run.validation,
        measure=(lambda: trained.measure(dev)) if dev else None,
    )
