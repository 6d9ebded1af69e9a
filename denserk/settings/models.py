"""Names for published weights, and what other toolkits' options say about representations."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from denserk.errors import UsageError
from denserk.settings.encoding import AggLayout, AggPreset, Representation, TermWeight
from denserk.settings.options import option


@dataclass(frozen=True)
class PublishedModel:
    """Weights that --model may name in short.

    `text` holds what the model's folder does not say about its texts, by field of `TextSettings`.
    """

    name: str
    hub_name: str
    summary: str
    text: Mapping[str, Any] = field(default_factory=dict)


PUBLISHED_MODELS = (
    PublishedModel(
        "agg",
        "castorini/aggretriever-cocondenser",
        "Aggretriever on coCondenser, trained on MS MARCO",
    ),
    PublishedModel(
        "agg-distilbert",
        "castorini/aggretriever-distilbert",
        "Aggretriever on DistilBERT, trained on MS MARCO",
    ),
    PublishedModel(
        "cocondenser",
        "Luyu/co-condenser-marco-retriever",
        "coCondenser with [CLS] vectors, trained on MS MARCO with titles",
        text={"join": "sep"},
    ),
    PublishedModel(
        "minilm",
        "sentence-transformers/all-MiniLM-L6-v2",
        "a small general sentence encoder, mean of the tokens, length 1",
    ),
)
"""The table that help, errors and loading read."""

WITHOUT_WEIGHTS = {
    "mlr": "no weights of multi-layer representations are published: train some",
}
"""Names of representations for which nobody published weights, with what to say about them."""

RENAMED = {"cls": "cocondenser", "mean": "minilm"}
"""Former short name -> the present one; a pooling is not a model."""


def published(name: str) -> PublishedModel | None:
    """The entry of a short name.

    >>> published("agg").hub_name
    'castorini/aggretriever-cocondenser'
    """
    return next((model for model in PUBLISHED_MODELS if model.name == name), None)


class ModelLayout(StrEnum):
    """Layouts in which a model's folder is written."""

    DENSERK = "denserk"
    """One folder for denserk, transformers and, where possible, Pyserini; tells its settings."""
    AGGRETRIEVER_PYSERINI = "aggretriever-pyserini"
    """Aggretriever's one-file layout, as castorini/aggretriever-* are published."""
    AGGRETRIEVER_AUTHORS = "aggretriever-authors"
    """The layout of Aggretriever's released code: heads in files of their own."""


class Pooling(StrEnum):
    """Pyserini's and Tevatron's --pooling."""

    CLS = "cls"
    """The same as --representation cls."""
    MEAN = "mean"
    """The same as --representation mean."""


ENCODER_CLASSES: Mapping[str, Mapping[str, Any]] = {
    "aggretriever": {"representation": Representation.AGG},
    "contriever": {"representation": Representation.MEAN, "l2_norm": False},
    "sentence": {"representation": Representation.MEAN, "l2_norm": True},
    "sentence-transformers": {},
    "auto": {},
}
"""Pyserini's --encoder-class -> fields of `RepresentationSettings`; empty: the folder's own."""

AGG_PRESETS: Mapping[AggPreset, Mapping[str, Any]] = {
    AggPreset.RELEASED: {"term_weight": TermWeight.CLAMP, "agg_layout": AggLayout.STRIDED},
    AggPreset.PAPER: {"term_weight": TermWeight.ABS, "agg_layout": AggLayout.RANDOM},
}
"""Bundle of Aggretriever settings -> fields of `RepresentationSettings`."""


@dataclass(frozen=True)
class RepresentationShorthands:
    """Other ways to say what --representation and its companions say."""

    pooling: Pooling | None = option(None, shown_default="the model's own")
    """Short for --representation cls or mean."""
    encoder_class: str | None = option(
        None, metavar="|".join(ENCODER_CLASSES), shown_default="the model's own"
    )
    """Pyserini's name for a way to make vectors."""
    agg_preset: AggPreset | None = option(None, shown_default="the model's own")
    """agg: a bundle of settings; `paper` is --term-weight abs --agg-layout random."""

    def __post_init__(self) -> None:
        """Refuses encoder classes whose vectors denserk does not make."""
        if self.encoder_class is not None and self.encoder_class not in ENCODER_CLASSES:
            raise UsageError(
                f"--encoder-class {self.encoder_class}: denserk does not make its vectors",
                f"it takes {', '.join(ENCODER_CLASSES)}",
            )

    def overrides(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of `RepresentationSettings` that these and the options beside them stand for.

        Raises:
            UsageError: two of them contradict each other.

        >>> RepresentationShorthands(encoder_class="sentence").overrides({})
        {'representation': <Representation.MEAN: 'mean'>, 'l2_norm': True}
        """
        merged = dict(given)
        bundles: list[tuple[str, Mapping[str, Any]]] = []
        if self.encoder_class is not None:
            name = f"--encoder-class {self.encoder_class}"
            fields = ENCODER_CLASSES[self.encoder_class]
            if self.encoder_class == "auto" and self.pooling is None:
                fields = {"representation": Representation.CLS}
            bundles.append((name, fields))
        if self.pooling is not None:
            name = f"--pooling {self.pooling}"
            bundles.append((name, {"representation": Representation(self.pooling.value)}))
        if self.agg_preset is not None:
            bundles.append((f"--agg-preset {self.agg_preset}", AGG_PRESETS[self.agg_preset]))
        for name, fields in bundles:
            for key, value in fields.items():
                if merged.setdefault(key, value) != value:
                    raise UsageError(f"{name} contradicts {key.replace('_', '-')} {merged[key]}")
        return merged
