"""Read and write runs: TREC's six columns, the three columns of MS MARCO and Tevatron, JSON lines.

MS MARCO's third column is a rank, Tevatron's a score. A file of three columns is taken for ranks
where the third column counts 1, 2, 3, ... within each of its first queries. A rank stands for its
negative as score, so that higher is better in every format.
"""

import logging
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice, pairwise
from math import inf, isfinite
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from denserk.config.formats import RunFormat
from denserk.errors import InputError, OutputError
from denserk.io.files import (
    BOM,
    LONGEST_LINE,
    READ_FAILURES,
    STREAM,
    decode_lines,
    endless_line,
    open_binary,
    read_failure,
    read_lines,
    whole_binary,
    write_errors,
)
from denserk.io.json_records import dump_json, identifier, list_keys, parse_objects
from denserk.io.text_files import columns, display_name, is_number

logger = logging.getLogger(__name__)

LOOK = 2000  # lines of a file with three columns by which ranks and scores are told apart
BLOCK = 1 << 20  # bytes that are parsed at once
SMALL = 1 << 19  # bytes up to which a line loop is quicker than importing pyarrow
MSMARCO_DEPTH = 1000  # hits of a query that MS MARCO's evaluation accepts
COLUMNS = {
    RunFormat.TREC: "6 columns: qid Q0 docid rank score tag",
    RunFormat.MSMARCO: "3 columns: qid, docid, rank",
    RunFormat.TEVATRON: "3 columns: qid, docid, score",
    RunFormat.JSONL: "JSON lines with qid, docid, score",
}
BY_SCORE = "--set order=score reads the scores"
CLEAN = bytes(range(ord("!"), 0x7F)) + b" \n"  # characters of a block that pyarrow may split

Hit = tuple[int, str, str, float, str]  # line number, query, passage, score, rank as it is spelled
Numbered = Iterable[tuple[int, bytes]]
Scores = NDArray[np.floating[Any]]


class RankedList(NamedTuple):
    """Hits of one query, in the order of the file.

    Attributes:
        qid: the query.
        docids: K passages.
        scores: K scores.
        lines: the line number of each hit.
        format: the format of the run.
    """

    qid: str
    docids: list[str]
    scores: list[float]
    lines: Sequence[int]
    format: RunFormat

    def __add__(self, more: "RankedList") -> "RankedList":  # type: ignore[override]
        """Append hits of the same query."""
        return self._replace(
            docids=self.docids + more.docids,
            scores=self.scores + more.scores,
            lines=[*self.lines, *more.lines],
        )


def read_run(
    path: str | Path,
    format: RunFormat | None = None,
    skipped: Counter[str] | None = None,
    *,
    by_rank: bool = False,
) -> Iterator[RankedList]:
    """Yield the hits of a run query by query, in constant memory.

    Args:
        path: the file; "-" is standard input.
        format: its format; None detects it.
        skipped: count a passage that is listed twice for a query (its best score is kept) and a
            truncated last line here, in place of raising an error.
        by_rank: order hits by the rank column: the score is its negative.

    Raises:
        InputError: a line is broken, its score is not finite, a passage is listed twice for a
            query, the lines of a query are not consecutive, or a rank is missing or repeated.
    """
    seen: set[str] = set()
    previous = None
    for hits in _whole_queries(_parts(path, format, skipped, by_rank=by_rank)):
        if hits.qid in seen:
            raise InputError(
                path,
                hits.lines[0],
                f"query {hits.qid} again after query {previous}",
                "the lines of a query together",
                "sort -s -k1,1 puts them together",
            )
        seen.add(hits.qid)
        previous = hits.qid
        yield _without_repeats(hits, path, skipped)


def read_run_scores(
    path: str | Path, format: RunFormat | None = None, *, by_rank: bool = False
) -> dict[str, dict[str, float]]:
    """Read a whole run as query -> passage -> score; the lines of a query need not be consecutive.

    Args:
        path: the file; "-" is standard input.
        format: its format; None detects it.
        by_rank: order hits by the rank column: the score is its negative.

    Raises:
        InputError: a line is broken, its score is not finite, a passage is listed twice for a
            query, or a rank is missing or repeated.
    """
    run: dict[str, dict[str, float]] = {}
    for hits in _whole_queries(_parts(path, format, by_rank=by_rank)):
        known = run.setdefault(hits.qid, {})
        for docid, score, line in zip(*_without_repeats(hits, path)[1:4], strict=True):
            if docid in known:
                raise _twice(hits.qid, docid, path, line)
            known[docid] = score
    return run


