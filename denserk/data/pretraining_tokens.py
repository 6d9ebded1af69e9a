"""Prepared text -> token ids as JSON lines, for other tools and for later runs.

tokens.jsonl            one document a line, as `pretraining_text` reads it
word-frequencies.json   passages: word -> count, as --set frequency-dict reads it
manifest.json           the tokenizer's name and fingerprint, and what the text was made from
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from denserk.data.prepared_folder import is_prepared
from denserk.data.pretraining_store import Layout, PretrainingStore
from denserk.formats.files import whole_binary
from denserk.formats.json_lines import write_objects
from denserk.formats.manifest import Kind, Manifest, read_manifest, write_manifest
from denserk.formats.outputs import whole_folder
from denserk.formats.pretraining_text import TOKENS

FREQUENCIES = "word-frequencies.json"


def write_tokens(
    store: PretrainingStore,
    folder: Path,
    tokenizer_name: str,
    separator: int,
) -> None:
    """Writes prepared text into a folder, or leaves one that already holds the same.

    Args:
        store: the prepared text.
        folder: where; made if absent.
        tokenizer_name: told in the manifest.
        separator: the id behind each query of an expansion.

    Raises:
        UsageError, MismatchError: the folder holds something else.
        OutputError: it cannot be written.
    """
    source = read_manifest(store.folder, Kind.PRETRAINING)
    settings = {**source.settings, "name": tokenizer_name}
    plan = Manifest(Kind.TOKENS, complete=False, settings=settings, made_from=source.made_from)
    if is_prepared(folder, plan):
        return
    with whole_folder(folder, overwrite=True) as part:
        count = write_objects(part / TOKENS, _records(store, separator))
        if store.layout is Layout.PASSAGES:
            words = store.words
            table = {words.word(i): int(words.counts[i]) for i in range(1, len(words))}
            with whole_binary(part / FREQUENCIES) as out:
                out.write(orjson.dumps(table))
        write_manifest(part, replace(plan, contents={"documents": count}, complete=True))


def _records(store: PretrainingStore, separator: int) -> Iterator[dict[str, Any]]:
    texts = store.texts
    if store.layout is Layout.SPANS:
        for first, end in pairwise(store.document_ends):
            yield {"spans": [texts[row].tolist() for row in range(first, end)]}
        return
    for number in range(len(store)):
        record: dict[str, Any] = {"text": texts[number].tolist()}
        if store.layout is Layout.PASSAGES and (row := store.expansion_rows[number]) >= 0:
            record["queries"] = _parts(store.queries[row], separator)
            following = store.next[row].tolist()
            record["next"] = [following] if following else []
        yield record


def _parts(ids: NDArray[Any], separator: int) -> list[list[int]]:
    """What stands before each separator."""
    ends = np.flatnonzero(ids == separator)
    return [part[part != separator].tolist() for part in np.split(ids, ends + 1)[:-1]]
