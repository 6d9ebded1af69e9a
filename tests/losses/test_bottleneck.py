import pytest
import torch

from denserk.losses.bottleneck import STANDARD_DEVIATION, Bottleneck, behind
from tests.losses.pretraining_models import backbone_of
from tests.tiny_models import HIDDEN, WITH_HEADS, write_tiny


def test_cls_takes_the_first_place():
    cls, stream = torch.full((2, 3), 7.0), torch.arange(24.0).reshape(2, 4, 3)
    result = behind(cls, stream)
    assert result[:, 0].equal(cls)
    assert result[:, 1:].equal(stream[:, 1:])


@pytest.mark.parametrize("kind", WITH_HEADS)
def test_padding_is_not_seen(tiny, kind):
    backbone = backbone_of(tiny(kind))
    stack = Bottleneck(backbone, 2).double().eval()
    torch.manual_seed(0)
    cls, stream = torch.randn(1, HIDDEN).double(), torch.randn(1, 6, HIDDEN).double()
    mask = torch.tensor([[True] * 4 + [False] * 2])
    whole = stack(backbone, cls, stream, mask)
    alone = stack(backbone, cls, stream[:, :4], mask[:, :4])
    assert whole[:, :4].allclose(alone)
    assert not stack(backbone, cls, stream, torch.ones_like(mask))[:, :4].allclose(alone)


def test_weights_begin_as_berts(tmp_path):
    backbone = backbone_of(write_tiny(tmp_path / "wide", "bert", ["[PAD]", "a"], hidden=128))
    for library in (False, True):
        stack = Bottleneck(backbone, 1, library_init=library)
        for name, tensor in stack.state_dict().items():
            if tensor.dim() == 2:
                bound = tensor.shape[1] ** -0.5  # uniform in +- 1 / sqrt(fan-in)
                expected = bound / 3**0.5 if library else STANDARD_DEVIATION
                assert tensor.std().item() == pytest.approx(expected, rel=0.05), name
            elif "LayerNorm.weight" in name:
                assert (tensor == 1).all()
            elif "LayerNorm.bias" in name or not library:
                assert (tensor == 0).all()
