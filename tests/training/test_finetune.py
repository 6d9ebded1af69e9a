import dataclasses
import json
import re
import shlex
from math import log
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file

import denserk
from denserk.commands.app import run
from denserk.config.encoding import (
    AggKind,
    ComputeSettings,
    Dtype,
    EncodeSettings,
    MlmHead,
    ModelLayout,
    ModelOptions,
    PairSettings,
    Reduction,
    Representation,
)
from denserk.config.formats import CorpusSettings
from denserk.io.runs import read_run
from denserk.io.vectors import open_vectors
from denserk.models.cross_encoder import read_reranker
from denserk.models.layouts import convert_model
from denserk.models.model_folder import read_model_folder
from denserk.tasks.encode import encode
from denserk.tasks.finetune import kind_of_training
from tests.support.console import warnings_of
from tests.support.finetuning import AGG, log_of, run_of, tune, weights
from tests.support.tiny_models import without_dropout
from tests.support.toy import QUERIES
from tests.support.training_examples import jsonl


def encoded(folder, toy):
    """The toy corpus, encoded by a model."""
    settings = EncodeSettings(
        model=str(folder), output=str(toy / "vectors"), corpus=str(toy / "corpus.jsonl")
    )
    encode(settings, CorpusSettings(), ModelOptions(compute=ComputeSettings(device="cpu")))
    return open_vectors(toy / "vectors")


MLR: dict[str, Any] = {"representation": Representation.MLR}
ME_BERT: dict[str, Any] = {"representation": Representation.ME_BERT}
REPRESENTATIONS: dict[str, tuple[dict[str, Any], int]] = {
    "cls": ({"representation": Representation.CLS}, 1),
    "mean": ({"representation": Representation.MEAN, "l2_norm": True, "temperature": 0.05}, 1),
    "agg": (AGG, 1),
    "agg-fresh": (AGG | {"mlm_head": MlmHead.FRESH}, 1),
    "agg-bare": (AGG | {"mlm_head": MlmHead.NONE}, 1),
    "mlr": (MLR, 1),
    "mlr-mix": (MLR | {"reduction": Reduction.SCALAR_MIX}, 1),
    "mlr-multi": (MLR | {"reduction": Reduction.MULTI_VECTOR}, 2),
    "me-bert": (ME_BERT | {"vectors": 3, "reduction": Reduction.MULTI_VECTOR}, 3),
    "colbert": ({"representation": Representation.COLBERT, "reduction": Reduction.AVERAGE}, 1),
}


@pytest.mark.parametrize(
    ("name", "untie"),
    [*((name, False) for name in REPRESENTATIONS), ("agg-fresh", True), ("mlr-mix", True)],
)
def test_encode_takes_the_folder_as_it_stands(tiny, train, toy, tmp_path, name, untie):
    options, vectors_per_passage = REPRESENTATIONS[name]
    output = tmp_path / "out"
    result = tune(output, tiny("bert"), train, **options, untie=untie, max_steps=2)
    assert result.steps == 2
    assert result.first_step == 0
    stored = read_model_folder(output)
    assert stored.shared is not untie
    for side in ("query", "document"):
        assert (output / side).is_dir() is untie
    settings = dataclasses.asdict(stored.representation)
    assert settings.pop("mlm_head") != MlmHead.FRESH
    for option, value in options.items():
        assert option == "mlm_head" or settings.get(option, value) == value
    vectors = encoded(output, toy)
    assert vectors.manifest.contents["count"] == 6
    assert vectors.vectors_per_passage == vectors_per_passage


def test_untied_encoders_have_heads_of_their_own_and_stay_untied(tiny, train, tmp_path):
    output = tmp_path / "out"
    options, _ = REPRESENTATIONS["agg-fresh"]
    tune(output, tiny("bert"), train, **options, untie=True, max_steps=2)
    query_tensors = load_file(output / "query" / "model.safetensors")
    passage_tensors = load_file(output / "document" / "model.safetensors")
    assert not query_tensors["cls_proj.weight"].equal(passage_tensors["cls_proj.weight"])
    tune(tmp_path / "two", output, train, max_steps=2)
    assert (tmp_path / "two" / "query").is_dir()


