"""What the encoders of a model's folder and of a model behind a URL have in common.

Nothing here imports torch before a model's folder is loaded.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from denserk.config.encoding import (
    ComputeSettings,
    ServerSettings,
    TextSettings,
    is_served,
    reject_server,
)
from denserk.config.retrieval import Metric
from denserk.models.embeddings_client import Advance
from denserk.models.served_encoder import ServedEncoder, reject_computation
from denserk.records import Passage, Query

if TYPE_CHECKING:  # slow to import
    from denserk.models.text_encoder import TextEncoder

AnyEncoder: TypeAlias = "TextEncoder | ServedEncoder"


class PlannedRecords(Protocol):
    """Passages or queries that are ready to be encoded."""

    @property
    def count(self) -> int:
        """Number of texts."""

    @property
    def tokens(self) -> int:
        """Number of tokens without padding; 0 if a server tokenises."""

    @property
    def positions(self) -> int:
        """Number of tokens, padding included; 0 if a server tokenises."""


class PlannedEncoder(Protocol):
    """An encoder whose texts are prepared in one thread and encoded in another."""

    name: str
    dimension: int
    vectors_per_passage: int
    metric: Metric
    text: TextSettings

    def plan(self, side: str, texts: Sequence[Any]) -> Any:
        """Prepare passages or queries: they become what `encode_planned` takes."""

    def encode_planned(
        self, side: str, planned: Any, advance: Advance = None
    ) -> NDArray[np.float32]:
        """Encode what `plan` returned, in the order of the texts: (P * S, D) or (B, D)."""

    def encode_queries(self, queries: Sequence[Query]) -> NDArray[np.float32]:
        """Encode queries: (B, D), in their order."""

    def encode_passages(self, passages: Sequence[Passage]) -> NDArray[np.float32]:
        """Encode passages: (P * S, D), in their order, the vectors of one together."""


def load_any_encoder(
    model: str,
    representation: Mapping[str, Any],
    text: Mapping[str, Any],
    compute: ComputeSettings,
    server: ServerSettings,
    option: str = "--model",
) -> AnyEncoder:
    """Load a model's folder, or reach the server of a model openai:NAME.

    `option` is the one that names the model.
    """
    reject_server(server, model, option)
    if is_served(model):
        reject_computation(model, compute)
        return ServedEncoder(model, representation, text, compute, server)
    from denserk.models.text_encoder import TextEncoder

    return TextEncoder(model, representation, text, compute)
