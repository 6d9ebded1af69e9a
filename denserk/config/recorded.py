"""Names of inputs in files that denserk writes: manifests, training.json, config.yaml.

A file or folder is recorded relative to the folder of the file that names it, as "./NAME" or
"../NAME", so that a tree of folders can be moved, and nothing says where it lay. Names that are no
paths (of the hub, short names of models, irds:NAME, openai:NAME, "-") are recorded as they were
given. A file that follows this rule says `paths: relative to this file`; those of older versions
name files as they were given, relative to the working directory of the command.
"""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from denserk.config.encoding import SERVED

MARK = "paths"  # the key that says how a file names others
RELATIVE = "relative to this file"  # its value
# fields whose values name files and folders: inputs in manifests, and options of training
NAME_FIELDS = {
    "answers",
    "converted_from",
    "corpus",
    "dev_corpus",
    "dev_data",
    "dev_qrels",
    "dev_topics",
    "encoded_queries",
    "expansions",
    "frequency_dict",
    "guide",
    "model",
    "name",
    "output",
    "preset",
    "qrels",
    "queries",
    "run",
    "runs",
    "teacher",
    "texts",
    "tokenize_to",
    "tokenizer",
    "topics",
    "train",
    "train_data",
    "vectors",
}
# fields that name none, though fields within have such names: checksums, a benchmark
FIELDS_WITHOUT_NAMES = {"sha256", "bytes", "suite"}
# prefixes of names that are no paths: of collections, and of models behind a URL
NOT_PATHS = ("irds:", "beir:", SERVED)
STREAMS = re.compile(r"-|/dev/(std(in|out|err)|null|full|fd/.*)|/proc/.*")
# what may stand around a path: hf:DIR:CONFIG/SPLIT, and a collection of Milvus in a local file
PATH_WITHIN = re.compile(
    r"(?P<before>hf:|collection \w+ of )(?P<path>[^:]*)(?P<after>:.*)?", re.DOTALL
)
IS_RELATIVE = re.compile(r"\.\.?(/.*)?", re.DOTALL)

Change = Callable[[str], str]


def record_name(name: str, folder: str | Path) -> str:
    """Return how a file in `folder` names an input or output."""
    return _changed_path(name, lambda path: _record_path(path, folder))


def locate_name(name: str, folder: str | Path) -> str:
    """Return the path of what a file in `folder` names by `record_name`; other names as they are.

    The path is relative if that of the folder is. A path at which there is nothing is absolute.
    """
    return _changed_path(name, lambda path: _located_path(path, folder))


def locate_older_name(name: str, folder: str | Path) -> str:
    """Return the path of what a file of an older version names: in its folder, or as it is."""
    return _changed_path(name, lambda path: _located_older_path(path, folder))


