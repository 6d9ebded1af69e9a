"""What docs/extending.md shows is so: every example goes into a copy of the package, and works.

The page is read as a person reads it. A block goes where the sentence before it says, if that
sentence ends with a colon and names a place; any other block is run, and nothing else.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
COPIED = ("denserk", "docs", "tests", "CHANGELOG.md", "README.md", "pyproject.toml")
TITLE = re.compile(r"^## (.*)$", re.MULTILINE)
BLOCK = re.compile(r"^(?P<fence>```+)(?P<language>\w+)\n(?P<code>.*?)^(?P=fence)$", re.M | re.S)
PLACES = {
    "new file": re.compile(r"new file `(?P<file>[^`]+)`:$"),
    "end": re.compile(r"[Aa]t the end of `(?P<file>[^`]+)`:$"),
    "above": re.compile(r"[Ii]n `(?P<file>[^`]+)` above `(?P<line>[^`]+)`:$"),
    "below": re.compile(r"[Ii]n `(?P<file>[^`]+)` below `(?P<line>[^`]+)`:$"),
    "in place of": re.compile(r"[Ii]n `(?P<file>[^`]+)` in place of `(?P<line>[^`]+)`:$"),
}


class Snippet(NamedTuple):
    """A block, and where it goes."""

    code: str
    language: str
    place: str | None = None  # a key of PLACES; None: the block is run
    file: str = ""
    line: str = ""  # the beginning of a line of the file


def snippets(text: str) -> list[Snippet]:
    """Return the blocks of a section in order."""
    blocks = []
    end_of_last_block = 0
    for block in BLOCK.finditer(text):
        paragraphs = text[end_of_last_block : block.start()].strip().split("\n\n")
        sentence = " ".join(paragraphs[-1].split())
        blocks.append(read_snippet(block["code"], block["language"], sentence))
        end_of_last_block = block.end()
    return blocks


def read_snippet(code: str, language: str, sentence: str) -> Snippet:
    """Return a block with the place that the sentence before it names."""
    for place, pattern in PLACES.items():
        match = pattern.search(sentence)
        if match:
            names = match.groupdict()
            return Snippet(code, language, place, names["file"], names.get("line", ""))
    assert not sentence.endswith(":"), f"docs/extending.md: no place in {sentence!r}"
    return Snippet(code, language)


def put(snippet: Snippet, folder: Path) -> None:
    """Write a block into its file."""
    path = folder / snippet.file
    if snippet.place == "new file":
        assert not path.exists(), f"docs/extending.md: {snippet.file} is not new"
        path.write_text(snippet.code)
        return
    text = path.read_text("utf-8")
    if snippet.place == "end":
        path.write_text(f"{text}\n\n{snippet.code}")
        return
    lines = text.splitlines(keepends=True)
    numbers = [number for number, line in enumerate(lines) if line.strip().startswith(snippet.line)]
    assert len(numbers) == 1, (
        f"docs/extending.md: {len(numbers)} lines of {snippet.file} begin with {snippet.line!r}"
    )
    number = numbers[0]
    if snippet.place == "above":
        lines.insert(number, snippet.code)
    elif snippet.place == "below":
        lines.insert(number + 1, snippet.code)
    else:
        lines[number] = snippet.code
    path.write_text("".join(lines))


INTRODUCTION, *PARTS = TITLE.split((ROOT / "docs/extending.md").read_text("utf-8"))
SECTIONS = {title: snippets(text) for title, text in zip(PARTS[::2], PARTS[1::2], strict=True)}


@pytest.fixture
def clone(tmp_path):
    """A copy of the repository without its largest files."""
    folder = tmp_path / "clone"
    folder.mkdir()
    for name in COPIED:
        if (ROOT / name).is_file():
            shutil.copy(ROOT / name, folder / name)
        else:
            ignored = shutil.ignore_patterns("__pycache__", "old_folders")
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    return folder


@pytest.fixture
def environment(clone, tmp_path):
    """Variables with which commands are those of the clone."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, module in (("python", ""), ("denserk", "-m denserk"), ("sphinx-build", "-m sphinx")):
        (commands / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        (commands / name).chmod(0o755)
    path = f"{commands}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "PYTHONPATH": str(clone), "CUDA_VISIBLE_DEVICES": ""}


def run(command, folder, environment):
    process = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr


@pytest.mark.parametrize("title", SECTIONS)
def test_every_block_has_its_place(title, tmp_path):
    for snippet in SECTIONS[title]:
        if snippet.place is None:
            continue
        copy = tmp_path / snippet.file
        copy.parent.mkdir(parents=True, exist_ok=True)
        if snippet.place != "new file" and not copy.exists():
            shutil.copy(ROOT / snippet.file, copy)
        put(snippet, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("title", SECTIONS)
def test_an_example_works(title, clone, environment):
    changed_files = []
    for snippet in [*snippets(INTRODUCTION), *SECTIONS[title]]:
        if snippet.place:
            put(snippet, clone)
            changed_files.append(snippet.file)
        elif snippet.language == "python":
            run(["python", "-c", snippet.code], clone, environment)
        else:
            assert snippet.language == "sh"
            if "sphinx-build" in snippet.code:
                pytest.importorskip("sphinx")
            run(["bash", "-euo", "pipefail", "-c", snippet.code], clone, environment)
    modules = [name for name in changed_files if name.endswith(".py")]
    if modules and shutil.which("ruff"):
        run(["ruff", "format", "--quiet", *modules], clone, environment)
        run(["ruff", "check", "--quiet", *modules], clone, environment)
