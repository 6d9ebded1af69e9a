"""Pre-train a backbone for retrieval, from a model or from random weights."""

import logging
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from transformers import set_seed

from denserk.config.options import as_json
from denserk.config.pretraining import (
    DecoderInit,
    Decoders,
    LossAverage,
    PretrainingObjective,
    PretrainRun,
)
from denserk.data.prepared import checksum, is_prepared, plan_of
from denserk.data.pretraining_batches import PretrainingBatches, refuse_generated
from denserk.data.pretraining_data import prepare, write_tokens
from denserk.data.tokenization import load_tokenizer
from denserk.data.vocabulary import POSITIONS, new_model, save_tokenizer, train_vocabulary
from denserk.errors import InputError, ModelError, UsageError
from denserk.io.files import STREAM, write_errors
from denserk.io.manifest import Kind, write_manifest
from denserk.io.outputs import whole_folder
from denserk.io.pretraining_text import Document, TokenDocument, read_documents
from denserk.losses.pretraining import Condenser, MaskedLanguageModel, Master, RetroMae
from denserk.losses.pretraining import PretrainingObjective as Objective
from denserk.models.checkpoints import find_model, write_tensors
from denserk.models.model_folder import (
    CONDENSER,
    MASTER,
    RETROMAE,
    HeadLayout,
    load_heads,
    save_heads,
    save_masked_lm,
)
from denserk.models.stored_model import StoredEncoder, read_model_folder
from denserk.reporting import track
from denserk.training.batching import Limits
from denserk.training.distributed import main_process_first
from denserk.training.run_folder import (
    DATA,
    START,
    TrainingResult,
    is_resumable,
    share_of_batches,
    train,
)
from denserk.training.steps import PretrainingStep
from denserk.training.trainer import Training

logger = logging.getLogger(__name__)

# Files of an objective's own layers, beside the weights.
HEADS: Mapping[PretrainingObjective, HeadLayout] = {
    PretrainingObjective.CONDENSER: CONDENSER,
    PretrainingObjective.COCONDENSER: CONDENSER,
    PretrainingObjective.MASTER: MASTER,
    PretrainingObjective.RETROMAE: RETROMAE,
}


def pretrain(run: PretrainRun) -> TrainingResult:
    """Pre-train a backbone, and save it as a folder that transformers and `finetune` take.

    Raises:
        UsageError, InputError, ModelError, MismatchError, OutputError, DenserkError: see
            `denserk.errors`.
    """
    check_inputs(run)
    chosen = run.as_json()
    if run.masking.frequency_dict is not None:
        chosen["masking"]["frequency_dict_sha256"] = checksum(run.masking.frequency_dict)
    build = partial(training_of, run)
    return train(
        "pretrain", run, build, seed=run.masking.seed, chosen=chosen, kind=Kind.PRETRAINING
    )


