"""Hooks of mkdocs: option tables, the notebook and the changes as pages, links out of the site."""

import json
import posixpath
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any

import typer
from mkdocs.structure.files import File

from denserk.commands.app import app, register
from denserk.commands.help_pages import ALL_OPTIONS

ROOT = Path(__file__).parents[1]
ADDED = {"README.md": "overview.md", "CHANGELOG.md": "changes.md"}  # pages from outside docs/


class Table:
    """A formatter that a command writes its help to: one table, a line of heading per section."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    @contextmanager
    def section(self, title: str) -> Iterator[None]:
        """Write a heading."""
        self.lines.append(f'<tr><th colspan="2">{escape(title)}</th></tr>')
        yield

    def write_dl(self, rows: list[tuple[str, str]], **_: Any) -> None:
        """Write names and texts."""
        for name, text in rows:
            if not name.startswith("--help"):
                cells = f"<code>{escape(name)}</code></td><td>{escape(text)}"
                self.lines.append(f"<tr><td>{cells}</td></tr>")

    def __str__(self) -> str:
        return "\n".join(("<table>", *self.lines, "</table>"))


def option_tables(words: list[str]) -> str:
    """Write the common options of a command, then all of them and its settings."""
    register()
    command: Any = typer.main.get_command(app)
    for word in words:
        command = command.commands[word]
    if inner := getattr(command, "commands", None):
        parts = ((name, option_tables([*words, name])) for name in inner)
        return "\n\n".join(f"### Options of {name}\n\n{text}" for name, text in parts)
    common, every = Table(), Table()
    context = command.make_context(" ".join(words), [], resilient_parsing=True)
    command.format_options(context, common)
    context.meta[ALL_OPTIONS] = True
    command.format_options(context, every)
    if common.lines == every.lines:
        return str(common)
    return f"{common}\n<details><summary>All options and settings</summary>\n{every}\n</details>"


def notebook_page(path: Path) -> str:
    """Write a notebook as Markdown."""
    parts = []
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {"text/plain": output.get("text", "")})
            if "text/html" in data:
                html = "".join(data["text/html"])  # with the site's styles
                parts.append(
                    re.sub(r' border="1" class="dataframe"|(?s:<style.*?</style>)', "", html)
                )
            else:
                parts.append(f"```text\n{''.join(data['text/plain']).rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def on_config(config: Any) -> None:
    """Make anchors as repositories show them."""
    config.mdx_configs["toc"]["slugify"] = lambda head, _: re.sub(
        r"[^\w\- ]", "", head.strip().lower()
    ).replace(" ", "-")


def on_files(files: Any, config: Any) -> None:
    """Add the README, the changes and the notebook as pages."""
    texts = {page: (ROOT / name).read_text("utf-8") for name, page in ADDED.items()}
    for notebook in ROOT.glob("docs/*.ipynb"):
        files.remove(files.get_file_from_path(notebook.name))
        texts[f"{notebook.stem}.md"] = notebook_page(notebook)
    for page, text in texts.items():
        files.append(File.generated(config, page, content=text))


def on_page_markdown(markdown: str, page: Any, files: Any, **_: Any) -> str:
    """Fill in option tables and take the marks from blocks; a link to no page becomes its text."""
    folder = posixpath.dirname(page.file.src_uri)
    base = "" if page.file.src_uri in ADDED.values() else posixpath.join("docs", folder)

    def link(found: re.Match[str]) -> str:
        path, mark, anchor = found[2].partition("#")
        target = posixpath.normpath(posixpath.join(base, path)).replace(".ipynb", ".md")
        target = ADDED.get(target, posixpath.relpath(target, "docs"))
        file = files.get_file_from_path(target)
        if file is None or file.inclusion.is_excluded():
            return found[1].strip("![]")
        return f"{found[1]}({posixpath.relpath(target, folder or '.')}{mark}{anchor})"

    def options(found: re.Match[str]) -> str:
        words = found["words"]
        return found[0] if words is None else option_tables(words.split())

    markdown = re.sub(r"(?m)^```(\w+) \w+$", r"```\1", markdown)  # such as "sh network"
    markdown = re.sub(r"(!?\[[^][]*\])\((?!https?:|#)([^)\s]+)\)", link, markdown)
    # a page that is shown in another page, between four backticks, stays as it is
    return re.sub(r"(?ms)^````.*?^````$|<!-- options: (?P<words>.+?) -->", options, markdown)
