"""Prepared pre-training text of a few words, and what its masked batches hold."""

from pathlib import Path

from denserk.config.pretraining import (
    MaskingSettings,
    MasterTask,
    PretrainingObjective,
    PretrainingObjectiveSettings,
    PretrainOptimizerSettings,
    PretrainRun,
    PretrainSettings,
    TextUnitSettings,
)
from denserk.data.masking import IGNORED, SubwordTokens
from denserk.data.pretraining_batches import PretrainingBatches
from denserk.data.pretraining_data import prepare
from tests.support.tiny_models import tiny_tokenizer
from tests.support.toy import VOCABULARY
from tests.support.training_examples import jsonl

EXAMPLES = ["play", "##ing", "guitar", "##ist", "capital", "fran", "##ce", "zyx", "song"]
TOKENIZER = tiny_tokenizer("bert", [*VOCABULARY, *EXAMPLES])
ENTRIES = SubwordTokens.of(TOKENIZER)
NAMES = ENTRIES.names
SEP = TOKENIZER.sep_token_id
MLM = PretrainingObjective.MLM
CONDENSER = PretrainingObjective.CONDENSER
COCONDENSER = PretrainingObjective.COCONDENSER
MASTER = PretrainingObjective.MASTER
RETROMAE = PretrainingObjective.RETROMAE
DUPMAE = PretrainingObjective.DUPMAE


def ids_of(tokens):
    return [NAMES.index(token) for token in tokens.split()]


def store_of(folder, records, objective=MASTER, max_length=40):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    source = jsonl(folder / "ids.jsonl", records)
    units = TextUnitSettings(max_length=max_length, short_blocks=0.0)
    return prepare(run_of([source], objective, units=units), folder / "prepared", TOKENIZER)


def run_of(sources, kind, expansions=None, **sections):
    """A pre-training run of an objective, with `sections` of its settings."""
    files = {"corpus": tuple(sources), "expansions": expansions, "output": "out"}
    return PretrainRun(PretrainSettings(objective=kind, model="model", **files), **sections)


def batches_of(
    store, objective=MASTER, max_length=40, batch_size=1, masking=None, tasks=MasterTask, **options
):
    run = run_of(
        ["corpus.jsonl"],
        objective,
        units=TextUnitSettings(max_length=max_length),
        masking=masking or MaskingSettings(mlm_probability=0.3),
        objective=PretrainingObjectiveSettings(tasks=tuple(tasks)),
        optimizer=PretrainOptimizerSettings(batch_size=batch_size),
    )
    return PretrainingBatches(run, store, TOKENIZER, **options)


def words_from(ids):
    """Return the positions of the subword tokens of each word; special tokens are in none."""
    words: list[list[int]] = []
    follows_a_word = False
    for position, token_id in enumerate(ids):
        token = NAMES[token_id]
        is_special = token.startswith("[") and token.endswith("]")
        if token.startswith("##") and follows_a_word:
            words[-1].append(position)
        elif not is_special:
            words.append([position])
        follows_a_word = not is_special
    return words


def readings(texts):
    """Return each text of a masked batch: (its original tokens, which of them have a label)."""
    readings_of_texts = []
    for input_ids, is_token, labels in zip(
        texts.tokens.input_ids, texts.tokens.attention_mask, texts.labels, strict=True
    ):
        assert is_token.tolist() == sorted(is_token.tolist(), reverse=True)
        length = int(is_token.sum())
        assert (input_ids[0], input_ids[length - 1]) == (ENTRIES.cls_id, ENTRIES.sep_id)
        assert (input_ids[length:] == ENTRIES.pad_id).all()
        assert (labels[length:] == IGNORED).all()
        assert labels[0] == labels[length - 1] == IGNORED
        inner_labels = labels[1 : length - 1]
        has_label = inner_labels != IGNORED
        original_ids = inner_labels.where(has_label, input_ids[1 : length - 1])
        readings_of_texts.append((original_ids.tolist(), has_label.tolist()))
    return readings_of_texts


def is_whole(ids, has_label):
    """Return whether a mask takes words whole, and no special token."""
    tokens_of_words = 0
    for word in words_from(ids):
        labels_of_word = {has_label[position] for position in word}
        if len(labels_of_word) > 1:
            return False
        if labels_of_word == {True}:
            tokens_of_words += len(word)
    return sum(has_label) == tokens_of_words


def keeps_uniform_law(reading, rate, extra=0):
    """Return whether a mask takes whole words up to its budget: no other word fits in the rest."""
    ids, has_label = reading
    budget = max(1, round(rate * (len(ids) + extra)))
    rest = budget - sum(has_label)
    if rest < 0 or not is_whole(ids, has_label):
        return False
    unmasked_words = [word for word in words_from(ids) if not has_label[word[0]]]
    return all(len(word) > rest for word in unmasked_words)
