"""Encoding on a simulated GPU: the vectors of a CPU, and hardly any waiting between batches."""

from typing import Any

import numpy as np
import pytest

from denserk.config.encoding import ComputeSettings, Dtype, DtypeChoice
from denserk.models.cross_encoder import PairScorer
from denserk.models.text_encoder import TextEncoder
from denserk.records import Passage, Query
from tests.support.tiny_models import BACKBONES
from tests.support.toy import WORDS

PASSAGES = [Passage(f"d{i}", " ".join(WORDS[: i % 9]), "cat" if i % 3 else "") for i in range(25)]
QUERIES = [Query(f"q{i}", " ".join(WORDS[i % 5 : i % 5 + 1 + i % 4])) for i in range(25)]
BATCH_TOKENS = 40
MULTI_VECTOR = {"reduction": "multi-vector"}
REPRESENTATIONS: dict[str, dict[str, Any]] = {
    "cls": {"representation": "cls"},
    "mean": {"representation": "mean", "l2_norm": True},
    "max": {"representation": "max"},
    "last": {"representation": "last", "truncate_dim": 5},
    "mlr": {"representation": "mlr", **MULTI_VECTOR},
    "mlr-average": {"representation": "mlr", "reduction": "average"},
    "me-bert": {"representation": "me-bert", "vectors": 3, **MULTI_VECTOR},
    "colbert": {"representation": "colbert", "reduction": "average"},
}
AGGRETRIEVERS: dict[str, dict[str, Any]] = {
    "agg": {},
    "agg-random": {"agg_layout": "random"},
    "agg-plus": {"agg_kind": "plus"},
    "agg-linear": {"agg_kind": "linear"},
    "agg-average": {"agg_kind": "average"},
    "agg-signed": {"term_weight": "signed"},
    "agg-bare": {"mlm_head": "none"},
    "agg-bare-random": {"mlm_head": "none", "agg_layout": "random"},
}
WITH_MLM_HEAD = ("agg", "agg-random", "agg-plus", "agg-linear", "agg-signed")
TOLERANCES = {Dtype.FLOAT32: 1e-5, Dtype.FLOAT16: 0.01, Dtype.BFLOAT16: 0.05}


@pytest.fixture
def on_cpu_and_gpu(tiny, tiny_agg, simulated_gpu):
    """`on_cpu_and_gpu("cls", dtype)`: the same model on the CPU, in float32, and on the GPU."""

    def encoders(name, dtype):
        if name in AGGRETRIEVERS:
            folder = tiny_agg(**AGGRETRIEVERS[name])
            representation = {}
        else:
            folder = tiny()
            representation = REPRESENTATIONS[name]
        cpu = ComputeSettings(device="cpu")
        gpu = ComputeSettings(device="cuda", dtype=DtypeChoice(dtype), batch_tokens=BATCH_TOKENS)
        return (
            TextEncoder(str(folder), representation, compute=cpu),
            TextEncoder(str(folder), representation, compute=gpu),
        )

    return encoders


@pytest.mark.parametrize("dtype", Dtype)
@pytest.mark.parametrize("name", [*REPRESENTATIONS, *AGGRETRIEVERS])
def test_vectors_are_those_of_a_cpu(on_cpu_and_gpu, simulated_gpu, name, dtype):
    cpu, gpu = on_cpu_and_gpu(name, dtype)
    for side, texts in (("passage", PASSAGES), ("query", QUERIES)):
        expected = cpu.encode_planned(side, cpu.plan(side, texts))
        planned = gpu.plan(side, texts)
        simulated_gpu.waits.clear()
        vectors = gpu.encode_planned(side, planned)
        assert vectors.dtype == np.float32
        tolerance = TOLERANCES[dtype] * np.abs(expected).max()
        np.testing.assert_allclose(vectors, expected, rtol=0, atol=tolerance)
        assert len(planned.batches) > 2
        # the MLM head asks which positions have a weight
        waits_of_a_batch = 1 if name in WITH_MLM_HEAD else 0
        copies = 2  # of the result, and once of a random layout
        most_waits = waits_of_a_batch * len(planned.batches) + copies
        assert simulated_gpu.waits.total() <= most_waits, simulated_gpu.waits


@pytest.mark.parametrize("kind", [*BACKBONES, "modernbert", "mpnet", "deberta-v2", "qwen3"])
def test_vectors_of_other_backbones_are_those_of_a_cpu(tiny, simulated_gpu, kind):
    def vectors_on(device):
        compute = ComputeSettings(device=device, dtype=DtypeChoice.FLOAT32)
        encoder = TextEncoder(str(tiny(kind)), {"representation": "mean"}, compute=compute)
        return encoder.encode_passages(PASSAGES)

    np.testing.assert_allclose(vectors_on("cuda"), vectors_on("cpu"), rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", Dtype)
@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_scores_of_pairs_are_those_of_a_cpu(tiny_reranker, simulated_gpu, kind, dtype):
    folder = str(tiny_reranker(kind))
    cpu = PairScorer(folder, compute=ComputeSettings(device="cpu"))
    expected = cpu.score(QUERIES, PASSAGES)
    compute = ComputeSettings(device="cuda:0", dtype=DtypeChoice(dtype), batch_size=8)
    gpu = PairScorer(folder, compute=compute)
    simulated_gpu.waits.clear()
    scores = gpu.score(QUERIES, PASSAGES)
    np.testing.assert_allclose(scores, expected, rtol=0, atol=TOLERANCES[dtype])
    # the scores of all batches are copied at the end
    assert simulated_gpu.waits.total() <= 1, simulated_gpu.waits
