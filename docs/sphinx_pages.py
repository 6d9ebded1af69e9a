"""An extension of Sphinx: pages from outside docs/, notebooks, and the options of commands."""

import json
import posixpath
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.application import Sphinx

from denserk.commands.app import app, register
from denserk.commands.help_pages import ALL_OPTIONS

ROOT = Path(__file__).parents[1]
INCLUDED = re.compile(r"<!-- the text of (?P<name>\S+) -->")
# a page that is shown in another page stands between four backticks and stays as it is
OPTIONS = re.compile(r"^````.*?^````$|<!-- options: (?P<words>.+?) -->", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#)(?P<target>[^)\s]+)\)")
CODE_OR_TEXT = re.compile(r"(?P<code>`[^`]*`)|(?P<text>[^`]+)")
PUNCTUATION = re.compile(r"([\\*_{}\[\]<>#|~$&])")
BLOCK_MARK = re.compile(r"^```(?P<language>\w+) \w+$", re.MULTILINE)  # such as "sh network"
STYLES = re.compile(r' border="1" class="dataframe"|<style.*?</style>', re.DOTALL)
PAGES = {"CHANGELOG.md": "changes.md", "README.md": "index.md"}  # that show a file of the root

Record = tuple[str, str]  # the spellings of an option, and its help text


# Options of commands


class Sections:
    """A formatter to which a command writes its help: the records of options by section."""

    def __init__(self) -> None:
        self.records: dict[str, list[Record]] = {}
        self._title = ""

    @contextmanager
    def section(self, title: str) -> Iterator[None]:
        """Collect the records of a section."""
        self._title = title
        yield

    def write_dl(self, rows: Iterable[Record], **_: Any) -> None:
        """Collect spellings and help texts."""
        records = [row for row in rows if not row[0].startswith("--help")]
        self.records.setdefault(self._title, []).extend(records)


def sections_of(command: Any, name: str, all_options: bool) -> dict[str, list[Record]]:
    """Return what a help page of a command lists, by the titles of its sections."""
    context = command.make_context(name, [], resilient_parsing=True)
    if all_options:
        context.meta[ALL_OPTIONS] = True
    sections = Sections()
    command.format_options(context, sections)
    return sections.records


def option_pages(words: list[str]) -> str:
    """Return Markdown of a command's options, each with an anchor: first the common ones.

    A group of commands has a heading for each of them.
    """
    register()
    command: Any = typer.main.get_command(app)
    for word in words:
        command = command.commands[word]
    inner_commands = getattr(command, "commands", None)
    if inner_commands is not None:
        return "\n\n".join(option_pages([*words, name]) for name in inner_commands)
    name = " ".join(words)
    common = sections_of(command, name, all_options=False)
    shown_names = {first_name(record) for records in common.values() for record in records}
    parts = [f"## Options of {name}", program(name)]
    for title, records in common.items():
        if title != "Options":
            parts.append(f"### {title} of {name}")
        parts.extend(option(record) for record in records)
    for title, records in sections_of(command, name, all_options=True).items():
        rare = [record for record in records if first_name(record) not in shown_names]
        if rare:
            heading = "More options" if title == "Options" else title
            parts.append(f"### {heading} of {name}")
            parts.extend(option(record) for record in rare)
    return "\n\n".join(parts)


def first_name(record: Record) -> str:
    """Return the first long name of an option, or what stands in its place."""
    names = re.split(r"[ ,]+", record[0])
    long_names = [name for name in names if name.startswith("--")]
    return (long_names or names)[0]


def program(name: str) -> str:
    """Return the directive that begins the options of a command."""
    return f"```{{program}} denserk {name}\n```"


def option(record: Record) -> str:
    """Return the directive of an option."""
    names, text = record
    return f"```{{option}} {names}\n{escaped(text)}\n```"


def escaped(text: str) -> str:
    """Return Markdown that shows a text as it is, apart from code between backticks."""
    parts = []
    for found in CODE_OR_TEXT.finditer(text):
        if found["code"]:
            parts.append(found["code"])
        else:
            parts.append(PUNCTUATION.sub(r"\\\1", found["text"]))
    return "".join(parts)


# Files from outside docs/


def text_of(name: str) -> str:
    """Return the text of a file of the repository's root, with links as they are from docs/."""

    def link(found: re.Match[str]) -> str:
        path, mark, anchor = found["target"].partition("#")
        target = PAGES.get(path) or posixpath.relpath(path, "docs")
        return f"]({target}{mark}{anchor})"

    return LINK.sub(link, (ROOT / name).read_text("utf-8"))


# Notebooks


def notebook_page(notebook: str) -> str:
    """Return a notebook, with its outputs, as Markdown."""
    parts = []
    for cell in json.loads(notebook)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        else:
            parts.append(f"```python\n{source}\n```")
        parts.extend(output_block(output) for output in cell.get("outputs", ()))
    return "\n\n".join(parts) + "\n"


def output_block(output: dict[str, Any]) -> str:
    """Return an output of a cell as Markdown: a table as HTML, without styles of its own."""
    data = output.get("data", {"text/plain": output.get("text", "")})
    if "text/html" in data:
        return STYLES.sub("", "".join(data["text/html"]))
    return f"```text\n{''.join(data['text/plain']).rstrip()}\n```"


class NotebookParser(MystParser):
    """A parser of notebooks."""

    supported = ("notebook",)

    def parse(self, inputstring: str, document: Any) -> None:
        """Parse the text of a notebook's file."""
        super().parse(notebook_page(inputstring), document)


def fill_in(sphinx: Sphinx, page: str, source: list[str]) -> None:
    """Fill in the options of commands and files of the root; take the marks from code blocks."""

    def included(found: re.Match[str]) -> str:
        name = found["name"]
        sphinx.env.note_dependency(ROOT / name, docname=page)
        return text_of(name)

    def options(found: re.Match[str]) -> str:
        if found["words"] is None:
            return found[0]
        return option_pages(found["words"].split())

    text = INCLUDED.sub(included, source[0])
    text = OPTIONS.sub(options, text)
    source[0] = BLOCK_MARK.sub(r"```\g<language>", text)


def setup(sphinx: Sphinx) -> dict[str, bool]:
    """Connect the extension; Sphinx calls this."""
    sphinx.add_source_suffix(".ipynb", "notebook")
    sphinx.add_source_parser(NotebookParser)
    sphinx.connect("source-read", fill_in)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
