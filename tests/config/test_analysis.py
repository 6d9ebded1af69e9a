from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from denserk.config.analysis import (
    AttentionEntropySettings,
    QueryLatencySettings,
    SentenceSimilaritySettings,
    SeveralModels,
    WinningVectorSettings,
)
from denserk.errors import UsageError


def test_a_stream_serves_one_model():
    assert SentenceSimilaritySettings(model=("a",), data="-").data == "-"
    with pytest.raises(UsageError, match="--data -"):
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
        (LATENCY, {"warm_up": -1}, "--warm-up -1"),
        (LAYERS, {"sample": 0}, "--sample 0: at least 1"),
        (LAYERS, {"depth": 0}, "--depth 0: at least 1"),
        (LAYERS, {"relevance_level": 0}, "--relevance-level 0: at least 1"),
        (LAYERS, {"qrels": None}, "--qrels|no passages"),
        (LAYERS, {"run": "-", "topics": "-"}, "standard input"),
        *((each, {"plot": "x.gif"}, "--plot") for each in (ENTROPY, LATENCY, LAYERS)),
        *((each, {"model": ("a", "a")}, "labels: a") for each in (ENTROPY, LATENCY, LAYERS)),
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


@dataclass(frozen=True)
class Example(SeveralModels):
    model: tuple[str, ...]
    output: str = "example.csv"
    plot: str | None = None


@pytest.mark.parametrize(
    ("models", "names"),
    [
        (("runs/a", "Luyu/condenser", "mean"), ["a", "condenser", "mean"]),
        (("BERT=runs/a", "fine tuned=runs/b/"), ["BERT", "fine tuned"]),
        (("runs/a", "old/a", "x/b/"), ["runs/a", "old/a", "b"]),
        (("runs/lr=1e-4", "./k=v", "."), ["lr=1e-4", "k=v", "."]),
        (("a=runs/x=y",), ["a"]),
        (("a=b/c", "runs/a"), ["a", "runs/a"]),
    ],
)
def test_curves_are_called_by_label_or_folder(models, names):
    labelled = Example(models).labelled
    assert [label for label, _ in labelled] == names
    for model, (label, folder) in zip(models, labelled, strict=True):
        assert model in (folder, f"{label}={folder}")


@pytest.mark.parametrize(
    ("models", "more", "said"),
    [
        (("runs/a", "runs/a"), {}, "labels.* runs/a"),
        (("x=runs/a", "x=runs/b"), {}, "labels.* x"),
        (("=runs/a",), {}, "--model LABEL=FOLDER"),
        (("a=",), {}, "--model LABEL=FOLDER"),
        (("a",), {"plot": "x.gif"}, r"--plot x\.gif"),
        (("a",), {"output": "x.png"}, "--output x"),
        (("a",), {"output": "x.svg", "plot": "x.svg"}, "--output x"),
    ],
)
def test_what_cannot_be_drawn(models, more, said):
    with pytest.raises(UsageError, match=said):
        Example(models, **more)


@pytest.mark.parametrize(
    ("more", "picture"),
    [
        ({}, Path("example.png")),
        ({"output": "runs/e.csv"}, Path("runs/e.png")),
        ({"output": "-"}, None),
        ({"output": "-", "plot": "e.pdf"}, Path("e.pdf")),
    ],
)
def test_where_the_curves_go(more, picture):
    assert Example(("a",), **more).picture == picture
