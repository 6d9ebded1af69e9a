"""Drawing tokens from logits, so that a draw does not depend on what was computed beside it.

A draw is the maximum of logit + noise (the Gumbel-max rule: Maddison, Tarlow and Minka, "A*
Sampling", 2014, section 2), and a token's noise is a hash of its row's key, its step and its id.
Logits differ in their last digits with the size and the padding of a batch. `draw` therefore also
tells which draws such a difference could change; `draw_one` settles those from logits that do not
depend on a batch. All other draws are the same for any logits within the tolerance.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from denserk.settings.generate import SamplingRule

STEP = 0x9E3779B97F4A7C15
TOKEN = 0xD1B54A32D192ED03
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""Odd 64-bit constants: two strides, and the multipliers of splitmix64's finaliser."""
CANDIDATES = 64
"""How many of the likeliest tokens are looked at first; more where these do not suffice."""


class Draws(NamedTuple):
    """(B,) tokens, and whether another rounding of the logits could have drawn another one."""

    tokens: Tensor
    close: Tensor


def row_keys(seed: int, purpose: str, names: Sequence[str], samples: int) -> Tensor:
    """One 64-bit key for each sample of each named text: (len(names) * samples,) int64.

    >>> row_keys(42, "queries", ["d1"], 2).tolist()
    [4837268997361788698, -1649683436491131568]
    """
    keys = np.empty((len(names), samples), dtype="<u8")
    for row, name in enumerate(names):
        digest = blake2b(f"{seed}\0{purpose}\0{name}".encode(), digest_size=8).digest()
        strides = np.arange(samples, dtype="<u8") * np.uint64(STEP)
        keys[row] = np.frombuffer(digest, dtype="<u8") + strides
    return _mix(torch.from_numpy(keys.reshape(-1).view("<i8").astype(np.int64)))


def _signed(constant: int) -> int:
    return constant - (1 << 64) if constant >= 1 << 63 else constant


def _shift(bits: Tensor, by: int) -> Tensor:
    """A logical shift to the right; torch's own keeps the sign."""
    return (bits >> by) & ((1 << (64 - by)) - 1)


def _mix(bits: Tensor) -> Tensor:
    """splitmix64's finaliser on int64, whose products wrap."""
    bits = (bits ^ _shift(bits, 30)) * _signed(FIRST)
    bits = (bits ^ _shift(bits, 27)) * _signed(SECOND)
    return bits ^ _shift(bits, 31)


def gumbel_noise(keys: Tensor, step: int, tokens: Tensor) -> Tensor:
    """Noise of the standard Gumbel distribution, a pure function of its three arguments.

    Args:
        keys: (B,) int64, from `row_keys`.
        step: which token of the row is drawn, from 0.
        tokens: (B, C) int64 ids.

    Returns:
        (B, C) float64.
    """
    stream = _mix(keys + _signed((step + 1) * STEP % (1 << 64)))
    bits = _mix(stream.unsqueeze(1) + tokens * _signed(TOKEN))
    uniform = (_shift(bits, 12).double() + 0.5) * 2.0**-52
    return -torch.log(-torch.log(uniform))


def draw(logits: Tensor, keys: Tensor, step: int, rule: SamplingRule, tolerance: Tensor) -> Draws:
    """Draws one token a row, and tells which draws are close.

    Args:
        logits: (B, V), finite.
        keys: (B,) int64, from `row_keys`.
        step: which token of the row is drawn, from 0.
        rule: what may be drawn.
        tolerance: (B,) how far each logit of a row may be from its true value.

    Returns:
        A draw that is not close is the one that `draw_one` makes of any logits within the
        tolerance.
    """
    margin = (tolerance.double() / rule.temperature).unsqueeze(1)
    size = logits.shape[1]
    count = size if rule.keeps_all else min(size, max(CANDIDATES, 2 * rule.top_k))
    log_total = _log_total(logits, rule)
    while True:
        values, tokens = torch.topk(logits, count)
        scaled = values.double() / rule.temperature
        sure, possible = _kept(scaled, log_total, rule, margin)
        if count == size or not bool(possible[:, -1].any()):
            break
        count = min(size, 8 * count)
    scores = (scaled + gumbel_noise(keys, step, tokens)).masked_fill(~possible, -torch.inf)
    best, where = torch.topk(scores, min(2, count))
    runner_up = best[:, -1:] if count > 1 else best - torch.inf
    safe = (best[:, :1] - runner_up > 2 * margin) & sure.gather(1, where[:, :1])
    return Draws(tokens.gather(1, where[:, :1]).squeeze(1), ~safe.squeeze(1))


def _log_total(logits: Tensor, rule: SamplingRule) -> Tensor:
    """(B, 1) float64: the logarithm of the mass that top-p is a share of."""
    if rule.top_p >= 1:
        return logits.new_zeros(len(logits), 1, dtype=torch.float64)
    likeliest = min(rule.top_k or logits.shape[1], logits.shape[1])
    kept = torch.topk(logits, likeliest).values if rule.top_k else logits
    return torch.logsumexp(kept.double() / rule.temperature, 1, keepdim=True)


def _kept(
    scaled: Tensor, log_total: Tensor, rule: SamplingRule, margin: Tensor
) -> tuple[Tensor, Tensor]:
    """Which of the likeliest tokens are kept for sure, and which possibly: (B, C) bool twice.

    `fewest` and `most` are how many are kept when every probability moves against, or for, a token.
    A token whose logit is within 2 margins of the first one left out, or of the last one kept, may
    change places with it.
    """
    rank = torch.arange(scaled.shape[1], device=scaled.device)
    fewest = most = torch.full_like(log_total, rule.top_k or scaled.shape[1] + 1).long()
    if rule.top_p < 1:
        mass = torch.exp(scaled - log_total)
        before = mass.cumsum(1) - mass
        slack = 4 * margin + 1e-9
        fewest = fewest.minimum((before < rule.top_p - slack).sum(1, keepdim=True)).clamp_min(1)
        most = most.minimum((before < rule.top_p + slack).sum(1, keepdim=True)).clamp_min(1)
    last = scaled.shape[1] - 1
    upper = scaled.gather(1, fewest.clamp_max(last)) + 2 * margin
    lower = scaled.gather(1, (most - 1).clamp_max(last)) - 2 * margin
    sure = (scaled > upper) | (fewest > last)
    return sure, (scaled >= lower) | (rank < most)


def draw_one(logits: Tensor, key: Tensor, step: int, rule: SamplingRule) -> int:
    """Draws one token by the letter of the rule: of equal logits, the lower id is kept first.

    Args:
        logits: (V,), finite.
        key: (1,) int64, from `row_keys`.
        step: which token of the row is drawn, from 0.
        rule: what may be drawn.
    """
    scaled = logits.double() / rule.temperature
    values, tokens = torch.sort(scaled, descending=True, stable=True)
    if rule.top_k:
        values, tokens = values[: rule.top_k], tokens[: rule.top_k]
    if rule.top_p < 1:
        mass = torch.softmax(values, 0)
        count = int((mass.cumsum(0) - mass < rule.top_p).sum().clamp_min(1))
        values, tokens = values[:count], tokens[:count]
    scores = values + gumbel_noise(key, step, tokens.unsqueeze(0)).squeeze(0)
    return int(tokens[scores.argmax()])
