import pytest
import torch

from denserk.data.batches import MaskedTexts, PretrainingBatch, TokenBatch, to_device
from denserk.data.masking import IGNORED
from denserk.losses.condenser import Condenser
from denserk.losses.master import TASKS, Master
from denserk.losses.objective import MaskedLanguageModel, token_loss
from denserk.losses.retromae import RetroMae
from denserk.training.batching import RandomState
from tests.losses.pretraining_models import backbone_of, only, random_texts
from tests.tiny_models import WITH_HEADS


def rows_of(texts, rows):
    ids, mask = texts.tokens
    return only(MaskedTexts(TokenBatch(ids[rows], mask[rows]), texts.labels[rows]))


def test_chunks_add_up(tiny):
    backbone = backbone_of(tiny())
    objective = Condenser(backbone).double().eval()
    texts = random_texts(backbone, [8, 5, 3])
    whole = objective(only(texts))
    parts = [objective(rows_of(texts, rows)) for rows in (slice(0, 1), slice(1, 3))]
    for name, term in whole.items():
        assert term.total.item() == pytest.approx(sum(part[name].total.item() for part in parts))
        assert term.count.item() == sum(part[name].count.item() for part in parts)


def test_counts_need_no_forward_pass(tiny):
    backbone = backbone_of(tiny())
    objective = Condenser(backbone).double()
    batch = only(random_texts(backbone, [8, 5]))
    counts, terms = objective.counts(batch), objective(batch)
    assert counts == {name: term.count for name, term in terms.items()}


def test_a_text_without_labels_costs_nothing(tiny):
    backbone = backbone_of(tiny())
    tokens, labels = random_texts(backbone, [4])
    hidden = backbone(tokens)
    loss = token_loss(backbone, hidden, torch.full_like(labels, IGNORED))
    assert (loss.total.item(), loss.count.item()) == (0.0, 0)
    loss.total.backward()
    assert not backbone.encoder.embeddings.word_embeddings.weight.grad.any()


def test_cls_alone_is_that_of_the_whole_pass_under_dropout(tiny):
    backbone = backbone_of(tiny())
    objective = Condenser(backbone).double().train()
    batch = only(random_texts(backbone, [8, 5]))
    torch.manual_seed(3)
    state = RandomState(torch.device("cpu"))
    first = objective.cls(batch)
    with state.restored():
        second = objective.with_cls(batch)[0]
    assert first.equal(second)
    assert not first.equal(objective.cls(batch))


@pytest.mark.parametrize("kind", WITH_HEADS)
@pytest.mark.parametrize("objective", [MaskedLanguageModel, Condenser, Master, RetroMae])
def test_half_precision_sums_in_float32(tiny, kind, objective):
    backbone = backbone_of(tiny(kind)).float()
    trained = objective(backbone).eval()
    texts = random_texts(backbone, [8, 5])
    seen = torch.ones(2, 8, 8).bool()
    batch = PretrainingBatch(texts, {}, dict.fromkeys([*TASKS, "retromae"], texts), seen)
    exact = trained(batch)
    with torch.autocast("cpu", torch.bfloat16):
        terms = trained(batch)
    for name, term in terms.items():
        assert term.total.dtype == torch.float32
        assert term.total.item() == pytest.approx(exact[name].total.item(), rel=0.02)
        assert not term.total.equal(exact[name].total)


def test_batches_move_as_a_whole():
    texts = MaskedTexts(TokenBatch(torch.ones(1, 2).long(), torch.ones(1, 2).bool()), torch.ones(1))
    seen = torch.ones(1, 2, 2).bool()
    batch = to_device(PretrainingBatch(texts, {"npr": texts}, {"mkp": texts}, seen), "meta")
    parts = [batch.texts, *batch.passes.values(), *batch.decoders.values()]
    assert batch.visible is not None
    tensors = [batch.visible, *(t for part in parts for t in (*part.tokens, part.labels))]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert to_device(only(texts), "meta").visible is None
