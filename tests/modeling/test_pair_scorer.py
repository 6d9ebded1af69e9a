import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from denserk.errors import ModelError, UsageError
from denserk.modeling.cross_encoder import PairScorer
from denserk.records import Passage, Query
from denserk.settings.encoding import ComputeSettings
from tests.conftest import PASSAGES, QUERIES
from tests.reporters import Heard
from tests.tiny_models import RERANKERS

CPU = ComputeSettings(device="cpu")
ASKED = [Query(qid, text) for qid, text in QUERIES.items() for _ in PASSAGES]
GIVEN = [Passage(d, text, title) for _ in QUERIES for d, (title, text) in PASSAGES.items()]


@pytest.mark.parametrize("kind", RERANKERS)
def test_scores_are_those_of_transformers(tiny_reranker, kind):
    """Tokenised as pairs by transformers, one at a time, with the token types it makes."""
    folder = tiny_reranker(kind)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    expected = []
    for query, passage in zip(ASKED, GIVEN, strict=True):
        text = f"{passage.title} {passage.text}".strip()
        inputs = tokenizer(query.text, text, return_tensors="pt")
        assert ("token_type_ids" in inputs) == (kind in ("bert", "electra"))
        with torch.no_grad():
            expected.append(model(**inputs).logits.item())
    got = PairScorer.load(str(folder), compute=CPU).score(ASKED, GIVEN)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", RERANKERS)
@pytest.mark.parametrize(
    "compute", [{"batch_tokens": 1}, {"batch_tokens": 60}, {"batch_size": 3, "threads": 1}]
)
def test_scores_do_not_depend_on_their_batch(tiny_reranker, kind, compute):
    threads = torch.get_num_threads()
    folder, own = str(tiny_reranker(kind)), ComputeSettings(device="cpu", **compute)
    together = PairScorer.load(folder, compute=CPU).score(ASKED, GIVEN)
    apart = PairScorer.load(folder, compute=own).score(ASKED, GIVEN)
    torch.set_num_threads(threads)
    np.testing.assert_allclose(apart, together, rtol=0, atol=1e-5)


def test_nothing_to_score(tiny_reranker):
    assert PairScorer.load(str(tiny_reranker()), compute=CPU).score([], []).shape == (0,)


def test_texts_and_lengths_may_be_replaced(tiny_reranker):
    folder = str(tiny_reranker())
    plain = PairScorer.load(folder, compute=CPU).score(ASKED, GIVEN)
    untitled = PairScorer.load(folder, {"fields": ["text"]}, compute=CPU).score(ASKED, GIVEN)
    without = [passage._replace(title="") for passage in GIVEN]
    np.testing.assert_array_equal(
        untitled, PairScorer.load(folder, compute=CPU).score(ASKED, without)
    )
    assert (untitled != plain).any()
    short = PairScorer.load(folder, {"query_max_length": 5}, 9, CPU)
    assert short.joiner.limit == 9
    assert (short.score(ASKED, GIVEN) != plain).any()


def test_it_tells_what_it_took_where_the_folder_does_not_say(tiny_reranker):
    notes: list[str] = []

    class Noting(Heard):
        def note(self, text: str) -> None:
            notes.append(text)

    Noting()

    PairScorer.load(str(tiny_reranker()), compute=CPU)
    assert notes == [
        f"{tiny_reranker()} does not say how its texts are made: title, text of 64 tokens, "
        "queries of 32, 64 in all"
    ]


def test_it_describes_itself_in_plain_json(tiny_reranker):
    told = PairScorer.load(str(tiny_reranker("electra")), compute=CPU).description()
    assert json.loads(json.dumps(told)) == told
    assert told["backbone"] == "electra"
    assert told["pairs"] == {"max_length": 64, "token_types": True}


@pytest.mark.parametrize(
    ("model", "refusal", "words"),
    [("nowhere/at/all", UsageError, "no such folder"), (None, ModelError, "is no cross-encoder")],
)
def test_models_that_do_not_score(tiny, model, refusal, words):
    with pytest.raises(refusal, match=words):
        PairScorer.load(model or str(tiny()), compute=CPU)


@pytest.mark.peer
@pytest.mark.parametrize("kind", ["bert", "electra", "roberta"])
def test_scores_are_those_of_sentence_transformers(tiny_reranker, kind):
    st = pytest.importorskip("sentence_transformers")
    theirs = st.CrossEncoder(str(tiny_reranker(kind)), device="cpu")
    texts = [f"{passage.title} {passage.text}".strip() for passage in GIVEN]
    pairs = list(zip([query.text for query in ASKED], texts, strict=True))
    expected = theirs.predict(pairs, activation_fn=torch.nn.Identity())
    got = PairScorer.load(str(tiny_reranker(kind)), compute=CPU).score(ASKED, GIVEN)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)
