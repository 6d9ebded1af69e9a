"""What comes out of a run: the folder, its settings, its log, its curves."""

import dataclasses
import json
import os
from typing import Any

import orjson
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForMaskedLM

from denserk.config.encoding import (
    ComputeSettings,
    Dtype,
    EncodeSettings,
    MlmHead,
    Reduction,
    Representation,
)
from denserk.config.formats import CorpusSettings
from denserk.config.training import DevMetric
from denserk.errors import UsageError
from denserk.io.vector_folder import open_vectors
from denserk.models.stored_model import read_model_folder
from denserk.tasks.encode import encode
from denserk.training import run_folder
from denserk.training.finetune import finetune
from tests.conftest import WORDS
from tests.reporters import Heard
from tests.training.finetuning import AGG, run_of, tune, weights, write_examples


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """24 queries with teacher's scores."""
    path = tmp_path_factory.mktemp("data") / "train.jsonl"
    return write_examples(path, range(24), scored=True)


@pytest.fixture(autouse=True)
def plain(request, monkeypatch):
    """Curves cost as much as a small run: they are drawn where a test asks for them."""
    if "curves" not in request.node.name:
        monkeypatch.setattr(run_folder, "save_if_installed", lambda *_: None)


@pytest.fixture(scope="module")
def dev(tmp_path_factory):
    return write_examples(tmp_path_factory.mktemp("data") / "dev.jsonl", range(30, 36))


def log_of(folder):
    """The log of a run."""
    return json.loads((folder / "training.json").read_text())["log"]


def encoded(folder, toy):
    """The toy corpus through `encode`, which is told nothing but the folder."""
    encode(
        EncodeSettings(
            model=str(folder), output=str(toy / "vectors"), corpus=str(toy / "corpus.jsonl")
        ),
        CorpusSettings(),
        {},
        {},
        ComputeSettings(device="cpu"),
    )
    return open_vectors(toy / "vectors")


REPRESENTATIONS: dict[str, tuple[dict[str, Any], int]] = {
    "cls": ({"representation": "cls"}, 1),
    "mean": ({"representation": "mean", "l2_norm": True, "temperature": 0.05}, 1),
    "agg": (AGG, 1),
    "agg-fresh": (AGG | {"mlm_head": MlmHead.FRESH}, 1),
    "agg-bare": (AGG | {"mlm_head": MlmHead.NONE}, 1),
    "mlr": ({"representation": "mlr"}, 1),
    "mlr-mix": ({"representation": "mlr", "reduction": Reduction.SCALAR_MIX}, 1),
    "mlr-multi": ({"representation": "mlr", "reduction": Reduction.MULTI_VECTOR}, 2),
    "me-bert": (
        {"representation": "me-bert", "vectors": 3, "reduction": Reduction.MULTI_VECTOR},
        3,
    ),
    "colbert": ({"representation": "colbert", "reduction": Reduction.AVERAGE}, 1),
}


def typed(options):
    """Settings as the command line gives them."""
    return {**options, "representation": Representation(options["representation"])}


@pytest.mark.parametrize(
    ("name", "untie"),
    [*((name, False) for name in REPRESENTATIONS), ("agg-fresh", True), ("mlr-mix", True)],
)
def test_encode_takes_the_folder_as_it_stands(tiny, train, toy, tmp_path, name, untie):
    options, vectors = REPRESENTATIONS[name]
    output = tmp_path / "out"
    result = tune(output, tiny("bert"), train, **typed(options), untie=untie, max_steps=2)
    assert (result.steps, result.first_step) == (2, 0)
    stored = read_model_folder(output)
    assert stored.shared is not untie
    assert all((output / side).is_dir() is untie for side in ("query", "document"))
    found = dataclasses.asdict(stored.representation)
    assert found.pop("mlm_head") != MlmHead.FRESH
    for option, value in options.items():
        assert option == "mlm_head" or found.get(option, value) == value
    made = encoded(output, toy)
    assert made.count == 6 * vectors
    assert made.vectors_per_passage == vectors


def test_the_backbone_loads_in_transformers(tiny, train, tmp_path):
    tune(tmp_path / "out", tiny("bert"), train, **typed(AGG), max_steps=2)
    _, told = AutoModel.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not [name for name in told["missing_keys"] if "pooler" not in name]
    _, told = AutoModelForMaskedLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not told["missing_keys"]


