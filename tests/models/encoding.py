"""An encoder without a model, for tests of what is around it."""

import hashlib
from dataclasses import replace

import torch

from denserk.config.encoding import TextSettings
from denserk.data.batches import plan


class StandIn:
    """An encoder whose vector of a text is its hash; counts what it was asked to encode."""

    dimension = 4
    vectors_per_passage = 1
    int8 = None
    asked = 0

    def __init__(self, name, text, compute):
        self.batch_tokens = compute.tokens_on("cpu")
        self.name, self.text = name, replace(TextSettings(), **text)
        self.device = torch.device("cpu")

    def description(self):
        return {"name": self.name, "fingerprint": self.name.rsplit("/", 1)[-1]}

    def plan(self, side, records):
        fields = self.text.fields
        texts = [
            record.text if side == "query" else " ".join(record.field(f) for f in fields)
            for record in records
        ]
        return plan([list(hashlib.sha256(text.encode()).digest()[:4]) for text in texts], 0, 8)

    def encode_planned(self, side, planned, advance=lambda count: None):
        type(self).asked += planned.count
        vectors = torch.empty(planned.count, self.dimension)
        for members, batch in zip(planned.members, planned.batches, strict=True):
            vectors[members] = batch.input_ids.float()
            advance(len(members))
        return vectors.numpy()
