"""Canaries: is a model still the one that was saved? Nothing here imports torch.

A saved model carries texts with their token ids and vectors (`denserk.io.canary`). A loaded one
encodes them again, under the settings that its folder has now, and not under options that replace
them. The first stage that differs is named.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from importlib.resources import files
from itertools import cycle, islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from denserk.config.encoding import Representation, RepresentationSettings, TextSettings
from denserk.config.options import as_json
from denserk.data.tokenization import TextTokenizer, TokenIds
from denserk.errors import MismatchError
from denserk.io.canary import QUERY, Canary, CanaryText, KindSettings, Vectors
from denserk.records import Query

# Largest cosine distances (1 - cosine) at which vectors count as those that were saved in float32.
# Between torch and OpenVINO, MiniLM and tiny models of random weights differ by at most 4e-10 in
# float32; in bfloat16 MiniLM is off by 8e-5, in int8 by 2e-2 (tests/benchmarks/canary_faults.py).
TOLERANCES = {"float32": 1e-8, "float16": 2e-3, "bfloat16": 2e-3, "int8": 0.1}
# of agg, where rounding may turn the sign of a dimension whose two extremes are as far from zero
AGG_TOLERANCES = {"float32": 0.02, "float16": 0.1, "bfloat16": 0.1, "int8": 0.2}
# A model that bfloat16 moves further as it is saved may be so many times as far from it
MARGIN = 16
FARTHEST = 2.0  # of all cosine distances
TEXTS_OF_KIND = 8
# Texts of a kind that are compared before the first text of a user is encoded, as many as fit
START_TEXTS = 4
START_SECONDS = 0.05
# Tokens up to which the long text of a kind shows where texts are cut
LONGEST = 512
WORDS = "how does the water of a river find its way to the sea when rain falls on high mountains"
SIMPLE_POOLINGS = tuple(Representation(name) for name in ("cls", "mean", "max", "last"))
SHOWN = 40  # characters of a text in a message

# token ids of N texts, under settings -> the vectors of each, (S, D); None where the weights that
# are loaded do not make them
EncodeIds = Callable[[Sequence[TokenIds], RepresentationSettings], Sequence[Vectors] | None]


class Stage(StrEnum):
    """Stages of encoding, in their order.

    The first three are found by token ids. Of the others, the one is named that alone explains the
    vectors; what no other explains are the weights.
    """

    TOKENIZER = "tokenizer"
    PROMPT = "prompt"
    LENGTH = "length"
    WEIGHTS = "weights"
    PRECISION = "precision"
    POOLING = "pooling"
    DIMENSIONS = "dimensions"
    NORMALISATION = "normalisation"


class Difference(NamedTuple):
    """The first stage that differs, and how."""

    stage: Stage
    message: str


@dataclass(frozen=True)
class ModelSide:
    """A loaded model's encoder of one kind of texts, under the folder's own settings.

    `precision` is what computes the vectors: float32, bfloat16, float16 or int8.
    """

    kind: str
    representation: RepresentationSettings
    text: TextSettings
    tokenizer: TextTokenizer
    precision: str
    encode: EncodeIds

    def token_ids(self, texts: Sequence[str], text_settings: TextSettings) -> list[TokenIds]:
        """Return the token ids of texts under settings of texts."""
        return token_ids(self.tokenizer.with_settings(text_settings), self.kind, texts)


@dataclass(frozen=True)
class Comparison:
    """The texts of a kind that were compared.

    `distances` are the largest cosine distances of the vectors of the first texts, as far as they
    were encoded; none if the loaded weights do not make vectors under the folder's own settings.
    """

    kind: str
    precision: str
    tolerance: float
    texts: Sequence[CanaryText]
    distances: Sequence[float]
    difference: Difference | None


def token_ids(tokenizer: TextTokenizer, kind: str, texts: Sequence[str]) -> list[TokenIds]:
    """Return the token ids of texts of a kind, as queries or as passages of one field."""
    if kind == QUERY:
        return tokenizer.queries([Query("", text) for text in texts])
    return tokenizer.sentences(texts)


@cache
def _short_texts() -> tuple[str, ...]:
    """Return the short texts: those of queries, and as many of passages."""
    path = files("denserk.models") / "canary_texts.txt"
    return tuple(path.read_text("utf-8").splitlines())


def canary_texts(kind: str, max_length: int) -> list[str]:
    """Return the texts of a kind; the last is longer than `max_length` tokens, up to `LONGEST`."""
    texts = _short_texts()
    half = len(texts) // 2
    texts_of_kind = texts[:half] if kind == QUERY else texts[half:]
    # each word is at least one token
    words = islice(cycle(WORDS.split()), min(max_length, LONGEST) + 8)
    return [*texts_of_kind, " ".join(words)]


def kind_settings(
    kind: str, representation: RepresentationSettings, text: TextSettings
) -> KindSettings:
    """Return how texts of a kind are encoded."""
    prompt, max_length = _prompt_and_length(kind, text)
    pooling = representation.representation.value
    return KindSettings(prompt, max_length, pooling, representation.l2_norm)


def _prompt_and_length(kind: str, text: TextSettings) -> tuple[str, int]:
    """Return the prefix and the length limit of a kind of texts."""
    if kind == QUERY:
        return text.query_prefix, text.query_max_length
    return text.passage_prefix, text.passage_max_length


def _with_prompt(kind: str, text: TextSettings, prompt: str) -> TextSettings:
    """Return settings with another prefix of a kind of texts."""
    if kind == QUERY:
        return replace(text, query_prefix=prompt)
    return replace(text, passage_prefix=prompt)


def _with_length(kind: str, text: TextSettings, max_length: int) -> TextSettings:
    """Return settings with another length limit of a kind of texts."""
    if kind == QUERY:
        return replace(text, query_max_length=max_length)
    return replace(text, passage_max_length=max_length)


def default_tolerances(representation: RepresentationSettings) -> dict[str, float]:
    """Return the largest cosine distances, by precision, of a representation's vectors."""
    if representation.representation is Representation.AGG:
        return dict(AGG_TOLERANCES)
    return dict(TOLERANCES)


