"""The lines of runs, one by one: which shape a file has, and the hit of each line.

MS MARCO's third column is a rank, Tevatron's a score. A file of three columns is taken for ranks
where the third column counts 1, 2, 3, ... within each of its first queries.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from math import isfinite
from pathlib import Path

from denserk.errors import InputError
from denserk.formats.detection import columns, is_number, list_keys, told
from denserk.formats.files import decode_lines
from denserk.formats.identifiers import identifier
from denserk.formats.json_lines import parse_objects
from denserk.settings.formats import RunFormat

logger = logging.getLogger(__name__)

LOOK = 2000
"""Lines of a file with three columns that are looked at."""

_COLUMNS = {
    RunFormat.TREC: "6 columns: qid Q0 docid rank score tag",
    RunFormat.MSMARCO: "3 columns: qid, docid, rank",
    RunFormat.TEVATRON: "3 columns: qid, docid, score",
    RunFormat.JSONL: "JSON lines with qid, docid, score",
}
_INFINITY = float("inf")

Hit = tuple[int, str, str, float, str]
"""Line number, query, passage, score, rank as the file spells it."""


def look(
    numbered: Iterator[tuple[int, bytes]],
    path: str | Path,
    form: RunFormat | None = None,
) -> tuple[RunFormat | None, Iterator[tuple[int, bytes]]]:
    """The shape of a run, and its lines again; no shape where it is empty.

    Raises:
        InputError: the first line is of no shape.
    """
    looked = list(islice((item for item in numbered if item[1].strip()), LOOK))
    if not looked:
        return None, numbered
    hits = [item for item in looked if not item[1].lstrip().startswith(b"#")]
    detected = form or detect(hits or looked, path)
    if form is None:
        logger.info(f"{told(path)}: {detected} run ({_COLUMNS[detected]})")
    return detected, chain(looked, numbered)


def is_comment(line: bytes) -> bool:
    """Return whether a line of a TREC run is a comment of trec_eval 10: it begins with `#`.

    A hit of a query whose id begins so is none, which shows in the Q0 of its second column.

    >>> [is_comment(line) for line in (b"q1 Q0 d1 1 2.5 t", b" # k1 = 0.9", b"#1 Q0 d1 1 2.5 t")]
    [False, True, False]
    """
    start = line.lstrip()
    return start.startswith(b"#") and start.split(None, 2)[1:2] != [b"Q0"]


def parse_lines(
    lines: Iterable[tuple[int, bytes]],
    form: RunFormat,
    path: str | Path,
    *,
    by_rank: bool = False,
) -> Iterator[Hit]:
    """Hits of numbered lines: (line number, query, passage, score, rank as the file spells it).

    Args:
        lines: blank ones among them are skipped, and so are comments in a TREC run.
        form: the shape.
        path: names the file in errors.
        by_rank: the score is the negative of the rank column, whatever the score column holds.

    Raises:
        InputError: a line is broken, its score is not finite, or by rank: there is none, or a query
            has it twice.
    """
    read = _json_hits(lines, path) if form is RunFormat.JSONL else _column_hits(lines, form, path)
    return _ranked_hits(read, path) if by_rank else read


def _ranked_hits(hits: Iterable[Hit], path: str | Path) -> Iterator[Hit]:
    seen: dict[tuple[str, int], int] = {}
    for line, qid, docid, _, place in hits:
        if not (place.isascii() and place.isdecimal() and len(place) < 19):
            found = f"rank {place[:40]!r}" if place else "no rank"
            raise InputError(path, line, found, "a whole number", "--order score reads the scores")
        rank = int(place)
        if (first := seen.setdefault((qid, rank), line)) != line:
            raise InputError(
                path,
                line,
                f"rank {rank} of query {qid} again (first in line {first})",
                "each rank once a query",
                "--order score reads the scores",
            )
        yield line, qid, docid, -float(rank), place


def detect(lines: Sequence[tuple[int, bytes]], path: str | Path) -> RunFormat:
    """The shape of a run by its first lines.

    Raises:
        InputError: the first line is of no shape.

    >>> detect([(1, b"q1 d7 1"), (2, b"q1 d9 2"), (3, b"q2 d7 1")], "run.tsv").value
    'msmarco'
    >>> detect([(1, b"q1 d7 12"), (2, b"q1 d9 11")], "run.tsv").value
    'tevatron'
    """
    line, first = lines[0]
    if first.lstrip().startswith(b"{"):
        return RunFormat.JSONL
    count = len(first.split())
    if count >= 6:  # whatever follows the tag is ignored
        return RunFormat.TREC
    if count != 3:
        raise _wrong_columns(count, None, path, line)
    ranks: dict[bytes, int] = {}
    for _, text in lines:
        parts = text.split()
        if len(parts) != 3:
            break
        ranks[parts[0]] = rank = ranks.get(parts[0], 0) + 1
        if parts[2] != b"%d" % rank:
            return RunFormat.TEVATRON
    return RunFormat.MSMARCO


def _wrong_columns(count: int, form: RunFormat | None, path: str | Path, line: int) -> InputError:
    hint = None
    if count == 4 and form in (None, RunFormat.TREC):
        hint = "four columns are judgements: exchange run and judgements"
    expected = _COLUMNS[form] if form else " or ".join(_COLUMNS.values())
    return InputError(path, line, columns(count), expected, hint)


def _column_hits(
    lines: Iterable[tuple[int, bytes]], form: RunFormat, path: str | Path
) -> Iterator[Hit]:
    trec = form is RunFormat.TREC
    ranked = form is RunFormat.MSMARCO
    place = ""
    for line, text in lines:
        try:
            if trec:
                qid, iteration, docid, place, number, tag, *more = text.decode().split()
                if qid[0] == "#" and iteration != "Q0":  # a comment
                    continue
                if more and _holds_a_blank(place, tag):
                    raise ValueError(tag)
            else:
                qid, docid, number = text.decode().split()
            score = float(number)
            if not -_INFINITY < score < _INFINITY:
                raise ValueError(number)
            if ranked:
                place = number
                score = -float(int(number))
        except ValueError:
            if not text.strip() or (trec and is_comment(text)):
                continue
            raise _broken(text, form, path, line) from None
        yield line, qid, docid, score, place


def _holds_a_blank(place: str, tag: str) -> bool:
    """Whether a line of more than six columns has them because an id holds a blank.

    Text after the tag is ignored, as in trec_eval. But where the fourth column is no rank, or the
    sixth is a number, the columns are shifted.
    """
    return not place.removeprefix("-").isdecimal() or is_number(tag)


def _broken(text: bytes, form: RunFormat, path: str | Path, line: int) -> InputError:
    """What is wrong with a line that has the wrong columns or no finite number among them."""
    [(_, decoded)] = decode_lines([(line, text)], path)
    parts = decoded.split()
    if form is RunFormat.TREC and len(parts) > 6 and _holds_a_blank(parts[3], parts[5]):
        hint = "does an id hold a blank? text may follow the tag, and an id holds none"
        return InputError(path, line, columns(len(parts)), _COLUMNS[form], hint)
    if not (len(parts) >= 6 if form is RunFormat.TREC else len(parts) == 3):
        return _wrong_columns(len(parts), form, path, line)
    number = parts[4] if form is RunFormat.TREC else parts[2]
    if form is RunFormat.MSMARCO:
        hint = "if the third column is a score, name the shape: tevatron"
        return InputError(path, line, f"rank {number[:40]!r}", "a whole number", hint)
    return InputError(path, line, f"score {number[:40]!r}", "a finite number")


def _json_hits(lines: Iterable[tuple[int, bytes]], path: str | Path) -> Iterator[Hit]:
    for line, record in parse_objects(lines, path):
        if not {"qid", "docid", "score"} <= record.keys():
            found = f"the keys {list_keys(record)}"
            raise InputError(path, line, found, _COLUMNS[RunFormat.JSONL])
        score = record["score"]
        if type(score) not in (int, float) or not isfinite(score):
            raise InputError(path, line, f"score {str(score)[:40]!r}", "a finite number")
        qid = identifier(record["qid"], path, line, "query")
        docid = identifier(record["docid"], path, line, "passage")
        yield line, qid, docid, float(score), str(record.get("rank", ""))


def again(qid: str, current: str | None, path: str | Path, line: int) -> InputError:
    """The error about a query whose lines do not stand together."""
    return InputError(
        path,
        line,
        f"query {qid} again after query {current}",
        "the lines of a query together",
        "sort -s -k1,1 puts them together",
    )


def twice(qid: str, docid: str, path: str | Path, line: int) -> InputError:
    """The error about a passage that a query holds twice."""
    return InputError(
        path, line, f"passage {docid} twice for query {qid}", "each passage once a query"
    )
