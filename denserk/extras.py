"""Import of optional packages, with an error that has the pip command."""

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType

from denserk.errors import MissingExtraError

# Module -> names for pip install.
PACKAGES = {
    "faiss": "faiss-cpu (or faiss-gpu on a machine with an NVIDIA GPU)",
    "bm25s": "bm25s PyStemmer",
    "Stemmer": "PyStemmer",
    "pymilvus": "pymilvus milvus-lite",
    "grpc": "grpcio",
    "starlette": "mcp starlette uvicorn",
    "uvicorn": "mcp starlette uvicorn",
    "mcp": "mcp starlette uvicorn",
}


def installed(module: str) -> bool:
    """Return whether a module is installed, without importing it."""
    return importlib.util.find_spec(module) is not None


def require(module: str, purpose: str) -> ModuleType:
    """Import an optional module; `purpose` is the subject of the error ("a faiss index")."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != package:
            raise  # the package is there, and lacks another one
        raise _missing(package, purpose) from None


def package_folder(module: str, purpose: str) -> Path:
    """Return the folder of an optional package without importing it; see `require`."""
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise _missing(module, purpose)
    return Path(spec.submodule_search_locations[0])


def _missing(module: str, purpose: str) -> MissingExtraError:
    """Return the error of a module that is not installed."""
    return MissingExtraError(
        f"{purpose} needs the package {module}, which is not installed",
        f"pip install {PACKAGES.get(module, module)}",
    )
