import json
import shutil
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from denserk.config.encoding import (
    ComputeSettings,
    PairSettings,
    RepresentationSettings,
    TextSettings,
)
from denserk.data.pairs import PairJoiner
from denserk.data.tokenization import load_tokenizer
from denserk.errors import ModelError, OutputError, UsageError
from denserk.models.cross_encoder import (
    PairScorer,
    Reranker,
    begin_reranker,
    is_reranker,
    read_reranker,
)
from denserk.models.model_folder import save_model
from denserk.models.stored_model import StoredEncoder, read_model_folder
from denserk.models.text_encoder import TextEncoder
from denserk.records import Passage, Query
from tests.conftest import PASSAGES, QUERIES
from tests.reporters import Heard
from tests.tiny_models import RERANKERS


def batch_of(folder, token_types=False):
    joiner = PairJoiner(load_tokenizer(folder), TextSettings(), PairSettings(None, token_types))
    queries, passages = [[2, 9, 14, 3], [2, 17, 3], [2, 3]], [[2, 30, 8, 3], [2, 9, 3], [2, 3]]
    return joiner.batch([joiner.join(q, p) for q in queries for p in passages])


@pytest.mark.parametrize("kind", RERANKERS)
@pytest.mark.parametrize("token_types", [True, False])
def test_published_rerankers_score_as_in_transformers(tiny_reranker, kind, token_types):
    folder = tiny_reranker(kind)
    given = token_types and kind != "distilbert"
    batch = batch_of(folder, given)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    inputs = {"token_type_ids": batch.token_types} if given else {}
    with torch.no_grad():
        expected = model(batch.tokens.input_ids, batch.tokens.attention_mask, **inputs).logits[:, 0]
        got = read_reranker(folder).reranker(batch)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", RERANKERS)
def test_the_linear_score_is_a_layer_on_cls(tiny, kind):
    stored = StoredEncoder.read(tiny(kind))
    reranker = Reranker.begin(stored, seed=3).eval()
    weight = reranker.model.classifier.weight.detach()
    reranker.model.classifier.bias.data += 0.5
    encoder = transformers.AutoModel.from_pretrained(tiny(kind)).eval()
    batch = batch_of(tiny(kind))
    with torch.no_grad():
        states = encoder(batch.tokens.input_ids, batch.tokens.attention_mask).last_hidden_state
        expected = [sum(a * b for a, b in zip(weight[0], s[0], strict=True)) + 0.5 for s in states]
        got = reranker(batch)
    torch.testing.assert_close(got, torch.stack(expected), rtol=1e-5, atol=1e-6)


def test_the_new_head_is_drawn_by_its_seed_alone(tiny):
    stored = StoredEncoder.read(tiny())
    heads = [Reranker.begin(stored, seed).model.classifier for seed in (3, 3, 4)]
    assert heads[0].weight.equal(heads[1].weight)
    assert not heads[0].weight.equal(heads[2].weight)
    assert heads[0].bias.tolist() == [0]
    assert all(p.requires_grad for p in heads[0].parameters())


def test_the_new_head_has_the_deviation_of_the_paper(tiny):
    stored = StoredEncoder.read(tiny())
    drawn = torch.cat([Reranker.begin(stored, s).model.classifier.weight[0] for s in range(60)])
    assert abs(drawn.mean()) < 3 * 0.02 / len(drawn) ** 0.5
    assert abs(drawn.std() / 0.02 - 1) < 3 / (2 * len(drawn)) ** 0.5


def test_there_is_no_dropout_between_encoder_and_head(tiny):
    reranker = Reranker.begin(StoredEncoder.read(tiny()), seed=3).train()
    batch = batch_of(tiny())
    for module in reranker.model.base_model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "dropout_prob"):
            module.dropout_prob = 0.0
    reranker.model.config.attention_probs_dropout_prob = 0.0
    assert reranker(batch).equal(reranker(batch))


@pytest.mark.parametrize("kind", RERANKERS)
def test_bfloat16_keeps_the_last_layers_in_float32(tiny_reranker, kind):
    folder = tiny_reranker(kind)
    exact = read_reranker(folder).reranker
    short = read_reranker(folder).reranker
    batch = batch_of(folder)
    with torch.no_grad():
        expected, got = exact(batch), short.compute_in(torch.bfloat16)(batch)
    assert got.dtype == torch.float32
    assert not got.equal(got.bfloat16().float())
    torch.testing.assert_close(got, expected, rtol=0.1, atol=0.1)


def test_the_linear_score_in_bfloat16_under_autocast_is_a_float32_product(tiny):
    reranker = Reranker.begin(StoredEncoder.read(tiny()), seed=3).eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        scores = reranker(batch_of(tiny()))
    assert scores.dtype == torch.float32
    assert not scores.equal(scores.bfloat16().float())


def test_a_t5_encoder_is_refused(tiny):
    with pytest.raises(ModelError, match="scores \\[CLS\\], which a t5 backbone does not have"):
        Reranker.begin(StoredEncoder.read(tiny("t5")), seed=3)


def rewrite(folder, target, tensors):
    shutil.copytree(folder, target)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


@pytest.mark.parametrize("kind", RERANKERS)
def test_weights_that_do_not_belong_are_named(tiny_reranker, kind, tmp_path):
    folder = tiny_reranker(kind)
    tensors = load_file(folder / "model.safetensors")
    lost = next(name for name in tensors if name.startswith("classifier"))
    del tensors[lost]
    with pytest.raises(ModelError, match=f"missing: {lost}"):
        read_reranker(rewrite(folder, tmp_path / "r", tensors))


