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
from denserk.training.steps import (
    UNLIMITED,
    Limits,
    Update,
    pretraining_step,
    split_pretraining_batch,
)
from tests.support.prepared_texts import run_of
from tests.support.retrievers import assert_same
from tests.support.retrievers import gradients as gradients_of


@pytest.fixture
def model(tiny):
    torch.manual_seed(0)
    return Condenser(read_model_folder(tiny()).passage.masked_lm()).double()


def random_texts(lengths, seed=1, share=0.4):
    generator = torch.Generator().manual_seed(seed)
    is_token = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids = torch.randint(5, 60, is_token.shape, generator=generator) * is_token
    is_label = is_token & (torch.rand(is_token.shape, generator=generator) < share)
    return MaskedTexts(TokenBatch(ids, is_token), ids.where(is_label, -100))


@pytest.fixture
def batch():
    return PretrainingBatch(random_texts([9] * 6), {}, {})


def run_step(model, batch, limits=UNLIMITED, kind="mlm", further_batches=(), **settings):
    """The gradients of a step, and its terms; `further_batches` are others of its update."""
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
    update = Update(batches=[batch, *further_batches])
    terms = pretraining_step(model, run, batch, update)
    return gradients_of(model), {name: term.item() for name, term in terms.items()}


def test_chunks_leave_the_update_as_it_is_and_every_token_weighs_the_same(model, batch):
    model.eval()  # without dropout, so that chunks of any size draw nothing
    gradients, terms = run_step(model, batch)
    for chunk in (1, 4):
        gradients_by_chunks, terms_by_chunks = run_step(model, batch, Limits(chunk))
        assert_same(gradients, gradients_by_chunks, 1e-10)
        assert terms_by_chunks == pytest.approx(terms)
    counts = model.counts(batch)
    _, losses = model(batch)
    for name, loss in losses.items():
        assert terms[name] == pytest.approx((loss / counts[name]).item())


def test_the_released_average_weighs_chunks_the_same(model, batch):
    model.eval()
    _, terms = run_step(model, batch, Limits(2), loss_average=LossAverage.MICRO_BATCH)
    means = []
    for _, chunk in split_pretraining_batch(batch, Update(), Limits(2)):
        _, losses = model(chunk)
        means.append((losses["late"] / model.counts(chunk)["late"]).item())
    assert len(means) == 3
    assert terms["late"] == pytest.approx(sum(means) / 3)


def test_the_released_average_is_over_the_chunks_of_all_batches_of_an_update(model, batch):
    model.eval()
    released = {"limits": Limits(2), "loss_average": LossAverage.MICRO_BATCH}
    gradients, terms = run_step(model, batch, **released)
    halved_gradients, halved_terms = run_step(model, batch, further_batches=[batch], **released)
    assert halved_terms == pytest.approx({name: term / 2 for name, term in terms.items()})
    expected_gradients = {name: gradient / 2 for name, gradient in gradients.items()}
    assert_same(halved_gradients, expected_gradients, 1e-10)


@pytest.mark.parametrize("chunk", [1, 4, 6])
@pytest.mark.parametrize("lm_scale", [1.0, 2.0])
def test_cached_contrast_is_direct_dropout_included(model, batch, chunk, lm_scale):
    """Against the graph of all chunks at once."""
    model.train()
    gradients, terms = run_step(model, batch, Limits(chunk), "cocondenser", lm_scale=lm_scale)
    model.zero_grad()
    torch.manual_seed(3)
    counts = model.counts(batch)
    cls_of_chunks = []
    losses = []
    for _, texts in split_pretraining_batch(batch, Update(), Limits(chunk)):
        cls, losses_of_chunk = model(texts)
        cls_of_chunks.append(cls)
        losses += [lm_scale * loss / counts[name] for name, loss in losses_of_chunk.items()]
    spans = span_contrast_loss(torch.cat(cls_of_chunks))
    (spans + torch.stack(losses).sum()).backward()
    assert_same(gradients, gradients_of(model), 1e-10)
    assert terms.keys() == {"head", "late", "spans"}
    assert terms["spans"] == pytest.approx(spans.item())


@pytest.mark.parametrize("limits", [UNLIMITED, Limits(3), Limits(tokens=90)])
def test_spans_go_by_length_whatever_their_documents(model, monkeypatch, limits):
    model.eval()
    batch = PretrainingBatch(random_texts([40, 6, 7, 39, 38, 5, 6, 40]), {}, {})
    counts = model.counts(batch)
    cls, losses = model(batch)
    spans = span_contrast_loss(cls)
    token_losses = torch.stack([loss / counts[name] for name, loss in losses.items()]).sum()
    (spans + token_losses).backward()
    expected_gradients = gradients_of(model)
    monkeypatch.setitem(ENOUGH, "cpu", 16)
    gradients, terms = run_step(model, batch, limits, "cocondenser")
    assert_same(gradients, expected_gradients, 1e-10)
    assert terms["spans"] == pytest.approx(spans.item())


def test_chunks_are_as_wide_as_their_longest_text_and_the_update_stays(tiny):
    """DupMAE and MASTER, padded anew by each chunk, against the batch at its full width."""
    lengths = [30, 12, 11, 4]
    texts = random_texts(lengths)
    neighbours = random_texts(lengths[::-1])
    visible = torch.rand(4, 30, 30) < 0.6
    visible &= torch.arange(30) < torch.tensor(lengths)[:, None, None]
    visible[:, :, 0] = True
    batches = {
        DupMae: PretrainingBatch(texts, {}, {"retromae": texts}, visible),
        Master: PretrainingBatch(texts, {"npr": neighbours}, {"npr": texts, "dor": neighbours}),
    }
    chunks = [chunk for _, chunk in split_pretraining_batch(batches[Master], Update(), Limits(2))]
    assert [chunk.texts.labels.shape[1] for chunk in chunks] == [30, 11]
    assert [chunk.decoders["dor"].labels.shape[1] for chunk in chunks] == [11, 30]
    for objective, batch in batches.items():
        backbone = read_model_folder(tiny()).passage.masked_lm()
        settings = PretrainingObjectiveSettings(tasks=(MasterTask.NPR, MasterTask.DOR))
        model = objective(backbone, settings).double().eval()
        chunks = [chunk for _, chunk in split_pretraining_batch(batch, Update(), Limits(2))]
        losses_of_chunks = [sum_of_losses(model, chunk) for chunk in chunks]
        torch.testing.assert_close(sum(losses_of_chunks), sum_of_losses(model, batch))


def sum_of_losses(model, batch):
    _, losses = model(batch)
    return sum(losses.values())
