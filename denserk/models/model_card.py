"""Model cards: README.md of a model's folder, with the metadata by which the hub lists it.

A card names models and data sets of the hub, and no folder or file of this machine.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jinja2
import yaml
from huggingface_hub import ModelCard, ModelCardData

from denserk.errors import DenserkError
from denserk.io.manifest import training_record
from denserk.io.model_files import can_be_on_hub, full_name, without_revision
from denserk.io.packaged_models import name_of_packaged
from denserk.io.written_files import whole_text
from denserk.version import __version__

CARD_FILE = "README.md"
# in the hub's cache, the folder models--OWNER--NAME/snapshots/COMMIT has the files of OWNER/NAME
IN_CACHE = "models--"
SNAPSHOTS = "snapshots"


@dataclass(frozen=True)
class Origin:
    """What is known of the model that another one was made of.

    `name` is one on the hub, that of the nearest ancestor that has one; empty if none is known.
    """

    name: str = ""
    license: str = ""
    language: tuple[str, ...] = ()


NO_ORIGIN = Origin()


def origin_of(model: str, folder: Path) -> Origin:
    """Return what is known of a model, by the name that `find_model` returned and its folder.

    A folder without a name on the hub is described by what it was made of: by its card, or by the
    record of its training.
    """
    return _follow(model, folder, frozenset())


def _follow(model: str, folder: Path, visited: frozenset[Path]) -> Origin:
    """Do as `origin_of`, for a model that was reached through the folders in `visited`."""
    real_folder = folder.resolve()
    if real_folder in visited:  # a model that was trained further in its own folder
        return NO_ORIGIN
    visited = visited | {real_folder}
    stated = _stated_in_card(folder)
    hub_name = _hub_name(model, real_folder)
    if hub_name:
        return replace(stated, name=hub_name)
    parent = NO_ORIGIN
    if not stated.name:
        parent = _parent_in_record(folder, visited)
    return Origin(
        stated.name or parent.name,
        stated.license or parent.license,
        stated.language or parent.language,
    )


def _hub_name(model: str, folder: Path) -> str:
    """Return the name of a model on the hub; empty for a folder that nobody there knows."""
    if not Path(model).is_dir():
        return without_revision(model)
    packaged = name_of_packaged(folder)
    if packaged:
        return packaged
    repository = folder.parent.parent.name
    if folder.parent.name != SNAPSHOTS or not repository.startswith(IN_CACHE):
        return ""
    return repository.removeprefix(IN_CACHE).replace("--", "/", 1)


def _stated_in_card(folder: Path) -> Origin:
    """Return what the card in a model's folder says of it: its base model, licence, language."""
    values = read_metadata(folder / CARD_FILE)
    base_models = _texts(values.get("base_model"))
    names = [name for name in base_models if _is_name(name)]
    licenses = _texts(values.get("license"))
    return Origin(
        names[0] if names else "",
        licenses[0] if licenses else "",
        tuple(_texts(values.get("language"))),
    )


def read_metadata(path: Path) -> dict[str, Any]:
    """Return the metadata at the head of a card; empty if there is none that can be read."""
    if not path.is_file():
        return {}
    try:
        values: dict[str, Any] = ModelCard.load(path, ignore_metadata_errors=True).data.to_dict()
    except (OSError, ValueError, TypeError, yaml.YAMLError):
        return {}
    return values


def _texts(value: Any) -> list[str]:
    """Return the texts of a field that has one, or a list."""
    values = value if isinstance(value, list) else [value]
    return [text for text in values if isinstance(text, str) and text]


def _parent_in_record(folder: Path, visited: frozenset[Path]) -> Origin:
    """Return what is known of the model that the training of a folder started from."""
    try:
        record = training_record(folder) or {}
    except DenserkError:  # it decides about nothing else here
        return NO_ORIGIN
    for section in ("finetune", "pretrain"):
        model = (record.get(section) or {}).get("model")
        if isinstance(model, str) and Path(model).is_dir():
            return _follow(model, Path(model), visited)
        if isinstance(model, str) and can_be_on_hub(model):
            return Origin(without_revision(full_name(model)))
    return NO_ORIGIN


def _is_name(text: str) -> bool:
    """Return whether a text can be a name on the hub, and is no folder here."""
    return can_be_on_hub(text) and "@" not in text and not Path(text).exists()


def metadata(origin: Origin, license_id: str = "", **fields: Any) -> ModelCardData:
    """Return the metadata of a card of a model that was made of another one.

    Without `license_id`, the licence is that of the other model, if it is known. `fields` are those
    of huggingface_hub's ModelCardData; empty ones are left out.
    """
    language: Any = list(origin.language)
    if len(language) == 1:
        language = language[0]
    values = {
        "base_model": origin.name,
        "license": license_id or origin.license,
        "language": language,
        **fields,
    }
    return ModelCardData(**{name: value for name, value in values.items() if value})


def write_card(path: Path, template: str, data: ModelCardData, **values: Any) -> None:
    """Write a card of a template, filled with `values`, the metadata before it."""
    body = card_template(template).render(data=data, version=__version__, **values)
    with whole_text(path) as out:
        out.write(f"---\n{data.to_yaml()}\n---\n\n{body}")


def card_template(name: str) -> jinja2.Template:
    """Return a template of the model card; its filter `code` quotes text from data."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("denserk", "models"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,  # of a part that is included
    )
    environment.filters["code"] = _quoted_code
    environment.filters["model_link"] = _model_link
    return environment.get_template(name)


def _quoted_code(text: str) -> str:
    r"""Quote a text from data, so that no character of it is markup.

    >>> print(_quoted_code("a|b `c`"))
    `"a\|b \u0060c\u0060"`
    """
    quoted = json.dumps(text, ensure_ascii=False).replace("|", "\\|").replace("`", "\\u0060")
    return f"`{quoted}`"


def _model_link(name: str) -> str:
    """Return a link to a model of the hub.

    >>> _model_link("bert-base-uncased")
    '[bert-base-uncased](https://huggingface.co/bert-base-uncased)'
    """
    return f"[{name}](https://huggingface.co/{name})"


def described_sources(datasets: Sequence[str], local_files: int) -> str:
    """Return the sources of training data in words: data sets of the hub by name, files by number.

    >>> described_sources([], 2)
    '2 local files'
    >>> described_sources(["BeIR/scifact"], 1)
    '[BeIR/scifact](https://huggingface.co/datasets/BeIR/scifact), 1 local file'
    """
    sources = [f"[{name}](https://huggingface.co/datasets/{name})" for name in datasets]
    if local_files == 1:
        sources.append("1 local file")
    elif local_files > 1:
        sources.append(f"{local_files} local files")
    return ", ".join(sources)


def extend_card(path: Path, template: str, fields: Mapping[str, Any], **values: Any) -> None:
    """Add a template, filled with `values`, to the end of a card, and `fields` to its metadata.

    Empty fields are left out.
    """
    card = ModelCard.load(path)
    for name, value in fields.items():
        if value:
            setattr(card.data, name, value)
    card.text += card_template(template).render(**values)
    with whole_text(path) as out:
        out.write(str(card))
