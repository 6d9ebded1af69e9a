"""Steps of a retriever: the gradient cache and groups of like length against the direct step."""

import contextlib

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from denserk.config.training import CacheSettings
from denserk.data.batches import TokenBatch
from denserk.losses.retrieval import find_candidates
from denserk.training import steps
from denserk.training.steps import Limits, RetrievalStep, Work, group, join
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


def run(step, batch, autocast=contextlib.nullcontext, seed=5):
    """One step; its terms and the gradients."""
    step.model.zero_grad()
    torch.manual_seed(seed)
    terms = step(batch, lambda loss: loss.backward(), autocast)
    return terms, gradients(step.model)


def chunked(model, loss, batch, autocast=contextlib.nullcontext, seed=5):
    """The direct step chunk by chunk, every graph kept: what the cached step must equal."""
    model.zero_grad()
    torch.manual_seed(seed)
    asked = group(batch.queries, Work(), Limits(CACHE.q_chunk))
    read = group(batch.passages, Work(), Limits(CACHE.p_chunk))
    with autocast():
        queries = torch.cat([model.query(chunk) for chunk in asked.batches])[asked.back]
        passages = join([model.passage.passage_vectors(chunk) for chunk in read.batches]).of(
            read.back
        )
    terms = loss(queries, passages, find_candidates(batch.groups, batch.keys), batch.teacher)
    torch.stack(list(terms.values())).sum().backward()
    return terms, gradients(model)


CASES = [
    *((name, "in-batch", False) for name in REPRESENTATIONS),
    *((name, loss, False) for name in ("cls", "colbert-self-contrastive") for loss in LOSSES),
    ("mlr-scalar-mix", "in-batch", True),
]


@pytest.mark.parametrize(("name", "loss", "untie"), CASES)
def test_cached_is_direct_dropout_included(tiny, name, loss, untie):
    settings = REPRESENTATIONS[name]
    model, batch = retriever(tiny("bert"), settings, untie=untie), uneven_batch()
    made = objective(model, settings, LOSSES[loss])
    expected_terms, expected = chunked(model, made, batch)
    after = torch.rand(1)
    terms, found = run(RetrievalStep(model, made, CACHE), batch)
    assert torch.rand(1).equal(after)
    assert_same(found, expected, 1e-9)
    assert terms.keys() == expected_terms.keys()
    for term in terms:
        assert terms[term].item() == pytest.approx(expected_terms[term].item(), abs=1e-12)


@pytest.mark.parametrize("name", ["cls", "agg-star-head"])
def test_cached_is_direct_in_bfloat16(tiny, name):
    def autocast():
        return torch.autocast("cpu", torch.bfloat16)

    settings = REPRESENTATIONS[name]
    model = retriever(tiny("bert"), settings).float()
    made = objective(model, settings, LOSSES["in-batch"])
    _, expected = chunked(model, made, batch_of(5), autocast)
    _, found = run(RetrievalStep(model, made, CACHE), batch_of(5), autocast)
    scale = max(g.abs().max() for g in expected.values() if g is not None)
    assert_same(found, expected, 0.02 * scale)


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
    settings = REPRESENTATIONS[name]
    model = retriever(folder, settings)
    made = objective(model, settings, LOSSES["in-batch"])
    one = batch_of(1)  # the same texts again and again: chunks of one size
    asked, passages = (
        TokenBatch(*(part.repeat(queries, 1) for part in texts))
        for texts in (one.queries, one.passages)
    )
    batch = batch_of(queries)._replace(queries=asked, passages=passages)
    assert Saved.now == 0
    Saved.most = 0
    with saved_tensors_hooks(Saved, lambda saved: saved.tensor):
        run(RetrievalStep(model, made, cache), batch)
    return Saved.most


@pytest.mark.parametrize("name", ["cls", "agg-star-head", "colbert-average"])
def test_memory_is_that_of_a_chunk(tiny, name):
    cache = CacheSettings(grad_cache=True, q_chunk=2, p_chunk=4)
    folder = tiny("bert")
    assert peak(folder, name, DIRECT, 12) > 2.5 * peak(folder, name, DIRECT, 4)
    assert peak(folder, name, cache, 12) < 0.4 * peak(folder, name, DIRECT, 12)


@pytest.mark.parametrize("cache", [DIRECT, CACHE], ids=["direct", "cached"])
@pytest.mark.parametrize("name", ["cls", "agg-star-head", "mlr-multi-vector", "colbert-average"])
def test_groups_of_like_length_change_nothing(tiny, monkeypatch, name, cache):
    settings = REPRESENTATIONS[name]
    model = retriever(tiny("bert"), settings, dropout=0.0)
    made, batch = objective(model, settings, LOSSES["kl"]), batch_of(5)
    whole = RetrievalStep(model, made, DIRECT)
    monkeypatch.setitem(steps.PRICES, "cpu", 1 << 40)
    terms, expected = run(whole, batch)
    assert whole.work.positions == sum(part[0].numel() for part in (batch.queries, batch.passages))
    monkeypatch.setitem(steps.PRICES, "cpu", 0)
    monkeypatch.setattr(steps, "GRAIN", 1)
    grouped = RetrievalStep(model, made, cache)
    grouped_terms, found = run(grouped, batch)
    assert_same(found, expected, 1e-9)
    assert grouped_terms == {name: pytest.approx(term.item()) for name, term in terms.items()}
    assert grouped.work.tokens == whole.work.tokens == grouped.work.positions