def tolerances_of(
    representation: RepresentationSettings, distance_in_bfloat16: float
) -> dict[str, float]:
    """Return the tolerances of a model whose vectors bfloat16 moves by a cosine distance."""
    # one digit: the products of another processor differ
    measured = min(FARTHEST, float(f"{MARGIN * distance_in_bfloat16:.0e}"))
    tolerances = default_tolerances(representation)
    for precision in ("float16", "bfloat16", "int8"):
        tolerances[precision] = max(tolerances[precision], measured)
    return tolerances


def cosine_distances(vectors: Sequence[Vectors], saved: Sequence[Vectors]) -> list[float]:
    """Return each text's largest cosine distance between its vectors (S, D) and those saved.

    Computed in float64 as half the squared distance of unit vectors, which is exact near 0.
    Different numbers of vectors or dimensions are infinitely far; two vectors of zeros are equal.

    >>> one = np.float32([[3, 4]])
    >>> distances = cosine_distances([one * 2, np.float32([[4, -3]])], [one, one])
    >>> [round(distance, 12) for distance in distances]
    [0.0, 1.0]
    """
    distances = []
    for vectors_of_text, saved_of_text in zip(vectors, saved, strict=True):
        if vectors_of_text.shape != saved_of_text.shape:
            distances.append(float("inf"))
            continue
        difference = _unit(vectors_of_text) - _unit(saved_of_text)
        largest = float(np.square(difference).sum(axis=1).max()) / 2
        distances.append(largest if np.isfinite(largest) else float("inf"))
    return distances


def _unit(vectors: Vectors) -> NDArray[np.float64]:
    """Return vectors of unit length: (S, D) -> (S, D); zero stays zero."""
    exact = vectors.astype(np.float64)
    norms = np.linalg.norm(exact, axis=1, keepdims=True)
    units: NDArray[np.float64] = exact / np.maximum(norms, np.finfo(np.float64).tiny)
    return units


def _largest_norm_change(vectors: Sequence[Vectors], saved: Sequence[Vectors]) -> float:
    """Return the largest change of a vector's length, relative to the length that was saved."""
    changes = []
    for vectors_of_text, saved_of_text in zip(vectors, saved, strict=True):
        norms = np.linalg.norm(vectors_of_text.astype(np.float64), axis=1)
        saved_norms = np.linalg.norm(saved_of_text.astype(np.float64), axis=1)
        tiny = np.finfo(np.float64).tiny
        changes.append(float((np.abs(norms - saved_norms) / np.maximum(saved_norms, tiny)).max()))
    return max(changes)