class Names:
    """The names in a file that denserk wrote, as paths from the working directory.

    Attributes:
        absent: a message for each path at which there is nothing: which name leads there.
    """

    def __init__(self, file: str | Path, values: Mapping[str, Any]) -> None:
        """Take the marker of the file from its `values`."""
        self._file = file
        self._folder = Path(file).parent
        self._are_relative = values.get(MARK) == RELATIVE
        self.absent: dict[str, str] = {}

    def located(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return a part of the file with its names as paths."""
        return change_names(values, self._locate)

    def _locate(self, name: str) -> str:
        """Return a name as a path; record one at which there is nothing."""
        if not self._are_relative:
            return self._locate_older(name)
        path = locate_name(name, self._folder)
        is_path = _may_be_path(name) and IS_RELATIVE.fullmatch(name) is not None
        if is_path and not os.path.lexists(path):
            self.absent[path] = f"{self._file} names {name}, which is not at {path}"
        return path

    def _locate_older(self, name: str) -> str:
        """Return a name of a file of an older version as a path, or as it is."""
        path = locate_older_name(name, self._folder)
        # it may be a name of the hub, too: older files do not tell them apart
        if _may_be_path(name) and not os.path.lexists(path):
            in_folder = _absolute(self._folder / name)
            as_typed = _absolute(name)
            if in_folder == as_typed:
                absence = f"{self._file} names {name}, which is not at {as_typed}"
            else:
                absence = (
                    f"{self._file} names {name}, which is neither at {in_folder} nor at {as_typed}"
                )
            self.absent[path] = absence
        return path


def public_name(name: str, folder: str | Path) -> str:
    """Return a name for readers elsewhere: relative to a folder, or else the last part of a path.

    >>> public_name("/data/corpus.jsonl", "/data/runs")
    '../corpus.jsonl'
    >>> public_name("/other/corpus.jsonl", "/data/runs"), public_name("minilm", "/data")
    ('corpus.jsonl', 'minilm')
    """
    return _changed_path(name, lambda path: _public_path(path, folder))


def change_names(values: Mapping[str, Any], change: Change) -> dict[str, Any]:
    """Return a copy of a JSON object in which the names of inputs are changed, at any depth."""
    copy = {}
    for key, value in values.items():
        field = key.replace("-", "_")  # config.yaml has hyphens
        if field in FIELDS_WITHOUT_NAMES:
            copy[key] = value
        else:
            copy[key] = _change_value(value, change, field)
    return copy


def _change_value(value: Any, change: Change, field: str) -> Any:
    """Return the value of a field in which the names of inputs are changed."""
    if isinstance(value, str):
        return change(value) if field in NAME_FIELDS else value
    if isinstance(value, Mapping):
        return change_names(value, change)
    if isinstance(value, list | tuple):
        return [_change_value(item, change, field) for item in value]
    return value


def same_place(name: str) -> str:
    """Return a name in the spelling in which all names of one file are equal."""
    return _changed_path(name, lambda path: os.path.realpath(path) if _is_path(path) else path)


def _may_be_path(name: str) -> bool:
    """Return whether a name may be a path as a whole: a name of the hub looks like one, too."""
    return not _has_no_path(name) and PATH_WITHIN.fullmatch(name) is None


def _has_no_path(name: str) -> bool:
    """Return whether a name is that of a stream, of a collection or of a model behind a URL."""
    return name.startswith(NOT_PATHS) or STREAMS.fullmatch(name) is not None


def _changed_path(name: str, change: Change) -> str:
    """Change the path in a name; the names of streams and collections hold none."""
    if _has_no_path(name):
        return name
    match = PATH_WITHIN.fullmatch(name)
    if match is None:
        return change(name)
    return f"{match['before']}{change(match['path'])}{match['after'] or ''}"


def _is_path(name: str) -> bool:
    """Return whether a name is a path: by its look, or because something is there."""
    if not name:
        return False
    if Path(name).is_absolute() or IS_RELATIVE.fullmatch(name):
        return True
    return os.path.lexists(name)


def _absolute(path: str | Path) -> str:
    return os.path.abspath(path)  # noqa: PTH100  (a link stays)


def _real(path: str) -> str:
    """Return a path whose folders are no links; a link at its end stays, for it may be moved."""
    folder, name = os.path.split(_absolute(path))
    return os.path.join(os.path.realpath(folder), name)  # noqa: PTH118


def _record_path(path: str, folder: str | Path) -> str:
    """Return how a file in `folder` names a path; a name that is no path as it is."""
    if not _is_path(path):
        return path
    relative = os.path.relpath(_absolute(path), _absolute(folder))
    # where a folder above is a link, ".." leads to the folder above its target
    destination = os.path.normpath(Path(os.path.realpath(folder), relative))
    if _real(destination) != _real(path):
        relative = os.path.relpath(_real(path), os.path.realpath(folder))
    return relative if IS_RELATIVE.fullmatch(relative) else f"./{relative}"


def _located_path(path: str, folder: str | Path) -> str:
    """Return the path that a file in `folder` names relative to itself."""
    if not IS_RELATIVE.fullmatch(path):
        return path
    as_typed = os.path.normpath(Path(folder, path))
    from_real_folder = os.path.normpath(Path(os.path.realpath(folder), path))
    if not os.path.lexists(as_typed):
        return from_real_folder
    # the shorter path, unless a link above the folder makes it lead elsewhere
    are_same = _real(as_typed) == _real(from_real_folder)
    if are_same or not Path(from_real_folder).exists():
        return as_typed
    return from_real_folder


def _located_older_path(path: str, folder: str | Path) -> str:
    """Return the path that a file of an older version names: in its folder, or as it is."""
    in_folder = os.path.normpath(Path(folder, path))
    if path and os.path.lexists(in_folder):
        return in_folder
    return path


def _public_path(path: str, folder: str | Path) -> str:
    """Return a path relative to a folder; its last part if they share no folder but the root."""
    if not _is_path(path):
        return path
    absolute_path = _absolute(path)
    absolute_folder = _absolute(folder)
    if os.path.commonpath([absolute_path, absolute_folder]) == os.sep:
        return Path(absolute_path).name
    return os.path.relpath(absolute_path, absolute_folder)
