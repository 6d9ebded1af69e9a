"""Collections by name, through ir_datasets (irds:NAME) and BEIR's own archives (beir:NAME).

Both packages are extras, and are met only when such a name is used.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from denserk.errors import DenserkError, InputError, UsageError
from denserk.extras import installed, require
from denserk.formats.files import write_errors
from denserk.formats.json_records import identifier
from denserk.records import NO_FIELDS, Passage, Qrel, Query

logger = logging.getLogger(__name__)

IRDS = "irds:"
BEIR = "beir:"
BEIR_ARCHIVE = "https://public.ukp.informatik.tu-darmstadt.de/thakur/BEIR/datasets/{name}.zip"
TEXT_FIELDS = ("text", "body", "abstract", "contents")


def cache_folder() -> Path:
    """Where fetched collections are kept: $DENSERK_CACHE, or ~/.cache/denserk."""
    return Path(os.environ.get("DENSERK_CACHE") or Path.home() / ".cache" / "denserk")


def load_irds(name: str, what: str) -> Any:
    """A data set of ir_datasets that has docs, queries or qrels.

    Args:
        name: its id, with or without `irds:`.
        what: "docs", "queries" or "qrels".

    Raises:
        MissingExtraError: ir_datasets is not installed.
        UsageError: there is no such data set, or it lacks what is asked for.
    """
    name = name.removeprefix(IRDS)
    package = require("ir_datasets", f"the collection {IRDS}{name}")
    package.log.easy().logger().setLevel(logging.ERROR)  # a failed download is told in one line
    package.lazy_libs.tqdm = lambda: SimpleNamespace(tqdm=_bars())
    try:
        dataset = package.load(name)
    except (KeyError, ValueError):
        raise UsageError(
            f"{IRDS}{name}: ir_datasets has no data set of that id",
            "`ir_datasets list` prints them",
        ) from None
    if not getattr(dataset, f"has_{what}")():
        raise UsageError(f"{IRDS}{name} has no {what}", "name one of its parts, such as .../test")
    return dataset


def _bars() -> Any:
    """Make tqdm's bars of a download: on a terminal only, and removed when they end."""
    from tqdm import tqdm  # comes with transformers, ir_datasets and beir

    return partial(tqdm, disable=None, leave=False)


def knows_irds(name: str) -> bool:
    """Whether ir_datasets is installed and has a data set of that id."""
    if not installed("ir_datasets"):
        return False
    try:
        require("ir_datasets", name).registry[name]
    except (KeyError, ValueError):
        return False
    return True


@contextmanager
def _told_as_one_line(name: str) -> Iterator[None]:
    """Whatever a data set's download or files raise becomes an `InputError`."""
    try:
        yield
    except DenserkError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(
            name, None, f"a data set that cannot be read ({reason})", "its files or the network"
        ) from error


def _records(dataset: Any, what: str, name: str) -> Iterator[Any]:
    with _told_as_one_line(name):
        yield from getattr(dataset, f"{what}_iter")()


def irds_passages(name: str) -> Iterator[Passage]:
    """Passages of a data set of ir_datasets.

    Raises:
        UsageError: see `load_irds`.
        InputError: it cannot be fetched or read.
    """
    for record in _records(load_irds(name, "docs"), "docs", name):
        fields = record._asdict()
        docid = identifier(fields.pop("doc_id"), name, None, "passage")
        key = next((key for key in TEXT_FIELDS if isinstance(fields.get(key), str)), None)
        text = fields.pop(key) if key else record.default_text()
        title = fields.pop("title", "") if key else ""
        yield Passage(docid, text, title or "", _plain(fields))


def irds_count(name: str) -> int:
    """How many passages a data set of ir_datasets has; read through where it does not know.

    Raises:
        UsageError: see `load_irds`.
        InputError: it cannot be fetched or read.
    """
    dataset = load_irds(name, "docs")
    with _told_as_one_line(name):
        count = dataset.docs_count()
    return sum(1 for _ in irds_passages(name)) if count is None else int(count)


