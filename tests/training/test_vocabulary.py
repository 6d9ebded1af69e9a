"""Vocabularies and weights from nothing: the same every time, and as BERT has them."""

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, BertTokenizer

from denserk.config.pretraining import Architecture
from denserk.errors import InputError
from denserk.training.pretrain import new_model, train_vocabulary
from tests.conftest import PASSAGES, SPECIALS

TEXTS = [f"{title}. {text}" for title, text in PASSAGES.values()] + [
    "The river-bank's boats: 3 fished, 12 didn't!",
    "Élan and naïveté of the 北京 river; \u201cquoted\u201d words...",
]
PRINT = """
from denserk.training.pretrain import train_vocabulary
from tests.training.test_vocabulary import TEXTS
print(train_vocabulary(lambda: iter(TEXTS * 3), 200, "texts").backend_tokenizer.to_str())
"""


def trained(texts=TEXTS, size=200):
    return train_vocabulary(lambda: iter(texts), size, "texts").backend_tokenizer


def entries(tokenizer):
    """A vocabulary in the order of its ids."""
    found = tokenizer.get_vocab()
    assert sorted(found.values()) == list(range(len(found)))
    return sorted(found, key=found.get)


def test_the_same_texts_give_the_same_vocabulary():
    assert len({trained().to_str() for _ in range(5)}) == 1


@pytest.mark.slow
def test_another_process_gives_the_same_vocabulary():
    other = subprocess.run(
        [sys.executable, "-c", PRINT],
        env=os.environ | {"PYTHONHASHSEED": "12345", "TOKENIZERS_PARALLELISM": "true"},
        capture_output=True,
        check=True,
        text=True,
    )
    assert other.stdout.strip() == trained(TEXTS * 3).to_str()


def test_ids_are_specials_then_continuing_characters_then_characters_then_merges():
    found = entries(trained())
    assert found[:5] == SPECIALS
    continuing = [entry for entry in found if entry.startswith("##") and len(entry) == 3]
    alone = [entry for entry in found if len(entry) == 1]
    assert found[5 : 5 + len(continuing)] == sorted(continuing)
    assert found[5 + len(continuing) : 5 + len(continuing) + len(alone)] == sorted(alone)
    assert all(len(entry.removeprefix("##")) > 1 for entry in found[5:][len(continuing + alone) :])


@given(st.text(alphabet=st.sampled_from("abeilnrtuvé 北.,'-\u201c!²\n\u00a0\u0301A")))
def test_texts_are_split_as_bert_splits_them(text):
    ours, bert = SPLITTING
    assert ours.encode(text).ids == bert(text)["input_ids"]


SPLITTING = (tokenizer := trained()), BertTokenizer(vocab=tokenizer.get_vocab())


def test_without_text_there_is_no_vocabulary():
    with pytest.raises(InputError, match="texts: found no text to train a vocabulary on"):
        trained([" \n\t"])


def test_the_saved_folder_is_a_tokenizer_of_transformers(tmp_path):
    made = trained()
    train_vocabulary(lambda: iter(TEXTS), 200, "texts", positions=64).save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    text = "The old river, the moon."
    assert loaded(text)["input_ids"] == made.encode(text).ids
    types = loaded("the moon", "a cat")["token_type_ids"]
    assert types == made.encode("the moon", "a cat").type_ids
    roles = (loaded.pad_token, loaded.unk_token, loaded.cls_token, loaded.sep_token)
    assert [*roles, loaded.mask_token] == SPECIALS
    assert (loaded.model_max_length, len(loaded)) == (64, made.get_vocab_size())
    assert loaded.tokenize("[MASK] moon")[0] == "[MASK]"


PARAMETERS = {
    Architecture.TINY: 4_416_698,
    Architecture.MINI: 11_201_594,
    Architecture.SMALL: 28_795_194,
    Architecture.MEDIUM: 41_404_730,
    Architecture.BASE: 109_514_298,
}
"""Of BERT's miniatures and of bert-base with its MLM head, without a pooler."""


@pytest.mark.parametrize("architecture", Architecture)
def test_sizes_are_those_of_the_published_models(architecture):
    with torch.device("meta"):
        model = new_model(architecture, 30522, seed=1)
    assert model.num_parameters() == PARAMETERS[architecture]
