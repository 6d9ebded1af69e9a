import json
from typing import Any

import pytest
import torch
import transformers

from denserk.errors import ModelError, OutputError, UsageError
from denserk.modeling.cross_encoder import begin_reranker, is_reranker, read_reranker
from denserk.modeling.model_folder import save_model
from denserk.modeling.stored_model import read_model_folder
from denserk.modeling.text_encoder import TextEncoder
from denserk.settings.encoding import (
    ComputeSettings,
    PairSettings,
    RepresentationSettings,
    TextSettings,
)
from tests.tiny_models import RERANKERS

SHORT: dict[str, Any] = {"query_max_length": 8, "passage_max_length": 16}
CPU = ComputeSettings(device="cpu")


def saved(folder, source, **settings):
    stored = begin_reranker(source, seed=3).fit(SHORT | settings)
    stored.save(folder)
    return stored


@pytest.mark.parametrize("kind", RERANKERS)
def test_what_was_saved_is_read_again_and_loads_in_transformers(tiny, tmp_path, kind):
    stored = saved(tmp_path / "r", tiny(kind), join="sep")
    again = read_reranker(tmp_path / "r")
    assert is_reranker(tmp_path / "r")
    assert again.told
    assert (again.text, again.pairs) == (stored.text, PairSettings())
    batch = stored.joiner().batch([stored.joiner().join([2, 9, 3], [2, 8, 9, 3])])
    stored.reranker.eval()
    with torch.no_grad():
        expected = stored.reranker(batch)
        assert again.reranker(batch).equal(expected)
        model = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / "r").eval()
        logits = model(batch.tokens.input_ids, batch.tokens.attention_mask).logits
    torch.testing.assert_close(logits[:, 0, 0], expected, rtol=0, atol=1e-6)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "r")
    assert tokenizer.model_max_length == stored.joiner().limit


@pytest.mark.parametrize("kind", RERANKERS)
def test_a_published_reranker_is_saved_with_its_head(tiny_reranker, tmp_path, kind):
    published = read_reranker(tiny_reranker(kind))
    published.save(tmp_path / "r")
    again = read_reranker(tmp_path / "r")
    assert (again.text, again.pairs) == (published.text, published.pairs)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "r")
    state = published.reranker.model.state_dict()
    assert model.state_dict().keys() == state.keys()
    assert all(tensor.equal(state[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(("kind", "types"), [("bert", True), ("roberta", False), ("electra", True)])
def test_a_published_reranker_has_its_tokenizer_s_lengths_and_types(tiny_reranker, kind, types):
    stored = read_reranker(tiny_reranker(kind))
    assert not stored.told
    assert stored.pairs == PairSettings(max_length=64, token_types=types)
    assert stored.text == TextSettings(passage_max_length=64)
    assert stored.joiner().limit == 64


def test_a_distilbert_takes_no_token_types(tiny_reranker):
    assert not read_reranker(tiny_reranker("distilbert")).pairs.token_types


def test_weights_come_back_from_a_checkpoint(tiny, tmp_path):
    stored = saved(tmp_path / "r", tiny())
    before = {n: t.clone() for n, t in stored.reranker.state_dict().items()}
    with torch.no_grad():
        for parameter in stored.reranker.parameters():
            parameter.add_(1)
    stored.load(tmp_path / "r")
    assert all(t.equal(before[n]) for n, t in stored.reranker.state_dict().items())


def test_training_goes_on_from_a_reranker_or_from_a_retriever(tiny, tiny_reranker, tmp_path):
    saved(tmp_path / "r", tiny())
    assert begin_reranker(tmp_path / "r", seed=9).reranker.is_linear
    published = begin_reranker(tiny_reranker(), seed=9).reranker
    assert not published.is_linear
    assert published.training
    retriever = read_model_folder(tiny())
    query, passage = (retriever.passage.build(RepresentationSettings()) for _ in range(2))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny())
    save_model(tmp_path / "shared", passage, tokenizer, TextSettings(**SHORT))
    assert begin_reranker(tmp_path / "shared", seed=9).text == TextSettings(**SHORT)
    save_model(tmp_path / "two", passage, tokenizer, TextSettings(), query)
    with pytest.raises(ModelError, match="separate encoders") as refusal:
        begin_reranker(tmp_path / "two", seed=9)
    assert str(tmp_path / "two" / "document") in str(refusal.value.hint)


def test_lengths_fit_the_positions(tiny):
    stored = begin_reranker(tiny(), seed=3)
    assert stored.fit(SHORT).joiner().limit == 8 + 16 - 1
    assert stored.fit(SHORT, 20).joiner().limit == 20
    assert stored.fit().joiner().limit == 64  # 32 + 128 tokens, cut to the positions
    with pytest.raises(UsageError, match="--pair-max-length 65: the model has 64 positions"):
        stored.fit(pair_max_length=65)
    with pytest.raises(UsageError, match="--passage-max-length 65"):
        stored.fit({"passage_max_length": 65})


def test_folders_that_are_no_reranker(tiny, tiny_reranker, tmp_path):
    with pytest.raises(ModelError, match="is no cross-encoder"):
        read_reranker(tiny())
    with pytest.raises(ModelError, match="tells 3 classes apart"):
        read_reranker(tiny_reranker(labels=3))
    with pytest.raises(UsageError, match="no such folder"):
        read_reranker(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="is no cross-encoder"):
        read_reranker(tmp_path / "empty")


def test_a_cross_encoder_makes_no_vectors(tiny, tmp_path):
    saved(tmp_path / "r", tiny())
    with pytest.raises(ModelError, match="is a cross-encoder: it makes no vectors"):
        TextEncoder.load(str(tmp_path / "r"), compute=CPU)
    with pytest.raises(ModelError, match="a cross-encoder makes no vectors"):
        TextEncoder.load(str(tiny()), {"representation": "cross-encoder"}, compute=CPU)


def test_a_folder_cut_short_loads_nowhere(tiny, tmp_path, monkeypatch):
    def stop(*_, **__):
        raise OutputError("no room")

    monkeypatch.setattr("denserk.modeling.cross_encoder.write_config", stop)
    with pytest.raises(OutputError):
        saved(tmp_path / "r", tiny())
    with pytest.raises(ModelError, match=r"config\.json"):
        read_reranker(tmp_path / "r")


def test_the_fingerprint_is_of_weights_and_settings(tiny, tmp_path):
    stored = saved(tmp_path / "a", tiny())
    stored.save(tmp_path / "b")
    same = [read_reranker(tmp_path / name).fingerprint() for name in "ab"]
    assert same[0] == same[1]
    told = json.loads((tmp_path / "b" / "denserk.json").read_text())
    told["pairs"]["max_length"] = 20
    (tmp_path / "b" / "denserk.json").write_text(json.dumps(told))
    assert read_reranker(tmp_path / "b").fingerprint() != same[0]
