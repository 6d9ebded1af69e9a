import pytest
import torch
from torch import nn

from denserk.losses.contrastive import contrastive_loss
from denserk.models.pooling import dot
from denserk.training.batching import CachedVectors


def encoder(dropout):
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Dropout(dropout), nn.Linear(7, 3))
    return layers.double()


def step(model, queries, passages, cached, size=2):
    """Gradients of one step; direct keeps the graph of the same chunks and random states."""
    model.zero_grad()
    torch.manual_seed(1)
    q_chunks, p_chunks = queries.split(size), passages.split(size)
    targets = torch.arange(len(queries)) * 2
    if not cached:
        q, p = (torch.cat([model(c) for c in chunks]) for chunks in (q_chunks, p_chunks))
        contrastive_loss(dot(q, p), targets).backward()
    else:
        device = torch.device("cpu")
        cached_q = CachedVectors(model, q_chunks, device)
        cached_p = CachedVectors(model, p_chunks, device)
        vectors = torch.cat(cached_q.parts), torch.cat(cached_p.parts)
        contrastive_loss(dot(*vectors), targets).backward()
        cached_q.backward()
        cached_p.backward()
    return [parameter.grad.clone() for parameter in model.parameters()], torch.rand(1).item()


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_cached_is_direct(dropout, size):
    model = encoder(dropout)
    queries, passages = torch.randn(5, 5).double(), torch.randn(10, 5).double()
    direct, after_direct = step(model, queries, passages, False, size)
    cached, after_cached = step(model, queries, passages, True, size)
    for d, c in zip(direct, cached, strict=True):
        torch.testing.assert_close(c, d, rtol=0, atol=1e-12)
    assert after_cached == after_direct


def test_a_loss_of_the_chunks_own_is_added():
    model, texts = encoder(0.5), torch.randn(4, 5).double()
    seen = []

    def encode(chunk):
        vectors = model(chunk)
        seen.append(vectors)
        return vectors

    torch.manual_seed(1)
    vectors = torch.cat([model(c) for c in texts.split(2)])
    (vectors.prod() + vectors.pow(2).sum()).backward()
    direct = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    torch.manual_seed(1)
    cached = CachedVectors(encode, texts.split(2), torch.device("cpu"))
    torch.cat(cached.parts).prod().backward()
    cached.backward(lambda _: seen[-1].pow(2).sum())
    for d, parameter in zip(direct, model.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, d, rtol=0, atol=1e-12)


def test_no_graph_is_kept_between():
    model = encoder(0.0)
    cached = CachedVectors(model, [torch.randn(2, 5).double()], torch.device("cpu"))
    assert all(part.grad_fn is None and part.is_leaf for part in cached.parts)
