"""Section `encode`: vectors of the card beside those of the CPU in float32."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import starmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from denserk.config.encoding import Backend, ComputeSettings, Dtype, DtypeChoice
from denserk.models.text_encoder import TextEncoder
from denserk.records import Passage, Query
from tests.gpu.models import has_minilm, random_aggretriever, random_bert
from tests.gpu.setup import Setup
from tests.gpu.texts import timed_passages, training_collection

Vectors = NDArray[np.float32]
LEAST_COSINE = {Dtype.FLOAT32: 0.9999, Dtype.FLOAT16: 0.999, Dtype.BFLOAT16: 0.98}
LEAST_COSINE_OF_MINILM = {Dtype.FLOAT32: 0.99999, Dtype.FLOAT16: 0.9999, Dtype.BFLOAT16: 0.99}
LARGEST_DIFFERENCE = 1e-4  # of magnitudes, as a share of the largest
CLS_DIM = 128  # dimensions of an Aggretriever's [CLS] part
COSINE = "least centred cosine to the CPU's float32"


@dataclass(frozen=True)
class Case:
    """A representation: how its model is made, and the precisions that are compared."""

    name: str
    folder: Callable[[Setup], str]
    settings: dict[str, Any] = field(default_factory=dict)
    precisions: tuple[Dtype, ...] = (Dtype.FLOAT32, Dtype.BFLOAT16)


@dataclass(frozen=True)
class AggretrieverCase(Case):
    """An Aggretriever with random weights.

    agg* keeps the larger of two halves, and its sign: where both are nearly equal, the last digit
    decides. So magnitudes are compared, and low precision is only measured.
    """


def bert(setup: Setup) -> str:
    """Return the folder of a small random BERT."""
    return random_bert(setup, "small")


def aggretriever(name: str, **settings: Any) -> AggretrieverCase:
    """Return the case of a small random Aggretriever."""
    return AggretrieverCase(name, lambda setup: random_aggretriever(setup, "small", **settings))


CASES = (
    Case("cls", bert, {"representation": "cls"}, tuple(Dtype)),
    Case("mean, normalised", bert, {"representation": "mean", "l2_norm": True}),
    Case("max", bert, {"representation": "max"}),
    Case("last", bert, {"representation": "last"}),
    Case("mlr, several vectors", bert, {"representation": "mlr", "reduction": "multi-vector"}),
    Case("me-bert", bert, {"representation": "me-bert", "reduction": "multi-vector"}),
    Case("colbert, average", bert, {"representation": "colbert", "reduction": "average"}),
    aggretriever("agg"),
    aggretriever("agg, signed weights", term_weight="signed"),
    aggretriever("agg+, random slices", agg_kind="plus", agg_layout="random"),
    aggretriever("agg without a head", mlm_head="none"),
)


def encode(setup: Setup) -> None:
    """Compare every representation in float32, and in low precision."""
    count = setup.choose(64, 12)
    passages = timed_passages(setup, count)
    queries = some_queries(setup, count)
    for case in CASES:
        with setup.report.attempt(f"encode {case.name}"):
            compare(setup, case, passages, queries)
    if has_minilm(setup):
        minilm = Case("MiniLM", lambda setup: str(setup.minilm), precisions=tuple(Dtype))
        with setup.report.attempt("encode MiniLM"):
            compare(setup, minilm, passages, queries, LEAST_COSINE_OF_MINILM)
    else:
        reason = setup.choose("no weights: --minilm FOLDER", "a rehearsal on the CPU")
        setup.report.skip("encode MiniLM", reason)


def some_queries(setup: Setup, count: int) -> list[Query]:
    """Return queries of the training collection."""
    queries = training_collection(setup).queries
    return [Query(qid, text) for qid, text in list(queries.items())[:count]]


def compare(
    setup: Setup,
    case: Case,
    passages: list[Passage],
    queries: list[Query],
    least_cosine: dict[Dtype, float] = LEAST_COSINE,
) -> None:
    """Encode by the CPU in float32 and by the device in each precision, and compare."""
    folder = case.folder(setup)

    def vectors_of(device: str, dtype: Dtype) -> tuple[Vectors, Vectors]:
        compute = ComputeSettings(device=device, dtype=DtypeChoice(dtype), backend=Backend.TORCH)
        encoder = TextEncoder(folder, case.settings, compute=compute)
        return encoder.encode_passages(passages), encoder.encode_queries(queries)

    expected = vectors_of("cpu", Dtype.FLOAT32)
    for dtype in case.precisions:
        if dtype is Dtype.FLOAT16 and setup.device == "cpu":
            continue  # denserk refuses it there
        computed = vectors_of(setup.device, dtype)
        assert all(np.isfinite(vectors).all() for vectors in computed)
        name = f"encode {case.name}, {dtype}"
        pairs = list(zip(expected, computed, strict=True))
        if isinstance(case, AggretrieverCase):
            compare_magnitudes(setup, name, dtype, pairs)
        else:
            cosine = min(starmap(least_centred_cosine, pairs))
            difference = max(starmap(largest_magnitude_difference, pairs))
            passed = cosine > least_cosine[dtype]
            setup.report.check(name, cosine, passed, COSINE, difference=difference)


def compare_magnitudes(
    setup: Setup, name: str, dtype: Dtype, pairs: list[tuple[Vectors, Vectors]]
) -> None:
    """Compare the parts of Aggretriever's vectors, [CLS] and lexical, each on its own.

    Large values of one would hide differences of the other.
    """
    parts = []
    for expected, vectors in pairs:
        parts += [(expected[:, :CLS_DIM], vectors[:, :CLS_DIM])]
        parts += [(expected[:, CLS_DIM:], vectors[:, CLS_DIM:])]
    cosine = min(starmap(least_centred_cosine, parts))
    difference = max(starmap(largest_magnitude_difference, parts))
    if dtype is Dtype.FLOAT32:
        unit = "largest difference of magnitudes, relative"
        setup.report.check(name, difference, difference < LARGEST_DIFFERENCE, unit, cosine=cosine)
    else:
        setup.report.measure(name, cosine, COSINE, difference=difference)


def least_centred_cosine(expected: Vectors, vectors: Vectors) -> float:
    """Return the least cosine of two (N, D) arrays' rows, the mean of the first taken from both.

    Vectors of random weights lie close together: without their mean, all cosines are near 1.
    """
    centre = expected.mean(axis=0)
    left = expected - centre
    right = vectors - centre
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    cosines = (left * right).sum(axis=1) / np.maximum(lengths, 1e-12)
    return float(cosines.min())


def largest_magnitude_difference(expected: Vectors, vectors: Vectors) -> float:
    """Return the largest difference of absolute values, as a share of the largest value."""
    difference = np.abs(np.abs(expected) - np.abs(vectors)).max()
    return float(difference / np.abs(expected).max())
