import json
import shutil
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from denserk.config.encoding import (
    ComputeSettings,
    PairSettings,
    RepresentationSettings,
    TextSettings,
)
from denserk.data.batches import PairJoiner
from denserk.data.tokenization import load_tokenizer
from denserk.errors import ModelError, UsageError
from denserk.models.cross_encoder import PairScorer, is_reranker, read_reranker, reranker_to_train
from denserk.models.model_folder import read_model_folder
from denserk.models.saving import save_model
from denserk.models.text_encoder import TextEncoder
from denserk.records import Passage, Query
from tests.support.tiny_models import RERANKERS
from tests.support.toy import PASSAGES, QUERIES

CPU = ComputeSettings(device="cpu")
SHORT: dict[str, Any] = {"query_max_length": 8, "passage_max_length": 16}
ALL_QUERIES = [Query(qid, text) for qid, text in QUERIES.items()]
ALL_PASSAGES = [Passage(docid, text, title) for docid, (title, text) in PASSAGES.items()]
# every query with every passage
PAIRS = list(product(ALL_QUERIES, ALL_PASSAGES))
PAIR_QUERIES = [query for query, _ in PAIRS]
PAIR_PASSAGES = [passage for _, passage in PAIRS]


def batch_of(folder):
    """Nine pairs, by the token ids of queries and passages."""
    joiner = PairJoiner(load_tokenizer(folder), TextSettings(), PairSettings())
    queries = [[2, 9, 14, 3], [2, 17, 3], [2, 3]]
    passages = [[2, 30, 8, 3], [2, 9, 3], [2, 3]]
    return joiner.batch([joiner.join(*pair) for pair in product(queries, passages)])


def saved(folder, source, **settings):
    stored = reranker_to_train(source, seed=3).fit(SHORT | settings)
    stored.save(folder)
    return stored


def test_the_new_head_is_the_paper_s_and_has_no_dropout(tiny):
    heads = [reranker_to_train(tiny(), seed).model.classifier for seed in (3, 3, *range(4, 60))]
    assert heads[0].weight.equal(heads[1].weight)
    assert not heads[0].weight.equal(heads[2].weight)
    assert heads[0].bias.tolist() == [0]
    weights = torch.cat([head.weight[0] for head in heads[1:]])
    # within three standard errors of a mean of 0 and a deviation of 0.02
    assert abs(weights.mean()) < 3 * 0.02 / len(weights) ** 0.5
    assert abs(weights.std() / 0.02 - 1) < 3 / (2 * len(weights)) ** 0.5
    with pytest.raises(ModelError, match=r"scores \[CLS\], which a t5 backbone does not have"):
        reranker_to_train(tiny("t5"), seed=3)
    reranker = reranker_to_train(tiny(), seed=3).train()
    batch = batch_of(tiny())
    reranker.model.base_model.eval()  # of the encoder
    assert reranker(batch).equal(reranker(batch))


@pytest.mark.parametrize("kind", RERANKERS)
def test_bfloat16_keeps_the_last_layers_in_float32(tiny, tiny_reranker, kind):
    folder = tiny_reranker(kind)
    batch = batch_of(folder)
    with torch.no_grad():
        expected = read_reranker(folder)(batch)
        scores = read_reranker(folder).compute_in(torch.bfloat16)(batch)
    torch.testing.assert_close(scores, expected, rtol=0.1, atol=0.1)
    linear = reranker_to_train(tiny(kind), seed=3).eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        scores_in_training = linear(batch_of(tiny(kind)))
    for float32_scores in (scores, scores_in_training):
        assert float32_scores.dtype == torch.float32
        assert not float32_scores.equal(float32_scores.bfloat16().float())


@pytest.mark.parametrize("kind", RERANKERS)
def test_what_was_saved_is_read_again_and_loads_in_transformers(tiny, tmp_path, kind):
    stored = saved(tmp_path / "r", tiny(kind), join="sep")
    read = read_reranker(tmp_path / "r")
    assert is_reranker(tmp_path / "r")
    assert read.text == stored.text
    assert read.pairs == PairSettings()
    batch = stored.joiner().batch([stored.joiner().join([2, 9, 3], [2, 8, 9, 3])])
    stored.eval()
    with torch.no_grad():
        expected = stored(batch)
        assert read(batch).equal(expected)
        model = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / "r").eval()
        logits = model(batch.tokens.input_ids, batch.tokens.attention_mask).logits
        for parameter in stored.parameters():
            parameter.add_(1)
    torch.testing.assert_close(logits[:, 0, 0], expected, rtol=0, atol=1e-6)
    assert AutoTokenizer.from_pretrained(tmp_path / "r").model_max_length == stored.joiner().limit
    stored.load(tmp_path / "r")  # as from a checkpoint
    assert stored(batch).equal(expected)


