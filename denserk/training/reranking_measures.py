"""Held-out queries measured while a cross-encoder is trained: each with its own group alone."""

import torch
import torch.nn.functional as F
from torch import Tensor

from denserk.data.pair_batches import PairJoiner
from denserk.modeling.cross_encoder import Reranker
from denserk.objectives.reranking import listwise_loss
from denserk.training.dev_measures import CUT, DevSet, ranks


@torch.no_grad()
def measure_groups(
    model: Reranker, joiner: PairJoiner, dev: DevSet, device: torch.device
) -> dict[str, float]:
    """The measures by name: `dev-loss`, `avg-rank` and `RR@10`, all within a query's group.

    Args:
        model: in evaluation mode.
        joiner: makes its inputs.
        dev: held-out queries with groups.
        device: where the model is.
    """
    assert dev.groups is not None
    found: list[Tensor] = []
    for query, rows in enumerate(dev.groups.tolist()):
        pairs = [joiner.join(dev.queries[query], dev.passages[row]) for row in rows if row >= 0]
        own = model(joiner.batch(pairs).to(device))
        found.append(F.pad(own, [0, len(rows) - len(own)], value=-torch.inf))
    scores = torch.stack(found)
    before = ranks(scores, torch.zeros(len(scores), dtype=torch.long, device=device)).double()
    return {
        "dev-loss": float(listwise_loss(scores)),
        "avg-rank": float(before.mean()),
        "RR@10": float(torch.where(before < CUT, 1 / (before + 1), 0.0).mean()),
    }
