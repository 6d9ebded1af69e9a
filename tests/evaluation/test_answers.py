import math
import os
import re
import signal
import unicodedata
from concurrent.futures import ProcessPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.config.evaluation import AnswerSettings
from denserk.errors import DenserkError, UsageError
from denserk.evaluation import answers as module
from denserk.evaluation.answers import (
    AnswerMatcher,
    Case,
    PatternMatcher,
    Verdict,
    choose_answer_measures,
    judge,
    judging,
    mean_of_means,
    tokens_of,
)

CLASSES = ("L", "N", "M")
ALPHABET = "aAbB19Σσςé\u0301\u00c5\u212b İß.,'-_ \n\t\u00a0\u200b\u0000東京\U0001d7ce"


def slow_tokens(text):
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
    found = slow_tokens(text)
    for answer in filter(None, map(slow_tokens, answers)):
        for start in range(len(found) - len(answer) + 1):
            if found[start : start + len(answer)] == answer:
                return True
    return False


@given(st.text(ALPHABET))
def test_tokens_are_those_of_the_rule(text):
    assert tokens_of(text) == slow_tokens(text)


@given(st.lists(st.text(ALPHABET, max_size=4), max_size=3), st.text(ALPHABET, max_size=30))
def test_a_match_is_a_contiguous_sequence_of_tokens_of(answers, text):
    assert AnswerMatcher(answers).matches(text) == slow_match(answers, text)


@given(st.text(ALPHABET), st.text(ALPHABET), st.text(ALPHABET))
def test_what_stands_between_blanks_is_found(before, answer, after):
    expected = bool(slow_tokens(answer))
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


CASES = [Case((f"answer {number}", "."), (f"an Answer\n{number}", "none")) for number in range(20)]


@pytest.mark.parametrize(
    ("answers", "options", "verdict"),
    [
        (("b c", " "), {}, Verdict((True, False), tokenless=1)),
        (("x", " "), {"strict": True}, Verdict((True, True), tokenless=1)),
        ((r"\bb\s", "("), {"regex": True}, Verdict((True, False), broken=("(",))),
        ((), {}, Verdict((False, False))),
    ],
)
def test_one_question(answers, options, verdict):
    assert judge(Case(answers, ("a b c", "d")), **options) == verdict


@pytest.mark.slow
def test_several_processes_say_what_one_does():
    with judging(AnswerSettings()) as alone, judging(AnswerSettings(num_workers=2)) as together:
        assert alone(CASES) == together(CASES) == [Verdict((True, False))] * 20


class DyingPool(ProcessPoolExecutor):
    def map(self, *arguments, **options):
        os.kill(self.submit(os.getpid).result(), signal.SIGKILL)
        return super().map(*arguments, **options)


@pytest.mark.slow
def test_a_process_that_is_killed_is_told(monkeypatch):
    monkeypatch.setattr(module, "ProcessPoolExecutor", DyingPool)
    with (
        pytest.raises(DenserkError, match="was killed"),
        judging(AnswerSettings(num_workers=2)) as judges,
    ):
        judges(CASES)


class AskingPool(ProcessPoolExecutor):
    def map(self, *arguments, **options):
        assert self.submit(signal.getsignal, signal.SIGINT).result() is signal.SIG_IGN
        return super().map(*arguments, **options)


@pytest.fixture
def interruptible():
    """A process in the background of a script would ignore interrupts from its start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
def test_an_interrupt_is_for_the_first_process_alone(interruptible, monkeypatch):
    monkeypatch.setattr(module, "ProcessPoolExecutor", AskingPool)
    with judging(AnswerSettings(num_workers=2)) as judges:
        assert judges(CASES[:1]) == [Verdict((True, False))]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["Success@5 Success@20"], ["Success@5", "Success@20"]),
        (["success.5,20", "success_5"], ["Success@5", "Success@20"]),
        (["MRR@10, Precision@3"], ["RR@10", "P@3"]),
    ],
)
def test_names(texts, expected):
    assert list(map(str, choose_answer_measures(texts))) == expected


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (["nDCG@10"], "nDCG@10 needs every relevant passage, and answers only judge the hits"),
        (["recall.100"], "R@100 needs .*; QA papers call Success@k R@k or top-k accuracy"),
        (["AP R@5"], "AP needs every .*; R@5 needs every "),
        (["Judged@10"], "Judged@10 is not measured by answers"),
        (["RR"], "RR needs a cutoff, as in RR@10"),
        (["P(rel=2)@5"], r"P\(rel=2\)@5: a passage holds an answer or not, so no rel"),
        ([], "no measure is named"),
        (
            ["succes@5 AP Success"],
            r"succes@5 is unknown \(nearest: Success@5.*\); AP needs .*; Success needs a cutoff",
        ),
    ],
)
def test_refusals_name_all(texts, told):
    with pytest.raises(UsageError, match=told) as refusal:
        choose_answer_measures(texts)
    assert "Success@k, RR@k, P@k" in (refusal.value.hint or "")


def test_a_mean_of_nothing_is_nan():
    assert math.isnan(mean_of_means({}, {}))
