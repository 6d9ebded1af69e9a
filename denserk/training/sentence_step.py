"""One training step on pairs or triplets of sentences: whole or in chunks, over several processes.

The loss is a mean over examples that know nothing of each other, so the gradients of chunks and of
processes, each with its share, add up to that of the whole batch.
"""

import torch
from torch import Tensor

from denserk.data.batches import TokenBatch
from denserk.data.sentence_batches import SentenceBatch
from denserk.modeling.encoder import Encoder
from denserk.objectives.sentence_pairs import cosine_mse, triplet_loss
from denserk.settings.training import CacheSettings, ObjectiveSettings
from denserk.training.distributed import gather
from denserk.training.length_groups import Work, group, items_at_once
from denserk.training.step import Autocast, Backward, Terms


class SentenceStep:
    """Pairs or triplets -> gradients. Every sentence becomes one vector, that of `Encoder.forward`.

    Args:
        encoder: reads all sentences.
        objective: which loss; its margin, or its scale of labels.
        cache: with `grad_cache`, a chunk holds as many whole examples as `p_chunk` sentences, or
            `chunk_tokens`, make, at least one; no pass is run twice.

    Attributes:
        work: what passed through the encoder so far.
    """

    def __init__(
        self,
        encoder: Encoder,
        objective: ObjectiveSettings,
        cache: CacheSettings,
    ) -> None:
        self.encoder, self.objective, self.cache = encoder, objective, cache
        self.work = Work()

    def __call__(self, batch: SentenceBatch, backward: Backward, autocast: Autocast) -> Terms:
        """See `denserk.training.step.Step`."""
        count = len(batch.items)
        total = int(gather(batch.items.new_tensor([count])).sum())
        found = torch.zeros(1, device=batch.items.device)
        if count:  # the last batch of an epoch may leave nothing for a process
            size = len(batch.sentences.input_ids) // count
            chunk = items_at_once(self.cache, size, batch.sentences)
            for first in range(0, count, chunk):
                labels = None if batch.labels is None else batch.labels[first : first + chunk]
                rows = slice(first * size, (first + chunk) * size)
                texts = TokenBatch(*(side[rows] for side in batch.sentences))
                part = group(texts, work=self.work)
                with autocast():
                    vectors = torch.cat([self.encoder(each) for each in part.batches])[part.back]
                examples = vectors.reshape(-1, size, vectors.shape[1])
                loss = sentence_loss(examples, labels, self.objective)
                share = loss * (len(examples) / total)
                backward(share)
                found = found + share.detach().float()
        return {self.objective.objective.value: gather(found).sum()}


def sentence_loss(vectors: Tensor, labels: Tensor | None, settings: ObjectiveSettings) -> Tensor:
    """The mean loss of examples: (B, n, D) and, of pairs, (B,) labels -> scalar."""
    if labels is None:
        anchor, positive, negative = vectors.unbind(1)
        return triplet_loss(anchor, positive, negative, settings.margin)
    first, second = vectors.unbind(1)
    return cosine_mse(first, second, labels.to(first) / settings.label_scale)
