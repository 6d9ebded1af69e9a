"""Backbone and representation together: an encoder, and the two encoders of a retriever."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from denserk.config.encoding import Representation, RepresentationSettings
from denserk.data.batches import TokenBatch
from denserk.models.backbone import Backbone
from denserk.models.pooling import PassageVectors, at_least_float32
from denserk.models.representation import Aggretriever, MultiVector, build_representation


class Encoder(nn.Module):
    """One side's encoder; most models use the same one for queries and passages.

    Args:
        backbone: the transformer.
        settings: how token states become a vector.
    """

    def __init__(self, backbone: Backbone, settings: RepresentationSettings) -> None:
        super().__init__()
        self.backbone = backbone
        self.settings = settings
        self.representation = build_representation(settings, backbone)

    @property
    def dimension(self) -> int:
        """D."""
        return self.representation.dimension

    @property
    def vectors_per_passage(self) -> int:
        """Number of vectors that an index keeps of a passage."""
        return self.representation.stored if isinstance(self.representation, MultiVector) else 1

    def forward(self, batch: TokenBatch) -> Tensor:
        """Return one vector per text: (B, T) ids -> (B, D), float32 at least."""
        return self._scaled(self.representation(self.backbone(batch), batch, self.backbone))

    def passage_vectors(self, batch: TokenBatch) -> PassageVectors:
        """Return a passage's vectors for training: (P, T) ids -> (P, S, D)."""
        if not isinstance(self.representation, MultiVector):
            return PassageVectors(self(batch).unsqueeze(1))
        vectors = self.representation.passages(batch, self.backbone)
        return PassageVectors(self._scaled(vectors.values), vectors.mask)

    def stored_vectors(self, batch: TokenBatch) -> Tensor:
        """Return a passage's vectors for an index: (P, T) ids -> (P, S, D)."""
        vectors = self.passage_vectors(batch)
        if isinstance(self.representation, MultiVector):
            return self.representation.kept(vectors)
        return vectors.values

    def _scaled(self, vectors: Tensor) -> Tensor:
        vectors = at_least_float32(vectors)
        return F.normalize(vectors, dim=-1) if self.settings.l2_norm else vectors

    def prepare_inference(
        self, dtype: torch.dtype, head_dtype: torch.dtype, *, compiled: bool
    ) -> None:
        """Set the precision for inference; the representation's own weights stay in float32.

        Args:
            dtype: precision of the backbone.
            head_dtype: precision of Aggretriever's projection to the vocabulary.
            compiled: compute the backbone and the MLM head by OpenVINO.

        Raises:
            ModelError: see `denserk.models.openvino.compile_function`.
        """
        settings = self.settings
        if compiled:
            self.backbone.compile_states(
                dtype,
                every_layer=settings.representation is Representation.MLR,
                norm_intermediate=settings.norm_intermediate,
            )
        else:
            self.backbone.compiled = None  # of an attempt whose MLM head could not be compiled
            self.backbone.to(dtype)
        if isinstance(self.representation, Aggretriever):
            self.representation.prepare_inference(self.backbone, head_dtype, compiled=compiled)


class Retriever(nn.Module):
    """The encoders of queries and passages; the same object where the sides share their weights.

    Args:
        query: makes a query's vector.
        passage: makes a passage's vectors.
    """

    def __init__(self, query: Encoder, passage: Encoder) -> None:
        super().__init__()
        self.passage = passage
        self.query = query

    @property
    def shared(self) -> bool:
        """True if both sides share their weights."""
        return self.query is self.passage

    def encode_queries(self, batch: TokenBatch) -> Tensor:
        """(B, T) ids -> (B, D) float32."""
        vectors: Tensor = self.query(batch)
        return vectors

    def encode_passages(self, batch: TokenBatch) -> PassageVectors:
        """(P, T) ids -> (P, S, D) float32."""
        return self.passage.passage_vectors(batch)
