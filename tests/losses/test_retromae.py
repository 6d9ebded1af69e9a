import pytest
import torch

from denserk.data.batches import MaskedTexts, PretrainingBatch, TokenBatch
from denserk.data.masking import IGNORED
from denserk.losses.pretraining import RetroMae
from tests.losses.literal_layers import literal_layer
from tests.losses.pretraining_models import backbone_of, literal_loss, random_texts
from tests.tiny_models import WITH_HEADS

LENGTHS = [7, 5]


@pytest.fixture(params=WITH_HEADS)
def backbone(tiny, request):
    return backbone_of(tiny(request.param))


@pytest.fixture
def objective(backbone):
    return RetroMae(backbone).double().eval()


def visible_rows(lengths, share=0.5):
    """Row i sees [CLS] and half of the text's other tokens, itself never."""
    width = max(lengths)
    seen = torch.zeros(len(lengths), width, width, dtype=torch.bool)
    for text, length in enumerate(lengths):
        for i in range(length):
            for j in range(1, length):
                seen[text, i, j] = j != i and bool(torch.rand(()) < share)
    seen[:, :, 0] = True
    return seen


@pytest.fixture
def batch(backbone):
    texts = random_texts(backbone, LENGTHS)
    ids, mask = random_texts(backbone, LENGTHS, seed=1).tokens
    labels = ids.where(mask, IGNORED)
    labels[:, 0] = IGNORED
    for row, length in enumerate(LENGTHS):
        labels[row, length - 1] = IGNORED
    whole = MaskedTexts(TokenBatch(ids, mask), labels)
    return PretrainingBatch(texts, {}, {"retromae": whole}, visible_rows(LENGTHS))


def test_literal_restatement(backbone, objective, batch):
    hidden = backbone(batch.texts.tokens)
    (ids, _), labels = batch.decoders["retromae"]
    embeddings = backbone.encoder.embeddings
    first = backbone.config.pad_token_id + 1 if backbone.config.model_type == "roberta" else 0
    rows = []
    for text in range(len(LENGTHS)):
        cls = hidden[text, 0]
        embedded = embeddings(ids[text][None])[0]
        queries = [cls + embeddings.position_embeddings.weight[first + i] for i in range(7)]
        states = [cls, *embedded[1:]]
        seen = batch.visible[text]
        layer = objective.decoder[0]
        rows.append(literal_layer(layer, torch.stack(queries), torch.stack(states), seen))
    expected = {
        "mlm": literal_loss(backbone, hidden, batch.texts.labels),
        "decoder": literal_loss(backbone, torch.stack(rows), labels),
    }
    terms = objective(batch)[1]
    assert terms.keys() == expected.keys()
    for name, (total, count) in expected.items():
        assert terms[name].total.item() == pytest.approx(total)
        assert terms[name].count.item() == count
    assert terms["decoder"].count.item() == sum(LENGTHS) - 2 * len(LENGTHS)


def test_a_row_depends_on_what_it_sees_alone(objective, batch):
    before = objective.states(batch)[1]["decoder"]
    (ids, mask), labels = batch.decoders["retromae"]
    changed = ids.clone()
    changed[0, 3] = ids[0, 3] + 1
    decoders = {"retromae": MaskedTexts(TokenBatch(changed, mask), labels)}
    after = objective.states(batch._replace(decoders=decoders))[1]["decoder"]
    moved = (before != after).any(-1)
    assert not moved[1].any()
    assert moved[0].equal(batch.visible[0, :, 3])
    assert moved[0].any()
    assert not moved[0, 3]


def test_a_row_that_sees_cls_alone_knows_its_position_alone(objective, batch):
    seen = torch.zeros_like(batch.visible)
    seen[:, :, 0] = True
    decoded = objective.states(batch._replace(visible=seen))[1]["decoder"]
    assert decoded.isfinite().all()
    assert not decoded[0, 1].allclose(decoded[0, 2])
