import contextlib

import pytest
import torch

from denserk.data.batches import MaskedTexts, PretrainingBatch, TokenBatch
from denserk.losses.condenser import Condenser
from denserk.losses.contrastive import span_contrast_loss
from denserk.losses.master import Master
from denserk.losses.retromae import RetroMae
from denserk.models.stored_model import read_model_folder
from denserk.training import batching
from denserk.training.batching import UNLIMITED, Limits
from denserk.training.steps import PretrainingStep, cut

AUTOCAST = contextlib.nullcontext


@pytest.fixture
def model(tiny):
    torch.manual_seed(0)
    return Condenser(read_model_folder(tiny()).passage.begin_masked_lm()).double()


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 60, (6, 9), generator=generator)
    ids[:, 0], ids[:, -1] = 2, 3
    labels = torch.where(torch.rand(6, 9, generator=generator) < 0.4, ids, -100)
    labels[:, 0] = -100
    mask = torch.ones(6, 9, dtype=torch.bool)
    return PretrainingBatch(MaskedTexts(TokenBatch(ids, mask), labels), {}, {})


def gradients(model, batch, seed=3, chunk=None, **settings):
    """Gradients and terms of one update."""
    model.zero_grad()
    torch.manual_seed(seed)
    terms = PretrainingStep(model, Limits(chunk), **settings)(
        batch, torch.autograd.backward, AUTOCAST
    )
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return found, {name: term.item() for name, term in terms.items()}


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for name, gradient in one.items():
        torch.testing.assert_close(gradient, other[name], rtol=0, atol=1e-10)


def test_chunks_leave_the_update_as_it_is(model, batch):
    model.eval()  # without dropout, so that chunks of any size draw nothing
    whole, terms = gradients(model, batch)
    for chunk in (1, 4):
        parts, of_parts = gradients(model, batch, chunk=chunk)
        assert_equal(whole, parts)
        assert of_parts == pytest.approx(terms)


def test_every_token_weighs_the_same(model, batch):
    model.eval()
    _, terms = gradients(model, batch, chunk=2)
    losses = model(batch)
    for name, loss in losses.items():
        assert terms[name] == pytest.approx(loss.total.item() / loss.count.item())


def test_the_released_average_weighs_chunks_the_same(model, batch):
    model.eval()
    _, terms = gradients(model, batch, chunk=2, by_micro_batch=True)
    parts = [model(chunk)["late"] for chunk in cut(batch, Limits(2))]
    expected = sum(p.total.item() / p.count.item() for p in parts) / len(parts)
    assert terms["late"] == pytest.approx(expected)


def direct_contrast(model, batch, chunk, lm_scale):
    """The graph of all chunks kept: the update that the cache must equal."""
    model.zero_grad()
    torch.manual_seed(3)
    counts = model.counts(batch)
    rows, losses = [], []
    states = []
    for part in cut(batch, Limits(chunk)):  # the cache draws for [CLS] first, chunk by chunk
        states.append(torch.get_rng_state())
        with torch.no_grad():
            model.cls(part)
    for part, state in zip(cut(batch, Limits(chunk)), states, strict=True):
        torch.set_rng_state(state)
        cls, terms = model.with_cls(part)
        rows.append(cls)
        losses += [lm_scale * loss.total / counts[name] for name, loss in terms.items()]
    (span_contrast_loss(torch.cat(rows)) + torch.stack(losses).sum()).backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("chunk", [1, 2, 4, 6])
@pytest.mark.parametrize("lm_scale", [1.0, 2.0])
def test_cached_contrast_is_direct_dropout_included(model, batch, chunk, lm_scale):
    model.train()
    cached, terms = gradients(model, batch, chunk=chunk, contrast=True, lm_scale=lm_scale)
    assert_equal(cached, direct_contrast(model, batch, chunk, lm_scale))
    assert set(terms) == {"head", "late", "spans"}


