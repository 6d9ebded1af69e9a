"""What the check found: one line for each check while it runs, and tables when it ends."""

import json
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

MARKDOWN = "gpu.md"
RECORD = "gpu.json"
WIDEST_NAME = 60  # characters of a column of the table on the terminal
WIDEST_VALUE = 100


class Verdict(StrEnum):
    """What became of a check."""

    PASSED = "pass"
    FAILED = "FAIL"
    MEASURED = "measured"  # a number without a right or wrong
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Check:
    """One line of the table: `value` is in `unit`, `details` are further numbers by name."""

    section: str
    name: str
    verdict: Verdict
    value: Any = ""
    unit: str = ""
    details: dict[str, Any] = field(default_factory=dict)

    def value_text(self) -> str:
        """The value and its unit, as the tables print them."""
        return f"{shown(self.value)} {self.unit}".strip()

    def details_text(self) -> str:
        """The details, as the tables print them."""
        return ", ".join(f"{name} {shown(value)}" for name, value in self.details.items())


@dataclass(frozen=True)
class SectionTime:
    """How long a section ran, and how it ended."""

    name: str
    seconds: float
    ending: str


def shown(value: Any) -> str:
    """Return a value on one line, a number with five digits.

    >>> shown(23901.72), shown(3.7e-6), shown(True), shown("two\\nlines")
    ('23,902', '3.7e-06', 'True', 'two lines')
    """
    if isinstance(value, float):
        if 1000 <= abs(value) < 1e15:
            return f"{value:,.0f}"
        return f"{value:.5g}"
    return " ".join(str(value).split())


class Report:
    """Collects the checks of all sections, prints each, and writes the tables into a folder."""

    def __init__(self, folder: Path, title: str) -> None:
        self.folder = folder
        self.title = title
        self.checks: list[Check] = []
        self.sections: list[SectionTime] = []
        self.section = ""  # the one that runs
        self._start = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds since the report was started."""
        return time.perf_counter() - self._start

    def check(self, name: str, value: Any, passed: bool, unit: str = "", **details: Any) -> None:
        """Record something that is right or wrong."""
        verdict = Verdict.PASSED if passed else Verdict.FAILED
        self._add(Check(self.section, name, verdict, value, unit, details))

    def measure(self, name: str, value: Any, unit: str = "", **details: Any) -> None:
        """Record something that is neither right nor wrong."""
        self._add(Check(self.section, name, Verdict.MEASURED, value, unit, details))

    def skip(self, name: str, reason: str) -> None:
        """Record something that could not be checked here."""
        self._add(Check(self.section, name, Verdict.SKIPPED, reason))

    @contextmanager
    def attempt(self, name: str) -> Iterator[None]:
        """Make an error a failed check of that name, so that the section continues."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, the others are still checked
            traceback.print_exc()
            self.check(name, f"{type(error).__name__}: {error}", passed=False)

    def end_section(self, seconds: float, ending: str) -> None:
        """Record the end of the running section, and write the tables."""
        self.sections.append(SectionTime(self.section, seconds, ending))
        print(f"---- {self.section}: {seconds:.1f} s, {ending}", flush=True)
        self.write()

    def count(self, verdict: Verdict) -> int:
        """Return the number of checks with that verdict."""
        return sum(check.verdict is verdict for check in self.checks)

    @property
    def failed(self) -> bool:
        """True if a check failed."""
        return self.count(Verdict.FAILED) > 0

    def summary(self) -> str:
        """Return one line: how many checks passed, failed, were measured and skipped."""
        return (
            f"{self.count(Verdict.PASSED)} passed, {self.count(Verdict.FAILED)} failed, "
            f"{self.count(Verdict.MEASURED)} measured, {self.count(Verdict.SKIPPED)} skipped, "
            f"{self.seconds:.0f} s"
        )

    def terminal_table(self) -> str:
        """Return all checks in aligned columns, and the seconds of the sections below them."""
        checks = [
            (
                str(check.verdict),
                check.section,
                cut(check.name, WIDEST_NAME),
                cut(check.value_text(), WIDEST_VALUE),
                check.details_text(),
            )
            for check in self.checks
        ]
        sections = [(each.name, f"{each.seconds:.1f} s", each.ending) for each in self.sections]
        return f"{aligned(checks)}\n\n{aligned(sections)}"

    def markdown(self) -> str:
        """Return the same as a page."""
        lines = [f"# {self.title}", "", self.summary(), ""]
        lines += markdown_table(
            ("section", "seconds", "ended"),
            [(each.name, f"{each.seconds:.1f}", each.ending) for each in self.sections],
        )
        lines += [""]
        lines += markdown_table(
            ("section", "check", "verdict", "value", "details"),
            [
                (
                    check.section,
                    check.name,
                    str(check.verdict),
                    check.value_text(),
                    check.details_text(),
                )
                for check in self.checks
            ],
        )
        return "\n".join(lines) + "\n"

    def write(self) -> None:
        """Write the page, and a record with all digits."""
        record = {
            "title": self.title,
            "seconds": self.seconds,
            "sections": [asdict(each) for each in self.sections],
            "checks": [asdict(check) for check in self.checks],
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / RECORD).write_text(json.dumps(record, indent=1, default=str), "utf-8")
        (self.folder / MARKDOWN).write_text(self.markdown(), "utf-8")

    def _add(self, check: Check) -> None:
        self.checks.append(check)
        line = f"{check.verdict:8} {check.name}: {check.value_text()}"
        details = check.details_text()
        print(f"{line} ({details})" if details else line, flush=True)


def cut(text: str, most: int) -> str:
    """Return at most so many characters of a text."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows with columns of equal width.

    >>> print(aligned([("pass", "a check", "1"), ("FAIL", "another", "2")]))
    pass  a check  1
    FAIL  another  2
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    for row in rows:
        cells = [shown(cell).replace("|", "\\|") for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    return lines
