"""The toy collection: six passages, three queries, their qrels, and a vocabulary of its words."""

import json
from pathlib import Path

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = (  # noqa: SIM905  (a list of quoted words reads worse)
    "the a of in on is was and to river bank money water fish boat tree house cat dog sun moon "
    "star night day red blue green old new big small runs sleeps eats sings falls rises north south"
).split()
PIECES = [
    *"abcdefghijklmnopqrstuvwxyz0123456789",
    *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz0123456789"),
]
PUNCTUATION = [".", ",", "?", "!", "'", '"', "-", "(", ")"]
VOCABULARY = [*SPECIALS, *WORDS, *PIECES, *PUNCTUATION]
PASSAGES = {
    "d1": ("River", "the old river runs to the south"),
    "d2": ("Bank", "money in the bank"),
    "d3": ("", "the cat sleeps in the house"),
    "d4": ("Moon", "the moon rises in the night and the star falls"),
    "d5": ("Boat", "a red boat on blue water"),
    "d10": ("Dog", "the big dog eats fish"),
}
QUERIES = {"q1": "cat in a house", "q2": "river boat", "q3": "moon and star"}
QRELS = {"q1": {"d3": 1}, "q2": {"d1": 2, "d5": 1}, "q3": {"d4": 1}}


def write_toy(folder: Path) -> Path:
    """Write corpus.jsonl (BEIR), queries.tsv and qrels.txt (TREC) into a new folder."""
    folder.mkdir()
    with (folder / "corpus.jsonl").open("w") as out:
        for docid, (title, text) in PASSAGES.items():
            out.write(json.dumps({"_id": docid, "title": title, "text": text}) + "\n")
    (folder / "queries.tsv").write_text("".join(f"{q}\t{t}\n" for q, t in QUERIES.items()))
    (folder / "qrels.txt").write_text(
        "".join(f"{q} 0 {d} {r}\n" for q, judged in QRELS.items() for d, r in judged.items())
    )
    return folder
