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

# Largest cosine distances (1 - cosine), by the precision of the loaded model, at which its vectors
# count as those saved, which are in float32. For comparison: vectors of torch and of OpenVINO, in
# float32, are at most 4e-10 apart; those of MiniLM in bfloat16 are 8e-5 from those in float32, and
# those in int8 2e-2 (tests/benchmarks/canary_faults.py).
TOLERANCES = {"float32": 1e-8, "float16": 2e-3, "bfloat16": 2e-3, "int8": 0.1}
# Those of agg: a dimension has the sign of the larger of two extremes. Where these are about as far
# from zero, rounding turns the sign.
AGG_TOLERANCES = {"float32": 0.02, "float16": 0.1, "bfloat16": 0.1, "int8": 0.2}
# The tolerances of 16 bits and of int8 are at least this multiple of the distance that was measured
# in bfloat16 when the model was saved
MARGIN = 16
LARGEST_DISTANCE = 2.0  # of opposite vectors
TEXTS_OF_KIND = 8
# Texts of a kind that are compared before the first text of a user is encoded, as many as fit
START_TEXTS = 4
START_SECONDS = 0.05
# Tokens up to which the long text of a kind shows where texts are cut
LONGEST = 512
WORDS = "how does the water of a river find its way to the sea when rain falls on high mountains"
SIMPLE_POOLINGS = tuple(Representation(name) for name in ("cls", "mean", "max", "last"))
SHOWN = 40  # characters of a text in a message
SMALLEST = float(np.finfo(np.float64).tiny)  # divisor in place of 0

# Function that encodes N texts, given by their token ids, under a representation: N arrays (S, D).
# None where the loaded weights do not make such vectors.
EncodeIds = Callable[[Sequence[TokenIds], RepresentationSettings], Sequence[Vectors] | None]


class Stage(StrEnum):
    """Stages of encoding, in their order.

    Token ids show the first three. Vectors show the others: the stage is named whose change alone
    explains the difference, and `WEIGHTS` if none does.
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
    """A loaded model's encoder of one kind of texts, under the settings that its folder records.

    `precision` is the one that vectors are computed in: float32, bfloat16, float16 or int8.
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

    `distances` are the cosine distances of the texts, in their order. They are empty if token ids
    differ, or if the loaded weights do not make vectors under the folder's own settings.
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
    # each word is at least one token
    words = islice(cycle(WORDS.split()), min(max_length, LONGEST) + 8)
    return [*short_texts(kind), " ".join(words)]


def short_texts(kind: str) -> Sequence[str]:
    """Return the short texts of a kind."""
    texts = _short_texts()
    half = len(texts) // 2
    return texts[:half] if kind == QUERY else texts[half:]


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
    measured = min(LARGEST_DISTANCE, float(f"{MARGIN * distance_in_bfloat16:.0e}"))
    tolerances = default_tolerances(representation)
    for precision in ("float16", "bfloat16", "int8"):
        tolerances[precision] = max(tolerances[precision], measured)
    return tolerances


