import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.mining.guards import TextOverlap, jaccard, trigrams, words

WORDS = st.lists(st.sampled_from(["the", "old", "river", "runs", "south"]), max_size=8).map(
    " ".join
)


def slow_jaccard(one, other):
    sets = []
    for text in (one, other):
        words = text.split()
        count = max(1, len(words) - 2)
        sets.append({tuple(words[at : at + 3]) for at in range(count)} if words else set())
    union = sets[0] | sets[1]
    return len(sets[0] & sets[1]) / len(union) if union else 0.0


@given(WORDS, WORDS)
def test_the_share_of_trigrams(one, other):
    assert jaccard(trigrams(words(one)), trigrams(words(other))) == slow_jaccard(one, other)
    best = max(slow_jaccard(one, text) for text in (one, other))
    assert TextOverlap([one, other]).most_shared(words(one)) == best


@given(WORDS, WORDS)
def test_a_literal_match_is_a_contiguous_part(one, other):
    padded = f" {one} ", f" {other} "
    expected = bool(one and other) and (padded[0] in padded[1] or padded[1] in padded[0])
    assert TextOverlap([one]).contains(words(other)) is expected


@pytest.mark.parametrize(
    ("text", "literal", "equal"),
    [
        ("THE old - river", True, True),
        ("See (the old river)!", True, False),
        ("old", True, False),
        ("the old rivers", False, False),
        ("...", False, False),
    ],
)
def test_cases_signs_and_white_space(text, literal, equal):
    overlap = TextOverlap(["The old\nriver", ""])
    assert overlap.contains(words(text)) is literal
    assert overlap.equals(words(text)) is equal


def test_nothing_is_alike_without_words():
    assert TextOverlap([]).most_shared(words("the old river")) == 0.0
    assert not TextOverlap([""]).equals([])
    assert not TextOverlap(["..."]).contains(words("a river"))
