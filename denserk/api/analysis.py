"""Analyses of runs."""

from typing import TYPE_CHECKING, Unpack

from denserk.api.inputs import RunLike, TextsLike, stored_inputs
from denserk.api.options import AnalyzeMissesOptions, PathName
from denserk.api.signatures import ANALYZE_MISSES, documented
from denserk.config.analysis import MissesSettings
from denserk.config.encoding import ComputeSettings
from denserk.config.formats import CorpusSettings
from denserk.config.options import build

if TYPE_CHECKING:
    from denserk.tasks.analyze.misses import MissesResult


@documented(ANALYZE_MISSES)
def analyze_misses(
    run: "RunLike",
    qrels: "RunLike",
    *,
    topics: "TextsLike | None" = None,
    corpus: "TextsLike | None" = None,
    output: PathName | None = None,
    **options: Unpack[AnalyzeMissesOptions],
) -> "MissesResult":
    """Find why relevant passages are missed: the smallest change that brings each in.

    The result has the missed `passages` with their causes, the counts of `causes`, and the `gains`
    of the changes. For a run in memory, nothing is recorded: give `topics`, `corpus` and `index`.
    `output` keeps the table as CSV.
    """
    with stored_inputs(options, run=run, qrels=qrels, topics=topics, corpus=corpus) as (
        files,
        folder,
    ):
        table = folder / "misses.csv" if output is None else output
        typed = ANALYZE_MISSES.typed(options, output=table, **files)
        settings = build(MissesSettings, typed)
        from denserk.tasks.analyze.misses import analyze_misses as task

        with ANALYZE_MISSES.claimed(typed):
            return task(settings, build(CorpusSettings, typed), build(ComputeSettings, typed))
