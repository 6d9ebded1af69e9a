"""Weights + text -> a backbone that is ready for retrieval: the recipe of one run."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import set_seed

from denserk.data.prepared import checksum
from denserk.data.pretraining_batches import PretrainingBatches
from denserk.data.pretraining_data import PretrainingStore, prepare, write_tokens
from denserk.data.tokenization import load_tokenizer
from denserk.errors import ModelError, UsageError
from denserk.formats.manifest import Kind
from denserk.modeling.backbone import Backbone
from denserk.modeling.cross_encoder import is_reranker
from denserk.modeling.model_folder import load_heads, save_heads, save_masked_lm
from denserk.modeling.stored_model import StoredEncoder, read_model_folder
from denserk.objectives.condenser import Condenser
from denserk.objectives.masked_language_model import MaskedLanguageModel
from denserk.objectives.master import Master
from denserk.objectives.objective import PretrainingObjective as Objective
from denserk.objectives.retromae import RetroMae
from denserk.settings.pretraining import (
    DecoderInit,
    Decoders,
    LossAverage,
    PretrainingObjective,
    PretrainRun,
)
from denserk.tasks.pretraining_start import look_at_inputs, start_folder
from denserk.tasks.run_folder import (
    DATA,
    START,
    Trained,
    TrainingResult,
    begin,
    goes_on,
    make_ready,
    refuse_changes,
    told_of,
    train,
    write_config,
)
from denserk.training.batching import Limits
from denserk.training.distributed import main_process_first, process_group, world
from denserk.training.steps import PretrainingStep
from denserk.training.trainer import training_device

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Pretraining:
    """A backbone in training, with what it is trained by, and its tokenizer."""

    objective: Objective
    tokenizer: Any

    def save(self, folder: Path) -> None:
        """Writes a masked-LM model of transformers, and the objective's own layers beside it."""
        if self.objective.layout is not None:
            save_heads(folder, self.objective.layout, self.objective.heads())
        save_masked_lm(folder, self.objective.backbone, self.tokenizer)

    def load(self, folder: Path) -> None:
        """Takes the weights from a folder that `save` wrote."""
        backbone = StoredEncoder.read(folder).begin_masked_lm()
        self.objective.backbone.load_state_dict(backbone.state_dict())
        if self.objective.layout is not None:
            load_heads(folder, self.objective.layout, self.objective.heads())


def pretrain(run: PretrainRun) -> TrainingResult:
    """Pre-train a backbone, and save it as a folder that transformers and `finetune` take.

    Args:
        run: everything that was chosen.

    Raises:
        UsageError, InputError, ModelError, MismatchError, OutputError, DenserkError: see
            `denserk.errors`.
    """
    device = training_device(run.pretrain.device, run.optimizer.precision)
    with process_group(str(device)):
        return _pretrain(run, device)


def _pretrain(run: PretrainRun, device: torch.device) -> TrainingResult:
    settings, output = run.pretrain, Path(run.pretrain.output)
    main = world()[0] == 0
    trained = None
    if settings.model is not None:  # rejected before anything is cleared, if it will not do
        trained = _start(run, output)
    if main:
        look_at_inputs(run)
        make_ready(output, resume=settings.resume, overwrite=settings.overwrite)
        if goes_on(output):
            refuse_changes(output, _chosen(run))  # before anything is made again
    trained = trained or _start(run, output)
    tokenizer = trained.tokenizer
    store = main_process_first(lambda: _prepare(run, output, tokenizer))
    told = told_of(_chosen(run), output, Kind.PRETRAINING)
    if main:
        begin(output, told)
        write_config(output, "pretrain", run.config())

    batches = _batches(run, store, tokenizer)
    logger.info(
        f"{store.contents['tokens']:,} tokens in {len(store):,} {store.items}: {len(batches):,} "
        f"steps of {run.optimizer.batch_size:,}, {len(batches) / batches.steps_per_epoch:.3g} "
        "epochs"
    )
    return train(
        output,
        Trained(trained.objective, _step(run, trained.objective), trained.save, trained.load),
        batches,
        run.optimizer,
        told,
        device=device,
        seed=run.masking.seed,
        resume=settings.resume,
        keep_steps=run.optimizer.keep_steps,
    )


def _chosen(run: PretrainRun) -> dict[str, Any]:
    """The settings as JSON; a file of word counts is known by its content too."""
    chosen = run.as_json()
    if run.masking.frequency_dict is not None:
        chosen["masking"]["frequency_dict_sha256"] = checksum(run.masking.frequency_dict)
    return chosen


