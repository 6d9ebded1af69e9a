import sys
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel

from denserk.config.encoding import MlmHead, Representation
from denserk.io.outputs import foreign_items
from denserk.models.saving import WEIGHTS_FILE
from denserk.training.trainer import Trainer
from tests.support.faults import Stopped, stopped_at
from tests.support.finetuning import AGG, tune, weights

peft = pytest.importorskip("peft")

MEAN: dict[str, Any] = {"representation": Representation.MEAN}
FRESH_HEAD = AGG | {"mlm_head": MlmHead.FRESH, "gradient_checkpointing": True}


class Case(NamedTuple):
    """A training with adapters."""

    backbone: str
    options: dict[str, Any]
    targets: tuple[str, ...]  # ends of the names of the layers that get adapters
    head_size: int = 0  # weights that are trained beside the adapters


CASES = {
    "mean": Case("bert", MEAN | {"lora_targets": ("value",)}, ("value",)),
    "untied": Case(
        "distilbert", MEAN | {"untie": True, "grad_cache": True}, ("_lin", "lin1", "lin2")
    ),
    "agg": Case("bert", FRESH_HEAD, ("query", "value"), head_size=16 * 17 + 2 * 16 + 17 * 6 + 17),
    "mix": Case(
        "t5", {"representation": "mlr", "reduction": "scalar-mix"}, ("q", "v"), head_size=2
    ),
    "reranker": Case(
        "roberta", {"representation": "cross-encoder"}, ("query", "value"), head_size=17
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_resumed_run_saves_the_sums_and_leaves_the_rest(tiny, train, tmp_path, name, caplog):
    case = CASES[name]
    model = tiny(case.backbone)
    options = {"lora": 2, "lora_alpha": 3, "lora_dropout": 0.1, **case.options}
    tune(tmp_path / "whole", model, train, **options)
    with stopped_at(6, [(Trainer, "training_step")]), pytest.raises(Stopped):
        tune(tmp_path / "cut", model, train, **options)
    assert tune(tmp_path / "cut", model, train, **options, resume=True).first_step == 4
    sides = ("query", "document") if options.get("untie") else (".",)
    trained_size = case.head_size
    for side in sides:
        folder = tmp_path / "cut" / side
        assert weights(folder) == weights(tmp_path / "whole" / side)
        trained_size += assert_sums(folder, model, case)
    assert f"LoRA trains {trained_size:,} of " in caplog.text
    assert not list(foreign_items(tmp_path / "cut"))


def assert_sums(folder, model, case):
    """Assert that weights are W + alpha / r B A, or as before; return the adapters' size."""
    [adapter_file] = folder.glob("adapter/*.safetensors")
    adapters = load_file(adapter_file)
    tensors = load_file(folder / WEIGHTS_FILE)
    adapters_size = 0
    for name, before in load_file(model / WEIGHTS_FILE).items():
        if name not in tensors:  # an encoder alone has no prefix
            name = name.removeprefix(f"{case.backbone}.")
        if name not in tensors:
            continue
        layer = name.removesuffix(".weight")
        a_matrices = [adapters[key] for key in adapters if f".{layer}.lora_A." in key]
        b_matrices = [adapters[key] for key in adapters if f".{layer}.lora_B." in key]
        if layer.endswith(case.targets):
            [a_matrix] = a_matrices
            [b_matrix] = b_matrices
            torch.testing.assert_close(tensors[name], before + 3 / 2 * b_matrix @ a_matrix)
            assert not tensors[name].equal(before)
            adapters_size += a_matrix.numel() + b_matrix.numel()
        else:
            assert a_matrices == b_matrices == []
            is_fresh_head = case.options is FRESH_HEAD and name.startswith("cls.")
            assert is_fresh_head or tensors[name].equal(before)
    return adapters_size


@pytest.mark.peer
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # peft asks
def test_peft_opens_the_adapter_on_the_backbone(tiny, train, tmp_path):
    tune(tmp_path, tiny(), train, lora=2, overwrite=True, **MEAN)
    ids = torch.randint(5, 40, (3, 9), generator=torch.Generator().manual_seed(1))
    backbone, merged = map(AutoModel.from_pretrained, (tiny(), tmp_path))
    opened = peft.PeftModel.from_pretrained(backbone, tmp_path / "adapter").eval()
    assert opened.peft_config["default"].base_model_name_or_path == tiny().name
    torch.testing.assert_close(opened(ids)[0], merged(ids)[0])


def test_settings_of_adapters_are_compared_and_checked(tiny, train, tmp_path, denserk, monkeypatch):
    options = {"model": tiny(), "train-data": train, "output": tmp_path / "out", "max-steps": 2}
    flags = ("--lora", "2", "--set", "lora-alpha=8")
    status, _ = denserk("finetune", options, *flags)
    assert status == 0
    status, printed = denserk("finetune", options, "--lora", "2", "--resume")
    assert status == 1
    assert "adapters.lora_alpha was 8, now None" in printed
    options["output"] = tmp_path / "other"
    status, printed = denserk("finetune", options, *flags, "--set", "lora-targets=x")
    assert status == 2
    assert "--set lora-targets: " in printed
    monkeypatch.setitem(sys.modules, "peft", None)
    _, printed = denserk("finetune", options, *flags)
    assert "pip install peft" in printed
