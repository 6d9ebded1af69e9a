"""`control-vectors.json` beside vectors: control texts with the vectors that a server gave them.

Of a model behind a URL nothing is known but its answers. The folder of vectors, and the index of
them, keep some, by which a later command knows whether the server still has the same model. The
canary of a model's folder (`denserk.io.canary`) holds token ids and settings, too.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson

from denserk.errors import InputError
from denserk.io.canary import Vectors, decoded_vectors, encoded_vectors
from denserk.io.files import read_file
from denserk.io.manifest import Rule, check
from denserk.io.written_files import whole_binary

logger = logging.getLogger(__name__)

CONTROL_FILE = "control-vectors.json"
FORMAT = "control-vectors"
VERSION = 1
RULE: dict[Any, Rule] = {
    "model": str,
    "dimension": range(1, 1 << 40),
    "texts": [{"text": str, "vector": str}],
}
HINT = "remove the file: the model is then not compared"


class ControlText(NamedTuple):
    """A control text and its vector."""

    text: str
    vector: Vectors  # (D,), as the server answered it


@dataclass(frozen=True)
class ControlVectors:
    """The control texts of a model by its name, openai:NAME."""

    model: str
    texts: Sequence[ControlText]


def write_control_vectors(folder: Path, control: ControlVectors) -> None:
    """Write the file into a folder of vectors."""
    texts = []
    for text in control.texts:
        vector = encoded_vectors(text.vector[None, :])
        texts.append({"text": text.text, "vector": vector})
    record = {
        "format": FORMAT,
        "version": VERSION,
        "model": control.model,
        "dimension": len(control.texts[0].vector),
        "texts": texts,
    }
    with whole_binary(folder / CONTROL_FILE) as out:
        out.write(orjson.dumps(record, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def read_control_vectors(folder: Path) -> ControlVectors | None:
    """Read the file of a folder of vectors or of an index.

    None if there is none, or one of a later version, which is logged. Wrong content is an
    InputError.
    """
    path = folder / CONTROL_FILE
    if not path.is_file():
        return None
    try:
        values = orjson.loads(read_file(path))
    except ValueError as error:
        message = f"text that is not JSON ({str(error)[:200]})"
        raise InputError(path, None, message, "JSON", HINT) from None
    check(values, {"version": int}, path, HINT)
    if values["version"] != VERSION:
        logger.warning(
            f"{path} has version {values['version']}, and this denserk reads version {VERSION}: "
            "the model is not compared with it"
        )
        return None
    check(values, RULE, path, HINT)
    if not values["texts"]:
        raise InputError(path, None, "no texts", "at least one", HINT)
    texts = []
    for number, record in enumerate(values["texts"], start=1):
        name = f"text {number}"
        vectors = decoded_vectors(record["vector"], values["dimension"], name, path, HINT)
        texts.append(ControlText(record["text"], np.asarray(vectors[0])))
    return ControlVectors(values["model"], texts)
