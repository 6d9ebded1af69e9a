import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from denserk.config.retrieval import Bm25Settings, StopWords
from denserk.index.bm25 import Bm25Index, build_bm25

TEXTS = ["a cat sat", "the cat and the dog and the cat", "", "a fish", "dog dog dog fish", "zebra"]
PLAIN: dict[str, Any] = {"stemmer": "none", "stopwords": StopWords.NONE}


def by_hand(texts, query, k1, b):
    """Lucene's formula as printed, over words."""
    passages = [Counter(text.split()) for text in texts]
    count = len(passages)
    mean = sum(passage.total() for passage in passages) / count
    scores = [0.0] * count
    for word in query.split():
        n = sum(word in passage for passage in passages)
        idf = math.log(1 + (count - n + 0.5) / (n + 0.5))
        for place, passage in enumerate(passages):
            tf, length = passage[word], passage.total()
            scores[place] += idf * tf / (tf + k1 * (1 - b + b * length / mean)) if tf else 0
    return scores


def built(folder, texts, **settings):
    passages = [(f"d{n}", text) for n, text in enumerate(texts)]
    build_bm25(folder, iter(passages), Bm25Settings(**settings))
    return Bm25Index(folder, Bm25Settings(**settings), threads=2)


@pytest.mark.parametrize(("k1", "b"), [(0.9, 0.4), (0.0, 0.0), (2.0, 1.0)])
def test_scores_are_those_of_the_formula(tmp_path, k1, b):
    index = built(tmp_path, TEXTS, k1=k1, b=b, **PLAIN)
    queries = ["cat dog", "fish fish zebra", "the unknown a"]
    scores, rows = index.search(np.array(queries, dtype=object), len(TEXTS))
    for query, found, places in zip(queries, scores, rows.tolist(), strict=True):
        right = by_hand(TEXTS, query, k1, b)
        order = sorted((row for row, s in enumerate(right) if s > 0), key=lambda r: (-right[r], r))
        assert places == order + [-1] * (len(TEXTS) - len(order))
        np.testing.assert_allclose(found[: len(order)], [right[r] for r in order], rtol=1e-5)
        assert (found[len(order) :] == -np.inf).all()
