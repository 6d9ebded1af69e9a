"""Sentence similarity: pairs with labels (STS-B) and triplets (Wikipedia sections).

Condenser's Tables 1 and 2. For pairs: Spearman's correlation of the cosine with the label. For
triplets: how often the positive is nearer to the anchor than the negative, by Euclidean distance.
Axes: B examples of n sentences (2 or 3), D dimensions.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from denserk.config.analysis import SentenceSimilaritySettings
from denserk.config.encoding import ComputeSettings
from denserk.errors import DenserkError, InputError
from denserk.io.files import write_rows
from denserk.io.training import read_sentences
from denserk.models.text_encoder import NOTHING, TextEncoder
from denserk.reporting import track

Floats = NDArray[np.floating]

BLOCK = 1024  # examples encoded at once
HEADER = ("model", "data", "kind", "count", "measure", "value")


@dataclass(frozen=True)
class SentenceSimilarity:
    """The result of one model: `kind` is pairs or triplets, `measure` spearman or accuracy."""

    model: str
    data: str
    kind: str
    count: int
    measure: str
    value: float

    def row(self) -> tuple[str, ...]:
        """Return the result under `HEADER`, as text."""
        counted = (self.kind, str(self.count), self.measure, f"{self.value:.4f}")
        return self.model, self.data, *counted


def sentence_similarity(
    settings: SentenceSimilaritySettings,
    representation: Mapping[str, Any] = NOTHING,
    text: Mapping[str, Any] = NOTHING,
    compute: ComputeSettings = ComputeSettings(),  # noqa: B008  (frozen)
) -> list[SentenceSimilarity]:
    """Measure models on pairs or triplets of sentences; write the table if asked to.

    The text settings of passages apply to sentences.

    Raises:
        InputError: the data is broken, or its labels are all the same.
        DenserkError: an embedding is not a number.
    """
    found = []
    for name in settings.model:
        encoder = TextEncoder.load(name, representation, text, compute)
        found.append(_measure(name, encoder, settings.data))
    if settings.output is not None:
        write_rows(settings.output, [HEADER, *(each.row() for each in found)])
    return found


def score_examples(vectors: Floats) -> NDArray[np.float64]:
    """Score examples from the embeddings of their sentences: (B, n, D) -> (B,).

    Returns:
        For pairs the cosine, 0 if a vector is zero; for triplets 1 where the positive is nearer
        and 0 otherwise; NaN where a vector holds NaN.

    >>> score_examples(np.array([[[3.0, 0.0], [1.0, 1.0]]])).round(3)
    array([0.707])
    >>> score_examples(np.array([[[0.0], [1.0], [2.0]], [[0.0], [1.0], [-1.0]]]))
    array([1., 0.])
    """
    exact = vectors.astype(np.float64)
    if exact.shape[1] == 3:
        anchor, positive, negative = exact.swapaxes(0, 1)
        near, far = (np.linalg.norm(anchor - other, axis=1) for other in (positive, negative))
        return np.where(np.isnan(near - far), np.nan, near < far)
    first, second = exact.swapaxes(0, 1)
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    products: NDArray[np.float64] = (first * second).sum(1) / np.where(lengths > 0, lengths, 1)
    return products


def spearman(first: Floats, second: Floats) -> float:
    """Return Spearman's correlation, -1 to 1; 0 where one side is constant.

    >>> round(spearman(np.array([1.0, 2.0, 3.0]), np.array([0.1, 0.5, 0.4])), 9)
    0.5
    """
    from scipy.stats import spearmanr  # slow to import

    if not np.ptp(first) or not np.ptp(second):
        return 0.0
    return float(spearmanr(first, second).statistic)


def figure_of(scores: Floats, labels: Floats | None) -> tuple[str, float]:
    """Return name and value of the measure over all examples.

    Args:
        scores: (N,), see `score_examples`.
        labels: (N,), or None for triplets.
    """
    if labels is None:
        return "accuracy", float(scores.mean())
    return "spearman", spearman(scores, labels)


def _measure(name: str, encoder: TextEncoder, data: str) -> SentenceSimilarity:
    """Measure one model, keeping one number per example in memory."""
    scores, labels, size = [], [], 2
    examples = read_sentences(data)
    with track(f"encoding {data}", None, "examples") as progress:
        while block := list(islice(examples, BLOCK)):
            size = len(block[0].texts)
            vectors = encoder.encode_sentences([text for each in block for text in each.texts])
            scores.append(score_examples(vectors.reshape(len(block), size, encoder.dimension)))
            labels += [example.label for example in block if example.label is not None]
            progress.advance(len(block))
    together = np.concatenate(scores)
    if np.isnan(together).any():
        raise DenserkError(f"{name}: an embedding is not a number (NaN)", "use --dtype float32")
    if size == 2 and len(set(labels)) < 2:
        found = f"only the label {labels[0]:g}"
        raise InputError(data, None, found, "labels that differ, to correlate with")
    measure, value = figure_of(together, np.array(labels) if size == 2 else None)
    kind = "pairs" if size == 2 else "triplets"
    return SentenceSimilarity(name, data, kind, len(together), measure, value)
