import pytest
import torch
import torch.nn.functional as F

from denserk.data.batches import pad
from denserk.modeling.architectures import ARCHITECTURES
from denserk.modeling.backbone import Backbone
from denserk.modeling.unpadded_forward import UnpaddedForward, fits
from tests.tiny_models import tiny_config

KINDS = ("bert", "roberta", "distilbert", "electra")
TEXTS = [[5, 6, 7, 8, 9, 10], [11, 12], [13, 14, 15]]


@pytest.fixture(scope="module")
def models():
    """A backbone of each kind, as it is and unpadded; made once."""
    made = {}
    for kind in KINDS:
        torch.manual_seed(3)
        architecture, config = ARCHITECTURES[kind], tiny_config(kind, 40)
        backbone = Backbone(architecture, config, with_head=False).float().eval()
        for parameter in backbone.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        made[kind] = backbone, UnpaddedForward(architecture, config, backbone.encoder)
    return made


def test_architectures_that_fit():
    assert {kind for kind, architecture in ARCHITECTURES.items() if fits(architecture)} == {*KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_states_of_every_layer_and_gradients_are_the_padded_ones(models, kind):
    backbone, unpadded = models[kind]
    batch = pad(TEXTS, backbone.config.pad_token_id or 0)
    mask = batch.attention_mask[..., None]
    parameters = [p for p in backbone.parameters() if p.requires_grad]
    gradients = []
    for states in (backbone.hidden_states(batch), list(unpadded.states(batch))):
        total = torch.stack([(s * mask * (i + 1)).sin().sum() for i, s in enumerate(states)]).sum()
        gradients.append(torch.autograd.grad(total, parameters, allow_unused=True))
    for found, expected in zip(unpadded.states(batch), backbone.hidden_states(batch), strict=True):
        torch.testing.assert_close(found, expected * mask, rtol=1e-4, atol=1e-5)
    assert unpadded(batch).equal(list(unpadded.states(batch))[-1])
    for expected, found in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_does_not_depend_on_its_neighbours(models, kind):
    backbone, unpadded = models[kind]
    padding = backbone.config.pad_token_id or 0
    together = unpadded(pad(TEXTS, padding))
    for text, states in zip(TEXTS, together, strict=True):
        torch.testing.assert_close(
            unpadded(pad([text], padding))[0], states[: len(text)], rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_falls_where_it_falls_in_transformers(models, kind, monkeypatch):
    backbone, unpadded = models[kind]
    attention = F.scaled_dot_product_attention
    seen: list[tuple[str, float]] = []

    def dropout(states, p=0.5, training=True, inplace=False):
        if training and p:
            seen.append(("states", p))
        return states

    def attend(query, key, value, dropout_p=0.0, **others):
        seen.append(("attention", dropout_p))
        return attention(query, key, value, **others)

    monkeypatch.setattr(F, "dropout", dropout)
    monkeypatch.setattr(F, "scaled_dot_product_attention", attend)
    batch = pad(TEXTS, backbone.config.pad_token_id or 0)
    backbone.train()
    try:
        backbone(batch)
        expected = sorted(seen)
        seen.clear()
        unpadded(batch)
    finally:
        backbone.eval()
    assert sorted(seen) == expected
    assert {kind for kind, _ in seen} == {"states", "attention"}
