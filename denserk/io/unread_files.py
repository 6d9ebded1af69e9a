"""Files that denserk does not read yet: what they are, and a command that converts them."""

import json
import re
import shlex
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from denserk.errors import InputError
from denserk.io import files
from denserk.io.column_names import Column, Table, column_of, columns_by_meaning, plain_name


class UnreadFile(NamedTuple):
    """A file of a format that denserk does not read yet: what it is, and a command that helps."""

    description: str
    hint: str

    def error(self, path: str | Path, line: int | None, expected: str) -> InputError:
        """Return the error of a reader that expected something else."""
        found = f"{self.description}, which denserk does not read yet"
        return InputError(path, line, found, expected, self.hint)


# how files that are no text begin
PDF = b"%PDF"
GZIP = b"\x1f\x8b"
ZIP = b"PK\x03\x04"
COMPRESS = b"\x1f\x9d"
# Programs of one line that convert a file, for `python3 -c`: they use Python alone, and a user
# copies them from a message. A statement `for` would need a second line.
TSV_OF_CSV = (
    "import csv, sys; "
    r'[print("\t".join(" ".join(cell.split()) for cell in row)) '
    'for row in csv.reader(open(sys.argv[1], newline="", encoding="utf-8-sig"))]'
)
TSV_OF_LINES = (
    "import sys; "
    r'[print(number, " ".join(line.split()), sep="\t") '
    'for number, line in enumerate(open(sys.argv[1], encoding="utf-8"), 1) if line.strip()]'
)
JSON_OF_PAGES = (
    "import json, sys; "
    '[print(json.dumps({"_id": str(number), "text": " ".join(page.split())})) '
    r'for number, page in enumerate(sys.stdin.read().split("\f"), 1) if page.strip()]'
)
PLAIN_TEXT = 'path.read_text(encoding="utf-8", errors="replace")'
HTML_TEXT = (
    r'" ".join(html.unescape(re.sub(r"(?is)<(script|style)\b.*?</\1>|<[^>]+>", " ", '
    f"{PLAIN_TEXT})).split())"
)
JSON_OF_HTML_PAGE = (
    "import html, json, pathlib, re, sys; "
    "path = pathlib.Path(sys.argv[1]); "
    'name = path.name.replace(" ", "%20").replace("#", "%23"); '
    f'print(json.dumps({{"_id": name, "text": {HTML_TEXT}}}))'
)
JSON_OF_FOLDER = (
    "import html, json, pathlib, re, sys; "
    "folder = pathlib.Path(sys.argv[1]); "
    '[print(json.dumps({"_id": str(path.relative_to(folder))'
    '.replace(" ", "%20").replace("#", "%23"), "text": TEXT})) '
    'for path in sorted(folder.rglob("*")) if path.suffix.lower() == "ENDING"]'
)
# the part of an office document that holds its text, by the ending of its name
OFFICE_PARTS = {".docx": "word/document.xml", ".odt": "content.xml"}
OFFICE_TEXT = (
    'html.unescape(re.sub("<[^>]+>", "", '
    r're.sub("<w:(tab|br)/>|</(w|text):[ph]>", "\n", '
    'zipfile.ZipFile(path).read("PART").decode())))'
)
JSON_OF_OFFICE_DOCUMENT = (
    "import html, json, pathlib, re, sys, zipfile; "
    "path = pathlib.Path(sys.argv[1]); "
    'name = path.name.replace(" ", "%20").replace("#", "%23"); '
    f'print(json.dumps({{"_id": name, "text": {OFFICE_TEXT}.strip()}}))'
)
# writes document.txt beside each document.docx of a folder: a line for each paragraph
TEXTS_OF_OFFICE_DOCUMENTS = (
    "import html, pathlib, re, sys, zipfile; "
    f'[path.with_suffix(".txt").write_text({OFFICE_TEXT}, encoding="utf-8") '
    'for path in pathlib.Path(sys.argv[1]).rglob("*") if path.suffix.lower() == "ENDING"]'
)
# targets of `denserk convert` for generated queries, by what they are expected as
GENERATED_TARGETS = {
    Table.QUERIES: "generated-queries.tsv",
    Table.QRELS: "generated-qrels.txt",
    Table.TRAINING: "train.jsonl --corpus CORPUS",
}
EXPECTED_FORMATS = {
    Table.RUN: "lines of qid Q0 docid rank score tag",
    Table.QRELS: "lines of qid iter docid relevance",
    Table.QUERIES: "lines of id, tab, text; or JSON lines",
    Table.CORPUS: "JSON lines, or lines of id, tab, text",
    Table.TRAINING: "JSON lines, or columns between tabs",
    Table.SENTENCES: "JSON lines, or columns between tabs",
    Table.CLICKS: "columns between tabs, commas or semicolons",
}
CONVERTED_NAMES = {
    Table.RUN: "converted.trec",
    Table.QRELS: "converted.qrels",
    Table.CORPUS: "converted.jsonl",
}
TEXT_FILES = (".rst", ".text", ".markdown")
HTML_FILES = (".html", ".htm", ".xhtml")
DOCUMENT_ENDINGS = frozenset((".pdf", *OFFICE_PARTS, *TEXT_FILES, *HTML_FILES))
LISTED_ROWS = 20  # of a file, by which the column with its texts is chosen


