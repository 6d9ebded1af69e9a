import pytest
import torch

from denserk.data.batches import pad
from denserk.models.stored_model import StoredEncoder
from tests.losses.literal_layers import literal_layer
from tests.tiny_models import HIDDEN, WITH_HEADS

TEXTS = [[2, 9, 14, 30, 8, 3], [2, 17, 3]]


def parts(folder):
    backbone = StoredEncoder.read(folder).masked_lm().double().eval()
    return backbone, pad(TEXTS, pad_id=backbone.config.pad_token_id)


@pytest.mark.parametrize("kind", WITH_HEADS)
def test_embeddings_and_layers_make_the_encoder(tiny, kind):
    backbone, batch = parts(tiny(kind))
    embedded = backbone.embed(batch)
    assert embedded.equal(backbone.hidden_states(batch)[0])
    layers = list(backbone.encoder.get_submodule(backbone.architecture.layers))
    states = backbone.run_layers(layers, embedded, batch.attention_mask)
    assert states.allclose(backbone(batch))


@pytest.mark.parametrize("kind", WITH_HEADS)
def test_position_signal_is_what_embeddings_add(tiny, kind):
    backbone, batch = parts(tiny(kind))
    embeddings = backbone.encoder.embeddings
    summed = embeddings.word_embeddings(batch.input_ids[:1]) + backbone.position_signal(6)
    if kind != "distilbert":
        summed = summed + embeddings.token_type_embeddings.weight[0]
    assert embeddings.LayerNorm(summed).allclose(backbone.embed(batch)[:1])


@pytest.mark.parametrize("kind", WITH_HEADS)
def test_new_layers_are_of_the_same_kind(tiny, kind):
    backbone, _ = parts(tiny(kind))
    own = backbone.encoder.get_submodule(backbone.architecture.layers)[0]
    for layer in backbone.new_layers(2):
        assert type(layer) is type(own)
        mine, theirs = layer.state_dict(), own.state_dict()
        assert {n: t.shape for n, t in mine.items()} == {n: t.shape for n, t in theirs.items()}
        assert not any(tensor.equal(theirs[n]) for n, tensor in mine.items() if tensor.dim() == 2)


@pytest.mark.parametrize("kind", WITH_HEADS)
def test_cross_layer(tiny, kind):
    torch.manual_seed(1)
    backbone, _ = parts(tiny(kind))
    layer = backbone.encoder.get_submodule(backbone.architecture.layers)[0]
    queries, states = torch.randn(2, 2, 5, HIDDEN, dtype=torch.float64)
    seen = torch.rand(2, 5, 5) < 0.5
    seen[..., 0] = True
    expected = [literal_layer(layer, *row) for row in zip(queries, states, seen, strict=True)]
    result = backbone.run_cross_layer(layer, queries, states, seen)
    assert result.allclose(torch.stack(expected))
    whole = backbone.run_cross_layer(layer, states, states, torch.ones_like(seen))
    everywhere = torch.ones(2, 5, dtype=torch.bool)
    assert whole.allclose(backbone.run_layers([layer], states, everywhere))


@pytest.mark.parametrize("kind", WITH_HEADS)
def test_cross_layer_drops_attention_in_training(tiny, kind):
    backbone, _ = parts(tiny(kind))
    layer = backbone.encoder.get_submodule(backbone.architecture.layers)[0]
    states, seen = torch.randn(1, 9, HIDDEN, dtype=torch.float64), torch.ones(1, 9, 9).bool()
    for part in layer.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    (layer.attention if kind == "distilbert" else layer.attention.self).dropout.p = 0.5
    runs = [backbone.run_cross_layer(layer.train(), states, states, seen) for _ in range(2)]
    assert not runs[0].allclose(runs[1])


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "electra", "t5"])
def test_attention_maps_are_distributions_over_real_tokens(tiny, kind):
    backbone = StoredEncoder.read(tiny(kind)).backbone()
    assert backbone.encoder.config._attn_implementation != "eager"  # which must be asked for
    batch = pad(TEXTS, pad_id=backbone.config.pad_token_id)
    plain = backbone(batch)
    maps = backbone.attention_maps(batch)
    heads, layers = backbone.config.num_attention_heads, backbone.config.num_hidden_layers
    assert [tuple(each.shape) for each in maps] == [(2, heads, 6, 6)] * layers
    for each in maps:
        assert each.sum(-1).allclose(torch.ones(2, heads, 6))
        assert not each[1, :, :, 3:].any()
    assert backbone(batch)[batch.attention_mask].allclose(plain[batch.attention_mask], atol=1e-5)
