"""The measures of a validation against literal restatements, one score at a time."""

import math

import pytest
import torch

from denserk.data.batches import pad
from denserk.training.validation import (
    DevSet,
    encode_tokens,
    in_batch_loss,
    measure,
    ranks,
    reciprocal_ranks,
    score_blocks,
)
from tests.training.retrievers import REPRESENTATIONS, retriever

CPU = torch.device("cpu")
QUERIES = [[2, 10 + n, 20 + n, 3] for n in range(5)]
PASSAGES = [[2, *range(10 + n, 14 + 2 * n), 3] for n in range(12)]
RELEVANT = [[0], [3, 7], [11], [5], [2, 4, 6]]
GROUPS = torch.tensor([[0, 1], [3, 8], [11, 2], [5, -1], [2, 10]])
DEV = DevSet(QUERIES, PASSAGES, (0, 0), RELEVANT, GROUPS)


def scores_by_hand(model):
    """Each query against each passage, alone: by the best of the passage's stored vectors."""
    return [
        [
            max(
                torch.dot(model.encode_queries(pad([query], 0))[0].float(), vector.float()).item()
                for vector in model.passage.stored_vectors(pad([passage], 0))[0]
            )
            for passage in PASSAGES
        ]
        for query in QUERIES
    ]


def measured_by_hand(scores, batch, temperature):
    """Loss, rank and reciprocal rank as their definitions have them."""
    losses, positions, reciprocal = [], [], []
    for number, row in enumerate(scores):
        start = number // batch * batch
        passages = set(GROUPS[start : start + batch].flatten().tolist()) - {-1}
        among = [row[p] / temperature for p in passages]
        positive = row[GROUPS[number, 0]]
        losses.append(math.log(sum(map(math.exp, among))) - positive / temperature)
        positions.append(sum(other > positive for other in row))
        ranked = [p for _, p in sorted((-score, p) for p, score in enumerate(row))][:10]
        found = [place for place, p in enumerate(ranked, start=1) if p in RELEVANT[number]]
        reciprocal.append(1 / found[0] if found else 0.0)

    def mean(values):
        return sum(values) / len(values)

    return {"RR@10": mean(reciprocal), "dev-loss": mean(losses), "avg-rank": mean(positions)}


@pytest.mark.parametrize(
    "name", ["cls", "agg-star-head", "mlr-self-contrastive", "mlr-multi-vector", "me-bert-average"]
)
@pytest.mark.parametrize("batch", [2, 5])
def test_measures_are_their_definitions(tiny, name, batch):
    model = retriever(tiny("bert"), REPRESENTATIONS[name]).eval()
    with torch.no_grad():
        expected = measured_by_hand(scores_by_hand(model), batch, 0.7)
    assert measure(model, DEV, batch, 0.7, CPU) == pytest.approx(expected, rel=1e-4)


def test_without_groups_only_retrieval_is_measured(tiny):
    model = retriever(tiny("bert"), REPRESENTATIONS["cls"]).eval()
    collection = DevSet(QUERIES, PASSAGES, (0, 0), RELEVANT)
    assert measure(model, collection, 2, 1.0, CPU).keys() == {"RR@10"}


def test_measuring_leaves_no_trace(tiny):
    """Neither a gradient nor a random draw: training goes on as if nothing had been measured."""
    model = retriever(tiny("bert"), REPRESENTATIONS["cls"]).eval()
    before = torch.get_rng_state()
    measure(model, DEV, 2, 1.0, CPU)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_blocks_cover_all_queries_in_order(tiny):
    model = retriever(tiny("bert"), REPRESENTATIONS["cls"]).eval()
    with torch.no_grad():
        (_, whole), *none = score_blocks(model, DEV, 5, CPU)
        parts = list(score_blocks(model, DEV, 2, CPU))
    assert none == []
    assert [len(scores) for _, scores in parts] == [2, 2, 1]
    torch.testing.assert_close(torch.cat([scores for _, scores in parts]), whole)


def test_texts_keep_their_order_whatever_their_length():
    texts = [[1] * length for length in (3, 9000, 1, 5, 5)]
    found = encode_tokens(lambda batch: batch.attention_mask.sum(1, keepdim=True), texts, 0, CPU)
    assert found.tolist() == [[3.0], [9000.0], [1.0], [5.0], [5.0]]


def test_rank_counts_what_scores_more():
    scores = torch.tensor([[1.0, 2.0, 3.0, 2.0]])
    assert [int(ranks(scores, torch.tensor([p]))) for p in range(4)] == [3, 1, 0, 1]


@pytest.mark.parametrize(
    ("relevant", "expected"),
    [([0], 1.0), ([3], 1 / 2), ([4], 1 / 3), ([4, 3], 1 / 2), ([1], 1 / 4)],
)
def test_equal_scores_stand_in_the_order_of_rows(relevant, expected):
    scores = torch.tensor([[5.0, 1.0, 0.0, 2.0, 2.0]])
    assert reciprocal_ranks(scores, [relevant]) == [expected]


def test_nothing_counts_after_the_tenth():
    scores = torch.arange(12.0, 0.0, -1.0).unsqueeze(0)
    assert reciprocal_ranks(scores, [[9]]) == [1 / 10]
    assert reciprocal_ranks(scores, [[10]]) == [0.0]


def test_loss_is_over_the_groups_passages_alone():
    scores = torch.tensor([[1.0, 9.0, 0.0, 2.0]])
    loss = in_batch_loss(scores, torch.tensor([[3, 0]]), 0.5).item()
    assert loss == pytest.approx(math.log(math.exp(4) + math.exp(2)) - 4)
