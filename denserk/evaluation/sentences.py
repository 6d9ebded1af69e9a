"""Measures of sentence embeddings: pairs against labels, and triplets."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]


def score_examples(vectors: Floats) -> NDArray[np.float64]:
    """Score examples from the embeddings of their sentences: (B, n, D) -> (B,).

    For pairs the cosine, 0 if a vector is zero; for triplets 1 where the positive is nearer and 0
    otherwise; NaN where a vector holds NaN.

    >>> score_examples(np.array([[[3.0, 0.0], [1.0, 1.0]]])).round(3)
    array([0.707])
    >>> score_examples(np.array([[[0.0], [1.0], [2.0]], [[0.0], [1.0], [-1.0]]]))
    array([1., 0.])
    """
    by_sentence = vectors.astype(np.float64).swapaxes(0, 1)  # (n, B, D)
    if len(by_sentence) == 3:
        return _score_triplets(*by_sentence)
    return _cosines(*by_sentence)


def _score_triplets(anchors: Floats, positives: Floats, negatives: Floats) -> NDArray[np.float64]:
    """Return where the positive is nearer to the anchor: (B, D) each -> (B,)."""
    to_positives = np.linalg.norm(anchors - positives, axis=1)
    to_negatives = np.linalg.norm(anchors - negatives, axis=1)
    is_undefined = np.isnan(to_positives - to_negatives)
    return np.where(is_undefined, np.nan, to_positives < to_negatives)


def _cosines(left: Floats, right: Floats) -> NDArray[np.float64]:
    """Return the cosine of each pair of vectors, 0 where one is zero: (B, D) each -> (B,)."""
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    products = (left * right).sum(1)
    cosines: NDArray[np.float64] = products / np.where(lengths > 0, lengths, 1)
    return cosines


def summarize_examples(scores: Floats, labels: Floats | None) -> tuple[str, float]:
    """Return a measure and its value: accuracy of triplets, or Spearman's correlation of pairs.

    scores: (N,), labels: (N,), or None for triplets. The correlation is that of scores with labels,
    0 where a side is constant.
    """
    from scipy.stats import spearmanr  # slow to import

    if labels is None:
        return "accuracy", float(scores.mean())
    if not np.ptp(scores) or not np.ptp(labels):
        return "spearman", 0.0
    return "spearman", float(spearmanr(scores, labels).statistic)
