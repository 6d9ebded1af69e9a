"""Tokenizer and cross-encoder together: queries and passages -> scores."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from denserk.data.batches import by_length
from denserk.data.pair_batches import Pair
from denserk.modeling.devices import choose_device, choose_dtype
from denserk.modeling.model_names import find_model
from denserk.modeling.reranker_folder import StoredReranker, read_reranker
from denserk.records import Passage, Query
from denserk.settings.encoding import ComputeSettings
from denserk.settings.options import as_json

logger = logging.getLogger(__name__)

NOTHING: Mapping[str, Any] = {}


class PairScorer:
    """A loaded cross-encoder.

    Attributes:
        name: what the model is called: a folder, or a name on the hub.
        text: how records become text.
        pairs: how two texts become one input.
        tokenizer: makes token ids of queries and of passages.
        joiner: makes one input of both.
        device: the device in use.
    """

    def __init__(
        self,
        name: str,
        stored: StoredReranker,
        compute: ComputeSettings,
    ) -> None:
        if compute.threads is not None:
            torch.set_num_threads(compute.threads)
        self.name, self.compute = name, compute
        self.text, self.pairs = stored.text, stored.pairs
        self.fingerprint = stored.fingerprint()
        self.backbone = stored.reranker.architecture.model_type
        self.tokenizer, self.joiner = stored.tokenizer(), stored.joiner()
        self.device = choose_device(compute.device)
        dtype = choose_dtype(compute.dtype, self.device)
        self._reranker = stored.reranker.to(self.device).compute_in(dtype).eval()

    @classmethod
    def load(
        cls,
        model: str,
        text: Mapping[str, Any] = NOTHING,
        pair_max_length: int | None = None,
        compute: ComputeSettings = ComputeSettings(),  # noqa: B008  (frozen)
    ) -> "PairScorer":
        """Loads a cross-encoder.

        Args:
            model: a folder, or a name on the hub.
            text: fields of `TextSettings` that replace what the folder says about itself.
            pair_max_length: tokens of a whole input; None leaves what the folder says.
            compute: where and how.

        Raises:
            UsageError: the model, the device or a setting is not there to choose.
            ModelError: the model cannot be loaded, or is no cross-encoder.
        """
        name, folder = find_model(model)
        stored = read_reranker(folder).fit(text, pair_max_length)
        if not stored.told:
            logger.info(
                f"{name} does not say how its texts are made: {', '.join(stored.text.fields)} of "
                f"{stored.text.passage_max_length} tokens, queries of "
                f"{stored.text.query_max_length}, {stored.joiner().limit} in all"
            )
        return cls(name, stored, compute)

    def description(self) -> dict[str, Any]:
        """What made the scores, as plain JSON for manifests."""
        return {
            "name": self.name,
            "fingerprint": self.fingerprint,
            "backbone": self.backbone,
            "dtype": self.compute.dtype.value,
            "text": as_json(self.text),
            "pairs": as_json(self.pairs),
        }

    def score(self, queries: Sequence[Query], passages: Sequence[Passage]) -> NDArray[np.float32]:
        """The scores of query i with passage i: (P,) float32."""
        tokens = zip(
            self.tokenizer.queries(queries), self.tokenizer.passages(passages), strict=True
        )
        return self.score_pairs([self.joiner.join(query, passage) for query, passage in tokens])

    @torch.inference_mode()
    def score_pairs(self, pairs: Sequence[Pair]) -> NDArray[np.float32]:
        """The scores of inputs, in their order; like lengths share a batch: (P,) float32."""
        found = np.empty(len(pairs), dtype=np.float32)
        lengths = [len(pair.ids) for pair in pairs]
        budget = self.compute.tokens_on(self.device.type)
        for members in by_length(lengths, budget, self.compute.batch_size):
            batch = self.joiner.batch([pairs[i] for i in members])
            found[members] = self._reranker(batch.to(self.device)).cpu().numpy()
        return found