def read_kept_scores(
    path: str | Path, keep: Callable[[RankedList], dict[str, float]]
) -> dict[str, dict[str, float]] | None:
    """Read the hits of a run that `keep` returns of each query.

    None where the lines of a query are not consecutive: it cannot be told which hits to keep.

    Raises:
        UsageError, InputError: as for `read_run_scores`.
    """
    run: dict[str, dict[str, float]] = {}
    for hits in _whole_queries(_parts(path, None)):
        if hits.qid in run:
            return None
        run[hits.qid] = keep(_without_repeats(hits, path))
    return run


def read_run_tag(path: str | Path) -> str | None:
    """Return the tag of a run's last line, which trec_eval prints as `runid`.

    None where the file has no tags or cannot be read twice (standard input, a pipe).
    """
    if str(path) == STREAM or not Path(path).is_file():
        return None
    last = b""
    for _, line in read_lines(path):
        if line.strip() and not is_comment(line):
            last = line
    parts = [] if last.lstrip().startswith(b"{") else last.split(None, 6)
    return parts[5].decode("utf-8", "replace") if len(parts) > 5 else None


class RunLookup:
    """A run whose queries are read in any order; memory grows with its queries, not its hits.

    Args:
        path: the file; "-" is standard input.
        scratch: folder for a copy of the hits.

    Attributes:
        queries: query ids, in the order of the file.
        format: its format; None where the run is empty.

    Raises:
        UsageError, InputError: as for `read_run`.
    """

    def __init__(self, path: str | Path, scratch: Path) -> None:
        self.path = path
        self.format: RunFormat | None = None
        self._places: dict[str, tuple[int, int]] = {}
        with write_errors(scratch), tempfile.NamedTemporaryFile(dir=scratch, delete=False) as copy:
            self._copy = Path(copy.name)
            for hits in read_run(path):
                self.format = hits.format
                record = orjson.dumps((hits.docids, hits.scores))
                self._places[hits.qid] = (copy.tell(), len(record))
                copy.write(record)

    @property
    def queries(self) -> list[str]:
        """Query ids, in the order of the file."""
        return list(self._places)

    def hits(self, qid: str) -> tuple[list[str], list[float]]:
        """Return passages and scores of a query, in the order of the file."""
        if qid not in self._places:
            return [], []
        start, length = self._places[qid]
        with self._copy.open("rb") as copy:
            copy.seek(start)
            docids, scores = orjson.loads(copy.read(length))
        return docids, scores


def detect(lines: Sequence[tuple[int, bytes]], path: str | Path) -> RunFormat:
    """Return the format of a run by its first lines.

    Raises:
        InputError: the first line is of no known format.

    >>> detect([(1, b"q1 d7 1"), (2, b"q1 d9 2"), (3, b"q2 d7 1")], "run.tsv").value
    'msmarco'
    >>> detect([(1, b"q1 d7 12"), (2, b"q1 d9 11")], "run.tsv").value
    'tevatron'
    """
    line, first = lines[0]
    if first.lstrip().startswith(b"{"):
        return RunFormat.JSONL
    count = len(first.split())
    if count >= 6:  # text after the tag is ignored
        return RunFormat.TREC
    if count != 3:
        raise _wrong_columns(count, None, path, line)
    ranks: Counter[bytes] = Counter()
    for _, text in lines:
        qid, *rest = text.split()
        if len(rest) != 2:
            break
        ranks[qid] += 1
        if rest[1] != b"%d" % ranks[qid]:
            return RunFormat.TEVATRON
    return RunFormat.MSMARCO


def is_comment(line: bytes) -> bool:
    """Return whether a line of a TREC run is a comment of trec_eval 10: it starts with `#`.

    A hit of a query whose id starts with `#` is none: it has Q0 in its second column.

    >>> [is_comment(line) for line in (b"q1 Q0 d1 1 2.5 t", b" # k1 = 0.9", b"#1 Q0 d1 1 2.5 t")]
    [False, True, False]
    """
    start = line.lstrip()
    return start.startswith(b"#") and start.split(None, 2)[1:2] != [b"Q0"]


def _whole_queries(parts: Iterable[RankedList]) -> Iterator[RankedList]:
    """Join consecutive parts of the same query."""
    whole: RankedList | None = None
    for part in parts:
        if whole is not None and whole.qid != part.qid:
            yield whole
            whole = None
        whole = part if whole is None else whole + part
    if whole is not None:
        yield whole


