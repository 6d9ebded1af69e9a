"""Both sides of a retriever as one module, for training."""

from torch import Tensor, nn

from denserk.data.batches import TokenBatch
from denserk.modeling.encoder import Encoder
from denserk.modeling.similarity import PassageVectors


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
        """Whether both sides have one set of weights."""
        return self.query is self.passage

    def encode_queries(self, batch: TokenBatch) -> Tensor:
        """(B, T) ids -> (B, D) float32."""
        vectors: Tensor = self.query(batch)
        return vectors

    def encode_passages(self, batch: TokenBatch) -> PassageVectors:
        """(P, T) ids -> (P, S, D) float32."""
        return self.passage.passage_vectors(batch)
