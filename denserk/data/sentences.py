"""Where sentences end, by rules: full stops, question and exclamation marks, line breaks."""

import re
from collections.abc import Iterator

# quotation marks and brackets before and after a sentence
OPENING = "\"'\u201c\u2018\u00ab(["
CLOSING = "\"'\u201d\u2019\u00bb)]"
# abbreviations whose full stop never ends a sentence
ABBREVIATIONS = (
    "mr|mrs|ms|mme|mlle|messrs|dr|prof|rev|fr|hon|pres|gov|gen|col|capt|lt|maj|sgt|sen|rep|st|ste|"
    r"mt|ft|bros|dept|univ|vs|cf|e\.g|i\.e|viz|ca|approx|est|ed|eds|trans"
)
# abbreviations whose full stop ends no sentence before a number: "no. 3", "Dec. 24"
NUMBERED = (
    "no|nos|vol|vols|ch|chap|fig|figs|eq|eqs|sec|p|pp|art|jan|feb|mar|apr|jun|jul|aug|sep|sept|oct|"
    "nov|dec"
)
# A mark where a sentence may end is the group `end`. The other alternatives match marks that end
# none, so that the search goes on behind them.
MARK = re.compile(
    rf"""
    # abbreviations and initials at the beginning of a word; "I." is rather the pronoun
    (?<![^\s(\["'\u201c\u2018])
    (?: (?i:{ABBREVIATIONS})\. | [A-HJ-Z]\. | (?i:{NUMBERED})\.(?=\s+\d) )
    # before white space, with the next letter; those of Chinese and Japanese need no white space
    | (?P<end> [.!?\u2026]+ [{re.escape(CLOSING)}]* \s+ (?=[{re.escape(OPENING)}]*(?P<next>.))
        | [\u3002\uff01\uff1f][\u300d\u300f\uff09]* )
    # without white space behind: passed over at once, not mark by mark
    | [.!?\u2026]+
    """,
    re.VERBOSE,
)


def split_sentences(text: str) -> list[str]:
    """Split a text into sentences, stripped and not empty, by the rules of `sentence_spans`.

    >>> split_sentences('Mr. J. Smith came at 5 p.m. He said "No." Then he left.')
    ['Mr. J. Smith came at 5 p.m.', 'He said "No."', 'Then he left.']
    """
    return [text[start:end] for start, end in sentence_spans(text)]


def sentence_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield where the sentences of a text start and end, without white space around them.

    A line break ends a sentence, so text that is already split stays so. A full stop after a title,
    an initial or a common abbreviation ends none, nor does a mark before a lower-case letter,
    unless white space precedes it as in tokenised text ("wing . the").

    >>> list(sentence_spans("One. Two?"))
    [(0, 4), (5, 9)]
    """
    line_start = 0
    for line in text.splitlines(keepends=True):
        for start, end in _line_parts(line):
            part = line[start:end]  # a sentence with white space around it
            sentence_start = end - len(part.lstrip())
            sentence_end = start + len(part.rstrip())
            if sentence_start < sentence_end:
                yield line_start + sentence_start, line_start + sentence_end
        line_start += len(line)


def _line_parts(line: str) -> Iterator[tuple[int, int]]:
    """Yield where the parts of a line start and end: sentences with the white space around them."""
    start = 0
    for mark in MARK.finditer(line):
        has_text_before = mark.start() > start
        if mark["end"] and has_text_before and _ends_sentence(line, mark):
            yield start, mark.end()
            start = mark.end()
    yield start, len(line)


def _ends_sentence(line: str, mark: re.Match[str]) -> bool:
    """Return whether a mark with text before it ends a sentence.

    A lower-case letter behind a mark goes on with its sentence, except in tokenised text, where
    white space is before the mark.
    """
    is_tokenised = line[mark.start() - 1].isspace()
    next_character = mark["next"] or ""  # empty behind Chinese and Japanese marks
    return is_tokenised or not next_character.islower()
