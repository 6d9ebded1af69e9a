"""Collections by name, through ir_datasets (irds:NAME) and BEIR's archives (beir:NAME).

Both packages are optional, and imported only for such a name. The parts of a benchmark are looked
for on the disk first.
"""

import csv
import hashlib
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from denserk.config.benchmarks import Benchmark, Source
from denserk.config.yaml_files import RECIPES
from denserk.errors import DenserkError, InputError, UsageError, reason_of
from denserk.extras import installed, require
from denserk.io.durability import flush_names, flush_tree
from denserk.io.files import STREAM, read_errors, write_errors
from denserk.io.json_records import identifier
from denserk.records import NO_FIELDS, Passage, Query

logger = logging.getLogger(__name__)

IRDS = "irds:"
BEIR = "beir:"
BEIR_ARCHIVE = "https://public.ukp.informatik.tu-darmstadt.de/thakur/BEIR/datasets/{name}.zip"
BEIR_CHECKSUMS = RECIPES / "beir-archives.csv"
TEXT_FIELDS = ("text", "body", "abstract", "contents")


def cache_folder() -> Path:
    """Return the folder of downloaded collections: $DENSERK_CACHE, or ~/.cache/denserk."""
    return Path(os.environ.get("DENSERK_CACHE") or Path.home() / ".cache" / "denserk")


class Place(NamedTuple):
    """Where a source is: a path, and the split of a BEIR dataset; or a dataset of ir_datasets."""

    path: Path
    split: str | None = None
    irds: str | None = None


def locate(source: str) -> Place:
    """Return where a source is: `irds:NAME`, `beir:NAME`, "-", a path, or an id of ir_datasets."""
    if source.startswith(IRDS):
        return Place(Path(), irds=source.removeprefix(IRDS))
    if source.startswith(BEIR):
        name = source.removeprefix(BEIR).strip("/")
        head, _, last = name.rpartition("/")
        has_split = head and last in ("train", "dev", "test")
        return Place(beir_folder(head), last) if has_split else Place(beir_folder(name))
    if source == STREAM or Path(source).exists():
        return Place(Path(source))
    if knows_irds(source):
        logger.info(f"{source}: a dataset of ir_datasets")
        return Place(Path(), irds=source)
    could_be_name = "/" in source and not (Path(source).suffix or Path(source).parent.exists())
    hint = f"if it is a dataset of ir_datasets, write {IRDS}{source}, or of the hub, hf:{source}"
    raise UsageError(f"{source}: no such file or folder", hint if could_be_name else None)


def plain_or_packed(folder: Path, name: str) -> Path | None:
    """Return a file of a folder, or the same file with .gz; None without either."""
    return next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)


def irds_records(name: str, what: str) -> Iterator[Any]:
    """Yield docs, queries or qrels; whatever the download or the files raise is an InputError."""
    os.environ.setdefault("IR_DATASETS_DL_DISABLE_PBAR", str(not sys.stderr.isatty()).lower())
    try:
        package = require("ir_datasets", f"the collection {IRDS}{name}")
    except OSError as error:  # it makes its folder when it is imported
        message = f"{IRDS}{name}: ir_datasets cannot make its folder in HOME ({error})"
        raise DenserkError(message, "set IR_DATASETS_HOME to a folder that you can write") from None
    package.log.easy().logger().setLevel(logging.ERROR)  # a failed download is one line
    try:
        dataset = package.load(name)
    except (KeyError, ValueError):
        message = f"{IRDS}{name}: ir_datasets has no dataset of that id"
        raise UsageError(message, "`ir_datasets list` prints them") from None
    if not getattr(dataset, f"has_{what}")():
        raise UsageError(f"{IRDS}{name} has no {what}", "name one of its parts, such as .../test")
    try:
        yield from getattr(dataset, f"{what}_iter")()
    except Exception as error:
        found = f"a dataset that cannot be read ({reason_of(error)})"
        raise InputError(name, None, found, "its files or the network") from error


def knows_irds(name: str) -> bool:
    """Return whether ir_datasets is installed and has a dataset of that id, which has a slash.

    The import makes a folder in HOME: look first whether there is a file of that name.
    """
    if "/" not in name or name.startswith(("/", ".")) or not installed("ir_datasets"):
        return False
    with suppress(KeyError, ValueError, OSError):  # OSError: HOME cannot be written
        return bool(require("ir_datasets", name).registry[name])
    return False


def irds_passages(name: str) -> Iterator[Passage]:
    """Yield the passages of a dataset of ir_datasets."""
    for record in irds_records(name, "docs"):
        fields = record._asdict()
        docid = identifier(fields.pop("doc_id"), name, None, "passage")
        key = next((key for key in TEXT_FIELDS if isinstance(fields.get(key), str)), None)
        text = fields.pop(key) if key else record.default_text()
        title = fields.pop("title", "") if key else ""
        yield Passage(docid, text, title or "", _plain(fields))


