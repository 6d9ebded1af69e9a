"""Encoder of a model behind a URL, openai:NAME: what `TextEncoder` is for a model's folder.

The server tokenises, cuts, computes and pools. Fields, prefixes, shorter vectors and
L2-normalisation are denserk's. Nothing here imports torch.
"""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from denserk.config.encoding import (
    NO_SERVER,
    SERVED,
    ComputeSettings,
    RepresentationSettings,
    ServerSettings,
    TextSettings,
)
from denserk.config.options import NOTHING, as_json, build, given_fields, spelled
from denserk.config.retrieval import Metric
from denserk.data.tokenization import PAIR, SEPARATOR, passage_input, query_input
from denserk.errors import MismatchError, UsageError
from denserk.io.canary import KINDS
from denserk.io.control_vectors import ControlText, ControlVectors, read_control_vectors
from denserk.models.canary import (
    START_TEXTS,
    TOLERANCES,
    cosine_distances,
    largest_norm_change,
    short_texts,
)
from denserk.models.embeddings_client import (
    Advance,
    EmbeddingsClient,
    NamedTexts,
    parse_server_url,
)
from denserk.models.numpy_pooling import l2_normalised
from denserk.records import Passage, Query

logger = logging.getLogger(__name__)

QUERY = "query"  # a side; the other is "passage"
# settings that have an effect on the texts and vectors of a server
REPRESENTATION_FIELDS = ("l2_norm", "truncate_dim")
TEXT_FIELDS = ("fields", "join", "query_prefix", "passage_prefix", "normalize_quotes")
# settings of the computation that the client has
COMPUTE_FIELDS = ("batch_size",)
# and those that are of the search itself, whatever encodes the queries
SEARCH_FIELDS = (*COMPUTE_FIELDS, "device", "threads")
# Cosine distance up to which a server's vectors count as the same: servers compute in 16 bits, and
# batches of other sizes round in another way
TOLERANCE = TOLERANCES["bfloat16"]


class ServedEncoder:
    """A model behind a URL.

    `representation` and `text` are given settings. `recorded_url` is the URL that the manifest of
    earlier work names: requests go there if `server` has none, and without the key, unless it is
    OpenAI's.

    Attributes:
        name: openai:NAME.
        dimension: D.
        vectors_per_passage: 1.
        fingerprint: SHA-256 of the name; what is behind it, `compare` shows.
        representation, text: the settings of which a server leaves some to denserk.
        url: that of the server, without secrets.

    Raises:
        UsageError: there is no URL, or a setting has no effect on a server's vectors.
        ServerError: the server does not answer, or rejects the control texts.
    """

    vectors_per_passage = 1
    metric = Metric.INNER

    def __init__(
        self,
        name: str,
        representation: Mapping[str, Any] = NOTHING,
        text: Mapping[str, Any] = NOTHING,
        compute: ComputeSettings = ComputeSettings(),  # noqa: B008  (frozen)
        server: ServerSettings = NO_SERVER,
        *,
        recorded_url: str | None = None,
    ) -> None:
        self.name = name
        model = name.removeprefix(SERVED)
        if not model:
            raise UsageError(f"--model {name}: the name of a model is expected after {SERVED}")
        base_url = server.base_url or recorded_url
        if base_url is None:
            raise UsageError(
                f"--model {name} needs the URL of its server",
                "add --base-url, for example http://localhost:8000/v1; in Python base_url= of "
                "Encoder.load",
            )
        self.fingerprint = fingerprint_of_name(name)
        self.representation = build(RepresentationSettings, representation)
        self.text = build(TextSettings, text)
        reject_settings_of_the_server(name, self.representation, self.text)
        url = parse_server_url(base_url)
        self.url = url.public
        self._client = EmbeddingsClient(
            model,
            url,
            server,
            compute.batch_size,
            sends_key=server.base_url is not None or url.is_openai,
        )
        self._control = self._vectors_of(control_texts())
        server_dimension = len(self._control[0].vector)
        self.dimension = self.representation.truncate_dim or server_dimension
        if self.dimension > server_dimension:
            raise UsageError(
                f"--truncate-dim {self.dimension}: the model's vectors have {server_dimension} "
                "dimensions"
            )
        logger.info(f"{name} at {self.url}: {server_dimension:,} dimensions")

    def description(self) -> dict[str, Any]:
        """The model and its settings, as plain JSON for manifests; no secret is in it."""
        return {
            "name": self.name,
            "fingerprint": self.fingerprint,
            "base_url": self.url,
            "dimension": self.dimension,
            "representation": _selected(self.representation, REPRESENTATION_FIELDS),
            "text": _selected(self.text, TEXT_FIELDS),
        }

    def plan(self, side: str, texts: Sequence[Any]) -> NamedTexts:
        """Return one side's passages or queries as the texts that are sent."""
        if side == QUERY:
            queries: Sequence[Query] = texts
            ids = [query.qid for query in queries]
            inputs = [query_input(query, self.text) for query in queries]
            return NamedTexts(side, ids, inputs)
        passages: Sequence[Passage] = texts
        ids = [passage.docid for passage in passages]
        inputs = [str(passage_input(passage, self.text, "")) for passage in passages]
        return NamedTexts(side, ids, inputs)

    def encode_planned(
        self, side: str, planned: NamedTexts, advance: Advance = None
    ) -> NDArray[np.float32]:
        """Encode what `plan` returned, in the order of the texts: (P, D) or (B, D) float32."""
        vectors = self._client.embed(planned, advance)[:, : self.dimension]
        if self.representation.l2_norm:
            return l2_normalised(vectors)
        return np.ascontiguousarray(vectors)

    def encode_queries(self, queries: Sequence[Query]) -> NDArray[np.float32]:
        """Encode queries: (B, D) float32, in their order; equal texts are sent once."""
        query_by_text = {query.text: query for query in queries}
        vectors = self.encode_planned(QUERY, self.plan(QUERY, list(query_by_text.values())))
        row_by_text = {text: row for row, text in enumerate(query_by_text)}
        return vectors[[row_by_text[query.text] for query in queries]]

    def encode_passages(self, passages: Sequence[Passage]) -> NDArray[np.float32]:
        """Encode passages: (P, D) float32, in their order."""
        return self.encode_planned("passage", self.plan("passage", passages))

    def control_vectors(self) -> ControlVectors:
        """Return the control texts with the vectors that the server has for them now."""
        return ControlVectors(self.name, self._control)

    def compare(self, recorded: ControlVectors, source: Path) -> None:
        """Raise a MismatchError if the server has other vectors for the texts of a file.

        `source` is the folder of the file, which the message names.
        """
        texts = [text.text for text in recorded.texts]
        control = self._control
        if texts != control_texts():  # recorded by another version of denserk
            control = self._vectors_of(texts)
        vectors = [text.vector[None, :] for text in control]
        recorded_vectors = [text.vector[None, :] for text in recorded.texts]
        difference = _difference(vectors, recorded_vectors)
        if difference is None:
            return
        raise MismatchError(
            f"{self.name} at {self.url} is not the model that encoded {source}: {difference}",
            "serve the model of before, or encode the passages again (denserk search --force "
            "searches all the same)",
        )

    def compare_with_folder(self, folder: Path) -> None:
        """Do as `compare`, with the file of a folder; a folder that has none is not compared."""
        recorded = read_control_vectors(folder)
        if recorded is not None:
            self.compare(recorded, folder)

    def _vectors_of(self, texts: Sequence[str]) -> list[ControlText]:
        """Return control texts with the vectors that the server has for them."""
        numbers = [str(number) for number in range(1, len(texts) + 1)]
        vectors = self._client.embed(NamedTexts("control text", numbers, texts))
        return [ControlText(text, vector) for text, vector in zip(texts, vectors, strict=True)]


