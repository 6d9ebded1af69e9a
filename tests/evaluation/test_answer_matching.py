import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.evaluation.answer_matching import AnswerMatcher, PatternMatcher, words

CLASSES = ("L", "N", "M")
ALPHABET = "aAbB19Σσςé\u0301\u00c5\u212b İß.,'-_ \n\t\u00a0\u200b\u0000東京\U0001d7ce"


def slow_words(text):
    """DPR's tokens, sign by sign: runs of letters, numbers and marks; others by themselves."""
    tokens, run = [], ""
    for character in unicodedata.normalize("NFD", text) + " ":
        category = unicodedata.category(character)
        if category[0] in CLASSES:
            run += character
            continue
        if run:
            tokens.append(run)
        run = ""
        if category[0] not in ("Z", "C"):
            tokens.append(character)
    return [token.lower() for token in tokens]


def slow_match(answers, text):
    """An answer's tokens are a contiguous part of the text's."""
    found = slow_words(text)
    for answer in filter(None, map(slow_words, answers)):
        for start in range(len(found) - len(answer) + 1):
            if found[start : start + len(answer)] == answer:
                return True
    return False


@given(st.text(ALPHABET))
def test_words_are_those_of_the_rule(text):
    assert words(text) == slow_words(text)


@given(st.lists(st.text(ALPHABET, max_size=4), max_size=3), st.text(ALPHABET, max_size=30))
def test_a_match_is_a_contiguous_sequence_of_words(answers, text):
    assert AnswerMatcher(answers).matches(text) == slow_match(answers, text)


@given(st.text(ALPHABET), st.text(ALPHABET), st.text(ALPHABET))
def test_what_stands_between_blanks_is_found(before, answer, after):
    expected = bool(slow_words(answer))
    assert AnswerMatcher([answer]).matches(f"{before} {answer} {after}") is expected


@pytest.mark.parametrize(
    ("answers", "text", "matches"),
    [
        (["new york"], "In New\n York.", True),
        (["new york"], "In New, York.", False),
        (["york"], "in yorkshire", False),
        (["U.S."], "the U.S. army", True),
        (["U.S."], "the US army", False),
        (["Beyoncé"], "beyonce\u0301 sang", True),
        (["Beyonce"], "Beyoncé sang", False),
        (["ΟΔΟΣ"], "η οδος", True),
        (["5"], "15 or 50", False),
        (["$5"], "for $ 5", True),
        (["no", "yes"], "yes.", True),
        ([], "anything", False),
    ],
)
def test_matches(answers, text, matches):
    assert AnswerMatcher(answers).matches(text) is matches


def test_an_answer_without_a_word_matches_nothing_unless_asked_to():
    assert AnswerMatcher([" ", "\u200b"]).tokenless == 2
    assert not AnswerMatcher([" "]).matches("text")
    assert AnswerMatcher([" "], strict=True).matches("text")
    assert AnswerMatcher([" ", "text"]).matches("text")


@given(st.lists(st.sampled_from(["a+", "^b", r"\d{2}", "é", "(", "[z", ""])), st.text("aAbBéÉ12\n"))
def test_patterns_are_searched_for(patterns, text):
    expected = False
    for pattern in patterns:
        try:
            normal, searched = (unicodedata.normalize("NFD", part) for part in (pattern, text))
            expected |= re.search(normal, searched, re.IGNORECASE | re.MULTILINE) is not None
        except re.error:
            pass
    matcher = PatternMatcher(patterns)
    assert matcher.matches(text) is expected
    assert matcher.broken == [pattern for pattern in patterns if pattern in ("(", "[z")]
