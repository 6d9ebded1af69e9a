"""What README.md and docs/ say is so: commands parse, links lead somewhere, pages are listed."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from denserk.cli.app import app, register

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
TWO_COMMANDS = ("bash docs/quickstart.sh", "bash tests/run.sh")


def shown(page):
    """The lines of a page's shell blocks, continued lines joined."""
    text = page.read_text("utf-8")
    blocks = re.findall(r"^```(?:sh)?\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [line.strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()]


def commands(page):
    """The arguments of every denserk command on a page, each part of a pipeline on its own."""
    for line in shown(page):
        if not re.search(r"(?:^|[|&] )(?:\$ )?denserk ", line):
            continue
        words = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars="|&;<>")
        words.whitespace_split = True
        part: list[str] = []
        for word in [*words, "|"]:
            if set(word) <= set("|&;<>"):
                if part[:1] == ["denserk"]:
                    yield part[1:]
                part = []
            else:
                part.append(word)


SHOWN = [
    pytest.param(arguments, id=f"{page.relative_to(ROOT)}: {' '.join(arguments)}")
    for page in PAGES
    for arguments in commands(page)
]


def parse(arguments):
    """Has the command line read a command, and run nothing."""
    register()
    denserk = typer.main.get_group(app)
    with denserk.make_context("denserk", list(arguments)) as context:
        name, command, rest = denserk.resolve_command(context, list(arguments))
        assert command
        command.make_context(name, rest, parent=context)


@pytest.mark.parametrize("arguments", SHOWN)
def test_shown_commands_parse(arguments, capsys):
    parse(arguments)


def test_the_readme_shows_commands():
    assert len(list(commands(ROOT / "README.md"))) > 5


def test_the_readme_opens_with_the_two_commands():
    assert [line for line in shown(ROOT / "README.md") if line.startswith("bash ")][:2] == [
        *TWO_COMMANDS
    ]


@pytest.mark.parametrize("command", TWO_COMMANDS)
def test_the_two_commands_are_what_ci_runs(command):
    assert (ROOT / command.split()[1]).is_file()
    assert command in (ROOT / ".ci" / "run").read_text()


def anchors(page):
    """The anchors of a page's headings, as they are made of their words."""
    heads = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text("utf-8"))
    broken = [
        f"{path}#{anchor}"
        for path, anchor in links
        if not (target := page.parent / path if path else page).exists()
        or (anchor and anchor not in anchors(target))
    ]
    assert not broken


def test_every_page_is_listed():
    index = (ROOT / "docs" / "README.md").read_text("utf-8")
    pages = {str(page.relative_to(ROOT / "docs")) for page in PAGES[2:]} - {"README.md"}
    assert pages <= set(re.findall(r"\]\(([^)#]+)", index))
