"""What a user's own Python may look like. No test runs it: the type checker reads it, strictly."""

from collections.abc import Iterator, Mapping
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

from denserk.config.encoding import (
    ComputeSettings,
    Dtype,
    EncodeSettings,
    Representation,
    VectorDtype,
)
from denserk.config.evaluation import EvaluationSettings
from denserk.config.formats import CorpusFormat, CorpusSettings
from denserk.errors import DenserkError, InputError
from denserk.evaluation.evaluator import EvaluationResult, RunResult, evaluate
from denserk.io.corpus import read_passages
from denserk.io.runs import read_run_scores
from denserk.io.topics import read_queries
from denserk.models.encode import EncodeResult, encode
from denserk.models.text_encoder import TextEncoder
from denserk.records import Passage, Query
from denserk.reporting import show_error


def own_vectors(texts: list[str]) -> NDArray[np.float32]:
    """Vectors of a few texts, without a file."""
    encoder = TextEncoder("mean", compute=ComputeSettings(dtype=Dtype.BFLOAT16, threads=1))
    assert_type(encoder.dimension, int)
    queries = [Query(f"q{number}", text) for number, text in enumerate(texts)]
    return assert_type(encoder.encode_queries(queries), NDArray[np.float32])


def own_collection(path: str) -> None:
    """Records are named tuples; a field is what its name says."""
    passages = assert_type(
        read_passages(path, CorpusSettings(corpus_format=CorpusFormat.BEIR)), Iterator[Passage]
    )
    for passage in passages:
        assert_type(passage.docid, str)
        assert_type(passage.field("url"), str)
        assert_type(passage.extra, Mapping[str, Any])
    assert_type(read_queries("beir:scifact/test"), Iterator[Query])
    assert_type(read_run_scores("run.trec"), dict[str, dict[str, float]])


def own_experiment() -> float:
    """A command's work as a function call, its result as a record."""
    settings = EncodeSettings(
        model="minilm", corpus="corpus.jsonl", output="vectors", vector_dtype=VectorDtype.FLOAT16
    )
    overrides = {"representation": Representation.MEAN, "l2_norm": True}
    try:
        made = assert_type(
            encode(settings, CorpusSettings(), overrides, {}, ComputeSettings()), EncodeResult
        )
        result = assert_type(
            evaluate(["run.trec"], "qrels.txt", EvaluationSettings(measures=("nDCG@10",))),
            EvaluationResult,
        )
    except InputError as error:
        assert_type(error.line, int | None)
        return 0.0
    except DenserkError as error:
        assert_type(error.hint, str | None)
        assert_type(error.exit_status, int)
        show_error(error)
        return 0.0
    assert_type(made.count, int)
    assert_type(result.runs, tuple[RunResult, ...])
    return result.runs[0].summary["nDCG@10"]
