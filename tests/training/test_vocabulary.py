"""Vocabularies and weights of new models: the same every time, and as in BERT."""

import pytest
import torch
from transformers import AutoTokenizer

from denserk.config.pretraining import Architecture
from denserk.training.pretrain import new_model, train_vocabulary
from tests.conftest import PASSAGES, SPECIALS

TEXTS = [f"{title}. {text}" for title, text in PASSAGES.values()] + [
    "The river-bank's boats: 3 fished, 12 didn't!",
    "Élan and naïveté of the 北京 river; \u201cquoted\u201d words...",
]


def trained(positions=512):
    return train_vocabulary(lambda: iter(TEXTS), 200, "texts", positions)


def test_the_same_texts_give_the_same_vocabulary():
    assert len({trained().backend_tokenizer.to_str() for _ in range(5)}) == 1


def test_the_saved_folder_is_a_tokenizer_of_transformers(tmp_path):
    made = trained(positions=64)
    made.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert len(loaded) == len(made) <= 200
    assert loaded.convert_ids_to_tokens([0, 1, 2, 3, 4]) == SPECIALS
    for text in TEXTS:
        assert loaded(text)["input_ids"] == made(text)["input_ids"]
        assert loaded.unk_token_id not in loaded(text)["input_ids"]
    assert loaded("the moon", "a cat")["token_type_ids"][-1] == 1
    assert loaded.model_max_length == 64
    assert loaded.tokenize("[MASK] moon")[0] == loaded.mask_token


@pytest.mark.parametrize(
    ("architecture", "parameters"),
    [(Architecture.TINY, 4_416_698), (Architecture.BASE, 109_514_298)],
)
def test_sizes_are_those_of_the_published_models(architecture, parameters):
    """Of BERT's miniatures and of bert-base with its MLM head, without a pooler."""
    with torch.device("meta"):
        model = new_model(architecture, 30522, seed=1)
    assert model.num_parameters() == parameters
