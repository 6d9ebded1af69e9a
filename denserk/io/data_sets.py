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
from denserk.io.file_errors import read_errors, write_errors
from denserk.io.files import STREAM
from denserk.io.json_records import identifier
from denserk.io.near_paths import no_such_path
from denserk.io.tables import HUB
from denserk.records import NO_FIELDS, Passage, Query

logger = logging.getLogger(__name__)

IRDS = "irds:"
BEIR = "beir:"
BEIR_ARCHIVE = "https://public.ukp.informatik.tu-darmstadt.de/thakur/BEIR/datasets/{name}.zip"
BEIR_CHECKSUMS = RECIPES / "beir-archives.csv"
TEXT_FIELDS = ("text", "body", "abstract", "contents")


def cache_folder() -> Path:
    """Return the folder of downloaded collections and compiled models.

    It is $DENSERK_CACHE, or `denserk` in $XDG_CACHE_HOME or ~/.cache. A UsageError if none of these
    is known.
    """
    named_folder = os.environ.get("DENSERK_CACHE")
    if named_folder:
        return Path(named_folder)
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "")
    if not caches.is_absolute():  # the standard says to ignore it then
        try:
            caches = Path.home() / ".cache"
        except RuntimeError:
            message = "there is no folder for downloads and compiled models: you have no home"
            raise UsageError(message, "set DENSERK_CACHE to a folder") from None
    return caches / "denserk"


class Location(NamedTuple):
    """Where a source is: a path, and the split of a BEIR dataset; or a dataset of ir_datasets."""

    path: Path
    split: str | None = None
    irds: str | None = None


def locate(source: str) -> Location:
    """Return where a source is: `irds:NAME`, `beir:NAME`, "-", a path, or an id of ir_datasets."""
    if source.startswith(IRDS):
        return Location(Path(), irds=source.removeprefix(IRDS))
    if source.startswith(BEIR):
        return _locate_beir(source.removeprefix(BEIR).strip("/"))
    path = Path(source)
    if source == STREAM or path.exists():
        return Location(path)
    if knows_irds(source):
        logger.info(f"{source}: a dataset of ir_datasets")
        return Location(Path(), irds=source)
    hint = None
    # with a suffix, or in a folder that exists, it was meant as a path
    if "/" in source and not path.suffix and not path.parent.exists():
        hint = (
            f"if it is a dataset of ir_datasets, write {IRDS}{source}, or of the hub, hf:{source}"
        )
    raise no_such_path(source, f"{source}: no such file or folder", hint)


def _locate_beir(name: str) -> Location:
    """Return where a BEIR dataset is, by NAME or NAME/SPLIT."""
    dataset, split = _split_beir_name(name)
    return Location(beir_folder(dataset), split)


def _split_beir_name(name: str) -> tuple[str, str | None]:
    """Return a BEIR dataset and its split, if one is named.

    >>> _split_beir_name("nq/test"), _split_beir_name("cqadupstack/english")
    (('nq', 'test'), ('cqadupstack/english', None))
    """
    dataset, _, split = name.rpartition("/")
    if dataset and split in ("train", "dev", "test"):
        return dataset, split
    return name, None


def is_on_disk(source: str) -> bool:
    """Return whether a source is a file, a folder, or a BEIR dataset that is unpacked here."""
    if not source.startswith(BEIR):
        return Path(source).exists()
    dataset, _ = _split_beir_name(source.removeprefix(BEIR).strip("/"))
    return _stays_inside(dataset) and _unpacked_beir(dataset) is not None


