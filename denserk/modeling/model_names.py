"""What --model may say: a short name, a folder, or a name on the hub; each becomes a folder."""

import logging
import re
from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import RepositoryNotFoundError

from denserk.data.tokenization import TOKENIZER_FILES
from denserk.errors import ModelError, UsageError
from denserk.settings.models import PUBLISHED_MODELS, RENAMED, WITHOUT_WEIGHTS, published

logger = logging.getLogger(__name__)

HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
SMALL_FILES = (
    "config.json",
    "generation_config.json",
    "denserk.json",
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_*_config.json",
    "*/config.json",
    "pooler.pt",
    "pooler_config.json",
    "TermWeightTrans.pt",
    "TermWeightTrans_config.json",
    *TOKENIZER_FILES,
    *(f"*/{name}" for name in TOKENIZER_FILES),
)
"""What is fetched besides the weights; optimizer states are not, nor are
pre-training heads unless asked for."""

WEIGHT_PATTERNS = ("model*.safetensors*", "pytorch_model*.bin*")
SIDES = ("query/", "document/", "query_model/", "passage_model/", "0_Transformer/")
"""Sub-folders that may hold weights."""


def find_model(
    model: str,
    option: str = "--model",
    beside: Sequence[str] = (),
) -> tuple[str, Path]:
    """The full name of a model and the folder that holds it; a hub name is fetched, or cached.

    Args:
        model: a folder, a short name of the table, or a name on the hub; the first of these that
            exists is taken.
        option: how the user named it.
        beside: further files that are fetched, where there are such.

    Raises:
        UsageError: it is none of the three, or a name without published weights.
        ModelError: the hub does not give it, or cannot be reached and the cache does not have it.
    """
    entry = published(model)
    if Path(model).is_dir():
        if entry is not None:
            logger.info(f"{option} {model}: the folder {model}/ is used, not {entry.hub_name}")
        return model, Path(model)
    if model in WITHOUT_WEIGHTS:
        raise UsageError(f"{option} {model}: {WITHOUT_WEIGHTS[model]}")
    if model in RENAMED:
        raise UsageError(f"{option} {model} is now called {option} {RENAMED[model]}")
    if entry is not None:
        logger.info(f"{model} is {entry.hub_name}")
        return entry.hub_name, _fetch(entry.hub_name, beside)
    if not HUB_NAME.fullmatch(model) or model.startswith("."):
        raise UsageError(f"{option} {model}: no such folder")
    return model, _fetch(model, beside)


def _fetch(name: str, beside: Sequence[str]) -> Path:
    """The hub's snapshot, downloaded or cached: safetensors where there are any, else pickles."""
    failure: Exception | None = None
    for pattern in WEIGHT_PATTERNS:
        weights = [side + pattern for side in ("", *SIDES)]
        try:
            files = [*SMALL_FILES, *weights, *beside]
            folder = Path(snapshot_download(name, allow_patterns=files))
        except (OSError, ValueError) as error:
            failure = error
            continue
        if any(folder.glob(pattern)) or any(folder.glob(f"*/{pattern}")):
            return folder
    raise _absent(name, failure)


def _absent(name: str, failure: Exception | None) -> ModelError:
    cache = f"the hub's cache ({constants.HF_HUB_CACHE})"
    if isinstance(failure, RepositoryNotFoundError):
        return ModelError(
            f"{name} is not on the hub, or not open to you, and there is no folder of that name",
            "check the name; a private model needs HF_TOKEN",
        )
    if failure is None:
        return ModelError(f"{name} on the hub holds no weights that denserk reads")
    reached = (
        "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "the hub could not be reached"
    )
    short = f", no short name ({', '.join(m.name for m in PUBLISHED_MODELS)})"
    return ModelError(
        f"{name} is no folder{'' if '/' in name else short}, not in {cache}, and {reached}",
        f"on a machine with the hub: hf download {name} --local-dir DIR; then --model DIR",
    )
