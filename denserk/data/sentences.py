"""Rule-based sentence splitting.

A line break ends a sentence, so text that is already split stays so. A full stop after a title, an
initial or a common abbreviation ends none, nor does a mark before a lower-case letter, unless white
space precedes it as in tokenised text ("wing . the").
"""

import re

CLOSING = "\"'\u201d\u2019\u00bb)\\]"
CANDIDATE = re.compile(
    rf"(?P<mark>[.!?\u2026]+)[{CLOSING}]*\s+|(?P<full>[\u3002\uff01\uff1f][\u300d\u300f\uff09]*)\s*"
)
OPENING = "\"'\u201c\u2018\u00ab(["
WORD_BEFORE = re.compile(r"[^\s(\[\"'\u201c\u2018]*\Z")
NAMES = (
    "mr mrs ms mme mlle messrs dr prof rev fr hon pres gov gen col capt lt maj sgt sen rep st ste "
    "mt ft bros dept univ vs cf e.g i.e viz ca approx est ed eds trans"
)
BEFORE_NAMES = frozenset(NAMES.split())  # abbreviations that never end a sentence
NUMBERS = (
    "no nos vol vols ch chap fig figs eq eqs sec p pp art jan feb mar apr jun jul aug sep sept oct "
    "nov dec"
)
BEFORE_NUMBERS = frozenset(NUMBERS.split())  # that end none before a digit


def split_sentences(text: str) -> list[str]:
    """Split a text into sentences, stripped and not empty.

    >>> split_sentences('Mr. J. Smith came at 5 p.m. He said "No." Then he left.')
    ['Mr. J. Smith came at 5 p.m.', 'He said "No."', 'Then he left.']
    """
    return [
        sentence
        for line in text.splitlines()
        for part in _split_line(line)
        if (sentence := part.strip())
    ]


def _split_line(line: str) -> list[str]:
    parts, start = [], 0
    for found in CANDIDATE.finditer(line):
        if found["full"] or _ends(line, start, found):
            parts.append(line[start : found.end()])
            start = found.end()
    parts.append(line[start:])
    return parts


def _ends(line: str, start: int, found: re.Match[str]) -> bool:
    """Return whether a mark ends a sentence."""
    place, following = found.start(), line[found.end() :].lstrip(OPENING)[:1]
    if place == start or line[place - 1].isspace():
        return place > start
    if following.islower():
        return False
    if found["mark"] != ".":
        return True
    match = WORD_BEFORE.search(line, start, place)
    word = match[0] if match else ""
    if word.lower() in BEFORE_NAMES or (word.lower() in BEFORE_NUMBERS and following.isdigit()):
        return False
    return not (len(word) == 1 and word.isupper() and word != "I")
