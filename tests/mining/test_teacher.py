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
from tests.data.conftest import inline, jsonl

CPU = ComputeSettings(device="cpu")


def example(query, *texts):
    positive, *negatives = (Candidate(f"1-{text}", text, score=7.0) for text in texts)
    return TrainingExample("1", query, (positive,), tuple(negatives))


@pytest.mark.parametrize(
    ("given", "words", "hint"),
    [
        (example("", "c"), "query 1 without its text", "--queries"),
        (example("q", "c", ""), "passage 1- of query 1 without its text", "--corpus"),
        (example("q", "c", "d"), "the score nan for passage 1-d of query 1", "broken"),
    ],
)
def test_what_a_teacher_cannot_score(given, words, hint):
    with pytest.raises(InputError, match=words) as refusal:
        list(scored([given], lambda *_: np.array([1, np.nan], dtype=np.float32), "train"))
    assert hint in str(refusal.value.hint)


@pytest.mark.parametrize("form", ["tevatron", "flag"])
def test_convert_writes_a_cross_encoder_s_scores(tmp_path, tiny_reranker, form):
    train = jsonl(tmp_path / "train.jsonl", [inline(1, 1, 2), inline(2, 2, 1)])
    target, model = tmp_path / "scored.json", str(tiny_reranker())
    settings = ConversionSettings(to_format=form, teacher=model)
    assert convert(train, str(target), settings, compute=CPU).count == 2
    scorer = PairScorer(model, compute=CPU)
    for found in read_training(target, TrainingFormat(form)):
        candidates = (*found.positives, *found.negatives)
        passages = [Passage(c.docid, c.text) for c in candidates]
        expected = scorer.score([Query(found.qid, found.query)] * 3, passages)
        got = [c.score for c in candidates if c.score is not None]
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)