def _plain(fields: dict[str, Any]) -> Any:
    kept = {key: value for key, value in fields.items() if isinstance(value, str | int | float)}
    return kept or NO_FIELDS


def irds_queries(name: str) -> Iterator[Query]:
    """Yield the queries of a dataset of ir_datasets."""
    for record in irds_records(name, "queries"):
        fields = record._asdict()
        qid = identifier(fields.pop("query_id"), name, None, "query")
        answers = tuple(each for each in fields.pop("answers", None) or () if isinstance(each, str))
        text = fields.pop("text", None) or record.default_text()
        yield Query(qid, text, answers, _plain(fields))


def beir_folder(name: str) -> Path:
    """Return the folder of a BEIR dataset: in $DENSERK_CACHE/beir, ./datasets, or downloaded."""
    if not all(part.strip(".") and "\\" not in part for part in name.split("/")):
        raise UsageError(f"{BEIR}{name} is no name of a dataset", f"for example {BEIR}scifact")
    kept = cache_folder() / "beir"
    for place in (kept / name, Path("datasets") / name):
        if place.is_dir():
            logger.info(f"{BEIR}{name}: {place}")
            return place
    archive = name.partition("/")[0]
    put = f"unpack {archive}.zip so that {kept / name} holds corpus.jsonl"
    util = require("beir.util", f"{BEIR}{name}, which is not in {kept / name} and {place},")
    logger.info(f"{BEIR}{name}: fetching into {kept}")
    with write_errors(kept):
        kept.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{archive}.", suffix=".part", dir=kept) as temporary:
            try:
                packed = Path(temporary) / f"{archive}.zip"
                util.download_url(BEIR_ARCHIVE.format(name=archive), str(packed))
                check_archive(packed, archive, put)
                util.unzip(str(packed), temporary)
            except DenserkError:
                raise
            except Exception as error:
                message = f"{BEIR}{name} cannot be fetched: {reason_of(error)}"
                raise DenserkError(message, put) from error
            if (Path(temporary) / archive).is_dir() and not (kept / archive).exists():
                flush_tree(Path(temporary) / archive)
                (Path(temporary) / archive).rename(kept / archive)
                flush_names(kept)
    if not (kept / name).is_dir():
        raise DenserkError(f"{BEIR}{name}: the archive of {archive} holds no such dataset", put)
    return kept / name


def check_archive(path: Path, name: str, hint: str) -> None:
    """Compare an archive of BEIR with the checksum in BEIR's list, if it has one."""
    expected = beir_checksums().get(name)
    if expected is None:
        return
    with read_errors(path), path.open("rb") as handle:
        checksum = hashlib.file_digest(handle, "md5").hexdigest()
    if checksum != expected:
        raise InputError(
            f"{BEIR}{name}: {path.name}",
            None,
            f"an archive with the MD5 checksum {checksum}",
            f"{expected}, which BEIR lists",
            f"run the command again to fetch it again, or {hint}",
        )


@cache
def beir_checksums() -> Mapping[str, str]:
    """Return the MD5 checksums of BEIR's archives by their names."""
    lines = BEIR_CHECKSUMS.read_text("utf-8").splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    return {row["archive"]: row["md5"] for row in rows}


def local_copy(source: Source) -> str | None:
    """Return the name of a source that is on this disk, else None."""
    places = [cache_folder() / path for path in source.paths]
    if source.name is not None and source.name.startswith(BEIR):
        folder = Path("datasets") / source.paths[0].removeprefix("beir/")
        return source.name if any(place.is_dir() for place in (*places, folder)) else None
    found = (path for place in places for path in (place, place.with_name(f"{place.name}.gz")))
    return next((str(path) for path in found if path.exists()), None)


def find_parts(chosen: Iterable[Benchmark], parts: Sequence[str] = ()) -> dict[str, dict[str, str]]:
    """Return where parts of benchmarks are, by default all: benchmark -> part -> a path or a name.

    Parts that a benchmark lacks are left out. One error names all that are not on the disk and
    cannot be downloaded.
    """
    found: dict[str, dict[str, str]] = {}
    missing: dict[Path, list[str]] = {}
    for benchmark in chosen:
        for part, source in benchmark.sources.items():
            if parts and part not in parts:
                continue
            name = local_copy(source)
            if name is None and source.fetched and source.name is not None:
                package = "beir" if source.name.startswith(BEIR) else "ir_datasets"
                name = source.name if installed(package) else None
            if name is not None:
                found.setdefault(benchmark.name, {})[part] = name
            else:
                place = cache_folder() / source.paths[0]
                missing.setdefault(place, []).append(f"{part} of {benchmark.name}")
    if missing:
        listed = ", ".join(f"{place} ({', '.join(lacks)})" for place, lacks in missing.items())
        hint = "put them there, or pip install ir_datasets beir for what is public"
        raise UsageError(f"not on this disk: {listed}", hint)
    return found
