import json
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from denserk.config.encoding import (
    ComputeSettings,
    Representation,
    RepresentationSettings,
    TextSettings,
)
from denserk.data.tokenization import load_tokenizer
from denserk.errors import ModelError, OutputError
from denserk.models import saving
from denserk.models.model_folder import read_model_folder
from denserk.models.saving import save_model
from denserk.models.text_encoder import TextEncoder
from denserk.records import Passage, Query
from tests.support.tiny_models import BACKBONES, WITH_HEADS

CPU = ComputeSettings(device="cpu")
PASSAGES = [Passage("a", "the old river", "Moon"), Passage("b", ""), Passage("c", "cat dog fish")]
IDS = torch.tensor([[2, 9, 14, 30, 3]])
TEXT = TextSettings(query_max_length=9, passage_max_length=20, join="sep", query_prefix="the ")


def vectors(folder, representation=None, text=None):
    encoder = TextEncoder(str(folder), representation or {}, text or {}, CPU)
    queries = encoder.encode_queries([Query(passage.docid, passage.text) for passage in PASSAGES])
    return np.concatenate([encoder.encode_passages(PASSAGES), queries])


@pytest.mark.parametrize("kind", BACKBONES)
def test_a_saved_model_has_the_vectors_and_the_settings_it_had(tiny, tmp_path, kind):
    settings = RepresentationSettings(Representation.MEAN, l2_norm=True)
    text: dict[str, Any] = {"passage_max_length": 20, "query_prefix": "the "}
    encoder, _ = read_model_folder(tiny(kind)).build(settings)
    save_model(tmp_path / "m", encoder, load_tokenizer(tiny(kind)), TextSettings(**text))
    stored = read_model_folder(tmp_path / "m")
    assert stored.representation == settings
    assert stored.text == TextSettings(**text)
    expected = vectors(tiny(kind), {"representation": "mean", "l2_norm": True}, text)
    np.testing.assert_array_equal(vectors(tmp_path / "m"), expected)


@pytest.mark.parametrize("l2_norm", [False, True])
def test_of_an_encoder_with_a_decoder_the_encoder_is_saved(writer, tmp_path, l2_norm):
    source = writer("t5")  # T5ForConditionalGeneration
    stored = read_model_folder(source)
    encoder, _ = stored.build(RepresentationSettings(Representation.MEAN, l2_norm=l2_norm))
    save_model(tmp_path / "m", encoder, load_tokenizer(source), TextSettings())
    expected = vectors(source, {"representation": "mean", "l2_norm": l2_norm})
    np.testing.assert_array_equal(vectors(tmp_path / "m"), expected)

    model_class: Any = transformers.T5EncoderModel
    model, report = model_class.from_pretrained(tmp_path / "m", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    with torch.no_grad():
        states = model.eval()(IDS).last_hidden_state
        assert states.equal(model_class.from_pretrained(source).eval()(IDS).last_hidden_state)
    st = pytest.importorskip("sentence_transformers")
    embeddings = st.SentenceTransformer(str(tmp_path / "m"), device="cpu").encode(["cat dog fish"])
    np.testing.assert_allclose(embeddings, expected[2:3], rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", WITH_HEADS)
def test_transformers_loads_an_aggretriever_folder_heads_included(tiny, tiny_agg, kind):
    folder = tiny_agg(kind)
    model_class = transformers.AutoModelForMaskedLM
    start = model_class.from_pretrained(tiny(kind)).eval()
    model, report = model_class.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    encoder = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        output = model.eval()(IDS)
        assert output.logits.equal(start(IDS).logits)
        assert encoder(IDS).last_hidden_state.equal(output.hidden_states[-1])
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    assert tokenizer["truncation"] is None
    assert tokenizer["padding"] is None


def test_an_interrupted_save_leaves_nothing_that_loads(tiny, tmp_path, monkeypatch):
    encoder, _ = read_model_folder(tiny()).build(RepresentationSettings())
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match="cannot be written"):
        save_model(tmp_path / "file", encoder, load_tokenizer(tiny()), TEXT)
    monkeypatch.setattr(saving, "write_errors", lambda folder: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        save_model(tmp_path / "m", encoder, load_tokenizer(tiny()), TEXT)
    with pytest.raises(ModelError, match=r"config.json is missing"):
        read_model_folder(tmp_path / "m")
