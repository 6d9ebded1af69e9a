"""Steps of a retriever: the gradient cache and groups of similar length against the direct step."""

from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd.graph import saved_tensors_hooks

from denserk.config.training import CacheSettings
from denserk.data.batches import TokenBatch, pad
from denserk.training import steps
from denserk.training.steps import Limits, Update, group, groups_of, join, retrieval_step
from tests.training.retrievers import (
    LOSSES,
    REPRESENTATIONS,
    assert_same,
    batch_of,
    gradients,
    objective,
    retriever,
    uneven_batch,
)

CACHE = CacheSettings(grad_cache=True, q_chunk=2, p_chunk=3)
DIRECT = CacheSettings()
LENGTHS = st.lists(st.integers(1, 64), min_size=1, max_size=9)
LIMITS = st.builds(Limits, st.none() | st.integers(1, 5), st.none() | st.integers(1, 200))


@given(LENGTHS, LIMITS)
def test_groups_are_the_batch_within_the_limits(lengths, limits):
    texts, work = [[7 + number] * length for number, length in enumerate(lengths)], Update()
    with patch.dict(steps.ENOUGH, cpu=16):
        batches, back = group(pad(texts, 0), work, limits)
        (rows, _), *_ = groups_of([pad(texts, 0)], Update(), limits)
    found = [row[mask].tolist() for part in batches for row, mask in zip(*part, strict=True)]
    assert [found[place] for place in back] == texts
    assert [texts[row] for row in rows] == found[: len(rows)]
    positions = sum(part.input_ids.numel() for part in batches)
    assert (work.tokens, work.positions) == (sum(lengths), positions)
    for count, width in (part.input_ids.shape for part in batches):
        assert limits.texts is None or count <= limits.texts
        assert limits.tokens is None or count == 1 or count * width <= limits.tokens


def run(model, loss, cache, batch, work):
    """One step; its terms and the gradients."""
    model.zero_grad()
    torch.manual_seed(5)
    terms = retrieval_step(model, loss, cache, True, batch, work)
    return {name: term.item() for name, term in terms.items()}, gradients(model)


def chunked(model, loss, batch):
    """The direct step chunk by chunk, every graph kept: what the cached step must equal."""
    model.zero_grad()
    torch.manual_seed(5)
    asked, place = group(batch.queries, Update(), Limits(CACHE.q_chunk))
    read, places = group(batch.passages, Update(), Limits(CACHE.p_chunk))
    queries = torch.cat([model.query(chunk) for chunk in asked])[place]
    passages = join([model.passage.passage_vectors(chunk) for chunk in read]).of(places)
    terms = loss(queries, passages, batch.groups, batch.keys, batch.teacher)
    torch.stack(list(terms.values())).sum().backward()
    return {name: term.item() for name, term in terms.items()}, gradients(model)


CASES = [
    *((name, "in-batch", False) for name in REPRESENTATIONS),
    *((name, loss, False) for name in ("cls", "colbert-self-contrastive") for loss in LOSSES),
    ("mlr-scalar-mix", "in-batch", True),
]


@pytest.mark.parametrize(("name", "loss", "untie"), CASES)
def test_cached_is_direct_dropout_included(tiny, name, loss, untie):
    model, batch = retriever(tiny("bert"), name, untie=untie), uneven_batch()
    made = objective(model, name, loss)
    expected_terms, expected = chunked(model, made, batch)
    after = torch.rand(1)
    terms, found = run(model, made, CACHE, batch, Update())
    assert torch.rand(1).equal(after)
    assert_same(found, expected, 1e-9)
    assert terms == pytest.approx(expected_terms, abs=1e-12)


class Saved:
    """A tensor that a graph keeps for its backward pass; counts the bytes of all that live."""

    now = most = 0

    def __init__(self, tensor):
        self.tensor = tensor
        Saved.now += tensor.nbytes
        Saved.most = max(Saved.most, Saved.now)

    def __del__(self):
        Saved.now -= self.tensor.nbytes


def peak(folder, name, cache, queries):
    model, one = retriever(folder, name), batch_of(1)  # the same texts: chunks of one size
    asked, passages = (
        TokenBatch(*(part.repeat(queries, 1) for part in texts))
        for texts in (one.queries, one.passages)
    )
    batch = batch_of(queries)._replace(queries=asked, passages=passages)
    assert Saved.now == 0
    Saved.most = 0
    with saved_tensors_hooks(Saved, lambda saved: saved.tensor):
        run(model, objective(model, name), cache, batch, Update())
    return Saved.most


@pytest.mark.parametrize("name", ["cls", "agg-star", "colbert-average"])
def test_memory_is_that_of_a_chunk(tiny, name):
    cache = CacheSettings(grad_cache=True, q_chunk=2, p_chunk=4)
    folder = tiny("bert")
    assert peak(folder, name, DIRECT, 12) > 2.5 * peak(folder, name, DIRECT, 4)
    assert peak(folder, name, cache, 12) < 0.4 * peak(folder, name, DIRECT, 12)


@pytest.mark.parametrize("name", ["cls", "agg-star", "mlr-multi-vector", "colbert-average"])
def test_groups_of_similar_length_change_nothing(tiny, monkeypatch, name):
    model, batch = retriever(tiny("bert"), name, dropout=0.0), batch_of(5)
    made = objective(model, name, "kl")
    whole, grouped = Update(), Update()
    terms, expected = run(model, made, DIRECT, batch, whole)
    assert whole.positions == sum(part[0].numel() for part in (batch.queries, batch.passages))
    monkeypatch.setitem(steps.ENOUGH, "cpu", 1)
    grouped_terms, found = run(model, made, DIRECT, batch, grouped)
    assert_same(found, expected, 1e-9)
    assert grouped_terms == pytest.approx(terms)
    assert grouped.tokens == whole.tokens == grouped.positions
