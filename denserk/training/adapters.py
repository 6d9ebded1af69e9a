"""Low-rank adapters (LoRA) on the model that is trained."""

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from denserk.config.finetuning import FinetuneRun
from denserk.errors import UsageError
from denserk.extras import require
from denserk.io.durability import flush_tree
from denserk.io.files import display_name
from denserk.io.model_files import full_name, without_revision
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
    adapted = AdaptedModel(training, run)
    sizes = {parameter: parameter.numel() for parameter in training.model.parameters()}
    trained = sum(size for parameter, size in sizes.items() if parameter.requires_grad)
    logger.info(f"LoRA trains {trained:,} of {sum(sizes.values()):,} weights")
    return replace(training, save=adapted.save, load=adapted.load)


class AdaptedTransformer(NamedTuple):
    """A transformer with adapters."""

    folder: Path  # of the adapters, within the model's folder
    owner: Backbone | Reranker  # whose `model` the transformer is
    model: Any  # peft's model of it


class AdaptedModel:
    """The model of a training with adapters in its transformers."""

    def __init__(self, training: Training, run: FinetuneRun) -> None:
        self._training = training
        owners = [
            module for module in training.model.modules() if isinstance(module, Backbone | Reranker)
        ]
        sides: tuple[str, ...] = ("",)
        if len(owners) > 1:  # separate encoders, each in a folder of the model's
            sides = (model_folder.PASSAGE_SIDE, model_folder.QUERY_SIDE)
        self._transformers = [
            AdaptedTransformer(Path(side, "adapter"), owner, _add_adapters(owner, run))
            for side, owner in zip(sides, owners, strict=True)
        ]

    def save(self, folder: Path) -> None:
        """Write adapters in peft's format, and the model with the sums of weights and adapters."""
        for transformer in self._transformers:
            adapter_folder = folder / transformer.folder
            transformer.model.save_pretrained(adapter_folder, save_embedding_layers=False)
            flush_tree(adapter_folder)
        with self._with_sums():
            self._training.save(folder)

    def load(self, folder: Path) -> None:
        """Read the adapters and the new heads back."""
        with self._with_sums():  # heads that are no part of a transformer
            self._training.load(folder)
        peft = require("peft", "--lora")
        for transformer in self._transformers:
            tensors = read_tensors(folder / transformer.folder / "adapter_model.safetensors")
            peft.set_peft_model_state_dict(transformer.model, tensors)

    @contextmanager
    def _with_sums(self) -> Iterator[None]:
        """Put the sums in the transformers' place meanwhile: copies with the adapters merged in."""
        for transformer in self._transformers:
            transformer.owner.model = copy.deepcopy(transformer.model).merge_and_unload()
        yield
        for transformer in self._transformers:
            transformer.owner.model = transformer.model.get_base_model()


def _add_adapters(owner: Backbone | Reranker, run: FinetuneRun) -> Any:
    """Add adapters to a transformer in place; return peft's model of it."""
    settings = run.adapters
    rank = settings.lora or 0
    model = owner.model
    peft = require("peft", "--lora")
    targets: list[str] | str = list(settings.lora_targets)
    if not targets:
        default_targets = peft.utils.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
        targets = default_targets.get(model.config.model_type, "all-linear")
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=settings.lora_alpha or 2 * rank,
        lora_dropout=settings.lora_dropout,
        target_modules=targets,
        modules_to_save=_new_heads(owner),
    )
    # peft writes it to adapter_config.json: of a folder the name, without the folders above it
    base = without_revision(full_name(run.finetune.model))
    model.name_or_path = display_name(base) if Path(base).is_dir() else base
    try:
        with warnings.catch_warnings(action="ignore", category=FutureWarning):  # peft's own
            return peft.get_peft_model(model, config)
    except ValueError as error:
        raise UsageError(f"--set lora-targets: {error}") from None


def _new_heads(owner: Backbone | Reranker) -> list[str]:
    """Return the names of the new layers, which are trained whole.

    A decoder that is tied to the embeddings is none of them, and stays tied.
    """
    names = []
    for name, module in owner.model.named_modules():
        is_head = f"{name}.".startswith(owner.new_heads)
        has_weights = isinstance(module, nn.Linear | nn.LayerNorm)
        if is_head and has_weights and module is not owner.model.get_output_embeddings():
            names.append(name)
    return names
