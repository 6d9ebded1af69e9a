"""The chain model -> vectors -> index -> run: which model made what, and whether two agree."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from denserk.errors import MismatchError
from denserk.formats.manifest import Manifest, differences
from denserk.settings.encoding import RepresentationSettings
from denserk.settings.options import as_json

Description = Mapping[str, Any]
"""What `TextEncoder.description` says."""

DEFAULTS = as_json(RepresentationSettings())
"""What a manifest means by a setting that did not exist when it was written."""
OF_PASSAGES = ("fields", "join", "passage_prefix")
"""Text settings that queries and passages must share, or that only passages use."""


def model_of(manifest: Manifest | None) -> Description | None:
    """The model that a manifest names."""
    model = None if manifest is None else manifest.made_from.get("model")
    return model if isinstance(model, Mapping) else None


def _comparable(model: Description) -> dict[str, Any]:
    text = model.get("text", {})
    return {
        "fingerprint": model.get("fingerprint"),
        "representation": DEFAULTS | dict(model.get("representation", {})),
        "text": {name: text.get(name) for name in OF_PASSAGES},
    }


def model_differences(one: Description, other: Description) -> list[str]:
    """What keeps the vectors of two models from being compared, one phrase each.

    >>> model_differences({"name": "a", "fingerprint": "1"}, {"name": "b", "fingerprint": "2"})
    ['other weights: a and b']
    """
    before, after = _comparable(one), _comparable(other)
    found = []
    if before.pop("fingerprint") != after.pop("fingerprint"):
        found.append(f"other weights: {one.get('name')} and {other.get('name')}")
    return found + differences(before, after)


def refuse_other_model(
    made: Description | None, asked: Description | None, what: str, hint: str
) -> None:
    """Refuses vectors of two models, where both are known.

    Args:
        made: the model of what is there.
        asked: the model of what comes to it.
        what: "the index idx and the queries q", for the message.
        hint: what to do instead.

    Raises:
        MismatchError: they differ in weights, representation or in how text is put together.
    """
    found = [] if made is None or asked is None else model_differences(made, asked)
    if found:
        raise MismatchError(f"{what} were not made alike: {'; '.join(found)}", hint)


class Made(Protocol):
    """What a model may have made: a source of vectors, an index."""

    @property
    def name(self) -> str:
        """What errors call it."""

    @property
    def manifest(self) -> Manifest | None:
        """What made it, where that is known."""


def common_model(sources: Sequence[Made]) -> Description | None:
    """The one model that made all vectors, as far as they say.

    Raises:
        MismatchError: they were made by several.
    """
    models = [(source.name, model_of(source.manifest)) for source in sources]
    first, made = models[0]
    for name, model in models[1:]:
        refuse_other_model(made, model, f"{first} and {name}", "index vectors of one model")
    return None if any(model is None for _, model in models) else made
