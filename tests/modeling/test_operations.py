import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from denserk.data.batches import pad
from denserk.modeling.folder_layouts import read_model_folder
from denserk.modeling.operations import Operations, matrix_rate
from denserk.settings.encoding import Representation, RepresentationSettings
from tests.tiny_models import BACKBONES, HIDDEN, WITH_HEADS


@pytest.mark.parametrize("kind", BACKBONES)
def test_operations_are_those_that_torch_counts(tiny, kind):
    settings = RepresentationSettings(Representation.MEAN)
    encoder = read_model_folder(tiny(kind)).passage.build(settings)
    encoder.backbone.encoder.set_attn_implementation("eager")
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        encoder.backbone(pad([[5] * 11] * 3, 0))
    operations = Operations.of(encoder)
    assert operations.forward(3, 33, 3 * 11**2) == counted.get_total_flops()
    assert operations.head_per_token == 0


@pytest.mark.parametrize("kind", WITH_HEADS)
def test_the_head_counts_after_position_0(tiny_agg, kind):
    folder = read_model_folder(tiny_agg(kind))
    encoder = folder.passage.build(folder.representation)
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        encoder.backbone.vocabulary_logits(torch.zeros(2, 9, HIDDEN))
    operations = Operations.of(encoder)
    of_head = operations.forward(2, 20, 0) - 20 * operations.per_token
    assert of_head == counted.get_total_flops()


def test_bert_costs_what_its_formula_says(tiny):
    encoder = read_model_folder(tiny("bert")).passage.build(RepresentationSettings())
    assert Operations.of(encoder) == Operations(
        per_token=2 * (8 * HIDDEN**2 + 4 * HIDDEN * 2 * HIDDEN),
        per_pair=2 * 4 * HIDDEN,
        head_per_token=0,
        hidden=HIDDEN,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rate_is_measured(dtype):
    assert 1e6 < matrix_rate(8, dtype, torch.device("cpu"), seconds=0.0) < 1e16
