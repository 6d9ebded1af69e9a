"""A tokenizer of the tiny vocabulary, and training files made of examples."""

from collections.abc import Callable
from pathlib import Path

import pytest

from denserk.config.encoding import TextSettings
from denserk.data.tokenization import TextTokenizer
from tests.support.tiny_models import tiny_tokenizer
from tests.support.toy import VOCABULARY
from tests.support.training_examples import jsonl


@pytest.fixture(scope="session")
def tokenizer() -> TextTokenizer:
    """Texts of at most 12 (queries) and 16 (passages) tokens."""
    settings = TextSettings(query_max_length=12, passage_max_length=16)
    return TextTokenizer(tiny_tokenizer("bert", VOCABULARY), settings)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """`write(objects, "train.jsonl")`: a file of JSON lines in the test's folder; its path."""
    return lambda objects, name="train.jsonl": jsonl(tmp_path / name, objects)
