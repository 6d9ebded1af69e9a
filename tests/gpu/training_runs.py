"""Short training runs, and how far their losses and weights lie apart."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import load_file

from denserk.api import finetune
from tests.gpu.setup import Setup

Losses = NDArray[np.float64]
NEVER = 10**6  # steps between checkpoints


def short_run(setup: Setup, steps: int = 6) -> dict[str, Any]:
    """Return options of a few steps without warm-up, each of them logged."""
    return {
        "batch_size": setup.choose(4, 2),
        "group_size": setup.choose(3, 2),
        "max_steps": setup.choose(steps, 2),
        "lr": 2e-4,
        "warmup_ratio": 0.0,
        "passage_max_length": setup.choose(48, 24),
        "logging_steps": 1,
        "save_steps": NEVER,
        "num_workers": 0,
        "overwrite": True,
        "dtype": "float32",
    }


def tune(
    setup: Setup, name: str, model: str, training_data: str, device: str, **options: Any
) -> Path:
    """Fine-tune for a few steps, and return the folder of the run."""
    folder = setup.work / name.replace(" ", "-")
    chosen = {**short_run(setup), **options}
    return finetune(model, training_data, folder, device=device, **chosen)


def log_of(folder: Path) -> list[dict[str, Any]]:
    """Return the log of a run."""
    log: list[dict[str, Any]] = json.loads((folder / "training.json").read_text())["log"]
    return log


def losses(folder: Path) -> Losses:
    """Return the losses of a run in the order of their steps."""
    return np.array([entry["loss"] for entry in log_of(folder) if "loss" in entry])


def relative_difference(curve: Losses, other: Losses) -> float:
    """Return the largest difference of two curves, as a share of the largest loss.

    >>> relative_difference(np.array([4.0, 2.0]), np.array([4.0, 2.2]))
    0.05
    """
    return round(float(np.abs(curve - other).max() / np.abs(curve).max()), 12)


def largest_difference(folder: Path, other: Path) -> float:
    """Return the largest difference of a weight of two runs' models."""
    weights = load_file(folder / "model.safetensors")
    others = load_file(other / "model.safetensors")
    differences = [float((weights[name] - others[name]).abs().max()) for name in weights]
    return max(differences)


class Messages(logging.Handler):
    """denserk's messages while a `with` runs."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []
        self._logger = logging.getLogger("denserk")
        self._level = self._logger.level

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message."""
        self.lines.append(record.getMessage())

    def __enter__(self) -> "Messages":
        self._level = self._logger.level
        self._logger.addHandler(self)
        self._logger.setLevel(logging.INFO)
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(self._level)

    def last_with(self, words: str) -> str:
        """Return the last message that has these words; an empty text if none has."""
        for line in reversed(self.lines):
            if words in line:
                return line
        return ""
