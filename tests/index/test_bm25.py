import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from denserk.config.retrieval import Bm25Settings, StopWords
from denserk.index.bm25 import Bm25Index, build_bm25

TEXTS = ["a cat sat", "the cat and the dog and the cat", "", "a fish", "dog dog dog fish", "zebra"]
PLAIN: dict[str, Any] = {"stemmer": "none", "stopwords": StopWords.NONE}


def scores_of_formula(texts, query, k1, b):
    """Lucene's formula as printed, over words."""
    passages = [Counter(text.split()) for text in texts]
    count = len(passages)
    mean_length = sum(passage.total() for passage in passages) / count
    scores = [0.0] * count
    for word in query.split():
        n = sum(word in passage for passage in passages)
        idf = math.log(1 + (count - n + 0.5) / (n + 0.5))
        for row, passage in enumerate(passages):
            tf = passage[word]
            length = passage.total()
            if tf:
                scores[row] += idf * tf / (tf + k1 * (1 - b + b * length / mean_length))
    return scores


def build(folder, texts, **settings):
    passages = [(f"d{number}", text) for number, text in enumerate(texts)]
    build_bm25(folder, iter(passages), Bm25Settings(**settings))
    return Bm25Index(folder, Bm25Settings(**settings), threads=2)


@pytest.mark.parametrize(("k1", "b"), [(0.9, 0.4), (0.0, 0.0), (2.0, 1.0)])
def test_scores_are_those_of_the_formula(tmp_path, k1, b):
    index = build(tmp_path, TEXTS, k1=k1, b=b, **PLAIN)
    queries = ["cat dog", "fish fish zebra", "the unknown a"]
    scores, rows = index.search(np.array(queries, dtype=object), len(TEXTS))
    for query, query_scores, query_rows in zip(queries, scores, rows.tolist(), strict=True):
        expected = scores_of_formula(TEXTS, query, k1, b)
        hits = [row for row, score in enumerate(expected) if score > 0]
        hits.sort(key=lambda row: (-expected[row], row))
        assert query_rows == hits + [-1] * (len(TEXTS) - len(hits))
        expected_scores = [expected[row] for row in hits]
        np.testing.assert_allclose(query_scores[: len(hits)], expected_scores, rtol=1e-5)
        assert (query_scores[len(hits) :] == -np.inf).all()
