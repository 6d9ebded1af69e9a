"""The inputs and outputs of a task, by the names of its options.

Outputs are checked against the inputs and existing files, and locked; named pipes are copied. Both
the command line and the Python API do this around a task.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from denserk.config.encoding import PUBLISHED
from denserk.config.options import fields_of, spec_of
from denserk.errors import UsageError

# Options that name outputs.
OUTPUTS = ("output", "tokenize_to", "write_dpr_json", "write_pyserini_json", "target")
# Options whose values are never inputs.
NO_INPUTS = (*OUTPUTS, "report", "report_ids", "tag", "plot", "picture")
# Metavars of outputs that are always a file, or standard output.
FILES = ("FILE", "FILE|-")
# Inputs that can be given once; the parser would silently use the last one.
ONE_INPUT = ("answers", "baseline", "corpus", "encoded_queries", "predicted", "qrels", "topics")
# Inputs of which one can be standard input.
INPUTS = (*ONE_INPUT, "data", "exclude", "files", "input", "run", "runs", "train")


@contextmanager
def claimed_files(values: Mapping[str, Any], file_options: Sequence[str]) -> Iterator[None]:
    """Lock the outputs among the options of a task, and let it read pipes as often as files.

    `values` are the options by name; outputs in `file_options` must not be folders.
    """
    from denserk.io.outputs import scratch_folder
    from denserk.io.pipes import pipes_copied

    with pipes_copied(scratch_folder), claim_outputs(values, file_options):
        yield


def file_outputs(*classes: type) -> list[str]:
    """Return the names of the classes' fields that are outputs and must not be folders."""
    fields = fields_of(*classes)
    return [name for name in OUTPUTS if name in fields and spec_of(fields[name]).metavar in FILES]


def claim_outputs(
    values: Mapping[str, Any], file_options: Sequence[str]
) -> AbstractContextManager[None]:
    """Check the outputs against the inputs and existing files, and lock them.

    `values` are the options by name; those in `file_options` must not be folders. Under torchrun
    only the main process locks. Only one input can be standard input.
    """
    from denserk.io.written_files import reject_folder

    _check_streams(values)
    files = [values.get(name) for name in file_options]
    for path in (*files, _picture(values)):
        if path:
            reject_folder(path)
    outputs = _named_outputs(values)
    is_main_process = os.environ.get("RANK", "0") == "0"
    if not outputs or not is_main_process:
        return nullcontext()
    from denserk.io.outputs import claim, named_paths

    inputs = {name: value for name, value in values.items() if name not in NO_INPUTS}
    if _is_short_name(values.get("model")):
        del inputs["model"]
    return claim(
        outputs,
        inputs=named_paths(inputs),
        overwrite=bool(values.get("overwrite")),
        resume=bool(values.get("resume")),
    )


def _is_short_name(model: Any) -> bool:
    """Return whether a model is one of the hub by its short name, whatever folder is called so."""
    if not isinstance(model, str) or model not in PUBLISHED:
        return False
    from denserk.io.model_files import is_model_folder

    return not is_model_folder(model)


def _picture(values: Mapping[str, Any]) -> str | None:
    """Return the file of a picture, by either of its options."""
    return values.get("picture") or values.get("plot")


def _named_outputs(values: Mapping[str, Any]) -> list[str]:
    """Return the outputs among the options; of a report, the page that its folder gets."""
    outputs = [values[name] for name in OUTPUTS if values.get(name)]
    report = values.get("report")
    if report and not Path(report).is_file():  # the evaluation rejects a file
        outputs.append(str(Path(report, "index.html")))
    picture = _picture(values)
    if picture:
        outputs.append(picture)
    return outputs


def _check_streams(values: Mapping[str, Any]) -> None:
    """Raise a UsageError if more than one input is standard input."""
    paths: list[str] = []
    for name in INPUTS:
        value = values.get(name)
        if isinstance(value, str):
            paths.append(value)
        elif value:
            paths += value
    if paths.count("-") > 1:
        raise UsageError("standard input (-) can be only one of the inputs")