def test_every_weight_that_takes_part_moves(tiny, train, tmp_path):
    settings = typed(REPRESENTATIONS["mlr-mix"][0])
    tune(tmp_path / "out", tiny("bert"), train, **settings, max_steps=2)
    stored = read_model_folder(tiny("bert")).passage
    before = {name.removeprefix("bert."): tensor for name, tensor in stored.tensors.items()}
    after = load_file(tmp_path / "out" / "model.safetensors")
    new = {name: tensor for name, tensor in after.items() if name not in before}
    assert [name for name in new if not name.startswith("scalar_mix.")] == []
    assert all(tensor.any() for tensor in new.values())  # begun at zero
    assert new
    assert [n for n in after if n in before and torch.equal(before[n], after[n])] == []


def test_a_shared_start_may_be_untied_and_goes_on_so(tiny, train, tmp_path):
    tune(tmp_path / "one", tiny("bert"), train, **typed(AGG), untie=True, max_steps=2)
    query, passage = (
        load_file(tmp_path / "one" / side / "model.safetensors") for side in ("query", "document")
    )
    assert not torch.equal(query["cls_proj.weight"], passage["cls_proj.weight"])
    heard = Heard()
    finetune(run_of(tmp_path / "two", tmp_path / "one", train, max_steps=2))
    assert (tmp_path / "two" / "query").is_dir()
    assert not any("random weights" in note for note in heard.notes)


def test_the_folders_own_representation_is_trained_on(tiny, train, tmp_path):
    tune(tmp_path / "one", tiny("bert"), train, **typed(AGG), max_steps=2)
    tune(tmp_path / "two", tmp_path / "one", train, max_steps=2)
    told = json.loads((tmp_path / "two" / "denserk.json").read_text())["representation"]
    assert (told["representation"], told["agg_dim"], told["cls_dim"]) == ("agg", 20, 6)


def test_a_silent_folder_is_trained_as_cls_and_says_so(tiny, train, tmp_path):
    heard = Heard()
    finetune(run_of(tmp_path / "out", tiny("bert"), train, max_steps=2))
    assert any("does not say how its vectors are made: training cls" in n for n in heard.notes)


def test_settings_versions_and_log_are_kept(tiny, train, dev, tmp_path):
    run = run_of(tmp_path / "out", tiny("bert"), train, dev_data=dev, eval_steps=5, **typed(AGG))
    result = finetune(run)
    told = json.loads((tmp_path / "out" / "training.json").read_text())
    assert told["versions"].keys() == {"denserk", "torch", "transformers"}
    assert told["optimizer"]["lr"] == 0.01
    assert told["representation"]["agg_dim"] == 20
    assert told["text"]["query_max_length"] == 32
    assert {use: each["name"] for use, each in told["data"]["training-data"].items()} == {
        "file 1": train
    }
    losses = [entry for entry in told["log"] if "loss" in entry]
    assert [entry["step"] for entry in losses] == [2, 4, 6, 8, 10]
    parts = ("loss_contrastive", "loss_cls", "loss_agg")
    for entry in losses:
        assert entry["loss"] == pytest.approx(sum(entry[part] for part in parts), rel=1e-3)
    assert [e["step"] for e in told["log"] if "eval_dev-loss" in e] == [5, 10]
    assert result.loss == losses[-1]["loss"]
    assert [entry["epoch"] for entry in losses] == [pytest.approx(n / 6) for n in (2, 4, 6, 8, 10)]


def test_the_last_step_is_logged_whatever_the_interval(tiny, train, tmp_path):
    result = tune(tmp_path / "out", tiny("bert"), train, logging_steps=1000, max_steps=3)
    assert result.loss is not None


@pytest.mark.parametrize(("steps", "lines"), [(3, 3), (45, 23), (420, 21)])
def test_a_short_run_has_lines_for_a_curve(tiny, train, tmp_path, steps, lines):
    options = {"logging_steps": None, "max_steps": steps, "save_steps": 1000, "batch_size": 1}
    tune(tmp_path / "out", tiny("bert"), train, **options)
    assert sum("loss" in entry for entry in log_of(tmp_path / "out")) == lines


