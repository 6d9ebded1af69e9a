"""Options of approximate indexes in each search, short lists, and hints where hits are missing."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import denserk
from denserk.commands.app import run
from denserk.commands.retrieve import index, search
from denserk.errors import DenserkError, UsageError
from tests.support.console import warnings_of
from tests.support.faults import denserk as command
from tests.support.faults import limit_file_size

faiss = pytest.importorskip("faiss")
RANDOM = np.random.default_rng(0)
LENGTHS = RANDOM.lognormal(0, 1.2, (4000, 1))
VECTORS = (RANDOM.normal(size=(4000, 32)) * LENGTHS).astype(np.float32)
QUERIES = RANDOM.normal(size=(50, 32)).astype(np.float32)


def build(folder, **options):
    """Build an index of VECTORS, and return its folder."""
    np.save(folder / "x.npy", VECTORS)
    index(input=[str(folder / "x.npy")], output=str(folder / "i"), threads=1, **options)
    return folder / "i"


def recall(hits_of_queries, depth=10):
    """Share of each query's exact `depth` best among its hits, in the mean."""
    best = np.argsort(-(QUERIES @ VECTORS.T), axis=1)[:, :depth]
    shares = []
    for rows, hits in zip(best, hits_of_queries.values(), strict=True):
        shares.append(np.mean([str(row) in hits for row in rows.tolist()]))
    return float(np.mean(shares))


def test_every_search_of_an_open_index_has_its_own_breadth(tmp_path):
    opened = denserk.Index.open(build(tmp_path, type="ivf", nlist=40))
    run_by_default = opened.search(QUERIES, hits=10)

    def recall_with(nprobe):
        return recall(opened.search(QUERIES, hits=10, nprobe=nprobe))

    lowest = recall_with(1)
    assert lowest < 0.6
    assert lowest <= recall_with(4) <= 1
    assert recall_with(40) == 1
    assert opened.search(QUERIES, hits=10) == run_by_default
    with ThreadPoolExecutor(4) as pool:
        recalls = list(pool.map(recall_with, [1, 40] * 8))
    assert recalls == [lowest, 1] * 8


@pytest.mark.parametrize(
    ("settings", "option", "low", "high"),
    [
        ({"type": "hnsw", "M": 4, "efC": 20}, "ef_search", 10, 200),
        ({"factory": "PQ8x4,RFlat"}, "k_factor", 1, 30),
    ],
)
def test_breadth_of_graphs_and_of_refinement(tmp_path, settings, option, low, high):
    opened = denserk.Index.open(build(tmp_path, **settings))

    def recall_with(value):
        return recall(opened.search(QUERIES, hits=10, **{option: value}))

    lower_recall = recall_with(low)
    assert recall_with(high) > lower_recall
    assert recall_with(low) == lower_recall


def test_python_and_the_command_line_search_alike(tmp_path):
    folder = build(tmp_path, type="ivf", nlist=40)
    np.save(tmp_path / "q.npy", QUERIES)
    queries = str(tmp_path / "q.npy")
    output = str(tmp_path / "run.trec")
    search(index=[str(folder)], encoded_queries=queries, output=output, nprobe=3, hits=10)
    run = denserk.Index.open(folder).search(QUERIES, nprobe=3, hits=10)
    for qid, hits in denserk.Run.load(output).items():
        assert list(hits) == list(run[qid])


def test_a_flat_index_takes_no_breadth(tmp_path, toy):
    flat = denserk.Index.build(VECTORS[:50])
    for option in ("ef_search", "nprobe", "k_factor"):
        with pytest.raises(UsageError, match=option.replace("_", "-")):
            flat.search(QUERIES, **{option: 3})  # type: ignore[arg-type]
    inverted_lists = denserk.Index.open(build(tmp_path, type="ivf", nlist=4))
    with pytest.raises(UsageError, match="ef-search"):
        inverted_lists.search(QUERIES, ef_search=3)
    pytest.importorskip("bm25s")
    bm25 = denserk.BM25.build(toy / "corpus.jsonl")
    with pytest.raises(UsageError, match="nprobe"):
        bm25.search("river", nprobe=3)


def test_tuned_breadth_is_the_default_of_a_search(tmp_path):
    folder = build(tmp_path, type="ivf", nlist=40)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["contents"]["search"] = {"nprobe": 40}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    opened = denserk.Index.open(folder)
    assert recall(opened.search(QUERIES, hits=10)) == 1
    assert recall(opened.search(QUERIES, hits=10, nprobe=1)) < 0.6


