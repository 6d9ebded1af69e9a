"""The place of `SequentialComparison` in denserk 0.2; it is in `sequential`."""

from denserk.evaluation.sequential import SequentialComparison

__all__ = ["SequentialComparison"]
