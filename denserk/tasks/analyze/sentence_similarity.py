"""`denserk analyze sentence-similarity`: pairs of sentences against their labels, and triplets.

As in Condenser's Tables 1 and 2. For pairs with labels (STS-B): Spearman's correlation of the cosine
with the label. For triplets (Wikipedia sections): how often the positive is nearer to the anchor
than the negative, by Euclidean distance.
"""

from itertools import islice

import numpy as np

from denserk.config import analysis, encoding
from denserk.errors import DenserkError, InputError
from denserk.evaluation.sentences import figure_of, score_examples
from denserk.io.files import write_rows
from denserk.io.training import read_sentences
from denserk.models.text_encoder import load_models
from denserk.reporting import track
from denserk.tasks.analyze.results import Row, as_table

BLOCK = 1024  # examples encoded at once


def sentence_similarity(
    settings: analysis.SentenceSimilaritySettings,
    options: encoding.ModelOptions = encoding.DEFAULTS,
) -> list[Row]:
    """Measure models on pairs or triplets of sentences; write the table if asked to.

    The text settings of passages apply to sentences.
    """
    found, data = [], settings.data
    for label, name, encoder in load_models(settings.labelled, options):
        examples = read_sentences(data)
        scores, labels, size = [], [], 2  # one number per example
        with track(f"encoding {data}", None, "examples") as progress:
            while block := list(islice(examples, BLOCK)):
                size = len(block[0].texts)
                vectors = encoder.encode_sentences([text for each in block for text in each.texts])
                scores.append(score_examples(vectors.reshape(len(block), size, encoder.dimension)))
                labels += [example.label for example in block if example.label is not None]
                progress.advance(len(block))
        together = np.concatenate(scores)
        if np.isnan(together).any():
            raise DenserkError(f"{name}: an embedding is not a number (NaN)", "use --dtype float32")
        if size == 2 and len(set(labels)) < 2:
            one = f"only the label {labels[0]:g}"
            raise InputError(data, None, one, "labels that differ, to correlate with")
        measure, value = figure_of(together, np.array(labels) if size == 2 else None)
        row: Row = {"label": label, "model": name, "data": data}
        row |= {"kind": "pairs" if size == 2 else "triplets", "count": len(together)}
        found.append(row | {"measure": measure, "value": value})
    if settings.output is not None:
        write_rows(settings.output, as_table(found))
    return found
