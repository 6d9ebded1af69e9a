"""Sealed test queries of `denserk choose`: opened once, after the decision, and on record."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

from denserk.errors import UsageError
from denserk.evaluation.choice import Choice, Outcome, TestOpening
from denserk.evaluation.measures import Measure
from denserk.io.outputs import scratch_folder
from denserk.tasks.choose_candidates import Block, Retriever
from denserk.tasks.choose_folder import ChoiceFolder, write_hits
from denserk.tasks.choose_inputs import JudgedQueries, System
from denserk.tasks.choose_runs import COSTS, Costs, RunsOfBlock, values_of_run

logger = logging.getLogger(__name__)


class SealedQueries:
    """Test queries on which the systems that may be the best are evaluated, once.

    `folder` is that of the choice, which records each opening.
    """

    def __init__(self, queries: JudgedQueries, measure: Measure, folder: ChoiceFolder) -> None:
        self._queries = queries
        self._measure = measure
        self._folder = folder

    def open(
        self, choice: Choice, systems: Mapping[str, System], *, again: bool
    ) -> TestOpening | None:
        """Evaluate the systems that may be the best, unless that was done.

        None: nothing is decided, and the queries stay sealed. If an earlier opening is recorded, it
        is returned, and they are opened again only if `again` is true.
        """
        if choice.outcome is Outcome.BUDGET:
            logger.warning(f"{self._queries.qrels} stays sealed: nothing is decided yet")
            return None
        sha256 = self._queries.sha256()
        openings = [opening for opening in self._folder.openings() if opening.sha256 == sha256]
        retrievers = {name: systems[name].retriever for name in choice.best}
        if openings and not again:
            opening = self._recorded_opening(openings, choice)
            self._write_missing_runs(retrievers.values())
            return opening
        number = len(openings) + 1
        if openings:
            logger.warning(
                f"opening number {number} of {self._queries.qrels}: a choice made after an earlier "
                "opening is no longer independent of these queries"
            )
        return self._evaluate(retrievers, number)

    def _evaluate(self, retrievers: Mapping[str, Retriever], number: int) -> TestOpening:
        """Evaluate the retrievers of systems; record that, and only then write their runs."""
        queries = self._queries
        means = {}
        with scratch_folder("sealed") as scratch:
            runs = self._runs(scratch)
            for name, retriever in retrievers.items():
                run = runs.run_of(retriever)
                means[name] = fmean(values_of_run(run, queries.judgments, self._measure))
            opening = TestOpening(
                opening=number,
                time=datetime.now(UTC).isoformat(timespec="seconds"),
                qrels=queries.qrels,
                sha256=queries.sha256(),
                comparison_sha256=self._folder.comparison_sha256(),
                measure=str(self._measure),
                queries=len(queries.queries),
                means=means,
            )
            self._folder.add_opening(opening)
            for retriever in retrievers.values():
                self._write_run(runs, retriever)
        return opening

    def _runs(self, scratch: Path) -> RunsOfBlock:
        """Return the runs of the test queries, which are searched for when they are needed."""
        block = Block(self._queries.queries, self._queries.topics)
        return RunsOfBlock(block, scratch, Costs(scratch / COSTS))

    def _run_path(self, retriever: Retriever) -> Path:
        """Return the file of a retriever's run on the test queries."""
        return self._folder.path / "test" / f"{retriever.name}.trec"

    def _write_missing_runs(self, retrievers: Iterable[Retriever]) -> None:
        """Write the runs that are not there after an interruption, or after --overwrite."""
        missing = [retriever for retriever in retrievers if not self._run_path(retriever).is_file()]
        if not missing:
            return
        with scratch_folder("sealed") as scratch:
            runs = self._runs(scratch)
            for retriever in missing:
                self._write_run(runs, retriever)

    def _write_run(self, runs: RunsOfBlock, retriever: Retriever) -> None:
        """Write the run of a retriever on the test queries."""
        results = ((qid, list(hits.items())) for qid, hits in runs.run_of(retriever).items())
        write_hits(self._run_path(retriever), results, retriever.name, retriever.score_digits)

    def _recorded_opening(self, openings: Sequence[TestOpening], choice: Choice) -> TestOpening:
        """Return the last opening by this comparison; raise a UsageError if there is none.

        Another comparison may give the same names to other systems.
        """
        sha256 = self._folder.comparison_sha256()
        openings_here = [
            opening
            for opening in openings
            if opening.comparison_sha256 == sha256 and set(opening.means) == set(choice.best)
        ]
        if not openings_here:
            opening = openings[-1]
            raise UsageError(
                f"{opening.qrels} was opened at {opening.time} for {opening.measure} of "
                f"{', '.join(opening.means)}, in a comparison with other candidates, queries or "
                f"settings; {', '.join(choice.best)} may now be the best",
                "--open-again opens it once more, which is recorded",
            )
        opening = openings_here[-1]
        logger.warning(
            f"{opening.qrels} was opened at {opening.time}: its recorded values are shown"
        )
        return replace(opening, was_recorded=True)