def plain_or_packed(folder: Path, name: str) -> Path | None:
    """Return a file of a folder, or the same file with .gz; None without either."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    return None


def irds_records(name: str, entity: str) -> Iterator[Any]:
    """Yield ir_datasets' records of "docs", "queries" or "qrels".

    Whatever the download or the files raise is an InputError.
    """
    package = _import_irds(name)
    try:
        dataset = package.load(name)
    except (KeyError, ValueError):
        message = f"{IRDS}{name}: ir_datasets has no dataset of that id"
        raise UsageError(message, "`ir_datasets list` prints them") from None
    has_entity = getattr(dataset, f"has_{entity}")()
    if not has_entity:
        message = f"{IRDS}{name} has no {entity}"
        raise UsageError(message, "name one of its parts, such as .../test")
    try:
        yield from getattr(dataset, f"{entity}_iter")()
    except Exception as error:
        found = f"a dataset that cannot be read ({reason_of(error)})"
        raise InputError(name, None, found, "its files or the network") from error


def _import_irds(name: str) -> Any:
    """Return the package ir_datasets for a dataset; it logs only errors."""
    os.environ.setdefault("IR_DATASETS_DL_DISABLE_PBAR", str(not sys.stderr.isatty()).lower())
    try:
        package = require("ir_datasets", f"the collection {IRDS}{name}")
    except OSError as error:  # it makes its folder when it is imported
        message = f"{IRDS}{name}: ir_datasets cannot make its folder in HOME ({error})"
        raise DenserkError(message, "set IR_DATASETS_HOME to a folder that you can write") from None
    package.log.easy().logger().setLevel(logging.ERROR)  # a failed download is one line
    return package


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
        text_field = next((key for key in TEXT_FIELDS if isinstance(fields.get(key), str)), None)
        if text_field is None:
            text = record.default_text()  # which may contain the title
            title = ""
        else:
            text = fields.pop(text_field)
            title = fields.pop("title", "") or ""
        yield Passage(docid, text, title, _extra_fields(fields))


def _extra_fields(fields: dict[str, Any]) -> Any:
    """Return the fields that are texts or numbers, which a passage or query keeps."""
    plain = {key: value for key, value in fields.items() if isinstance(value, str | int | float)}
    return plain or NO_FIELDS


def irds_queries(name: str) -> Iterator[Query]:
    """Yield the queries of a dataset of ir_datasets."""
    for record in irds_records(name, "queries"):
        fields = record._asdict()
        qid = identifier(fields.pop("query_id"), name, None, "query")
        values = fields.pop("answers", None) or ()
        answers = tuple(value for value in values if isinstance(value, str))
        text = fields.pop("text", None) or record.default_text()
        yield Query(qid, text, answers, _extra_fields(fields))


def beir_folder(name: str) -> Path:
    """Return the folder of a BEIR dataset: in $DENSERK_CACHE/beir, ./datasets, or downloaded."""
    if not _stays_inside(name):
        raise UsageError(f"{BEIR}{name} is no name of a dataset", f"for example {BEIR}scifact")
    folder = _unpacked_beir(name)
    if folder is not None:
        logger.info(f"{BEIR}{name}: {folder}")
        return folder
    cached, unpacked = _beir_folders(name)
    util = require("beir.util", f"{BEIR}{name}, which is not in {cached} and {unpacked},")
    archive = name.partition("/")[0]
    hint = f"unpack {archive}.zip so that {cached} holds corpus.jsonl"
    _fetch_beir(util, archive, name, hint)
    if not cached.is_dir():
        raise DenserkError(f"{BEIR}{name}: the archive of {archive} holds no such dataset", hint)
    return cached


def _beir_folders(name: str) -> tuple[Path, Path]:
    """Return where a BEIR dataset is looked for: in the cache, and in ./datasets."""
    return cache_folder() / "beir" / name, Path("datasets") / name


def _unpacked_beir(name: str) -> Path | None:
    """Return the folder of a BEIR dataset that is unpacked here; None if none is."""
    for folder in _beir_folders(name):
        if folder.is_dir():
            return folder
    return None


def _stays_inside(name: str) -> bool:
    """Return whether a name, perhaps with slashes, leads to a folder below another one."""
    return all(folder.strip(".") and "\\" not in folder for folder in name.split("/"))


def _fetch_beir(util: Any, archive: str, name: str, hint: str) -> None:
    """Download an archive of BEIR for a dataset, and unpack it into the cache.

    `util` is BEIR's module, `hint` how to do it by hand.
    """
    cache = cache_folder() / "beir"
    logger.info(f"{BEIR}{name}: fetching into {cache}")
    with write_errors(cache):
        cache.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{archive}.", suffix=".part", dir=cache) as temporary:
            try:
                zip_file = Path(temporary) / f"{archive}.zip"
                util.download_url(BEIR_ARCHIVE.format(name=archive), str(zip_file))
                check_archive(zip_file, archive, hint)
                util.unzip(str(zip_file), temporary)
            except DenserkError:
                raise
            except Exception as error:
                message = f"{BEIR}{name} cannot be fetched: {reason_of(error)}"
                raise DenserkError(message, hint) from error
            folder = Path(temporary) / archive
            if folder.is_dir() and not (cache / archive).exists():
                flush_tree(folder)
                folder.rename(cache / archive)
                flush_names(cache)


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
    paths = [cache_folder() / path for path in source.paths]
    if source.name is not None and source.name.startswith(BEIR):
        unpacked = Path("datasets") / source.paths[0].removeprefix("beir/")
        is_on_disk = any(folder.is_dir() for folder in (*paths, unpacked))
        return source.name if is_on_disk else None
    for path in paths:
        for file in (path, path.with_name(f"{path.name}.gz")):
            if file.exists():
                return str(file)
    return None


def find_parts(chosen: Iterable[Benchmark], parts: Sequence[str] = ()) -> dict[str, dict[str, str]]:
    """Return where parts of benchmarks are, by default all: benchmark -> part -> a path or a name.

    Parts that a benchmark lacks are left out. One error names all that are not on the disk and
    cannot be downloaded.
    """
    sources: dict[str, dict[str, str]] = {}
    missing: dict[Path, list[str]] = {}  # parts in words, by the path that is looked for
    for benchmark in chosen:
        for part, source in benchmark.sources.items():
            if parts and part not in parts:
                continue
            name = local_copy(source)
            if name is None:
                name = _downloadable_name(source)
            if name is not None:
                sources.setdefault(benchmark.name, {})[part] = name
            else:
                path = cache_folder() / source.paths[0]
                missing.setdefault(path, []).append(f"{part} of {benchmark.name}")
    if missing:
        listed = ", ".join(f"{path} ({', '.join(lacking)})" for path, lacking in missing.items())
        hint = "put them there, or pip install ir_datasets beir for what is public"
        raise UsageError(f"not on this disk: {listed}", hint)
    return sources


def _downloadable_name(source: Source) -> str | None:
    """Return the name by which a source is downloaded; None if it is not, or lacks its package."""
    if source.name is None or not source.fetched:
        return None
    if source.name.startswith(HUB):  # by the package datasets, which denserk needs
        return source.name
    package = "beir" if source.name.startswith(BEIR) else "ir_datasets"
    return source.name if installed(package) else None
