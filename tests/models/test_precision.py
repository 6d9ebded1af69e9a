"""Which precision a model computes in, in which batches and beside how many tokenising threads."""

import numpy as np
import pytest
import torch

from denserk.config.encoding import (
    Backend,
    ComputeSettings,
    Dtype,
    DtypeChoice,
    RepresentationSettings,
    TextSettings,
    default_batch_tokens,
)
from denserk.config.formats import QUERIES
from denserk.data.tokenization import load_tokenizer
from denserk.errors import ModelError
from denserk.models import devices, precision, processor
from denserk.models.backbone import STATIC
from denserk.models.cross_encoder import PairScorer
from denserk.models.generation import TextGenerator
from denserk.models.model_folder import read_model_folder
from denserk.models.representation import Encoder
from denserk.models.saving import save_model
from denserk.models.text_encoder import TextEncoder
from tests.support.console import warnings_of

CPU = torch.device("cpu")
GPU = torch.device("cuda")


@pytest.fixture
def old_gpu(simulated_gpu, monkeypatch):
    """A GPU that emulates bfloat16."""

    def is_bf16_supported(including_emulation=True):
        return including_emulation

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", is_bf16_supported)


def test_a_gpu_with_bfloat16_takes_it(simulated_gpu, caplog):
    assert devices.choose_precision(DtypeChoice.AUTO, GPU) is Dtype.BFLOAT16
    assert "computing in bfloat16 on cuda; --dtype float32 is slower, more precise" in caplog.text
    for choice in (DtypeChoice.FLOAT32, DtypeChoice.FLOAT16):
        assert devices.choose_precision(choice, GPU) is Dtype(choice)
    assert len(caplog.messages) == 1


def test_a_gpu_that_emulates_bfloat16_takes_float32(old_gpu, caplog):
    assert devices.choose_precision(DtypeChoice.AUTO, GPU) is Dtype.FLOAT32
    assert "computing in float32: cuda has no bfloat16 instructions" in caplog.text
    assert devices.choose_precision(DtypeChoice.BFLOAT16, GPU) is Dtype.BFLOAT16
    devices.prepare_device(ComputeSettings(device="cuda", bf16=True))
    assert warnings_of(caplog) == [
        "this GPU has no bfloat16 instructions: --dtype float32 may be faster"
    ]


@pytest.mark.parametrize("has_bfloat16", [False, True])
def test_what_is_not_certified_takes_float32_on_a_cpu(monkeypatch, caplog, has_bfloat16):
    monkeypatch.setattr(processor, "has_bfloat16", lambda: has_bfloat16)
    assert devices.choose_precision(DtypeChoice.AUTO, CPU) is Dtype.FLOAT32
    assert caplog.messages == ["computing in float32 on the CPU"]


@pytest.mark.parametrize(
    ("device", "dtype", "batch_tokens"),
    [
        ("cpu", "auto", 2048),
        ("cuda", "auto", 32_768),
        ("cuda", "float16", 32_768),
        ("cuda", "float32", 8192),
    ],
)
def test_precision_and_device_decide_the_batches_of_all(
    tiny, tiny_reranker, simulated_gpu, monkeypatch, device, dtype, batch_tokens
):
    compute = ComputeSettings(device=device, dtype=DtypeChoice(dtype))
    encoder = TextEncoder(str(tiny()), compute=compute)
    assert encoder.batch_tokens == batch_tokens
    expected = dtype
    if dtype == "auto":
        expected = "float32" if device == "cpu" else "bfloat16"
    assert encoder.description()["dtype"] == encoder.description()["head_dtype"] == expected
    scorer = PairScorer(str(tiny_reranker()), compute=compute)
    assert scorer.description()["dtype"] == expected
    budgets = []

    def by_length(lengths, budget, *_):
        budgets.append(budget)
        return []

    monkeypatch.setattr("denserk.models.token_budget.by_length", by_length)
    scorer.score([], [])
    assert budgets == [batch_tokens]
    compute = ComputeSettings(device=device, batch_tokens=100)
    assert TextEncoder(str(tiny()), compute=compute).batch_tokens == 100


def test_generation_has_larger_batches_on_a_cpu(writer, simulated_gpu, monkeypatch):
    from denserk.config.formats import GenerateSettings

    settings = GenerateSettings(corpus="c", output="o", queries_model=str(writer("t5")))
    budgets = []

    def by_length(costs, budget, _):
        budgets.append(budget)
        return []

    monkeypatch.setattr("denserk.models.generation.by_length", by_length)
    for device, dtype in (("cpu", "auto"), ("cuda", "auto"), ("cuda", "float32")):
        compute = ComputeSettings(device=device, dtype=DtypeChoice(dtype))
        TextGenerator(QUERIES, settings, compute).generate(["river boat"], 8, seed=1)
    assert budgets == [8192, 32_768, 8192]
    assert default_batch_tokens("cpu", Dtype.FLOAT32) == 2048


@pytest.mark.parametrize(
    ("cores", "processes", "workers"), [(16, 1, 8), (6, 1, 5), (1, 1, 1), (16, 4, 3), (4, 8, 1)]
)
def test_all_cores_but_one_tokenise_for_a_gpu(monkeypatch, cores, processes, workers):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    if processes > 1:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    assert devices.default_workers(GPU) == workers
    assert devices.default_workers(CPU) == 1


