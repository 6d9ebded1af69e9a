"""Goals S7 and P8: `denserk index` beside bm25s, tantivy and Pyserini.

    python -m tests.benchmarks.index [bm25 vectors] [--corpora FILE.gz ...] [--passages 200000]
        [--queries 1000] [--rounds 3] [--tantivy PYTHON]

bm25: CPU time and memory of indexing passages, of many queries and of one, as whole commands on one
thread, beside a script of bm25s alone with its own tokeniser and stemmer, and, if an interpreter
that has tantivy is named, beside one of tantivy. The passages are those of corpora of JSON lines,
repeated under other ids with shuffled words. vectors: CPU time of writing 100,000 vectors and of
`denserk index`, and of Pyserini's writer and `pyserini.index.faiss`, which must give the same
bytes; memory at 600,000 vectors (4 GB of disk).
"""

import argparse
import gzip
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from random import Random

import numpy as np

from denserk.io.blocks import Block
from denserk.io.manifest import Kind, Manifest
from denserk.io.vectors import VectorFolderWriter
from tests.benchmarks.timing import DENSERK, Child, Goals, cpu_seconds, median_children, watch
from tests.support.peers import run_pyserini

D, BLOCK, COUNT, LARGE = 768, 16_384, 100_000, 600_000
DEPTH = 100  # hits of a query of BM25
QUERY_WORDS = 10
BM25S = """
import json, sys
import bm25s, Stemmer
job, corpus, index, topics, run, depth = sys.argv[1:]
stemmer = Stemmer.Stemmer("porter")
analyze = {"stopwords": "en", "stemmer": stemmer, "show_progress": False}
if job == "index":
    records = [json.loads(line) for line in open(corpus)]
    terms = bm25s.tokenize([record["text"] for record in records], **analyze)
    model = bm25s.BM25(k1=0.9, b=0.4, method="lucene")
    model.index(terms, show_progress=False)
    model.save(index)
    open(index + "/ids", "w").write("\\n".join(record["_id"] for record in records))
else:
    model = bm25s.BM25.load(index, mmap=True)
    ids = open(index + "/ids").read().split("\\n")
    queries = [line.rstrip("\\n").split("\\t") for line in open(topics)]
    terms = bm25s.tokenize([text for _, text in queries], **analyze)
    rows, scores = model.retrieve(terms, k=int(depth), show_progress=False, n_threads=1)
    with open(run, "w") as out:
        for (qid, _), some, values in zip(queries, rows.tolist(), scores.tolist()):
            for rank, (row, score) in enumerate(zip(some, values), 1):
                out.write(f"{qid} Q0 {ids[row]} {rank} {score:.5f} bm25s\\n")
"""
TANTIVY = """
import json, os, re, sys
import tantivy
job, corpus, index, topics, run, depth = sys.argv[1:]
if job == "index":
    os.makedirs(index, exist_ok=True)
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("id", stored=True, tokenizer_name="raw")
    builder.add_text_field("body", tokenizer_name="en_stem", index_option="freq")
    writer = tantivy.Index(builder.build(), path=index).writer(200_000_000, 1)
    for line in open(corpus):
        record = json.loads(line)
        writer.add_document(tantivy.Document(id=record["_id"], body=record["text"]))
    writer.commit()
    writer.wait_merging_threads()
else:
    opened = tantivy.Index.open(index)
    searcher = opened.searcher()
    with open(run, "w") as out:
        for line in open(topics):
            qid, text = line.rstrip("\\n").split("\\t")
            query = opened.parse_query(re.sub(r"[^\\w\\s]", " ", text).lower(), ["body"])
            for rank, (score, address) in enumerate(searcher.search(query, int(depth)).hits, 1):
                docid = searcher.doc(address)["id"][0]
                out.write(f"{qid} Q0 {docid} {rank} {score:.5f} tantivy\\n")
"""
PYSERINI = """
import runpy, sys, time
import numpy as np
from pyserini.encode._base import JsonlRepresentationWriter
import pyserini.util
source, lines, index = sys.argv[1:]
vectors = np.load(source)
ids = [f"d{n}" for n in range(len(vectors))]
start = time.process_time()
writer = JsonlRepresentationWriter(lines)
with writer:
    for first in range(0, len(ids), 64):
        batch = slice(first, first + 64)
        info = {"id": ids[batch], "text": [""] * len(ids[batch]), "vector": vectors[batch]}
        writer.write(info, ["text"])
sys.argv = ["faiss", "--input", lines, "--output", index, "--threads", "1"]
runpy.run_module("pyserini.index.faiss", run_name="__main__")
print("seconds", time.process_time() - start)
"""


def write_vectors(folder: Path, count: int) -> float:
    """Write vectors as `denserk encode` does; CPU seconds without drawing them."""
    folder.mkdir()
    writer = VectorFolderWriter(folder, Manifest(Kind.VECTORS, False), "float32")
    seconds = 0.0
    for number, start in enumerate(range(0, count, BLOCK)):
        size = min(BLOCK, count - start)
        vectors = np.random.default_rng(start).standard_normal((size, D), np.float32)
        ids = [f"d{start + row}" for row in range(size)]
        seconds += cpu_seconds(partial(writer.write, Block(number, size, ""), ids, vectors))
    return seconds + cpu_seconds(lambda: writer.finish({"dimension": D, "vectors_per_passage": 1}))


