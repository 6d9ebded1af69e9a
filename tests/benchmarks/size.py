"""How large denserk is: lines by folder, options, help texts, words of documentation.

`python -m tests.benchmarks.size` reads the checkout that it lies in and prints tab-separated lines.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

ROOT = Path(__file__).parents[2]
LARGEST = 10


def commands() -> Iterator[tuple[str, Any]]:
    """Every command and sub-command that takes options of its own, by what one types."""
    from denserk.commands.app import app, register

    register()
    waiting = list(getattr(typer.main.get_command(app), "commands", {}).items())
    for name, command in waiting:
        inner = getattr(command, "commands", None)
        if inner is None:
            yield name, command
        else:
            waiting += [(f"{name} {word}", each) for word, each in inner.items()]


def options(command: Any) -> set[str]:
    """The first long name of each option; those of the help are not among them."""
    names = (next((o for o in each.opts if o[:2] == "--"), None) for each in command.params)
    return {name for name in names if name} - {"--help-all"}


def help_lines(name: str, command: Any) -> int:
    """How long the help of a command is at 100 columns."""
    context = command.make_context(name, [], resilient_parsing=True)
    context.terminal_width = 98  # what typer uses on a terminal of 100 columns
    return len(command.get_help(context).splitlines())


def main() -> None:
    """Print the sizes."""
    largest: list[tuple[Path, int]] = []
    for top in ("denserk", "tests"):
        modules = {path: path.read_bytes().count(b"\n") for path in (ROOT / top).rglob("*.py")}
        print(f"{top}\t{sum(modules.values()):,} lines\t{len(modules)} modules")
        folders: dict[str, list[int]] = {}
        for path, lines in sorted(modules.items()):
            folder = "/".join(path.relative_to(ROOT).parts[:-1][:2])
            folders.setdefault(folder, []).append(lines)
        for folder, counts in folders.items():
            print(f"  {folder}/\t{sum(counts):,} lines\t{len(counts)} modules")
        largest = largest or sorted(modules.items(), key=lambda item: -item[1])[:LARGEST]
    found = {name: (options(command), command) for name, command in commands()}
    every = set().union(*(own for own, _ in found.values()))
    print(f"options\t{len(every)} in {len(found)} commands")
    for name, (own, command) in found.items():
        print(f"  {name}\t{len(own)} options\t{help_lines(name, command)} lines of help")
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    words = sum(len(page.read_text("utf-8").split()) for page in pages)
    print(f"documentation\t{words:,} words\t{len(pages)} pages")
    print(f"the {LARGEST} largest modules of denserk/")
    for path, lines in largest:
        print(f"  {path.relative_to(ROOT)}\t{lines:,} lines")


if __name__ == "__main__":
    main()
