from typing import Any

import pytest

from denserk.errors import UsageError
from denserk.settings.analysis import (
    AttentionEntropySettings,
    QueryLatencySettings,
    SentenceSimilaritySettings,
    WinningVectorSettings,
)


def test_a_stream_serves_one_model():
    assert SentenceSimilaritySettings(model=("a",), data="-").data == "-"
    with pytest.raises(UsageError, match="--data - serves one --model"):
        SentenceSimilaritySettings(model=("a", "b"), data="-")


ENTROPY: Any = AttentionEntropySettings, {"corpus": "c.jsonl"}
LATENCY: Any = QueryLatencySettings, {"topics": "q.tsv"}
LAYERS: Any = WinningVectorSettings, {"topics": "q.tsv", "corpus": "c.jsonl", "qrels": "q.txt"}


@pytest.mark.parametrize(
    ("kind", "more", "said"),
    [
        (ENTROPY, {"sample": 0}, "--sample 0: at least 1"),
        (ENTROPY, {"max_length": 2}, "--max-length 2: at least 3"),
        (LATENCY, {"sample": 0}, "--sample 0: at least 1"),
        (LATENCY, {"warm_up": -1}, "--warm-up -1: 0 or more"),
        (LAYERS, {"sample": 0}, "--sample 0: at least 1"),
        (LAYERS, {"depth": 0}, "--depth 0: at least 1"),
        (LAYERS, {"relevance_level": 0}, "--relevance-level 0: at least 1"),
        (LAYERS, {"qrels": None}, "no passages to look at"),
        (LAYERS, {"run": "-", "topics": "-"}, "two inputs are -"),
        *((each, {"plot": "x.gif"}, "it ends in") for each in (ENTROPY, LATENCY, LAYERS)),
        *((each, {"model": ("a", "a")}, "called a") for each in (ENTROPY, LATENCY, LAYERS)),
    ],
)
def test_what_cannot_be_measured(kind, more, said):
    settings, needed = kind
    settings(model=("a",), **needed)
    with pytest.raises(UsageError, match=said):
        settings(**{"model": ("a",), **needed, **more})


def test_outputs_have_names_of_their_own():
    kinds = (ENTROPY, LATENCY, LAYERS)
    outputs = [settings(model=("a",), **needed).output for settings, needed in kinds]
    assert outputs == ["attention-entropy.csv", "query-latency.csv", "layers.csv"]
