"""Random draws of queries for people to judge: their order, and the record beside their file.

The order of the queries depends on the seed and on their ids alone. A smaller draw is the beginning
of a larger one, and anyone who has the seed can repeat both.
"""

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from denserk.io.manifest import (
    COUNT,
    REMAKE_HINT,
    Kind,
    Manifest,
    beside,
    check,
    describe_file,
    read_any_manifest,
    read_manifest,
)

_FIELD_RULES = {
    "seed": COUNT,
    "queries": COUNT,
    "queries_sha256": str,
    "drawn": COUNT,
    "drawn_sha256": str,
}


@dataclass(frozen=True)
class Draw:
    """The record of a draw."""

    seed: int
    queries: int  # number of queries that were drawn from
    queries_sha256: str  # of their ids, sorted
    drawn: int  # number of drawn queries
    drawn_sha256: str  # of their ids, in the order of the draw


def draw_order(qids: Iterable[str], seed: int) -> list[str]:
    """Return query ids in the random order of a seed: by the SHA-256 of seed and id.

    >>> draw_order(["q1", "q2", "q3", "q4"], seed=1)
    ['q4', 'q3', 'q1', 'q2']
    """
    return sorted(set(qids), key=lambda qid: (_digest(f"{seed}\n{qid}"), qid))


def record_draw(qids: Sequence[str], drawn_qids: Sequence[str], seed: int) -> Draw:
    """Return the record of a draw from queries."""
    return Draw(
        seed=seed,
        queries=len(qids),
        queries_sha256=_digest("\n".join(sorted(qids))),
        drawn=len(drawn_qids),
        drawn_sha256=_digest("\n".join(drawn_qids)),
    )


def _digest(text: str) -> str:
    """Return the hexadecimal SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def describe_draw(output: str, draw: Draw, made_from: dict[str, Any]) -> None:
    """Write the manifest of a draw beside its file."""
    manifest = Manifest(Kind.DRAW, complete=True, made_from=made_from, contents=asdict(draw))
    describe_file(output, manifest)


def read_draw(path: str) -> Draw:
    """Read the record of a draw by the file that --draw wrote."""
    return _draw_of(path, read_manifest(path, Kind.DRAW))


def draw_beside(path: str) -> Draw | None:
    """Return the record of the draw that wrote a file, since filled in; None for other files."""
    manifest_file = beside(path)
    if not os.path.lexists(manifest_file):
        return None
    manifest = read_any_manifest(manifest_file)
    if manifest.kind is not Kind.DRAW:
        return None
    return _draw_of(path, manifest)


def _draw_of(path: str, manifest: Manifest) -> Draw:
    """Return the record that a manifest has."""
    check(manifest.contents, _FIELD_RULES, beside(path), REMAKE_HINT, "contents")
    return Draw(**{name: manifest.contents[name] for name in _FIELD_RULES})
