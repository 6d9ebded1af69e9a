"""The page that compares runs: where it goes, and how much of the runs it shows."""

from dataclasses import dataclass, fields

from denserk.errors import UsageError
from denserk.settings.formats import DETECTED, CorpusSettings
from denserk.settings.options import Settings, option


@dataclass(frozen=True)
class PageSettings(Settings):
    """A page made from the runs."""

    report: str | None = option(None, metavar="DIR", shown_default="no page")
    """Also write DIR/index.html: tables, curves, queries side by side, in one file."""
    topics: str | None = option(None, metavar="FILE|DIR|NAME", shown_default="as the runs know")
    """Queries whose texts --report shows, and --write-dpr-json writes where --answers has none."""
    report_queries: int = option(20, rare=True, at_least=0)
    """--report: how many of the queries that moved most have their lists side by side."""
    report_passages: int = option(5, rare=True, at_least=1)
    """--report: how many passages of each list are shown."""

    def __post_init__(self) -> None:
        """Reject settings of a page that is not asked for."""
        super().__post_init__()
        if self.report is None:
            told = [option for option in self.asked if not option.startswith("--topics ")]
            if told:
                raise UsageError(f"{' and '.join(told)}: for --report alone", "add --report DIR")

    @property
    def asked(self) -> tuple[str, ...]:
        """The options about queries and passages that differ from their defaults, as typed.

        >>> PageSettings(report="page", report_queries=5).asked
        ('--report-queries 5',)
        """
        about = [field for field in fields(self) if field.name != "report"]
        return tuple(
            f"--{field.name.replace('_', '-')} {getattr(self, field.name)}"
            for field in about
            if getattr(self, field.name) != field.default
        )


@dataclass(frozen=True)
class ReportSources:
    """What stands behind the measures of runs.

    Attributes:
        title: of the page.
        qrels: the judgements; None where answers were matched instead.
        topics: the queries; None where nobody said, and the runs' manifests are asked.
        corpus: the passages; the same.
        shape: how the corpus is read.
    """

    title: str
    qrels: str | None = None
    topics: str | None = None
    corpus: str | None = None
    shape: CorpusSettings = DETECTED
