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
from tests.support.finetuning import AGG, log_of, run_of, tune
from tests.support.tiny_models import without_dropout
from tests.support.toy import QUERIES


def encoded(folder, toy):
    files: dict[str, Any] = {"output": str(toy / "vectors"), "corpus": str(toy / "corpus.jsonl")}
    settings = EncodeSettings(model=str(folder), **files)
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
    options, vectors = REPRESENTATIONS[name]
    output = tmp_path / "out"
    result = tune(output, tiny("bert"), train, **options, untie=untie, max_steps=2)
    assert (result.steps, result.first_step) == (2, 0)
    stored = read_model_folder(output)
    assert stored.shared is not untie
    assert all((output / side).is_dir() is untie for side in ("query", "document"))
    found = dataclasses.asdict(stored.representation)
    assert found.pop("mlm_head") != MlmHead.FRESH
    for option, value in options.items():
        assert option == "mlm_head" or found.get(option, value) == value
    made = encoded(output, toy)
    assert made.manifest.contents["count"] == 6
    assert made.vectors_per_passage == vectors
    if name == "agg-fresh" and untie:
        sides = (load_file(output / side / "model.safetensors") for side in ("query", "document"))
        query, passage = (tensors["cls_proj.weight"] for tensors in sides)
        assert not torch.equal(query, passage)
        tune(tmp_path / "two", output, train, max_steps=2)  # stays untied
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
    parts = ("loss_contrastive", "loss_cls", "loss_agg")
    for entry in losses:
        assert entry["loss"] == pytest.approx(sum(entry[part] for part in parts), rel=1e-3)
    assert [e["step"] for e in record["log"] if "eval_dev-loss" in e] == [5, 10]
    assert result.loss == losses[-1]["loss"]
    assert [entry["epoch"] for entry in losses] == [pytest.approx(n / 6) for n in (2, 4, 6, 8, 10)]


@pytest.mark.parametrize("dead", [True, False])
def test_a_part_that_learns_nothing_is_warned_of_once(dead, tiny, train, tmp_path, caplog):
    options: dict[str, Any] = {"agg_weight": 0.3, "mask_false_negatives": True, "max_steps": 16}
    options |= {} if dead else {"agg_kind": AggKind.AVERAGE}
    tune(tmp_path / "out", tiny("bert"), train, **AGG, **options)
    found = [text for text in warnings_of(caplog) if "has learned nothing" in text]
    assert len(found) == dead
    assert all("the agg part" in text and "--mlm-head none" in text for text in found)
    for entry in (entries := log_of(tmp_path / "out")):
        assert entry["chance_cls"] == pytest.approx(entry["chance_agg"] / 0.3 * 0.5)
        assert entry["chance_agg"] <= 0.3 * log(12) + 1e-6  # 4 queries with 3 passages each
    assert (entries[-1]["loss_agg"] == pytest.approx(entries[-1]["chance_agg"], rel=1e-2)) is dead


def test_matryoshka(tiny, train, toy, tmp_path):
    output, options = tmp_path / "out", {"l2_norm": True, "temperature": 0.1, "distillation": "kl"}
    tune(output, tiny("bert"), train, **options, dimensions=(16, 4), grad_cache=True)
    entries = [entry for entry in log_of(output) if "loss" in entry]
    parts = [f"loss_{name}_{size}" for size in (16, 4) for name in ("contrastive", "distillation")]
    for entry in entries:
        assert entry["loss"] == pytest.approx(sum(entry[part] for part in parts), rel=1e-3)
    convert_model(str(output), tmp_path / "again", ModelLayout.DENSERK)
    for folder in (output, tmp_path / "again"):
        assert json.loads((folder / "denserk.json").read_text())["dimensions"] == [16, 4]
        assert "trained at 16, 4 dimensions" in (folder / "README.md").read_text()
    assert encoded(output, toy).dimension == 16


def test_weights_stay_float32_in_bfloat16(tiny, train, tmp_path):
    options = {"dtype": Dtype.BFLOAT16, "max_steps": 2, "grad_cache": True}
    tune(tmp_path / "out", tiny("bert"), train, **AGG, **options)
    tensors = load_file(tmp_path / "out" / "model.safetensors").values()
    assert all(tensor.dtype == torch.float32 and tensor.isfinite().all() for tensor in tensors)


