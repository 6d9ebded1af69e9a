"""A teacher's scores of each query with each of its positives and negatives."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from denserk.errors import InputError
from denserk.io.training import RANDOM_NEGATIVES, all_candidates, random_negatives
from denserk.records import Candidate, Passage, Query, TrainingExample

# of query i with passage i: (P,)
Score = Callable[[Sequence[Query], Sequence[Passage]], NDArray[np.float32]]
SCORED_TOGETHER = 4096  # pairs that are sorted by length into batches


def scored(
    examples: Iterable[TrainingExample], score: Score, source: str
) -> Iterator[TrainingExample]:
    """Yield the examples, in order, with a score for every positive and negative.

    Existing scores are replaced. The random negatives of a DPR question without hard negatives are
    scored as its negatives. Memory holds the examples that are scored together.

    Args:
        examples: training data with texts.
        score: gives the scores, as a cross-encoder does.
        source: names the training data in errors.

    Raises:
        InputError: a query or a passage has no text, or a score is not finite.
    """
    held: list[TrainingExample] = []
    pairs = 0
    for example in examples:
        if not example.negatives and RANDOM_NEGATIVES in example.extra:
            extra = {key: value for key, value in example.extra.items() if key != RANDOM_NEGATIVES}
            example = example._replace(negatives=random_negatives(example, source), extra=extra)
        _check_texts(example, source)
        held.append(example)
        pairs += len(example.positives) + len(example.negatives)
        if pairs >= SCORED_TOGETHER:
            yield from _scored(held, score, source)
            held, pairs = [], 0
    yield from _scored(held, score, source)


def _check_texts(example: TrainingExample, source: str) -> None:
    lacking = None if example.query else (f"query {example.qid}", "--queries")
    for candidate in all_candidates(example):
        if not (lacking or candidate.text or candidate.title):
            lacking = f"passage {candidate.docid} of query {example.qid}", "--corpus"
    if lacking:
        raise InputError(
            source,
            None,
            f"{lacking[0]} without its text",
            "texts, which the teacher reads",
            f"add {lacking[1]}, the file with the texts",
        )


def _scored(
    examples: Sequence[TrainingExample], score: Score, source: str
) -> Iterator[TrainingExample]:
    if not examples:
        return
    pairs = [
        (Query(example.qid, example.query), Passage(c.docid, c.text, c.title, c.extra))
        for example in examples
        for c in all_candidates(example)
    ]
    scores = score([query for query, _ in pairs], [passage for _, passage in pairs])
    for place in np.flatnonzero(~np.isfinite(scores))[:1]:
        query, passage = pairs[place]
        raise InputError(
            source,
            None,
            f"the score {scores[place]} for passage {passage.docid} of query {query.qid}",
            "a finite number",
            "the teacher is broken, or its --dtype too narrow",
        )
    values = iter(scores.tolist())

    def with_scores(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
        return tuple(candidate._replace(score=next(values)) for candidate in candidates)

    for example in examples:
        positives = with_scores(example.positives)
        yield example._replace(positives=positives, negatives=with_scores(example.negatives))
