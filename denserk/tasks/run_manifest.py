"""The manifest beside a run: where there is one, and what names its queries."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from denserk.formats.files import STREAM, write_errors
from denserk.formats.manifest import beside
from denserk.records import Query


def has_manifest(output: str) -> bool:
    """Whether a manifest stands beside the run: streams and special files have none."""
    return output != STREAM and (Path(output).is_file() or not Path(output).exists())


def forget_manifest(output: str) -> None:
    """Removes the manifest of a run that is about to be replaced.

    Raises:
        OutputError: it cannot be removed.
    """
    if has_manifest(output):
        with write_errors(output):
            beside(output).unlink(missing_ok=True)


def queries_sha256(queries: Iterable[Query]) -> str:
    """Hexadecimal SHA-256 of ids and texts."""
    digest = hashlib.sha256()
    for query in queries:
        digest.update(f"{query.qid}\t{query.text}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
