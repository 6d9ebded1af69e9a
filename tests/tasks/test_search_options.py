"""Options of approximate indexes in each search, short lists, and what is said of missing hits."""

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


def built(folder, **options):
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
    opened = denserk.Index.open(built(tmp_path, type="ivf", nlist=40))
    first = opened.search(QUERIES, hits=10)
    recalls = [recall(opened.search(QUERIES, hits=10, nprobe=n)) for n in (1, 4, 40)]
    assert recalls == sorted(recalls)
    assert recalls[0] < 0.6
    assert recalls[-1] == 1
    assert opened.search(QUERIES, hits=10) == first  # the default is as before
    with ThreadPoolExecutor(4) as pool:
        probes = [1, 40] * 8
        runs = list(pool.map(lambda n: opened.search(QUERIES, hits=10, nprobe=n), probes))
    for probe, hits in zip(probes, runs, strict=True):
        assert recall(hits) == recalls[0 if probe == 1 else -1]


@pytest.mark.parametrize(
    ("made", "option", "values"),
    [
        ({"type": "hnsw", "M": 4, "efC": 20}, "ef_search", (10, 200)),
        ({"factory": "PQ8x4,RFlat"}, "k_factor", (1, 30)),
    ],
)
def test_breadth_of_graphs_and_of_refinement(tmp_path, made, option, values):
    opened = denserk.Index.open(built(tmp_path, **made))
    low, high, again = (
        recall(opened.search(QUERIES, hits=10, **{option: value})) for value in (*values, values[0])
    )
    assert low < high
    assert again == low


def test_python_and_the_command_line_search_alike(tmp_path):
    folder = built(tmp_path, type="ivf", nlist=40)
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
    lists = denserk.Index.open(built(tmp_path, type="ivf", nlist=4))
    with pytest.raises(UsageError, match="ef-search"):
        lists.search(QUERIES, ef_search=3)
    pytest.importorskip("bm25s")
    bm25 = denserk.BM25.build(toy / "corpus.jsonl")
    with pytest.raises(UsageError, match="nprobe"):
        bm25.search("river", nprobe=3)


def test_tuned_breadth_is_the_default_of_a_search(tmp_path):
    folder = built(tmp_path, type="ivf", nlist=40)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["contents"]["search"] = {"nprobe": 40}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    opened = denserk.Index.open(folder)
    assert recall(opened.search(QUERIES, hits=10)) == 1
    assert recall(opened.search(QUERIES, hits=10, nprobe=1)) < 0.6


def test_short_lists_are_counted_and_the_option_is_named(tmp_path, caplog):
    folder = built(tmp_path, type="ivf", nlist=400)
    np.save(tmp_path / "q.npy", QUERIES)
    asked = ["search", "--index", folder, "--query-reps", tmp_path / "q.npy", "--overwrite"]
    asked += ["--output", tmp_path / "run.trec"]
    short = command(*map(str, asked), "--hits", "1000")
    assert short.returncode == 0
    assert "50 of 50 queries" in short.stderr
    assert "raise --nprobe" in short.stderr
    whole = command(*map(str, asked), "--hits", "1000", "--nprobe", "400")
    assert "nprobe" not in whole.stderr
    caplog.clear()
    opened = denserk.Index.open(folder)
    assert recall(opened.search(QUERIES, hits=1000), 1000) < 0.3
    assert "--nprobe" in str(warnings_of(caplog))


def test_short_lists_of_a_small_index_are_not_said(tmp_path, caplog):
    folder = built(tmp_path, type="ivf", nlist=4)
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


LANGUAGES = {
    "1": "the old river runs to the south",
    "6": "コンピューターを買う",
    "7": "แมวนอนในบ้าน",
}


def test_queries_without_hits_bring_a_hint_on_languages(tmp_path, caplog):
    pytest.importorskip("bm25s")
    lines = [json.dumps({"_id": d, "text": t, "title": ""}) for d, t in LANGUAGES.items()]
    (tmp_path / "c.jsonl").write_text("\n".join(lines))
    made = ["index", "--type", "bm25", "--corpus", str(tmp_path / "c.jsonl")]
    assert run([*made, "--output", str(tmp_path / "i")]) == 0
    (tmp_path / "q.tsv").write_text("q1\triver\nq3\tコンピュータ\nq4\tแมว\nq5\tFlüsse\n")
    asked = ["search", "--index", str(tmp_path / "i"), "--topics", str(tmp_path / "q.tsv")]
    done = command(*asked, "--output", str(tmp_path / "run.trec"))
    assert done.returncode == 0
    assert "3 queries have no hits" in done.stderr
    assert "--language multilingual" in done.stderr
    (tmp_path / "q.tsv").write_text("q1\triver\nq5\tFlüsse\n")
    again = command(*asked, "--output", str(tmp_path / "run.trec"), "--overwrite")
    assert "--language german" in again.stderr
    look = command("search", "--index", str(tmp_path / "i"), "--query", "Flüsse")
    assert "no hits" in look.stdout
    assert "--language german" in look.stdout
    assert denserk.Index.open(tmp_path / "i").search("แมว") == {"0": {}}
    assert 'BM25.build(corpus, language="thai")' in str(warnings_of(caplog))


def test_a_corpus_in_place_of_an_index_is_to_be_indexed_first(toy):
    topics = ["--topics", str(toy / "queries.tsv"), "--output", str(toy / "run")]
    done = command("search", "--index", str(toy / "corpus.jsonl"), *topics)
    assert done.returncode == 2
    assert "denserk index" in done.stderr
    (toy / "empty").mkdir()
    for folder in (toy / "empty", toy):
        done = command("search", "--index", str(folder), *topics)
        assert "is not an index" in done.stderr
        assert "denserk index" in done.stderr


def test_a_full_disk_is_one_clear_error(tmp_path):
    pytest.importorskip("bm25s")
    words = [f"word{number}" for number in range(3000)]
    with (tmp_path / "c.jsonl").open("w") as out:
        for number in range(600):
            text = " ".join(RANDOM.choice(words, 60))
            out.write(json.dumps({"_id": f"d{number}", "title": "", "text": text}) + "\n")
    made = ["index", "--type", "bm25", "--corpus", tmp_path / "c.jsonl", "--output", tmp_path / "i"]
    done = command(*map(str, made), preexec_fn=lambda: limit_file_size(65_536))
    assert done.returncode == 1
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert "cannot be written" in errors[0]
    assert "requested" not in done.stderr


def test_a_small_build_says_nothing_of_memory(toy, caplog):
    pytest.importorskip("bm25s")
    index(corpus=str(toy / "corpus.jsonl"), type="bm25", output=str(toy / "i"))
    assert "memory" not in caplog.text


def test_options_are_checked_before_queries_are_read(tmp_path):
    flat = denserk.Index.build(VECTORS[:50], output=tmp_path / "i")
    with pytest.raises(DenserkError, match="nprobe"):
        flat.search("nothing here is a file", nprobe=3)
