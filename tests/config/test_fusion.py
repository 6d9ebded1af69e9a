"""What may be said about a fusion."""

import pytest

from denserk.config.fusion import FusionSettings
from denserk.errors import UsageError


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"rrf_k": -1}, "--rrf-k -1"),
        ({"depth": 0}, "--depth 0"),
        ({"alpha": 1.5}, "--alpha 1.5"),
        ({"alpha": 0.5, "weights": (1.0, 2.0)}, "exclude each other"),
        ({"weights": (1.0, -0.5)}, "--weights 1,-0.5"),
        ({"weights": (0.0, 0.0)}, "--weights 0,0"),
        ({"weights": (1.0, float("nan"))}, "--weights 1,nan"),
    ],
)
def test_refused(chosen, message):
    with pytest.raises(UsageError, match=message):
        FusionSettings(**chosen)


def test_weights():
    assert FusionSettings().weights_of(3) == (1, 1, 1)
    assert FusionSettings(alpha=0.3).weights_of(2) == (0.3, 0.7)
    assert FusionSettings(weights=(2, 0)).weights_of(2) == (2, 0)
    with pytest.raises(UsageError, match="--weights has 2 weights for 3 runs"):
        FusionSettings(weights=(1, 2)).weights_of(3)
    with pytest.raises(UsageError, match="--alpha is for two runs"):
        FusionSettings(alpha=0.3).weights_of(3)