def test_settings_versions_log_and_curves_are_kept(tiny, train, dev, tmp_path):
    result = tune(tmp_path / "out", tiny("bert"), train, dev_data=dev, eval_steps=5, **AGG)
    assert (tmp_path / "out" / "training.png").read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "out.training" / "logs").exists()
    record = json.loads((tmp_path / "out" / "training.json").read_text())
    assert record["versions"].keys() == {"denserk", "torch", "transformers"}
    assert record["optimizer"]["lr"] == 0.01
    assert record["representation"]["agg_dim"] == 20
    assert record["text"]["query_max_length"] == 32
    (source,) = record["data"]["training-data"].values()
    assert (tmp_path / "out" / source["name"]).samefile(train)
    losses = [entry for entry in record["log"] if "loss" in entry]
    assert [entry["step"] for entry in losses] == [2, 4, 6, 8, 10]
    for entry in losses:
        sum_of_terms = entry["loss_contrastive"] + entry["loss_cls"] + entry["loss_agg"]
        assert entry["loss"] == pytest.approx(sum_of_terms, rel=1e-3)
        assert entry["epoch"] == pytest.approx(entry["step"] / 6)
    validations = [entry for entry in record["log"] if "eval_dev-loss" in entry]
    assert [entry["step"] for entry in validations] == [5, 10]
    assert result.loss == losses[-1]["loss"]


@pytest.mark.parametrize(("agg_kind", "learns"), [(AggKind.STAR, False), (AggKind.AVERAGE, True)])
def test_a_part_that_learns_nothing_is_warned_of_once(
    agg_kind, learns, tiny, train, tmp_path, caplog
):
    options = AGG | {"agg_kind": agg_kind, "agg_weight": 0.3}
    tune(tmp_path / "out", tiny("bert"), train, **options, mask_false_negatives=True, max_steps=16)
    warnings = [text for text in warnings_of(caplog) if "has learned nothing" in text]
    entries = log_of(tmp_path / "out")
    for entry in entries:
        assert entry["chance_cls"] == pytest.approx(entry["chance_agg"] / 0.3 * 0.5)
        assert entry["chance_agg"] <= 0.3 * log(12) + 1e-6  # 4 queries with 3 passages each
    last_entry = entries[-1]
    if learns:
        assert warnings == []
        assert last_entry["loss_agg"] != pytest.approx(last_entry["chance_agg"], rel=1e-2)
    else:
        [warning] = warnings
        assert "the agg part" in warning
        assert "--mlm-head none" in warning
        assert last_entry["loss_agg"] == pytest.approx(last_entry["chance_agg"], rel=1e-2)


def test_matryoshka_trains_and_records_its_dimensions(tiny, train, toy, tmp_path):
    output = tmp_path / "out"
    options = {"l2_norm": True, "temperature": 0.1, "distillation": "kl", "grad_cache": True}
    tune(output, tiny("bert"), train, **options, dimensions=(16, 4))
    for entry in log_of(output):
        sum_of_terms = (
            entry["loss_contrastive_16"]
            + entry["loss_distillation_16"]
            + entry["loss_contrastive_4"]
            + entry["loss_distillation_4"]
        )
        assert entry["loss"] == pytest.approx(sum_of_terms, rel=1e-3)
    convert_model(str(output), tmp_path / "again", ModelLayout.DENSERK)
    for folder in (output, tmp_path / "again"):
        assert json.loads((folder / "denserk.json").read_text())["dimensions"] == [16, 4]
        assert "trained at 16, 4 dimensions" in (folder / "README.md").read_text()
    assert encoded(output, toy).dimension == 16


def test_weights_stay_float32_in_bfloat16(tiny, train, tmp_path):
    options = {"dtype": Dtype.BFLOAT16, "max_steps": 2, "grad_cache": True}
    tune(tmp_path / "out", tiny("bert"), train, **AGG, **options)
    for tensor in load_file(tmp_path / "out" / "model.safetensors").values():
        assert tensor.dtype == torch.float32
        assert tensor.isfinite().all()