def _plain(fields: dict[str, Any]) -> Any:
    """The fields that JSON can hold as they are."""
    kept = {key: value for key, value in fields.items() if isinstance(value, str | int | float)}
    return kept or NO_FIELDS


def irds_queries(name: str) -> Iterator[Query]:
    """Queries of a data set of ir_datasets.

    Raises:
        UsageError: see `load_irds`.
        InputError: it cannot be fetched or read.
    """
    for record in _records(load_irds(name, "queries"), "queries", name):
        fields = record._asdict()
        qid = identifier(fields.pop("query_id"), name, None, "query")
        text = fields.pop("text", None)
        answers = fields.pop("answers", None) or ()
        yield Query(
            qid,
            text if isinstance(text, str) else record.default_text(),
            tuple(answer for answer in answers if isinstance(answer, str)),
            _plain(fields),
        )


def irds_qrels(name: str) -> Iterator[Qrel]:
    """Judgements of a data set of ir_datasets.

    Raises:
        UsageError: see `load_irds`.
        InputError: it cannot be fetched or read.
    """
    for record in _records(load_irds(name, "qrels"), "qrels", name):
        yield Qrel(record.query_id, record.doc_id, int(record.relevance))


def split_beir(name: str) -> tuple[str, str | None]:
    """A BEIR name as data set and split.

    >>> split_beir("beir:scifact/test"), split_beir("beir:cqadupstack/android/test")
    (('scifact', 'test'), ('cqadupstack/android', 'test'))
    >>> split_beir("beir:scifact")
    ('scifact', None)
    """
    name = name.removeprefix(BEIR).strip("/")
    head, _, last = name.rpartition("/")
    return (head, last) if last in ("train", "dev", "test") and head else (name, None)


def beir_folder(name: str) -> Path:
    """The folder of a BEIR data set, fetched if it is nowhere yet.

    Looked for under $DENSERK_CACHE/beir and ./datasets.

    Args:
        name: the data set, "scifact" or "cqadupstack/android".

    Raises:
        UsageError: it is not there, and the package that fetches it is missing.
        DenserkError: it cannot be fetched.
    """
    if not all(part.strip(".") and "\\" not in part for part in name.split("/")):
        raise UsageError(f"{BEIR}{name} is no name of a data set", f"for example {BEIR}scifact")
    places = [cache_folder() / "beir" / name, Path("datasets") / name]
    for place in places:
        if place.is_dir():
            logger.info(f"{BEIR}{name}: {place}")
            return place
    put = f"or unpack {name.partition('/')[0]}.zip so that {places[0]} holds corpus.jsonl"
    if not installed("beir"):
        looked = " and ".join(str(place) for place in places)
        raise UsageError(
            f"{BEIR}{name} is not in {looked}, and the package beir, which fetches it, is missing",
            f"pip install 'denserk[benchmarks]', {put}",
        )
    logger.info(f"{BEIR}{name}: fetching into {places[0].parent}")
    return _fetch(name, places[0], put)


def _fetch(name: str, place: Path, put: str) -> Path:
    util = require("beir.util", f"the collection {BEIR}{name}")
    archive = name.partition("/")[0]
    util.tqdm = _bars()  # type: ignore[attr-defined]
    kept = cache_folder() / "beir"
    with write_errors(kept):
        kept.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{archive}.", suffix=".part", dir=kept) as temporary:
            try:
                util.download_and_unzip(BEIR_ARCHIVE.format(name=archive), temporary)
            except Exception as error:
                reason = " ".join(str(error).split())[:160]
                raise DenserkError(f"{BEIR}{name} cannot be fetched: {reason}", put) from error
            if (Path(temporary) / archive).is_dir() and not (kept / archive).exists():
                (Path(temporary) / archive).rename(kept / archive)
    if not place.is_dir():
        raise DenserkError(f"{BEIR}{name}: the archive of {archive} holds no such data set", put)
    return place
