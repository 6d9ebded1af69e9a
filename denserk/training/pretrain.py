"""Pre-train a backbone for retrieval, from a model or from random weights."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import BertConfig, BertForMaskedLM, BertTokenizer

from denserk.config.options import as_json
from denserk.config.pretraining import SIZES, Architecture, PretrainingObjective, PretrainRun
from denserk.data.prepared import plan_of, prepare_folder
from denserk.data.pretraining_data import documents_of
from denserk.data.tokenization import load_tokenizer
from denserk.errors import InputError, UsageError
from denserk.io.files import STREAM, write_errors
from denserk.io.manifest import Kind
from denserk.io.model_files import find_model
from denserk.losses.pretraining import Condenser, DupMae, MaskedLanguageModel, Master, RetroMae
from denserk.reporting import track

logger = logging.getLogger(__name__)

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
MOST_CHARACTERS = 1000  # size of the alphabet; rarer characters become [UNK]
POSITIONS = 512  # maximum sequence length of a new model, or --max-length


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


KINDS: Mapping[PretrainingObjective, type[MaskedLanguageModel]] = {
    PretrainingObjective.MLM: MaskedLanguageModel,
    PretrainingObjective.CONDENSER: Condenser,
    PretrainingObjective.COCONDENSER: Condenser,
    PretrainingObjective.MASTER: Master,
    PretrainingObjective.RETROMAE: RetroMae,
    PretrainingObjective.DUPMAE: DupMae,
}