def control_texts() -> list[str]:
    """Return the texts whose vectors show whether a server has another model than before."""
    texts: list[str] = []
    for kind in KINDS:
        texts += short_texts(kind)[:START_TEXTS]
    return texts


def fingerprint_of_name(name: str) -> str:
    """Return the fingerprint of a model behind a URL: the SHA-256 of its name.

    Its weights are out of reach: control vectors are compared in their place.
    """
    return hashlib.sha256(name.encode()).hexdigest()


def reject_settings_of_the_server(
    name: str, representation: RepresentationSettings, text: TextSettings
) -> None:
    """Raise a UsageError for given settings that only the server has."""
    for settings, own_names in ((representation, REPRESENTATION_FIELDS), (text, TEXT_FIELDS)):
        for field in given_fields(settings):
            if field not in own_names:
                option = spelled(field, type(settings))
                raise UsageError(
                    f"{option}: the server computes {name}, with its own pooling and lengths",
                    "leave it out, and set it where the server is started",
                )
    if text.join in (SEPARATOR, PAIR):
        raise UsageError(
            f"--set join={text.join}: the tokenizer of {name} is the server's",
            'give a text, for example --set join=" "',
        )


def reject_computation(
    name: str, compute: ComputeSettings, allowed: Sequence[str] = COMPUTE_FIELDS
) -> None:
    """Raise a UsageError for given settings of a computation that the server does."""
    for field in given_fields(compute):
        if field not in allowed:
            raise UsageError(
                f"{spelled(field, ComputeSettings)}: the server computes {name}",
                "leave it out; --batch-size and --set requests-at-once are the client's",
            )


def _selected(settings: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return some settings as plain JSON."""
    values = as_json(settings)
    return {name: values[name] for name in names}


def _difference(
    vectors: Sequence[NDArray[np.float32]], recorded: Sequence[NDArray[np.float32]]
) -> str | None:
    """Return how vectors, each (1, D), differ from those recorded; None if they are the same."""
    dimension = vectors[0].shape[1]
    recorded_dimension = recorded[0].shape[1]
    if dimension != recorded_dimension:
        return f"its vectors have {dimension:,} dimensions, and had {recorded_dimension:,}"
    distance = max(cosine_distances(vectors, recorded))
    if distance > TOLERANCE:
        return f"cosines to the vectors of control texts are down to {1 - distance:.4f}"
    change = largest_norm_change(vectors, recorded)
    if change.relative > np.sqrt(TOLERANCE):
        return f"a vector has the length {change.norm:.4g}, and had {change.saved_norm:.4g}"
    return None
