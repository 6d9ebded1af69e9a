"""What the shapes of training data share: what they need, what they lose, how pairs join."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from operator import attrgetter
from typing import Any

from denserk.errors import DenserkError
from denserk.records import Candidate, TrainingExample

RANDOM_NEGATIVES = "negative_ctxs"
"""DPR's key of negatives that it does not train with."""

Losses = Counter[str]
"""What a written shape could not carry -> how many."""


def all_candidates(example: TrainingExample) -> Iterator[Candidate]:
    """Positives, then negatives."""
    yield from example.positives
    yield from example.negatives


def need_texts(example: TrainingExample) -> None:
    """Refuses an example that knows its query or its passages by id alone.

    Raises:
        DenserkError: there is no text to write.
    """
    if not example.query:
        raise DenserkError(
            f"query {example.qid} has no text, and this shape holds texts",
            "add --queries, the file with the texts of the queries",
        )
    known = [candidate for candidate in all_candidates(example) if candidate.docid]
    if known and not any(c.text or c.title for c in all_candidates(example)):
        raise DenserkError(
            f"the passages of query {example.qid} are known by id alone; this shape holds texts",
            "add --corpus, the file with the texts of the passages",
        )


def need_ids(example: TrainingExample) -> None:
    """Refuses an example with a passage that has no id.

    Raises:
        DenserkError: there is no id to write.
    """
    if not all(candidate.docid for candidate in all_candidates(example)):
        raise DenserkError(
            f"a passage of query {example.qid} has no id, and this shape holds ids alone",
            "write a shape with texts: tevatron, dpr, flag, st-triplet or text-triples",
        )


def count_losses(example: TrainingExample, losses: Losses, carried: Collection[str]) -> None:
    """Counts what an example holds beyond `carried` (names of the fields of the records).

    >>> losses = Losses()
    >>> example = TrainingExample("1", "q", (Candidate("d", "text", "title"),), (), ("yes",))
    >>> count_losses(example, losses, {"docid", "text"})
    >>> dict(+losses)
    {'titles': 1, 'answers': 1}
    """
    candidates = (*example.positives, *example.negatives)
    for name, plural in (("docid", "passage ids"), ("text", "texts"), ("title", "titles")):
        if name not in carried:
            losses[plural] += sum(map(bool, map(attrgetter(name), candidates)))
    if "score" not in carried:
        losses["scores"] += sum(candidate.score is not None for candidate in candidates)
    if "answers" not in carried:
        losses["answers"] += len(example.answers)
    if "candidate.extra" not in carried:
        for candidate in filter(attrgetter("extra"), candidates):
            losses.update(candidate.extra.keys())
    if "extra" not in carried:
        losses.update(example.extra.keys())


def without_contexts(example: TrainingExample, losses: Losses) -> dict[str, Any]:
    """The extra fields, less DPR's random negatives, whose texts only DPR's own shape carries."""
    losses[RANDOM_NEGATIVES] += RANDOM_NEGATIVES in example.extra
    return {key: value for key, value in example.extra.items() if key != RANDOM_NEGATIVES}


def pairs(example: TrainingExample, losses: Losses) -> Iterator[tuple[Candidate, Candidate]]:
    """Every positive with every negative; an example without both is counted as lost."""
    if not (example.positives and example.negatives):
        losses["examples without a positive or without a negative"] += 1
    for positive in example.positives:
        for negative in example.negatives:
            yield positive, negative


def _united(groups: Iterable[tuple[Candidate, ...]]) -> tuple[Candidate, ...]:
    seen = {(c.docid, c.text): c for group in groups for c in group}
    return tuple(seen.values())


def _joined(group: list[TrainingExample], number: int) -> TrainingExample:
    first = group[0]
    return TrainingExample(
        first.qid or str(number),
        first.query,
        _united(example.positives for example in group),
        _united(example.negatives for example in group),
    )


def join_neighbours(examples: Iterable[TrainingExample]) -> Iterator[TrainingExample]:
    """Joins lines of one query that follow each other; an absent id becomes the number from 0.

    >>> lines = [
    ...     TrainingExample("", "q", (Candidate("d1"),), (Candidate("d2"),)),
    ...     TrainingExample("", "q", (Candidate("d1"),), (Candidate("d3"),)),
    ... ]
    >>> [(e.qid, [c.docid for c in e.positives], [c.docid for c in e.negatives])
    ...  for e in join_neighbours(lines)]
    [('0', ['d1'], ['d2', 'd3'])]
    """
    group: list[TrainingExample] = []
    number = 0
    for example in examples:
        same = group and (example.qid, example.query) == (group[0].qid, group[0].query)
        if group and not same:
            yield _joined(group, number)
            number += 1
            group = []
        group.append(example)
    if group:
        yield _joined(group, number)
