"""Names for published weights, and what other toolkits' options say about representations."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


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
