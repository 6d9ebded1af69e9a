"""Documents as files: .txt and .md, a passage each, and folders of them.

The id of a document is its path in the folder. Markdown's title is that of its front matter, or
else its first heading.
"""

import logging
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from denserk.errors import InputError
from denserk.io import files
from denserk.records import Passage

logger = logging.getLogger(__name__)

LISTED_ENDINGS = 5  # of files that are not read
MARKDOWN = ".md"
TEXT_ENDINGS = (".txt", MARKDOWN)
NOT_IN_IDS = re.compile(r"[\s#\udc80-\udcff]")  # also what is no UTF-8 in a file's name
FRONT_MATTER = re.compile(r"---[ \t]*\n(.*?\n)?(?:---|\.\.\.)[ \t]*(?:\n|$)", re.DOTALL)
FENCE = re.compile(r" {0,3}(```|~~~)")
HEADING = re.compile(r" {0,3}#{1,6}(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*")
UNDERLINE = re.compile(r" {0,3}={3,}[ \t]*")


class FolderFiles(NamedTuple):
    """The files of a folder and its subfolders, sorted by path, and what was left out."""

    paths: list[Path]
    skipped: int  # hidden files and folders, and links that lead out of the folder


def is_named(path: str | Path, *endings: str) -> bool:
    """Return whether a file has one of some endings, perhaps with .gz behind it.

    >>> is_named("notes.MD.gz", ".md")
    True
    """
    return Path(path).name.lower().removesuffix(".gz").endswith(endings)


def is_document(path: Path) -> bool:
    """Return whether a file is a document by its name, and not one that describes others."""
    is_text = is_named(path, *TEXT_ENDINGS)
    is_description = path.name.lower().startswith(("readme", "license", "licence"))
    return is_text and not is_description and not path.name.startswith(".")


def walk(folder: Path) -> FolderFiles:
    """Return the files of a folder and its subfolders; links to folders are not followed."""
    paths = []
    skipped = 0
    root = folder.resolve()
    for parent, subfolders, names in os.walk(folder):
        for name in list(subfolders):
            if name.startswith(".") or Path(parent, name).is_symlink():
                subfolders.remove(name)
                skipped += 1
        for name in names:
            path = Path(parent, name)
            leads_out = path.is_symlink() and not path.resolve().is_relative_to(root)
            if name.startswith(".") or leads_out or not path.is_file():
                skipped += 1
            else:
                paths.append(path)
    paths.sort(key=lambda path: path.relative_to(folder).as_posix())
    return FolderFiles(paths, skipped)


def report_skipped(folder: Path, skipped: int, unread_paths: Sequence[Path]) -> None:
    """Report what of a folder is not read, in one line."""
    descriptions = []
    if skipped:
        descriptions.append(f"hidden files and folders, and links out of it ({skipped:,})")
    if unread_paths:
        counts = Counter(path.suffix.lower() or "no ending" for path in unread_paths)
        kinds = [f"{ending} {count:,}" for ending, count in counts.most_common(LISTED_ENDINGS)]
        if len(counts) > LISTED_ENDINGS:
            kinds.append("...")
        descriptions.append(f"files of other kinds ({', '.join(kinds)})")
    if descriptions:
        logger.info(f"{folder.name}: not read: {', '.join(descriptions)}")


def id_of_name(name: str) -> str:
    """Return a path as an id, in which white space and `#` are percent-encoded.

    `#` stands between a document and the number of its passage.

    >>> id_of_name("notes/my moon #2.md")
    'notes/my%20moon%20%232.md'
    """
    return NOT_IN_IDS.sub(_percent_encoded, name)


def file_name_hint(terms: Sequence[str]) -> str | None:
    """Return what helps if the terms of a judgment are more than four: a name has white space.

    >>> file_name_hint(["q1", "0", "my", "notes.txt", "1"])
    'white space in the ids of files is %20: my%20notes.txt'
    """
    if len(terms) < 5:
        return None
    name_words = terms[2:-1]
    may_be_run = len(terms) == 6 and is_named(name_words[0], *TEXT_ENDINGS)
    if may_be_run or not is_named(name_words[-1], *TEXT_ENDINGS):
        return None
    name = id_of_name(" ".join(name_words))
    return f"white space in the ids of files is %20: {name}"


