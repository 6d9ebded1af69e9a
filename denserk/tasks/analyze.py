"""A trained model -> what it does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from denserk.analysis.sentence_similarity import figure_of, score_examples
from denserk.errors import DenserkError, InputError
from denserk.formats.csv_rows import write_rows
from denserk.formats.sentence_pairs import read_sentences
from denserk.modeling.text_encoder import NOTHING, TextEncoder
from denserk.records import SentenceExample
from denserk.reporting import SILENT, Reporter
from denserk.settings.analysis import SentenceSimilaritySettings
from denserk.settings.encoding import ComputeSettings

BLOCK = 1024
"""Examples encoded at once."""
HEADER = ("model", "data", "kind", "count", "measure", "value")


@dataclass(frozen=True)
class SentenceSimilarity:
    """How one model did: `kind` is pairs or triplets, `measure` spearman or accuracy."""

    model: str
    data: str
    kind: str
    count: int
    measure: str
    value: float

    def row(self) -> tuple[str, ...]:
        """The result under `HEADER`, as text."""
        counted = (self.kind, str(self.count), self.measure, f"{self.value:.4f}")
        return self.model, self.data, *counted


def sentence_similarity(
    settings: SentenceSimilaritySettings,
    representation: Mapping[str, Any] = NOTHING,
    text: Mapping[str, Any] = NOTHING,
    compute: ComputeSettings = ComputeSettings(),  # noqa: B008  (frozen)
    reporter: Reporter = SILENT,
) -> list[SentenceSimilarity]:
    """Measures models on pairs or triplets of sentences, and writes the table if asked to.

    Args:
        settings: which models and which sentences.
        representation: replaces what a model says about how its vectors are made.
        text: replaces what it says about texts; the settings of passages hold for sentences.
        compute: where and how.
        reporter: told of progress.

    Raises:
        UsageError, ModelError: a model or the data is not there, or cannot do what is asked.
        InputError: the data is broken, or its labels are all the same.
        DenserkError: a model gives vectors that are no numbers.
        OutputError: the table cannot be written.
    """
    found = []
    for name in settings.model:
        encoder = TextEncoder.load(name, representation, text, compute, reporter)
        found.append(_measure(name, encoder, settings.data, reporter))
    if settings.output is not None:
        write_rows(settings.output, [HEADER, *(each.row() for each in found)])
    return found


def _measure(name: str, encoder: TextEncoder, data: str, reporter: Reporter) -> SentenceSimilarity:
    """One model's result, in memory that does not grow with the data beyond a number an example."""
    scores, labels, size = [], [], 2
    examples = read_sentences(data)
    with reporter.track(f"encoding {data}", None, "examples") as progress:
        while block := list(islice(examples, BLOCK)):
            size = len(block[0].texts)
            scores.append(_scores(encoder, block))
            labels += [example.label for example in block if example.label is not None]
            progress.advance(len(block))
    together = np.concatenate(scores)
    if np.isnan(together).any():
        raise DenserkError(f"{name} gives vectors that are no numbers", "use --dtype float32")
    if size == 2 and len(set(labels)) < 2:
        found = f"the label {labels[0]:g} alone"
        raise InputError(data, None, found, "labels that differ, to correlate with")
    measure, value = figure_of(together, np.array(labels) if size == 2 else None)
    kind = "pairs" if size == 2 else "triplets"
    return SentenceSimilarity(name, data, kind, len(together), measure, value)


def _scores(encoder: TextEncoder, block: Sequence[SentenceExample]) -> np.ndarray[Any, Any]:
    """(B,) see `score_examples`."""
    texts = [text for example in block for text in example.texts]
    vectors = encoder.encode_sentences(texts)
    return score_examples(vectors.reshape(len(block), -1, encoder.dimension))
