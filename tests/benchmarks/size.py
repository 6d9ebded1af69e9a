"""How large denserk is: lines by folder, options, help texts, words of documentation.

`python -m tests.benchmarks.size` reads the checkout that it lies in and prints tab-separated lines.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

ROOT = Path(__file__).parents[2]
LARGEST = 10


def lines_of(path: Path) -> int:
    """The lines of a file."""
    return path.read_bytes().count(b"\n")


def modules(folder: str) -> dict[Path, int]:
    """Module below a folder of the checkout -> its lines."""
    return {path.relative_to(ROOT): lines_of(path) for path in (ROOT / folder).rglob("*.py")}


def by_folder(sizes: Mapping[Path, int]) -> dict[str, tuple[int, int]]:
    """Folder, two levels deep at most -> its modules and lines."""
    count: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for path, lines in sizes.items():
        folder = "/".join(path.parts[:-1][:2]) + "/"
        count[folder] += 1
        total[folder] += lines
    return {folder: (count[folder], total[folder]) for folder in sorted(total)}


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


def words(paths: list[Path]) -> int:
    """Words as `wc -w` counts them."""
    return sum(len(path.read_text("utf-8").split()) for path in paths)


def main() -> None:
    """Print the sizes."""
    package, tests = modules("denserk"), modules("tests")
    for what, sizes in (("denserk", package), ("tests", tests)):
        print(f"{what}\t{sum(sizes.values()):,} lines\t{len(sizes)} modules")
        for folder, (count, total) in by_folder(sizes).items():
            print(f"  {folder}\t{total:,} lines\t{count} modules")
    found = dict(commands())
    per_command = {name: options(command) for name, command in found.items()}
    print(f"options\t{len(set().union(*per_command.values()))} in {len(found)} commands")
    for name, command in found.items():
        lines = help_lines(name, command)
        print(f"  {name}\t{len(per_command[name])} options\t{lines} lines of help")
    pages = sorted((ROOT / "docs").rglob("*.md"))
    print(f"documentation\t{words([ROOT / 'README.md', *pages]):,} words\t{len(pages) + 1} pages")
    print(f"the {LARGEST} largest modules of denserk/")
    for path, lines in sorted(package.items(), key=lambda item: -item[1])[:LARGEST]:
        print(f"  {path}\t{lines:,} lines")


if __name__ == "__main__":
    main()