def test_curves_and_tensorboard_files(tiny, train, dev, tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    before = dict(os.environ)
    tune(tmp_path / "out", tiny("bert"), train, dev_data=dev, eval_steps=5, **typed(AGG))
    assert os.environ == before
    assert (tmp_path / "out" / "training.png").read_bytes().startswith(b"\x89PNG")
    board = accumulator.EventAccumulator(str(tmp_path / "out" / "logs"))
    board.Reload()
    scalars = set(board.Tags()["scalars"])
    assert {"train/loss", "train/loss_agg", "train/learning_rate", "eval/RR@10"} <= scalars
    assert [event.step for event in board.Scalars("train/loss")] == [2, 4, 6, 8, 10]


def test_what_lies_in_the_folder(tiny, train, dev, tmp_path):
    tune(
        *(tmp_path / "out", tiny("bert"), train),
        **typed(AGG),
        dev_data=dev,
        best_by=DevMetric.RR_10,
        keep_checkpoints=2,
    )
    found = {item.name for item in (tmp_path / "out").iterdir()} - {"logs"}
    assert found == {
        *("model.safetensors", "pytorch_model.bin", "config.json", "denserk.json"),
        *("tokenizer.json", "tokenizer_config.json", "training.json", "config.yaml"),
        *("modules.json", "config_sentence_transformers.json", "README.md"),
        *("checkpoints", "best", "training-data", "dev-data"),
    }
    kept = {item.name for item in (tmp_path / "out" / "checkpoints").iterdir()}
    assert kept == {"checkpoint-8", "checkpoint-10"}


def test_the_same_run_twice_is_the_same_model(tiny, train, tmp_path):
    for name in ("one", "two"):
        tune(tmp_path / name, tiny("bert"), train, **typed(AGG), max_steps=3)
    tune(tmp_path / "other", tiny("bert"), train, **typed(AGG), max_steps=3, seed=7)
    assert weights(tmp_path / "one") == weights(tmp_path / "two")
    assert weights(tmp_path / "one") != weights(tmp_path / "other")
    for name in ("README.md", "modules.json", "config_sentence_transformers.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def learnable(number):
    """A query of one word; its positive is the passage about that word."""

    def passage(n):
        text = f"the {WORDS[n % len(WORDS)]} of the {WORDS[7 * n % len(WORDS)]}"
        return {"docid": f"d{n}", "text": text}

    return {
        "query_id": f"q{number}",
        "query": f"a {WORDS[number]}",
        "positive_passages": [passage(number)],
        "negative_passages": [passage(number + k) for k in (1, 5, 11)],
    }


@pytest.mark.slow
def test_it_learns(tiny, tmp_path):
    train = tmp_path / "train.jsonl"
    train.write_bytes(b"".join(orjson.dumps(learnable(number)) + b"\n" for number in range(24)))
    tune(
        *(tmp_path / "out", tiny("bert"), train),
        **typed({"representation": "mean", "l2_norm": True, "temperature": 0.1, "lr": 0.003}),
        dev_data=str(train),
        max_steps=300,
        eval_steps=20,
        save_steps=1000,
    )
    measured = [entry for entry in log_of(tmp_path / "out") if "eval_RR@10" in entry]
    first, last = measured[0], measured[-1]
    assert first["eval_dev-loss"] > 2.0
    assert first["eval_RR@10"] < 0.4
    assert last["eval_dev-loss"] < 1.4
    assert last["eval_RR@10"] > 0.8
    assert last["eval_avg-rank"] < first["eval_avg-rank"] / 4


@pytest.mark.parametrize("precision", [Dtype.BFLOAT16, Dtype.FLOAT16])
def test_mixed_precision(tiny, train, tmp_path, precision):
    options = typed(AGG) | {"dtype": precision, "max_steps": 2, "grad_cache": True}
    if precision is Dtype.FLOAT16:
        with pytest.raises(UsageError, match="float16 needs a GPU"):
            tune(tmp_path / "out", tiny("bert"), train, **options)
        return
    tune(tmp_path / "out", tiny("bert"), train, **options)
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}
    assert all(tensor.isfinite().all() for tensor in tensors.values())


def test_unused_parameters_are_left_alone(tiny, train, tmp_path):
    """The mix of an untied query encoder takes no part: decay must not move it."""
    settings = typed(REPRESENTATIONS["mlr-mix"][0])
    tune(tmp_path / "out", tiny("bert"), train, **settings, untie=True, weight_decay=0.5)
    query = load_file(tmp_path / "out" / "query" / "model.safetensors")
    passage = load_file(tmp_path / "out" / "document" / "model.safetensors")
    names = [name for name in query if name.startswith("scalar_mix")]
    assert names
    fresh = read_model_folder(tiny("bert")).begin(
        read_model_folder(tmp_path / "out").representation, untie=False
    )
    for name in names:
        assert torch.equal(query[name], fresh.passage.representation.state_dict()[name])
        assert not torch.equal(query[name], passage[name])
