"""`--dtype auto` on a CPU: whether a model's vectors in bfloat16 are close to those in float32.

A processor that multiplies bfloat16 encodes in half the time or less, and most models keep their
vectors. Some do not: where a vector depends on which of two almost equal numbers is larger,
rounding changes it. So each model is tried on a few texts before it encodes in bfloat16.

The texts are the same for all inputs. Shards, processes, and encoders that are loaded before there
is an input then decide alike, and standard input is not read ahead.
"""

from functools import cache
from importlib.resources import files
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from denserk.config import encoding
from denserk.config.encoding import Dtype, DtypeChoice
from denserk.models import processor
from denserk.models.backbone import STATIC

# Least cosine between a text's vectors in bfloat16 and in float32.
LEAST_COSINE = 0.999


class Certificate(NamedTuple):
    """How close vectors in bfloat16 are to those in float32."""

    texts: int
    least_cosine: float

    @property
    def holds(self) -> bool:
        """True if the model may encode in bfloat16."""
        return self.least_cosine >= LEAST_COSINE

    @property
    def message(self) -> str:
        """Say which precision was taken, and why."""
        if self.holds:
            return (
                f"computing in bfloat16 on the CPU: cosines to float32 are at least "
                f"{self.least_cosine:.5f} ({self.texts} texts); --dtype float32 is slower, more "
                "precise"
            )
        return (
            f"computing in float32 on the CPU: cosines of vectors in bfloat16 are down to "
            f"{self.least_cosine:.5f}, at least {LEAST_COSINE} is needed ({self.texts} texts)"
        )


def is_bfloat16_tried(choice: DtypeChoice, device: torch.device, backbone: str) -> bool:
    """Return whether `--dtype auto` tries bfloat16, and certifies it, before a model encodes.

    `backbone` is the type of the model; a table of tokens' vectors multiplies nothing.
    """
    if choice is not DtypeChoice.AUTO or device.type != "cpu" or backbone == STATIC:
        return False
    return encoding.TRIED_ON_CPU is Dtype.BFLOAT16 and processor.has_bfloat16()


@cache
def certificate_texts() -> tuple[str, ...]:
    """Return the texts of the certificate: sentences, queries and code, some not in English."""
    path = files("denserk.models") / "certificate_texts.txt"
    return tuple(path.read_text("utf-8").splitlines())


def certificate_of(reduced: NDArray[np.float32], exact: NDArray[np.float32]) -> Certificate:
    """Compare the vectors (N, D) of the certificate's texts in bfloat16 and in float32."""
    return Certificate(len(certificate_texts()), least_cosine(reduced, exact))


def least_cosine(reduced: NDArray[np.float32], exact: NDArray[np.float32]) -> float:
    """Return the least cosine between rows of two arrays (N, D), to six places.

    That of a row of zeros, or of what is not finite, is 0.

    >>> least_cosine(np.float32([[2, 0], [1, 1]]), np.float32([[1, 0], [1, 0]]))
    0.707107
    """
    with np.errstate(invalid="ignore"):  # of infinite numbers
        products = np.einsum("nd,nd->n", reduced, exact)
        norms = np.linalg.norm(reduced, axis=1) * np.linalg.norm(exact, axis=1)
        cosines = products / np.maximum(norms, np.finfo(np.float32).tiny)
    return round(float(np.nan_to_num(cosines).min()), 6)
