"""Queries encoded by a compiled model of the cache; nothing here imports torch or transformers.

`keep` writes what a loaded text encoder compiled for queries, and `find` reads it. Its vectors are
those of the text encoder, byte by byte: `keep` compares them on some queries before it keeps an
entry.
"""

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from denserk.config.encoding import (
    Backend,
    ComputeSettings,
    Dtype,
    DtypeChoice,
    Representation,
    RepresentationSettings,
    TextSettings,
)
from denserk.config.options import as_json, fields_of, from_json
from denserk.config.retrieval import Metric
from denserk.data.planning import ENOUGH, by_length, padded
from denserk.data.tokenization import TextTokenizer, TokenIds
from denserk.errors import DenserkError, Interrupted
from denserk.extras import installed
from denserk.io.canary import CANARY_FILE, Canary, read_canary
from denserk.io.model_files import find_model, fingerprint_of
from denserk.io.versions import Version
from denserk.models import compiled_cache, processor
from denserk.models.canary import ModelSide
from denserk.models.compiled_cache import MODEL, TOKENIZER, Entry
from denserk.models.numpy_pooling import POOLINGS, l2_normalised
from denserk.models.openvino_runtime import (
    PRECISION_HINTS,
    CpuModel,
    core,
    limit_kept_kernels,
)
from denserk.records import Query
from denserk.version import __version__

if TYPE_CHECKING:
    from denserk.models.text_encoder import TextEncoder

logger = logging.getLogger(__name__)

S = TypeVar("S")

FORMAT = 2
# what an entry depends on besides the model
PACKAGES = ("openvino", "tokenizers", "torch")
# variables that change the number of threads
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
# settings of texts on which a query's tokens depend
QUERY_TEXT_FIELDS = ("query_max_length", "query_prefix", "normalize_quotes")
# Poolings of a query that NumPy computes, too: their names among `POOLINGS`
NUMPY_POOLINGS = {
    Representation.CLS: "cls",
    Representation.MEAN: "mean",
    Representation.MAX: "max",
    Representation.LAST: "last",
}
# Lengths, in words, of the queries that are compared before an entry is kept; two share a batch
COMPARED_WORDS = (1, 2, 3, 5, 5, 8, 13, 21, 40, 100, 400)
WORDS = "how does the water of a river find its way to the sea when rain falls on high mountains"


class StoredTokenizer(NamedTuple):
    """What `TextTokenizer` needs of a tokenizer of transformers."""

    backend_tokenizer: Tokenizer
    pad_token_id: int
    sep_token: str


