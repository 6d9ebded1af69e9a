"""Low-rank adapters (LoRA) on the model that is trained."""

import copy
import logging
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from denserk.config.finetuning import FinetuneRun
from denserk.errors import UsageError
from denserk.extras import require
from denserk.io.durability import flush_tree
from denserk.io.files import display_name
from denserk.models import model_folder
from denserk.models.backbone import Backbone
from denserk.models.checkpoints import read_tensors
from denserk.models.cross_encoder import Reranker
from denserk.training.trainer import Training

logger = logging.getLogger(__name__)


def with_adapters(training: Training, run: FinetuneRun) -> Training:
    """Return the training of adapters and new heads of a model, if a run asks for it.

    LoRA (Hu et al., 2022), by peft: a target's weights W (out, in) become W + alpha / r B A, with A
    (r, in) random and B (out, r) zero at first. `save` writes these sums, and `adapter/` in peft's
    format, which `load` reads.
    """
    if run.adapters.lora is None:
        return training
    owners = [each for each in training.model.modules() if isinstance(each, Backbone | Reranker)]
    sides = (model_folder.PASSAGE_SIDE, model_folder.QUERY_SIDE) if len(owners) > 1 else ("",)
    adapted = {
        Path(side, "adapter"): (owner, _adapted(owner, run))
        for side, owner in zip(sides, owners, strict=True)
    }
    sizes = {each: each.numel() for each in training.model.parameters()}
    trained = sum(size for each, size in sizes.items() if each.requires_grad)
    logger.info(f"LoRA trains {trained:,} of {sum(sizes.values()):,} weights")

    def with_sums(work: Callable[[Path], None], folder: Path) -> None:
        for owner, model in adapted.values():
            owner.model = copy.deepcopy(model).merge_and_unload()
        work(folder)
        for owner, model in adapted.values():
            owner.model = model.get_base_model()

    def save(folder: Path) -> None:
        for place, (_, model) in adapted.items():
            model.save_pretrained(folder / place, save_embedding_layers=False)
            flush_tree(folder / place)
        with_sums(training.save, folder)

    def load(folder: Path) -> None:
        with_sums(training.load, folder)  # heads that are no part of a transformer
        for place, (_, model) in adapted.items():
            tensors = read_tensors(folder / place / "adapter_model.safetensors")
            require("peft", "--lora").set_peft_model_state_dict(model, tensors)

    return replace(training, save=save, load=load)


def _adapted(owner: Backbone | Reranker, run: FinetuneRun) -> Any:
    """Add adapters to a transformer in place; return peft's model of it."""
    settings, model, rank = run.adapters, owner.model, run.adapters.lora or 0
    peft = require("peft", "--lora")
    usual = peft.utils.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=settings.lora_alpha or 2 * rank,
        lora_dropout=settings.lora_dropout,
        target_modules=[*settings.lora_targets] or usual.get(model.config.model_type, "all-linear"),
        modules_to_save=[  # a decoder tied to the embeddings stays so
            name
            for name, module in model.named_modules()
            if f"{name}.".startswith(owner.new_heads)
            and isinstance(module, nn.Linear | nn.LayerNorm)
            and module is not model.get_output_embeddings()
        ],
    )
    # is written beside the adapter: a folder without the folders of this machine
    base = run.finetune.model
    model.name_or_path = display_name(base) if Path(base).is_dir() else base
    try:
        with warnings.catch_warnings(action="ignore", category=FutureWarning):  # peft's own
            return peft.get_peft_model(model, config)
    except ValueError as error:
        raise UsageError(f"--set lora-targets: {error}") from None
