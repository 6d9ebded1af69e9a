"""Draws: the literal rule, its independence of rounding, and the distribution it follows."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from denserk.modeling.sampling import draw, draw_one, gumbel_noise, row_keys
from denserk.settings.generate import SamplingRule

RULES = [
    SamplingRule(),
    SamplingRule(top_k=1),
    SamplingRule(top_k=5),
    SamplingRule(top_p=0.9),
    SamplingRule(top_p=0.3, temperature=2.0),
    SamplingRule(top_k=7, top_p=0.8, temperature=0.7),
    SamplingRule(top_k=1000, top_p=0.999),
]


def literal(logits, key, step, rule):
    """The rule token by token, in plain Python."""
    scaled = {token: float(x) / rule.temperature for token, x in enumerate(logits.double())}
    order = sorted(scaled, key=lambda token: (-scaled[token], token))
    kept = order[: rule.top_k or len(order)]
    total = sum(np.exp(scaled[token]) for token in kept)
    before = 0.0
    nucleus: list[int] = []
    for token in kept:
        if not nucleus or rule.top_p >= 1 or before < rule.top_p:
            nucleus.append(token)
        before += np.exp(scaled[token]) / total
    noise = gumbel_noise(key, step, torch.tensor([nucleus]))[0].tolist()
    return max(zip(nucleus, noise, strict=True), key=lambda pair: scaled[pair[0]] + pair[1])[0]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("size", [3, 300, 3000])
def test_draws_follow_the_letter_of_the_rule(rule, size):
    logits = 3 * torch.randn(20, size, generator=torch.Generator().manual_seed(size))
    keys = row_keys(1, "test", [str(i) for i in range(20)], 1)
    drawn = draw(logits, keys, 4, rule, torch.zeros(20))
    for row in range(20):
        expected = literal(logits[row], keys[row : row + 1], 4, rule)
        assert draw_one(logits[row], keys[row : row + 1], 4, rule) == expected
        assert int(drawn.tokens[row]) == expected
    assert drawn.close.float().mean() < 0.3


@given(
    seed=st.integers(0, 10_000),
    rule=st.sampled_from(RULES),
    size=st.sampled_from([2, 5, 40, 400]),
    tolerance=st.sampled_from([1e-5, 1e-3, 0.03, 0.3]),
    grid=st.booleans(),
)
def test_a_draw_that_is_not_close_survives_any_rounding(seed, rule, size, tolerance, grid):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(8, size, generator=generator, dtype=torch.float64)
    if grid:  # many equal logits
        logits = (4 * logits).round() / 4
    keys = row_keys(seed, "test", list("abcdefgh"), 1)
    drawn = draw(logits, keys, 0, rule, torch.full((8,), tolerance))
    signs = torch.randint(0, 3, (4, 8, size), generator=generator).double() - 1
    for noise in signs * tolerance:
        moved = logits + noise
        for row in (~drawn.close).nonzero().flatten().tolist():
            token = draw_one(moved[row], keys[row : row + 1], 0, rule)
            assert token == int(drawn.tokens[row])


def test_few_draws_are_close():
    logits = 3 * torch.randn(2000, 500, generator=torch.Generator().manual_seed(0))
    keys = row_keys(1, "test", ["d"], 2000)
    for rule in (SamplingRule(top_k=10), SamplingRule(top_p=0.9)):
        assert draw(logits, keys, 0, rule, torch.full((2000,), 1e-5)).close.sum() <= 3


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (SamplingRule(), [0.1, 0.2, 0.3, 0.4]),
        (SamplingRule(top_k=2), [0, 0, 3 / 7, 4 / 7]),
        (SamplingRule(top_p=0.75), [0, 2 / 9, 3 / 9, 4 / 9]),
        (SamplingRule(top_p=0.4), [0, 0, 0, 1]),
        (SamplingRule(temperature=0.5), [1 / 30, 4 / 30, 9 / 30, 16 / 30]),
    ],
)
def test_draws_have_the_right_shares(rule, expected):
    count = 20_000
    logits = torch.log(torch.tensor([0.1, 0.2, 0.3, 0.4])).expand(count, 4)
    keys = row_keys(3, "test", [f"d{i}" for i in range(count // 10)], 10)
    tokens = draw(logits, keys, 2, rule, torch.zeros(count)).tokens
    shares = np.bincount(tokens.numpy(), minlength=4) / count
    assert np.abs(shares - expected).max() < 4 * 0.5 / np.sqrt(count)
    assert all(share == 0 for share, e in zip(shares, expected, strict=True) if e == 0)


def test_noise_is_gumbel_and_its_streams_are_strangers():
    keys = row_keys(0, "queries", [f"d{i}" for i in range(100)], 2)
    noise = gumbel_noise(keys, 0, torch.arange(200).expand(200, 200))
    assert noise.mean() == pytest.approx(np.euler_gamma, abs=0.03)
    assert noise.var() == pytest.approx(np.pi**2 / 6, abs=0.06)
    later = gumbel_noise(keys, 1, torch.arange(200).expand(200, 200))
    for one, other in (
        (noise, later),
        (noise[0::2], noise[1::2]),
        (noise[:, 0::2], noise[:, 1::2]),
    ):
        pair = torch.stack([one.flatten(), other.flatten()])
        assert abs(float(torch.corrcoef(pair)[0, 1])) < 0.03


def test_keys_tell_seeds_purposes_ids_and_samples_apart():
    keys = {
        int(key)
        for seed in (1, 2)
        for purpose in ("queries", "next")
        for key in row_keys(seed, purpose, ["d1", "d2", "d12"], 3)
    }
    assert len(keys) == 36
