"""Objectives of pre-training, and what it starts from.

It starts from a model, or from random weights with a given tokenizer or a vocabulary of the corpus.
"""

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
from denserk.io.file_errors import write_errors
from denserk.io.files import STREAM
from denserk.io.manifest import Kind
from denserk.io.model_files import find_model
from denserk.losses.pretraining import Condenser, DupMae, MaskedLanguageModel, Master, RetroMae
from denserk.reporting import track

logger = logging.getLogger(__name__)

OBJECTIVE_CLASSES: Mapping[PretrainingObjective, type[MaskedLanguageModel]] = {
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


def start_folder(run: PretrainRun, folder: Path, *, replace_outdated: bool = True) -> Path:
    """Return the folder of the model that a run starts from: --model, or a new one in `folder`.

    A new one is used again if its settings are equal; otherwise it is replaced, or, without
    `replace_outdated`, a MismatchError is raised.
    """
    settings = run.pretrain
    if settings.model is not None:
        head_files = OBJECTIVE_CLASSES[settings.objective].head_files
        _, model_folder = find_model(settings.model, extra_files=head_files)
        return model_folder
    if STREAM in settings.corpus:
        message = (
            "--corpus -: --architecture needs several passes, and standard input can be read once"
        )
        raise UsageError(message, "give a file")
    model = NewModel(run)
    plan = plan_of(model.settings, model.inputs, Kind.START)

    def write(unfinished_folder: Path, _: Path) -> dict[str, Any]:
        return model.write(unfinished_folder, folder)

    prepare_folder(folder, plan, write, replace_outdated=replace_outdated)
    return folder


class NewModel:
    """A randomly initialised BERT with a tokenizer: a given one, or one trained on the corpus."""

    def __init__(self, run: PretrainRun) -> None:
        assert run.pretrain.architecture is not None
        self._run = run
        self._architecture = run.pretrain.architecture
        self._positions = max(POSITIONS, run.units.max_length)
        self.settings: dict[str, Any] = {
            "architecture": self._architecture,
            "positions": self._positions,
            "seed": run.masking.seed,
        }
        self.inputs: dict[str, Any] = {"tokenizer": run.pretrain.tokenizer}
        if run.pretrain.tokenizer is None:
            units = as_json(run.units)
            self.settings["vocabulary_size"] = run.pretrain.vocabulary_size
            self.settings["corpus"] = as_json(run.corpus)
            self.settings["fields"] = units["fields"]
            self.settings["raw_text"] = units["raw_text"]
            self.inputs = {"corpus": run.pretrain.corpus}

    def write(self, unfinished_folder: Path, folder: Path) -> dict[str, Any]:
        """Write model and tokenizer to a folder that becomes `folder`; return what is recorded."""
        tokenizer = self._load_or_train_tokenizer()
        token_count = len(tokenizer)
        model = new_model(self._architecture, token_count, self._run.masking.seed, self._positions)
        with write_errors(unfinished_folder):
            tokenizer.save_pretrained(unfinished_folder)
            model.save_pretrained(unfinished_folder)
        logger.info(
            f"randomly initialised: {self._architecture}, a vocabulary of {token_count:,}: {folder}"
        )
        return {"vocabulary": token_count}

    def _load_or_train_tokenizer(self) -> Any:
        """Load the given tokenizer, or train one."""
        settings = self._run.pretrain
        if settings.tokenizer is None:
            sources = ", ".join(settings.corpus)
            texts = partial(_texts, self._run)
            return train_vocabulary(texts, settings.vocabulary_size, sources, self._positions)
        _, tokenizer_folder = find_model(settings.tokenizer, "--tokenizer")
        tokenizer = load_tokenizer(tokenizer_folder)
        if tokenizer.mask_token_id is None or tokenizer.cls_token_id is None:
            message = f"--tokenizer {settings.tokenizer} has no [MASK] or no [CLS] token"
            raise UsageError(message, "give one of BERT's kind, or leave it out to train one")
        return tokenizer


def _texts(run: PretrainRun) -> Iterator[str]:
    """Yield the text of every document, its fields one below the other."""
    with track("training the vocabulary", None, "documents") as progress:
        for source in run.pretrain.corpus:
            for document in documents_of(run, source):
                progress.advance()
                yield "\n".join(document.texts)


def train_vocabulary(
    texts: Callable[[], Iterator[str]], size: int, source: str, positions: int
) -> BertTokenizer:
    """Train a lower-casing WordPiece tokenizer as BERT's, the same one for the same texts.

    The library's trainer orders characters by hash, and breaks ties between pairs by that order. A
    first pass therefore finds the most frequent characters, and gives them in a fixed order.
    """
    normalizer = normalizers.BertNormalizer(lowercase=True)
    counts: Counter[str] = Counter()
    for text in texts():
        counts.update(normalizer.normalize_str(text))
    characters = [character for character in counts if not character.isspace()]
    ranked = sorted(characters, key=lambda character: (-counts[character], character))
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


def new_model(
    architecture: Architecture, vocabulary: int, seed: int, positions: int
) -> BertForMaskedLM:
    """Return a randomly initialised BERT with its MLM head, for that many tokens and positions."""
    layers, hidden = SIZES[architecture]
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
