"""Files that denserk does not read yet: what they are, and a command that converts them."""

import shlex
from collections.abc import Container, Sequence
from pathlib import Path
from string import Template
from typing import NamedTuple

from denserk.errors import InputError
from denserk.io import delimited, files
from denserk.io.column_names import Table, column_of


class UnreadFile(NamedTuple):
    """A file of a format that denserk does not read yet: what it is, and a command that helps."""

    description: str
    hint: str

    def error(self, path: str | Path, line: int | None, expected: str) -> InputError:
        """Return the error of a reader that expected something else."""
        found = f"{self.description}, which denserk does not read yet"
        return InputError(path, line, found, expected, self.hint)


class BinaryFormat(NamedTuple):
    """A format of files that are no text, known by the bytes at an offset.

    The hint is a template: `$file` is the path, `$plain` the path without the ending of its name.
    """

    signature: bytes
    description: str
    hint: str
    ending: str = ""
    offset: int = 0

    def matches(self, head: bytes) -> bool:
        """Return whether a file that begins with these bytes has the format."""
        return head.startswith(self.signature, self.offset)

    def unread_file(self, path: str | Path) -> UnreadFile:
        """Return what a file of this format is."""
        if str(path) == files.STREAM:
            return UnreadFile(
                self.description, "convert it first, or give the file: see its message"
            )
        plain_path = str(path).removesuffix(self.ending)
        if plain_path == str(path):  # the command would read and write one file
            plain_path += ".txt"
        hint = Template(self.hint).substitute(
            file=files.shell_path(path), plain=shlex.quote(plain_path)
        )
        return UnreadFile(self.description, hint)


