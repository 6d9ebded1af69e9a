import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

from denserk.data.pair_batches import PairJoiner
from denserk.data.tokenization import load_tokenizer
from denserk.errors import ModelError
from denserk.modeling.checkpoints import read_weights
from denserk.modeling.cross_encoder import PUBLISHED, Reranker
from denserk.modeling.stored_model import StoredEncoder
from denserk.settings.encoding import PairSettings, TextSettings
from tests.tiny_models import RERANKERS


def batch_of(folder, token_types=False):
    joiner = PairJoiner(load_tokenizer(folder), TextSettings(), PairSettings(None, token_types))
    queries, passages = [[2, 9, 14, 3], [2, 17, 3], [2, 3]], [[2, 30, 8, 3], [2, 9, 3], [2, 3]]
    return joiner.batch([joiner.join(q, p) for q in queries for p in passages])


@pytest.mark.parametrize("kind", RERANKERS)
@pytest.mark.parametrize("token_types", [True, False])
def test_published_rerankers_score_as_in_transformers(tiny_reranker, kind, token_types):
    folder = tiny_reranker(kind)
    given = token_types and kind != "distilbert"
    batch = batch_of(folder, given)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    inputs = {"token_type_ids": batch.token_types} if given else {}
    with torch.no_grad():
        expected = model(batch.tokens.input_ids, batch.tokens.attention_mask, **inputs).logits[:, 0]
        got = Reranker.from_tensors(folder, PUBLISHED, read_weights(folder))(batch)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", RERANKERS)
def test_the_linear_score_is_a_layer_on_cls(tiny, kind):
    stored = StoredEncoder.read(tiny(kind))
    reranker = Reranker.begin(stored, seed=3).eval()
    weight = reranker.model.classifier.weight.detach()
    reranker.model.classifier.bias.data += 0.5
    encoder = transformers.AutoModel.from_pretrained(tiny(kind)).eval()
    batch = batch_of(tiny(kind))
    with torch.no_grad():
        states = encoder(batch.tokens.input_ids, batch.tokens.attention_mask).last_hidden_state
        expected = [sum(a * b for a, b in zip(weight[0], s[0], strict=True)) + 0.5 for s in states]
        got = reranker(batch)
    torch.testing.assert_close(got, torch.stack(expected), rtol=1e-5, atol=1e-6)


def test_the_new_head_is_drawn_by_its_seed_alone(tiny):
    stored = StoredEncoder.read(tiny())
    heads = [Reranker.begin(stored, seed).model.classifier for seed in (3, 3, 4)]
    assert heads[0].weight.equal(heads[1].weight)
    assert not heads[0].weight.equal(heads[2].weight)
    assert heads[0].bias.tolist() == [0]
    assert all(p.requires_grad for p in heads[0].parameters())


def test_the_new_head_has_the_deviation_of_the_paper(tiny):
    stored = StoredEncoder.read(tiny())
    drawn = torch.cat([Reranker.begin(stored, s).model.classifier.weight[0] for s in range(60)])
    assert abs(drawn.mean()) < 3 * 0.02 / len(drawn) ** 0.5
    assert abs(drawn.std() / 0.02 - 1) < 3 / (2 * len(drawn)) ** 0.5


def test_there_is_no_dropout_between_encoder_and_head(tiny):
    reranker = Reranker.begin(StoredEncoder.read(tiny()), seed=3).train()
    batch = batch_of(tiny())
    for module in reranker.model.base_model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "dropout_prob"):
            module.dropout_prob = 0.0
    reranker.model.config.attention_probs_dropout_prob = 0.0
    assert reranker(batch).equal(reranker(batch))


@pytest.mark.parametrize("kind", RERANKERS)
def test_bfloat16_keeps_the_last_layers_in_float32(tiny_reranker, kind):
    folder = tiny_reranker(kind)
    exact = Reranker.from_tensors(folder, PUBLISHED, read_weights(folder))
    short = Reranker.from_tensors(folder, PUBLISHED, read_weights(folder))
    batch = batch_of(folder)
    with torch.no_grad():
        expected, got = exact(batch), short.compute_in(torch.bfloat16)(batch)
    assert got.dtype == torch.float32
    assert not got.equal(got.bfloat16().float())
    torch.testing.assert_close(got, expected, rtol=0.1, atol=0.1)


def test_the_linear_score_in_bfloat16_under_autocast_is_a_float32_product(tiny):
    reranker = Reranker.begin(StoredEncoder.read(tiny()), seed=3).eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        scores = reranker(batch_of(tiny()))
    assert scores.dtype == torch.float32
    assert not scores.equal(scores.bfloat16().float())


def test_a_t5_encoder_is_refused(tiny):
    with pytest.raises(ModelError, match="scores \\[CLS\\], which a t5 backbone does not have"):
        Reranker.begin(StoredEncoder.read(tiny("t5")), seed=3)


@pytest.mark.parametrize("kind", RERANKERS)
def test_weights_that_do_not_belong_are_named(tiny_reranker, kind):
    folder = tiny_reranker(kind)
    tensors = load_file(folder / "model.safetensors")
    lost = next(name for name in tensors if name.startswith("classifier"))
    del tensors[lost]
    with pytest.raises(ModelError, match=f"missing: {lost}"):
        Reranker.from_tensors(folder, PUBLISHED, tensors)


def test_old_names_buffers_and_unused_parts_are_passed_over(tiny_reranker):
    folder = tiny_reranker("electra")
    tensors = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma"): tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
    }
    tensors["electra.embeddings.position_ids"] = torch.arange(64)[None]
    tensors["discriminator_predictions.dense.weight"] = torch.zeros(2, 2)
    batch = batch_of(folder)
    with torch.no_grad():
        got = Reranker.from_tensors(folder, PUBLISHED, tensors)(batch)
        assert got.equal(Reranker.from_tensors(folder, PUBLISHED, read_weights(folder))(batch))


def test_positions(tiny):
    assert Reranker.begin(StoredEncoder.read(tiny("roberta")), seed=3).max_length == 64
