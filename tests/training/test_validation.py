"""The measures of a validation against literal restatements, one score at a time."""

import math

import pytest
import torch

from denserk.config.encoding import PairSettings, TextSettings
from denserk.data.batches import PairJoiner, pad
from denserk.data.tokenization import TextTokenizer, load_tokenizer
from denserk.data.training_data import prepare
from denserk.errors import InputError
from denserk.models.cross_encoder import reranker_to_train
from denserk.training.validation import (
    DevSet,
    dev_sets,
    measure,
    measure_groups,
    reciprocal_ranks,
    token_budget,
)
from tests.support.finetuning import run_of
from tests.support.retrievers import retriever
from tests.support.tiny_models import tiny_tokenizer
from tests.support.toy import PASSAGES as TEXTS
from tests.support.toy import VOCABULARY
from tests.support.training_examples import inline, jsonl

QUERIES = [[2, 10 + n, 20 + n, 3] for n in range(5)]
PASSAGES = [[2, *range(10 + n, 14 + 2 * n), 3] for n in range(12)]
RELEVANT = [[0], [3, 7], [11], [5], [2, 4, 6]]
GROUPS = torch.tensor([[0, 1], [3, 8], [11, 2], [5, -1], [2, 10]])
DEV = DevSet(QUERIES, PASSAGES, (0, 0), RELEVANT, GROUPS)


def scores_by_hand(model):
    """Each query against each passage, alone: by the best of the passage's stored vectors."""
    scores = []
    for query in QUERIES:
        [query_vector] = model.query(pad([query], 0)).float()
        scores_of_query = []
        for passage in PASSAGES:
            [vectors] = model.passage.stored_vectors(pad([passage], 0)).float()
            scores_of_query.append(max(torch.dot(query_vector, v).item() for v in vectors))
        scores.append(scores_of_query)
    return scores


def mean(values):
    return sum(values) / len(values)


def measures_by_hand(scores, batch, temperature):
    losses = []
    ranks = []
    reciprocal_ranks_of_queries = []
    for number, scores_of_query in enumerate(scores):
        positive_score = scores_of_query[GROUPS[number, 0]]
        start = number // batch * batch
        passages_of_batch = set(GROUPS[start : start + batch].flatten().tolist()) - {-1}
        exponentials = [math.exp(scores_of_query[p] / temperature) for p in passages_of_batch]
        losses.append(math.log(sum(exponentials)) - positive_score / temperature)
        ranks.append(sum(score > positive_score for score in scores_of_query))
        ranking = sorted(range(len(PASSAGES)), key=lambda row: (-scores_of_query[row], row))[:10]
        reciprocal_rank = 0.0
        for rank, row in reversed([*enumerate(ranking, start=1)]):
            if row in RELEVANT[number]:
                reciprocal_rank = 1 / rank
        reciprocal_ranks_of_queries.append(reciprocal_rank)
    return {
        "RR@10": mean(reciprocal_ranks_of_queries),
        "dev-loss": mean(losses),
        "avg-rank": mean(ranks),
    }


@pytest.mark.parametrize("name", ["cls", "mlr-self-contrastive", "mlr-multi-vector"])
@pytest.mark.parametrize("batch", [2, 5])
def test_measures_are_their_definitions(tiny, name, batch):
    model = retriever(tiny("bert"), name).eval()
    with torch.no_grad():
        expected = measures_by_hand(scores_by_hand(model), batch, 0.7)
    assert measure(model, token_budget(), [DEV], batch, 0.7) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("relevant", "expected"),
    [([0], 1.0), ([3], 1 / 2), ([4], 1 / 3), ([4, 3], 1 / 2), ([11], 1 / 10), ([1], 0.0)],
)
def test_equal_scores_stand_in_the_order_of_rows(relevant, expected):
    scores = torch.tensor([[5.0, -9.0, 0.0, 2.0, 2.0, *[1.0] * 5, 0.5, 0.25]])
    assert reciprocal_ranks(scores, [relevant]) == [expected]


