"""Models with several vectors a passage -> which vector wins the maximum: in MLR, which layer."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from denserk.analysis.pictures import draw_if_installed
from denserk.analysis.share_bars import draw_shares
from denserk.analysis.winning_vectors import KEPT_APART, add_counts, vector_names, winners
from denserk.data.batches import by_length, pad
from denserk.errors import DenserkError, ModelError, UsageError
from denserk.extras import require
from denserk.formats.csv_rows import write_rows
from denserk.modeling.model_names import find_model
from denserk.modeling.multi_vector import MultiVector
from denserk.modeling.text_encoder import NOTHING, TextEncoder
from denserk.records import Passage
from denserk.reporting import SILENT, Reporter
from denserk.settings.analysis import WinningVectorSettings
from denserk.settings.encoding import ComputeSettings, Representation
from denserk.settings.formats import DETECTED, CorpusSettings
from denserk.tasks.query_passage_pairs import Pairs, choose_pairs

HEADER = ("label", "model", "passages", "queries", "pairs", "kind", "vector", "wins", "share")
BLOCK = 1024
"""Passages encoded at once."""


@dataclass(frozen=True)
class WinningVectors:
    """How often each vector of one model won.

    Attributes:
        label: what tables call the model.
        model: its folder or name.
        passages: which ones: `positive` or `retrieved`.
        queries: how many.
        pairs: of a query and a passage.
        kind: what the vectors are: `layer` or `token`.
        wins: the vector -> in how many pairs its product was the highest; layers ascending.
    """

    label: str
    model: str
    passages: str
    queries: int
    pairs: int
    kind: str
    wins: Mapping[str, int]

    def shares(self) -> dict[str, float]:
        """The wins of each vector as a share of the pairs."""
        return {name: count / self.pairs for name, count in self.wins.items()}


def winning_vectors(
    settings: WinningVectorSettings,
    representation: Mapping[str, Any] = NOTHING,
    text: Mapping[str, Any] = NOTHING,
    compute: ComputeSettings = ComputeSettings(),  # noqa: B008  (frozen)
    corpus: CorpusSettings = DETECTED,
    reporter: Reporter = SILENT,
) -> list[WinningVectors]:
    """Counts which vector wins, for models on the same pairs; writes the table, and the shares.

    Memory grows with the pairs, not with the corpus.

    Args:
        settings: which models, which queries and passages, to where.
        representation: replaces what a model says about how its vectors are made.
        text: replaces what it says about texts.
        compute: where and how.
        corpus: how passages are read.
        reporter: told of progress.

    Raises:
        UsageError, ModelError: an input or a model is not there, or gives a passage one vector.
        InputError: an input is broken.
        MismatchError: queries, passages and what names them have nothing in common.
        DenserkError: a model gives vectors that are no numbers.
        OutputError: table or shares cannot be written.
    """
    if settings.plot is not None:
        require("matplotlib", "drawing shares")
    for _, model in settings.labelled:  # none is measured before all are found
        find_model(model)
    pairs = choose_pairs(settings, text.get("fields"), corpus, reporter)
    found = []
    for label, model in settings.labelled:
        try:
            encoder = TextEncoder.load(model, representation, text, compute, reporter)
        except UsageError as error:
            raise UsageError(f"{label}: {error.message}", error.hint) from None
        found += _measure(label, model, encoder, pairs, reporter)
    write_rows(settings.output, [HEADER, *(row for each in found for row in _rows(each))])
    _draw(found, settings.picture, reporter)
    return found


def as_table(found: Sequence[WinningVectors]) -> tuple[list[str], list[list[str]]]:
    """The shares, a row a vector: header and rows."""
    header = ["model", "passages", "pairs", "vector", "wins", "share"]
    rows = [
        [each.label, each.passages, str(each.pairs), f"{each.kind} {name}", str(wins), f"{s:.4f}"]
        for each in found
        for (name, wins), s in zip(each.wins.items(), each.shares().values(), strict=True)
    ]
    return header, rows


def _measure(
    label: str, model: str, encoder: TextEncoder, pairs: Pairs, reporter: Reporter
) -> list[WinningVectors]:
    """One model's counts, for each set of pairs."""
    maker = _several_vectors(label, encoder)
    queries = torch.from_numpy(encoder.encode_queries(pairs.queries))
    counts = {name: np.zeros(0, dtype=np.int64) for name in pairs.sets}
    with reporter.track(f"encoding with {label}", len(pairs.passages), "passages") as progress:
        for first in range(0, len(pairs.passages), BLOCK):
            block = pairs.passages[first : first + BLOCK]
            for name, won, size in _wins(encoder, queries, block, first, pairs.sets):
                if (won < 0).any():
                    raise DenserkError(
                        f"{model} gives vectors that are no numbers", "use --dtype float32"
                    )
                counts[name] = add_counts(counts[name], won, size)
            progress.advance(len(block))
    is_layers = maker.settings.representation is Representation.MLR
    found = []
    for name, wins in counts.items():
        named = list(zip(vector_names(maker, len(wins)), wins.tolist(), strict=True))
        chosen = pairs.sets[name]
        found.append(
            WinningVectors(
                label,
                model,
                name,
                len(np.unique(chosen[:, 0])),
                len(chosen),
                "layer" if is_layers else "token",
                dict(reversed(named) if is_layers else named),
            )
        )
    return found