def unread_file(head: bytes, path: str | Path, table: Table) -> UnreadFile | None:
    """Return what a file is that begins with these bytes, if it is of a format that is not read.

    For readers that did not recognise a format of their own.
    """
    start = head.lstrip()[:2000].lower()
    if head.startswith(PDF):
        to_json = f"python3 -c {shlex.quote(JSON_OF_PAGES)} > converted.jsonl"
        command = f"pdftotext -q {_shell_path(path)} - | {to_json}"
        return UnreadFile("a PDF", f"convert its pages: {command}")
    if head.startswith(GZIP):
        name = _shell_path(path)
        return UnreadFile("a gzip file without .gz in its name", f"rename it: mv {name} {name}.gz")
    if head.startswith(COMPRESS):
        name = _shell_path(path)
        return UnreadFile("a file of `compress`", f"uncompress it: gunzip < {name} > {name}.txt")
    if head.startswith(ZIP):
        return _unread_zip(path, table)
    if start.startswith((b"<!doctype html", b"<html")):
        return UnreadFile("an HTML page", _conversion_hint(JSON_OF_HTML_PAGE, path, Table.CORPUS))
    if start.startswith(b"<"):
        return UnreadFile("XML", f"write {EXPECTED_FORMATS[table]}")
    if files.is_json(start):
        return None
    return _unread_csv(head, path, table)


def _unread_zip(path: str | Path, table: Table) -> UnreadFile:
    """Return what a zip file is: an office document if its name says so, else any archive."""
    ending = Path(path).suffix.lower()
    part = OFFICE_PARTS.get(ending)
    if part is None or table is not Table.CORPUS:
        return UnreadFile("a zip archive or an office document", "unpack it, or save it as text")
    program = JSON_OF_OFFICE_DOCUMENT.replace("PART", part)
    return UnreadFile(f"a {ending} document", _conversion_hint(program, path, table))


def unread_file_error(
    head: bytes, path: str | Path, table: Table, expected: str, line: int | None = None
) -> InputError | None:
    """Return the error of an `unread_file`; None for other files."""
    unread = unread_file(head, path, table)
    if unread is None:
        return None
    return unread.error(path, line, expected)


def is_binary(head: bytes) -> bool:
    """Return whether a file is a PDF, an archive or compressed, by its first bytes."""
    return head.startswith((PDF, GZIP, ZIP, COMPRESS))


def reject_binary(head: bytes, path: str | Path, table: Table) -> None:
    """Raise an InputError for a file that is no text, by its first bytes."""
    if not is_binary(head):
        return
    error = unread_file_error(head, path, table, EXPECTED_FORMATS[table])
    if error is not None:
        raise error


