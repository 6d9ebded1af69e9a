"""Models that encode texts, in memory or to a folder."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

import numpy as np

from denserk.api.inputs import (
    FIELD_OPTIONS,
    Texts,
    TextsLike,
    Vectors,
    is_path,
    path_text,
    stored_inputs,
)
from denserk.api.options import (
    EncodeOptions,
    EncoderOptions,
    EncodeToOptions,
    NoOptions,
    PathName,
)
from denserk.api.signatures import ENCODE, ENCODE_TO, ENCODER, documented, model_options
from denserk.config.encoding import DtypeChoice, EncodeSettings, ServerSettings
from denserk.config.formats import CorpusSettings
from denserk.config.options import NOTHING, build
from denserk.config.retrieval import Metric
from denserk.errors import MismatchError, ModelError, UsageError
from denserk.python_inputs import (
    PASSAGES,
    QUERIES,
    is_single,
    read_passage_texts,
    read_query_texts,
)
from denserk.reporting import track

if TYPE_CHECKING:
    from denserk.models.encoders import AnyEncoder, PlannedEncoder
    from denserk.models.text_encoder import TextEncoder


class Encoder:
    """A model, `name`, that encodes queries and passages to vectors of `dimension`.

    `metric`, "inner" or "l2", compares them: `Index.build(vectors, metric=encoder.metric)`.

    A pickled encoder is the name of its model with its options: the model is loaded again where it
    is unpickled, and must be the same. `close`, or the end of a `with`, frees its memory.
    """

    def __init__(
        self,
        encoder: "AnyEncoder",
        source: str | None = None,
        options: Mapping[str, Any] = NOTHING,
    ) -> None:
        if is_path(encoder):
            raise UsageError("Encoder takes a loaded model", f"Encoder.load({str(encoder)!r})")
        self.name = encoder.name
        self.dimension = encoder.dimension
        self.metric: Literal["inner", "l2"] = "l2" if encoder.metric is Metric.L2 else "inner"
        self._encoder: AnyEncoder | None = encoder
        self._source = source or encoder.name
        self._options = options

    @classmethod
    @documented(ENCODER)
    def load(cls, name: PathName, **options: Unpack[EncoderOptions]) -> Self:
        """Load a short name such as "minilm", a folder, or a hub name; options of `encode`.

        "openai:NAME" is the model NAME of the server at `base_url`.
        """
        source = path_text(name, "name")
        typed = ENCODER.typed(options)
        if Path(source).is_dir():  # absolute: a pickle may be read in another working folder
            source = str(Path(source).absolute())
        encoder = _load(str(name), typed)
        _check_start(encoder)
        return cls(encoder, source, typed)

    @property
    def any_encoder(self) -> "AnyEncoder":
        """The loaded model, or the client of its server; a UsageError if the encoder is closed."""
        if self._encoder is None:
            raise UsageError(f"the encoder {self.name} is closed", "load it again: Encoder.load")
        return self._encoder

    @property
    def text_encoder(self) -> "TextEncoder":
        """The loaded model; a UsageError if the encoder is closed, or its model behind a URL."""
        from denserk.models.served_encoder import ServedEncoder

        encoder = self.any_encoder
        if isinstance(encoder, ServedEncoder):
            raise UsageError(f"{self.name} is behind a URL, and not loaded here")
        return encoder

    def _reject_closed(self) -> None:
        """Raise a UsageError if the encoder is closed."""
        _ = self.any_encoder

    def __repr__(self) -> str:
        state = "closed"
        if self._encoder is not None:
            state = _description(self._encoder)
        return f"<Encoder {self.name}: {self.dimension:,} dimensions, {self.metric}, {state}>"

    def __reduce__(self) -> tuple[Any, ...]:
        from denserk.models.served_encoder import ServedEncoder

        encoder = self.any_encoder
        options = dict(self._options)
        if isinstance(encoder, ServedEncoder):
            options["base_url"] = encoder.url  # a pickle may be a file: no password is in it
        elif encoder.certificate is not None:  # another processor might choose another precision
            options["dtype"] = DtypeChoice(encoder.dtype)
        return _load_again, (type(self), self._source, options, encoder.fingerprint)

    def __enter__(self) -> Self:
        self._reject_closed()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free the model's memory; a closed encoder encodes nothing."""
        self._encoder = None

    def check(self) -> int:
        """Compare the model with the vectors that it was saved with.

        All texts of the folder's canary.json are encoded again, of which `load` encodes a few.
        Returns their number, 0 without a canary.json, as for a model behind a URL. A MismatchError
        names the first stage that differs.
        """
        from denserk.models.canary import first_difference, reject_difference
        from denserk.models.served_encoder import ServedEncoder

        encoder = self.any_encoder
        if isinstance(encoder, ServedEncoder):
            return 0
        comparisons = encoder.compare_with_canary()
        reject_difference(first_difference(comparisons), self.name)
        return sum(len(comparison.texts) for comparison in comparisons)

    def encode_queries(self, queries: "Texts", **options: Unpack[NoOptions]) -> Vectors:
        """Encode one query to (D,), or N queries to (N, D), float32.

        Queries are a text, a list, a dict of texts by id, a list of dicts with `query` or `text`,
        or a DataFrame; the vectors are in their order. `encode_to` reads files.
        """
        encoder = self.any_encoder
        _reject_options("Encoder.encode_queries", options)
        records = read_query_texts(queries)
        with track("encoding queries", len(records), "queries") as progress:
            vectors = _encode_records(encoder, "query", records, progress.advance)
        self._reject_non_finite(vectors, "query")
        return np.asarray(vectors[0]) if is_single(queries, QUERIES) else vectors

    def encode_passages(
        self, passages: "Texts | Mapping[str, Any]", **options: Unpack[NoOptions]
    ) -> Vectors:
        """Encode one passage to (D,), or N to (N, D), float32; (N, S, D) for multi-vector models.

        Passages are texts, or mappings with `text`, `title` and other fields: one, a list, a dict
        by id, or a DataFrame; the vectors are in their order. One mapping with other fields than
        `text` has an id or a title, too: without, it might be texts by id. `encode_to` reads files.
        """
        encoder = self.any_encoder
        _reject_options("Encoder.encode_passages", options)
        records = read_passage_texts(passages)
        with track("encoding passages", len(records), "passages") as progress:
            vectors = _encode_records(encoder, "passage", records, progress.advance)
        self._reject_non_finite(vectors, "passage")
        vectors_per_passage = encoder.vectors_per_passage
        if vectors_per_passage > 1:
            vectors = vectors.reshape(len(records), vectors_per_passage, -1)
        return np.asarray(vectors[0]) if is_single(passages, PASSAGES) else vectors

    @documented(ENCODE_TO)
    def encode_to(
        self,
        output: PathName,
        *,
        corpus: "TextsLike | None" = None,
        topics: "TextsLike | None" = None,
        **options: Unpack[EncodeToOptions],
    ) -> Path:
        """Encode a corpus, or queries (`topics`), to a folder as `denserk encode`; return it.

        The model is loaded a second time, with the options of this encoder.
        """
        self._reject_closed()
        ENCODE_TO.typed(options)
        return _encode(self._source, output, corpus, topics, {**self._options, **options})

    def _reject_non_finite(self, vectors: Vectors, side: str) -> None:
        """Raise a ModelError if the model encoded a text to something that is no number."""
        is_finite = np.isfinite(vectors).all(axis=1)
        if not is_finite.all():
            row = int(np.argmin(is_finite))
            message = f"{self.name} encodes {side} {row} (from 0) to a vector that is not finite"
            raise ModelError(message, "check its weights, or encode with dtype='float32'")


