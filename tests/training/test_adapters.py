import sys
from typing import Any

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
FRESH = AGG | {"mlm_head": MlmHead.FRESH, "gradient_checkpointing": True}
# kind: backbone, options, targets, weights that are trained beside rank 2 adapters
KINDS: dict[str, tuple[str, dict[str, Any], str, int]] = {
    "mean": ("bert", MEAN | {"lora_targets": ("value",)}, "value", 0),
    "untied": ("distilbert", MEAN | {"untie": True, "grad_cache": True}, "_lin lin1 lin2", 0),
    "agg": ("bert", FRESH, "query value", 16 * 17 + 2 * 16 + 17 * 6 + 17),
    "mix": ("t5", {"representation": "mlr", "reduction": "scalar-mix"}, "q v", 2),
    "reranker": ("roberta", {"representation": "cross-encoder"}, "query value", 17),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_saves_the_sums_and_leaves_the_rest(tiny, train, tmp_path, kind, caplog):
    name, options, targets, size = KINDS[kind]
    options = {"lora": 2, "lora_alpha": 3, "lora_dropout": 0.1} | options
    tune(tmp_path / "whole", tiny(name), train, **options)
    with stopped_at(6, [(Trainer, "training_step")]), pytest.raises(Stopped):
        tune(tmp_path / "cut", tiny(name), train, **options)
    assert tune(tmp_path / "cut", tiny(name), train, **options, resume=True).first_step == 4
    before = load_file(tiny(name) / WEIGHTS_FILE)
    for side in ("query", "document") if options.get("untie") else (".",):
        folder = tmp_path / "cut" / side
        assert weights(folder) == weights(tmp_path / "whole" / side)
        after, adapter = map(load_file, [folder / WEIGHTS_FILE, *folder.glob("adapter/*.saf*")])
        bare = {n if n in after else n.removeprefix(f"{name}."): t for n, t in before.items()}
        for key in after.keys() & bare.keys():
            stem = key.removesuffix(".weight")
            low = [t for x in "BA" for n, t in adapter.items() if f".{stem}.lora_{x}." in n]
            hit = stem.endswith(tuple(targets.split()))
            assert len(low) == 2 * hit
            if hit:  # W + alpha / r B A
                torch.testing.assert_close(after[key], bare[key] + 3 / 2 * low[0] @ low[1])
                assert not after[key].equal(bare[key])
                size += sum(part.numel() for part in low)
            elif not (kind == "agg" and key.startswith("cls.")):
                assert after[key].equal(bare[key])
    assert any(note.startswith(f"LoRA trains {size:,} of ") for note in caplog.messages)
    assert not list(foreign_items(tmp_path / "cut"))


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
    given = {"model": tiny(), "train-data": train, "output": tmp_path / "out", "max-steps": 2}
    rank = ("--lora", "2", "--set", "lora-alpha=8")
    assert denserk("finetune", given, *rank)[0] == 0
    status, printed = denserk("finetune", given, "--lora", "2", "--resume")
    assert (status, "adapters.lora_alpha was 8, now None" in printed) == (1, True)
    status, printed = denserk("finetune", given, *rank, "--set", "lora-targets=x")
    assert (status, "--set lora-targets: Target modules" in printed) == (2, True)
    monkeypatch.setitem(sys.modules, "peft", None)
    assert "pip install peft" in denserk("finetune", given, *rank)[1]
