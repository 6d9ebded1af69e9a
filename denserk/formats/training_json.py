"""Training data as JSON objects: lines, or DPR's array.

    tevatron       {"query_id", "query", "positive_passages": [{"docid", "title", "text", "score"}],
                    "negative_passages": [...], "answers"}
    tevatron-ids   {"query_id", "query_text", "positive_document_ids", "negative_document_ids"}
    dpr            {"question", "answers", "positive_ctxs": [{"title", "text", "score",
                    "passage_id"}], "hard_negative_ctxs": [...], "negative_ctxs": [...]}
    flag           {"query", "pos": [text], "neg": [text], "pos_scores", "neg_scores"}
    st-ids         {"qid", "pos": [id], "neg": {system: [id]}}, the MS MARCO hard negatives of
                    sentence-transformers

An absent query id is the number of the record, from 0. DPR trains with its hard negatives; its
random ones stay among the extra fields, to be written again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from denserk.formats.files import BOM, look_ahead, number_lines, whole_binary
from denserk.formats.json_records import Fields, dump_json, parse_objects, read_array, write_objects
from denserk.formats.training_records import (
    RANDOM_NEGATIVES,
    Losses,
    all_candidates,
    count_losses,
    need_ids,
    need_texts,
    without_contexts,
)
from denserk.records import Candidate, TrainingExample

Candidates = tuple[Candidate, ...]


def _passages(fields: Fields, key: str) -> Candidates:
    return tuple(map(_passage, fields.objects(key)))


def _passage(fields: Fields) -> Candidate:
    ids = ("docid", "passage_id", "psg_id")
    key = next((name for name in ids if name in fields), ids[0])
    known = (*ids, "text", "title", "score")
    texts = fields.text("text"), fields.text("title")
    return Candidate(fields.identifier(key), *texts, fields.number("score"), fields.rest(known))


def _ids(fields: Fields, key: str) -> Candidates:
    return tuple(map(Candidate, fields.identifiers(key)))


def _texts(fields: Fields, key: str) -> Candidates:
    texts, name = fields.texts(key), f"{key}_scores"
    scores = fields.items(name) or [None] * len(texts)
    if len(scores) != len(texts):
        raise fields.error(
            f"{len(scores)} {name} for {len(texts)} {key}", "one score for each text"
        )
    return tuple(
        Candidate(text=text, score=fields.as_number(score, name))
        for text, score in zip(texts, scores, strict=True)
    )


def _by_system(fields: Fields, key: str) -> Candidates:
    """Ids in a list, or in lists by the system that retrieved them; each id once."""
    value = fields.record.get(key)
    if not isinstance(value, dict):
        return _ids(fields, key)
    systems = Fields(value, fields.path, fields.line)
    ids = dict.fromkeys(docid for name in value for docid in systems.identifiers(name))
    return tuple(map(Candidate, ids))


class JsonFormat(NamedTuple):
    """The keys of a format, and how its passages are read and an example is written."""

    qid: str
    query: str
    positives: str
    negatives: str
    candidates: Callable[[Fields, str], Candidates]
    record: Callable[[TrainingExample, int, Losses], dict[str, Any]]

    def example(self, fields: Fields, number: int) -> TrainingExample:
        """Return the example of an object, the record of a number from 0."""
        known = [self.qid, self.query, self.positives, self.negatives, "answers"]
        if self.candidates is _texts:
            known += [f"{self.positives}_scores", f"{self.negatives}_scores"]
        if self.candidates is _passages and not fields.record.get(RANDOM_NEGATIVES):
            known.append(RANDOM_NEGATIVES)
        return TrainingExample(
            fields.identifier(self.qid, str(number)) if self.qid else str(number),
            fields.text(self.query),
            self.candidates(fields, self.positives),
            self.candidates(fields, self.negatives),
            fields.texts("answers"),
            fields.rest(known),
        )

    def read(self, handle: BinaryIO, path: str | Path) -> Iterator[TrainingExample]:
        """Read examples from JSON lines or an array; `path` names the input in errors."""
        head, handle = look_ahead(handle, path)
        if is_array(head):
            for number, (line, record) in enumerate(read_array(handle, path)):
                yield self.example(Fields(record, path, line), number)
            return
        for line, record in parse_objects(number_lines(handle, path), path):
            yield self.example(Fields(record, path, line), line - 1)

    def write(self, path: str | Path, examples: Iterable[TrainingExample], losses: Losses) -> int:
        """Write examples; return their number."""
        numbered = enumerate(examples)
        records = (self.record(example, number, losses) for number, example in numbered)
        if self.record is not _dpr or ".jsonl" in Path(path).suffixes:
            return write_objects(path, records)
        count = 0
        with whole_binary(path) as handle:
            handle.write(b"[\n")
            for count, entry in enumerate(map(dump_json, records), start=1):
                handle.write((b",\n" if count > 1 else b"") + entry.rstrip(b"\n"))
            handle.write(b"\n]\n")
        return count


def is_array(head: bytes) -> bool:
    """Return whether the first bytes of a file begin a JSON array.

    >>> is_array(b' [{"question": "..."'), is_array(b'{"question": "..."')
    (True, False)
    """
    return head.removeprefix(BOM).lstrip()[:1] == b"["


def random_negatives(example: TrainingExample, path: str | Path) -> Candidates:
    """Return the random negatives of a DPR example; `path` names the input in errors."""
    return _passages(Fields(example.extra, path, None), RANDOM_NEGATIVES)


def _answers(example: TrainingExample) -> dict[str, Any]:
    return {"answers": list(example.answers)} if example.answers else {}


def _score(candidate: Candidate) -> dict[str, Any]:
    return {} if candidate.score is None else {"score": candidate.score}


def _tevatron(example: TrainingExample, number: int, losses: Losses) -> dict[str, Any]:
    def passages(candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
        return [
            {"docid": c.docid, "title": c.title, "text": c.text, **_score(c), **c.extra}
            for c in candidates
        ]

    need_texts(example)
    return {
        "query_id": example.qid,
        "query": example.query,
        **_answers(example),
        "positive_passages": passages(example.positives),
        "negative_passages": passages(example.negatives),
        **example.extra,
    }


def _tevatron_ids(example: TrainingExample, number: int, losses: Losses) -> dict[str, Any]:
    need_ids(example)
    count_losses(example, losses, {"docid", "answers", "extra"})
    return {
        "query_id": example.qid,
        "query_text": example.query,
        **_answers(example),
        "positive_document_ids": [c.docid for c in example.positives],
        "negative_document_ids": [c.docid for c in example.negatives],
        **without_contexts(example, losses),
    }


def _dpr(example: TrainingExample, number: int, losses: Losses) -> dict[str, Any]:
    def contexts(candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
        return [
            {"title": c.title, "text": c.text, **_score(c), **c.extra, "passage_id": c.docid}
            for c in candidates
        ]

    need_texts(example)
    return {
        **({} if example.qid == str(number) else {"query_id": example.qid}),
        "question": example.query,
        "answers": list(example.answers),
        "positive_ctxs": contexts(example.positives),
        RANDOM_NEGATIVES: [],
        "hard_negative_ctxs": contexts(example.negatives),
        **example.extra,
    }


def _flag(example: TrainingExample, number: int, losses: Losses) -> dict[str, Any]:
    """Scores are written where every passage of an example has one."""
    need_texts(example)
    both = list(all_candidates(example))
    scored = bool(both) and all(c.score is not None for c in both)
    count_losses(example, losses, {"text", "answers", "extra"} | ({"score"} if scored else set()))
    record: dict[str, Any] = {"query": example.query, **_answers(example)}
    for key, candidates in (("pos", example.positives), ("neg", example.negatives)):
        record[key] = [c.text for c in candidates]
        if scored:
            record[f"{key}_scores"] = [c.score for c in candidates]
    return record | dict(without_contexts(example, losses))


def _st_ids(example: TrainingExample, number: int, losses: Losses) -> dict[str, Any]:
    need_ids(example)
    count_losses(example, losses, {"docid"})
    losses["query texts"] += bool(example.query)
    pos, neg = ([c.docid for c in side] for side in (example.positives, example.negatives))
    return {"qid": example.qid, "pos": pos, "neg": {"denserk": neg}}


JSON_FORMATS: Mapping[str, JsonFormat] = {
    "tevatron": JsonFormat(
        "query_id", "query", "positive_passages", "negative_passages", _passages, _tevatron
    ),
    "tevatron-ids": JsonFormat(
        *("query_id", "query_text", "positive_document_ids", "negative_document_ids"),
        *(_ids, _tevatron_ids),
    ),
    "dpr": JsonFormat(
        "query_id", "question", "positive_ctxs", "hard_negative_ctxs", _passages, _dpr
    ),
    "flag": JsonFormat("", "query", "pos", "neg", _texts, _flag),
    "st-ids": JsonFormat("qid", "query", "pos", "neg", _by_system, _st_ids),
}
