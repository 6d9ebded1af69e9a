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
COPIED = ("denserk", "docs", "tests", ".mkdocs.yml", "CHANGELOG.md", "README.md", "pyproject.toml")
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
    found = []
    end_of_last_block = 0
    for block in BLOCK.finditer(text):
        paragraphs = text[end_of_last_block : block.start()].strip().split("\n\n")
        sentence = " ".join(paragraphs[-1].split())
        found.append(snippet(block["code"], block["language"], sentence))
        end_of_last_block = block.end()
    return found


def snippet(code: str, language: str, sentence: str) -> Snippet:
    """Return a block with the place that the sentence before it names."""
    for place, pattern in PLACES.items():
        if match := pattern.search(sentence):
            names = match.groupdict()
            return Snippet(code, language, place, names["file"], names.get("line", ""))
    assert not sentence.endswith(":"), f"docs/extending.md: no place in {sentence!r}"
    return Snippet(code, language)


def put(part: Snippet, folder: Path) -> None:
    """Write a block into its file."""
    path = folder / part.file
    if part.place == "new file":
        assert not path.exists(), f"docs/extending.md: {part.file} is not new"
        path.write_text(part.code)
        return
    text = path.read_text("utf-8")
    if part.place == "end":
        path.write_text(f"{text}\n\n{part.code}")
        return
    lines = text.splitlines(keepends=True)
    numbers = [i for i, line in enumerate(lines) if line.strip().startswith(part.line)]
    assert len(numbers) == 1, (
        f"docs/extending.md: {len(numbers)} lines of {part.file} begin with {part.line!r}"
    )
    number = numbers[0]
    start = number + 1 if part.place == "below" else number
    end = number if part.place == "above" else number + 1
    lines[start:end] = [part.code]
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
    for name, module in (("python", ""), ("denserk", "-m denserk"), ("mkdocs", "-m mkdocs")):
        (commands / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        (commands / name).chmod(0o755)
    path = f"{commands}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "PYTHONPATH": str(clone), "CUDA_VISIBLE_DEVICES": ""}


def run(command, folder, environment):
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("title", SECTIONS)
def test_every_block_has_its_place(title, tmp_path):
    for part in SECTIONS[title]:
        if part.place is None:
            continue
        copy = tmp_path / part.file
        copy.parent.mkdir(parents=True, exist_ok=True)
        if part.place != "new file" and not copy.exists():
            shutil.copy(ROOT / part.file, copy)
        put(part, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("title", SECTIONS)
def test_an_example_works(title, clone, environment):
    written = []
    for part in [*snippets(INTRODUCTION), *SECTIONS[title]]:
        if part.place:
            put(part, clone)
            written.append(part.file)
        elif part.language == "python":
            run(["python", "-c", part.code], clone, environment)
        else:
            assert part.language == "sh"
            if "mkdocs" in part.code:
                pytest.importorskip("mkdocs")
            run(["bash", "-euo", "pipefail", "-c", part.code], clone, environment)
    if shutil.which("ruff") and (modules := [name for name in written if name.endswith(".py")]):
        run(["ruff", "format", "--quiet", *modules], clone, environment)
        run(["ruff", "check", "--quiet", *modules], clone, environment)