def cosine_distances(vectors: Sequence[Vectors], saved: Sequence[Vectors]) -> list[float]:
    """Return each text's largest cosine distance between its vectors (S, D) and those saved.

    Computed in float64 as half the squared distance of unit vectors, which is exact near 0.
    Different numbers of vectors or of dimensions, and vectors that are not finite, have an infinite
    distance; two vectors of zeros are equal.

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
    units: NDArray[np.float64] = exact / np.maximum(norms, SMALLEST)
    return units


class NormChange(NamedTuple):
    """The length of a vector and the one that was saved."""

    norm: float
    saved_norm: float

    @property
    def relative(self) -> float:
        """The change as a share of the length that was saved."""
        return abs(self.norm - self.saved_norm) / max(self.saved_norm, SMALLEST)


def largest_norm_change(vectors: Sequence[Vectors], saved: Sequence[Vectors]) -> NormChange:
    """Return the lengths of the vector whose length changed most."""
    norms = np.linalg.norm(np.concatenate(vectors).astype(np.float64), axis=1)
    saved_norms = np.linalg.norm(np.concatenate(saved).astype(np.float64), axis=1)
    changes = [
        NormChange(norm, saved_norm)
        for norm, saved_norm in zip(norms.tolist(), saved_norms.tolist(), strict=True)
    ]
    return max(changes, key=lambda change: change.relative)


class _SideComparison:
    """The comparison of one kind of texts, as a loaded model encodes them, with a canary."""

    def __init__(self, canary: Canary, side: ModelSide) -> None:
        self.side = side
        self.saved_settings = canary.kinds[side.kind]
        self.saved_representation = canary.denserk.get("representation") or {}
        self.texts = canary.of_kind(side.kind)
        tolerances = {**default_tolerances(side.representation), **canary.tolerances}
        self.bfloat16_tolerance = tolerances["bfloat16"]
        self.tolerance = tolerances[side.precision]

    def token_difference(self) -> Difference | None:
        """Return the first stage at which token ids differ; None if they are those saved."""
        kind = self.side.kind
        settings = self.side.text
        if self._first_retokenized(settings) is None:
            return None
        saved_prompt = self.saved_settings.prompt
        saved_length = self.saved_settings.max_length
        with_saved_length = _with_length(kind, settings, saved_length)
        with_saved_prompt = _with_prompt(kind, with_saved_length, saved_prompt)
        retokenized = self._first_retokenized(with_saved_prompt)
        if retokenized is not None:
            return Difference(Stage.TOKENIZER, _token_message(retokenized))
        prompt, max_length = _prompt_and_length(kind, settings)
        plural = "queries" if kind == QUERY else "passages"
        if self._first_retokenized(with_saved_length) is not None:
            message = f"{plural} begin with {prompt!r}, and began with {saved_prompt!r}"
            return Difference(Stage.PROMPT, message)
        message = f"{plural} are cut at {max_length} tokens, and were at {saved_length}"
        return Difference(Stage.LENGTH, message)

    def _first_retokenized(self, settings: TextSettings) -> "_Retokenized | None":
        """Return the first text whose token ids under some settings are not those saved."""
        ids_of_texts = self.side.token_ids([text.text for text in self.texts], settings)
        for text, ids in zip(self.texts, ids_of_texts, strict=True):
            if ids != text.token_ids:
                return _Retokenized(text, ids)
        return None

    def encode(self, texts: Sequence[CanaryText]) -> Sequence[Vectors] | None:
        """Return the vectors of texts as the model makes them now."""
        return self.side.encode([text.token_ids for text in texts], self.side.representation)

    def are_as_saved(self, vectors: Sequence[Vectors], texts: Sequence[CanaryText]) -> bool:
        """Return whether directions and lengths of vectors are those saved."""
        saved = [text.vectors for text in texts]
        if max(cosine_distances(vectors, saved)) > self.tolerance:
            return False
        return largest_norm_change(vectors, saved).relative <= math.sqrt(self.tolerance)

    def vector_difference(
        self, vectors: Sequence[Vectors], texts: Sequence[CanaryText]
    ) -> Difference | None:
        """Return the first stage at which vectors differ; None if they are those saved."""
        if self.are_as_saved(vectors, texts):
            return None
        saved = [text.vectors for text in texts]
        distance = max(cosine_distances(vectors, saved))
        if distance <= self.tolerance:
            change = largest_norm_change(vectors, saved)
            message = f"a vector has the length {change.norm:.4g}, and had {change.saved_norm:.4g}"
            return Difference(Stage.NORMALISATION, message)
        changed_settings = self._changed_representation()
        if changed_settings:
            return Difference(Stage.POOLING, ", ".join(changed_settings))
        if _have_other_dimensions(vectors, saved):
            dimension = vectors[0].shape[1]
            saved_dimension = saved[0].shape[1]
            message = f"vectors have {dimension:,} dimensions, and had {saved_dimension:,}"
            return Difference(Stage.DIMENSIONS, message)
        saved_pooling = self._pooling_of(texts)
        if saved_pooling is not None:
            pooling = self.side.representation.representation
            message = f"pooling is {pooling}, and was {saved_pooling}"
            return Difference(Stage.POOLING, message)
        return self._difference_of_weights(distance)

    def _difference_of_weights(self, distance: float) -> Difference:
        """Return the difference of vectors that no setting explains, by their cosine distance."""
        if math.isinf(distance):
            message = "vectors are not finite, or a text has another number of them"
            return Difference(Stage.WEIGHTS, message)
        cosine = f"{1 - distance:.6f}"
        is_float32 = self.side.precision == "float32"
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
        saved = self.saved_representation
        representation = as_json(self.side.representation)
        names = (saved.keys() & representation.keys()) - {"l2_norm", "truncate_dim"}
        changes = []
        for name in sorted(names):
            if saved[name] != representation[name]:
                changes.append(f"{name} is {representation[name]}, and was {saved[name]}")
        return changes

    def _pooling_of(self, texts: Sequence[CanaryText]) -> str | None:
        """Return another simple pooling by which the loaded weights make the vectors saved."""
        representation = self.side.representation
        ids = [text.token_ids for text in texts]
        saved = [text.vectors for text in texts]
        for pooling in SIMPLE_POOLINGS:
            if pooling is representation.representation:
                continue
            vectors = self.side.encode(ids, replace(representation, representation=pooling))
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


class _Retokenized(NamedTuple):
    """A text whose token ids are not those saved, and these ids."""

    text: CanaryText
    ids: TokenIds


def _token_message(retokenized: _Retokenized) -> str:
    """Return a message of where the token ids of a text begin to differ from those saved."""
    text, ids = retokenized
    shown_text = text.text if len(text.text) <= SHOWN else f"{text.text[:SHOWN]}..."
    position = 0
    for token, saved_token in zip(ids, text.token_ids, strict=False):
        if token != saved_token:
            break
        position += 1
    token_text = "no token" if position >= len(ids) else f"token {ids[position]}"
    saved_text = "none" if position >= len(text.token_ids) else str(text.token_ids[position])
    return (
        f"of the {text.kind} {shown_text!r}, position {position} (from 0) holds {token_text}, and "
        f"held {saved_text}"
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
    differences = []
    for comparison in comparisons:
        if comparison.difference is not None:
            differences.append(comparison.difference)
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
    """Raise a MismatchError if a model is not the one that was saved, as far as a quick check sees.

    It compares the token ids of all texts of the side's kind, and the vectors of the first
    `START_TEXTS`: `texts_at_once` are encoded together, the first ones always, others if they
    probably fit into `seconds`. Without a canary, nothing is compared. `name` is the model's in the
    message.
    """
    if canary is None or not canary.of_kind(side.kind):
        return
    started = time.perf_counter()
    comparison = _SideComparison(canary, side)
    reject_difference(comparison.token_difference(), name)
    texts = comparison.texts[:START_TEXTS]
    for first in range(0, len(texts), texts_at_once):
        batch = texts[first : first + texts_at_once]
        batch_started = time.perf_counter()
        vectors = comparison.encode(batch)
        if vectors is None:
            return
        if not comparison.are_as_saved(vectors, batch):
            # all texts of the kind show best which stage differs
            reject_difference(compare(canary, side).difference, name)
            reject_difference(comparison.vector_difference(vectors, batch), name)
        batch_ended = time.perf_counter()
        next_batch_seconds = batch_ended - batch_started  # about as long as this one
        if batch_ended - started + next_batch_seconds > seconds:
            return


def reject_difference(difference: Difference | None, name: str) -> None:
    """Raise a MismatchError that names the first stage that differs, if one does."""
    if difference is None:
        return
    raise MismatchError(
        f"{name} is not the model that was saved; the first stage that differs is "
        f"{difference.stage}: {difference.message}",
        f"denserk doctor --model {name} compares all texts; get the model again, or, if the change "
        f"is meant, write it anew: denserk convert {name} NEW_FOLDER --kind model --to denserk "
        "(denserk search --force searches with it as it is)",
    )


def saved_settings(representation: RepresentationSettings, text: TextSettings) -> Mapping[str, Any]:
    """Return the settings of a model as canary.json records them for denserk itself."""
    return {"representation": as_json(representation), "text": as_json(text)}
