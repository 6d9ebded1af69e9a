"""Published models that a package holds, for work without network; nothing here imports torch."""

import importlib.util
import logging
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from denserk.config.encoding import PACKAGED, PackagedModel
from denserk.io.manifest import file_sha256

logger = logging.getLogger(__name__)

WEIGHTS = "model.safetensors"
# files of a model of the hub of which its cache has one, if it has the model
CACHED_WEIGHTS = (WEIGHTS, "pytorch_model.bin")


def find_packaged(model: str) -> Path | None:
    """Return the folder of a model of the hub in its package; None where there is none.

    The hub's cache, if it has the model, comes first. A package whose weights are not the published
    ones is not used, so that a name always means the same vectors.
    """
    packaged = PACKAGED.get(model)
    if packaged is None or is_cached(model):
        return None
    folder = package_folder(packaged)
    if folder is None:
        return None
    weights = folder / WEIGHTS
    if file_sha256(weights) != packaged.sha256:
        _log_once(
            logging.WARNING,
            f"the package {packaged.package} is not used: {weights} is not the file that {model} "
            "has on the hub",
        )
        return None
    _log_once(logging.INFO, f"{model} is taken from the package {label(packaged)}")
    return folder


def is_cached(model: str) -> bool:
    """Return whether the hub's cache has the weights of a model."""
    from huggingface_hub import try_to_load_from_cache  # slow to import

    paths = [try_to_load_from_cache(model, name) for name in CACHED_WEIGHTS]
    return any(isinstance(path, str) for path in paths)  # else None, or a mark of no such file


def package_folder(packaged: PackagedModel) -> Path | None:
    """Return the folder of a model in a package, without importing it; None if it is not there."""
    spec = importlib.util.find_spec(packaged.module)
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0], packaged.folder)
    return folder if (folder / WEIGHTS).is_file() else None


def name_of_packaged(folder: Path) -> str | None:
    """Return the name on the hub of the model in a package's folder; None for any other folder."""
    for name, packaged in PACKAGED.items():
        packaged_folder = package_folder(packaged)
        if packaged_folder is not None and packaged_folder.resolve() == folder.resolve():
            return name
    return None


def label(packaged: PackagedModel) -> str:
    """Return the name of a package with its version, if it is known."""
    try:
        return f"{packaged.package} {version(packaged.package)}"
    except PackageNotFoundError:
        return packaged.package


@cache
def _log_once(level: int, message: str) -> None:
    """Log a message once in a process: a model may be looked for several times."""
    logger.log(level, message)
