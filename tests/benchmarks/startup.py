"""Goal P7: start-up of `--help`, `eval` of 10,000 lines and BM25 `search`, medians by the clock.

python -m tests.benchmarks.startup [ROUNDS]
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from tests.benchmarks.evaluate import write
from tests.benchmarks.timing import DENSERK, Goals, watch


def main() -> None:
    """Measure, and fail if a goal is missed."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    goals = Goals()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        run, qrels = write(folder, 10, 1000)
        names = ("corpus.jsonl", "bm25", "topics.tsv")
        corpus, index, topics = (str(folder / name) for name in names)
        with Path(corpus).open("w") as out:
            for number in range(1000):
                out.write(json.dumps({"_id": f"d{number}", "text": f"river {number} bank"}) + "\n")
        Path(topics).write_text("q1\triver bank\n")
        build = [DENSERK, "index", "--type", "bm25", "--corpus", corpus, "--output", index]
        subprocess.run([*build, "--quiet"], check=True)
        search = [DENSERK, "search", "--index", index, "--topics", topics, "--overwrite"]
        commands = {
            "denserk --help": ([DENSERK, "--help"], 0.2),
            "denserk eval, 10,000 lines": ([DENSERK, "eval", run, qrels], 0.5),
            "BM25 search, one query": ([*search, "--output", str(folder / "found.trec")], 0.8),
        }
        for name, (command, bound) in commands.items():
            seconds = median(watch(command).seconds for _ in range(rounds))
            goals.at_most("P7", f"{name}, seconds", seconds, bound)
    goals.finish()


if __name__ == "__main__":
    main()