def _several_vectors(label: str, encoder: TextEncoder) -> MultiVector:
    """What makes a model's vectors.

    Raises:
        ModelError: they are one a passage, which needs no maximum.
    """
    maker, chosen = encoder.passage_side.encoder.representation, encoder.representation
    one = "gives a passage one vector: there is no maximum to win"
    if not isinstance(maker, MultiVector):
        raise ModelError(
            f"{label}: {chosen.representation} {one}",
            "look at a model trained with --representation mlr, me-bert or colbert",
        )
    if chosen.reduction not in KEPT_APART:
        raise ModelError(
            f"{label}: --reduction {chosen.reduction} makes one vector of a passage's several: "
            "there is no maximum to win",
            f"--reduction {' or '.join(KEPT_APART)} leaves them apart",
        )
    if chosen.representation is Representation.MLR and len(maker.layers) == 1:
        raise ModelError(f"{label}: --layers {maker.layers[0]} {one}")
    if chosen.representation is Representation.ME_BERT and chosen.vectors == 1:
        raise ModelError(f"{label}: --vectors 1 {one}")
    return maker


@torch.inference_mode()
def _wins(
    encoder: TextEncoder,
    queries: torch.Tensor,
    block: Sequence[Passage],
    first: int,
    sets: Mapping[str, NDArray[np.int64]],
) -> Iterable[tuple[str, NDArray[np.int64], int]]:
    """A block of passages, from row `first` on: (set, the winning vector of each pair, S)."""
    side = encoder.passage_side
    within = {name: _between(rows, first, first + len(block)) for name, rows in sets.items()}
    ids = side.tokenizer.passages(block)
    plan = by_length([len(text) for text in ids], encoder.batch_tokens, encoder.compute.batch_size)
    for members in plan:
        batch = pad([ids[i] for i in members], side.tokenizer.pad_id).to(encoder.device)
        vectors = side.encoder.passage_vectors(batch)
        place = {first + int(row): number for number, row in enumerate(members)}
        for name, chosen in within.items():
            inside = chosen[np.isin(chosen[:, 1], list(place))]
            if len(inside):
                rows = torch.tensor([place[row] for row in inside[:, 1].tolist()])
                mine = queries[inside[:, 0]].to(encoder.device)
                won = winners(mine, vectors.of(rows.to(encoder.device)))
                yield name, won.cpu().numpy(), vectors.values.shape[1]


def _between(pairs: NDArray[np.int64], first: int, last: int) -> NDArray[np.int64]:
    """The pairs whose passages stand in rows `first` to `last`, which is left out."""
    start, stop = np.searchsorted(pairs[:, 1], (first, last))
    return pairs[start:stop]


def _rows(found: WinningVectors) -> Iterable[tuple[str, ...]]:
    """One model's counts under `HEADER`."""
    told = (found.label, found.model, found.passages, str(found.queries), str(found.pairs))
    for name, share in found.shares().items():
        yield *told, found.kind, name, str(found.wins[name]), f"{share:.6f}"


def _draw(found: Sequence[WinningVectors], path: Path | None, reporter: Reporter) -> None:
    kinds = " or ".join(dict.fromkeys(each.kind for each in found))
    shares = {
        f"{each.label}, {each.passages}: {each.pairs:,} pairs": each.shares() for each in found
    }
    draw = partial(draw_shares, shares, f"{kinds} with the highest product")
    draw_if_installed(draw, "the shares", path, reporter)