def test_old_names_buffers_and_unused_parts_are_passed_over(tiny_reranker, tmp_path):
    folder = tiny_reranker("electra")
    tensors = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma"): tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
    }
    tensors["electra.embeddings.position_ids"] = torch.arange(64)[None]
    tensors["discriminator_predictions.dense.weight"] = torch.zeros(2, 2)
    batch = batch_of(folder)
    with torch.no_grad():
        got = read_reranker(rewrite(folder, tmp_path / "r", tensors)).reranker(batch)
        torch.testing.assert_close(got, read_reranker(folder).reranker(batch), rtol=0, atol=1e-6)


def test_positions(tiny):
    assert Reranker.begin(StoredEncoder.read(tiny("roberta")), seed=3).max_length == 64


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

    monkeypatch.setattr("denserk.models.cross_encoder.write_config", stop)
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


ASKED = [Query(qid, text) for qid, text in QUERIES.items() for _ in PASSAGES]
GIVEN = [Passage(d, text, title) for _ in QUERIES for d, (title, text) in PASSAGES.items()]


@pytest.mark.parametrize("kind", RERANKERS)
def test_scores_are_those_of_transformers(tiny_reranker, kind):
    """Tokenised as pairs by transformers, one at a time, with the token types it makes."""
    folder = tiny_reranker(kind)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    expected = []
    for query, passage in zip(ASKED, GIVEN, strict=True):
        text = f"{passage.title} {passage.text}".strip()
        inputs = tokenizer(query.text, text, return_tensors="pt")
        assert ("token_type_ids" in inputs) == (kind in ("bert", "electra"))
        with torch.no_grad():
            expected.append(model(**inputs).logits.item())
    got = PairScorer.load(str(folder), compute=CPU).score(ASKED, GIVEN)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", RERANKERS)
@pytest.mark.parametrize(
    "compute", [{"batch_tokens": 1}, {"batch_tokens": 60}, {"batch_size": 3, "threads": 1}]
)
def test_scores_do_not_depend_on_their_batch(tiny_reranker, kind, compute):
    threads = torch.get_num_threads()
    folder, own = str(tiny_reranker(kind)), ComputeSettings(device="cpu", **compute)
    together = PairScorer.load(folder, compute=CPU).score(ASKED, GIVEN)
    apart = PairScorer.load(folder, compute=own).score(ASKED, GIVEN)
    torch.set_num_threads(threads)
    np.testing.assert_allclose(apart, together, rtol=0, atol=1e-5)


def test_nothing_to_score(tiny_reranker):
    assert PairScorer.load(str(tiny_reranker()), compute=CPU).score([], []).shape == (0,)


def test_texts_and_lengths_may_be_replaced(tiny_reranker):
    folder = str(tiny_reranker())
    plain = PairScorer.load(folder, compute=CPU).score(ASKED, GIVEN)
    untitled = PairScorer.load(folder, {"fields": ["text"]}, compute=CPU).score(ASKED, GIVEN)
    without = [passage._replace(title="") for passage in GIVEN]
    np.testing.assert_array_equal(
        untitled, PairScorer.load(folder, compute=CPU).score(ASKED, without)
    )
    assert (untitled != plain).any()
    short = PairScorer.load(folder, {"query_max_length": 5}, 9, CPU)
    assert short.joiner.limit == 9
    assert (short.score(ASKED, GIVEN) != plain).any()


def test_it_tells_what_it_took_where_the_folder_does_not_say(tiny_reranker):
    notes: list[str] = []

    class Noting(Heard):
        def note(self, text: str) -> None:
            notes.append(text)

    Noting()

    PairScorer.load(str(tiny_reranker()), compute=CPU)
    assert notes == [
        f"{tiny_reranker()} does not say how its texts are made: title, text of 64 tokens, "
        "queries of 32, 64 in all"
    ]


def test_it_describes_itself_in_plain_json(tiny_reranker):
    told = PairScorer.load(str(tiny_reranker("electra")), compute=CPU).description()
    assert json.loads(json.dumps(told)) == told
    assert told["backbone"] == "electra"
    assert told["pairs"] == {"max_length": 64, "token_types": True}


@pytest.mark.parametrize(
    ("model", "refusal", "words"),
    [("nowhere/at/all", UsageError, "no such folder"), (None, ModelError, "is no cross-encoder")],
)
def test_models_that_do_not_score(tiny, model, refusal, words):
    with pytest.raises(refusal, match=words):
        PairScorer.load(model or str(tiny()), compute=CPU)


@pytest.mark.peer
@pytest.mark.parametrize("kind", ["bert", "electra", "roberta"])
def test_scores_are_those_of_sentence_transformers(tiny_reranker, kind):
    st = pytest.importorskip("sentence_transformers")
    theirs = st.CrossEncoder(str(tiny_reranker(kind)), device="cpu")
    texts = [f"{passage.title} {passage.text}".strip() for passage in GIVEN]
    pairs = list(zip([query.text for query in ASKED], texts, strict=True))
    expected = theirs.predict(pairs, activation_fn=torch.nn.Identity())
    got = PairScorer.load(str(tiny_reranker(kind)), compute=CPU).score(ASKED, GIVEN)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)