def on_cpu(model, dtype="auto", **compute):
    return TextEncoder(str(model), compute=ComputeSettings(dtype=DtypeChoice(dtype), **compute))


@pytest.fixture
def far_off(monkeypatch):
    """Vectors in bfloat16 are far from those in float32."""
    monkeypatch.setattr(precision, "least_cosine", lambda *_: 0.79)


def test_a_cpu_with_bfloat16_encodes_in_it(tiny, cpu_with_bfloat16, caplog):
    encoder = on_cpu(tiny())
    certificate = encoder.description()["certificate"]
    assert certificate["texts"] == 32
    assert 0.999 <= certificate["least_cosine"] < 1
    (message,) = (text for text in caplog.messages if "bfloat16" in text)
    assert message == (
        "computing in bfloat16 on the CPU: cosines to float32 are at least "
        f"{certificate['least_cosine']:.5f} (32 texts); --dtype float32 is slower, more precise"
    )
    expected = on_cpu(tiny(), "bfloat16")
    assert expected.certificate is None
    vectors = encoder.encode_sentences(["the old river"])
    np.testing.assert_array_equal(vectors, expected.encode_sentences(["the old river"]))
    assert (encoder.dtype, encoder.head_dtype) == (Dtype.BFLOAT16, Dtype.BFLOAT16)


def test_a_cpu_without_bfloat16_encodes_in_float32(tiny, cpu_with_bfloat16, monkeypatch, caplog):
    monkeypatch.setattr(processor, "has_bfloat16", lambda: False)
    encoder = on_cpu(tiny())
    assert encoder.dtype is Dtype.FLOAT32
    assert "certificate" not in encoder.description()
    assert "computing in float32 on the CPU" in caplog.messages


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_precision_that_is_named_is_not_certified(tiny, cpu_with_bfloat16, monkeypatch, dtype):
    monkeypatch.delattr(precision, "least_cosine")
    assert on_cpu(tiny(), dtype).dtype is Dtype(dtype)


def test_a_model_that_is_not_certified_has_the_vectors_of_float32(
    tiny, cpu_with_bfloat16, far_off, caplog
):
    encoder = on_cpu(tiny())
    assert (encoder.dtype, encoder.head_dtype) == (Dtype.FLOAT32, Dtype.FLOAT32)
    assert encoder.description()["certificate"] == {"texts": 32, "least_cosine": 0.79}
    assert (
        "computing in float32 on the CPU: cosines of vectors in bfloat16 are down to 0.79000, at "
        "least 0.999 is needed (32 texts)" in caplog.messages
    )
    texts = precision.certificate_texts()
    vectors = encoder.encode_sentences(texts)
    np.testing.assert_array_equal(vectors, on_cpu(tiny(), "float32").encode_sentences(texts))


def test_what_cannot_compute_in_bfloat16_computes_in_float32(
    tiny, cpu_with_bfloat16, monkeypatch, caplog
):
    prepare = Encoder.prepare_inference

    def prepare_in_float32(self, dtype, head_dtype, *, compiled):
        if dtype is torch.bfloat16:
            raise ModelError("no bfloat16 today")
        prepare(self, dtype, head_dtype, compiled=compiled)

    monkeypatch.setattr(Encoder, "prepare_inference", prepare_in_float32)
    encoder = on_cpu(tiny(), backend=Backend.TORCH)
    assert encoder.dtype is Dtype.FLOAT32
    assert encoder.certificate is None
    assert "computing in float32 on the CPU: in bfloat16, no bfloat16 today" in caplog.messages


def test_encoders_of_queries_are_certified_too(tiny, tmp_path, cpu_with_bfloat16, monkeypatch):
    settings = RepresentationSettings()
    query, passage = read_model_folder(tiny()).build(settings, untie=True)
    tokenizer = load_tokenizer(tiny())
    save_model(tmp_path / "untied", passage, tokenizer, TextSettings(), query)
    counts = []

    def count_vectors(reduced, exact):
        counts.append((len(reduced), len(exact)))
        return 1.0

    monkeypatch.setattr(precision, "least_cosine", count_vectors)
    assert on_cpu(tmp_path / "untied").dtype is Dtype.BFLOAT16
    assert on_cpu(tiny()).dtype is Dtype.BFLOAT16
    assert counts == [(64, 64), (32, 32)]


def test_a_table_of_vectors_takes_float32(cpu_with_bfloat16):
    assert precision.is_bfloat16_tried(DtypeChoice.AUTO, CPU, "bert")
    assert not precision.is_bfloat16_tried(DtypeChoice.AUTO, CPU, STATIC)
    assert not precision.is_bfloat16_tried(DtypeChoice.AUTO, GPU, "bert")
    assert not precision.is_bfloat16_tried(DtypeChoice.BFLOAT16, CPU, "bert")


def test_rerankers_and_generators_take_float32_on_a_cpu(tiny_reranker, cpu_with_bfloat16):
    assert PairScorer(str(tiny_reranker())).dtype is Dtype.FLOAT32


def test_the_texts_of_the_certificate():
    texts = precision.certificate_texts()
    assert len(set(texts)) == 32
    assert all(text == text.strip() for text in texts)


def test_vectors_that_are_not_finite_or_zero_are_not_close():
    exact = np.ones((2, 3), np.float32)
    assert precision.least_cosine(exact * 2, exact) == 1
    for value in (0, np.nan, np.inf):
        reduced = exact.copy()
        reduced[1] = value
        assert precision.least_cosine(reduced, exact) == 0
