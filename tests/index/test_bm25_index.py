"""BM25 against the formula, word by word."""

import math

import numpy as np
import pytest

from denserk.errors import InputError
from denserk.index.bm25_index import Bm25Builder, Bm25Index
from denserk.settings.retrieval import Bm25Settings, StopWords

TEXTS = ["a cat sat", "the cat and the dog and the cat", "", "a fish", "dog dog dog fish", "zebra"]
PLAIN = {"stemmer": "none", "stopwords": StopWords.NONE}


def by_hand(texts, query, k1, b):
    """Lucene's formula as printed, over lists of words."""
    passages = [text.split() for text in texts]
    mean = sum(map(len, passages)) / len(passages)
    scores = []
    for passage in passages:
        score = 0.0
        for word in query.split():
            n = sum(word in other for other in passages)
            tf = passage.count(word)
            if tf:
                idf = math.log(1 + (len(passages) - n + 0.5) / (n + 0.5))
                score += idf * tf / (tf + k1 * (1 - b + b * len(passage) / mean))
        scores.append(score)
    return scores


def built(folder, texts, **settings):
    builder = Bm25Builder(Bm25Settings(**settings))
    for text in texts:
        builder.add(text)
    builder.write(folder)
    return Bm25Index(folder, Bm25Settings(**settings), threads=2)


@pytest.mark.parametrize(("k1", "b"), [(0.9, 0.4), (1.2, 0.75), (0.0, 0.0), (2.0, 1.0)])
@pytest.mark.parametrize("query", ["cat", "cat dog", "fish fish zebra", "the unknown a"])
def test_scores_are_those_of_the_formula(tmp_path, k1, b, query):
    index = built(tmp_path, TEXTS, k1=k1, b=b, **PLAIN)
    scores, rows = index.search(np.array([query, query], dtype=object), len(TEXTS))
    right = by_hand(TEXTS, query, k1, b)
    order = sorted((row for row, s in enumerate(right) if s > 0), key=lambda r: (-right[r], r))
    for i in range(2):
        assert rows[i].tolist() == order + [-1] * (len(TEXTS) - len(order))
        np.testing.assert_allclose(scores[i][: len(order)], [right[r] for r in order], rtol=1e-5)
        assert (scores[i][len(order) :] == -np.inf).all()


def test_queries_are_stemmed_as_passages_are(tmp_path):
    index = built(tmp_path, ["houses of cats", "boats"])
    _, rows = index.search(np.array(["the housing of a cat", "of the", "?"], dtype=object), 2)
    assert rows.tolist() == [[0, -1], [-1, -1], [-1, -1]]
    assert len(index) == 2


def test_broken_files_are_refused(tmp_path):
    built(tmp_path, TEXTS)
    (tmp_path / "params.index.json").write_text("{")
    with pytest.raises(InputError, match="bm25s cannot read"):
        Bm25Index(tmp_path, Bm25Settings())