def test_short_lists_are_counted_and_the_option_is_named(tmp_path, caplog):
    folder = build(tmp_path, type="ivf", nlist=400)
    np.save(tmp_path / "q.npy", QUERIES)
    words = ["search", "--index", folder, "--query-reps", tmp_path / "q.npy", "--hits", "1000"]
    words += ["--output", tmp_path / "run.trec", "--overwrite"]
    process = command(*words)
    assert process.returncode == 0
    assert "50 of 50 queries" in process.stderr
    assert "raise --nprobe" in process.stderr
    process = command(*words, "--nprobe", "400")
    assert "nprobe" not in process.stderr
    caplog.clear()
    opened = denserk.Index.open(folder)
    assert recall(opened.search(QUERIES, hits=1000), 1000) < 0.3
    assert "--nprobe" in str(warnings_of(caplog))


def test_short_lists_of_a_small_index_bring_no_warning(tmp_path, caplog):
    folder = build(tmp_path, type="ivf", nlist=4)
    small = denserk.Index.build(VECTORS[:50], type="ivf", nlist=1)
    caplog.clear()
    small.search(QUERIES, hits=1000)
    denserk.Index.build(VECTORS[:50]).search(QUERIES, hits=1000)
    denserk.Index.open(folder).search(QUERIES, hits=1000, nprobe=4)
    assert warnings_of(caplog) == []


def test_short_lists_of_a_graph_name_its_option(caplog):
    """Many equal vectors leave a graph of few links in parts, of which a search sees one."""
    equal = np.repeat(VECTORS[:20], 50, axis=0)
    graph = denserk.Index.build(equal, type="hnsw", M=4, efC=4, threads=1)
    caplog.clear()
    run = graph.search(QUERIES, hits=900)
    assert any(len(hits) < 900 for hits in run.values())
    (warning,) = warnings_of(caplog)
    assert "raise --ef-search" in warning


def test_queries_without_hits_bring_a_hint_on_languages(tmp_path, caplog):
    pytest.importorskip("bm25s")
    corpus = tmp_path / "c.tsv"
    corpus.write_text("1\tthe old river\n6\tコンピューターを買う\n7\tแมวนอนในบ้าน\n")
    folder = tmp_path / "i"
    assert run(["index", "--type", "bm25", "--corpus", str(corpus), "--output", str(folder)]) == 0
    topics = tmp_path / "q.tsv"
    words = ["search", "--index", folder, "--topics", topics, "--output", tmp_path / "run.trec"]
    topics.write_text("q1\triver\nq3\tコンピュータ\nq4\tแมว\nq5\tFlüsse\n")
    process = command(*words)
    assert process.returncode == 0
    assert "3 queries have no hits" in process.stderr
    assert "--language multilingual" in process.stderr
    topics.write_text("q1\triver\nq5\tFlüsse\n")
    process = command(*words, "--overwrite")
    assert "--language german" in process.stderr
    process = command("search", "--index", folder, "--query", "Flüsse")
    assert "no hits" in process.stdout
    assert "--language german" in process.stdout
    assert denserk.Index.open(folder).search("แมว") == {"0": {}}
    assert 'BM25.build(corpus, language="thai")' in str(warnings_of(caplog))


def test_a_corpus_in_place_of_an_index_is_to_be_indexed_first(toy):
    options = ["--topics", toy / "queries.tsv", "--output", toy / "run"]
    process = command("search", "--index", toy / "corpus.jsonl", *options)
    assert process.returncode == 2
    assert "denserk index" in process.stderr
    (toy / "empty").mkdir()
    for folder in (toy / "empty", toy):
        process = command("search", "--index", folder, *options)
        assert "is not an index" in process.stderr
        assert "denserk index" in process.stderr


def test_a_full_disk_is_one_clear_error(tmp_path):
    pytest.importorskip("bm25s")
    vocabulary = [f"word{number}" for number in range(3000)]
    corpus = tmp_path / "c.tsv"
    with corpus.open("w") as out:
        for number in range(600):
            text = " ".join(RANDOM.choice(vocabulary, 60))
            out.write(f"d{number}\t{text}\n")
    words = ["index", "--type", "bm25", "--corpus", corpus, "--output", tmp_path / "i"]
    process = command(*words, preexec_fn=lambda: limit_file_size(65_536))
    assert process.returncode == 1
    (error,) = [line for line in process.stderr.splitlines() if line.startswith("error:")]
    assert "cannot be written" in error
    assert "requested" not in process.stderr


def test_a_small_build_logs_nothing_of_memory(toy, caplog):
    pytest.importorskip("bm25s")
    index(corpus=str(toy / "corpus.jsonl"), type="bm25", output=str(toy / "i"))
    assert "memory" not in caplog.text


def test_options_are_checked_before_queries_are_read(tmp_path):
    flat = denserk.Index.build(VECTORS[:50], output=tmp_path / "i")
    with pytest.raises(DenserkError, match="nprobe"):
        flat.search("nothing here is a file", nprobe=3)