def _reject_options(function: str, options: Mapping[str, Any]) -> None:
    """Raise a UsageError for the options of a function that takes none."""
    if not options:
        return
    hint = "give the options of the model to Encoder.load"
    if not options.keys().isdisjoint(FIELD_OPTIONS):
        hint = 'give the column of the texts, frame["NAME"], or encode_to a folder, corpus=frame'
    raise UsageError(f"{function} takes no option {', '.join(options)}", hint)


def _load(name: str, typed: Mapping[str, Any]) -> "AnyEncoder":
    """Load a model, or reach its server, by typed options."""
    from denserk.models.encoders import load_any_encoder

    options = model_options(dict(typed))
    return load_any_encoder(name, *options, build(ServerSettings, typed), "the model")


def _description(encoder: "AnyEncoder") -> str:
    """Return how, and where, a model computes."""
    from denserk.models.served_encoder import ServedEncoder

    if isinstance(encoder, ServedEncoder):
        return encoder.url
    return f"{encoder.representation.representation}, {encoder.device}"


def _encode_records(
    encoder: "PlannedEncoder", side: str, records: Sequence[Any], advance: Callable[[int], None]
) -> Vectors:
    """Return the vectors of queries or passages."""
    return encoder.encode_planned(side, encoder.plan(side, records), advance)


def _check_start(encoder: "AnyEncoder") -> None:
    """Raise a MismatchError if a few texts show that a model is not the one that was saved."""
    from denserk.models.canary import START_SECONDS, check_start
    from denserk.models.served_encoder import ServedEncoder

    if isinstance(encoder, ServedEncoder):
        return
    for side in encoder.sides:
        check_start(
            encoder.canary,
            encoder.canary_side(side),
            encoder.name,
            texts_at_once=2,
            seconds=START_SECONDS / len(encoder.sides),
        )


def _load_again(
    cls: type[Encoder], source: str, options: Mapping[str, Any], fingerprint: str
) -> Encoder:
    """Load the model of a pickled encoder."""
    encoder = _load(source, options)
    if encoder.fingerprint != fingerprint:
        message = f"{source} is another model than when the encoder was pickled"
        raise MismatchError(message, "load it anew: Encoder.load")
    return cls(encoder, source, options)


@documented(ENCODE)
def encode(
    model: PathName,
    output: PathName,
    *,
    corpus: "TextsLike | None" = None,
    topics: "TextsLike | None" = None,
    **options: Unpack[EncodeOptions],
) -> Path:
    """Encode a corpus, or queries (`topics`), to a folder as `denserk encode`; return it."""
    return _encode(model, output, corpus, topics, options)


def _encode(
    model: PathName, output: PathName, corpus: Any, topics: Any, options: Mapping[str, Any]
) -> Path:
    """Encode a corpus or queries to a folder as `denserk encode`; return it."""
    with stored_inputs(options, corpus=corpus, topics=topics) as (files, _):
        typed = ENCODE.typed(options, model=model, output=output, **files)
        settings = build(EncodeSettings, typed)
        from denserk.tasks.encode import encode as task

        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # threads are `workers`
        server = build(ServerSettings, typed)
        with ENCODE.claimed(typed):
            task(settings, build(CorpusSettings, typed), model_options(typed), server)
    return Path(output)
