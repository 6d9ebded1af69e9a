import pytest

from denserk.errors import UsageError
from denserk.settings.analysis import SentenceSimilaritySettings


def test_a_stream_serves_one_model():
    assert SentenceSimilaritySettings(model=("a",), data="-").data == "-"
    with pytest.raises(UsageError, match="--data - serves one --model"):
        SentenceSimilaritySettings(model=("a", "b"), data="-")
