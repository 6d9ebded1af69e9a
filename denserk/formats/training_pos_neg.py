"""FlagEmbedding's training data: JSON lines of a query, texts for and against it, and their scores.

    {"query", "pos": [text], "neg": [text], "pos_scores": [number], "neg_scores": [number],
     "prompt", ...}

Passages have no ids here; a query's id is its line number from 0.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from denserk.formats.files import number_lines
from denserk.formats.json_records import Fields, parse_objects, write_objects
from denserk.formats.training_records import Losses, count_losses, need_texts, without_contexts
from denserk.records import Candidate, TrainingExample

KEYS = ("query", "answers", "pos", "neg", "pos_scores", "neg_scores")


def read(handle: BinaryIO, path: str | Path) -> Iterator[TrainingExample]:
    """Reads examples; `path` names the input in errors.

    Raises:
        InputError: a line is not such an example, or has not one score for each text.
    """
    for line, record in parse_objects(number_lines(handle, path), path):
        fields = Fields(record, path, line)
        yield TrainingExample(
            str(line - 1),
            fields.text("query"),
            _candidates(fields, "pos"),
            _candidates(fields, "neg"),
            fields.texts("answers"),
            fields.rest(KEYS),
        )


def _candidates(fields: Fields, key: str) -> tuple[Candidate, ...]:
    texts = fields.texts(key)
    name = f"{key}_scores"
    scores = fields.items(name) or [None] * len(texts)
    if len(scores) != len(texts):
        raise fields.error(
            f"{len(scores)} {name} for {len(texts)} {key}", "one score for each text"
        )
    return tuple(
        Candidate(text=text, score=fields.as_number(score, name))
        for text, score in zip(texts, scores, strict=True)
    )


def _side(candidates: Sequence[Candidate], key: str, scored: bool) -> dict[str, Any]:
    texts = {key: [c.text for c in candidates]}
    return texts | ({f"{key}_scores": [c.score for c in candidates]} if scored else {})


def write(path: str | Path, examples: Iterable[TrainingExample], losses: Losses) -> int:
    """Writes examples; scores where every passage of an example has one. Returns how many.

    Raises:
        DenserkError: an example knows its passages by id alone.
    """

    def record(example: TrainingExample) -> dict[str, Any]:
        need_texts(example)
        both = (*example.positives, *example.negatives)
        scored = bool(both) and all(c.score is not None for c in both)
        carried = {"text", "answers", "extra"} | ({"score"} if scored else set())
        count_losses(example, losses, carried)
        answers = {"answers": list(example.answers)} if example.answers else {}
        pos = _side(example.positives, "pos", scored)
        neg = _side(example.negatives, "neg", scored)
        return {
            "query": example.query,
            **answers,
            **pos,
            **neg,
            **without_contexts(example, losses),
        }

    return write_objects(path, map(record, examples))
