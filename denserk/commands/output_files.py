"""The outputs of a command: checked against its inputs and existing files, and locked."""

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from denserk.commands.help_pages import ONE_INPUT
from denserk.errors import UsageError

# Options that name outputs.
OUTPUTS = ("output", "tokenize_to", "write_dpr_json", "write_pyserini_json", "target")
# Options whose values are never inputs.
NO_INPUTS = (*OUTPUTS, "report", "tag", "plot", "picture")
# Inputs of which one can be standard input.
INPUTS = (*ONE_INPUT, "data", "files", "input", "run", "runs", "train")


def claim_outputs(
    values: Mapping[str, Any], file_options: Sequence[str]
) -> AbstractContextManager[None]:
    """Check the outputs against the inputs and existing files, and lock them.

    `values` are the options by name; those in `file_options` must not be folders. Under torchrun
    only the main process locks. Only one input can be standard input.
    """
    from denserk.io.files import refuse_folder

    _check_streams(values)
    plot = values.get("picture") or values.get("plot")
    files = [values.get(name) for name in file_options]
    for path in (*files, plot):
        if path:
            refuse_folder(path)
    outputs = [values[name] for name in OUTPUTS if values.get(name)]
    report = values.get("report")
    if report and not Path(report).is_file():
        outputs.append(str(Path(report, "index.html")))
    if plot:
        outputs.append(plot)
    is_main_process = os.environ.get("RANK", "0") == "0"
    if not outputs or not is_main_process:
        return nullcontext()
    from denserk.io.outputs import claim, named_paths

    others = {name: value for name, value in values.items() if name not in NO_INPUTS}
    return claim(
        outputs,
        inputs=named_paths(others),
        overwrite=bool(values.get("overwrite")),
        resume=bool(values.get("resume")),
    )


def _check_streams(values: Mapping[str, Any]) -> None:
    """Raise a UsageError if more than one input is standard input."""
    count = 0
    for name in INPUTS:
        value = values.get(name)
        if value:
            paths = [value] if isinstance(value, str) else list(value)
            count += paths.count("-")
    if count > 1:
        raise UsageError("standard input (-) can be only one of the inputs")
