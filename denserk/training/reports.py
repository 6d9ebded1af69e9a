"""The log of a run in experiment trackers (`--report-to`), by transformers' integrations."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations.integration_utils import (
    TensorBoardCallback,
    get_reporting_integration_callbacks,
)

from denserk.errors import MissingExtraError, UsageError
from denserk.models.distributed import world

LOGS = "logs"


class _Arguments(TrainingArguments):
    """What the integrations read of a run: its folder, and denserk's settings."""

    settings: Mapping[str, Any]

    def __post_init__(self) -> None:
        """Prepare no device: denserk's loop does."""

    def to_dict(self) -> dict[str, Any]:
        """Return the settings of the run."""
        return dict(self.settings)

    def to_json_string(self) -> str:
        """Return the settings of the run."""
        return json.dumps(self.to_dict(), indent=2, default=str)


def callbacks_of(names: Sequence[str]) -> list[TrainerCallback]:
    """Return the callbacks of trackers.

    Raises:
        UsageError: transformers knows no such tracker, or its package is not installed.
    """
    made: list[TrainerCallback] = []
    for name in names:
        try:
            (kind,) = get_reporting_integration_callbacks([name])  # type: ignore[no-untyped-call]
        except ValueError as error:
            raise UsageError(f"--report-to {error}") from None
        try:
            made.append(kind())
        except (RuntimeError, ImportError) as error:
            package = re.search(r"pip install (\S*\w)", str(error))
            raise MissingExtraError(
                f"--report-to {name} needs a package that is not installed: {error}",
                f"pip install {package[1] if package else name}",
            ) from None
    return made


class Reports:
    """Sends entries of the log to trackers, from the main process alone."""

    def __init__(
        self,
        callbacks: Sequence[TrainerCallback],
        output: Path,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._callbacks = callbacks if world()[0] == 0 else ()
        self._arguments = _Arguments(output_dir=str(output), run_name=output.name)
        self._arguments.settings = settings or {}
        self._state, self._control = TrainerState(), TrainerControl()
        self._begun = False

    def _call(self, event: str, **options: Any) -> None:
        for each in self._callbacks:
            getattr(each, event)(self._arguments, self._state, self._control, model=None, **options)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Send one entry of the log."""
        self._state.global_step = step
        if not self._begun:
            for callback in self._callbacks:
                if isinstance(callback, TensorBoardCallback) and callback.logging_dir is None:
                    callback.logging_dir = str(Path(str(self._arguments.output_dir), LOGS))
            self._call("on_train_begin")
            self._begun = True
        self._call("on_log", logs=dict(values))

    def close(self) -> None:
        """End the run in every tracker."""
        if self._begun:
            self._call("on_train_end")
