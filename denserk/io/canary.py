"""`canary.json` of a model's folder: texts with their token ids and vectors as the model was saved.

docs/formats.md describes the file for other tools. Nothing here imports torch.
"""

import base64
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from denserk.errors import InputError
from denserk.io.files import read_file
from denserk.io.manifest import Rule, check
from denserk.io.written_files import whole_text

logger = logging.getLogger(__name__)

CANARY_FILE = "canary.json"
FORMAT = "canary-vectors"
VERSION = 1
QUERY, PASSAGE = "query", "passage"
KINDS = (QUERY, PASSAGE)
STORED_TYPE = "<f4"  # NumPy's name of the type of the vectors: float32, little-endian
KIND_RULE: dict[Any, Rule] = {
    "prompt": str,
    "max_length": range(1, 1 << 40),
    "pooling": str,
    "normalised": bool,
}
TEXT_RULE: dict[Any, Rule] = {"kind": str, "text": str, "token_ids": list, "vector": str}
RULE: dict[Any, Rule] = {
    "dimension": range(1, 1 << 40),
    "kinds": {...: KIND_RULE},
    "tolerances": dict,
    "texts": [TEXT_RULE],
    "denserk?": {"representation?": dict, "text?": dict},
}
HINT = "fetch the file again, or remove it: the model is then not compared"

Vectors = NDArray[np.float32]  # (S, D), those of one text


class KindSettings(NamedTuple):
    """How texts of a kind, queries or passages, were encoded."""

    prompt: str  # in front of each text
    max_length: int  # tokens, special ones included
    pooling: str
    normalised: bool  # vectors have unit length


class CanaryText(NamedTuple):
    """A text of a canary, as the saved model read and encoded it."""

    kind: str  # "query" or "passage"
    text: str
    token_ids: list[int]  # prompt and special tokens included, cut at the length limit
    vectors: Vectors  # (S, D), S is 1 unless the model stores several vectors of a passage


@dataclass(frozen=True)
class Canary:
    """The content of a canary.json.

    `tolerances` are the largest cosine distances, by precision, at which a vector still counts as
    that of the saved model. `denserk` has the whole settings of a model that denserk saved:
    "representation" and "text".
    """

    kinds: Mapping[str, KindSettings]
    texts: Sequence[CanaryText]
    tolerances: Mapping[str, float]
    denserk: Mapping[str, Any] = field(default_factory=dict)

    def of_kind(self, kind: str) -> list[CanaryText]:
        """Return the texts of a kind, in the file's order: the short ones first."""
        return [text for text in self.texts if text.kind == kind]


def write_canary(folder: Path, canary: Canary) -> None:
    """Write canary.json into a model's folder, each text on a line of its own."""
    header = {
        "format": FORMAT,
        "version": VERSION,
        "dtype": "float32",
        "dimension": int(canary.texts[0].vectors.shape[1]),
        "kinds": {kind: settings._asdict() for kind, settings in canary.kinds.items()},
        "tolerances": dict(canary.tolerances),
        "denserk": dict(canary.denserk),
    }
    with whole_text(folder / CANARY_FILE) as out:
        out.write("{\n")
        for name, value in header.items():
            out.write(f"{_as_json(name)}: {_as_json(value)},\n")
        lines = [_as_json(_record(text)) for text in canary.texts]
        out.write('"texts": [\n' + ",\n".join(lines) + "\n]\n}\n")


def _record(text: CanaryText) -> dict[str, Any]:
    """Return a text as it stands in the file."""
    return {
        "kind": text.kind,
        "text": text.text,
        "token_ids": text.token_ids,
        "vector": encoded_vectors(text.vectors),
    }


def encoded_vectors(vectors: Vectors) -> str:
    """Return vectors (S, D) of a text in base64."""
    return base64.b64encode(vectors.astype(STORED_TYPE).tobytes()).decode()


def _as_json(value: Any) -> str:
    """Return a value as JSON on one line."""
    return json.dumps(value, ensure_ascii=False)


def read_canary(folder: Path) -> Canary | None:
    """Read the canary.json of a model's folder.

    None if there is no such file, or if it has another format or version, which is logged. A file
    of this format and version with wrong content is an InputError.
    """
    path = folder / CANARY_FILE
    if not path.is_file():
        return None
    values = _read_object(path)
    if values.get("format") != FORMAT:
        logger.debug(f"{path} is ignored: it is not of the format {FORMAT}")
        return None
    if values.get("version") != VERSION:
        logger.warning(
            f"{path} has version {values.get('version')} of the format {FORMAT}, and this denserk "
            f"reads version {VERSION}: the model is not compared with it"
        )
        return None
    check(values, RULE, path, HINT)
    kinds = {name: _kind_settings(fields) for name, fields in values["kinds"].items()}
    texts = []
    for number, record in enumerate(values["texts"], start=1):
        if record["kind"] not in kinds:
            message = f"the kind {record['kind'][:40]!r} in text {number}"
            raise InputError(path, None, message, f"one of {', '.join(kinds)}", HINT)
        name = f"text {number}"
        vectors = decoded_vectors(record["vector"], values["dimension"], name, path, HINT)
        texts.append(CanaryText(record["kind"], record["text"], record["token_ids"], vectors))
    tolerances = _checked_tolerances(values["tolerances"], path)
    return Canary(kinds, texts, tolerances, values.get("denserk") or {})


def _read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; an InputError for anything else."""
    try:
        values = orjson.loads(read_file(path))
    except ValueError as error:
        message = f"text that is not JSON ({str(error)[:200]})"
        raise InputError(path, None, message, "JSON", HINT) from None
    check(values, dict, path, HINT)
    return dict(values)


def _kind_settings(fields: Mapping[str, Any]) -> KindSettings:
    """Return the settings of a kind from its fields in the file, which may be more."""
    return KindSettings(**{name: fields[name] for name in KindSettings._fields})


def _checked_tolerances(values: Mapping[str, Any], path: Path) -> dict[str, float]:
    """Return the tolerances by precision; other tools may write 1.0 as 1."""
    for precision, tolerance in values.items():
        is_number = type(tolerance) in (int, float)
        if not is_number or tolerance < 0:
            message = f"tolerances.{precision[:40]} that is {str(tolerance)[:40]}"
            raise InputError(path, None, message, "a number from 0 on", HINT)
    return {precision: float(tolerance) for precision, tolerance in values.items()}


def decoded_vectors(encoded: str, dimension: int, name: str, path: Path, hint: str) -> Vectors:
    """Return the vectors (S, D) of a text from base64; `name` is the text's in an error."""
    expected = f"base64 of vectors of {dimension} float32 numbers"
    try:
        stored = base64.b64decode(encoded, validate=True)
    except ValueError:
        raise InputError(
            path, None, f"in {name} a vector that is no base64", expected, hint
        ) from None
    count, remainder = divmod(len(stored), 4 * dimension)
    if count == 0 or remainder:
        message = f"in {name} a vector of {len(stored)} bytes"
        raise InputError(path, None, message, expected, hint)
    return np.frombuffer(stored, STORED_TYPE).astype(np.float32).reshape(count, dimension)
