"""The hits of a run that its measures can see; the others never become Python objects.

A measure of ranks depends on the judged hits and on how many hits stand above each; one with a
cutoff on the first hits alone. So a query's hits that score below its lowest judged hit, or below
the last one within the greatest cutoff, change no value. All hits that tie with the last one stay:
their order is the provider's affair. What counts hits (NumRet, SetP) sees them all.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from ir_measures.providers import Provider
from ir_measures.providers.base import NOT_PROVIDED
from numpy.typing import NDArray

from denserk.evaluation.evaluator import Judgements, Ties
from denserk.evaluation.judgement_counts import JudgementCounts
from denserk.evaluation.measures import Measure, providers_of
from denserk.formats.files import look_ahead, open_binary
from denserk.formats.names import Names
from denserk.formats.run_blocks import HEAD, CleanLines, form_of, read_queries

Keys = NDArray[np.uint64]
NO_KEYS = np.empty(0, np.uint64)
Rows = NDArray[np.intp]
Scores = NDArray[np.float32]
"""Compared as trec_eval compares them; what is equal as float64 is equal as float32."""

RANKED = {
    "pytrec_eval": {"P", "RR", "Rprec", "AP", "nDCG", "R", "Bpref", "Success", "IPrec"},
    "msmarco": {"RR"},
}
"""ir-measures' provider -> its measures of ranks alone."""


class Reach(NamedTuple):
    """Which hits of a query the measures can see.

    Attributes:
        depth: only the first ones; None sees all.
        to_last_judged: none below the lowest judged one.
    """

    depth: int | None
    to_last_judged: bool


EVERYTHING = Reach(None, to_last_judged=False)


def reach_of(shares: Mapping[Provider, Sequence[Measure]]) -> Reach | None:
    """How far the measures of several providers see; None where one sees every hit."""
    reaches = [
        _reach_of_one(provider.NAME, measure)
        for provider, measures in shares.items()
        for measure in measures
        if provider.NAME != JudgementCounts.NAME
    ]
    depths = [reach.depth for reach in reaches]
    known = [depth for depth in depths if depth is not None]
    reach = Reach(
        max(known, default=0) if len(known) == len(depths) else None,
        all(reach.to_last_judged for reach in reaches),
    )
    return None if reach == EVERYTHING else reach


def _reach_of_one(provider: str, measure: Measure) -> Reach:
    given = {name: measure[name] for name in measure.SUPPORTED_PARAMS}
    depth = given.get("cutoff")
    if depth is NOT_PROVIDED or given.get("judged_only") is True:
        depth = None
    if provider == "judged":
        return Reach(depth, to_last_judged=False)
    level = given.get("rel", 1)
    if measure.NAME not in RANKED.get(provider, ()) or (level is not NOT_PROVIDED and level < 1):
        return EVERYTHING
    return Reach(depth, to_last_judged=True)


class Sight:
    """What some measures see of runs, given the judgements."""

    def __init__(self, reach: Reach, judged: Mapping[str, Keys]) -> None:
        self._reach, self._judged = reach, judged

    @classmethod
    def of(cls, measures: Sequence[Measure], judgements: Judgements) -> "Sight | None":
        """None where a measure sees every hit."""
        reach = reach_of(providers_of(measures))
        names = Names.of([docid for grades in judgements.values() for docid in grades])
        if reach is None or names is None or not len(names.starts):
            return None
        ends = np.cumsum([0, *map(len, judgements.values())]).tolist()
        keys = names.keys()
        stretches = zip(judgements, pairwise(ends), strict=True)
        return cls(reach, {qid: keys[start:end] for qid, (start, end) in stretches})

    def see(self, path: str) -> "HitsSeen | None":
        """The hits of a run that are seen; None where it is not a plain file of clean lines.

        Such a run, with its mistakes, is for `formats.trec_run.read_run_scores`.

        Args:
            path: the file.

        Raises:
            UsageError: there is no such file.
            InputError: it is of no shape, or compressed and breaks off.
        """
        if not Path(path).is_file():  # what can be read only once
            return None
        seen = HitsSeen(self._reach, self._judged)
        with open_binary(path) as raw:
            head, handle = look_ahead(raw, path, HEAD)
            form = form_of(head, path)
            if form is None or not seen.take(read_queries(handle, path, form)):
                return None
        form_of(head, path)
        return seen


class _Seen(NamedTuple):
    """What is seen of a query: some rows of the block, or the first hits with some rows' names."""

    qid: str
    rows: Rows
    begin: int | None
    length: int


