"""The same bytes as torch's; where a build of torch adds in another order, no entry is kept."""

import numpy as np
import pytest
import torch

from denserk.models import numpy_pooling, representation
from denserk.models.compiled_queries import NUMPY_POOLINGS


@pytest.mark.parametrize("hidden_size", [16, 40, 100, 384])
@pytest.mark.parametrize(("texts", "tokens"), [(1, 1), (1, 8), (3, 17), (2, 64), (1, 300)])
def test_vectors_are_torchs_byte_by_byte(hidden_size, texts, tokens):
    draw = np.random.default_rng(tokens)
    hidden = draw.standard_normal((texts, tokens, hidden_size), dtype=np.float32)
    lengths = draw.integers(1, tokens + 1, texts)
    mask = np.arange(tokens) < lengths[:, None]
    for name, pooling in NUMPY_POOLINGS.items():
        pool = representation.POOLINGS[name]
        expected = pool(torch.from_numpy(hidden), torch.from_numpy(mask))
        vectors = numpy_pooling.POOLINGS[pooling](hidden, mask)
        assert vectors.tobytes() == expected.numpy().tobytes()
        normalised = representation.truncated(expected, None, l2_norm=True)
        assert numpy_pooling.l2_normalised(vectors).tobytes() == normalised.numpy().tobytes()
