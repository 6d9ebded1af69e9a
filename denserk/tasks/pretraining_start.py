"""What a pre-training run starts from: given weights, or a model made from nothing."""

import logging
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from denserk.data.prepared import is_prepared, plan_of
from denserk.data.pretraining_batches import refuse_generated
from denserk.data.tokenization import load_tokenizer
from denserk.data.vocabulary import POSITIONS, new_model, save_tokenizer, train_vocabulary
from denserk.errors import InputError, UsageError
from denserk.formats.files import STREAM, write_errors
from denserk.formats.manifest import Kind, write_manifest
from denserk.formats.outputs import whole_folder
from denserk.formats.pretraining_text import Document, TokenDocument, read_documents
from denserk.modeling.checkpoints import find_model, write_tensors
from denserk.modeling.model_folder import CONDENSER, MASTER, RETROMAE, HeadLayout
from denserk.reporting import track
from denserk.settings.options import as_json
from denserk.settings.pretraining import Architecture, PretrainingObjective, PretrainRun

logger = logging.getLogger(__name__)

# Where an objective's own layers lie beside the weights
HEADS: Mapping[PretrainingObjective, HeadLayout] = {
    PretrainingObjective.CONDENSER: CONDENSER,
    PretrainingObjective.COCONDENSER: CONDENSER,
    PretrainingObjective.MASTER: MASTER,
    PretrainingObjective.RETROMAE: RETROMAE,
}


def look_at_inputs(run: PretrainRun) -> None:
    """Opens every input, so that one that is not there is told before the others are worked on.

    Raises:
        UsageError: an input is not there, or tasks have no text to recover.
        InputError: the beginning of an input is broken.
    """
    told = run.pretrain
    for flag, name in (
        ("--expansions", told.expansions),
        ("--set frequency-dict", run.masking.frequency_dict),
    ):
        if name is not None and name != STREAM and not Path(name).is_file():
            raise UsageError(f"{flag} {name}: no such file")
    with_ids = False
    for source in told.corpus:
        if source == STREAM:
            with_ids = True  # it may be that; it has one reading
            continue
        with closing(_documents(run, source)) as documents:
            with_ids |= isinstance(next(documents, None), TokenDocument)
    of_master = told.objective is PretrainingObjective.MASTER
    if of_master and told.expansions is None and not with_ids:
        refuse_generated(run.objective.master_tasks)


def _documents(run: PretrainRun, source: str) -> Generator[Document | TokenDocument]:
    yield from read_documents(source, run.corpus, run.units.fields, run.units.raw_text)


def start_folder(run: PretrainRun, folder: Path, *, again: bool = True) -> Path:
    """The folder of the model that a run starts from.

    Args:
        run: what was chosen.
        folder: takes a model from nothing; one that is there and made alike is used again.
        again: one that is there and made otherwise is replaced; False refuses it.

    Raises:
        UsageError: the model is not there, or the corpus can be read only once.
        MismatchError: the folder holds something else, or what must not be replaced.
        InputError: the corpus is broken, or has no text.
        OutputError: the folder cannot be written.
    """
    if run.pretrain.model is not None:
        layout = HEADS.get(run.pretrain.objective)
        beside = () if layout is None else layout.files
        return find_model(run.pretrain.model, beside=beside)[1]
    if STREAM in run.pretrain.corpus:
        raise UsageError(
            "--corpus -: --architecture reads the corpus several times, and standard input has "
            "one reading",
            "give a file",
        )
    _begin_from_nothing(run, folder, again)
    return folder


def _begin_from_nothing(run: PretrainRun, folder: Path, again: bool) -> None:
    told = run.pretrain
    assert told.architecture is not None
    positions = max(POSITIONS, run.units.max_length)
    settings: dict[str, Any] = {
        "architecture": told.architecture,
        "positions": positions,
        "seed": run.masking.seed,
    }
    inputs: dict[str, str] = {}
    if told.tokenizer is None:
        units = as_json(run.units)
        settings |= {
            "vocabulary_size": told.vocabulary_size,
            "corpus": as_json(run.corpus),
            "fields": units["fields"],
            "raw_text": units["raw_text"],
        }
        inputs = {f"corpus {number}": name for number, name in enumerate(told.corpus, start=1)}
    else:
        inputs = {"tokenizer": told.tokenizer}
    plan = plan_of(settings, inputs, Kind.START)
    if is_prepared(folder, plan, again=again):
        return
    with whole_folder(folder, own=True) as part:
        entries = _write_tokenizer(run, part, positions)
        _write_model(told.architecture, entries, run.masking.seed, positions, part)
        write_manifest(part, replace(plan, contents={"vocabulary": entries}, complete=True))
    logger.info(
        f"from nothing: {told.architecture}, {entries:,} entries, random weights in {folder}"
    )


def _write_model(
    architecture: Architecture, entries: int, seed: int, positions: int, folder: Path
) -> None:
    model = new_model(architecture, entries, seed, positions)
    model.config.architectures = [type(model).__name__]
    write_tensors(folder / "model.safetensors", model.state_dict())
    with write_errors(folder):
        model.config.to_json_file(folder / "config.json", use_diff=False)


def _write_tokenizer(run: PretrainRun, folder: Path, positions: int) -> int:
    """Writes the given tokenizer, or one trained on the corpus; returns its number of entries."""
    told = run.pretrain
    if told.tokenizer is not None:
        tokenizer = load_tokenizer(find_model(told.tokenizer, "--tokenizer")[1])
        if tokenizer.mask_token_id is None or tokenizer.cls_token_id is None:
            raise UsageError(
                f"--tokenizer {told.tokenizer} has no [MASK] or no [CLS] token",
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

    names = ", ".join(told.corpus)
    trained = train_vocabulary(texts, told.vocabulary_size, names)
    with write_errors(folder):
        save_tokenizer(trained, folder, positions)
    return trained.get_vocab_size()


def _texts(run: PretrainRun) -> Iterator[str]:
    """Every document's text, its fields one after another."""
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