class CompiledQueries:
    """An encoder of queries, read from the cache.

    Attributes:
        name: the model's folder, or its name on the hub.
        canary: that of the model's folder; None if it has none.
        dimension: D.
        fingerprint: SHA-256 of weights, tokenizer and configuration.
        backend: OpenVINO.
    """

    backend = Backend.OPENVINO

    def __init__(
        self,
        name: str,
        entry: Entry,
        representation: RepresentationSettings,
        text: TextSettings,
        compute: ComputeSettings,
        canary: Canary | None = None,
    ) -> None:
        self.name = name
        self.canary = canary
        self.representation = representation
        self.text = text
        self._content = entry.content
        self.fingerprint = str(entry.content["key"]["fingerprint"])
        self.dimension = int(entry.content["dimension"])
        self._dtype = Dtype(compute.dtype)
        self._compute = compute
        limit_kept_kernels()
        tokenizer = StoredTokenizer(
            # not by from_file, whose error for a missing file is a bare Exception
            Tokenizer.from_str((entry.folder / TOKENIZER).read_text("utf-8")),
            entry.content["pad_id"],
            entry.content["separator"],
        )
        self._tokenizer = TextTokenizer(tokenizer, self.text)
        model = core().read_model(entry.folder / MODEL)
        self._cpu_model = CpuModel(model, PRECISION_HINTS[self._dtype])

    def description(self) -> dict[str, Any]:
        """Return what `TextEncoder.description` does."""
        metric = Metric(self._content["metric"])
        head_dtype = self._compute.head_dtype or self._dtype
        values = {
            "name": self.name,
            "fingerprint": self.fingerprint,
            "queries_of": self._content["queries_of"],
            "backbone": self._content["backbone"],
            "dimension": self.dimension,
            "metric": None if metric is Metric.INNER else metric.value,
            "backend": self.backend.value,
            "dtype": self._dtype.value,
            "head_dtype": head_dtype.value,
            "representation": as_json(self.representation),
            "text": as_json(self.text),
        }
        return {name: value for name, value in values.items() if value is not None}

    def encode_queries(self, queries: Sequence[Query]) -> NDArray[np.float32]:
        """Encode queries: (B, D) float32, in their order."""
        return self._encode(self._tokenizer.queries(queries), self.representation)

    def canary_side(self) -> ModelSide:
        """Return what encodes queries under the folder's own settings, for its canary."""
        return ModelSide(
            "query",
            from_json(RepresentationSettings, self._content["own_representation"]),
            from_json(TextSettings, self._content["own_text"]),
            self._tokenizer,
            self._dtype.value,
            self._encode_under,
        )

    def _encode_under(
        self, ids: Sequence[TokenIds], settings: RepresentationSettings
    ) -> list[NDArray[np.float32]] | None:
        """Encode texts by their token ids under other settings.

        Return an array (1, D) float32 of each text; None if NumPy does not compute such vectors.
        """
        if settings.representation not in NUMPY_POOLINGS or settings.projection:
            return None
        return list(self._encode(ids, settings)[:, np.newaxis])

    def _encode(
        self, ids_of_texts: Sequence[TokenIds], settings: RepresentationSettings
    ) -> NDArray[np.float32]:
        """Encode texts by their token ids: (B, D) float32, in their order."""
        pad_id = self._tokenizer.pad_id
        # a text of no tokens is read as one token of padding, as by `TextEncoder`
        ids = [tokens or [pad_id] for tokens in ids_of_texts]
        lengths = [len(tokens) for tokens in ids]
        batch_tokens = self._compute.tokens_on("cpu", self._dtype)
        groups = by_length(lengths, batch_tokens, self._compute.batch_size, ENOUGH["cpu"])
        vectors: NDArray[np.float32] | None = None
        threads = self._threads_for(len(ids))
        for group in groups:
            batch_ids, mask = padded([ids[number] for number in group], pad_id)
            hidden, *_ = self._cpu_model([batch_ids, mask.astype(np.int64)], threads)
            batch_vectors = _vectors_of(hidden, mask, settings)
            if vectors is None:
                vectors = np.empty((len(ids), batch_vectors.shape[1]), np.float32)
            vectors[group] = batch_vectors
        if vectors is None:
            return np.empty((0, self.dimension), np.float32)
        return vectors

    def _threads_for(self, texts: int) -> int:
        """Return the number of CPU threads for so many texts, as `TextEncoder.threads_for`."""
        if self._compute.threads is not None:
            return self._compute.threads
        if texts == 1:
            return 1
        torch = sys.modules.get("torch")
        if torch is not None:
            return int(torch.get_num_threads())
        return int(self._content["threads"])  # those that torch takes by itself, as it was written


def _vectors_of(
    hidden: NDArray[np.float32], mask: NDArray[np.bool_], settings: RepresentationSettings
) -> NDArray[np.float32]:
    """Return the vectors of a batch: (B, T, H) -> (B, D)."""
    pool = POOLINGS[NUMPY_POOLINGS[settings.representation]]
    vectors = pool(hidden, mask)[:, : settings.truncate_dim]
    return l2_normalised(vectors) if settings.l2_norm else vectors


