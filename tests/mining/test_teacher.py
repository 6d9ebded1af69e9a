import json

import numpy as np
import pytest

from denserk.config.encoding import ComputeSettings
from denserk.config.formats import ConversionSettings, TrainingFormat
from denserk.conversion import convert
from denserk.errors import InputError
from denserk.io.training import read_training
from denserk.mining.mining import scored
from denserk.models.cross_encoder import PairScorer
from denserk.records import Candidate, Passage, Query, TrainingExample
from tests.conftest import PASSAGES, QUERIES

CPU = ComputeSettings(device="cpu")


class Lengths:
    """Scores a pair by the lengths of its texts."""

    def score(self, queries, passages):
        pairs = zip(queries, passages, strict=True)
        return np.array([len(q.text) + len(p.text) / 100 for q, p in pairs], dtype=np.float32)


def example(qid, query, positives, negatives, **more):
    def candidates(texts):
        return tuple(Candidate(f"{qid}-{text}", text, score=7.0) for text in texts)

    return TrainingExample(qid, query, candidates(positives), candidates(negatives), **more)


@pytest.mark.parametrize(
    ("given", "words", "hint"),
    [
        (example("1", "", ["c"], []), "query 1 without its text", "--queries"),
        (example("1", "q", ["c"], [""]), "passage 1- of query 1 without its text", "--corpus"),
    ],
)
def test_a_teacher_needs_texts(given, words, hint):
    with pytest.raises(InputError, match=words) as refusal:
        list(scored([given], Lengths().score, "train"))
    assert hint in str(refusal.value.hint)


def test_a_score_that_is_no_number():
    class Broken:
        def score(self, queries, passages):
            return np.array([1, np.nan], dtype=np.float32)

    with pytest.raises(InputError, match="the score nan for passage 1-d of query 1"):
        list(scored([example("1", "ab", ["c"], ["d"])], Broken().score, "train"))


@pytest.fixture
def train(tmp_path):
    def passage(docid):
        return {"docid": docid, "title": PASSAGES[docid][0], "text": PASSAGES[docid][1]}

    path = tmp_path / "train.jsonl"
    with path.open("w") as out:
        for qid, positive, negatives in (("q1", "d3", ["d1", "d2"]), ("q2", "d1", ["d4"])):
            record = {
                "query_id": qid,
                "query": QUERIES[qid],
                "positive_passages": [passage(positive)],
                "negative_passages": [passage(docid) for docid in negatives],
            }
            out.write(json.dumps(record) + "\n")
    return path


@pytest.mark.parametrize("form", ["tevatron", "flag"])
def test_convert_writes_a_cross_encoder_s_scores(tmp_path, train, tiny_reranker, form):
    target = tmp_path / "scored.json"
    settings = ConversionSettings(to_format=form, teacher=str(tiny_reranker()))
    assert convert(str(train), str(target), settings, compute=CPU).count == 2
    scorer = PairScorer(str(tiny_reranker()), compute=CPU)
    by_text = {text: Passage(docid, text, title) for docid, (title, text) in PASSAGES.items()}
    for found in read_training(target, TrainingFormat(form)):
        candidates = (*found.positives, *found.negatives)
        query = Query(found.qid, found.query)
        passages = [by_text[c.text] for c in candidates]
        expected = scorer.score([query] * len(passages), passages)
        got = [c.score for c in candidates if c.score is not None]
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)
