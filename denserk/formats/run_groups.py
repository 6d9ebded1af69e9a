"""Runs a query at a time: its passages and their scores, in the order of the file."""

from collections.abc import Iterator
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from denserk.formats.trec_run import read_run
from denserk.reporting import SILENT, Reporter
from denserk.settings.formats import RunFormat


class RunGroup(NamedTuple):
    """The hits of one query, as the file has them."""

    qid: str
    docids: list[str]
    scores: list[float]


def read_groups(
    path: str | Path, reporter: Reporter = SILENT, form: RunFormat | None = None
) -> Iterator[RunGroup]:
    """Hits of a run, query by query."""
    for qid, group in groupby(read_run(path, reporter, form), attrgetter("qid")):
        hits = list(group)
        yield RunGroup(qid, [hit.docid for hit in hits], [hit.score for hit in hits])