def generated_queries_error(path: str | Path, table: Table) -> InputError:
    """Return the error of generated queries in place of topics, qrels or training data."""
    hint = f"convert them: denserk convert {_shell_path(path)} {GENERATED_TARGETS[table]}"
    return InputError(path, None, "passages with queries of `denserk generate`", table, hint)


def _unread_csv(head: bytes, path: str | Path, table: Table) -> UnreadFile | None:
    """Return what text is whose first line has no tab and several columns between commas."""
    line = files.first_line(head[: 1 << 16]).decode("utf-8", "replace")
    if "\t" in line or table is Table.CORPUS:
        return None
    rows = _comma_rows(head)
    if len(rows) < 2 or len(rows[0]) < 2:
        return None
    header = rows[0]
    is_named_csv = Path(path).name.lower().removesuffix(".gz").endswith(".csv")
    if not is_named_csv and not any(column_of(name, table) for name in header):
        return None
    return UnreadFile("columns between commas (CSV)", _conversion_hint(TSV_OF_CSV, path, table))


def numbering_hint(path: str | Path, table: Table) -> str:
    """Return a command that makes a corpus or queries of plain text: each line gets a number."""
    purpose = "if each line is a query, number them"
    if table is Table.CORPUS:
        purpose = (
            "if each line is a passage, number them (a folder of .txt files is read as documents)"
        )
    return _conversion_hint(TSV_OF_LINES, path, Table.QUERIES, purpose)


def _comma_rows(head: bytes) -> list[list[str]]:
    """Return the first rows of CSV that are whole in the beginning of a file."""
    lines = head[: 1 << 16].decode("utf-8", "replace").splitlines()[:LISTED_ROWS]
    try:
        return [row for _, row in files.read_rows(enumerate(lines, 1), "", ",", "")]
    except InputError:
        return []


def _shell_path(path: str | Path) -> str:
    """Return a path as a shell reads it; FILE stands for what came through standard input."""
    return "FILE" if str(path) == files.STREAM else shlex.quote(str(path))


def _conversion_hint(
    program: str, path: str | Path, table: Table, purpose: str = "convert it"
) -> str:
    """Return a command that converts a file by a program of one line."""
    name = _shell_path(path)
    output = CONVERTED_NAMES.get(table, "converted.tsv")
    python = f"python3 -c {shlex.quote(program)}"
    if str(path).endswith(".gz"):
        return f"{purpose}: zcat {name} | {python} /dev/stdin > {output}"
    return f"{purpose}: {python} {name} > {output}"


def unread_folder(folder: Path) -> UnreadFile | None:
    """Return what a folder without a corpus holds, if it is of files that are not read yet."""
    endings = {path.suffix.lower() for path in folder.rglob("*") if path.is_file()}
    for ending in sorted(endings):
        if ending in (*TEXT_FILES, *HTML_FILES):
            text = PLAIN_TEXT if ending in TEXT_FILES else HTML_TEXT
            program = JSON_OF_FOLDER.replace("TEXT", text).replace("ENDING", ending)
            return UnreadFile(f"*{ending} files", _conversion_hint(program, folder, Table.CORPUS))
    return unread_documents(folder, endings)


def unread_documents(folder: Path, endings: Container[str]) -> UnreadFile | None:
    """Return what files of a folder are, if their endings are those of PDF or of an office.

    The hint writes the text of each file beside it, with a command for each ending.
    """
    name = shlex.quote(str(folder))
    command_by_ending = {}
    if ".pdf" in endings:
        command_by_ending[".pdf"] = f"find {name} -iname '*.pdf' -exec pdftotext -q {{}} \\;"
    for ending, part in OFFICE_PARTS.items():
        if ending in endings:
            program = TEXTS_OF_OFFICE_DOCUMENTS.replace("PART", part).replace("ENDING", ending)
            command_by_ending[ending] = f"python3 -c {shlex.quote(program)} {name}"
    if not command_by_ending:
        return None
    patterns = " and ".join(f"*{ending}" for ending in command_by_ending)
    commands = " && ".join(command_by_ending.values())
    hint = f"convert them to text, and give the folder again: {commands}"
    return UnreadFile(f"{patterns} files", hint)


