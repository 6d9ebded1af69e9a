import pytest
import torch

from denserk.config.pretraining import (
    LossAverage,
    MasterTask,
    PretrainingObjective,
    PretrainingObjectiveSettings,
    PretrainOptimizerSettings,
)
from denserk.data.batches import MaskedTexts, PretrainingBatch, TokenBatch
from denserk.data.planning import ENOUGH
from denserk.losses.pretraining import Condenser, DupMae, Master
from denserk.losses.retrieval import span_contrast_loss
from denserk.models.model_folder import read_model_folder
from denserk.training.steps import UNLIMITED, Limits, Update, cut, pretraining_step
from tests.support.prepared_texts import run_of
from tests.support.retrievers import assert_same
from tests.support.retrievers import gradients as gradients_of


@pytest.fixture
def model(tiny):
    torch.manual_seed(0)
    return Condenser(read_model_folder(tiny()).passage.masked_lm()).double()


def random_texts(lengths, seed=1, share=0.4):
    generator = torch.Generator().manual_seed(seed)
    real = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids = torch.randint(5, 60, real.shape, generator=generator) * real
    asked = real & (torch.rand(real.shape, generator=generator) < share)
    return MaskedTexts(TokenBatch(ids, real), ids.where(asked, -100))


@pytest.fixture
def batch():
    return PretrainingBatch(random_texts([9] * 6), {}, {})


def gradients(model, batch, limits=UNLIMITED, kind="mlm", **settings):
    run = run_of(
        ["-"],
        PretrainingObjective(kind),
        objective=PretrainingObjectiveSettings(**settings),
        optimizer=PretrainOptimizerSettings(
            cache_chunk_size=limits.texts, chunk_tokens=limits.tokens
        ),
    )
    model.zero_grad()
    torch.manual_seed(3)
    terms = pretraining_step(model, run, batch, Update())
    return gradients_of(model), {name: term.item() for name, term in terms.items()}


def test_chunks_leave_the_update_as_it_is_and_every_token_weighs_the_same(model, batch):
    model.eval()  # without dropout, so that chunks of any size draw nothing
    whole, terms = gradients(model, batch)
    for chunk in (1, 4):
        parts, of_parts = gradients(model, batch, Limits(chunk))
        assert_same(whole, parts, 1e-10)
        assert of_parts == pytest.approx(terms)
    counts = model.counts(batch)
    for name, loss in model(batch)[1].items():
        assert terms[name] == pytest.approx((loss / counts[name]).item())


def test_the_released_average_weighs_chunks_the_same(model, batch):
    model.eval()
    _, terms = gradients(model, batch, Limits(2), loss_average=LossAverage.MICRO_BATCH)
    chunks = [chunk for _, chunk in cut(batch, Update(), Limits(2))]
    parts = [(model(each)[1]["late"] / model.counts(each)["late"]).item() for each in chunks]
    expected = sum(parts) / len(parts)
    assert terms["late"] == pytest.approx(expected)


@pytest.mark.parametrize("chunk", [1, 4, 6])
@pytest.mark.parametrize("lm_scale", [1.0, 2.0])
def test_cached_contrast_is_direct_dropout_included(model, batch, chunk, lm_scale):
    """Against the graph of all chunks kept."""
    model.train()
    cached, terms = gradients(model, batch, Limits(chunk), kind="cocondenser", lm_scale=lm_scale)
    model.zero_grad()
    torch.manual_seed(3)
    counts = model.counts(batch)
    passed = [model(part) for _, part in cut(batch, Update(), Limits(chunk))]
    losses = [lm_scale * loss / counts[name] for _, part in passed for name, loss in part.items()]
    spans = span_contrast_loss(torch.cat([cls for cls, _ in passed]))
    (spans + torch.stack(losses).sum()).backward()
    assert_same(cached, gradients_of(model), 1e-10)
    assert terms.keys() == {"head", "late", "spans"}
    assert terms["spans"] == pytest.approx(spans.item())


@pytest.mark.parametrize("limits", [UNLIMITED, Limits(3), Limits(tokens=90)])
def test_spans_go_by_length_whatever_their_documents(model, monkeypatch, limits):
    model.eval()
    unequal = PretrainingBatch(random_texts([40, 6, 7, 39, 38, 5, 6, 40]), {}, {})
    counts = model.counts(unequal)
    cls, losses = model(unequal)
    rest = torch.stack([loss / counts[name] for name, loss in losses.items()]).sum()
    (span_contrast_loss(cls) + rest).backward()
    expected = gradients_of(model)
    monkeypatch.setitem(ENOUGH, "cpu", 16)
    found, terms = gradients(model, unequal, limits, kind="cocondenser")
    assert_same(found, expected, 1e-10)
    assert terms["spans"] == pytest.approx(span_contrast_loss(cls).item())


def test_chunks_are_as_wide_as_their_longest_text_and_the_update_stays(tiny):
    """DupMAE and MASTER, padded anew by each chunk, against the batch at its full width."""
    lengths = [30, 12, 11, 4]
    first, other = random_texts(lengths), random_texts(lengths[::-1])
    visible = torch.rand(4, 30, 30) < 0.6
    visible &= torch.arange(30) < torch.tensor(lengths)[:, None, None]
    visible[:, :, 0] = True
    batches = {
        DupMae: PretrainingBatch(first, {}, {"retromae": first}, visible),
        Master: PretrainingBatch(first, {"npr": other}, {"npr": first, "dor": other}),
    }
    chunks = [chunk for _, chunk in cut(batches[Master], Update(), Limits(2))]
    assert [chunk.texts.labels.shape[1] for chunk in chunks] == [30, 11]
    assert [chunk.decoders["dor"].labels.shape[1] for chunk in chunks] == [11, 30]
    for kind, batch in batches.items():
        backbone = read_model_folder(tiny()).passage.masked_lm()
        settings = PretrainingObjectiveSettings(tasks=(MasterTask.NPR, MasterTask.DOR))
        model = kind(backbone, settings).double().eval()
        whole = sum(model(batch)[1].values())
        parts = [chunk for _, chunk in cut(batch, Update(), Limits(2))]
        found = sum(loss for chunk in parts for loss in model(chunk)[1].values())
        torch.testing.assert_close(found, whole)
