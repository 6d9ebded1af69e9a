"""Seconds, rates and the load of the card."""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Self

import numpy as np
import torch

SAMPLING = 0.1  # seconds between two looks at the card's load


def synchronize(device: str) -> None:
    """Wait until the device has computed what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def median_seconds(
    work: Callable[[], Any], device: str, repeats: int = 3, enough: float = 6.0
) -> float:
    """Return the median time of a call after one to warm up.

    It is repeated until `repeats` calls, or `enough` seconds, are over.
    """
    work()
    synchronize(device)
    times: list[float] = []
    while len(times) < repeats and sum(times) < enough:
        start = time.perf_counter()
        work()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def matrix_rates(device: str, size: int) -> dict[str, float]:
    """Return the FLOP/s of a square product in each precision: what this device can do at most."""
    rates = {}
    for name, dtype in (
        ("float32", torch.float32),
        ("tf32", torch.float32),
        ("bfloat16", torch.bfloat16),
        ("float16", torch.float16),
    ):
        left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
        with tf32(enabled=name == "tf32"):
            seconds = median_seconds(lambda a=left, b=right: a @ b, device, 5)  # type: ignore[misc]
        rates[name] = 2 * size**3 / seconds
    return rates


class tf32:
    """Context manager that lets products of float32 be computed in tf32, or forbids it."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._before = False

    def __enter__(self) -> None:
        self._before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = self._enabled

    def __exit__(self, *_: object) -> None:
        torch.backends.cuda.matmul.allow_tf32 = self._before


def bert_operations(layers: int, hidden: int, lengths: Sequence[int]) -> float:
    """Return the multiplications and additions of a BERT's products for texts of these lengths.

    >>> bert_operations(1, 2, [3])
    360.0
    """
    tokens = np.asarray(lengths, np.float64)
    per_text = layers * (24 * hidden**2 * tokens + 4 * hidden * tokens**2)
    return float(per_text.sum())


class Load:
    """Samples the card's load while a `with` runs, where the package pynvml is installed.

    `share` is the mean percentage of time in which a kernel ran; None where it is not known.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._samples: list[int] = []
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._device == "cuda":
            with suppress(Exception):  # no pynvml, or a driver that it does not know
                self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _begin(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        card = pynvml.nvmlDeviceGetHandleByIndex(0)

        def sample() -> None:
            while not self._ended.wait(SAMPLING):
                self._samples.append(pynvml.nvmlDeviceGetUtilizationRates(card).gpu)

        self._thread = threading.Thread(target=sample, daemon=True)
        self._thread.start()

    @property
    def share(self) -> int | None:
        """Percent of the time in which the card was busy."""
        if not self._samples:
            return None
        return round(float(np.mean(self._samples)))

    @property
    def details(self) -> dict[str, Any]:
        """The share as a detail of a check; nothing where it is not known."""
        return {} if self.share is None else {"busy_percent": self.share}
