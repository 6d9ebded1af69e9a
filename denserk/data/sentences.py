"""Where sentences end, by rules: full stops, question and exclamation marks, line breaks."""

import re
from collections.abc import Iterator

# quotation marks and brackets around sentences
OPENING = "\"'\u201c\u2018\u00ab(["
CLOSING = "\"'\u201d\u2019\u00bb)\\]"
# abbreviations that never end a sentence, and those that end none before a digit
NAMES = (
    "mr|mrs|ms|mme|mlle|messrs|dr|prof|rev|fr|hon|pres|gov|gen|col|capt|lt|maj|sgt|sen|rep|st|ste|"
    r"mt|ft|bros|dept|univ|vs|cf|e\.g|i\.e|viz|ca|approx|est|ed|eds|trans"
)
NUMBERED = (
    "no|nos|vol|vols|ch|chap|fig|figs|eq|eqs|sec|p|pp|art|jan|feb|mar|apr|jun|jul|aug|sep|sept|oct|"
    "nov|dec"
)
SENTENCE_END = re.compile(
    rf"""(?<![^\s(\["'\u201c\u2018]) (?: (?i:{NAMES})\. | [A-HJ-Z]\. | (?i:{NUMBERED})\.(?=\s+\d) )
    | (?P<end> [.!?\u2026]+ [{CLOSING}]* \s+ (?=[{re.escape(OPENING)}]*(?P<next>.))
        | [\u3002\uff01\uff1f][\u300d\u300f\uff09]* )
    | [.!?\u2026]+  # without white space behind it: passed over once, not mark by mark
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
            padded_sentence = line[start:end]
            sentence_start = end - len(padded_sentence.lstrip())
            sentence_end = start + len(padded_sentence.rstrip())
            if sentence_start < sentence_end:
                yield line_start + sentence_start, line_start + sentence_end
        line_start += len(line)


def _line_parts(line: str) -> Iterator[tuple[int, int]]:
    """Yield where the parts of a line start and end: sentences with the white space around them."""
    start = 0
    for match in SENTENCE_END.finditer(line):
        if match["end"] and match.start() > start and _ends_sentence(line, match):
            yield start, match.end()
            start = match.end()
    yield start, len(line)


def _ends_sentence(line: str, mark: re.Match[str]) -> bool:
    """Return whether a mark has no lower-case letter behind it, or white space before it."""
    next_letter = mark["next"] or ""
    return line[mark.start() - 1].isspace() or not next_letter.islower()