def _without_repeats(
    hits: RankedList, path: str | Path, skipped: Counter[str] | None = None
) -> RankedList:
    if len(set(hits.docids)) == len(hits.docids):
        return hits
    best: dict[str, float] = {}
    for docid, score, line in zip(hits.docids, hits.scores, hits.lines, strict=True):
        if docid in best:
            if skipped is None:
                raise _twice(hits.qid, docid, path, line)
            skipped["a passage twice for a query"] += 1
        best[docid] = max(score, best.get(docid, score))
    return hits._replace(docids=list(best), scores=list(best.values()))


def _twice(qid: str, docid: str, path: str | Path, line: int) -> InputError:
    return InputError(
        path, line, f"passage {docid} twice for query {qid}", "each passage once a query"
    )


def _parts(
    path: str | Path,
    format: RunFormat | None,
    skipped: Counter[str] | None = None,
    *,
    by_rank: bool = False,
) -> Iterator[RankedList]:
    """Yield consecutive lines of one query; a query that crosses blocks comes in several parts."""
    ranks: dict[tuple[str, int], int] | None = {} if by_rank else None
    number = 1  # of the first line of a block
    detected: RunFormat | None = None
    with open_binary(path) as handle:
        for block in _blocks(handle, path):
            if detected is None:
                detected = _format_of(enumerate(block.split(b"\n"), number), path, format)
            if detected is not None:
                clean = len(block) > SMALL and not by_rank
                arrays = _split(block, detected, number) if clean else None
                yield from arrays or _parse(block, detected, path, number, skipped, ranks)
            number += block.count(b"\n")


def _blocks(handle: BinaryIO, path: str | Path) -> Iterator[bytes]:
    """Yield blocks of whole lines with Unix line ends, and what follows the last line end."""
    rest: list[bytes] = []
    try:
        rest.append(handle.read(len(BOM)).removeprefix(BOM))
        while data := handle.read(BLOCK):
            whole, end, tail = data.rpartition(b"\n")
            if end:
                yield b"".join([*rest, whole, end]).replace(b"\r\n", b"\n")
                rest = [tail]
            else:
                rest.append(data)
                if sum(map(len, rest)) >= LONGEST_LINE:
                    raise endless_line(path, None)
    except READ_FAILURES as error:
        raise read_failure(path, None, error) from None
    if last := b"".join(rest):
        yield last


def _format_of(
    lines: Iterable[tuple[int, bytes]], path: str | Path, format: RunFormat | None
) -> RunFormat | None:
    """Return the format of a run by its first lines, logged if it was detected; None if blank."""
    first = list(islice((item for item in lines if item[1].strip()), LOOK))
    if format or not first:
        return format
    hits = [item for item in first if not is_comment(item[1])]
    format = detect(hits or first, path)
    logger.info(f"{display_name(path)}: {format} run ({COLUMNS[format]})")
    return format


def _split(block: bytes, format: RunFormat, number: int) -> Iterator[RankedList] | None:
    """Split whole lines by pyarrow; None where the line loop must parse or reject them.

    Lines are clean where they are ASCII and one blank or tab separates columns.
    """
    text = block.replace(b"\t", b" ")
    if format is RunFormat.JSONL or not text.endswith(b"\n") or text.translate(None, CLEAN):
        return None
    blank = np.frombuffer(text, np.uint8) <= ord(" ")
    if blank[0] or (blank[1:] & blank[:-1]).any():  # an empty column or line
        return None
    import pyarrow as pa
    from pyarrow import csv

    names = ["qid", "docid", "score"]
    if format is RunFormat.TREC:
        names = ["qid", "Q0", "docid", "rank", "score", "tag"]
    score = pa.int64() if format is RunFormat.MSMARCO else pa.float64()
    types = {"qid": pa.dictionary(pa.int32(), pa.string()), "docid": pa.string(), "score": score}
    try:
        table = csv.read_csv(
            pa.BufferReader(text),
            csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=names),
            csv.ParseOptions(delimiter=" ", quote_char=False),
            csv.ConvertOptions(
                check_utf8=False, column_types=types, null_values=[], include_columns=list(types)
            ),
        )
    except pa.ArrowInvalid:  # another number of columns, or a score that may be none
        return None
    dtype = np.int64 if format is RunFormat.MSMARCO else np.float64
    scores = _values(table["score"].chunk(0), dtype).astype(np.float64)
    comments = any(qid.startswith("#") for qid in table["qid"].chunk(0).dictionary.to_pylist())
    if comments or not np.isfinite(scores).all():
        return None
    return _stretches(table, -scores if format is RunFormat.MSMARCO else scores, format, number)


