"""Weights that a run keeps beside its checkpoints: written whole, as folders of their own."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from denserk.formats.outputs import whole_folder

Save = Callable[[Path], None]


def save_whole(folder: Path, save: Save) -> None:
    """Saves a model into a folder that it replaces only once it is whole.

    Raises:
        OutputError: it cannot be written.
    """
    with whole_folder(folder, own=True) as part:
        save(part)


class KeepSteps(TrainerCallback):
    """Keeps the model as it is after chosen steps.

    Args:
        folder: takes a folder a step, `step-1000`.
        save: writes the model into a folder.
        steps: which.
    """

    def __init__(self, folder: Path, save: Save, steps: Collection[int]) -> None:
        self._folder, self._save, self._steps = folder, save, frozenset(steps)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Saves, where the step is one of them; the first process does."""
        if state.global_step in self._steps and state.is_world_process_zero:
            save_whole(self._folder / f"step-{state.global_step}", self._save)
