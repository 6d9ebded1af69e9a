"""Pairs and triplets: the loss against a literal restatement; chunks and processes add up."""

from contextlib import nullcontext
from math import sqrt
from pathlib import Path

import pytest
import torch

from denserk.config.training import CacheSettings, Objective, ObjectiveSettings
from denserk.data.batches import SentenceBatch, pad
from denserk.training.steps import SentenceStep
from tests.training.retrievers import REPRESENTATIONS, assert_same, gradients, retriever

EXAMPLES = 5
LABELS = [5.0, 0.0, 2.5, 4.0, 1.0]
OBJECTIVES = {
    2: ObjectiveSettings(Objective.COSINE_MSE, label_scale=5.0),
    3: ObjectiveSettings(Objective.TRIPLET, margin=3.0),
}
WHOLE = CacheSettings()
CHUNKS = CacheSettings(grad_cache=True, p_chunk=6)
KINDS = ("cls", "agg-star-head", "mlr-multi-vector")


def batch_of(size, first=0, last=EXAMPLES):
    """Examples `first` to `last` of five."""
    texts = [
        [2, *(5 + (7 * number + place) % 90 for place in range(1 + number % 6)), 3]
        for number in range(size * first, size * last)
    ]
    labels = torch.tensor(LABELS[first:last]) if size == 2 else None
    return SentenceBatch(pad(texts, 0), labels, torch.arange(first, last))


def trained(folder, name, size, batch, cache=WHOLE):
    """The loss's terms, the gradients, the encoder."""
    model = retriever(Path(folder), REPRESENTATIONS[name], dropout=0.0)
    step = SentenceStep(model.passage, OBJECTIVES[size], cache)
    terms = step(batch, lambda loss: loss.backward(), nullcontext)
    return {name: term.item() for name, term in terms.items()}, gradients(model), model.passage


def literal_loss(vectors, size):
    """One example at a time, one number at a time."""
    losses = []
    for number in range(len(vectors) // size):
        texts = vectors[number * size : (number + 1) * size]
        if size == 2:
            product = sum(a * b for a, b in zip(*texts, strict=True))
            lengths = [sqrt(sum(a * a for a in text)) for text in texts]
            losses.append((product / (lengths[0] * lengths[1]) - LABELS[number] / 5) ** 2)
        else:
            near, far = (
                sqrt(sum((a - b) ** 2 for a, b in zip(texts[0], other, strict=True)))
                for other in texts[1:]
            )
            losses.append(max(0, near - far + 3))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", KINDS)
def test_the_loss(tiny, name, size):
    batch = batch_of(size)
    terms, found, encoder = trained(tiny("bert"), name, size, batch)
    with torch.no_grad():
        vectors = encoder(batch.sentences).tolist()
    assert terms == {
        OBJECTIVES[size].objective.value: pytest.approx(literal_loss(vectors, size), rel=1e-6)
    }
    assert any(gradient is not None and gradient.abs().max() > 0 for gradient in found.values())


@pytest.mark.parametrize("chunk", [1, 6])
@pytest.mark.parametrize("size", [2, 3])
def test_chunks_add_up(tiny, size, chunk):
    batch = batch_of(size)
    terms, expected, _ = trained(tiny("bert"), "cls", size, batch)
    cache = CacheSettings(grad_cache=True, p_chunk=chunk)
    again, found, _ = trained(tiny("bert"), "cls", size, batch, cache)
    assert_same(found, expected, 1e-12)
    assert again == {name: pytest.approx(term, rel=1e-6) for name, term in terms.items()}