class _SideComparison:
    """The comparison of a loaded model's side with a canary."""

    def __init__(self, canary: Canary, side: ModelSide) -> None:
        self.side = side
        self.saved = canary.kinds[side.kind]
        self.texts = canary.of_kind(side.kind)
        self.canary = canary
        tolerances = {**default_tolerances(side.representation), **canary.tolerances}
        self.bfloat16_tolerance = tolerances["bfloat16"]
        self.tolerance = tolerances[side.precision]

    def token_difference(self) -> Difference | None:
        """Return the first stage at which token ids differ; None if they are those saved."""
        now = self.side.text
        if self._other_text(now) is None:
            return None
        kind = self.side.kind
        prompt, max_length = _prompt_and_length(kind, now)
        as_saved = _with_length(kind, now, self.saved.max_length)
        other = self._other_text(_with_prompt(kind, as_saved, self.saved.prompt))
        if other is not None:
            text, ids = other
            return Difference(Stage.TOKENIZER, _token_message(text, ids))
        plural = "queries" if kind == QUERY else "passages"
        if self._other_text(as_saved) is not None:
            message = f"{plural} begin with {prompt!r}, and began with {self.saved.prompt!r}"
            return Difference(Stage.PROMPT, message)
        message = f"{plural} are cut at {max_length} tokens, and were at {self.saved.max_length}"
        return Difference(Stage.LENGTH, message)

    def _other_text(self, settings: TextSettings) -> tuple[CanaryText, TokenIds] | None:
        """Return the first text with other token ids under some settings, and these ids."""
        ids_of_texts = self.side.token_ids([text.text for text in self.texts], settings)
        for text, ids in zip(self.texts, ids_of_texts, strict=True):
            if ids != text.token_ids:
                return text, ids
        return None

    def encode(self, texts: Sequence[CanaryText]) -> Sequence[Vectors] | None:
        """Return the vectors of texts as the model makes them now."""
        return self.side.encode([text.token_ids for text in texts], self.side.representation)

    def are_as_saved(self, vectors: Sequence[Vectors], texts: Sequence[CanaryText]) -> bool:
        """Return whether directions and lengths of vectors are those saved."""
        saved = [text.vectors for text in texts]
        if max(cosine_distances(vectors, saved)) > self.tolerance:
            return False
        return _largest_norm_change(vectors, saved) <= math.sqrt(self.tolerance)

    def vector_difference(
        self, vectors: Sequence[Vectors], texts: Sequence[CanaryText]
    ) -> Difference | None:
        """Return the first stage at which vectors differ; None if they are those saved."""
        if self.are_as_saved(vectors, texts):
            return None
        saved = [text.vectors for text in texts]
        distance = max(cosine_distances(vectors, saved))
        if distance <= self.tolerance:
            norm = float(np.linalg.norm(vectors[0][0]))
            saved_norm = float(np.linalg.norm(saved[0][0]))
            message = f"vectors have the length {norm:.4g}, and had {saved_norm:.4g}"
            return Difference(Stage.NORMALISATION, message)
        changed_settings = self._changed_representation()
        if _have_other_dimensions(vectors, saved) and not changed_settings:
            dimension, saved_dimension = vectors[0].shape[1], saved[0].shape[1]
            message = f"vectors have {dimension:,} dimensions, and had {saved_dimension:,}"
            return Difference(Stage.DIMENSIONS, message)
        pooling = self._pooling_of(texts)
        if pooling is not None or changed_settings:
            now = self.side.representation.representation
            message = f"pooling is {now}, and was {pooling or self.saved.pooling}"
            if changed_settings:
                message = ", ".join(changed_settings)
            return Difference(Stage.POOLING, message)
        is_float32 = self.side.precision == "float32"
        cosine = f"{1 - distance:.6f}"
        if is_float32 and distance <= self.bfloat16_tolerance:
            message = (
                f"cosines to the vectors saved are down to {cosine}, as of weights or products in "
                "16 bits, or of slightly other weights"
            )
            return Difference(Stage.PRECISION, message)
        message = (
            f"cosines to the vectors saved are down to {cosine}: weights, or the configuration of "
            "the transformer, are others"
        )
        return Difference(Stage.WEIGHTS, message)

    def _changed_representation(self) -> list[str]:
        """Return how the folder's own representation differs from the one that was saved.

        Dimensions and normalisation have stages of their own. Nothing is known of a model that
        another tool saved.
        """
        saved = self.canary.denserk.get("representation", {})
        now = as_json(self.side.representation)
        changes = []
        for name in sorted((saved.keys() & now.keys()) - {"l2_norm", "truncate_dim"}):
            if saved[name] != now[name]:
                changes.append(f"{name} is {now[name]}, and was {saved[name]}")
        return changes

    def _pooling_of(self, texts: Sequence[CanaryText]) -> str | None:
        """Return the simple pooling that makes the vectors saved from the states of now."""
        own = self.side.representation
        ids = [text.token_ids for text in texts]
        saved = [text.vectors for text in texts]
        for pooling in SIMPLE_POOLINGS:
            if pooling is own.representation:
                continue
            vectors = self.side.encode(ids, replace(own, representation=pooling))
            if vectors is not None and max(cosine_distances(vectors, saved)) <= self.tolerance:
                return pooling.value
        return None

    def result(self, distances: Sequence[float], difference: Difference | None) -> Comparison:
        """Return what was compared."""
        side = self.side
        return Comparison(
            side.kind, side.precision, self.tolerance, self.texts, distances, difference
        )


