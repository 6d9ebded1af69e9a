from contextlib import nullcontext
from math import exp, log

import pytest
import torch

from denserk.config.encoding import PairSettings, TextSettings
from denserk.config.training import CacheSettings, RerankingSettings
from denserk.data.batches import PairJoiner
from denserk.data.tokenization import load_tokenizer
from denserk.data.training_batches import PairTrainingBatch
from denserk.models.cross_encoder import reranker_to_train
from denserk.training.steps import RerankingStep

GROUP = 3
QUERIES = [[2, 9, 14, 3], [2, 17, 3], [2, 11, 12, 13, 3], [2, 8, 3]]
ALL = len(QUERIES)
PASSAGES = [[2, *range(5 + i, 7 + i + i % 4), 3] for i in range(GROUP * len(QUERIES))]


def reranker(tiny, kind="bert", dropout=0.0):
    made = reranker_to_train(tiny(kind), seed=3).double().train()
    with torch.no_grad():
        made.model.classifier.weight.mul_(50)  # scores far from each other
    for module in made.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = dropout
        if hasattr(module, "dropout_prob"):
            module.dropout_prob = dropout
    return made


def batch_of(tiny, first=0, last=ALL):
    joiner = PairJoiner(load_tokenizer(tiny()), TextSettings(), PairSettings())
    pairs = [
        joiner.join(QUERIES[i // GROUP], PASSAGES[i]) for i in range(first * GROUP, last * GROUP)
    ]
    groups = torch.arange(len(pairs)).view(-1, GROUP)
    return PairTrainingBatch(joiner.batch(pairs), groups, torch.arange(first, last))


def gradients(model, batch, settings=None, cache=None):
    model.zero_grad()
    step = RerankingStep(model, settings or RerankingSettings(), cache or CacheSettings())
    terms = step(batch, lambda loss: loss.backward(), nullcontext)
    assert not any(term.requires_grad for term in terms.values())
    return terms, [parameter.grad.clone() for parameter in model.parameters()]


def literal_loss(scores):
    """-log of the positive's share, a query at a time; the positive is the first of its group."""
    losses = []
    for first in range(0, len(scores), GROUP):
        group = scores[first : first + GROUP]
        losses.append(-log(exp(group[0]) / sum(map(exp, group))))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("kind", ["bert", "electra"])
def test_the_loss_is_listwise_over_a_query_s_own_passages(tiny, kind):
    model, batch = reranker(tiny, kind), batch_of(tiny)
    terms, found = gradients(model, batch)
    with torch.no_grad():
        scores = model(batch.pairs).tolist()
    assert max(scores) - min(scores) > 0.5
    assert {n: t.item() for n, t in terms.items()} == {
        "listwise": pytest.approx(literal_loss(scores), abs=1e-12)
    }
    bias = dict(zip(dict(model.named_parameters()), found, strict=True))["model.classifier.bias"]
    assert bias.item() == pytest.approx(0, abs=1e-12)  # a shift of all scores changes nothing


@pytest.mark.parametrize("r_drop", [0.0, 1.0])
@pytest.mark.parametrize("p_chunk", [1, 7, 100])
def test_chunks_add_up_to_the_whole(tiny, r_drop, p_chunk):
    model, batch, settings = reranker(tiny), batch_of(tiny), RerankingSettings(r_drop=r_drop)
    terms, expected = gradients(model, batch, settings)
    cache = CacheSettings(grad_cache=True, p_chunk=p_chunk)
    in_chunks, found = gradients(model, batch, settings, cache)
    assert terms.keys() == in_chunks.keys()
    for name, term in terms.items():
        torch.testing.assert_close(in_chunks[name], term, rtol=0, atol=1e-9)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def test_r_drop_runs_two_draws_of_dropout_and_makes_them_agree(tiny):
    model, batch = reranker(tiny, dropout=0.3), batch_of(tiny)
    torch.manual_seed(1)
    terms, _ = gradients(model, batch, RerankingSettings(r_drop=0.5))
    torch.manual_seed(1)
    with torch.no_grad():
        first, second = model(batch.pairs).tolist(), model(batch.pairs).tolist()
    assert first != second
    agreement = 0.0
    for one, other in ((first, second), (second, first)):
        for start in range(0, len(one), GROUP):
            a, b = one[start : start + GROUP], other[start : start + GROUP]
            p, q = ([exp(x) / sum(map(exp, g)) for x in g] for g in (a, b))
            agreement += sum(x * log(x / y) for x, y in zip(p, q, strict=True)) / len(QUERIES)
    assert terms["listwise"].item() == pytest.approx(
        (literal_loss(first) + literal_loss(second)) / 2, abs=1e-9
    )
    assert terms["agreement"].item() == pytest.approx(0.5 * agreement / 2, abs=1e-9)
