"""The modules that a passage passes in `encode` and a query in `search`: where calls grow.

`python -m tests.benchmarks.trace` compares a collection with the same one twice as large.
"""

import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import denserk
from denserk.commands.retrieve import encode, search
from tests.conftest import VOCABULARY
from tests.tiny_models import words_of, write_tiny

ROOT = Path(denserk.__file__).parent
COUNT = 40
LIMITS = {"encode": 15, "search": 20}


def calls(work: Callable[..., Any], **keywords: Any) -> Counter[str]:
    """Module of denserk -> calls of its functions, in all threads."""
    found: Counter[str] = Counter()

    def note(frame: Any, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and ROOT in path.parents:
            found[str(path.relative_to(ROOT))] += 1

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        work(overwrite=True, backend="torch", device="cpu", **keywords)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return found


def main() -> None:
    """Print the modules of each command, and fail if they are too many."""
    words, found = words_of(VOCABULARY), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = write_tiny(folder / "model", "bert", VOCABULARY)
        for size in (COUNT, COUNT, 2 * COUNT):  # the first warms up
            texts, vectors = folder / f"{size}.tsv", folder / f"vectors{size}"
            lines = [f"d{n}\t{words[n % len(words)]} {words[n % 7]}\n" for n in range(size)]
            texts.write_text("".join(lines))
            blocks = {"batch_size": 8, "block_size": 8}
            made = calls(encode, model=model, corpus=texts, output=vectors, **blocks)
            to_run = {"output": folder / "run", "query_batch": 8}
            found.append((made, calls(search, index=vectors, topics=texts, **to_run)))
    missed = []
    for (command, limit), some, more in zip(LIMITS.items(), *found[1:], strict=True):
        passed = sorted(module for module in more if more[module] > some[module])
        print(f"{command}\t{len(passed)} of at most {limit}\t{' '.join(passed)}")
        missed += [command] if len(passed) > limit else []
    if missed:
        raise SystemExit(f"too many modules: {', '.join(missed)}")


if __name__ == "__main__":
    main()