def choose_keys(records: Sequence[Mapping[str, Any]], table: Table) -> dict[str, str] | None:
    """Return which keys of records of another format most probably are denserk's; None if none is.

    The text is under a known name, or under the key with the longest texts.

    >>> choose_keys([{"doc_key": "a1", "headline": "Moon", "body_text": "a b"}], Table.CORPUS)
    {'_id': 'doc_key', 'title': 'headline', 'text': 'body_text'}
    """
    is_corpus = table is Table.CORPUS
    id_column = Column.PASSAGE_ID if is_corpus else Column.QUERY_ID
    text_column = Column.TEXT if is_corpus else Column.QUERY
    by_meaning = columns_by_meaning(records[0], table)
    id_key = by_meaning.get(id_column)
    if id_key is None:
        id_key = next(filter(is_id_name, records[0]), None)
    lengths = _text_lengths(records)
    if id_key is not None:
        lengths.pop(id_key, None)
    if not lengths:
        return None
    title_key = by_meaning.get(Column.TITLE)
    text_key = by_meaning.get(text_column)
    if text_key not in lengths:
        text_key = _longest_key(lengths, title_key)
    keys = {}
    if id_key is not None:
        keys["_id"] = id_key
    if title_key is not None and title_key in lengths and title_key != text_key:
        keys["title"] = title_key
    # queries without ids are questions, which denserk numbers
    text_name = "text" if is_corpus or id_key is not None else "question"
    keys[text_name] = text_key
    return keys


def _longest_key(lengths: Mapping[str, int], title_key: str | None) -> str:
    """Return the key with the longest texts: that of the title only if it is alone."""
    longest_first = sorted(lengths, key=lambda key: lengths[key], reverse=True)
    if longest_first[0] == title_key and len(longest_first) > 1:
        return longest_first[1]
    return longest_first[0]


def _text_lengths(records: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return the number of characters under each key with texts, over all records."""
    lengths: dict[str, int] = {}
    for record in records:
        for key, value in record.items():
            if isinstance(value, str):
                lengths[key] = lengths.get(key, 0) + len(value)
    return lengths


def is_id_name(name: str) -> bool:
    """Return whether a key is probably that of an id: doc_key, uid, number, url."""
    return re.search(r"(id|key|no|num|number|url|uri)$", plain_name(name)) is not None


def renaming_hint(record: Mapping[str, Any], path: str | Path, table: Table) -> str | None:
    """Return a command of jq that renames the keys of JSON lines, or of an array.

    None for other sources, and for records without a text.
    """
    keys = choose_keys([record], table)
    if keys is None or not Path(path).is_file() or Path(path).suffix == ".parquet":
        return None
    with files.open_ahead(path, 1 << 10) as (head, _):
        is_array = head.lstrip().startswith(b"[")
    pairs = [f"{key}: {_jq_path(name)}" for key, name in keys.items()]
    program = f"{{{', '.join(pairs)}}}"
    if is_array:
        program = f".[] | {program}"
    return f"rename the keys: {_jq_command(program, path)} > converted.jsonl"


def unpacking_hint(record: Mapping[str, Any], path: str | Path) -> str | None:
    """Return a command of jq that writes the records which are in a list inside of a record.

    None for a record without such a list.
    """
    for key, value in record.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            command = _jq_command(f"{_jq_path(key)}[]", path)
            return f"if the records are those of {json.dumps(key)}: {command} > converted.jsonl"
    return None


def _jq_command(program: str, path: str | Path) -> str:
    """Return a command that applies a program of jq to a file, perhaps compressed."""
    if str(path).endswith(".gz"):
        return f"zcat {_shell_path(path)} | jq -c {shlex.quote(program)}"
    return f"jq -c {shlex.quote(program)} {_shell_path(path)}"


def _jq_path(key: str) -> str:
    """Return a key as a program of jq names it."""
    if re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", key):
        return f".{key}"
    return f".[{json.dumps(key)}]"