def _start(run: PretrainRun, output: Path) -> _Pretraining:
    """The model that a run starts from, made first if it starts from nothing."""

    def folder() -> Path:
        return start_folder(run, output / START, again=not goes_on(output))

    root = main_process_first(folder)
    set_seed(run.masking.seed)
    backbone = _backbone(run, root)
    tokenizer = load_tokenizer(root)
    objective = _objective(run, backbone)
    if isinstance(objective, Condenser):
        logger.info(
            f"head: {run.objective.n_head_layers} layers on the last [CLS] and the tokens of layer "
            f"{objective.skip_from} of {backbone.last_layer}"
        )
    _fill_heads(run, root, objective)
    return _Pretraining(objective.train(), tokenizer)


def _backbone(run: PretrainRun, root: Path) -> Backbone:
    """The encoder of a folder, with its MLM head."""
    if is_reranker(root):
        raise ModelError(
            f"{root} is a cross-encoder: it scores pairs; pre-training takes an encoder",
            "give the model that it was made from",
        )
    stored = read_model_folder(root)
    if not stored.shared:
        raise ModelError(
            f"{root} has an encoder for queries and one for passages; pre-training takes one",
            f"give one of them: --model {stored.passage.folder}",
        )
    longest, length = stored.passage.max_length, run.units.max_length
    if longest is not None and length > longest:
        raise UsageError(
            f"--max-length {length}: {root} has positions for {longest}",
            f"add --max-length {longest}, or less",
        )
    return stored.passage.begin_masked_lm()


def _objective(run: PretrainRun, backbone: Backbone) -> Objective:
    chosen = run.objective
    match run.pretrain.objective:
        case PretrainingObjective.MLM:
            return MaskedLanguageModel(backbone)
        case PretrainingObjective.RETROMAE:
            return RetroMae(backbone)
        case PretrainingObjective.MASTER:
            return Master(
                backbone,
                tasks=sorted(chosen.master_tasks),
                decoder_layers=chosen.n_head_layers,
                shared=chosen.decoders is Decoders.SHARED,
                library_init=chosen.decoder_init is DecoderInit.LIBRARY,
            )
        case PretrainingObjective.CONDENSER | PretrainingObjective.COCONDENSER:
            return Condenser(
                backbone,
                skip_from=chosen.skip_from,
                head_layers=chosen.n_head_layers,
                late_mlm=chosen.late_mlm,
            )


def _fill_heads(run: PretrainRun, root: Path, objective: Objective) -> None:
    """Takes the objective's own layers from beside the backbone; tells where they begin anew."""
    if objective.layout is None:
        return
    names = ", ".join(objective.heads())
    if run.objective.fresh_heads:
        logger.info(f"{names}: new, from random weights (--set fresh-heads=yes)")
        return
    try:
        read = load_heads(root, objective.layout, objective.heads())
    except ModelError as error:
        error.hint = error.hint or "add --set fresh-heads=yes to start with new ones"
        raise
    if read is not None:
        logger.info(f"{names}: from {read}")
    elif run.pretrain.objective is PretrainingObjective.COCONDENSER:
        logger.warning(
            f"{root} has no {objective.layout.file}: the head begins anew, and that harms a "
            "Condenser which was trained with one; start from the folder that --objective "
            "condenser wrote, or the authors' with their model.pt"
        )
    else:
        logger.info(f"{names}: new, from random weights")


def _prepare(run: PretrainRun, output: Path, tokenizer: Any) -> PretrainingStore:
    told = run.pretrain
    store = prepare(
        told.corpus,
        output / DATA,
        tokenizer,
        told.objective,
        units=run.units,
        corpus_settings=run.corpus,
        expansions=told.expansions,
        seed=run.masking.seed,
        again=not goes_on(output),
    )
    if told.tokenize_to is not None:
        name = told.model or told.tokenizer or str(output / START)
        write_tokens(store, Path(told.tokenize_to), name, tokenizer.sep_token_id)
    return store


def _batches(run: PretrainRun, store: PretrainingStore, tokenizer: Any) -> PretrainingBatches:
    rank, size = world()
    return PretrainingBatches(
        store,
        tokenizer,
        run.pretrain.objective,
        run.masking,
        run.units.max_length,
        run.optimizer.batch_size,
        tasks=run.objective.master_tasks,
        epochs=run.optimizer.epochs,
        max_steps=run.optimizer.max_steps,
        rank=rank,
        world=size,
    )


def _step(run: PretrainRun, objective: Objective) -> PretrainingStep:
    return PretrainingStep(
        objective,
        Limits(run.optimizer.cache_chunk_size, run.optimizer.chunk_tokens),
        contrast=run.pretrain.objective is PretrainingObjective.COCONDENSER,
        lm_scale=run.objective.lm_scale,
        by_micro_batch=run.objective.loss_average is LossAverage.MICRO_BATCH,
    )
