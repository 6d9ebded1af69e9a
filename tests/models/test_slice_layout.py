import json
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from denserk.config.encoding import AggKind, AggLayout
from denserk.models.slice_layout import SliceLayout
from tests.oracles import folded

KINDS = {"agg_star": AggKind.STAR, "agg_plus": AggKind.PLUS}
STRIDED = AggLayout.STRIDED


def test_every_probe_of_the_released_layouts(specs):
    probes = json.loads((specs / "aggretriever_example.json").read_text())["layout_probes"]
    seen = 0
    for probe in probes:
        size, dimension = probe["vocab_size"], probe["agg_dim"]
        layout = SliceLayout.build(size, dimension, KINDS[probe["kind"]], STRIDED, 0)
        assert (layout.modulus, layout.dropped, layout.appended) == (
            probe["modulus"],
            probe["dropped_ids"],
            probe["padded_columns"],
        )
        for item in probe["ids"]:
            alone, expected = torch.zeros(size), torch.zeros(dimension)
            alone[item["id"]] = 1.0
            if item["slice"] is not None:
                expected[item["slice"]] = item["sign"]
            assert layout.fold(alone).equal(expected)
            seen += 1
    assert seen == 120


SIZES = [(10, 5), (23, 5), (250, 9), (7, 16)]
CASES = [(kind, layout, *size) for kind in KINDS.values() for layout in AggLayout for size in SIZES]


@pytest.mark.parametrize(
    ("kind", "layout", "vocabulary", "dimension"),
    [*CASES, *((kind, STRIDED, 30522, 128) for kind in KINDS.values())],
)
def test_folding_is_what_the_paper_says(kind, layout, vocabulary, dimension):
    made = SliceLayout.build(vocabulary, dimension, kind, layout, seed=5)
    numbers = random.Random(1)
    for offset in (0, 0.5):  # signed term weights make negative scores
        scores = [numbers.random() - offset for _ in range(vocabulary)]
        got = made.fold(torch.tensor([scores], dtype=torch.float64))
        assert got.tolist() == [folded(scores, made)]


@given(st.lists(st.floats(0, 1, width=32), min_size=12, max_size=12))
def test_agg_star_keeps_the_size_of_paired_agg_plus(scores):
    star, plus = (
        SliceLayout.build(12, 3, kind, AggLayout.PAIRED, 0) for kind in (AggKind.STAR, AggKind.PLUS)
    )
    vector = torch.tensor(scores)
    assert star.fold(vector).abs().equal(plus.fold(vector))


def test_a_tie_goes_to_the_minus_half_and_zero_stays_positive():
    layout = SliceLayout.build(4, 2, AggKind.STAR, STRIDED, 0)
    values = layout.fold(torch.tensor([0.5, 0.5, 0.0, 0.0]))
    assert values.tolist() == [-0.5, 0.0]
    assert not values.signbit()[1]


def test_the_random_layout_is_its_seed_and_covers_every_id():
    layout = SliceLayout.build(10, 5, AggKind.STAR, AggLayout.RANDOM, 42)
    assert layout.order == (1, 0, 6, 4, 7, 9, 5, 8, 3, 2)
    assert layout.fold(torch.arange(10.0)).tolist() == [1.0, 6.0, -9.0, -8.0, 3.0]
