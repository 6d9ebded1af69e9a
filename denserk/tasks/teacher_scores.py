"""A teacher's scores for training data: of every query with each of its positives and negatives."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from denserk.errors import InputError
from denserk.formats.training_json import random_negatives
from denserk.formats.training_records import RANDOM_NEGATIVES, all_candidates
from denserk.modeling.cross_encoder import PairScorer
from denserk.records import Candidate, Passage, Query, TrainingExample
from denserk.settings.encoding import ComputeSettings

SCORED_TOGETHER = 4096
"""Pairs, of one query or several, that are sorted by length into batches."""


class Teacher(Protocol):
    """What gives scores: a cross-encoder, say."""

    def score(self, queries: Sequence[Query], passages: Sequence[Passage]) -> NDArray[np.float32]:
        """The scores of query i with passage i: (P,)."""


def load_teacher(model: str, text: Mapping[str, Any], compute: ComputeSettings) -> Teacher:
    """A cross-encoder as a teacher.

    Args:
        model: a folder, or a name on the hub.
        text: fields of `TextSettings` that replace what the folder says about itself.
        compute: where and how.

    Raises:
        UsageError: the model, the device or a setting is not there to choose.
        ModelError: it is no cross-encoder.
    """
    return PairScorer.load(model, text, None, compute)


def scored(
    examples: Iterable[TrainingExample], teacher: Teacher, source: str
) -> Iterator[TrainingExample]:
    """Yields the examples with a score for every positive and negative, in their order.

    A score that was there is replaced. A DPR question without hard negatives has its random ones
    scored, as its negatives. Held in memory are the examples scored together.

    Args:
        examples: training data with texts.
        teacher: gives the scores.
        source: names the training data in errors.

    Raises:
        InputError: a query or a passage has no text, or a score is not finite.
    """
    held: list[TrainingExample] = []
    pairs = 0
    for example in (_with_negatives(example, source) for example in examples):
        _refuse_textless(example, source)
        held.append(example)
        pairs += len(example.positives) + len(example.negatives)
        if pairs >= SCORED_TOGETHER:
            yield from _scored(held, teacher, source)
            held, pairs = [], 0
    if held:
        yield from _scored(held, teacher, source)


def _refuse_textless(example: TrainingExample, source: str) -> None:
    def refuse(what: str, flag: str) -> None:
        raise InputError(
            source,
            None,
            f"{what} without its text",
            "texts, which the teacher reads",
            f"add {flag}, the file with the texts",
        )

    if not example.query:
        refuse(f"query {example.qid}", "--queries")
    for candidate in all_candidates(example):
        if not (candidate.text or candidate.title):
            refuse(f"passage {candidate.docid} of query {example.qid}", "--corpus")


def _with_negatives(example: TrainingExample, source: str) -> TrainingExample:
    """An example without negatives takes DPR's random ones, as training does."""
    if example.negatives or RANDOM_NEGATIVES not in example.extra:
        return example
    extra = {key: value for key, value in example.extra.items() if key != RANDOM_NEGATIVES}
    return example._replace(negatives=random_negatives(example, source), extra=extra)


def _scored(
    examples: Sequence[TrainingExample], teacher: Teacher, source: str
) -> Iterator[TrainingExample]:
    queries, passages = [], []
    for example in examples:
        for candidate in all_candidates(example):
            queries.append(Query(example.qid, example.query))
            passages.append(
                Passage(candidate.docid, candidate.text, candidate.title, candidate.extra)
            )
    scores = teacher.score(queries, passages)
    for place in np.flatnonzero(~np.isfinite(scores))[:1]:
        raise InputError(
            source,
            None,
            f"the score {scores[place]} for passage {passages[place].docid} of query "
            f"{queries[place].qid}",
            "a finite number",
            "the teacher is broken, or its --dtype too narrow",
        )
    values = iter(scores.tolist())

    def with_scores(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
        return tuple(candidate._replace(score=next(values)) for candidate in candidates)

    for example in examples:
        positives = with_scores(example.positives)
        yield example._replace(positives=positives, negatives=with_scores(example.negatives))