def test_measures_are_within_a_query_s_group(tiny):
    reranker = reranker_to_train(tiny(), seed=3).eval()
    joiner = PairJoiner(load_tokenizer(tiny()), TextSettings(), PairSettings())
    groups = torch.tensor([list(range(11)), [11, *range(10)]])
    dev = DevSet(QUERIES[:2], PASSAGES, (0, 0), [[0], [11]], groups)
    measured = measure_groups(reranker, joiner, token_budget(), [dev])
    losses = []
    better_counts = []
    reciprocal_ranks_of_queries = []
    with torch.no_grad():
        for query, rows in zip(QUERIES[:2], groups.tolist(), strict=True):
            pairs = [joiner.join(query, PASSAGES[row]) for row in rows]
            scores = torch.cat([reranker(joiner.batch([pair])) for pair in pairs])
            losses.append(-scores.log_softmax(0)[0].item())
            better_count = int((scores > scores[0]).sum())
            better_counts.append(better_count)
            reciprocal_ranks_of_queries.append(1 / (better_count + 1) if better_count < 10 else 0)
    assert measured == {
        "dev-loss": pytest.approx(mean(losses), rel=1e-6),
        "avg-rank": mean(better_counts),
        "RR@10": pytest.approx(mean(reciprocal_ranks_of_queries)),
    }


@pytest.fixture(scope="module")
def tokenizers():
    tokenizer = TextTokenizer(tiny_tokenizer("bert", VOCABULARY), TextSettings())
    return tokenizer, tokenizer


def test_groups_are_the_first_positive_and_the_top_negatives(tmp_path, tokenizers):
    examples = [inline(number, 2, 3) for number in range(4)]
    data = jsonl(tmp_path / "dev.jsonl", examples)
    run = run_of(tmp_path / "out", "model", data)
    (dev,) = dev_sets(run, prepare(run, tmp_path / "dev", *tokenizers), tokenizers)
    assert dev.groups is not None
    tokenizer = tiny_tokenizer("bert", VOCABULARY)

    def text(row):
        return tokenizer.decode(list(dev.passages[row]), skip_special_tokens=True)

    for example, group, relevant in zip(examples, dev.groups.tolist(), dev.relevant, strict=True):
        positives = [passage["text"] for passage in example["positive_passages"]]
        negatives = [passage["text"] for passage in example["negative_passages"]]
        assert [text(row) for row in group] == [positives[0], negatives[0], negatives[1]]
        assert [text(row) for row in relevant] == positives
    assert len(dev.queries) == 4
    assert len(dev.passages) == 20


def dev_run(toy, tmp_path):
    """A run that validates on the toy collection."""
    return run_of(
        tmp_path / "out",
        "model",
        "train",
        dev_corpus=str(toy / "corpus.jsonl"),
        dev_topics=str(toy / "queries.tsv"),
        dev_qrels=str(toy / "qrels.txt"),
    )


def test_a_collection_is_sorted_by_descending_id(toy, tmp_path, tokenizers):
    run = dev_run(toy, tmp_path)
    (dev,) = dev_sets(run, None, tokenizers)
    docids = sorted(TEXTS, reverse=True)
    assert docids.index("d10") > docids.index("d2")
    assert len(dev.passages) == len(docids)
    relevant_docids = [{docids[row] for row in rows} for rows in dev.relevant]
    assert relevant_docids == [{"d3"}, {"d1", "d5"}, {"d4"}]
    assert dev.groups is None


def test_judgments_that_join_nothing_are_rejected(toy, tmp_path, tokenizers):
    run = dev_run(toy, tmp_path)
    (toy / "qrels.txt").write_text("x1 0 d3 1\n")
    with pytest.raises(InputError, match="no relevance judgment that joins a query"):
        dev_sets(run, None, tokenizers)