def _percent_encoded(match: re.Match[str]) -> str:
    return quote(match.group(), safe="", errors="surrogateescape")


def read_documents(folder: Path, paths: list[Path]) -> Iterator[Passage]:
    """Yield the documents of some files of a folder, a file each."""
    were_encoded = False
    for path in paths:
        name = path.relative_to(folder).as_posix()
        docid = id_of_name(name)
        if docid != name and not were_encoded:
            were_encoded = True
            logger.info(f"{folder.name}: white space and # in ids are percent-encoded: {docid}")
        yield read_document(path, docid)


def read_document(path: Path, docid: str) -> Passage:
    """Read a file as one passage."""
    with files.open_binary(path) as handle:
        data = files.read_all(handle, path).removeprefix(files.BOM)
    return document_of(data, path, docid)


def document_of(data: bytes, path: str | Path, docid: str) -> Passage:
    """Return the passage of a file's bytes."""
    try:
        text = data.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise files.encoding_error(path, line, data, error) from None
    if "\x00" in text:
        line = text.count("\n", 0, text.index("\x00")) + 1
        raise InputError(path, line, "a zero byte", "text")
    if is_named(path, MARKDOWN):
        return split_markdown(text, docid)
    return Passage(docid, text.strip())


def split_markdown(text: str, docid: str) -> Passage:
    r"""Return a Markdown document as a passage.

    The title is the front matter's, else the first heading; one that stands first is not part of
    the text then. The front matter never is.

    >>> split_markdown("# The moon\n\nIt rises.\n", "d1")
    Passage(docid='d1', text='It rises.', title='The moon', extra=mappingproxy({}))
    """
    document = _split_front_matter(text)
    body = document.body.strip()
    title = document.front_matter_title
    if title:
        return Passage(docid, body, title)
    heading = _first_heading(body)
    if heading is None:
        return Passage(docid, body)
    return Passage(docid, heading.text.strip(), heading.title)


class _Document(NamedTuple):
    """The values of a document's front matter, and the text below it."""

    front_matter: Mapping[str, Any]
    body: str

    @property
    def front_matter_title(self) -> str:
        """The title of the front matter, empty without one."""
        title = self.front_matter.get("title")
        if title is None or isinstance(title, dict | list):
            return ""
        return str(title).strip()


def _split_front_matter(text: str) -> _Document:
    """Return front matter and text of a document; what is no YAML is text."""
    document_without = _Document({}, text)
    match = FRONT_MATTER.match(text)
    if match is None:
        return document_without
    import yaml  # only where it is needed: `eval` starts without

    try:
        values = yaml.safe_load(match.group(1) or "")
    except (yaml.YAMLError, ValueError, RecursionError):  # ValueError: of dates
        return document_without
    if values is None:
        values = {}
    if not isinstance(values, dict):
        return document_without
    return _Document(values, text[match.end() :])


class _Heading(NamedTuple):
    """The first heading of a document, and the text without it if it stands first."""

    title: str
    text: str


def _first_heading(text: str) -> _Heading | None:
    """Return the first heading that is not in a block of code; None without one."""
    lines = text.split("\n")
    open_fence = ""  # of the block of code that is open
    for number, line in enumerate(lines):
        match = FENCE.match(line)
        fence = "" if match is None else match.group(1)
        if open_fence:
            if fence == open_fence:
                open_fence = ""
            continue
        if fence:
            open_fence = fence
            continue
        next_line = lines[number + 1] if number + 1 < len(lines) else ""
        heading_lines = _heading_lines(line, next_line)
        if heading_lines is None:
            continue
        if number > 0:
            return _Heading(heading_lines.title, text)
        return _Heading(heading_lines.title, "\n".join(lines[heading_lines.height :]))
    return None


class _HeadingLines(NamedTuple):
    """The title of a heading, and how many lines it has."""

    title: str
    height: int


def _heading_lines(line: str, next_line: str) -> _HeadingLines | None:
    """Return the heading that begins with a line; None if it is of the text."""
    match = HEADING.fullmatch(line)
    if match is not None:
        title = match.group(1) or ""
        return _HeadingLines(title.strip(), 1)
    if line.strip() and UNDERLINE.fullmatch(next_line):
        return _HeadingLines(line.strip(), 2)
    return None
