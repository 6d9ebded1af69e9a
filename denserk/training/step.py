"""The seam between the training loop and what is trained."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import Tensor

from denserk.training.length_groups import Work

Terms = dict[str, Tensor]
"""A loss by its weighted terms; their sum is the loss."""
Backward = Callable[[Tensor], None]
"""Runs a loss's backward pass, scaled as the precision asks."""
Autocast = Callable[[], AbstractContextManager[Any]]
"""Opens the region in which forward passes compute in the run's precision."""


class Step(Protocol):
    """How one batch becomes gradients."""

    work: Work
    """What passed through the model so far."""

    def __call__(self, batch: Any, backward: Backward, autocast: Autocast) -> Terms:
        """Adds this process's share of the gradient of the whole batch's loss to the model.

        Returns:
            The terms of the whole batch's loss, detached; the same on every process.
        """