def _values(array: Any, dtype: Any) -> NDArray[Any]:
    """Return the numbers of an arrow array; its `to_numpy` would import pandas."""
    values: NDArray[Any] = np.frombuffer(array.buffers()[1], dtype)[: len(array)]
    return values


def _stretches(table: Any, scores: Scores, format: RunFormat, number: int) -> Iterator[RankedList]:
    """Yield the rows of each query that follow each other."""
    [qids] = table["qid"].chunks
    codes, names = _values(qids.indices, np.int32), qids.dictionary.to_pylist()
    docids, values = table["docid"].to_pylist(), scores.tolist()
    begins = [0, *(np.flatnonzero(codes[1:] != codes[:-1]) + 1).tolist(), len(codes)]
    for begin, end in pairwise(begins):
        lines = range(number + begin, number + end)
        qid = names[codes[begin]]
        yield RankedList(qid, docids[begin:end], values[begin:end], lines, format)


def _parse(
    block: bytes,
    format: RunFormat,
    path: str | Path,
    number: int,
    skipped: Counter[str] | None,
    ranks: dict[tuple[str, int], int] | None,
) -> Iterator[RankedList]:
    """Parse lines one by one; `ranks` holds the line of each rank where ranks order the hits."""
    hits = parse_lines(enumerate(block.split(b"\n"), number), format, path)
    if ranks is not None:
        hits = _by_rank(hits, path, ranks)
    part: RankedList | None = None
    try:
        for line, qid, docid, score, _ in hits:
            if part is None or qid != part.qid:
                if part is not None:
                    yield part
                lines: list[int] = []
                part = RankedList(qid, [], [], lines, format)
            part.docids.append(docid)
            part.scores.append(score)
            lines.append(line)
    except InputError as error:
        if block.endswith(b"\n") or error.line != number:
            raise
        if skipped is None:
            raise _cut_off(error, path) from None
        skipped["a last line that is cut off"] += 1
    if part is not None:
        yield part


def _cut_off(error: InputError, path: str | Path) -> InputError:
    """Return the error about a broken last line without a line end."""
    found = str(error).partition(": found ")[2].partition("; expected ")[0]
    return InputError(
        path,
        error.line,
        f"a last line that is cut off ({found})",
        "a whole file",
        "write the run again, or add --skip-missing to do without the line",
    )


def _by_rank(
    hits: Iterable[Hit], path: str | Path, seen: dict[tuple[str, int], int]
) -> Iterator[Hit]:
    for line, qid, docid, _, place in hits:
        if not (place.isascii() and place.isdecimal() and len(place) < 19):
            found = f"rank {place[:40]!r}" if place else "no rank"
            raise InputError(path, line, found, "a whole number", BY_SCORE)
        rank = int(place)
        if (first := seen.setdefault((qid, rank), line)) != line:
            raise InputError(
                path,
                line,
                f"rank {rank} of query {qid} again (first in line {first})",
                "each rank once a query",
                BY_SCORE,
            )
        yield line, qid, docid, -float(rank), place


def parse_lines(lines: Numbered, format: RunFormat, path: str | Path) -> Iterator[Hit]:
    """Yield the hits of numbered lines; blank lines and comments of TREC runs are skipped."""
    if format is RunFormat.JSONL:
        yield from _json_hits(lines, path)
        return
    trec = format is RunFormat.TREC
    ranked = format is RunFormat.MSMARCO
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
            if not -inf < score < inf:
                raise ValueError(number)
            if ranked:
                place = number
                score = -float(int(number))
        except ValueError:
            if not text.strip() or (trec and is_comment(text)):
                continue
            raise _broken(text, format, path, line) from None
        yield line, qid, docid, score, place


def _holds_a_blank(place: str, tag: str) -> bool:
    """Return whether a line has more than six columns because an id holds a blank.

    Text after the tag is ignored, as in trec_eval. But where the fourth column is no rank, or the
    sixth is a number, the columns are shifted.
    """
    return not place.removeprefix("-").isdecimal() or is_number(tag)


def _broken(text: bytes, format: RunFormat, path: str | Path, line: int) -> InputError:
    """Return the error about a line with the wrong columns or without a finite number."""
    [(_, decoded)] = decode_lines([(line, text)], path)
    parts = decoded.split()
    trec = format is RunFormat.TREC
    if trec and len(parts) > 6 and _holds_a_blank(parts[3], parts[5]):
        hint = "does an id hold a blank? text may follow the tag, and an id holds none"
        return InputError(path, line, columns(len(parts)), COLUMNS[format], hint)
    if not (len(parts) >= 6 if trec else len(parts) == 3):
        return _wrong_columns(len(parts), format, path, line)
    number = parts[4] if trec else parts[2]
    if format is RunFormat.MSMARCO:
        hint = "if the third column is a score, name the shape: tevatron"
        return InputError(path, line, f"rank {number[:40]!r}", "a whole number", hint)
    return InputError(path, line, f"score {number[:40]!r}", "a finite number")


