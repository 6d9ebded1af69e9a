import json

import pytest
import torch

from denserk.errors import ModelError
from denserk.modeling.layer_pooling import ScalarMix, average_vectors, pool_layers, storage_order
from denserk.objectives.contrastive import contrastive_loss


@pytest.mark.parametrize(
    ("layers", "order"),
    [((), (12, 11)), ((10, 12), (12, 10)), ((12,), (12,)), ((0, 6, 12), (12, 6, 0))],
)
def test_storage_order(layers, order):
    assert storage_order(layers, 12) == order


@pytest.mark.parametrize("layers", [(10, 11), (12, 13), (-1, 12), (12, 12)])
def test_impossible_layers(layers):
    with pytest.raises(ModelError, match="--layers"):
        storage_order(layers, 12)


@pytest.mark.parametrize("by_cls", [True, False])
def test_vectors_of_layers(by_cls):
    torch.manual_seed(0)
    states = torch.randn(4, 2, 3, 5)
    mask = torch.tensor([[True, True, False], [True, True, True]])
    found = pool_layers(states.unbind(), mask, (3, 1), by_cls=by_cls)
    for p in range(2):
        for s, layer in enumerate((3, 1)):
            state = states[layer, p]
            expected = state[0] if by_cls else state[mask[p]].mean(0)
            torch.testing.assert_close(found[p, s], expected)


@pytest.fixture
def example(specs):
    return json.loads((specs / "mlr_example.json").read_text())


def loss_of(example, passages):
    queries = torch.tensor(example["query_vectors"], dtype=torch.float64)
    return contrastive_loss(queries @ passages.T, torch.tensor(example["targets"])).item()


def test_average_of_the_example(example):
    losses = example["losses"]
    vectors = average_vectors(torch.tensor(losses["doc_vectors"], dtype=torch.float64))
    expected = torch.tensor(losses["average_pooling"]["doc_vectors"], dtype=torch.float64)
    torch.testing.assert_close(vectors, expected, rtol=0, atol=1e-6)
    assert loss_of(losses, vectors) == pytest.approx(losses["average_pooling"]["loss"], abs=1e-6)


def test_scalar_mix_of_the_example(example):
    losses = example["losses"]
    mix = ScalarMix(3).double()
    documents = torch.tensor(losses["doc_vectors"], dtype=torch.float64)
    torch.testing.assert_close(mix(documents), average_vectors(documents))
    mix.scalar_parameters.data = torch.tensor(
        losses["scalar_mix"]["parameters"], dtype=torch.float64
    )
    with torch.no_grad():
        found = mix(documents)
    expected = torch.tensor(losses["scalar_mix"]["doc_vectors"], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert loss_of(losses, found) == pytest.approx(losses["scalar_mix"]["loss"], abs=1e-6)


def test_mean_of_a_backbone_without_cls(example):
    case = example["t5_mean_pooling"]
    states = torch.tensor([case["token_states"]])
    for mask, expected in (
        (case["attention_mask"], case["mean_vector"]),
        (case["all_padding_case"]["attention_mask"], case["all_padding_case"]["mean_vector"]),
    ):
        found = pool_layers([states], torch.tensor([mask]).bool(), (0,), by_cls=False)
        assert found[0, 0].tolist() == expected


def test_masked_vectors_take_no_part_in_the_average():
    vectors = torch.tensor([[[1.0], [3.0], [9.0]]])
    assert average_vectors(vectors, torch.tensor([[True, True, False]])).item() == 2.0