# Programs of one line that convert a file, for `python3 -c`: they use Python alone, and a user
# copies them from a message. A statement `for` would need a second line.
TSV_OF_CSV = (
    "import csv, sys; "
    r'[print("\t".join(" ".join(cell.split()) for cell in row)) '
    'for row in csv.reader(open(sys.argv[1], newline="", encoding="utf-8-sig"), '
    'delimiter="DELIMITER")]'
)
TSV_OF_LINES = (
    "import sys; "
    r'[print(number, " ".join(line.split()), sep="\t") '
    'for number, line in enumerate(open(sys.argv[1], encoding="utf-8"), 1) if line.strip()]'
)
# a program of awk: the first term of a line, a tab, and the rest
ID_AND_TEXT = r'{id = $1; sub(/^ *[^ ]+ +/, ""); print id "\t" $0}'
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
    'for path in sorted(folder.rglob("*")) if path.suffix.lower() in ENDINGS]'
)
# writes page.html.txt beside each page.html of a folder
TEXTS_OF_FILES = (
    "import html, pathlib, re, sys, zipfile; "
    '[path.with_name(path.name + ".txt").write_text(TEXT, encoding="utf-8") '
    'for path in pathlib.Path(sys.argv[1]).rglob("*") if path.suffix.lower() in ENDINGS]'
)
# the part of an office document that holds its text, by the ending of its name
OFFICE_PARTS = {".docx": "word/document.xml", ".odt": "content.xml"}
SPREADSHEETS = (".xlsx", ".xlsm", ".ods")
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
TO_PARQUET = (
    "import pyarrow, pyarrow.parquet, sys; "
    'pyarrow.parquet.write_table(pyarrow.ipc.OPEN(sys.argv[1]).read_all(), "converted.parquet")'
)
ARROW_FILE_TO_PARQUET = TO_PARQUET.replace("OPEN", "open_file")
ARROW_STREAM_TO_PARQUET = TO_PARQUET.replace("OPEN", "open_stream")
UNPACK = "unpack it, and give the file or folder that was in it"
SAVE_AS_TEXT = "save it as text; a table as CSV"
ZIP = b"PK\x03\x04"
BINARY_FORMATS = (
    BinaryFormat(
        b"%PDF",
        "a PDF",
        "convert its pages: "
        f"pdftotext -q $file - | python3 -c {shlex.quote(JSON_OF_PAGES)} > converted.jsonl",
    ),
    BinaryFormat(
        b"\x1f\x8b", "a gzip file without .gz in its name", "rename it: mv $file $file.gz"
    ),
    BinaryFormat(
        b"\x1f\x9d", "a file of `compress`", "uncompress it: gunzip < $file > $plain", ".Z"
    ),
    BinaryFormat(b"1AY&SY", "a bzip2 file", "uncompress it: bzcat $file > $plain", ".bz2", 4),
    BinaryFormat(b"\xfd7zXZ\x00", "an xz file", "uncompress it: xzcat $file > $plain", ".xz"),
    BinaryFormat(
        b"\x28\xb5\x2f\xfd", "a zstd file", "uncompress it: zstd -dc $file > $plain", ".zst"
    ),
    BinaryFormat(
        b"\x04\x22\x4d\x18", "an lz4 file", "uncompress it: lz4 -dc $file > $plain", ".lz4"
    ),
    BinaryFormat(b"7z\xbc\xaf\x27\x1c", "a 7z archive", UNPACK),
    BinaryFormat(b"Rar!\x1a\x07", "a rar archive", UNPACK),
    BinaryFormat(b"ustar", "a tar archive", f"{UNPACK}: tar -xf $file", offset=257),
    BinaryFormat(
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an office document (.doc, .xls)", SAVE_AS_TEXT
    ),
    BinaryFormat(
        b"PAR1\x15", "Parquet without .parquet in its name", "rename it: mv $file $file.parquet"
    ),
    BinaryFormat(
        b"ARROW1\x00\x00",
        "an Arrow file",
        f"convert it: python3 -c {shlex.quote(ARROW_FILE_TO_PARQUET)} $file",
    ),
    BinaryFormat(
        b"\xff\xff\xff\xff",
        "an Arrow stream",
        "of a data set of save_to_disk give the folder; or convert it: "
        f"python3 -c {shlex.quote(ARROW_STREAM_TO_PARQUET)} $file",
    ),
    BinaryFormat(
        b"SQLite format 3\x00",
        "an SQLite database",
        "convert a table (sqlite3 $file .tables lists them): "
        "sqlite3 -json $file 'SELECT * FROM TABLE' > converted.json",
    ),
    *(
        BinaryFormat(bytes([0x80, protocol]), "a pickle", "write JSON lines from Python")
        for protocol in range(2, 6)
    ),
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
PDF_FILE = ".pdf"
DOCUMENT_ENDINGS = frozenset((PDF_FILE, *OFFICE_PARTS, *TEXT_FILES, *HTML_FILES))
LISTED_ROWS = 20  # of a file, by which the column with its texts is chosen


def unread_file(head: bytes, path: str | Path, table: Table) -> UnreadFile | None:
    """Return what a file is that begins with these bytes, if it is of a format that is not read.

    For readers that did not recognise a format of their own.
    """
    for binary_format in BINARY_FORMATS:
        if binary_format.matches(head):
            return binary_format.unread_file(path)
    if head.startswith(ZIP):
        return _unread_zip(path, table)
    start = head.lstrip()[:2000].lower()
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
    if ending in SPREADSHEETS:
        return UnreadFile("a spreadsheet", "save it as CSV, in UTF-8")
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
    """Return whether a file is no text: a PDF, an archive, compressed, by its first bytes."""
    return head.startswith(ZIP) or any(
        binary_format.matches(head) for binary_format in BINARY_FORMATS
    )


def reject_binary(head: bytes, path: str | Path, table: Table) -> None:
    """Raise an InputError for a file that is no text, by its first bytes."""
    if not is_binary(head):
        return
    error = unread_file_error(head, path, table, EXPECTED_FORMATS[table])
    if error is not None:
        raise error


def generated_queries_error(path: str | Path, table: Table) -> InputError:
    """Return the error of generated queries in place of topics, qrels or training data."""
    hint = f"convert them: denserk convert {files.shell_path(path)} {GENERATED_TARGETS[table]}"
    return InputError(path, None, "passages with queries of `denserk generate`", table, hint)


def _unread_csv(head: bytes, path: str | Path, table: Table) -> UnreadFile | None:
    """Return what text is whose first line has several columns of CSV, and no tab."""
    line = files.first_line(head[: 1 << 16]).decode("utf-8", "replace")
    if "\t" in line or table is Table.CORPUS:
        return None
    is_named_csv = Path(path).name.lower().removesuffix(".gz").endswith(".csv")
    for delimiter, signs in ((",", "commas"), (";", "semicolons")):
        rows = _csv_rows(head, delimiter)
        if len(rows) < 2 or len(rows[0]) < 2:
            continue
        header = rows[0]
        if is_named_csv or any(column_of(name, table) for name in header):
            program = TSV_OF_CSV.replace("DELIMITER", delimiter)
            hint = _conversion_hint(program, path, table)
            return UnreadFile(f"columns between {signs} (CSV)", hint)
    return None


def pairs_hint(path: str | Path) -> str:
    """Return a command that makes qrels of pairs of ids, which may also be queries of one word."""
    command = f"awk '{{print $1, 0, $2, 1}}' {files.shell_path(path)} > converted.qrels"
    if str(path).endswith(".gz"):
        command = f"zcat {files.shell_path(path)} | awk '{{print $1, 0, $2, 1}}' > converted.qrels"
    return (
        "if these are queries, exchange topics and qrels; "
        f"if each line is a query and a relevant passage, give them a grade: {command}"
    )


def table_of_pipes(path: str | Path) -> UnreadFile:
    """Return what a table is whose columns stand between vertical bars."""
    program = TSV_OF_CSV.replace("DELIMITER", "|")
    return UnreadFile("columns between |", _conversion_hint(program, path, Table.QUERIES))


def numbering_hint(path: str | Path, table: Table, lines: Sequence[str]) -> str:
    """Return a command that makes a corpus or queries of plain text: each line gets a number.

    Where all of the first `lines` begin with a term that has a digit, that is the id.
    """
    if all(map(_begins_with_id, lines)):
        command = f"awk '{ID_AND_TEXT}' {files.shell_path(path)}"
        if str(path).endswith(".gz"):
            command = f"zcat {files.shell_path(path)} | awk '{ID_AND_TEXT}'"
        return f"if each line begins with an id, write a tab behind it: {command} > converted.tsv"
    purpose = "if each line is a query, number them"
    if table is Table.CORPUS:
        purpose = (
            "if each line is a passage, number them (a folder of .txt files is read as documents)"
        )
    return _conversion_hint(TSV_OF_LINES, path, Table.QUERIES, purpose)


def _begins_with_id(line: str) -> bool:
    """Return whether a line has a term with a digit, and a text behind it."""
    terms = line.split(maxsplit=1)
    return len(terms) == 2 and any(map(str.isdigit, terms[0]))


def _csv_rows(head: bytes, delimiter: str) -> list[list[str]]:
    """Return the first rows of CSV that are whole in the beginning of a file."""
    lines = head[: 1 << 16].decode("utf-8", "replace").splitlines()[:LISTED_ROWS]
    try:
        return [row for _, row in delimited.read_rows(enumerate(lines, 1), "", delimiter, "")]
    except InputError:
        return []


def _conversion_hint(
    program: str, path: str | Path, table: Table, purpose: str = "convert it"
) -> str:
    """Return a command that converts a file by a program of one line."""
    name = files.shell_path(path)
    output = CONVERTED_NAMES.get(table, "converted.tsv")
    if Path(path).name == output:
        output = f"re{output}"
    python = f"python3 -c {shlex.quote(program)}"
    if str(path).endswith(".gz"):
        return f"{purpose}: zcat {name} | {python} /dev/stdin > {output}"
    return f"{purpose}: {python} {name} > {output}"


def unread_folder(folder: Path) -> UnreadFile | None:
    """Return what a folder without a corpus holds, if it is of files that are not read yet.

    Pages of HTML, or plain texts, become one file. For files of several kinds, and documents, the
    hint is that of `unread_documents`.
    """
    endings = {path.suffix.lower() for path in folder.rglob("*") if path.is_file()}
    document_endings = endings & DOCUMENT_ENDINGS
    for family, text in ((TEXT_FILES, PLAIN_TEXT), (HTML_FILES, HTML_TEXT)):
        if document_endings and document_endings <= set(family):
            program = _program_of(JSON_OF_FOLDER, text, sorted(document_endings))
            hint = _conversion_hint(program, folder, Table.CORPUS)
            return UnreadFile(_patterns(sorted(document_endings)), hint)
    return unread_documents(folder, endings)


def unread_documents(folder: Path, endings: Container[str]) -> UnreadFile | None:
    """Return what files of a folder are, if their endings are those of documents.

    The hint writes the text of each file beside it, with a command for each family of endings.
    """
    name = shlex.quote(str(folder))
    unread_endings = []
    commands = []
    if PDF_FILE in endings:
        unread_endings.append(PDF_FILE)
        commands.append(f"find {name} -iname '*.pdf' -exec pdftotext -q {{}} \\;")
    text_by_family: dict[tuple[str, ...], str] = {
        (ending,): OFFICE_TEXT.replace("PART", part) for ending, part in OFFICE_PARTS.items()
    }
    text_by_family[HTML_FILES] = HTML_TEXT
    text_by_family[TEXT_FILES] = PLAIN_TEXT
    for family, text in text_by_family.items():
        family_endings = [ending for ending in family if ending in endings]
        if family_endings:
            unread_endings += family_endings
            program = _program_of(TEXTS_OF_FILES, text, family_endings)
            commands.append(f"python3 -c {shlex.quote(program)} {name}")
    if not commands:
        return None
    hint = f"convert them to text, and give the folder again: {' && '.join(commands)}"
    return UnreadFile(_patterns(unread_endings), hint)


def _program_of(template: str, text: str, endings: Sequence[str]) -> str:
    """Return a program that converts the files of a folder with some endings."""
    quoted = ", ".join(f'"{ending}"' for ending in endings)
    return template.replace("TEXT", text).replace("ENDINGS", f"({quoted},)")


def _patterns(endings: Sequence[str]) -> str:
    """Return files with some endings, for a message: "*.htm and *.html files"."""
    return f"{' and '.join(f'*{ending}' for ending in endings)} files"


def converted_paths(path: Path) -> tuple[Path, Path]:
    """Return the names under which the hint of `unread_documents` may write a file's text."""
    return path.with_suffix(".txt"), path.with_name(f"{path.name}.txt")