def training_of(run: PretrainRun, output: Path) -> Training:
    """Load the model to start from, initialising it first if there is none."""
    settings, optimizer = run.pretrain, run.optimizer
    root = main_process_first(
        lambda: start_folder(run, output / START, again=not is_resumable(output))
    )
    set_seed(run.masking.seed)
    objective, tokenizer = load_objective(run, root), load_tokenizer(root)

    def save(folder: Path) -> None:
        if objective.layout is not None:
            save_heads(folder, objective.layout, objective.heads())
        save_masked_lm(folder, objective.backbone, tokenizer)

    def load(folder: Path) -> None:
        backbone = StoredEncoder.read(folder).begin_masked_lm()
        objective.backbone.load_state_dict(backbone.state_dict())
        if objective.layout is not None:
            load_heads(folder, objective.layout, objective.heads())

    def prepare_batches(output: Path) -> tuple[PretrainingBatches, None]:
        store = prepare(
            settings.corpus,
            output / DATA,
            tokenizer,
            settings.objective,
            units=run.units,
            corpus_settings=run.corpus,
            expansions=settings.expansions,
            seed=run.masking.seed,
            again=not is_resumable(output),
        )
        if settings.tokenize_to is not None:
            name = settings.model or settings.tokenizer or str(output / START)
            write_tokens(store, Path(settings.tokenize_to), name, tokenizer.sep_token_id)
        batches = PretrainingBatches(
            store,
            tokenizer,
            settings.objective,
            run.masking,
            run.units.max_length,
            optimizer.batch_size,
            tasks=frozenset(run.objective.tasks),
            **share_of_batches(run),
        )
        logger.info(
            f"{store.contents['tokens']:,} tokens in {len(store):,} {store.items}: "
            f"{len(batches):,} batches of {optimizer.batch_size:,}, "
            f"{len(batches) / batches.steps_per_epoch:.3g} epochs"
        )
        return batches, None

    step = PretrainingStep(
        objective,
        Limits(optimizer.cache_chunk_size, optimizer.chunk_tokens),
        contrast=settings.objective is PretrainingObjective.COCONDENSER,
        lm_scale=run.objective.lm_scale,
        by_micro_batch=run.objective.loss_average is LossAverage.MICRO_BATCH,
    )
    return Training(objective, step, save, load, prepare_batches)


def load_objective(run: PretrainRun, root: Path) -> Objective:
    """Build the objective of a run around the encoder of a folder with its MLM head."""
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
    backbone, chosen = stored.passage.begin_masked_lm(), run.objective
    objective: Objective
    match run.pretrain.objective:
        case PretrainingObjective.MLM:
            objective = MaskedLanguageModel(backbone)
        case PretrainingObjective.RETROMAE:
            objective = RetroMae(backbone)
        case PretrainingObjective.MASTER:
            objective = Master(
                backbone,
                tasks=sorted(chosen.tasks),
                decoder_layers=chosen.n_head_layers,
                shared=chosen.decoders is Decoders.SHARED,
                library_init=chosen.decoder_init is DecoderInit.LIBRARY,
            )
        case PretrainingObjective.CONDENSER | PretrainingObjective.COCONDENSER:
            objective = Condenser(
                backbone,
                skip_from=chosen.skip_from,
                head_layers=chosen.n_head_layers,
                late_mlm=chosen.late_mlm,
            )
            logger.info(
                f"head: {chosen.n_head_layers} layers on the last [CLS] and the tokens of layer "
                f"{objective.skip_from} of {backbone.last_layer}"
            )
    _load_heads(run, root, objective)
    return objective


def _load_heads(run: PretrainRun, root: Path, objective: Objective) -> None:
    """Load the objective's own layers, where the folder has them; log where they are new."""
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
            f"{root} has no {objective.layout.file}: the head is randomly initialised, which harms "
            "a Condenser that was trained with one; start from the folder that --objective "
            "condenser wrote, or the authors' with their model.pt"
        )
    else:
        logger.info(f"{names}: new, from random weights")


def check_inputs(run: PretrainRun) -> None:
    """Open every input, so that a missing one is reported before long work on the others."""
    settings = run.pretrain
    for flag, name in (
        ("--expansions", settings.expansions),
        ("--set frequency-dict", run.masking.frequency_dict),
    ):
        if name is not None and name != STREAM and not Path(name).is_file():
            raise UsageError(f"{flag} {name}: no such file")
    # standard input can be read only once: it may have token ids, and what was generated
    firsts = [source == STREAM or _first_document(run, source) for source in settings.corpus]
    master = settings.objective is PretrainingObjective.MASTER
    generated = any(first is True or isinstance(first, TokenDocument) for first in firsts)
    if master and settings.expansions is None and not generated:
        refuse_generated(frozenset(run.objective.tasks))


def _first_document(run: PretrainRun, source: str) -> Document | TokenDocument | None:
    with closing(_documents(run, source)) as documents:
        return next(documents, None)


