from typing import Any

import pytest

from denserk.errors import MismatchError
from denserk.formats.model_chain import model_differences, refuse_other_model
from denserk.settings.encoding import RepresentationSettings, TextSettings
from denserk.settings.options import as_json

MODEL: dict[str, Any] = {
    "name": "a",
    "fingerprint": "1",
    "representation": as_json(RepresentationSettings()),
    "text": as_json(TextSettings()),
}


def test_the_same_weights_under_another_name_are_the_same():
    assert model_differences(MODEL, {**MODEL, "name": "moved"}) == []


@pytest.mark.parametrize(
    ("part", "name", "value", "said"),
    [
        ("representation", "l2_norm", True, "representation.l2_norm was False, now True"),
        ("representation", "agg_order", "agg-cls", "agg_order was 'cls-agg', now 'agg-cls'"),
        ("text", "join", "sep", "text.join was ' ', now 'sep'"),
    ],
)
def test_what_differs_is_named(part, name, value, said):
    other = {**MODEL, part: {**MODEL[part], name: value}}
    (found,) = model_differences(MODEL, other)
    assert said in found


def test_the_length_of_queries_is_their_own_business():
    other = {**MODEL, "text": {**MODEL["text"], "query_max_length": 64}}
    assert model_differences(MODEL, other) == []


def test_a_setting_that_came_later_has_its_default():
    old = {"name": "a", "fingerprint": "1", "representation": {"representation": "cls"}}
    assert model_differences({**old, "text": MODEL["text"]}, MODEL) == []


def test_other_weights_are_refused():
    with pytest.raises(MismatchError, match="x were not made alike: other weights: a and b"):
        refuse_other_model(MODEL, {**MODEL, "name": "b", "fingerprint": "2"}, "x", "hint")


@pytest.mark.parametrize(("made", "asked"), [(None, MODEL), (MODEL, None)])
def test_what_is_not_known_is_not_refused(made, asked):
    refuse_other_model(made, asked, "x", "hint")
