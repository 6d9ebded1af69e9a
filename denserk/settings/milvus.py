"""Where a Milvus collection stands, how it is indexed, and how it is searched."""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from denserk.errors import UsageError
from denserk.settings.options import Settings, option

EMBEDDED = ".db"
"""How a local file is told from a server."""
SCHEMES = ("http", "https", "tcp", "unix")
TOKEN = "DENSERK_MILVUS_TOKEN"
USER = "DENSERK_MILVUS_USER"
PASSWORD = "DENSERK_MILVUS_PASSWORD"
AUTHORITY = "DENSERK_MILVUS_CA"
CLIENT_CERTIFICATE = "DENSERK_MILVUS_CLIENT_CERTIFICATE"
CLIENT_KEY = "DENSERK_MILVUS_CLIENT_KEY"
SERVER_NAME = "DENSERK_MILVUS_SERVER_NAME"
SECRETS = (TOKEN, PASSWORD)
"""Variables whose values are never told."""

Value = int | float | bool | str


@dataclass(frozen=True)
class CollectionSettings(Settings):
    """Which collection, where."""

    uri: str | None = option(
        None, "--milvus-uri", metavar="FILE.db|http://HOST:PORT", shown_default="no Milvus"
    )
    """A local file ending in .db, or a server; who you are stands in DENSERK_MILVUS_TOKEN."""
    collection: str | None = option(None, metavar="NAME")
    """The collection."""
    milvus_timeout: float = option(60.0, rare=True)
    """Seconds a request may take; a server must take the first call within 10 of them."""

    def __post_init__(self) -> None:
        """Refuses an address that is none, or that holds a secret."""
        if self.uri is not None:
            _refuse_address(self.uri)
        if self.collection is not None and not re.fullmatch(
            r"[A-Za-z_][A-Za-z0-9_]{0,254}", self.collection
        ):
            raise UsageError(
                f"--collection {self.collection!r}: Milvus takes letters, digits and _, at most 255"
            )
        if self.milvus_timeout <= 0:
            raise UsageError(f"--milvus-timeout {self.milvus_timeout:g}: seconds, more than 0")

    @property
    def address(self) -> str:
        """The file or server.

        Raises:
            UsageError: none was named.
        """
        if self.uri is None:
            raise UsageError(
                "--engine milvus needs a place",
                "give --uri, for example ./passages.db or http://localhost:19530",
            )
        return self.uri

    @property
    def name(self) -> str:
        """The collection's name.

        Raises:
            UsageError: none was given.
        """
        if self.collection is None:
            raise UsageError("--engine milvus needs a collection", "give --collection NAME")
        return self.collection

    @property
    def place(self) -> str:
        """The collection and where it stands, in words.

        >>> CollectionSettings("./a.db", "passages").place
        'collection passages of ./a.db'
        """
        return f"collection {self.name} of {self.address}"

    @property
    def is_embedded(self) -> bool:
        """Whether it is a local file."""
        return self.address.endswith(EMBEDDED)

    def refuse_in_vain(self) -> None:
        """Refuses options that only --engine milvus reads.

        Raises:
            UsageError: one is given; called where another engine works.
        """
        for name in ("uri", "collection", "milvus_index", "milvus_params", "milvus_batch"):
            given = getattr(self, name, None)
            if given and given != type(self).__dataclass_fields__[name].default:
                flag = f"--{name.replace('_', '-')}"
                raise UsageError(f"{flag} is for Milvus", "add --engine milvus")


def _refuse_address(uri: str) -> None:
    if uri.endswith(EMBEDDED) and "://" not in uri:
        return
    parts = urlsplit(uri)
    if "@" in uri or parts.query or parts.fragment:
        raise UsageError(
            "--uri holds a user, a password or a token, which would end in logs and manifests",
            f"give the address alone, and set {TOKEN} in the environment",
        )
    if parts.scheme not in SCHEMES:
        raise UsageError(
            f"--uri {uri}: neither a file ending in {EMBEDDED} nor a server's address",
            "for example ./passages.db or http://localhost:19530",
        )
    if uri.endswith(EMBEDDED):
        raise UsageError(f"--uri {uri}: what ends in {EMBEDDED} is a local file, with no scheme")


@dataclass(frozen=True)
class MilvusIndexSettings(CollectionSettings):
    """How a collection is made."""

    milvus_index: str = option("FLAT", metavar="FLAT|HNSW|IVF_FLAT|...", rare=True)
    """Kind of index, by Milvus's name for it: any that the server knows."""
    milvus_params: tuple[str, ...] | None = option(None, shown_default="Milvus's own", rare=True)
    """Parameters of the index, by Milvus's names: M=32,efConstruction=200."""
    milvus_batch: int | None = option(None, shown_default="8 MiB of them", rare=True)
    """Passages sent at once."""

    def __post_init__(self) -> None:
        """Refuses parameters that are none, and an empty batch."""
        super().__post_init__()
        parameters(self.milvus_params)
        if not re.fullmatch(r"[A-Za-z0-9_]+", self.milvus_index):
            raise UsageError(f"--milvus-index {self.milvus_index!r}: a name such as HNSW")
        if self.milvus_batch is not None and self.milvus_batch < 1:
            raise UsageError(f"--milvus-batch {self.milvus_batch}: at least 1 is needed")


@dataclass(frozen=True)
class MilvusSearchSettings(CollectionSettings):
    """How a collection is searched."""

    milvus_params: tuple[str, ...] | None = option(
        None, shown_default="from --hits, --ef-search and --nprobe", rare=True
    )
    """Parameters of the search, by Milvus's names: search_list=2000."""

    def __post_init__(self) -> None:
        """Refuses parameters that are none."""
        super().__post_init__()
        parameters(self.milvus_params)


def parameters(given: tuple[str, ...] | None) -> dict[str, Value]:
    """Parameters as Milvus takes them.

    Raises:
        UsageError: one is not NAME=VALUE.

    >>> parameters(("M=32", "with_raw_data=true", "sq_type=SQ6"))
    {'M': 32, 'with_raw_data': True, 'sq_type': 'SQ6'}
    """
    found: dict[str, Value] = {}
    for part in given or ():
        name, equals, text = part.partition("=")
        if not (name and equals and text):
            raise UsageError(f"--milvus-params {part}: NAME=VALUE is expected", "M=32, for example")
        found[name] = _value(text)
    return found


def _value(text: str) -> Value:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
