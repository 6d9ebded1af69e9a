"""What a run tells while it trains: a bar with the newest numbers, and TensorBoard's files."""

from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.integrations.integration_utils import TensorBoardCallback

from denserk.extras import installed
from denserk.reporting import Progress
from denserk.training.speed import Clock


class Told(TrainerCallback):
    """Moves the bar, with the loss, its parts, the last validation and the speed beside it."""

    def __init__(self, progress: Progress, clock: Clock) -> None:
        self._progress, self._clock = progress, clock
        self._words: dict[str, str] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Counts what an earlier run did."""
        self._progress.advance(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Counts the step; the last one is logged whatever the interval."""
        self._progress.advance()
        control.should_log |= state.global_step == state.max_steps

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Shows the newest numbers."""
        logs = logs or {}
        if "loss" in logs:
            parts = numbers_of(logs, "loss_")
            several = f" ({parts})" if "," in parts else ""
            self._words["loss"] = f"loss {logs['loss']:.4f}{several}"
            self._words["speed"] = f"{self._clock.tokens_per_second:,.0f} tokens/s"
        if measured := numbers_of(logs, "eval_"):
            self._words["validation"] = measured
        self._progress.tell(", ".join(self._words.values()))


def numbers_of(logs: dict[str, Any], prefix: str) -> str:
    """The quantities of a log whose names begin so, as words."""
    found = {name.removeprefix(prefix): v for name, v in logs.items() if name.startswith(prefix)}
    return ", ".join(f"{name} {value:.4f}" for name, value in found.items())


def follow(progress: Progress, clock: Clock, logs: Path) -> list[TrainerCallback]:
    """The callbacks of a run: its clock, its bar, and TensorBoard's files where it is installed."""
    told: list[TrainerCallback] = [clock, Told(progress, clock)]
    if installed("tensorboard"):
        board = TensorBoardCallback()  # type: ignore[no-untyped-call]
        board.logging_dir = str(logs)
        told.append(board)
    return told