@pytest.fixture
def unequal():
    """Four documents, a long and a short span of each."""
    generator = torch.Generator().manual_seed(1)
    real = torch.arange(40) < torch.tensor([40, 6, 7, 39, 38, 5, 6, 40])[:, None]
    ids = torch.randint(5, 60, real.shape, generator=generator) * real
    asked = real & (torch.rand(real.shape, generator=generator) < 0.4)
    return PretrainingBatch(MaskedTexts(TokenBatch(ids, real), ids.where(asked, -100)), {}, {})


@pytest.mark.parametrize("limits", [UNLIMITED, Limits(3), Limits(tokens=90)])
def test_spans_go_by_length_whatever_their_documents(model, unequal, monkeypatch, limits):
    model.eval()
    counts = model.counts(unequal)
    cls, losses = model.with_cls(unequal)
    rest = torch.stack([loss.total / counts[name] for name, loss in losses.items()]).sum()
    model.zero_grad()
    (span_contrast_loss(cls) + rest).backward()
    expected = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    monkeypatch.setitem(batching.PRICES, "cpu", 16)
    model.zero_grad()
    step = PretrainingStep(model, limits, contrast=True)
    terms = step(unequal, torch.autograd.backward, AUTOCAST)
    assert_equal({n: p.grad for n, p in model.named_parameters() if p.grad is not None}, expected)
    assert terms["spans"].item() == pytest.approx(span_contrast_loss(cls).item())
    lengths = unequal.texts.tokens.attention_mask.sum()
    assert step.work.tokens == lengths
    assert step.work.padding < 0.05


def test_a_batch_without_labels_has_no_loss_and_no_hole(model, batch):
    model.eval()
    empty = batch.texts._replace(labels=torch.full_like(batch.texts.labels, -100))
    _, terms = gradients(model, batch._replace(texts=empty))
    assert terms == {"head": 0.0, "late": 0.0}


def test_chunks_are_as_wide_as_their_longest_text_and_the_update_stays(tiny):
    """RetroMAE and MASTER, padded anew by each chunk, against the batch at its full width."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.tensor([30, 12, 11, 4])

    def texts(lengths):
        real = torch.arange(32) < lengths[:, None]
        ids = torch.randint(5, 60, (4, 32), generator=generator) * real
        labels = torch.where(real & (torch.rand(4, 32, generator=generator) < 0.4), ids, -100)
        return MaskedTexts(TokenBatch(ids, real), labels)

    visible = torch.rand(4, 32, 32, generator=generator) < 0.6
    visible &= torch.arange(32) < lengths[:, None, None]
    visible[:, :, 0] = True
    first, other = texts(lengths), texts(lengths.flip(0))
    batches = {
        RetroMae: PretrainingBatch(first, {}, {"retromae": first}, visible),
        Master: PretrainingBatch(first, {"npr": other}, {"npr": first, "dor": other}),
    }
    widths = [chunk.texts.labels.shape[1] for chunk in cut(batches[RetroMae], Limits(2))]
    assert widths == [30, 11]
    assert [c.decoders["dor"].labels.shape[1] for c in cut(batches[Master], Limits(2))] == [11, 30]
    for kind, batch in batches.items():
        torch.manual_seed(0)
        backbone = read_model_folder(tiny()).passage.begin_masked_lm()
        options = {"tasks": ("npr", "dor")} if kind is Master else {}
        model = kind(backbone, **options).double().eval()
        whole = sum(loss.total for loss in model(batch).values())
        parts = sum(loss.total for chunk in cut(batch, Limits(2)) for loss in model(chunk).values())
        torch.testing.assert_close(parts, whole)


def test_chunks_end_where_much_shorter_texts_follow():
    real = torch.arange(512) < torch.tensor([512] * 10 + [60] * 100)[:, None]
    batch = PretrainingBatch(MaskedTexts(TokenBatch(real.long(), real), real.long()), {}, {})
    shapes = [tuple(chunk.texts.labels.shape) for chunk in cut(batch)]
    assert shapes == [(10, 512), (100, 60)]
    assert [len(chunk.texts.labels) for chunk in cut(batch, by_length=False)] == [110]
