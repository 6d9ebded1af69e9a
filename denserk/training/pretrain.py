"""Pre-train a backbone for retrieval, from a model or from random weights."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import BertConfig, BertForMaskedLM, BertTokenizer, set_seed

from denserk.config.options import as_json
from denserk.config.pretraining import SIZES, Architecture, PretrainingObjective, PretrainRun
from denserk.data.prepared import plan_of, prepare_folder
from denserk.data.pretraining_batches import DRAWS, PretrainingBatches, refuse_generated
from denserk.data.pretraining_data import documents_of, prepare, write_tokens
from denserk.data.tokenization import load_tokenizer
from denserk.errors import InputError, ModelError, UsageError
from denserk.io.files import STREAM, open_binary, write_errors
from denserk.io.manifest import Kind
from denserk.io.model_files import find_model
from denserk.io.unchanged import checksum
from denserk.io.versions import reading
from denserk.losses.pretraining import Condenser, DupMae, MaskedLanguageModel, Master, RetroMae
from denserk.models.devices import main_process_first
from denserk.models.model_folder import StoredEncoder, read_model_folder, save_transformer
from denserk.reporting import track
from denserk.training import run_folder
from denserk.training.steps import pretraining_step
from denserk.training.trainer import Training

logger = logging.getLogger(__name__)

KINDS: Mapping[PretrainingObjective, type[MaskedLanguageModel]] = {
    PretrainingObjective.MLM: MaskedLanguageModel,
    PretrainingObjective.CONDENSER: Condenser,
    PretrainingObjective.COCONDENSER: Condenser,
    PretrainingObjective.MASTER: Master,
    PretrainingObjective.RETROMAE: RetroMae,
    PretrainingObjective.DUPMAE: DupMae,
}
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
MOST_CHARACTERS = 1000  # size of the alphabet; rarer characters become [UNK]
POSITIONS = 512  # maximum sequence length of a new model, or --max-length


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


def start_folder(run: PretrainRun, folder: Path, *, again: bool = True) -> Path:
    """Return the folder of the model that a run starts from: --model, or a new one in `folder`.

    A new one is used again if its settings are equal; otherwise it is replaced, or, without
    `again`, a MismatchError is raised.
    """
    settings, architecture = run.pretrain, run.pretrain.architecture
    if settings.model is not None:
        return find_model(settings.model, beside=KINDS[settings.objective].head_files)[1]
    if STREAM in settings.corpus:
        why = "--corpus -: --architecture needs several passes, and standard input can be read once"
        raise UsageError(why, "give a file")
    assert architecture is not None
    positions, seed = max(POSITIONS, run.units.max_length), run.masking.seed
    chosen: dict[str, Any] = {"architecture": architecture, "positions": positions, "seed": seed}
    inputs: dict[str, Any] = {"tokenizer": settings.tokenizer}
    if settings.tokenizer is None:
        chosen |= {"vocabulary_size": settings.vocabulary_size, "corpus": as_json(run.corpus)}
        chosen |= {name: as_json(run.units)[name] for name in ("fields", "raw_text")}
        inputs = {"corpus": settings.corpus}

    def write(part: Path, _: Path) -> dict[str, Any]:
        if settings.tokenizer is None:
            texts, sources = partial(_texts, run), ", ".join(settings.corpus)
            tokenizer = train_vocabulary(texts, settings.vocabulary_size, sources, positions)
        else:
            tokenizer = load_tokenizer(find_model(settings.tokenizer, "--tokenizer")[1])
            if tokenizer.mask_token_id is None or tokenizer.cls_token_id is None:
                why = f"--tokenizer {settings.tokenizer} has no [MASK] or no [CLS] token"
                raise UsageError(why, "give one of BERT's kind, or leave it out to train one")
        entries = len(tokenizer)
        with write_errors(part):
            tokenizer.save_pretrained(part)
            new_model(architecture, entries, seed, positions).save_pretrained(part)
        logger.info(f"randomly initialised: {architecture}, a vocabulary of {entries:,}: {folder}")
        return {"vocabulary": entries}

    prepare_folder(folder, plan_of(chosen, inputs, Kind.START), write, again=again)
    return folder


def _texts(run: PretrainRun) -> Iterator[str]:
    """Yield the text of every document, its fields one below the other."""
    with track("training the vocabulary", None, "documents") as progress:
        for source in run.pretrain.corpus:
            for document in documents_of(run, source):
                progress.advance()
                yield "\n".join(document.parts)


def train_vocabulary(
    texts: Callable[[], Iterator[str]], size: int, source: str, positions: int
) -> BertTokenizer:
    """Train a lower-casing WordPiece tokenizer as BERT's, the same one for the same texts.

    The library's trainer orders characters by hash, and breaks ties between pairs by that order. A
    first pass therefore finds the most frequent characters, and gives them in a fixed order.
    """
    normalizer = normalizers.BertNormalizer(lowercase=True)
    counts = Counter(character for text in texts() for character in normalizer.normalize_str(text))
    printed = [character for character in counts if not character.isspace()]
    ranked = sorted(printed, key=lambda character: (-counts[character], character))
    alphabet = sorted(ranked[: min(MOST_CHARACTERS, size // 4)])
    if not alphabet:
        raise InputError(source, None, "no text to train a vocabulary on", "some text")
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        special_tokens=[*SPECIALS, *(f"##{character}" for character in alphabet)],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    learner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    learner.normalizer = normalizer
    learner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    learner.train_from_iterator(texts(), trainer)
    return BertTokenizer(vocab=learner.get_vocab(), model_max_length=positions)


def new_model(kind: Architecture, vocabulary: int, seed: int, positions: int) -> BertForMaskedLM:
    """Return a randomly initialised BERT with its MLM head."""
    layers, hidden = SIZES[kind]
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        intermediate_size=4 * hidden,
        max_position_embeddings=positions,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return BertForMaskedLM(config)