def test_a_cpu_without_bfloat16_trains_in_float32(tiny, train, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("denserk.models.processor.has_bfloat16", lambda: False)
    for dtype in (Dtype.BFLOAT16, Dtype.FLOAT32):
        tune(tmp_path / dtype, tiny("bert"), train, **AGG, dtype=dtype, max_steps=1)
    one, other = (load_file(tmp_path / d / "model.safetensors") for d in ("bfloat16", "float32"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert "training computes in float32" in caplog.text


@pytest.mark.parametrize("name", ["agg", "mlr-mix"])
def test_gradient_checkpointing_leaves_the_model_as_it_is(tiny, train, tmp_path, name):
    settings = REPRESENTATIONS[name][0] | {"max_steps": 2}
    model = without_dropout(tiny("bert"), tmp_path / "model")
    for used in (False, True):
        options = settings | {"gradient_checkpointing": used, "grad_cache": used}
        options |= {"chunk_tokens": 10_000} if used else {}
        tune(tmp_path / str(used), model, train, **options)
    one, other = (load_file(tmp_path / str(u) / "model.safetensors") for u in (False, True))
    assert one.keys() == other.keys()
    for tensor, value in one.items():
        if not tensor.endswith("key.bias"):  # the softmax is blind to them: Adam enlarges rounding
            torch.testing.assert_close(other[tensor], value, rtol=0, atol=1e-4)


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
    more = {"max_steps": 60, "r_drop": 0.5, "dev_data": train, "eval_steps": 20, "group_size": 4}
    assert tune(tmp_path / "r", tiny("electra"), train, **CROSS_ENCODER, **more).steps == 60
    stored = read_reranker(tmp_path / "r")
    assert stored.pairs == PairSettings(max_length=24)
    assert stored.text.query_max_length == 8
    history = log_of(tmp_path / "r")
    measured = [entry["eval_dev-loss"] for entry in history if "eval_dev-loss" in entry]
    assert len(measured) == 3
    assert measured[-1] < 0.7 * log(4)  # log 4 is chance
    assert any({"loss_listwise", "loss_agreement"} <= entry.keys() for entry in history)


@pytest.mark.parametrize("kind", ["bert", "distilbert"])
def test_a_published_reranker_is_trained_on(tiny_reranker, train, tmp_path, kind):
    assert kind_of_training(run_of(tmp_path, tiny_reranker(kind), train)) == "cross-encoder"
    tune(tmp_path / "r", tiny_reranker(kind), train, **SETTINGS, max_steps=2)
    before, after = (
        load_file(folder / "model.safetensors") for folder in (tiny_reranker(kind), tmp_path / "r")
    )
    assert before.keys() == after.keys()
    assert not after["classifier.weight"].equal(before["classifier.weight"])
    assert read_reranker(tmp_path / "r").pairs.token_types == (kind == "bert")


def test_a_card_reports_the_run_and_its_examples_work(tiny, toy, monkeypatch):
    monkeypatch.chdir(toy)
    odd = "a|`b`: #*c*.jsonl"  # to Markdown and YAML
    rows = [{"query": q, "pos": ["the cat"], "neg": ["a boat"]} for q in QUERIES.values()]
    Path(odd).write_text("".join(json.dumps(row) + "\n" for row in rows))
    options: dict[str, Any] = {"batch_size": 1, "max_steps": 3, "seed": 9, "lr": 1e-3}
    options["representation"] = "mean"
    choice: dict[str, Any] = {"dev_data": odd, "eval_steps": 1, "best_by": "RR@10", "device": "cpu"}
    denserk.finetune(tiny(), odd, "MODEL", **options, **choice)
    card = ModelCard.load("MODEL/README.md")
    log = json.loads(Path("MODEL/training.json").read_text())["log"]
    best = max(entry["eval_RR@10"] for entry in log if "eval_RR@10" in entry)
    results = {e.metric_type: e.metric_value for e in card.data.eval_results}
    assert results["RR@10"] == pytest.approx(best, abs=1e-4)
    found = dict(re.findall(r"^\| ([^|]+) \| (.*) \|$", card.text, re.MULTILINE))
    assert found["Training data"] == "1 local file"
    assert "jsonl" not in card.content.partition("## Training")[2]
    assert {e.dataset_name for e in card.data.eval_results} == {"held-out data"}
    made = [found[name] for name in ("Contents", "Learning rate", "Steps", "Seed")]
    assert made == ["3 examples, 2 passages", "0.001", "3", "9"]
    commands, code = re.findall(r"```(?:bash|python)\n(.*?)```", card.text, re.DOTALL)[:2]
    assert all(run(shlex.split(line)[1:]) == 0 for line in commands.splitlines())
    assert [hits.qid for hits in read_run("run.trec")] == list(QUERIES)
    exec(code)
