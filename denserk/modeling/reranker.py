"""The cross-encoder: query and passage read together -> one score.

"MASTER" (Zhou et al., 2023), section 4's reranker: one linear layer on the last hidden state of
[CLS], its weights from N(0, 0.02), its bias 0. In transformers' words that is a token classifier
with one label, read at position 0, and so it is saved. Published rerankers are sequence classifiers
with one label, whose heads have further layers (BERT's pooler, ELECTRA's and RoBERTa's dense
layer); they are loaded with the head they have.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import PretrainedConfig
from transformers.initialization import no_init_weights

from denserk.data.pair_batches import PairBatch
from denserk.errors import ModelError
from denserk.modeling.architectures import Architecture, architecture_of
from denserk.modeling.model_config import config_errors, read_config
from denserk.modeling.pooling import at_least_float32
from denserk.modeling.stored_model import StoredEncoder
from denserk.modeling.tensor_names import check_names, check_shapes, modern_names

LINEAR, PUBLISHED = "ForTokenClassification", "ForSequenceClassification"
"""What the names of transformers' classes with the two kinds of head end in."""
HEAD = "classifier."
INITIAL_DEVIATION = 0.02


class Reranker(nn.Module):
    """A cross-encoder.

    Args:
        architecture: the backbone's row of the table.
        config: transformers' configuration.
        kind: `LINEAR` or `PUBLISHED`.
    """

    def __init__(self, architecture: Architecture, config: PretrainedConfig, kind: str) -> None:
        super().__init__()
        self.architecture, self.config = architecture, config
        self.is_linear = kind == LINEAR
        config.num_labels = 1
        name = architecture.encoder.removesuffix("Model") + kind
        with no_init_weights():
            self.model: Any = getattr(transformers, name)(config)

    @classmethod
    def begin(cls, stored: StoredEncoder, seed: int) -> "Reranker":
        """A reranker to train: an encoder's weights, and a new linear head drawn by the seed.

        Raises:
            ModelError: the backbone has no [CLS], or its weights are not those of its config.json.
        """
        refuse_backbone(stored.architecture)
        reranker = cls(stored.architecture, read_config(stored.folder), LINEAR)
        head = stored.architecture.head or ("\0",)
        encoder = {n: t for n, t in stored.tensors.items() if not n.startswith(head)}
        generator = torch.Generator().manual_seed(seed)
        size = (1, int(reranker.config.hidden_size))
        weight = torch.normal(0.0, INITIAL_DEVIATION, size, generator=generator)
        fresh = {f"{HEAD}weight": weight, f"{HEAD}bias": torch.zeros(1)}
        reranker.fill(stored.folder, encoder | fresh)
        return reranker.train()

    @classmethod
    def from_tensors(cls, folder: Path, kind: str, tensors: Mapping[str, Tensor]) -> "Reranker":
        """The reranker of a folder.

        Raises:
            ModelError: its architecture is not supported, or tensors are missing or left over.
        """
        architecture = architecture_of(folder)
        refuse_backbone(architecture)
        config = read_config(folder)
        with config_errors(folder):
            reranker = cls(architecture, config, kind)
        given = modern_names(tensors)
        expected = reranker.model.state_dict().keys()
        unused = architecture.ignored or ("\0",)
        reranker.fill(
            folder, {n: t for n, t in given.items() if n in expected or not n.startswith(unused)}
        )
        return reranker.eval()

    def fill(self, where: Path, tensors: Mapping[str, Tensor]) -> None:
        """Fills every weight.

        Raises:
            ModelError: tensors are missing, left over, or of another shape; all are named.
        """
        expected = self.model.state_dict()
        check_names(where, set(expected), set(tensors))
        check_shapes(where, expected, tensors)
        self.model.load_state_dict(tensors, assign=True)
        self.model.float()

    def forward(self, batch: PairBatch) -> Tensor:
        """The scores of pairs: (P, T) ids -> (P,) float32 at least, not squashed."""
        inputs = {
            "input_ids": batch.tokens.input_ids,
            "attention_mask": batch.tokens.attention_mask,
            "return_dict": True,
        }
        if batch.token_types is not None:
            inputs["token_type_ids"] = batch.token_types
        if not self.is_linear:
            return at_least_float32(self.model(**inputs).logits[:, 0])
        state = self.model.base_model(**inputs).last_hidden_state[:, 0]
        with torch.autocast(state.device.type, enabled=False):
            scores: Tensor = self.model.classifier(at_least_float32(state))[:, 0]
        return scores

    def compute_in(self, dtype: torch.dtype) -> "Reranker":
        """Sets the precision of scoring; the last layers stay in float32, or close scores tie."""
        self.model.to(dtype)
        self.model.classifier.float().register_forward_pre_hook(
            lambda _, inputs: tuple(at_least_float32(value) for value in inputs)
        )
        return self

    @property
    def max_length(self) -> int | None:
        """The longest input it has positions for, special tokens included."""
        return self.architecture.positions(self.config)


def refuse_backbone(architecture: Architecture) -> None:
    """Refuses a backbone without [CLS].

    Raises:
        ModelError: it has none.
    """
    if not architecture.has_cls:
        raise ModelError(
            f"--representation cross-encoder scores [CLS], "
            f"which a {architecture.model_type} backbone does not have",
            "start from a BERT, ELECTRA, RoBERTa or DistilBERT encoder",
        )
