"""How well vectors tell what sentences have to do with each other: STS-b's and Wiki sections' way.

Condenser's Tables 1 and 2. Of pairs: Spearman's correlation between the cosine of the two vectors
and the label. Of triplets: how often the positive is nearer to the anchor than the negative is, by
Euclidean distance. Axes: B examples of n sentences (2 or 3), D dimensions.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]


def score_examples(vectors: Floats) -> NDArray[np.float64]:
    """What one example says: (B, n, D) -> (B,).

    Returns:
        Of pairs the cosine, 0 beside a vector of zeros; of triplets 1 where the positive is nearer,
        and 0 where the negative is, or is as near; NaN of vectors that are no numbers.

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


def average_ranks(values: Floats) -> NDArray[np.float64]:
    """Ranks from 1 in ascending order; equal values share the mean of theirs. (N,) -> (N,).

    >>> average_ranks(np.array([0.2, 0.9, 0.2, 0.1]))
    array([2.5, 4. , 2.5, 1. ])
    """
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(sizes)
    ranks: NDArray[np.float64] = (last - (sizes - 1) / 2)[group]
    return ranks


def spearman(first: Floats, second: Floats) -> float:
    """The correlation of average ranks, -1 to 1; 0 where one side does not vary.

    >>> spearman(np.array([1.0, 2.0, 3.0]), np.array([0.1, 0.5, 0.4]))
    0.5
    """
    ranks = [average_ranks(values) for values in (first, second)]
    one, other = (each - each.mean() for each in ranks)
    lengths = np.sqrt((one @ one) * (other @ other))
    return float(one @ other / lengths) if lengths else 0.0


def figure_of(scores: Floats, labels: Floats | None) -> tuple[str, float]:
    """The measure of all examples, by its name: of pairs Spearman's correlation, else accuracy.

    Args:
        scores: (N,), see `score_examples`.
        labels: (N,), or None for triplets.
    """
    if labels is None:
        return "accuracy", float(scores.mean())
    return "spearman", spearman(scores, labels)
