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
    words: list[list[int]] = []
    inside = False
    for place, name in enumerate(NAMES[i] for i in ids):
        special = name.startswith("[") and name.endswith("]")
        if name.startswith("##") and inside:
            words[-1].append(place)
        elif not special:
            words.append([place])
        inside = not special
    return words


def readings(texts):
    """Each text of a masked batch: (its tokens as they were, which of them have a label)."""
    found = []
    for seen, real, labels in zip(
        texts.tokens.input_ids, texts.tokens.attention_mask, texts.labels, strict=True
    ):
        assert real.tolist() == sorted(real.tolist(), reverse=True)
        length = int(real.sum())
        assert (seen[0], seen[length - 1]) == (ENTRIES.cls_id, ENTRIES.sep_id)
        assert (seen[length:] == ENTRIES.pad_id).all()
        assert (labels[length:] == IGNORED).all()
        assert labels[0] == labels[length - 1] == IGNORED
        asked = labels[1 : length - 1] != IGNORED
        ids = labels[1 : length - 1].where(asked, seen[1 : length - 1])
        found.append((ids.tolist(), asked.tolist()))
    return found


def is_whole(ids, asked):
    """Whether a mask takes words whole, and no special token."""
    words = words_from(ids)
    whole = all(len({asked[place] for place in word}) == 1 for word in words)
    return whole and sum(asked) == sum(asked[place] for word in words for place in word)


def keeps_uniform_law(reading, rate, extra=0):
    """Whether a mask takes whole words within the budget, which no other word would still fit."""
    ids, asked = reading
    left = max(1, round(rate * (len(ids) + extra))) - sum(asked)
    out = [word for word in words_from(ids) if not asked[word[0]]]
    return is_whole(ids, asked) and left >= 0 and all(len(word) > left for word in out)
