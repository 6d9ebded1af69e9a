"""Scores of a teacher for the positives and negatives of training data.

A teacher is a cross-encoder, or an encoder, whose scores are those of its search.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from denserk.config.encoding import (
    NO_SERVER,
    ComputeSettings,
    ServerSettings,
    is_served,
    reject_overrides,
    reject_server,
)
from denserk.config.options import NOTHING
from denserk.config.retrieval import Metric
from denserk.errors import InputError
from denserk.io import training
from denserk.io.model_files import find_model
from denserk.io.training import RANDOM_NEGATIVES
from denserk.models.encoders import PlannedEncoder, load_any_encoder
from denserk.records import Candidate, Passage, Query, TrainingExample

SCORED_TOGETHER = 64  # queries whose pairs are sorted by length into batches
# of query i with passage i: (P,)
Score = Callable[[Sequence[Query], Sequence[Passage]], NDArray[np.float32]]


def check_teacher(name: str | None, text: Mapping[str, Any], server: ServerSettings) -> None:
    """Raise an error for a teacher that is not there, or for options that need one."""
    reject_server(server, name, "--teacher")
    if name is None:
        reject_overrides(NOTHING, text, why="only for --teacher")
    elif not is_served(name):
        find_model(name)


def load_teacher(
    name: str | None,
    text: Mapping[str, Any],
    compute: ComputeSettings,
    server: ServerSettings = NO_SERVER,
) -> Score | None:
    """Load a teacher, if one is named, and return its function of scores.

    `server` is for an encoder behind a URL.
    """
    if name is None:
        return None
    if not is_served(name):
        from denserk.models.cross_encoder import PairScorer, is_reranker  # need torch

        _, folder = find_model(name)
        if is_reranker(folder):
            return PairScorer(name, text, None, compute).score
    encoder = load_any_encoder(name, NOTHING, text, compute, server, "--teacher")
    return partial(scores_of_encoder, encoder)


def scores_of_encoder(
    encoder: PlannedEncoder, queries: Sequence[Query], passages: Sequence[Passage]
) -> NDArray[np.float32]:
    """Score query i with passage i as a search does: (P,) float32.

    The score is the inner product, or the negated squared distance; that of a passage with several
    vectors is its best one.
    """
    query_vectors = encoder.encode_queries(queries)[:, None, :]  # (P, 1, D)
    passage_vectors = encoder.encode_passages(passages)
    passage_vectors = passage_vectors.reshape(len(passages), -1, encoder.dimension)  # (P, S, D)
    if encoder.metric is Metric.L2:
        scores = -np.square(query_vectors - passage_vectors).sum(2)
    else:
        scores = (query_vectors * passage_vectors).sum(2)
    best: NDArray[np.float32] = scores.max(1)
    return best


def with_teacher_scores(
    examples: Iterable[TrainingExample], score: Score, source: str
) -> Iterator[TrainingExample]:
    """Yield the examples, in order, with a new score for every positive and negative.

    The random negatives of a DPR question without hard negatives are scored as its negatives.
    `source` is the file that messages name.
    """
    stream = iter(examples)
    block = list(islice(stream, SCORED_TOGETHER))
    while block:
        yield from _scored_together(block, score, source)
        block = list(islice(stream, SCORED_TOGETHER))


def _scored_together(
    block: Sequence[TrainingExample], score: Score, source: str
) -> Iterator[TrainingExample]:
    """Yield a few examples with new scores."""
    examples = [_with_random_negatives(example, source) for example in block]
    queries: list[Query] = []
    passages: list[Passage] = []
    for example in examples:
        for candidate in training.all_candidates(example):
            _reject_missing_text(example, candidate, source)
            queries.append(Query(example.qid, example.query))
            passages.append(
                Passage(candidate.docid, candidate.text, candidate.title, candidate.extra)
            )
    scores: list[float] = score(queries, passages).tolist()
    for query, passage, value in zip(queries, passages, scores, strict=True):
        if not isfinite(value):
            found = f"the score {value} for passage {passage.docid} of query {query.qid}"
            hint = "the teacher is broken, or its --dtype too narrow"
            raise InputError(source, None, found, "a finite number", hint)
    remaining_scores = iter(scores)
    for example in examples:
        positives = _with_scores(example.positives, remaining_scores)
        negatives = _with_scores(example.negatives, remaining_scores)
        yield example._replace(positives=positives, negatives=negatives)


def _with_random_negatives(example: TrainingExample, source: str) -> TrainingExample:
    """Return an example whose random negatives are its negatives, if it has no others."""
    if example.negatives or RANDOM_NEGATIVES not in example.extra:
        return example
    negatives = training.random_negatives(example, source)
    return without_random_negatives(example)._replace(negatives=negatives)


def _with_scores(candidates: Sequence[Candidate], scores: Iterator[float]) -> tuple[Candidate, ...]:
    """Return candidates with the next scores."""
    return tuple(candidate._replace(score=next(scores)) for candidate in candidates)


def _reject_missing_text(example: TrainingExample, candidate: Candidate, source: str) -> None:
    """Raise an InputError for a query or passage without the text that the teacher reads."""
    expected = "texts, which the teacher reads"
    if not example.query:
        found = f"query {example.qid} without its text"
        hint = "add --queries, the file with the texts"
        raise InputError(source, None, found, expected, hint)
    if not candidate.text and not candidate.title:
        found = f"passage {candidate.docid} of query {example.qid} without its text"
        hint = "add --corpus, the file with the texts"
        raise InputError(source, None, found, expected, hint)


def without_random_negatives(example: TrainingExample) -> TrainingExample:
    """Return an example without the random negatives of DPR, which wait in `extra`."""
    extra = {key: value for key, value in example.extra.items() if key != RANDOM_NEGATIVES}
    return example._replace(extra=extra)
