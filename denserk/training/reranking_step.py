"""One training step of a cross-encoder: listwise, whole or in chunks, over one process or several.

A query is compared with its own passages and no others, so the loss is a mean over queries: chunks
of queries, run and sent back one after another, add up to the gradient of the whole batch, and so
do the shares of several processes.
"""

import torch
from torch import Tensor

from denserk.data.pair_batches import PairBatch, PairTrainingBatch
from denserk.modeling.cross_encoder import Reranker
from denserk.objectives.reranking import listwise_loss, r_drop_loss
from denserk.settings.training import CacheSettings, RerankingSettings
from denserk.training.distributed import gather
from denserk.training.length_groups import Work, group, items_at_once
from denserk.training.step import Autocast, Backward, Terms


class RerankingStep:
    """Groups of pairs -> gradients.

    Args:
        model: the cross-encoder.
        settings: the weight of R-Drop.
        cache: with `grad_cache`, a chunk holds as many whole groups as `p_chunk` passages, or
            `chunk_tokens`, make, at least one; no pass is run twice.

    Attributes:
        work: what passed through the model so far.
    """

    def __init__(
        self,
        model: Reranker,
        settings: RerankingSettings,
        cache: CacheSettings,
    ) -> None:
        self.model, self.settings, self.cache = model, settings, cache
        self.work = Work()

    def __call__(self, batch: PairTrainingBatch, backward: Backward, autocast: Autocast) -> Terms:
        """See `denserk.training.step.Step`."""
        queries = len(batch.items)
        total = int(gather(batch.items.new_tensor([queries])).sum())
        chunk, ends = queries, (batch.groups.amax(1) + 1).tolist()
        if self.cache.grad_cache:
            chunk = items_at_once(self.cache, batch.groups.shape[1], batch.pairs.tokens)
        found: Terms = {}
        for first in range(0, queries, chunk):
            last = min(first + chunk, queries)
            start = ends[first - 1] if first else 0
            pairs = batch.pairs.part(start, ends[last - 1])
            groups = batch.groups[first:last] - start
            terms = {
                name: term * ((last - first) / total)
                for name, term in self._terms(pairs, groups, autocast).items()
            }
            backward(torch.stack(list(terms.values())).sum())
            for name, term in terms.items():
                found[name] = found.get(name, 0) + term.detach()
        return {name: gather(term.reshape(1)).sum() for name, term in found.items()}

    def _terms(self, pairs: PairBatch, places: Tensor, autocast: Autocast) -> Terms:
        """The loss's terms, means over the queries of a chunk.

        places: (B, n), the rows of each query's pairs, negative where there is none.
        """
        parts = group(pairs.tokens, work=self.work)
        groups = zip(parts.batches, parts.rows, strict=True)
        batches = [PairBatch(tokens, pairs.types(rows, tokens)) for tokens, rows in groups]

        def scores() -> Tensor:
            with autocast():
                found = torch.cat([self.model(batch) for batch in batches])
            own = found[parts.back][places.clamp_min(0)]
            return own.masked_fill(places < 0, -torch.inf)

        if not self.settings.r_drop:
            return {"listwise": listwise_loss(scores())}
        return r_drop_loss(scores(), scores(), self.settings.r_drop)
