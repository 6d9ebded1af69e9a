"""Options of Milvus collections."""

import json
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from denserk.config.options import Settings, given_fields, option, spelled
from denserk.errors import UsageError

# environment variable with an API key, or "user:password"; its value is never logged or stored
TOKEN = "DENSERK_MILVUS_TOKEN"


@dataclass(frozen=True)
class CollectionSettings(Settings):
    """Milvus: for --engine milvus."""

    uri: str | None = option(
        None, "--milvus-uri", metavar="FILE.db|http://HOST:PORT", shown_default="no Milvus"
    )
    """Local file ending in .db, or server address; credentials come from DENSERK_MILVUS_TOKEN."""
    collection: str | None = option(None, metavar="NAME")
    """Collection name."""
    milvus_params: tuple[str, ...] | None = option(None, shown_default="Milvus's own", rare=True)
    """Index or search parameters by Milvus's names, such as M=32,efConstruction=200."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parts = urlsplit(self.uri or "a.db")
        if "@" in (self.uri or "") or parts.query or parts.fragment:
            raise UsageError(
                "--uri contains credentials, which would be written to logs and manifests",
                f"give the address only, and set {TOKEN} in the environment",
            )
        if parts.scheme not in (("",) if self.is_embedded else ("http", "https", "tcp", "unix")):
            raise UsageError(
                f"--uri {self.uri}: neither a file ending in .db nor the address of a server",
                "for example ./passages.db or http://localhost:19530",
            )
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,254}", self.collection or "_"):
            raise UsageError(f"--collection {self.collection}: at most 255 letters, digits and _")
        _ = self.parameters

    @property
    def is_embedded(self) -> bool:
        """Whether the collection is in a local file."""
        return (self.uri or ".db").endswith(".db")

    @property
    def place(self) -> str:
        """Return the collection's name and address, for messages."""
        return f"collection {self.collection} of {self.uri}"

    @property
    def parameters(self) -> dict[str, Any]:
        """Return the parameters as Milvus expects them: numbers and booleans where they are."""
        found: dict[str, Any] = {}
        for part in self.milvus_params or ():
            name, _, text = part.partition("=")
            if not (name and text):
                raise UsageError(f"--set milvus-params={part}: not NAME=VALUE", "for example M=32")
            try:
                found[name] = json.loads(text)
            except ValueError:
                found[name] = text
        return found

    def reject_without_milvus(self) -> None:
        """Raise a UsageError if an option of Milvus is given for another engine."""
        for name in given_fields(self):
            raise UsageError(f"{spelled(name, type(self))} is for Milvus", "add --engine milvus")


@dataclass(frozen=True)
class MilvusIndexSettings(CollectionSettings):
    """Milvus: for --engine milvus."""

    milvus_index: str = option("FLAT", metavar="FLAT|HNSW|IVF_FLAT|...", rare=True)
    """Index type by Milvus's name."""
    milvus_batch: int | None = option(None, shown_default="8 MiB", rare=True, at_least=1)
    """Passages per insert request."""