def find(
    model: str,
    like: Mapping[str, Any] | None,
    overrides: tuple[Mapping[str, Any], Mapping[str, Any]],
    compute: ComputeSettings,
) -> CompiledQueries | None:
    """Return the encoder of queries that fits an index's model, if the cache has it.

    Args:
        model: a short name, a folder, or a name on the hub.
        like: the description of the model that encoded the index.
        overrides: fields of the representation and of the texts that replace those of `like`.
        compute: with a precision; none is found for `auto`.
    """
    if like is None or like.get("int8") or not _is_computed_here(compute):
        return None
    settings = _settings_like(like, overrides)
    if settings is None:
        return None
    representation, text = settings
    key = _key(str(like.get("fingerprint")), representation, text, Dtype(compute.dtype))
    entry = compiled_cache.find(key)
    if entry is None:
        return None
    max_length = entry.content["max_length"]
    if max_length is not None and text.query_max_length > max_length:
        return None  # the text encoder rejects it
    name, folder = find_model(model)
    if not _is_model_of(entry, folder):
        logger.debug(f"compiled model {entry.folder} is not used: {folder} is another model now")
        return None
    if compute.device == "auto" and "torch" not in sys.modules:
        logger.info("no GPU is seen: computing on the CPU")  # as `choose_device` does
    canary = read_canary(folder)
    try:
        return CompiledQueries(name, entry, representation, text, compute, canary)
    except (OSError, RuntimeError, ValueError) as error:
        Interrupted.raise_received()
        logger.debug(f"compiled model {entry.folder} is not used: {error}")
        return None


def _is_computed_here(compute: ComputeSettings) -> bool:
    """Return whether these settings mean OpenVINO on the CPU, which alone the cache is for."""
    if compute.backend is Backend.TORCH or not installed("openvino"):
        return False
    if compute.dtype is DtypeChoice.BFLOAT16 and not processor.has_bfloat16():
        return False  # the text encoder warns of it
    return compute.dtype.value in PRECISION_HINTS and processor.is_surely_cpu(compute.device)


def _settings_like(
    like: Mapping[str, Any], overrides: tuple[Mapping[str, Any], Mapping[str, Any]]
) -> tuple[RepresentationSettings, TextSettings] | None:
    """Return the settings of an index's model with overrides; None if it does not record all."""
    representation_override, text_override = overrides
    recorded_representation = like.get("representation", {})
    representation = _complete_settings(
        RepresentationSettings, recorded_representation, representation_override
    )
    if representation is None:
        return None
    text = _complete_settings(TextSettings, like.get("text", {}), text_override)
    if text is None:
        return None
    return representation, text


def _complete_settings(
    settings_class: type[S], recorded: Mapping[str, Any], override: Mapping[str, Any]
) -> S | None:
    """Return recorded settings with an override; None if fields are missing, or unknown here."""
    values = {**recorded, **override}
    if values.keys() != fields_of(settings_class).keys():
        return None
    return from_json(settings_class, values)


def _key(
    fingerprint: str, representation: RepresentationSettings, text: TextSettings, dtype: Dtype
) -> dict[str, Any]:
    """Return what an entry depends on, as plain JSON: with another value, it is another entry."""
    query_text = {name: value for name, value in as_json(text).items() if name in QUERY_TEXT_FIELDS}
    threads = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    return {
        "format": FORMAT,
        "denserk": __version__,
        "side": "query",
        "fingerprint": fingerprint,
        "representation": as_json(representation),
        "text": query_text,
        "dtype": dtype.value,
        "packages": {package: _version(package) for package in PACKAGES},
        "processor": processor.processor_name(),
        "threads": {**threads, "cores": len(os.sched_getaffinity(0))},
    }


