"""`denserk pretrain`: pre-train a backbone for retrieval."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData
from transformers import set_seed

from denserk.config.options import as_json
from denserk.config.pretraining import PretrainingObjective, PretrainRun
from denserk.data.pretraining_batches import DRAWS_VERSION, PretrainingBatches, reject_generated
from denserk.data.pretraining_data import documents_of, prepare, write_tokens
from denserk.data.tokenization import load_tokenizer
from denserk.errors import ModelError, UsageError
from denserk.io.files import STREAM, open_binary
from denserk.io.model_files import full_name
from denserk.io.unchanged import checksum
from denserk.io.versions import reading
from denserk.losses.pretraining import MaskedLanguageModel
from denserk.models.distributed import main_process_first
from denserk.models.model_card import CARD_FILE, NO_ORIGIN, Origin, metadata, origin_of, write_card
from denserk.models.model_folder import StoredEncoder, read_model_folder
from denserk.models.saving import save_transformer
from denserk.training import run_folder
from denserk.training.pretrain import OBJECTIVE_CLASSES, start_folder
from denserk.training.steps import pretraining_step
from denserk.training.trainer import Training

logger = logging.getLogger(__name__)


def pretrain(run: PretrainRun) -> run_folder.TrainingResult:
    """Pre-train a backbone, and save it as a folder that transformers and `finetune` take."""
    # every input is opened, so that a missing one is reported before long work on the others
    for name in (run.pretrain.expansions, run.masking.frequency_dict):
        if name is not None:
            with open_binary(name):
                pass
    may_have_generated_text = _open_corpora(run.pretrain.corpus, run)
    is_master = run.pretrain.objective is PretrainingObjective.MASTER
    if is_master and run.pretrain.expansions is None and not may_have_generated_text:
        reject_generated(frozenset(run.objective.tasks))
    return run_folder.train(run, partial(training_of, run))


def _open_corpora(sources: Sequence[str], run: PretrainRun) -> bool:
    """Read the first document of each corpus; return whether one may have generated text.

    Standard input, which can be read only once, may.
    """
    has_generated_text = STREAM in sources
    for source in sources:
        if source == STREAM:
            continue
        first_document = next(documents_of(run, source), None)
        if first_document is not None and first_document.tokens is not None:
            has_generated_text = True
    return has_generated_text


def training_of(run: PretrainRun, work: Path) -> Training:
    """Load the model to start from, initialising it first if there is none."""
    replace_outdated = not run_folder.is_resumable(work)
    root = main_process_first(
        partial(start_folder, run, work / run_folder.START, replace_outdated=replace_outdated)
    )
    set_seed(run.masking.seed)
    with reading([root]):
        origin = NO_ORIGIN
        if run.pretrain.model is not None:
            origin = origin_of(full_name(run.pretrain.model), root)
        pretrained = PretrainedModel(
            load_objective(run, root),
            load_tokenizer(root),
            run.pretrain.objective.value,
            pretrained_metadata(origin, run),
        )
    masking = as_json(run.masking) | {"draws": DRAWS_VERSION}
    if run.masking.frequency_dict is not None:
        masking["frequency_dict_sha256"] = checksum(run.masking.frequency_dict)
    return Training(
        pretrained.objective,
        step=partial(pretraining_step, pretrained.objective, run),
        save=pretrained.save,
        load=pretrained.load,
        prepare=partial(prepare_batches, run, pretrained.tokenizer),
        resolved={"masking": masking},
    )


@dataclass(frozen=True)
class PretrainedModel:
    """A backbone with the heads of its objective, its tokenizer, and metadata of its card."""

    objective: MaskedLanguageModel
    tokenizer: Any
    objective_name: str
    card: ModelCardData

    def save(self, folder: Path) -> None:
        """Write a folder that transformers loads, and the heads beside."""
        backbone = self.objective.backbone
        write_card(
            folder / CARD_FILE,
            "pretrained_card.md",
            self.card,
            architecture=backbone.config.model_type,
            objective=self.objective_name,
        )
        self.objective.save_heads(folder)
        longest = self.tokenizer.model_max_length
        tensors = backbone.saved_tensors()
        save_transformer(folder, backbone.model, tensors, self.tokenizer, longest)

    def load(self, folder: Path) -> None:
        """Read the weights of such a folder back."""
        backbone = StoredEncoder.read(folder).masked_lm()
        self.objective.backbone.load_state_dict(backbone.state_dict())
        self.objective.load_heads(folder)


def pretrained_metadata(origin: Origin, run: PretrainRun) -> ModelCardData:
    """Return the metadata of the card of a pre-trained model."""
    return metadata(
        origin,
        run.optimizer.license or "",
        library_name="transformers",
        pipeline_tag="fill-mask",
        tags=["denserk", run.pretrain.objective.value],
    )


def prepare_batches(
    run: PretrainRun, tokenizer: Any, work: Path
) -> tuple[PretrainingBatches, None]:
    """Tokenise the corpus in the folder in which a run works; return its batches.

    There is nothing to measure the model by.
    """
    replace_outdated = not run_folder.is_resumable(work)  # --overwrite has emptied it by now
    store = prepare(run, work / run_folder.DATA, tokenizer, replace_outdated=replace_outdated)
    settings = run.pretrain
    if settings.tokenize_to is not None:
        model_name = settings.model or settings.tokenizer or str(work / run_folder.START)
        write_tokens(store, Path(settings.tokenize_to), model_name, tokenizer.sep_token_id)
    batches = PretrainingBatches(run, store, tokenizer, **run_folder.share_of_batches(run))
    logger.info(
        f"{store.contents['tokens']:,} tokens in {len(store):,} {store.unit}: {len(batches):,} "
        f"batches of {run.optimizer.batch_size:,}, {len(batches) / batches.steps_per_epoch:.3g} "
        "epochs"
    )
    return batches, None


def load_objective(run: PretrainRun, root: Path) -> MaskedLanguageModel:
    """Build the objective of a run around the encoder of a folder, with the folder's heads."""
    stored = read_model_folder(root)
    if not stored.shared:
        message = f"{root} has an encoder for queries and one for passages; pre-training takes one"
        raise ModelError(message, f"give one of them: --model {stored.passage.folder}")
    positions = stored.passage.max_length
    length = run.units.max_length
    if positions is not None and length > positions:
        message = f"--max-length {length}: {root} has positions for {positions}"
        raise UsageError(message, f"add --max-length {positions}, or less")
    objective = OBJECTIVE_CLASSES[run.pretrain.objective](stored.passage.masked_lm(), run.objective)
    if objective.heads:
        _load_heads(objective, run, root)
    return objective


def _load_heads(objective: MaskedLanguageModel, run: PretrainRun, root: Path) -> None:
    """Read the heads that a folder has, unless new ones are asked for, and log where they are."""
    starts_fresh = run.objective.fresh_heads
    heads_file = None
    if not starts_fresh:
        try:
            heads_file = objective.load_heads(root)
        except ModelError as error:
            error.hint = error.hint or "add --set fresh-heads=yes to start with new ones"
            raise
    origin = f"from {heads_file}" if heads_file else "randomly initialised"
    logger.info(f"{', '.join(objective.heads)}: {origin}")
    is_cocondenser = run.pretrain.objective is PretrainingObjective.COCONDENSER
    if is_cocondenser and heads_file is None and not starts_fresh:
        logger.warning(
            f"{root} has no {objective.head_files[0]}: a Condenser without its head is worse; "
            "start from the folder that --objective condenser wrote"
        )