def test_a_cpu_without_bfloat16_trains_in_float32(tiny, train, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("denserk.models.processor.has_bfloat16", lambda: False)
    for dtype in (Dtype.BFLOAT16, Dtype.FLOAT32):
        tune(tmp_path / dtype, tiny("bert"), train, **AGG, dtype=dtype, max_steps=1)
    assert weights(tmp_path / "bfloat16") == weights(tmp_path / "float32")
    assert "training computes in float32" in caplog.text


@pytest.mark.parametrize("name", ["agg", "mlr-mix"])
def test_gradient_checkpointing_leaves_the_model_as_it_is(tiny, train, tmp_path, name):
    settings, _ = REPRESENTATIONS[name]
    model = without_dropout(tiny("bert"), tmp_path / "model")
    less_memory = {"gradient_checkpointing": True, "grad_cache": True, "chunk_tokens": 10_000}
    tune(tmp_path / "usual", model, train, **settings, max_steps=2)
    tune(tmp_path / "less", model, train, **settings, **less_memory, max_steps=2)
    expected = load_file(tmp_path / "usual" / "model.safetensors")
    tensors = load_file(tmp_path / "less" / "model.safetensors")
    assert tensors.keys() == expected.keys()
    for tensor, value in expected.items():
        if not tensor.endswith("key.bias"):  # the softmax is blind to them: Adam enlarges rounding
            torch.testing.assert_close(tensors[tensor], value, rtol=0, atol=1e-4)


def test_accumulated_batches_are_one_step(tiny, train, tmp_path):
    options = {"gradient_accumulation_steps": 2, "max_steps": None, "epochs": 3, "save_steps": 2}
    result = tune(tmp_path / "out", tiny("bert"), train, **options, report_to=("tensorboard",))
    assert result.steps == 9  # 24 queries, 4 in a batch, 2 batches in a step, 3 epochs
    assert {path.name for path in (tmp_path / "out.training" / "checkpoints").iterdir()} == {
        "checkpoint-9"
    }
    assert any((tmp_path / "out.training" / "logs").iterdir())
    assert tune(tmp_path / "half", tiny("bert"), train, **options | {"max_steps": 4}).steps == 4


SETTINGS = {"pair_max_length": 24, "query_max_length": 8, "lr": 3e-3}
CROSS_ENCODER = {"representation": "cross-encoder", **SETTINGS}


def test_a_run_learns_validates_and_saves_what_search_takes(tiny, train, tmp_path):
    options = CROSS_ENCODER | {"r_drop": 0.5, "group_size": 4, "max_steps": 60}
    result = tune(tmp_path / "r", tiny("electra"), train, **options, dev_data=train, eval_steps=20)
    assert result.steps == 60
    stored = read_reranker(tmp_path / "r")
    assert stored.pairs == PairSettings(max_length=24)
    assert stored.text.query_max_length == 8
    history = log_of(tmp_path / "r")
    dev_losses = [entry["eval_dev-loss"] for entry in history if "eval_dev-loss" in entry]
    assert len(dev_losses) == 3
    assert dev_losses[-1] < 0.7 * log(4)  # log 4 is chance
    assert any({"loss_listwise", "loss_agreement"} <= entry.keys() for entry in history)


@pytest.mark.parametrize("kind", ["bert", "distilbert"])
def test_a_published_reranker_is_trained_on(tiny_reranker, train, tmp_path, kind):
    assert kind_of_training(run_of(tmp_path, tiny_reranker(kind), train)) == "cross-encoder"
    tune(tmp_path / "r", tiny_reranker(kind), train, **SETTINGS, max_steps=2)
    before = load_file(tiny_reranker(kind) / "model.safetensors")
    after = load_file(tmp_path / "r" / "model.safetensors")
    assert before.keys() == after.keys()
    assert not after["classifier.weight"].equal(before["classifier.weight"])
    assert read_reranker(tmp_path / "r").pairs.token_types == (kind == "bert")


def test_a_card_reports_the_run_and_its_examples_work(tiny, toy, monkeypatch):
    monkeypatch.chdir(toy)
    odd_name = "a|`b`: #*c*.jsonl"  # to Markdown and YAML
    examples = [{"query": q, "pos": ["the cat"], "neg": ["a boat"]} for q in QUERIES.values()]
    jsonl(Path(odd_name), examples)
    denserk.finetune(
        tiny(),
        odd_name,
        "MODEL",
        representation="mean",
        batch_size=1,
        max_steps=3,
        seed=9,
        lr=1e-3,
        dev_data=odd_name,
        eval_steps=1,
        best_by="RR@10",
        device="cpu",
    )
    card = ModelCard.load("MODEL/README.md")
    best = max(entry["eval_RR@10"] for entry in log_of(Path("MODEL")) if "eval_RR@10" in entry)
    results = {result.metric_type: result.metric_value for result in card.data.eval_results}
    assert results["RR@10"] == pytest.approx(best, abs=1e-4)
    assert {result.dataset_name for result in card.data.eval_results} == {"held-out data"}
    cells = dict(re.findall(r"^\| ([^|]+) \| (.*) \|$", card.text, re.MULTILINE))
    assert cells["Training data"] == "1 local file"
    assert cells["Contents"] == "3 examples, 2 passages"
    assert cells["Learning rate"] == "0.001"
    assert cells["Steps"] == "3"
    assert cells["Seed"] == "9"
    _, _, text_on_training = card.content.partition("## Training")
    assert "jsonl" not in text_on_training
    commands, code, *_ = re.findall(r"```(?:bash|python)\n(.*?)```", card.text, re.DOTALL)
    for line in commands.splitlines():
        assert run(shlex.split(line)[1:]) == 0
    assert [hits.qid for hits in read_run("run.trec")] == list(QUERIES)
    exec(code)
