"""`denserk analyze sentence-similarity`: pairs of sentences against their labels, and triplets.

As in Condenser's Tables 1 and 2. For pairs with labels (STS-B): Spearman's correlation of the
cosine with the label. For triplets (Wikipedia sections): how often the positive is nearer to the
anchor than the negative, by Euclidean distance.
"""

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from denserk.config import analysis, encoding
from denserk.errors import DenserkError, InputError
from denserk.evaluation.sentences import score_examples, summarize_examples
from denserk.io.training import read_sentences
from denserk.io.written_files import write_rows
from denserk.models.text_encoder import TextEncoder, load_models
from denserk.reporting import track
from denserk.tasks.analyze.results import Row, as_table

BLOCK = 1024  # examples encoded at once
KINDS = {2: "pairs", 3: "triplets"}  # by the number of sentences


class ScoredExamples(NamedTuple):
    """Scores of B examples by one model, and their labels."""

    sentence_count: int  # of an example: 2 or 3
    scores: NDArray[np.float64]  # (B,)
    labels: Sequence[float]


def sentence_similarity(
    settings: analysis.SentenceSimilaritySettings,
    options: encoding.ModelOptions = encoding.DEFAULTS,
) -> list[Row]:
    """Measure models on pairs or triplets of sentences; write the table if asked to.

    The text settings of passages apply to sentences.
    """
    data = settings.data
    rows: list[Row] = []
    for label, model, encoder in load_models(settings.labelled, options):
        examples = _score(encoder, data)
        if np.isnan(examples.scores).any():
            message = f"{model}: an embedding is not a number (NaN)"
            raise DenserkError(message, "use --dtype float32")
        labels = None
        if examples.sentence_count == 2:
            if len(set(examples.labels)) < 2:
                message = f"only the label {examples.labels[0]:g}"
                raise InputError(data, None, message, "labels that differ, to correlate with")
            labels = np.array(examples.labels)
        measure, value = summarize_examples(examples.scores, labels)
        rows.append(
            {
                "label": label,
                "model": model,
                "data": data,
                "kind": KINDS[examples.sentence_count],
                "count": len(examples.scores),
                "measure": measure,
                "value": value,
            }
        )
    if settings.output is not None:
        write_rows(settings.output, as_table(rows))
    return rows


def _score(encoder: TextEncoder, data: str) -> ScoredExamples:
    """Score the examples of a file by the embeddings of their sentences."""
    examples = read_sentences(data)
    scores: list[NDArray[np.float64]] = []
    labels: list[float] = []
    sentence_count = 2
    with track(f"encoding {data}", None, "examples") as progress:
        while block := list(islice(examples, BLOCK)):
            sentence_count = len(block[0].texts)
            texts: list[str] = []
            for example in block:
                texts += example.texts
                if example.label is not None:
                    labels.append(example.label)
            vectors = encoder.encode_sentences(texts)
            shape = (len(block), sentence_count, encoder.dimension)
            scores.append(score_examples(vectors.reshape(shape)))
            progress.advance(len(block))
    return ScoredExamples(sentence_count, np.concatenate(scores), labels)
