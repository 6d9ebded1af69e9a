"""Lines of TREC runs written column by column: the bytes that Python's formatting would give.

A column of K hits has a row of bytes for each, in groups of four; what a text leaves of its groups
is filled up with zero bytes. The columns are put beside each other, and zero bytes left out.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from denserk.io.run_columns import LONGEST_ID, MANY_HITS, RankedWords, Words, words_between

Groups = NDArray[np.uint32]  # (K, G) groups of four bytes

DIGITS = 9  # significant digits of the format ".9g"
SCORES = f".{DIGITS}g"
# The powers of ten of the first digit from which this format has no exponent, and up to which the
# digits before the point and a sign fit into a group
LOWEST_POWER, HIGHEST_POWER = -4, 2
DECIMALS = DIGITS - 1 - LOWEST_POWER  # at most
UNITS = 10.0 ** np.arange(DECIMALS, DIGITS - 2 - HIGHEST_POWER, -1)  # of the last digit, by power
# A product of two doubles has 16 digits: half of a unit in the tenth place is told from less.
UNCERTAIN = 1e-5
WHOLES = 1000  # numbers before the point
FOUR_DIGITS = 10_000  # numbers of four decimals


def _grouped(texts: Iterable[str], groups: int = 1) -> Groups:
    """Return the groups of K texts of ASCII: (K, groups)."""
    encoded = np.array([text.encode() for text in texts], f"S{4 * groups}")
    return encoded.view(np.uint32).reshape(-1, groups)


POSITIVE = _grouped(map(str, range(WHOLES)))
NEGATIVE = _grouped(f"-{number}" for number in range(WHOLES))
SIGNED = np.concatenate([POSITIVE, NEGATIVE])[:, 0]
POINT = np.uint32(_grouped(["."])[0, 0])
# four decimals that others follow, and behind them those that are the last ones
FOLLOWED = _grouped(f"{number:04}" for number in range(FOUR_DIGITS))
LAST = _grouped(f"{number:04}".rstrip("0") for number in range(FOUR_DIGITS))
FOUR_DECIMALS = np.concatenate([FOLLOWED, LAST])[:, 0]


def as_words(hits: Sequence[tuple[str, float]] | RankedWords) -> RankedWords | None:
    """Return hits as columns; None where these do not exist, or lines are as quick one by one."""
    if isinstance(hits, RankedWords):
        return hits
    if len(hits) < MANY_HITS:
        return None
    words = id_words([docid for docid, _ in hits])
    return None if words is None else RankedWords(words, np.array([score for _, score in hits]))


def id_words(docids: Sequence[str]) -> Words | None:
    """Return the words of ids; None unless they are ASCII without zero bytes, and not long."""
    text = "".join(docids)
    if not text.isascii() or "\0" in text:
        return None
    lengths = np.fromiter(map(len, docids), np.int32, len(docids))
    if not 0 < lengths.max(initial=0) <= LONGEST_ID:
        return None
    starts = np.zeros(len(docids) + 1, np.int32)
    np.cumsum(lengths, out=starts[1:])
    return words_between(np.frombuffer(text.encode(), np.uint8), starts)


def trec_lines(qid: str, hits: RankedWords, tag: str) -> bytes:
    r"""Return the lines of the hits of a query, whose scores are finite.

    >>> trec_lines("q1", RankedWords(id_words(["d10", "d9"]), np.array([2.5, 0.125])), "run")
    b'q1 Q0 d10 1 2.5 run\nq1 Q0 d9 2 0.125 run\n'
    """
    columns = [
        _constant(f"{qid} Q0 "),
        hits.id_bytes().view(np.uint32),
        _ranks(1 << (len(hits) - 1).bit_length())[: len(hits)],
        score_groups(hits.scores),
        _constant(f" {tag}\n"),
    ]
    width = sum(column.shape[1] for column in columns)
    lines = np.empty((len(hits), width), np.uint32)
    first = 0
    for column in columns:
        end = first + column.shape[1]
        lines[:, first:end] = column
        first = end
    return lines.tobytes().translate(None, b"\0")


def _constant(text: str) -> Groups:
    """Return the groups of a text that all lines have: (1, G)."""
    encoded = text.encode()
    return np.frombuffer(encoded.ljust(-(-len(encoded) // 4) * 4, b"\0"), np.uint32)[None]


@lru_cache(8)
def _ranks(count: int) -> Groups:
    """Return the ranks from 1 to `count` with the blanks around them."""
    groups = -(-len(f" {count} ") // 4)
    return _grouped((f" {rank} " for rank in range(1, count + 1)), groups)


def score_groups(scores: NDArray[np.float64]) -> Groups:
    r"""Return the groups of finite scores, each formatted as by `format(score, SCORES)`.

    A score x of 10**p <= x < 10**(p + 1) has the digits of the whole number nearest to
    x * 10**(8 - p). The product is rounded: where it is near the middle of two whole numbers, or
    the number has not 9 digits, Python formats the score, as it does where an exponent is written.

    >>> for groups in score_groups(np.array([-1 / 3, 120.0, 1e-7])):
    ...     print(groups.tobytes().replace(b"\0", b""))
    b'-0.333333333'
    b'120'
    b'1e-07'
    """
    magnitudes = np.minimum(np.abs(scores), 10.0**DIGITS)  # larger ones do not fit anyway
    with np.errstate(divide="ignore"):
        powers = np.floor(np.log10(magnitudes))
    powers = np.minimum(np.maximum(powers, LOWEST_POWER), HIGHEST_POWER).astype(np.int64)
    units = UNITS[powers - LOWEST_POWER]
    products = magnitudes * units
    numbers = np.rint(products)
    is_certain = np.abs(np.abs(products - numbers) - 0.5) > UNCERTAIN
    is_certain &= (numbers >= 10 ** (DIGITS - 1)) & (numbers < 10**DIGITS)
    numbers *= is_certain
    groups = _decimal_groups(numbers, units, scores < 0)
    if not is_certain.all():
        texts = (format(score, SCORES) for score in scores[~is_certain].tolist())
        groups[~is_certain] = _grouped(texts, groups.shape[1])
    return groups


def _decimal_groups(
    numbers: NDArray[np.float64], units: NDArray[np.float64], is_negative: NDArray[np.bool_]
) -> Groups:
    """Return the groups of numbers divided by units, which are powers of ten up to 10**12.

    They are the sign with the digits before the point, the point, and the decimals without zeros
    at the end. All steps are exact: doubles hold whole numbers of 15 digits, and a quotient of
    such numbers is not rounded up to the next whole one.
    """
    whole = np.floor(numbers / units)
    decimals = (numbers - whole * units) * (10.0**DECIMALS / units)
    first = np.floor(decimals / FOUR_DIGITS**2)
    decimals_behind = decimals - first * FOUR_DIGITS**2
    second = np.floor(decimals_behind / FOUR_DIGITS)
    third = decimals_behind - second * FOUR_DIGITS
    groups = np.empty((len(numbers), 5), np.uint32)
    groups[:, 0] = SIGNED[(whole + WHOLES * is_negative).astype(np.int64)]
    groups[:, 1] = POINT * (decimals > 0)
    groups[:, 2] = FOUR_DECIMALS[(first + FOUR_DIGITS * (decimals_behind == 0)).astype(np.int64)]
    groups[:, 3] = FOUR_DECIMALS[(second + FOUR_DIGITS * (third == 0)).astype(np.int64)]
    groups[:, 4] = FOUR_DECIMALS[(third + FOUR_DIGITS).astype(np.int64)]
    return groups