class HitsSeen:
    """Takes in a run block by block.

    Where no score of a query equals the one before it, its hits stand in the order of the file, and
    only those whose passages may be judged keep their names: the others are places.

    Args:
        reach: how far the measures see.
        judged: the keys of every query's judged passages.

    Attributes:
        run: query id -> passage id -> score, for the hits that can be seen; at least one a query.
    """

    def __init__(self, reach: Reach, judged: Mapping[str, Keys]) -> None:
        self._reach, self._judged = reach, judged
        self.run: dict[str, dict[str, float]] = {}
        self._tied: dict[str, int] = {}

    @property
    def ties(self) -> Ties:
        """How many lines of the whole run tie."""
        return Ties(sum(self._tied.values()), tuple(self._tied))

    def take(self, blocks: Iterable[CleanLines | None]) -> bool:
        """Takes in all blocks; whether every line was clean and no passage came twice."""
        return all(lines is not None and self._take(lines) for lines in blocks)

    def _take(self, lines: CleanLines) -> bool:
        with np.errstate(over="ignore"):
            scores = lines.scores.astype(np.float32)
        keys = lines.docids.keys()
        seen: list[_Seen] = []
        stretches = zip(lines.qids, pairwise(lines.begins), _falling(lines, scores), strict=True)
        for qid, (begin, end), falling in stretches:
            order = np.argsort(keys[begin:end])
            if not _distinct(keys[begin:end][order], lines.docids.at(slice(begin, end))):
                return False
            judged = _rows_of(self._judged.get(qid, NO_KEYS), keys[begin:end], order)
            if falling:
                count = self._count(judged, end - begin)
                seen.append(_Seen(qid, begin + judged[judged < count], begin, count))
            else:
                rows = self._above(scores[begin:end], judged)
                seen.append(_Seen(qid, begin + rows, None, len(rows)))
                if tied := end - begin - len(np.unique(scores[begin:end])):
                    self._tied[qid] = tied
        self._name(seen, lines)
        return True

    def _name(self, seen: Sequence[_Seen], lines: CleanLines) -> None:
        """Makes the hits of each query."""
        names = iter(lines.docids.at(np.concatenate([some.rows for some in seen])).strings())
        for qid, rows, begin, length in seen:
            mine = list(islice(names, len(rows)))
            if begin is None:
                self.run[qid] = dict(zip(mine, lines.scores[rows].tolist(), strict=True))
                continue
            fillers, scores = _places(1 << max(length - 1, 1023).bit_length())
            filled = fillers[:length]
            for place, name in zip((rows - begin).tolist(), mine, strict=True):
                filled[place] = name
            self.run[qid] = dict(zip(filled, scores, strict=False))

    def _count(self, judged: Rows, hits: int) -> int:
        """How many of the first hits are seen."""
        last = int(judged.max(initial=0)) + 1 if self._reach.to_last_judged else hits
        return min(last, self._reach.depth or hits)

    def _above(self, scores: Scores, judged: Rows) -> Rows:
        """The rows of the hits that are seen, whatever their order."""
        depth = min(self._reach.depth or len(scores), len(scores))
        lowest = np.partition(scores, -depth)[-depth]
        if self._reach.to_last_judged:
            lowest = max(lowest, scores[judged].min() if len(judged) else scores.max())
        return np.flatnonzero(scores >= lowest)


def _falling(lines: CleanLines, scores: Scores) -> list[bool]:
    """For each query whether each score is below the one before it."""
    falls = np.append(scores[1:] < scores[:-1], True)
    falls[np.array(lines.begins[1:]) - 1] = True
    found: list[bool] = np.logical_and.reduceat(falls, lines.begins[:-1]).tolist()
    return found


def _distinct(ordered: Keys, names: Names) -> bool:
    """Whether the passages of a query differ; where two have the same key, names are looked at."""
    if (ordered[1:] != ordered[:-1]).all():
        return True
    return len(set(names.strings())) == len(ordered)


def _rows_of(wanted: Keys, keys: Keys, order: Rows) -> Rows:
    """The rows whose keys are wanted; `order` sorts the keys."""
    first = np.searchsorted(keys, wanted, "left", sorter=order)
    past = np.searchsorted(keys, wanted, "right", sorter=order)
    if (past - first > 1).any():
        return np.flatnonzero(np.isin(keys, wanted))
    return order[first[past > first]]


@lru_cache(maxsize=1)
def _places(count: int) -> tuple[list[str], list[float]]:
    """Names that no passage has, and falling scores."""
    return [f"\n{place}" for place in range(count)], [-float(place) for place in range(count)]
