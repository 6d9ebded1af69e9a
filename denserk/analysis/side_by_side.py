"""What analyses of several models share: check the models first, load them by label."""

from collections.abc import Mapping
from typing import Any

from denserk.config.analysis import SeveralModels
from denserk.config.encoding import ComputeSettings
from denserk.errors import UsageError
from denserk.extras import require
from denserk.models.checkpoints import find_model
from denserk.models.text_encoder import TextEncoder


def check(settings: SeveralModels) -> None:
    """Look for every model, and for matplotlib if a plot was asked for, before measuring.

    Raises:
        UsageError: there is no such model.
        MissingExtraError: matplotlib is not installed.
    """
    if settings.plot is not None:
        require("matplotlib", "drawing plots")
    for _, model in settings.labelled:
        find_model(model)


def load(
    label: str,
    model: str,
    representation: Mapping[str, Any],
    text: Mapping[str, Any],
    compute: ComputeSettings,
    *,
    eager: bool = False,
) -> TextEncoder:
    """Load a model; errors about its settings begin with its label."""
    try:
        return TextEncoder.load(model, representation, text, compute, eager=eager)
    except UsageError as error:
        raise UsageError(f"{label}: {error.message}", error.hint) from None