def vectors(goals: Goals, folder: Path, _: argparse.Namespace) -> None:
    """Goal P8."""
    for count in (LARGE, COUNT):
        source = folder / f"v{count}"
        index = folder / f"i{count}"
        written = write_vectors(source, count)
        child = watch([DENSERK, "index", "--input", str(source), "--output", str(index)])
        if count == LARGE:
            goals.at_most(
                "P8", f"denserk index of {count:,} vectors, peak in MiB", child.peak_mib, 1024
            )
            os.truncate(index / "index", 0)  # its place on the disk
    ours = written + child.cpu_seconds
    parts = [np.load(path) for path in sorted(source.glob("*.npy"))]
    np.save(folder / "vectors.npy", np.concatenate(parts))
    arguments = [folder / name for name in ("vectors.npy", "lines", "theirs")]
    theirs = float(run_pyserini(PYSERINI, *arguments, folder=folder).rpartition("seconds")[2])
    for name in ("index", "docid"):
        if (index / name).read_bytes() != (folder / "theirs" / name).read_bytes():
            raise SystemExit(f"the two files {name} differ")
    print(f"{COUNT:,} vectors, CPU time: denserk {ours:.2f} s, Pyserini {theirs:.2f} s")
    goals.at_least("P8", "vectors to an index, x JSON lines and Pyserini", theirs / ours, 50)


def write_passages(corpora: Sequence[str], path: Path, count: int) -> None:
    """Write passages of corpora, repeated under other ids with shuffled words up to a count."""
    texts = []
    for corpus in corpora:
        with gzip.open(corpus, "rt", encoding="utf-8") as lines:
            texts += [json.loads(line)["text"] for line in lines]
    draw = Random(1)
    with path.open("w", encoding="utf-8") as out:
        for number, text in enumerate(islice(cycle(texts), count)):
            words = text.split()
            if number >= len(texts):
                draw.shuffle(words)
            out.write(json.dumps({"_id": f"d{number}", "text": " ".join(words)}) + "\n")


def write_topics(passages: Path, path: Path, count: int) -> None:
    """Write queries of words of every 97th passage."""
    with passages.open(encoding="utf-8") as lines, path.open("w", encoding="utf-8") as out:
        for number, line in enumerate(islice(cycle(lines), 0, 97 * count, 97)):
            words = json.loads(line)["text"].split()[:QUERY_WORDS]
            out.write(f"q{number}\t{' '.join(words)}\n")


def bm25(goals: Goals, folder: Path, options: argparse.Namespace) -> None:
    """Goal S7."""
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    corpus = folder / "corpus.jsonl"
    topics = folder / "many"
    one_topic = folder / "one"
    write_passages(options.corpora, corpus, options.passages)
    write_topics(corpus, topics, options.queries)
    write_topics(corpus, one_topic, 1)
    jobs = {
        "index": ("index", topics),
        f"{options.queries:,} queries": ("search", topics),
        "one query": ("search", one_topic),
    }
    peers = {"bm25s": (sys.executable, BM25S)}
    if options.tantivy:
        peers["tantivy"] = (options.tantivy, TANTIVY)
    children: dict[str, Mapping[str, Child]] = {}
    for title, (job, queries) in jobs.items():
        commands = {"denserk": _denserk_command(job, folder, corpus, queries)}
        for name, (python, script) in peers.items():
            paths = [str(corpus), str(folder / name), str(queries), str(folder / "peers_run")]
            commands[name] = [python, "-c", script, job, *paths, str(DEPTH)]
        children[title] = median_children(commands, options.rounds)
        for name, child in children[title].items():
            print(f"{title}: {name} {child.cpu_seconds:.2f} s, {child.peak_mib:,.0f} MiB")
    index, many, one = children.values()
    cpu_ratio = index["denserk"].cpu_seconds / index["bm25s"].cpu_seconds
    memory_ratio = index["denserk"].peak_mib / index["bm25s"].peak_mib
    search_ratio = many["bm25s"].cpu_seconds / many["denserk"].cpu_seconds
    passages = f"BM25, {options.passages:,} passages"
    goals.at_most("S7", f"{passages}: index, / bm25s", cpu_ratio, 1.15)
    goals.at_most("S7", f"{passages}: memory, / bm25s", memory_ratio, 1)
    goals.at_least("S7", f"{passages}: {options.queries:,} queries, x bm25s", search_ratio, 1.25)
    goals.at_most("S7", f"{passages}: one query, CPU seconds", one["denserk"].cpu_seconds, 0.5)


def _denserk_command(job: str, folder: Path, corpus: Path, topics: Path) -> list[str]:
    """Return the command that indexes or searches."""
    index = str(folder / "denserk")
    if job == "index":
        options = ["--type", "bm25", "--corpus", str(corpus), "--output", index]
    else:
        run = str(folder / "run.trec")
        options = ["--index", index, "--topics", str(topics), "--output", run]
        options += ["--hits", str(DEPTH), "--threads", "1"]
    return [DENSERK, job, *options, "--overwrite", "--quiet"]


def main() -> None:
    """Measure, and fail if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parts = {"bm25": bm25, "vectors": vectors}
    parser.add_argument("names", nargs="*", default=list(parts), choices=parts)
    parser.add_argument("--corpora", nargs="+", default=[], help="JSON lines, compressed")
    parser.add_argument("--passages", type=int, default=200_000)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tantivy", help="a Python interpreter that has tantivy")
    options = parser.parse_args()
    if "bm25" in options.names and not options.corpora:
        parser.error("bm25 needs --corpora")
    goals = Goals()
    for name in options.names:
        with tempfile.TemporaryDirectory() as folder:
            parts[name](goals, Path(folder), options)
    goals.finish()


if __name__ == "__main__":
    main()
