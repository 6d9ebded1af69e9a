"""Build a test collection from the docstrings of Python's standard library.

`python docs/quickstart/collect.py FOLDER` writes `corpus.jsonl`, `queries.tsv` and `qrels.txt` for
the test, `train-queries.tsv` and `train-qrels.txt` for training. The first line of a docstring is a
query, the rest is its relevant passage, without a title, since a function's name often is the first
line in other words (`shutil.rmtree`: "Recursively delete a directory tree."). The dotted name is
the passage's id. The queries of every third module are for the test, the others for training.

Sources are parsed in the order of their names and never imported, so that one version of Python
gives one collection.
"""

import ast
import json
import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SKIPPED = {"test", "tests", "site-packages", "dist-packages"}
MIN_QUERY = 4  # words; "Return repr(self)." is no query
MIN_PASSAGE = 8  # words; "See PEP 302." is no passage
MAX_REPEATED = 0.75  # share of the query's words that the passage may repeat
TEST_MODULES = 3  # one module in three is for the test


class Entry(NamedTuple):
    """The dotted name of a docstring, its first line, and the rest."""

    name: str
    query: str
    passage: str


def words(text: str) -> list[str]:
    """Return the runs of letters and digits, in lower case."""
    return re.findall(r"[a-z0-9]+", text.lower())


def docstrings(node: ast.Module | ast.stmt, name: str) -> Iterator[tuple[str, str]]:
    """Yield the names and docstrings of a module, and of its classes, functions and methods."""
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return
    text = ast.get_docstring(node)
    if text:
        yield name, text
    for child in node.body:
        yield from docstrings(child, f"{name}.{getattr(child, 'name', '')}")


def split(name: str, text: str) -> Entry | None:
    """Split a docstring into query and passage; None if it has no usable pair."""
    query, _, rest = text.partition("\n")
    is_sentence = rest.startswith("\n") or query.rstrip().endswith((".", "?", "!"))
    passage = rest.strip()
    asked, answer = words(query), words(passage)
    if not is_sentence or len(asked) < MIN_QUERY or len(answer) < MIN_PASSAGE:
        return None
    if len({*asked} & {*answer}) >= MAX_REPEATED * len({*asked}):
        return None
    return Entry(name, " ".join(query.split()), passage)


def entries(library: Path) -> Iterator[Entry]:
    """Yield the usable entries by file, each name and each passage once."""
    seen: set[str] = set()
    for source in sorted(library.rglob("*.py")):
        path = source.relative_to(library)
        if SKIPPED.intersection(path.parts) or path.parts[0].startswith("config-"):
            continue
        module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
        for name, text in docstrings(ast.parse(source.read_bytes()), module):
            entry = split(name, text)
            if entry and entry.name not in seen and entry.passage not in seen:
                seen.update((entry.name, entry.passage))
                yield entry


def main() -> None:
    """Write the collection of this Python's library to the folder on the command line."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    queries: dict[str, list[str]] = {}  # the names of the passages of each query
    with (folder / "corpus.jsonl").open("w", encoding="utf-8") as corpus:
        for entry in entries(Path(sysconfig.get_path("stdlib"))):
            queries.setdefault(entry.query, []).append(entry.name)
            corpus.write(json.dumps({"_id": entry.name, "title": "", "text": entry.passage}) + "\n")
    modules = sorted({name.split(".")[0] for names in queries.values() for name in names})
    test = set(modules[::TEST_MODULES])
    lines: dict[str, list[str]] = {}
    for number, (query, names) in enumerate(queries.items(), 1):
        kind = "" if test.intersection(name.split(".")[0] for name in names) else "train-"
        lines.setdefault(f"{kind}queries.tsv", []).append(f"q{number}\t{query}\n")
        lines.setdefault(f"{kind}qrels.txt", []).extend(f"q{number} 0 {d} 1\n" for d in names)
    for name, content in lines.items():
        (folder / name).write_text("".join(content), "utf-8")
    counts = [len(lines[f"{kind}queries.tsv"]) for kind in ("train-", "")]
    sys.stdout.write(
        f"Python {sys.version.split()[0]}: {sum(map(len, queries.values())):,} passages, "
        f"{counts[0]:,} training queries, {counts[1]:,} test queries\n"
    )


if __name__ == "__main__":
    main()
