"""How large denserk is: lines by folder, options, words of documentation.

`python -m tests.benchmarks.size` reads the checkout that it lies in and prints tab-separated lines.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

ROOT = Path(__file__).parents[2]


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


def main() -> None:
    """Print the sizes."""
    for top in ("denserk", "tests"):
        modules = {path: path.read_bytes().count(b"\n") for path in (ROOT / top).rglob("*.py")}
        print(f"{top}\t{sum(modules.values()):,} lines\t{len(modules)} modules")
        folders: dict[str, list[int]] = {}
        for path, lines in sorted(modules.items()):
            folder = "/".join(path.relative_to(ROOT).parts[:-1][:2])
            folders.setdefault(folder, []).append(lines)
        for folder, counts in folders.items():
            print(f"  {folder}/\t{sum(counts):,} lines\t{len(counts)} modules")
    found = {name: options(command) for name, command in commands()}
    every = set().union(*found.values())
    print(f"options\t{len(every)} in {len(found)} commands")
    for name, own in found.items():
        print(f"  {name}\t{len(own)} options")
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    words = sum(len(page.read_text("utf-8").split()) for page in pages)
    print(f"documentation\t{words:,} words\t{len(pages)} pages")


if __name__ == "__main__":
    main()
