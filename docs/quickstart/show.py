"""Prints the best passages of a run for each query, for a person to read.

python docs/quickstart/show.py CORPUS QUERIES RUN
"""

import json
import sys
import textwrap
from pathlib import Path

SHOWN = 3
"""Passages a query."""
WIDTH = 96
"""Columns."""


def main() -> None:
    """Shows the run named on the command line."""
    corpus, queries, run = (Path(name).read_text("utf-8").splitlines() for name in sys.argv[1:])
    texts = {passage["_id"]: passage["text"] for passage in map(json.loads, corpus)}
    hits: dict[str, list[tuple[str, str]]] = {}
    for line in run:
        qid, _, docid, _, score, _ = line.split()
        hits.setdefault(qid, []).append((docid, score))
    for qid, question in (line.split("\t") for line in queries):
        sys.stdout.write(f"\n{question}?\n")
        for rank, (docid, score) in enumerate(hits.get(qid, [])[:SHOWN], 1):
            start = textwrap.shorten(texts[docid], WIDTH - 5, placeholder=" ...")
            sys.stdout.write(f"  {rank}. {docid}  {float(score):.3f}\n     {start}\n")


if __name__ == "__main__":
    main()