@cache
def _version(package: str) -> str | None:
    """Return the version of a package that is installed; None if it is not."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _is_model_of(entry: Entry, folder: Path) -> bool:
    """Return whether a folder holds the model of an entry, by the content of all its files.

    A file that is new or gone may change how the folder is read.
    """
    if _file_names(folder) != entry.content["folder_files"]:
        return False
    paths = [folder / name for name in entry.content["fingerprint_files"]]
    fingerprint: str = entry.content["key"]["fingerprint"]
    try:
        return fingerprint_of(folder, paths) == fingerprint
    except DenserkError:
        return False


def _file_names(folder: Path) -> list[str]:
    """Return the paths of a model's files within its folder, sorted.

    canary.json is left out: no vector depends on it, and a folder without it is the same model.
    """
    names = {Path(path).relative_to(folder).as_posix() for path in Version.of(folder).files}
    return sorted(names - {CANARY_FILE})


def keep(encoder: "TextEncoder") -> None:
    """Keep what an encoder compiled for its queries, unless the cache has it already.

    What cannot be kept, or has other vectors when it is read again, is not kept, and logged at the
    level of debugging.
    """
    if not compiled_cache.limit_bytes() or not _can_be_kept(encoder):
        return
    key = _key(encoder.fingerprint, encoder.representation, encoder.text, encoder.dtype)
    if compiled_cache.find(key) is not None:
        return
    query = encoder.sides["query"]
    compiled = query.encoder.backbone.compiled
    assert compiled is not None

    def write_files(target: Path) -> None:
        compiled.save(target / MODEL)
        (target / TOKENIZER).write_text(query.tokenizer.to_json(), "utf-8")

    def can_replace_encoder(entry: Entry) -> bool:
        # the folder may have changed since the encoder was loaded, perhaps hours ago
        return _is_model_of(entry, encoder.folder) and _has_equal_vectors(entry, encoder)

    written = compiled_cache.write(key, _content(encoder), write_files, can_replace_encoder)
    if written is not None:
        logger.info(
            f"{encoder.name} is kept in compiled form for later queries in {written.parent} "
            "(denserk doctor shows what is there)"
        )


def _content(encoder: "TextEncoder") -> dict[str, Any]:
    """Return what an entry records of its encoder, besides the key."""
    from denserk.models.devices import DEFAULT_THREADS as default_threads

    folder = encoder.folder
    tokenizer = encoder.sides["query"].tokenizer
    return {
        "name": encoder.name,
        "dimension": encoder.dimension,
        "backbone": encoder.model_type,
        "queries_of": encoder.queries_of,
        "metric": encoder.metric.value,
        "pad_id": tokenizer.pad_id,
        "separator": tokenizer.separator,
        "max_length": encoder.max_length,
        "own_representation": as_json(encoder.own_representation),
        "own_text": as_json(encoder.own_text),
        "threads": default_threads,
        "folder_files": _file_names(folder),
        "fingerprint_files": [
            path.relative_to(folder).as_posix() for path in encoder.fingerprint_files
        ],
    }


def _can_be_kept(encoder: "TextEncoder") -> bool:
    """Return whether NumPy computes the vectors of queries from what OpenVINO returns."""
    query = encoder.sides["query"].encoder
    if encoder.backend is not Backend.OPENVINO or encoder.int8 or encoder.device.type != "cpu":
        return False
    if query.settings.representation not in NUMPY_POOLINGS or query.settings.projection:
        return False
    if query.backbone.has_local_attention:
        return False  # such a model is computed in other batches
    # the text encoder warns of vectors that lack a norm
    has_norm = query.settings.l2_norm or not encoder.is_for_cosine
    return bool(has_norm)


def _has_equal_vectors(entry: Entry, encoder: "TextEncoder") -> bool:
    """Return whether an entry gives the vectors of an encoder, in one batch and one by one."""
    compute = replace(encoder.compute, dtype=DtypeChoice(encoder.dtype))
    compiled = CompiledQueries(encoder.name, entry, encoder.representation, encoder.text, compute)
    words = WORDS.split()
    queries: list[Query] = []
    for count in COMPARED_WORDS:
        repeated_words = islice(cycle(words), count)
        queries.append(Query(str(len(queries)), " ".join(repeated_words)))
    # all in batches; alone, which takes one thread, a query of usual length and the longest
    usual_query = queries[4:5]
    longest_query = queries[-1:]
    for compared_queries in (queries, usual_query, longest_query):
        vectors = compiled.encode_queries(compared_queries)
        if not np.array_equal(vectors, encoder.encode_queries(compared_queries)):
            logger.debug(f"{encoder.name} is not kept in compiled form: its vectors would differ")
            return False
    return True
