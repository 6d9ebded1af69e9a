"""`denserk pretrain`: a backbone is pre-trained for retrieval."""

import logging
from functools import partial
from pathlib import Path

from transformers import set_seed

from denserk.config.options import as_json
from denserk.config.pretraining import PretrainingObjective, PretrainRun
from denserk.data.pretraining_batches import DRAWS, PretrainingBatches, refuse_generated
from denserk.data.pretraining_data import documents_of, prepare, write_tokens
from denserk.data.tokenization import load_tokenizer
from denserk.errors import ModelError, UsageError
from denserk.io.files import STREAM, open_binary
from denserk.io.unchanged import checksum
from denserk.io.versions import reading
from denserk.losses.pretraining import MaskedLanguageModel
from denserk.models.devices import main_process_first
from denserk.models.model_folder import StoredEncoder, read_model_folder
from denserk.models.saving import save_transformer
from denserk.training import run_folder
from denserk.training.pretrain import KINDS, start_folder
from denserk.training.steps import pretraining_step
from denserk.training.trainer import Training

logger = logging.getLogger(__name__)


def pretrain(run: PretrainRun) -> run_folder.TrainingResult:
    """Pre-train a backbone, and save it as a folder that transformers and `finetune` take."""
    settings = run.pretrain
    # every input is opened, so that a missing one is reported before long work on the others
    for name in filter(None, (settings.expansions, run.masking.frequency_dict)):
        with open_binary(name):
            pass
    # standard input can be read once, and may have generated text
    sources = [source for source in settings.corpus if source != STREAM]
    first = [next(documents_of(run, source), None) for source in sources]
    generated = STREAM in settings.corpus or any(each and each.tokens is not None for each in first)
    master = settings.objective is PretrainingObjective.MASTER
    if master and settings.expansions is None and not generated:
        refuse_generated(frozenset(run.objective.tasks))
    return run_folder.train(run, partial(training_of, run))


def training_of(run: PretrainRun, output: Path) -> Training:
    """Load the model to start from, initialising it first if there is none."""
    settings, optimizer = run.pretrain, run.optimizer
    again = not run_folder.is_resumable(output)
    root = main_process_first(partial(start_folder, run, output / run_folder.START, again=again))
    set_seed(run.masking.seed)
    with reading([root]):
        objective, tokenizer = load_objective(run, root), load_tokenizer(root)

    def save(folder: Path) -> None:
        objective.save_heads(folder)
        model, longest = objective.backbone.model, tokenizer.model_max_length
        save_transformer(folder, model, model.state_dict(), tokenizer, longest)

    def load(folder: Path) -> None:
        backbone = StoredEncoder.read(folder).masked_lm()
        objective.backbone.load_state_dict(backbone.state_dict())
        objective.load_heads(folder)

    def prepare_batches(output: Path) -> tuple[PretrainingBatches, None]:
        again = not run_folder.is_resumable(output)  # --overwrite has emptied it by now
        store = prepare(run, output / run_folder.DATA, tokenizer, again=again)
        if settings.tokenize_to is not None:
            name = settings.model or settings.tokenizer or str(output / run_folder.START)
            write_tokens(store, Path(settings.tokenize_to), name, tokenizer.sep_token_id)
        batches = PretrainingBatches(run, store, tokenizer, **run_folder.share_of_batches(run))
        data = f"{store.contents['tokens']:,} tokens in {len(store):,} {store.unit}"
        epochs = f"{len(batches) / batches.steps_per_epoch:.3g} epochs"
        logger.info(f"{data}: {len(batches):,} batches of {optimizer.batch_size:,}, {epochs}")
        return batches, None

    step = partial(pretraining_step, objective, run)
    masking = as_json(run.masking) | {"draws": DRAWS}
    if run.masking.frequency_dict is not None:
        masking["frequency_dict_sha256"] = checksum(run.masking.frequency_dict)
    return Training(objective, step, save, load, prepare_batches, {"masking": masking})


def load_objective(run: PretrainRun, root: Path) -> MaskedLanguageModel:
    """Build the objective of a run around the encoder of a folder, with the folder's heads."""
    stored = read_model_folder(root)
    if not stored.shared:
        why = f"{root} has an encoder for queries and one for passages; pre-training takes one"
        raise ModelError(why, f"give one of them: --model {stored.passage.folder}")
    longest, length = stored.passage.max_length, run.units.max_length
    if longest is not None and length > longest:
        why = f"--max-length {length}: {root} has positions for {longest}"
        raise UsageError(why, f"add --max-length {longest}, or less")
    objective = KINDS[run.pretrain.objective](stored.passage.masked_lm(), run.objective)
    if not objective.heads:
        return objective
    try:
        read = None if run.objective.fresh_heads else objective.load_heads(root)
    except ModelError as error:
        error.hint = error.hint or "add --set fresh-heads=yes to start with new ones"
        raise
    how = f"from {read}" if read else "randomly initialised"
    logger.info(f"{', '.join(objective.heads)}: {how}")
    cocondenser = run.pretrain.objective is PretrainingObjective.COCONDENSER
    if cocondenser and read is None and not run.objective.fresh_heads:
        why = f"{root} has no {objective.head_files[0]}: a Condenser without its head is worse"
        logger.warning(f"{why}; start from the folder that --objective condenser wrote")
    return objective
