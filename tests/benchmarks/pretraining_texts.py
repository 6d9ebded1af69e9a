"""The text of the study of pre-training: documents cut into passages that every objective reads.

Two files hold the same passages: `passages.jsonl` one a line, numbered within their documents, and
`documents.jsonl` the documents of two passages or more, cut into them.
"""

import random
from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from pathlib import Path

import orjson

from denserk.config.formats import CorpusFormat
from denserk.data.pretraining_data import split_sentences
from denserk.io.corpus import read_passages, write_passages
from denserk.records import Passage

TEXTS = ("text/openstax.jsonl.gz",)
COLLECTIONS = ("squad", "nq-qed")
WORDS, LEAST = 36, 30
"""A passage has about so many words; a paragraph of less than LEAST is left out."""


def cut(text: str) -> list[str]:
    """A document's sentences in parts of about WORDS words each, at least two of them.

    >>> cut("One two three. Four five. Six.")
    ['One two three.', 'Four five. Six.']
    """
    sentences = [sentence for part in text.split("\n") for sentence in split_sentences(part)]
    counts = [len(sentence.split()) for sentence in sentences]
    parts = max(2, round(sum(counts) / WORDS))
    places, before = [], 0
    for count in counts:
        places.append((before + count / 2) * parts // max(1, sum(counts)))
        before += count
    grouped = groupby(zip(places, sentences, strict=True), key=lambda placed: placed[0])
    return [" ".join(sentence for _, sentence in group) for _, group in grouped]


def documents(corpora: Sequence[str]) -> Iterator[list[Passage]]:
    """The documents of corpora, cut."""
    for number, corpus in enumerate(corpora):
        for found in read_passages(corpus):
            if len(found.text.split()) >= LEAST:
                yield [
                    Passage(f"{number}-{found.docid}#{place}", text, found.title)
                    for place, text in enumerate(cut(found.text))
                ]


def write_texts(data: Path, work: Path, size: int) -> None:
    """Documents of the collections, drawn, of so many passages in all."""
    drawn = list(documents([str(data / name / "corpus.jsonl.gz") for name in COLLECTIONS]))
    random.Random(0).shuffle(drawn)
    chosen, room = [], size
    for document in drawn:
        if len(document) <= room:
            chosen.append(document)
            room -= len(document)
    write_passages(work / "passages.jsonl", chain.from_iterable(chosen), CorpusFormat.BEIR)
    with (work / "documents.jsonl").open("wb") as out:
        for document in chosen:
            if len(document) > 1:
                spans = [passage.text for passage in document]
                out.write(orjson.dumps({"spans": spans}) + b"\n")


def sources(data: Path) -> tuple[str, ...]:
    """All text that there is."""
    own = [str(data / name / "corpus.jsonl.gz") for name in COLLECTIONS]
    return (*own, *(str(data / name) for name in TEXTS))
