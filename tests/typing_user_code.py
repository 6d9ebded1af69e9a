"""What a user's own Python may look like. No test runs it: the type checker reads it, strictly."""

from collections.abc import Iterator
from typing import assert_type

import numpy as np
from numpy.typing import NDArray

from denserk.config.encoding import ComputeSettings, EncodeSettings, Representation
from denserk.config.evaluation import EvaluationSettings
from denserk.config.formats import CorpusFormat, CorpusSettings
from denserk.errors import DenserkError, InputError
from denserk.evaluation.evaluator import EvaluationResult, RunResult, evaluate
from denserk.io.corpus import read_passages
from denserk.models.encode import EncodeResult, encode
from denserk.models.text_encoder import TextEncoder
from denserk.records import Passage, Query
from denserk.reporting import show_error


def own_vectors(texts: list[str]) -> NDArray[np.float32]:
    """Vectors of a few texts, without a file."""
    encoder = TextEncoder("mean", compute=ComputeSettings(threads=1))
    queries = [Query(f"q{number}", text) for number, text in enumerate(texts)]
    return assert_type(encoder.encode_queries(queries), NDArray[np.float32])


def own_experiment() -> float:
    """A command's work as a function call, its result as a record."""
    beir = CorpusSettings(corpus_format=CorpusFormat.BEIR)
    assert_type(read_passages("corpus.jsonl", beir), Iterator[Passage])
    settings = EncodeSettings(model="minilm", corpus="corpus.jsonl", output="vectors")
    overrides = {"representation": Representation.MEAN, "l2_norm": True}
    measures = EvaluationSettings(measures=("nDCG@10",))
    try:
        made = encode(settings, beir, overrides, {}, ComputeSettings())
        assert_type(made, EncodeResult)
        result = assert_type(evaluate(["run.trec"], "qrels.txt", measures), EvaluationResult)
    except InputError as error:
        assert_type(error.line, int | None)
        return 0.0
    except DenserkError as error:
        assert_type(error.hint, str | None)
        show_error(error)
        return 0.0
    assert_type(result.runs, tuple[RunResult, ...])
    return result.runs[0].summary["nDCG@10"]