def _documents(run: PretrainRun, source: str) -> Generator[Document | TokenDocument]:
    yield from read_documents(source, run.corpus, run.units.fields, run.units.raw_text)


def start_folder(run: PretrainRun, folder: Path, *, again: bool = True) -> Path:
    """Return the folder of the model that a run starts from: --model, or a new one.

    Args:
        run: the settings.
        folder: of a randomly initialised model; used again if its settings are equal.
        again: replace one with other settings; False raises an error.

    Raises:
        UsageError: there is no such model, or the corpus can be read only once.
        MismatchError: the folder holds something else, or what must not be replaced.
        InputError: the corpus is broken, or has no text.
    """
    settings = run.pretrain
    if settings.model is not None:
        layout = HEADS.get(settings.objective)
        return find_model(settings.model, beside=() if layout is None else layout.files)[1]
    if STREAM in settings.corpus:
        raise UsageError(
            "--corpus -: --architecture reads the corpus several times, and standard input has "
            "one reading",
            "give a file",
        )
    assert settings.architecture is not None
    positions = max(POSITIONS, run.units.max_length)
    chosen: dict[str, Any] = {
        "architecture": settings.architecture,
        "positions": positions,
        "seed": run.masking.seed,
    }
    if settings.tokenizer is None:
        units = as_json(run.units)
        chosen |= {"vocabulary_size": settings.vocabulary_size, "corpus": as_json(run.corpus)}
        chosen |= {"fields": units["fields"], "raw_text": units["raw_text"]}
        inputs = {f"corpus {number}": name for number, name in enumerate(settings.corpus, start=1)}
    else:
        inputs = {"tokenizer": settings.tokenizer}
    plan = plan_of(chosen, inputs, Kind.START)
    if is_prepared(folder, plan, again=again):
        return folder
    with whole_folder(folder, own=True) as part:
        entries = _write_tokenizer(run, part, positions)
        model = new_model(settings.architecture, entries, run.masking.seed, positions)
        model.config.architectures = [type(model).__name__]
        write_tensors(part / "model.safetensors", model.state_dict())
        with write_errors(part):
            model.config.to_json_file(part / "config.json", use_diff=False)
        write_manifest(part, replace(plan, contents={"vocabulary": entries}, complete=True))
    logger.info(
        f"from nothing: {settings.architecture}, {entries:,} entries, random weights in {folder}"
    )
    return folder


def _write_tokenizer(run: PretrainRun, folder: Path, positions: int) -> int:
    """Write the given tokenizer, or one trained on the corpus; return its vocabulary size."""
    settings = run.pretrain
    if settings.tokenizer is not None:
        tokenizer = load_tokenizer(find_model(settings.tokenizer, "--tokenizer")[1])
        if tokenizer.mask_token_id is None or tokenizer.cls_token_id is None:
            raise UsageError(
                f"--tokenizer {settings.tokenizer} has no [MASK] or no [CLS] token",
                "give one of BERT's kind, or leave it out for one that is trained on the corpus",
            )
        with write_errors(folder):
            tokenizer.save_pretrained(folder)
        return len(tokenizer)
    passes = iter((1, 2))

    def texts() -> Iterator[str]:
        label = f"training the vocabulary, pass {next(passes)} of 2"
        with track(label, None, "documents") as progress:
            for text in _texts(run):
                progress.advance()
                yield text

    names = ", ".join(settings.corpus)
    trained = train_vocabulary(texts, settings.vocabulary_size, names)
    with write_errors(folder):
        save_tokenizer(trained, folder, positions)
    return trained.get_vocab_size()


def _texts(run: PretrainRun) -> Iterator[str]:
    """Yield the text of every document, its fields one below the other."""
    for source in run.pretrain.corpus:
        for document in _documents(run, source):
            if not isinstance(document, Document):
                raise InputError(
                    source,
                    None,
                    "token ids",
                    "text, to train a vocabulary on",
                    "give the tokenizer that made the ids as --tokenizer",
                )
            yield "\n".join(document.parts)
