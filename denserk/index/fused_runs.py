"""Runs that are fused query by query, wherever their hits are."""

import logging
from collections.abc import Iterator, Sequence

from denserk.config.formats import RunFormat
from denserk.config.options import as_json, given_fields, spelled
from denserk.config.retrieval import FusionMethod, FusionSettings, RankingSettings
from denserk.errors import InputError, MismatchError
from denserk.index.fused_columns import fuse_columns
from denserk.index.fusion import Weights, score_contributions, weighted_scores
from denserk.index.ranking import Hits, Ranking
from denserk.io.run_columns import RankedWords
from denserk.io.run_lookup import RunByQuery
from denserk.io.short_texts import first_names
from denserk.records import best_first
from denserk.reporting import track

logger = logging.getLogger(__name__)


class FusedRuns:
    """Runs that are fused query by query.

    Attributes:
        runs: what is fused; a run without hits, or of other queries than the rest, is an error.
        queries: those of the first run, then those that only others have.
        weights: of each run.
        settings, ranking: order the fused passages; equal scores are counted.
    """

    def __init__(
        self, runs: Sequence[RunByQuery], fusion: FusionSettings, settings: RankingSettings
    ) -> None:
        self.runs = runs
        self.fusion = fusion
        self.settings = settings
        self.weights = fusion.weights_of(len(runs))
        self.ranking = Ranking(settings)
        _reject_unfit_runs(runs, fusion)
        check_common_queries(runs)
        self.queries = _all_queries(runs)
        _warn_of_missing_queries(runs, self.queries)

    @property
    def options(self) -> str:
        """The options that fuse runs alike again."""
        return options_of(self.fusion, self.weights)

    def contributions_of(self, qid: str) -> dict[str, list[float]]:
        """Return what each run adds to the score of a query's passages, with weight 1."""
        hits_of_runs = []
        for run in self.runs:
            docids, scores = run.hits(qid)
            hits = self.ranking.best(qid, docids, scores)  # by score, not by the rank column
            hits_of_runs.append(hits[: self.fusion.depth])
        return score_contributions(hits_of_runs, self.fusion)

    def results(self) -> Iterator[tuple[str, Hits]]:
        """Yield the hits of each query, best first."""
        for qid, hits in self.ranked_hits():
            if isinstance(hits, RankedWords):
                yield qid, hits.as_list()
            else:
                yield qid, hits

    def ranked_hits(self) -> Iterator[tuple[str, Hits | RankedWords]]:
        """Yield what `results` yields, column by column where all runs have columns."""
        with track("fusing", len(self.queries), "queries") as progress:
            for qid in self.queries:
                progress.advance()
                columns = self._fused_columns(qid)
                if columns is None:
                    scores = weighted_scores(self.contributions_of(qid), self.weights)
                    yield qid, self.ranking.final(best_first(scores.items()))
                else:
                    yield qid, self.ranking.final_columns(columns)

    def _fused_columns(self, qid: str) -> RankedWords | None:
        """Return the fused hits of a query; None where they are to be fused one by one.

        That is where a run has no columns for it, where options join or remove passages, and where
        a score is not finite.
        """
        if self.settings.max_passage or self.settings.remove_query:
            return None
        columns = []
        for run in self.runs:
            hits = run.columns(qid)
            if hits is None:
                return None
            columns.append(hits)
        return fuse_columns(columns, self.fusion, self.weights)


def _reject_unfit_runs(runs: Sequence[RunByQuery], fusion: FusionSettings) -> None:
    """Raise an InputError for an empty run, or for ranks where scores are needed."""
    for run in runs:
        if run.format is None:
            raise InputError(run.path, None, "an empty run", "at least one hit")
        if run.format is RunFormat.MSMARCO and fusion.chosen is FusionMethod.LINEAR:
            raise InputError(run.path, None, "ranks, no scores", "scores", "give --method rrf")


def check_common_queries(runs: Sequence[RunByQuery]) -> None:
    """Raise a MismatchError for a run that answers none of the queries of the other runs."""
    for run in runs:
        queries_of_others = _all_queries([other for other in runs if other is not run])
        if set(queries_of_others).isdisjoint(run.queries):
            raise MismatchError(
                f"{run.path} answers queries {first_names(run.queries)}; the other runs answer "
                f"queries {first_names(queries_of_others)}: none in common",
                "fuse runs of the same queries",
            )


def _all_queries(runs: Sequence[RunByQuery]) -> list[str]:
    """Return the queries of runs, each once, in the order of the first run, then of the others."""
    queries: dict[str, None] = {}
    for run in runs:
        queries |= dict.fromkeys(run.queries)
    return list(queries)


def _warn_of_missing_queries(runs: Sequence[RunByQuery], queries: Sequence[str]) -> None:
    """Warn of the queries that some runs lack."""
    for run in runs:
        queries_of_run = set(run.queries)
        missing = [qid for qid in queries if qid not in queries_of_run]
        if missing:
            logger.warning(
                f"{run.path} lacks {len(missing):,} of {len(queries):,} queries, "
                f"which the other runs answer alone ({first_names(missing)})"
            )


def options_of(fusion: FusionSettings, weights: Weights) -> str:
    """Return the options that fuse by these settings with some weights."""
    values = as_json(fusion)
    values["method"] = fusion.chosen.value
    values["weights"] = ",".join(f"{weight:g}" for weight in weights)
    names = {"method", "weights", *given_fields(fusion)} - {"tune", "measure"}
    return " ".join(f"{spelled(name, FusionSettings)} {values[name]}" for name in sorted(names))
