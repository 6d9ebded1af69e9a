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
    exact = vectors.astype(np.float64)
    if exact.shape[1] == 3:
        anchor, positive, negative = exact.swapaxes(0, 1)
        near, far = (np.linalg.norm(anchor - other, axis=1) for other in (positive, negative))
        return np.where(np.isnan(near - far), np.nan, near < far)
    first, second = exact.swapaxes(0, 1)
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    products: NDArray[np.float64] = (first * second).sum(1) / np.where(lengths > 0, lengths, 1)
    return products


def figure_of(scores: Floats, labels: Floats | None) -> tuple[str, float]:
    """Return the measure: accuracy of triplets, or Spearman's correlation of pairs with labels.

    scores: (N,), labels: (N,), or None for triplets. The correlation is 0 where a side is constant.
    """
    from scipy.stats import spearmanr  # slow to import

    if labels is None:
        return "accuracy", float(scores.mean())
    constant = not np.ptp(scores) or not np.ptp(labels)
    return "spearman", 0.0 if constant else float(spearmanr(scores, labels).statistic)