def _wrong_columns(count: int, format: RunFormat | None, path: str | Path, line: int) -> InputError:
    hint = None
    if count == 4 and format in (None, RunFormat.TREC):
        hint = "four columns are qrels: exchange run and qrels"
    expected = COLUMNS[format] if format else " or ".join(COLUMNS.values())
    return InputError(path, line, columns(count), expected, hint)


def _json_hits(lines: Numbered, path: str | Path) -> Iterator[Hit]:
    for line, record in parse_objects(lines, path):
        if not {"qid", "docid", "score"} <= record.keys():
            found = f"the keys {list_keys(record)}"
            raise InputError(path, line, found, COLUMNS[RunFormat.JSONL])
        score = record["score"]
        if type(score) not in (int, float) or not isfinite(score):
            raise InputError(path, line, f"score {str(score)[:40]!r}", "a finite number")
        qid = identifier(record["qid"], path, line, "query")
        docid = identifier(record["docid"], path, line, "passage")
        yield line, qid, docid, float(score), str(record.get("rank", ""))


class RunWriter:
    """Write a run query by query.

    Args:
        out: where the lines go.
        format: their format. MS MARCO's holds the first 1000 hits of a query.
        tag: last column of a TREC run.
    """

    def __init__(self, out: BinaryIO, format: RunFormat, tag: str) -> None:
        self._out, self._format, self._tag = out, format, tag
        self.lines = 0

    def write(self, qid: str, docids: Sequence[str], scores: Sequence[float] | Scores) -> None:
        """Write the hits of a query.

        Args:
            qid: the query.
            docids: K passages, best first.
            scores: K scores.

        Raises:
            OutputError: a score is not finite.
        """
        assert len(docids) == len(scores), (qid, len(docids), len(scores))
        depth = MSMARCO_DEPTH if self._format is RunFormat.MSMARCO else len(docids)
        docids, values = docids[:depth], np.asarray(scores[:depth], np.float64)
        finite = np.isfinite(values)
        if not finite.all():
            place = int(np.argmin(finite))
            raise OutputError(
                f"query {qid}: the score of passage {docids[place]} is {values[place]}"
            )
        if self._format is RunFormat.JSONL:
            qid, docids = _quoted(qid), list(map(_quoted, docids))
        qid, tag = (text.replace("%", "%%") for text in (qid, self._tag))
        ranks = range(1, len(docids) + 1)
        line, fields = {
            RunFormat.TREC: (f"{qid} Q0 %s %d %.9g {tag}\n", (docids, ranks, values.tolist())),
            RunFormat.MSMARCO: (f"{qid}\t%s\t%d\n", (docids, ranks)),
            RunFormat.TEVATRON: (f"{qid}\t%s\t%.9g\n", (docids, values.tolist())),
            RunFormat.JSONL: (
                f'{{"qid":{qid},"docid":%s,"rank":%d,"score":%.9g}}\n',
                (docids, ranks, values.tolist()),
            ),
        }[self._format]
        text = line * len(docids) % tuple(chain.from_iterable(zip(*fields, strict=True)))
        self._out.write(text.encode())
        self.lines += len(docids)


def _quoted(text: str) -> str:
    return dump_json(text).decode().rstrip("\n")


@contextmanager
def run_writer(
    path: str | Path, format: RunFormat = RunFormat.TREC, tag: str = "denserk"
) -> Iterator[RunWriter]:
    """Open a run for writing. It is written to a temporary file and renamed on success.

    Args:
        path: the file; "-" is standard output, `.gz` is compressed.
        format: its format.
        tag: last column of a TREC run.
    """
    with whole_binary(path) as out:
        yield RunWriter(out, format, tag)


def write_run(
    path: str | Path,
    results: Iterable[tuple[str, Sequence[tuple[str, float]]]],
    format: RunFormat = RunFormat.TREC,
    tag: str = "denserk",
) -> int:
    """Write a run from (qid, [(docid, score), ...]), best first; return the number of lines.

    Raises:
        OutputError: a score is not finite, or the file cannot be written.
    """
    with run_writer(path, format, tag) as writer:
        for qid, hits in results:
            writer.write(qid, [docid for docid, _ in hits], [score for _, score in hits])
    return writer.lines
