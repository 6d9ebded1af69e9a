"""Which precision a model computes in, in which batches and beside how many tokenising threads."""

import pytest
import torch

from denserk.config.encoding import ComputeSettings, Dtype, DtypeChoice, default_batch_tokens
from denserk.config.formats import QUERIES
from denserk.models import devices
from denserk.models.cross_encoder import PairScorer
from denserk.models.generation import TextGenerator
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
def test_a_cpu_takes_float32(monkeypatch, caplog, has_bfloat16):
    monkeypatch.setattr(devices, "has_bfloat16", lambda: has_bfloat16)
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
    expected = {"auto": "float32" if device == "cpu" else "bfloat16"}.get(dtype, dtype)
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
    given = TextEncoder(str(tiny()), compute=ComputeSettings(device=device, batch_tokens=100))
    assert given.batch_tokens == 100


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
