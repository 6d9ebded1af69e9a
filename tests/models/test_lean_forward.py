import pytest
import torch

from denserk.data.batches import TokenBatch, pad
from denserk.models.lean_choice import difference
from denserk.models.lean_forward import LeanForward, attention_bias, fits
from denserk.models.packed_linear import unavailable
from denserk.models.stored_model import StoredEncoder
from tests.tiny_models import BACKBONES

KINDS = [kind for kind in BACKBONES if kind != "t5"]
PADDED = [[2, 9, 14, 30, 8, 3], [2, 17, 3], [2, 21, 40, 8, 3]]
SAME_LENGTH = [[2, 9, 14, 3], [2, 17, 5, 3]]

pytestmark = pytest.mark.skipif(
    unavailable(torch.float32) is not None, reason="no packed weights on this CPU"
)


def both(folder, dtype=torch.float32):
    stored = StoredEncoder.read(folder)
    backbone = stored.bare()
    return backbone, LeanForward(backbone.architecture, backbone.config, backbone.encoder, dtype)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("texts", [PADDED, SAME_LENGTH, SAME_LENGTH[:1]])
@torch.inference_mode()
def test_states_of_every_layer_are_the_plain_ones(tiny, kind, texts):
    backbone, lean = both(tiny(kind))
    batch = pad(texts, backbone.config.pad_token_id)
    expected, found = backbone.hidden_states(batch), list(lean.states(batch))
    assert len(found) == len(expected) == backbone.last_layer + 1
    for mine, plain in zip(found, expected, strict=True):
        real = batch.attention_mask
        torch.testing.assert_close(mine[real], plain[real], rtol=1e-5, atol=1e-5)
    assert torch.equal(lean(batch), found[-1])


@pytest.mark.skipif(unavailable(torch.bfloat16) is not None, reason="no bfloat16 on this CPU")
@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_low_precision_is_as_near_as_the_plain_path(tiny, kind):
    backbone, lean = both(tiny(kind), torch.bfloat16)
    batch = pad(PADDED, backbone.config.pad_token_id)
    exact, found = backbone(batch), lean(batch)
    low = backbone.bfloat16()(batch)
    assert found.dtype is low.dtype is torch.bfloat16
    real = batch.attention_mask
    mine, plain = (1 - cosines(each[real], exact[real]) for each in (found, low))
    assert mine.max() < 1e-3
    assert mine.mean() < 1.5 * plain.mean()


def cosines(low, exact):
    return torch.nn.functional.cosine_similarity(low.double(), exact.double(), dim=-1)


@torch.inference_mode()
def test_a_padding_id_inside_a_text_counts_as_the_model_counts_it(tiny):
    backbone, lean = both(tiny("roberta"))
    batch = pad([[0, 9, 1, 30, 2], [0, 9, 2]], 1)
    real = batch.attention_mask
    torch.testing.assert_close(lean(batch)[real], backbone(batch)[real], rtol=1e-5, atol=1e-5)


def test_padding_is_masked_only_where_there_is_some():
    mask = torch.tensor([[True, True], [True, False]])
    assert attention_bias(mask[:1], torch.float32) is None
    bias = attention_bias(mask, torch.float32)
    assert bias is not None
    assert bias.shape == (2, 1, 1, 2)
    assert bias.flatten(1).tolist() == [[0, 0], [0, torch.finfo(torch.float32).min]]


def test_no_gradient_is_kept(tiny):
    backbone, lean = both(tiny())
    assert not lean(pad(PADDED, 0)).requires_grad
    assert backbone(pad(PADDED, 0)).requires_grad


@pytest.mark.parametrize("kind", BACKBONES)
def test_it_fits_layers_with_exact_gelu(tiny, kind):
    stored = StoredEncoder.read(tiny(kind))
    config = stored.config
    assert fits(stored.architecture, config) == (kind in KINDS)
    if kind != "t5":
        setattr(config, "activation" if kind == "distilbert" else "hidden_act", "gelu_new")
        assert not fits(stored.architecture, config)


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_difference_is_zero_of_the_same_and_large_of_others(tiny, kind):
    backbone, lean = both(tiny(kind))
    assert difference(backbone, lean) < 1e-5
    lean.layers = lean.layers[:1]
    assert difference(backbone, lean) > 1e-2


@torch.inference_mode()
def test_a_lean_backbone_gives_up_its_layers(tiny):
    backbone, lean = both(tiny())
    batch: TokenBatch = pad(PADDED, 0)
    states = backbone.hidden_states(batch)
    backbone.become_lean(lean)
    real = batch.attention_mask
    for mine, plain in zip(backbone.hidden_states(batch), states, strict=True):
        torch.testing.assert_close(mine[real], plain[real], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(backbone(batch)[real], states[-1][real], rtol=1e-5, atol=1e-5)
    layers = backbone.encoder.get_submodule(backbone.architecture.layers)
    assert all(each.is_meta for each in layers.parameters())
    with pytest.raises(AssertionError):
        backbone.attention_maps(batch)