def _have_other_dimensions(vectors: Sequence[Vectors], saved: Sequence[Vectors]) -> bool:
    """Return whether vectors have other numbers of dimensions."""
    return any(
        of_text.shape[1] != saved_of_text.shape[1]
        for of_text, saved_of_text in zip(vectors, saved, strict=True)
    )


def _token_message(text: CanaryText, ids: TokenIds) -> str:
    """Say where the token ids of a text begin to differ from those saved."""
    shown = text.text if len(text.text) <= SHOWN else f"{text.text[:SHOWN]}..."
    position = 0
    for token, saved_token in zip(ids, text.token_ids, strict=False):
        if token != saved_token:
            break
        position += 1
    now = "no token" if position >= len(ids) else f"token {ids[position]}"
    before = "none" if position >= len(text.token_ids) else str(text.token_ids[position])
    return (
        f"of the {text.kind} {shown!r}, position {position} (from 0) holds {now}, and held {before}"
    )


def compare(canary: Canary, side: ModelSide) -> Comparison:
    """Compare all texts of a side's kind with what was saved."""
    comparison = _SideComparison(canary, side)
    difference = comparison.token_difference()
    if difference is not None:
        return comparison.result((), difference)
    vectors = comparison.encode(comparison.texts)
    if vectors is None:
        return comparison.result((), None)
    distances = cosine_distances(vectors, [text.vectors for text in comparison.texts])
    return comparison.result(distances, comparison.vector_difference(vectors, comparison.texts))


def first_difference(comparisons: Sequence[Comparison]) -> Difference | None:
    """Return the difference of the earliest stage of all comparisons; None if none differs."""
    differences = [of_kind.difference for of_kind in comparisons if of_kind.difference is not None]
    if not differences:
        return None
    stages = list(Stage)
    return min(differences, key=lambda difference: stages.index(difference.stage))


def check_start(
    canary: Canary | None,
    side: ModelSide,
    name: str,
    *,
    texts_at_once: int,
    seconds: float = START_SECONDS,
) -> None:
    """Raise a MismatchError if a model is not the one that was saved, by as many texts as fit.

    Token ids of all texts of the side's kind are compared, and vectors of the first `START_TEXTS`,
    as many as fit into `seconds`, at least one. `texts_at_once` are encoded together. Without a
    canary, nothing is compared. `name` is the model's in the message.
    """
    if canary is None or not canary.of_kind(side.kind):
        return
    started = time.perf_counter()
    comparison = _SideComparison(canary, side)
    refuse_difference(comparison.token_difference(), name)
    texts = comparison.texts[:START_TEXTS]
    done = 0
    while done < len(texts):
        batch = texts[done : done + texts_at_once]
        batch_started = time.perf_counter()
        vectors = comparison.encode(batch)
        if vectors is None:
            return
        if not comparison.are_as_saved(vectors, batch):
            # all texts of the kind show best what it is
            refuse_difference(compare(canary, side).difference, name)
            refuse_difference(comparison.vector_difference(vectors, batch), name)
        done += len(batch)
        now = time.perf_counter()
        if now - started + (now - batch_started) > seconds:
            return


def refuse_difference(difference: Difference | None, name: str) -> None:
    """Raise a MismatchError that names the first stage that differs, if one does."""
    if difference is None:
        return
    raise MismatchError(
        f"{name} is not the model that was saved; the first stage that differs is "
        f"{difference.stage}: {difference.message}",
        f"denserk doctor --model {name} compares all texts; get the model again, or, if the change "
        f"is meant, write it anew: denserk convert {name} NEW_FOLDER --kind model --to denserk",
    )


def saved_settings(representation: RepresentationSettings, text: TextSettings) -> Mapping[str, Any]:
    """Return the settings of a model as canary.json records them for denserk itself."""
    return {"representation": as_json(representation), "text": as_json(text)}
