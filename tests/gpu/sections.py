"""Sections of the check: each has a time limit, and one that fails does not stop the others."""

import gc
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from tests.gpu.setup import Setup

LEAST_SECONDS = 5  # a section is not started if fewer are left
# Seconds after which the limit is raised again: a library may swallow it once, in a destructor
AGAIN = 5.0


@dataclass(frozen=True)
class Section:
    """A part of the check: `work` records its checks in the report of the setup."""

    name: str
    work: Callable[[Setup], None]
    seconds: float  # it is stopped after so many


class OutOfTime(BaseException):
    """A section ran past its limit.

    It derives from BaseException, because denserk and other libraries turn an Exception that they
    meet into a message of their own, and go on.
    """


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise OutOfTime in what runs inside, once so many seconds have passed."""

    def stop(*_: object) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run_sections(sections: Sequence[Section], setup: Setup, budget: float) -> None:
    """Run sections in their order, for `budget` seconds in all.

    A rehearsal has no limits for single sections: they are those of a GPU.
    """
    report = setup.report
    for section in sections:
        left = budget - report.seconds
        own_limit = left if setup.rehearsal else section.seconds
        report.section = section.name
        if left < LEAST_SECONDS:
            report.skip(section.name, "not started: the budget is used up")
            report.end_section(0.0, "not started")
            continue
        print(f"---- {section.name}: at most {min(own_limit, left):.0f} s", flush=True)
        start = time.perf_counter()
        ending = _run(section, setup, min(own_limit, left), is_last=left <= own_limit)
        report.end_section(time.perf_counter() - start, ending)
        _free_memory()


def _run(section: Section, setup: Setup, seconds: float, *, is_last: bool) -> str:
    """Run a section, and return how it ended; `is_last` if the limit is what the budget leaves."""
    report = setup.report
    ending = "done"
    try:
        with time_limit(seconds):
            section.work(setup)
    except OutOfTime:
        ending = f"stopped after {round(seconds, 1):g} s"
        if is_last:
            report.skip(f"rest of {section.name}", f"{ending}: the budget is used up")
        else:
            report.check(f"rest of {section.name}", ending, passed=False)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the others still run
        traceback.print_exc(file=sys.stdout)
        ending = f"{type(error).__name__}: {error}"
        report.check(f"rest of {section.name}", ending, passed=False)
    return ending


def _free_memory() -> None:
    """Return memory that a section left behind."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
