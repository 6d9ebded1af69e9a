"""The best weights so far, kept beside the checkpoints; and when to stop looking for better."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from denserk.settings.training import DevMetric
from denserk.training.kept import save_whole

LOWER_IS_BETTER = (DevMetric.LOSS, DevMetric.AVERAGE_RANK)


def values_of(history: list[dict[str, Any]], metric: DevMetric) -> list[float]:
    """The metric at each validation, oldest first."""
    name = f"eval_{metric.value}"
    return [entry[name] for entry in history if name in entry]


def best_of(values: list[float], metric: DevMetric) -> int:
    """The index of the best value, the first among equals.

    >>> best_of([0.3, 0.5, 0.5], DevMetric.RR_10)
    1
    """
    sign = -1 if metric in LOWER_IS_BETTER else 1
    return max(range(len(values)), key=lambda i: (sign * values[i], -i))


class KeepBest(TrainerCallback):
    """Saves the model at the best validation so far; ends a run that stopped improving.

    What was best is read from the run's log, which checkpoints carry: a resumed run goes on alike.

    Args:
        folder: takes the best weights; replaced only by whole ones.
        save: writes the model into a folder.
        metric: what validations are judged by.
        patience: validations in a row without a better one before the run ends; None for never.
    """

    def __init__(
        self, folder: Path, save: Callable[[Path], None], metric: DevMetric, patience: int | None
    ) -> None:
        self._folder, self._save = folder, save
        self._metric, self._patience = metric, patience

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Keeps the weights, or counts the validation against the patience."""
        values = values_of(state.log_history, self._metric)
        best = best_of(values, self._metric)
        if best == len(values) - 1 and state.is_world_process_zero:
            save_whole(self._folder, self._save)
        if self._patience is not None and len(values) - 1 - best >= self._patience:
            control.should_training_stop = True
