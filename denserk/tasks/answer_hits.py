"""The best hits of runs over questions, on the disk until their question's turn comes."""

from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import orjson

from denserk.data.passage_texts import PassageTexts
from denserk.data.scratch_records import ScratchRecords
from denserk.errors import InputError, MismatchError
from denserk.evaluation.evaluator import first_hits, some
from denserk.formats.detection import told
from denserk.formats.runs import read_run
from denserk.records import best_first
from denserk.reporting import track
from denserk.settings.evaluation import EvaluationSettings, RunOrder


def best_hits(docids: list[str], scores: list[float], depth: int) -> dict[str, float]:
    """The hits that can be among the first `depth`, best first; ties by id descending.

    Scores are compared as float32, so that whichever way a reader orders ties, what it puts among
    the first is there.

    >>> best_hits(["a", "b", "c", "d"], [1.0, 3.0, 2.0, 2.0], 2)
    {'b': 3.0, 'd': 2.0, 'c': 2.0}
    """
    rounded = array("f", scores)
    least = sorted(rounded, reverse=True)[:depth][-1]
    kept = zip(docids, scores, rounded, strict=True)
    return dict(best_first((docid, score) for docid, score, at in kept if at >= least))


class AnswerHits:
    """The best hits of each question in one run.

    In memory are 8 bytes a question.

    Args:
        path: the file for them.
        number_of: question -> its number.
        depth: how many hits of a question count.
    """

    def __init__(self, path: Path, number_of: Mapping[str, int], depth: int) -> None:
        self._records = ScratchRecords(path)
        self._number_of, self._depth = number_of, depth
        self._rows = np.full(len(number_of), -1, dtype=np.int64)
        self.unanswered: list[str] = []

    def read(
        self,
        run: str,
        name: str,
        texts: PassageTexts,
        settings: EvaluationSettings = EvaluationSettings(),  # noqa: B008  (frozen)
    ) -> None:
        """Takes the hits of a run.

        Args:
            run: the file.
            name: what tables call it.
            texts: told of the passages that are kept.
            settings: which column orders the hits, and how many of a query count.

        Raises:
            InputError: a line is broken, or the lines of a query do not stand together.
            MismatchError: none of its queries is among the questions.
        """
        with track(f"reading {told(run)}", None, "queries") as progress:
            for group in read_run(run, by_rank=settings.order is RunOrder.RANK):
                progress.advance()
                number = self._number_of.get(group.qid)
                if number is None:
                    self.unanswered.append(group.qid)
                    continue
                hits = dict(zip(group.docids, group.scores, strict=True))
                if settings.max_hits is not None:
                    hits = first_hits(hits, settings.max_hits)
                kept = best_hits(list(hits), list(hits.values()), self._depth)
                texts.refer(list(kept))
                self._rows[number] = self._records.append(orjson.dumps(kept))
        if (self._rows < 0).all():
            raise MismatchError(self._nothing_in_common(name))

    def _nothing_in_common(self, name: str) -> str:
        if not self.unanswered:
            return f"{name} holds no hit at all; the answers are for {some(self._number_of)}"
        return (
            f"{name} answers queries {some(self.unanswered)}; the answers are for "
            f"{some(self._number_of)}: none in common"
        )

    def __getitem__(self, number: int) -> dict[str, float]:
        """The hits of a question by its number, best first; none where the run lacks it."""
        row = int(self._rows[number])
        return {} if row < 0 else dict(orjson.loads(self._records[row]))

    def docids(self) -> Iterator[str]:
        """All passages that were kept, as often as they were."""
        for number in range(len(self._rows)):
            yield from self[number]

    def close(self) -> None:
        """Lets the file go."""
        self._records.close()


def refuse_lacking(corpus: str, texts: PassageTexts, docids: Iterator[str]) -> None:
    """Refuses passages that the corpus lacks, the first few by name.

    Args:
        corpus: names it.
        texts: what was found.
        docids: all ids that are needed.

    Raises:
        InputError: there are some.
    """
    if not texts.missing:
        return
    lacking = dict.fromkeys(docid for docid in docids if texts.get([docid]) == [None])
    raise InputError(
        corpus,
        None,
        f"no passages with {texts.missing:,} of the ids that the runs name ({some(lacking)})",
        "the corpus that was searched",
        "add --skip-missing to count such passages as holding no answer",
    )
