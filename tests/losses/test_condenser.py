import pytest
import torch

from denserk.errors import ModelError
from denserk.losses.pretraining import Condenser
from tests.losses.literal_layers import literal_layer
from tests.losses.pretraining_models import (
    backbone_of,
    example_backbone,
    example_texts,
    fill_example,
    literal_loss,
    only,
    random_texts,
    read_example,
)
from tests.tiny_models import WITH_HEADS


@pytest.fixture
def example(specs):
    return read_example(specs / "condenser_example.json", "head_wiring")


@pytest.fixture
def wired(example):
    backbone = example_backbone(example["config"], example["weights"])
    objective = Condenser(backbone, skip_from=1, head_layers=1)
    fill_example(objective, example["weights"])
    return objective


def test_example_vectors(example, wired):
    batch = only(example_texts(*(example[k] for k in ("input_ids", "attention_mask", "labels"))))
    expected = example["expected"]
    cls, states = wired.states(batch)
    real = batch.texts.tokens.attention_mask
    for name, state in (("h_late", states["late"]), ("head_output", states["head"])):
        assert state[real].tolist() == pytest.approx(torch.tensor(expected[name])[real], abs=2e-6)
    assert cls.equal(states["late"][:, 0])
    terms = wired(batch)[1]
    for name in ("head", "late"):
        total, count = terms[name].total, terms[name].count
        nll = expected[f"per_token_nll_{name}"]
        assert total.item() == pytest.approx(sum(nll), abs=1e-5)
        assert (total / count).item() == pytest.approx(expected[f"loss_{name}"], abs=2e-6)
    both = sum((term.total / term.count).item() for term in terms.values())
    assert both == pytest.approx(expected["loss_total"], abs=3e-6)


@pytest.mark.parametrize("kind", WITH_HEADS)
@pytest.mark.parametrize("skip_from", [0, 1, 2])
def test_literal_restatement(tiny, kind, skip_from):
    backbone = backbone_of(tiny(kind))
    objective = Condenser(backbone, skip_from=skip_from).double().eval()
    batch = only(random_texts(backbone, [7, 5]))
    tokens, labels = batch.texts
    layers = backbone.hidden_states(tokens)
    rows = torch.cat([layers[-1][:, :1], layers[skip_from][:, 1:]], 1)
    for layer in objective.head:
        seen = tokens.attention_mask[:, None].expand(-1, 7, -1)
        rows = torch.stack(
            [literal_layer(layer, row, row, see) for row, see in zip(rows, seen, strict=True)]
        )
    terms = objective(batch)[1]
    for name, hidden in (("head", rows), ("late", layers[-1])):
        total, count = literal_loss(backbone, hidden, labels)
        assert terms[name].total.item() == pytest.approx(total)
        assert terms[name].count.item() == count


def test_defaults(tiny):
    backbone = backbone_of(tiny())
    objective = Condenser(backbone).double()
    assert (objective.skip_from, len(objective.head), objective.late_mlm) == (1, 2, True)
    batch = only(random_texts(backbone, [6]))
    assert list(objective(batch)[1]) == ["head", "late"]
    assert list(Condenser(backbone, late_mlm=False).double()(batch)[1]) == ["head"]


@pytest.mark.parametrize("skip_from", [-1, 3])
def test_layers_that_are_not_there(tiny, skip_from):
    with pytest.raises(ModelError, match=f"layer {skip_from}: the backbone has layers 0"):
        Condenser(backbone_of(tiny()), skip_from=skip_from)
