"""BERT's pooler, by which denserk computes nothing, is kept for the libraries that build it."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from denserk.config.encoding import ComputeSettings, ModelLayout
from denserk.models.layouts import convert_model
from denserk.models.saving import WEIGHTS_FILE
from denserk.models.text_encoder import TextEncoder
from denserk.records import Passage
from tests.support.finetuning import tune, write_examples
from tests.support.pretraining import train as pretrain
from tests.support.pretraining import write_corpus
from tests.support.tiny_models import tiny_config, tiny_tokenizer
from tests.support.toy import VOCABULARY

CPU = ComputeSettings(device="cpu")
AGG = {"representation": "agg", "agg_dim": 12, "cls_dim": 4}
PASSAGES = [Passage("a", "the old river"), Passage("b", "cat dog fish")]


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """`start("bare")` or `start("pretrained")`: a BERT with a pooler, without and with MLM head."""
    root = tmp_path_factory.mktemp("starts")
    classes = {"bare": transformers.BertModel, "pretrained": transformers.BertForPreTraining}
    for name, model_class in classes.items():
        tokenizer = tiny_tokenizer("bert", VOCABULARY)
        torch.manual_seed(5)
        model: Any = model_class(tiny_config("bert", len(tokenizer)))
        model.save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    return lambda name: root / name


def pooler_of(folder):
    """The pooler's weights in a folder, by their names in the bare model."""
    tensors = {}
    for name, tensor in load_file(folder / WEIGHTS_FILE).items():
        name_in_base = name.removeprefix("bert.")
        if name_in_base.startswith("pooler."):
            tensors[name_in_base] = tensor
    return tensors


def assert_pooler_is_kept(folder, start_folder):
    """The pooler's weights are those of the start, and transformers misses nothing."""
    expected = pooler_of(start_folder)
    tensors = pooler_of(folder)
    assert tensors.keys() == expected.keys() == {"pooler.dense.weight", "pooler.dense.bias"}
    for name, tensor in tensors.items():
        assert tensor.equal(expected[name])
    _, info = transformers.AutoModel.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]


@pytest.mark.parametrize("kind", ["bare", "pretrained"])
def test_a_trained_model_and_its_checkpoints_keep_it(start, tmp_path, kind):
    train = write_examples(tmp_path / "train.jsonl", range(8))
    tune(tmp_path / "out", start(kind), train, representation="mean", max_steps=2)
    assert_pooler_is_kept(tmp_path / "out", start(kind))
    trained = load_file(tmp_path / "out" / WEIGHTS_FILE)
    assert len(trained) == len(transformers.AutoModel.from_pretrained(start(kind)).state_dict())


def test_with_an_mlm_head_and_separate_encoders(start, tmp_path):
    train = write_examples(tmp_path / "train.jsonl", range(8))
    tune(tmp_path / "out", start("pretrained"), train, **AGG, max_steps=2, untie=True)
    for side in ("query", "document"):
        assert_pooler_is_kept(tmp_path / "out" / side, start("pretrained"))


def test_with_adapters(start, tmp_path):
    pytest.importorskip("peft")
    train = write_examples(tmp_path / "train.jsonl", range(8))
    tune(tmp_path / "out", start("bare"), train, representation="mean", max_steps=2, lora=2)
    assert_pooler_is_kept(tmp_path / "out", start("bare"))


def test_conversion_and_means_keep_it(start, tmp_path):
    train = write_examples(tmp_path / "train.jsonl", range(8))
    for name, rate in (("one", 0.01), ("two", 0.03)):
        options = {"representation": "mean", "max_steps": 2, "lr": rate}
        tune(tmp_path / name, start("bare"), train, **options)
    other_model = str(tmp_path / "two")
    convert_model(
        str(tmp_path / "one"), tmp_path / "mean", ModelLayout.DENSERK, average=[other_model]
    )
    assert_pooler_is_kept(tmp_path / "mean", start("bare"))


@pytest.mark.parametrize("objective", ["mlm", "condenser"])
def test_a_pretrained_model_keeps_it(start, tmp_path, objective):
    corpus = write_corpus(tmp_path / "corpus.jsonl")
    pretrain(tmp_path / "out", corpus, objective, start("pretrained"))
    assert_pooler_is_kept(tmp_path / "out", start("pretrained"))


def test_it_changes_no_vector(start, tmp_path):
    """A model without the pooler's weights, as older versions saved it, has the same vectors."""
    train = write_examples(tmp_path / "train.jsonl", range(8))
    tune(tmp_path / "out", start("bare"), train, representation="mean", max_steps=2)
    with_pooler = TextEncoder(str(tmp_path / "out"), compute=CPU).encode_passages(PASSAGES)
    tensors = load_file(tmp_path / "out" / WEIGHTS_FILE)
    older = {name: tensor for name, tensor in tensors.items() if "pooler" not in name}
    save_file(older, tmp_path / "out" / WEIGHTS_FILE, {"format": "pt"})
    without_pooler = TextEncoder(str(tmp_path / "out"), compute=CPU).encode_passages(PASSAGES)
    np.testing.assert_array_equal(with_pooler, without_pooler)


def test_none_is_made(tiny, tmp_path):
    train = write_examples(tmp_path / "train.jsonl", range(8))
    tune(tmp_path / "out", tiny("bert"), train, representation="mean", max_steps=2)
    assert not pooler_of(tmp_path / "out")
