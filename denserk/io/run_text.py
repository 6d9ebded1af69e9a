"""Lines of TREC runs written column by column: the bytes that Python's formatting would give.

A column of K hits has a row of bytes for each, in groups of four; what a text leaves of its groups
is filled up with zero bytes. The columns are put beside each other, and zero bytes left out.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from denserk.io.run_columns import LONGEST_ID, MANY_HITS, RankedWords, Words, words_between

GROUP = 4  # bytes
Groups = NDArray[np.uint32]  # (K, G): the bytes of K texts, in groups of four

DIGITS = 9  # significant digits of the format ".9g"
SCORE_FORMAT = f".{DIGITS}g"
LOWEST_POWER = -4  # power of ten of the first digit from which this format has no exponent
HIGHEST_POWER = 2  # and up to which the digits before the point and a sign fit into a group
DECIMALS = DIGITS - 1 - LOWEST_POWER  # at most: 12, which are three groups
# Times which a score is a number of 9 digits before the point, for each power of its first digit
SCALES = 10.0 ** (DIGITS - 1 - np.arange(LOWEST_POWER, HIGHEST_POWER + 1))
# A product of up to 10**9 is rounded by less than 1e-7. One that is nearer than this to the middle
# of two whole numbers may have been that middle, or beyond it.
UNCERTAIN = 1e-5
WHOLES = 10 ** (HIGHEST_POWER + 1)  # how many numbers may stand before the point
FOUR_DIGITS = 10_000  # how many numbers four decimals may be


def _grouped(texts: Iterable[str], groups: int = 1) -> Groups:
    """Return the groups of K texts of ASCII: (K, groups)."""
    encoded = np.array([text.encode() for text in texts], f"S{GROUP * groups}")
    return encoded.view(np.uint32).reshape(-1, groups)


def _groups_for(size: int) -> int:
    """Return how many groups some bytes need."""
    return -(-size // GROUP)


POINT = np.uint32(_grouped(["."])[0, 0])
# The group of the number n before the point: row n, or row WHOLES + n with a minus sign.
POSITIVE = _grouped(map(str, range(WHOLES)))
NEGATIVE = _grouped(f"-{number}" for number in range(WHOLES))
SIGNED = np.concatenate([POSITIVE, NEGATIVE])[:, 0]
# The group of the four decimals n: row n where others follow, or row FOUR_DIGITS + n where they are
# the last ones, without the zeros at their end; none are left of 0.
FOLLOWED = _grouped(f"{number:04}" for number in range(FOUR_DIGITS))
LAST = _grouped(f"{number:04}".rstrip("0") for number in range(FOUR_DIGITS))
FOUR_DECIMALS = np.concatenate([FOLLOWED, LAST])[:, 0]


def as_words(hits: Sequence[tuple[str, float]] | RankedWords) -> RankedWords | None:
    """Return hits as columns.

    Returns None for few hits, for which lines are as quick, and for ids that have no words.
    """
    if isinstance(hits, RankedWords):
        return hits
    if len(hits) < MANY_HITS:
        return None
    words = id_words([docid for docid, _ in hits])
    if words is None:
        return None
    return RankedWords(words, np.array([score for _, score in hits]))


def id_words(docids: Sequence[str]) -> Words | None:
    """Return the words of K ids, (W, K): see `HitColumns`.

    Returns None unless ids are ASCII without zero bytes, up to `LONGEST_ID`, and one is not empty.
    """
    text = "".join(docids)
    if not text.isascii() or "\0" in text:
        return None
    lengths = np.fromiter(map(len, docids), np.int32, len(docids))
    longest = lengths.max(initial=0)
    if longest == 0 or longest > LONGEST_ID:
        return None
    starts = np.zeros(len(docids) + 1, np.int32)
    np.cumsum(lengths, out=starts[1:])
    return words_between(np.frombuffer(text.encode(), np.uint8), starts)


def trec_lines(qid: str, hits: RankedWords, tag: str) -> bytes:
    r"""Return the lines of the hits of a query, whose scores are finite.

    Query id and tag may hold any character but zero bytes, which are left out.

    >>> trec_lines("q1", RankedWords(id_words(["d10", "d9"]), np.array([2.5, 0.125])), "run")
    b'q1 Q0 d10 1 2.5 run\nq1 Q0 d9 2 0.125 run\n'
    """
    columns = [
        _constant(f"{qid} Q0 "),
        hits.id_bytes().view(np.uint32),
        _ranks(len(hits)),
        score_groups(hits.scores),
        _constant(f" {tag}\n"),
    ]
    width = sum(column.shape[1] for column in columns)
    lines = np.empty((len(hits), width), np.uint32)
    first_group = 0
    for column in columns:
        end = first_group + column.shape[1]
        lines[:, first_group:end] = column
        first_group = end
    return lines.tobytes().translate(None, b"\0")


def _constant(text: str) -> Groups:
    """Return the groups of a text that all lines have: (1, G)."""
    encoded = text.encode()
    padded = encoded.ljust(GROUP * _groups_for(len(encoded)), b"\0")
    return np.frombuffer(padded, np.uint32).reshape(1, -1)


def _ranks(count: int) -> Groups:
    """Return the groups of the ranks from 1 to `count` with the blanks around them: (count, G)."""
    next_power_of_two = 1 << (count - 1).bit_length()
    return _table_of_ranks(next_power_of_two)[:count]


@lru_cache(8)  # powers of two are few, and one table serves queries of about as many hits
def _table_of_ranks(count: int) -> Groups:
    """Return the groups of the ranks from 1 to `count`, which has the most digits: (count, G)."""
    groups = _groups_for(len(f" {count} "))
    return _grouped((f" {rank} " for rank in range(1, count + 1)), groups)


def score_groups(scores: NDArray[np.float64]) -> Groups:
    r"""Return the groups, (K, 5), of finite scores as `format(score, SCORE_FORMAT)` writes them.

    A score x of 10**p <= x < 10**(p + 1) has the digits of the whole number nearest to
    x * 10**(8 - p). The product is rounded: where it is near the middle of two whole numbers, or
    the number has not 9 digits, Python formats the score, as it does where an exponent is written.

    >>> for groups in score_groups(np.array([-1 / 3, 120.0, 1e-7])):
    ...     print(groups.tobytes().replace(b"\0", b""))
    b'-0.333333333'
    b'120'
    b'1e-07'
    """
    # larger scores have an exponent anyway, and their products might overflow
    magnitudes = np.minimum(np.abs(scores), 10.0**DIGITS)
    with np.errstate(divide="ignore"):  # of 0
        powers = np.floor(np.log10(magnitudes))
    # a power outside, or one that log10 has rounded, gives a number that has not 9 digits
    powers = np.minimum(np.maximum(powers, LOWEST_POWER), HIGHEST_POWER).astype(np.int64)
    scales = SCALES[powers - LOWEST_POWER]
    products = magnitudes * scales
    numbers = np.rint(products)
    is_far_from_half = np.abs(np.abs(products - numbers) - 0.5) > UNCERTAIN
    has_nine_digits = (numbers >= 10 ** (DIGITS - 1)) & (numbers < 10**DIGITS)
    is_certain = is_far_from_half & has_nine_digits
    numbers *= is_certain  # 0 for the others, which may be too large for the tables of digits
    groups = _decimal_groups(numbers, scales, scores < 0)
    if not is_certain.all():
        texts = (format(score, SCORE_FORMAT) for score in scores[~is_certain].tolist())
        groups[~is_certain] = _grouped(texts, groups.shape[1])
    return groups


def _decimal_groups(
    numbers: NDArray[np.float64], scales: NDArray[np.float64], is_negative: NDArray[np.bool_]
) -> Groups:
    """Return the groups, (K, 5), of numbers divided by scales: powers of ten up to 10**12.

    They are the sign with the digits before the point, the point, and the decimals without zeros
    at the end. All steps are exact: doubles hold whole numbers of 15 digits, and a quotient of
    such numbers is not rounded up to the next whole one.
    """
    wholes = np.floor(numbers / scales)
    decimals = (numbers - wholes * scales) * (10.0**DECIMALS / scales)  # a number of 12 digits
    # its digits, four at a time
    decimals_1_to_4 = np.floor(decimals / FOUR_DIGITS**2)
    decimals_5_to_12 = decimals - decimals_1_to_4 * FOUR_DIGITS**2
    decimals_5_to_8 = np.floor(decimals_5_to_12 / FOUR_DIGITS)
    decimals_9_to_12 = decimals_5_to_12 - decimals_5_to_8 * FOUR_DIGITS
    groups = np.empty((len(numbers), 5), np.uint32)
    groups[:, 0] = SIGNED[(wholes + WHOLES * is_negative).astype(np.int64)]
    groups[:, 1] = POINT * (decimals > 0)
    groups[:, 2] = _four_decimals(decimals_1_to_4, are_last=decimals_5_to_12 == 0)
    groups[:, 3] = _four_decimals(decimals_5_to_8, are_last=decimals_9_to_12 == 0)
    groups[:, 4] = _four_decimals(decimals_9_to_12, are_last=True)
    return groups


def _four_decimals(
    numbers: NDArray[np.float64], *, are_last: NDArray[np.bool_] | bool
) -> NDArray[np.uint32]:
    """Return the group of four decimals of each score: (K,)."""
    rows = (numbers + FOUR_DIGITS * np.asarray(are_last)).astype(np.int64)
    groups: NDArray[np.uint32] = FOUR_DECIMALS[rows]
    return groups