@pytest.mark.parametrize("kind", RERANKERS)
def test_a_published_reranker_keeps_its_head_lengths_and_token_types(tiny_reranker, tmp_path, kind):
    published = read_reranker(tiny_reranker(kind))
    types = kind in ("bert", "electra")
    assert published.joiner().limit == 64
    assert published.pairs == PairSettings(max_length=64, token_types=types)
    assert published.text == TextSettings(passage_max_length=64)
    published.save(tmp_path / "r")
    read = read_reranker(tmp_path / "r")
    assert read.text == published.text
    assert read.pairs == published.pairs
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "r")
    state = published.model.state_dict()
    assert model.state_dict().keys() == state.keys()
    assert all(tensor.equal(state[name]) for name, tensor in model.state_dict().items())


def test_training_continues_a_reranker_or_starts_from_a_retriever(tiny, tiny_reranker, tmp_path):
    saved(tmp_path / "r", tiny())
    assert reranker_to_train(tmp_path / "r", seed=9).is_linear
    published = reranker_to_train(tiny_reranker(), seed=9)
    assert not published.is_linear
    assert published.training
    query, passage = read_model_folder(tiny()).build(RepresentationSettings(), untie=True)
    tokenizer = AutoTokenizer.from_pretrained(tiny())
    save_model(tmp_path / "shared", passage, tokenizer, TextSettings(**SHORT))
    assert reranker_to_train(tmp_path / "shared", seed=9).text == TextSettings(**SHORT)
    save_model(tmp_path / "two", passage, tokenizer, TextSettings(), query)
    with pytest.raises(ModelError, match="separate encoders"):
        reranker_to_train(tmp_path / "two", seed=9)


def test_lengths_fit_the_positions(tiny):
    def fitted(text=None, pair_max_length=None):
        return reranker_to_train(tiny("roberta"), seed=3).fit(text or {}, pair_max_length)

    assert fitted(SHORT).joiner().limit == 8 + 16
    assert fitted(SHORT, 20).joiner().limit == 20
    assert fitted().joiner().limit == 64  # 32 + 128 tokens, cut to the positions
    with pytest.raises(UsageError, match="--passage-max-length 65"):
        fitted({"passage_max_length": 65})


def test_what_is_no_reranker_and_no_retriever(tiny, tiny_reranker, tmp_path):
    for folder, message in (
        (tiny(), "is no cross-encoder"),
        (tmp_path, "is no cross-encoder"),
        (tiny_reranker(labels=3), "has 3 labels"),
    ):
        with pytest.raises(ModelError, match=message):
            PairScorer(str(folder), compute=CPU)
    saved(tmp_path / "r", tiny())
    with pytest.raises(ModelError, match="a cross-encoder makes no vectors"):
        TextEncoder(str(tmp_path / "r"), compute=CPU)


@pytest.mark.parametrize("kind", RERANKERS)
def test_scores_are_those_of_transformers_whatever_the_batch(tiny_reranker, kind):
    """Tokenised as pairs by transformers, one at a time, with the token types it makes."""
    folder = tiny_reranker(kind)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    expected = []
    for query, passage in PAIRS:
        text = f"{passage.title} {passage.text}".strip()
        inputs = tokenizer(query.text, text, return_tensors="pt")
        assert ("token_type_ids" in inputs) == (kind in ("bert", "electra"))
        with torch.no_grad():
            expected.append(model(**inputs).logits.item())
    for compute in (CPU, ComputeSettings(device="cpu", batch_tokens=60, batch_size=3)):
        scores = PairScorer(str(folder), compute=compute).score(PAIR_QUERIES, PAIR_PASSAGES)
        assert scores.dtype == np.float32
        np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("file", "values", "setting"),
    [
        (
            "config_sentence_transformers.json",
            {"prompts": {"a": "find: "}, "default_prompt_name": "a"},
            "default_prompt_name",
        ),
        (
            "config_sentence_transformers.json",
            {"activation_fn": "torch.nn.modules.activation.ReLU"},
            "activation_fn",
        ),
        ("sentence_bert_config.json", {"processing_kwargs": {"a": 1}}, "processing_kwargs"),
    ],
)
def test_settings_of_a_foreign_cross_encoder_that_change_its_ranking_are_refused(
    tiny_reranker, tmp_path, file, values, setting
):
    folder = shutil.copytree(tiny_reranker(), tmp_path / "m")
    usual = {"activation_fn": "torch.nn.modules.activation.Sigmoid", "prompts": {"a": "find: "}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(usual))
    PairScorer(str(folder))
    (folder / file).write_text(json.dumps(values))
    with pytest.raises(ModelError, match=f"{file}: {setting}"):
        PairScorer(str(folder))
