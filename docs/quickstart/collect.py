"""Makes a collection of the documentation strings of Python's own standard library.

`python docs/quickstart/collect.py FOLDER` writes `corpus.jsonl`, `queries.tsv` and `qrels.txt`, and
`train-queries.tsv` and `train-qrels.txt`. The first line of an entry asks, the rest of it answers:
the passage is the rest alone, without a title, since the name of a function often is its first line
in other words (`shutil.rmtree`: "Recursively delete a directory tree."). The name is the passage's
id. The questions of every third module are held apart for the test, those of the others train.

The sources are parsed and never imported, in the order of their names, so that one version of
Python gives one collection.
"""

import ast
import json
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

LEFT_OUT = {"test", "tests", "site-packages", "dist-packages"}
"""Folders that are not the library's own text."""
SHORTEST_QUESTION = 4
"""Words; "Return repr(self)." asks nothing."""
SHORTEST_ANSWER = 8
"""Words; "See PEP 302." answers nothing."""
MOST_REPEATED = 0.75
"""An entry whose answer has this share of its question's words repeats itself; it is left out."""

HELD_APART = 3
"""One module in so many has its questions in the test, and none in training."""


class Entry(NamedTuple):
    """One documentation string: the dotted name it stands under, its first line, and the rest."""

    name: str
    question: str
    answer: str


def words(text: str) -> list[str]:
    """Runs of letters and digits, in lower case.

    >>> words("Return True if x < y.")
    ['return', 'true', 'if', 'x', 'y']
    """
    return re.findall(r"[a-z0-9]+", text.lower())


def repeated(question: str, answer: str) -> float:
    """The share of the question's different words that the answer has too.

    >>> repeated("Rotate left by angle", "Rotate by so many degrees")
    0.5
    """
    asked = set(words(question))
    return len(asked & set(words(answer))) / len(asked)


def documented(node: ast.Module | ast.stmt, name: str) -> Iterator[tuple[str, str]]:
    """The name and documentation string of a module, and of its classes, functions and methods."""
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return
    text = ast.get_docstring(node)
    if text:
        yield name, text
    for child in node.body:
        yield from documented(child, f"{name}.{getattr(child, 'name', '')}")


def split(name: str, text: str) -> Entry | None:
    """The question and the answer of an entry; None where it does not ask and answer."""
    question, _, rest = text.partition("\n")
    stands_alone = rest.startswith("\n") or question.rstrip().endswith((".", "?", "!"))
    answer = rest.strip()
    if not stands_alone or len(words(question)) < SHORTEST_QUESTION:
        return None
    if len(words(answer)) < SHORTEST_ANSWER or repeated(question, answer) >= MOST_REPEATED:
        return None
    return Entry(name, " ".join(question.split()), answer)


def entries(library: Path) -> Iterator[Entry]:
    """The usable entries of a library, by file; of equal answers the first."""
    seen: set[str] = set()
    for source in sorted(library.rglob("*.py")):
        path = source.relative_to(library)
        if LEFT_OUT.intersection(path.parts) or path.parts[0].startswith("config-"):
            continue
        module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
        for name, text in documented(ast.parse(source.read_bytes()), module):
            entry = split(name, text)
            if entry and entry.name not in seen and entry.answer not in seen:
                seen.update((entry.name, entry.answer))
                yield entry


def held_apart(names: Iterable[str]) -> set[str]:
    """The modules whose questions are for the test, of entries' names.

    >>> sorted(held_apart(["ast.walk", "bisect.insort", "cmd.Cmd", "cmd.Cmd.do_help", "dis.dis"]))
    ['ast', 'dis']
    """
    return set(sorted({name.split(".")[0] for name in names})[::HELD_APART])


def collect(library: Path, folder: Path) -> tuple[int, int, int]:
    """Writes the collection, each question once; returns how many passages, queries of each kind.

    A question with a passage of a module that is held apart is for the test.
    """
    found = list(entries(library))
    folder.mkdir(parents=True, exist_ok=True)
    asked: dict[str, list[str]] = {}
    with (folder / "corpus.jsonl").open("w", encoding="utf-8") as corpus:
        for entry in found:
            asked.setdefault(entry.question, []).append(entry.name)
            corpus.write(json.dumps({"_id": entry.name, "title": "", "text": entry.answer}) + "\n")
    test = held_apart(entry.name for entry in found)
    counts = {"": 0, "train-": 0}
    with ExitStack() as files:
        lines = {
            (kind, name): files.enter_context(
                (folder / f"{kind}{name}").open("w", encoding="utf-8")
            )
            for kind in counts
            for name in ("queries.tsv", "qrels.txt")
        }
        for number, (question, names) in enumerate(asked.items(), 1):
            kind = "" if test.intersection(name.split(".")[0] for name in names) else "train-"
            counts[kind] += 1
            lines[kind, "queries.tsv"].write(f"q{number}\t{question}\n")
            lines[kind, "qrels.txt"].writelines(f"q{number} 0 {name} 1\n" for name in names)
    return len(found), counts[""], counts["train-"]


def main() -> None:
    """Writes the collection of this Python's library into the folder named on the command line."""
    passages, test, train = collect(Path(sysconfig.get_path("stdlib")), Path(sys.argv[1]))
    version = ".".join(map(str, sys.version_info[:3]))
    sys.stdout.write(
        f"Python {version}: {passages:,} passages, {test:,} questions of the test, "
        f"{train:,} of training\n"
    )


if __name__ == "__main__":
    main()
