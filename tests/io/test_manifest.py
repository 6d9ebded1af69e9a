from contextlib import nullcontext

import pytest

from denserk.config.encoding import RepresentationSettings, TextSettings
from denserk.config.options import as_json
from denserk.errors import MismatchError
from denserk.io.manifest import refuse_other_model

TEXT, REPRESENTATION = as_json(TextSettings()), as_json(RepresentationSettings())
MODEL = {"name": "a", "fingerprint": "1", "representation": REPRESENTATION, "text": TEXT}


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (MODEL, {**MODEL, "name": "moved", "text": {**TEXT, "query_max_length": 64}}, ""),
        (MODEL, {**MODEL, "text": {**TEXT, "join": "sep"}}, "text.join was ' ', now 'sep'"),
        (None, MODEL, ""),
        (MODEL, None, ""),
        (MODEL, {**MODEL, "name": "b", "fingerprint": "2"}, "x were .*: other weights: a and b"),
    ],
)
def test_vectors_of_two_models(one, other, said):
    with pytest.raises(MismatchError, match=said) if said else nullcontext():
        refuse_other_model(one, other, "x", "hint")
