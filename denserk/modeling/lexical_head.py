"""Aggretriever's lexical part for inference on the CPU, the vocabulary passed through in blocks.

Where weights are positive, the maximum over positions and the maximum of a slice's half can change
places, and the softmax's sum `Z_i` can wait until both are taken:

    max_u max_i w_i exp(z_i[u]) / Z_i  =  max_i (w_i / Z_i) max_u exp(z_i[u])

So a block of the vocabulary is multiplied, exponentiated in place, added to the sums and folded
into the maxima, and forgotten. What stays of a position is as wide as the slices are many. The
exponentials are not negative, and such numbers keep their order when their bits are read as
integers, whose maxima the processor takes faster in 16 bits.

Shapes: `N` positions, `B` texts, `T` positions of a text, `H` hidden, `D` dimensions, `M` halves of
slices (the layout's modulus).
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from denserk.modeling.architectures import HeadParts
from denserk.modeling.lean_forward import Norm
from denserk.modeling.lexical_aggregation import raise_to_maxima
from denserk.modeling.packed_linear import PackedLinear, pack
from denserk.modeling.slice_layout import SliceLayout

ROWS = 256
"""Positions whose logits of one block stand in memory at once."""
COLUMNS = 8192
"""About how many entries of the vocabulary make a block: 256 x 8192 x 4 bytes are 8 MiB."""
BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16}
"""The integers that are as wide as a precision's numbers."""


class VocabularyBlock(NamedTuple):
    """Neighbouring columns of a layout.

    Attributes:
        logits: the projection to them.
        rounds: how often they go round the slices; 0 for ids that the layout drops, which belong to
            the softmax's sum all the same.
    """

    logits: PackedLinear
    rounds: int


class LexicalHead:
    """The masked-language-model head, softmax, weights, both maxima: states -> folded vectors.

    Args:
        parts: the head's layers; nothing of them is needed afterwards.
        layout: the slices.
        dtype: the precision of the products; float32 or bfloat16. Sums are float32.
    """

    def __init__(self, parts: HeadParts, layout: SliceLayout, dtype: torch.dtype) -> None:
        self.layout = layout
        self.dtype = dtype
        self.dense = pack(parts.dense.weight, parts.dense.bias, dtype, activation="gelu")
        self.norm = Norm.of(parts.norm)
        self.blocks = vocabulary_blocks(parts, layout, dtype)

    def __call__(self, states: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
        """The folded vectors of texts; zeros where no weight is positive.

        Args:
            states: (B, T, H), hidden states.
            weights: (B, T), after their rule.
            mask: (B, T) bool. Only real positions with a positive weight are looked at.

        Returns:
            (B, D) float32.
        """
        return self.layout.join_halves(self.halves(states, weights, mask))

    def halves(self, states: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
        """The same before the halves of slices are joined: (B, M) float32."""
        texts, positions = (mask & (weights > 0)).nonzero(as_tuple=True)
        best = torch.zeros(len(mask), self.layout.modulus)
        if len(texts):
            parts = -(-len(texts) // ROWS)
            for text, position in zip(texts.chunk(parts), positions.chunk(parts), strict=True):
                products = self._products(states[text, position], weights[text, position])
                counts = torch.unique_consecutive(text, return_counts=True)
                raise_to_maxima(best, products, *(part.tolist() for part in counts))
        return best

    def _products(self, states: Tensor, weights: Tensor) -> Tensor:
        """The largest `w_i p_i[u]` of each half of a slice: (N, H), (N,) -> (N, M) float32."""
        inputs = self.norm(self.dense(states.to(self.dtype)))
        best, total = self._scan(inputs, None)
        if not bool(((total > 1e-30) & total.isfinite()).all()):
            best, total = self._scan(inputs, self._largest(inputs))
        return best.mul_((weights / total).unsqueeze(-1))

    def _scan(self, inputs: Tensor, shift: Tensor | None) -> tuple[Tensor, Tensor]:
        """Largest exponentials of the halves of slices and the sum of all: (N, M) and (N,)."""
        count, modulus, bits = len(inputs), self.layout.modulus, BITS[self.dtype]
        best: Tensor | None = None
        total = torch.zeros(count)
        for block in self.blocks:
            powers = block.logits(inputs)
            if shift is not None:
                powers.sub_(shift.unsqueeze(-1))
            powers.exp_()
            if not block.rounds:
                total += powers.sum(dim=-1, dtype=torch.float32)
                continue
            rounds = powers.view(count, block.rounds, modulus)
            total += rounds.sum(dim=-1).sum(dim=-1, dtype=torch.float32)
            folded = rounds.view(bits).amax(dim=1)
            best = folded if best is None else torch.maximum(best, folded)
        assert best is not None
        return best.view(self.dtype).to(torch.float32), total

    def _largest(self, inputs: Tensor) -> Tensor:
        """The largest logit of each position: (N, H) -> (N,)."""
        each = [block.logits(inputs).amax(dim=-1) for block in self.blocks]
        return torch.stack(each).amax(dim=0)


def vocabulary_blocks(
    parts: HeadParts, layout: SliceLayout, dtype: torch.dtype
) -> list[VocabularyBlock]:
    """The decoder's rows in the order of a layout's columns, packed block by block.

    Columns that a layout appends have zero for a weight and minus infinity for a bias: they add
    nothing to a sum, and are no maximum.
    """
    weight, bias = parts.decoder.weight.detach(), parts.decoder.bias.detach()
    if layout.order is not None:
        order = torch.tensor(layout.order)
        weight, bias = weight[order], bias[order]
    blocks = []
    if layout.dropped:
        first = slice(0, layout.dropped)
        blocks.append(VocabularyBlock(pack(weight[first], bias[first], dtype), 0))
    step = max(COLUMNS // layout.modulus, 1) * layout.modulus
    for start in range(layout.dropped, len(weight), step):
        some, its_bias = weight[start : start + step], bias[start : start + step]
        missing = -len(some) % layout.modulus
        some = F.pad(some, (0, 0, 0, missing))
        its_bias = F.pad(its_bias, (0, missing), value=-torch.inf)
        packed = pack(some, its_bias, dtype)
        blocks.append(VocabularyBlock(packed, len(some) // layout.modulus))
    return blocks
