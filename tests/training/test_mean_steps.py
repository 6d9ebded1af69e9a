import math
from functools import partial
from itertools import product

import pytest
import torch

from denserk.config.encoding import PairSettings, TextSettings
from denserk.config.training import CacheSettings, Objective, ObjectiveSettings
from denserk.data.batches import PairJoiner, SentenceBatch, pad
from denserk.data.tokenization import load_tokenizer
from denserk.data.training_batches import PairTrainingBatch
from denserk.models.cross_encoder import reranker_to_train
from denserk.training.steps import Update, chunks_by_length, reranking_step, sentence_step
from tests.support.retrievers import assert_same, gradients, retriever

WHOLE = CacheSettings()
GROUP = 3
QUERIES = [[2, 9, 14, 3], [2, 17, 3], [2, 11, 12, 13, 3], [2, 8, 3]]
PASSAGES = [[2, *range(5 + i, 7 + i + i % 4), 3] for i in range(GROUP * len(QUERIES))]
LABELS = [5.0, 0.0, 2.5, 4.0, 1.0]
TARGETS = [[math.sin(number + dimension) for dimension in range(16)] for number in range(5)]
OBJECTIVES = {
    1: ObjectiveSettings(Objective.ALIGN),
    2: ObjectiveSettings(Objective.COSINE_MSE, label_scale=5.0),
    3: ObjectiveSettings(Objective.TRIPLET, margin=3.0),
}


def run(step, model, batch):
    """The terms of a step, and the gradients."""
    model.zero_grad()
    terms = step(batch, Update())
    assert not any(term.requires_grad for term in terms.values())
    return {name: term.item() for name, term in terms.items()}, gradients(model)


def in_chunks(p_chunk):
    return CacheSettings(grad_cache=True, p_chunk=p_chunk)


# Cross-encoders


def reranker(folder, dropout=0.0):
    model = reranker_to_train(folder, seed=3).double().train()
    with torch.no_grad():
        model.model.classifier.weight.mul_(50)  # scores far from each other
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = dropout
        if hasattr(module, "dropout_prob"):
            module.dropout_prob = dropout
    return model


def batch_of_pairs(folder):
    joiner = PairJoiner(load_tokenizer(folder), TextSettings(), PairSettings())
    pairs = [joiner.join(QUERIES[row // GROUP], text) for row, text in enumerate(PASSAGES)]
    groups = torch.arange(len(pairs)).view(-1, GROUP)
    return PairTrainingBatch(joiner.batch(pairs), groups, torch.arange(len(QUERIES)))


def rerank(model, batch, cache=WHOLE, r_drop=0.0):
    return run(partial(reranking_step, model, r_drop, cache), model, batch)


def shares(scores):
    """Each passage's share of its query's softmax: (queries, GROUP)."""
    exponentials = scores.view(-1, GROUP).exp()
    return exponentials / exponentials.sum(1, keepdim=True)


def listwise(scores):
    """-log of the positive's share; the positive is the first of its group."""
    return -shares(scores)[:, 0].log().mean().item()


@pytest.mark.parametrize("kind", ["bert", "electra"])
def test_the_loss_is_listwise_over_a_query_s_own_passages(tiny, kind):
    model = reranker(tiny(kind))
    batch = batch_of_pairs(tiny())
    terms, step_gradients = rerank(model, batch)
    with torch.no_grad():
        scores = model(batch.pairs)
    assert scores.max() - scores.min() > 0.5
    assert terms == {"listwise": pytest.approx(listwise(scores), abs=1e-12)}
    # a shift of all scores changes nothing
    assert step_gradients["model.classifier.bias"].item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("r_drop", [0.0, 1.0])
@pytest.mark.parametrize("p_chunk", [1, 7])
def test_chunks_of_groups_add_up_to_the_whole(tiny, r_drop, p_chunk):
    model = reranker(tiny())
    batch = batch_of_pairs(tiny())
    expected_terms, expected_gradients = rerank(model, batch, r_drop=r_drop)
    terms, step_gradients = rerank(model, batch, in_chunks(p_chunk), r_drop)
    assert terms == pytest.approx(expected_terms, abs=1e-9)
    assert_same(step_gradients, expected_gradients, 1e-9)


def test_r_drop_runs_two_draws_of_dropout_and_makes_them_agree(tiny):
    model = reranker(tiny(), dropout=0.3)
    batch = batch_of_pairs(tiny())
    torch.manual_seed(1)
    terms, _ = rerank(model, batch, r_drop=0.5)
    [(rows, [tokens])] = chunks_by_length([batch.pairs.tokens], Update())
    pairs = batch.pairs.of(rows, tokens)
    torch.manual_seed(1)
    with torch.no_grad():
        first_scores = model(pairs)[rows.argsort()]
        second_scores = model(pairs)[rows.argsort()]
    assert not first_scores.equal(second_scores)
    p = shares(first_scores)
    q = shares(second_scores)
    agreement = (p * (p / q).log() + q * (q / p).log()).sum(1).mean().item() / 2
    expected = {
        "listwise": (listwise(first_scores) + listwise(second_scores)) / 2,
        "agreement": agreement / 2,
    }
    assert terms == pytest.approx(expected, abs=1e-9)


# Sentences


def examples(size):
    """Five queries to align, or examples of 2 or 3 sentences."""
    texts = []
    for number in range(size * 5):
        tokens = [5 + (7 * number + position) % 90 for position in range(1 + number % 6)]
        texts.append([2, *tokens, 3])
    labels = {1: torch.tensor(TARGETS), 2: torch.tensor(LABELS), 3: None}[size]
    return SentenceBatch(pad(texts, 0), labels, torch.arange(5))


def learn(encoder, size, cache=WHOLE):
    """The terms of a step on examples of a size, and the gradients."""
    return run(partial(sentence_step, encoder, OBJECTIVES[size], cache), encoder, examples(size))


def literal_loss(vectors, size):
    losses = []
    for vectors_of_example, label, target in zip(vectors.split(size), LABELS, TARGETS, strict=True):
        if size == 1:
            [vector] = vectors_of_example
            losses.append(sum((a - b) ** 2 for a, b in zip(vector.tolist(), target, strict=True)))
        elif size == 2:
            left, right = vectors_of_example
            cosine = left @ right / (left.norm() * right.norm())
            losses.append((cosine.item() - label / 5) ** 2)
        else:
            anchor, positive, negative = vectors_of_example
            positive_distance = (anchor - positive).norm().item()
            negative_distance = (anchor - negative).norm().item()
            losses.append(max(0, positive_distance - negative_distance + 3))
    return sum(losses) / len(losses)


@pytest.mark.parametrize(
    ("name", "size"), [*product(["cls", "agg-star", "mlr-multi-vector"], [2, 3]), ("cls", 1)]
)
def test_the_loss_of_sentences(tiny, name, size):
    encoder = retriever(tiny("bert"), name, dropout=0.0).passage
    terms, _ = learn(encoder, size)
    with torch.no_grad():
        expected = literal_loss(encoder(examples(size).sentences), size)
    assert terms == {OBJECTIVES[size].objective.value: pytest.approx(expected, rel=1e-6)}


@pytest.mark.parametrize("chunk", [1, 6])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_chunks_of_examples_add_up_to_the_whole(tiny, size, chunk):
    encoder = retriever(tiny("bert"), "cls", dropout=0.0).passage
    expected_terms, expected_gradients = learn(encoder, size)
    terms, step_gradients = learn(encoder, size, in_chunks(chunk))
    assert_same(step_gradients, expected_gradients, 1e-12)
    assert terms == pytest.approx(expected_terms, rel=1e-6)
