"""A number that is not finite, in a vector, a query or a score, never gives a run with status 0."""

import json
import subprocess

import numpy as np
import pytest

import denserk
from denserk.commands.app import run
from denserk.commands.retrieve import index, search
from denserk.errors import DenserkError
from tests.support.faults import denserk as command
from tests.support.index_folders import flat_folder, vector_folder
from tests.support.milvus import require_milvus

COUNT, DIMENSION, DAMAGED = 600, 16, 417
NAME = f"p{DAMAGED}"
IDS = [f"p{number}" for number in range(COUNT)]
RANDOM = np.random.default_rng(4)
VECTORS = RANDOM.normal(size=(COUNT, DIMENSION)).astype(np.float32)
QUERIES = RANDOM.normal(size=(40, DIMENSION)).astype(np.float32)
HEADER = 45  # bytes of a flat index before its vectors
TYPES = {
    "hnsw": ["--type", "hnsw", "--set", "M=8"],
    "ivf": ["--type", "ivf", "--nlist", "8"],
    "sqfp16": ["--type", "sqfp16"],
    "refined": ["--factory", "PQ4x4,RFlat"],
}


def searched(folder, hits=10, queries=QUERIES, **options):
    """Search by the command; return its error's text, or fail."""
    np.save(folder.parent / "queries.npy", queries)
    with pytest.raises(DenserkError) as caught:
        search(
            index=[str(folder)],
            encoded_queries=str(folder.parent / "queries.npy"),
            output=str(folder.parent / "run.trec"),
            hits=hits,
            device="cpu",
            **options,
        )
    assert not (folder.parent / "run.trec").exists()
    assert caught.value.exit_status == 1
    return str(caught.value)


def damage(path, value, vector, dtype=np.float32):
    """Replace a number of the vector, whose bytes stand once in a file."""
    data = path.read_bytes()
    before = vector.astype(dtype)
    after = before.copy()
    after[5] = value
    assert data.count(before.tobytes()) == 1
    path.write_bytes(data.replace(before.tobytes(), after.tobytes()))


def flat(folder, metric="inner", size=1):
    """Write a flat index as another tool does, with many copies of its vectors."""
    vectors = np.tile(VECTORS, (10, 1))  # more than a block
    vectors[size * DAMAGED, 5] = np.nan
    ids = [f"p{number}" for number in range(len(vectors) // size)]
    return flat_folder(folder, ids, vectors, size=size, metric=metric)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("queries", [1, 3, 40])
@pytest.mark.parametrize("hits", [1, 10, 5000])
def test_a_vector_of_a_flat_index(tmp_path, value, queries, hits):
    vectors = np.tile(VECTORS, (10, 1))
    vectors[DAMAGED, 5] = value
    flat_folder(tmp_path / "i", [f"p{n}" for n in range(len(vectors))], vectors)
    message = searched(tmp_path / "i", hits, QUERIES[:queries])
    assert NAME in message
    assert str(tmp_path / "i") in message


@pytest.mark.parametrize("metric", ["inner", "l2"])
@pytest.mark.parametrize("size", [1, 4])
def test_passages_of_several_vectors_and_distances(tmp_path, metric, size):
    flat(tmp_path / "i", metric, size)
    for queries in (QUERIES, QUERIES[:2]):
        assert f"passage {NAME} " in searched(tmp_path / "i", queries=queries)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_folders_of_vectors_and_shards(tmp_path, dtype):
    for shard in range(3):
        part = slice(200 * shard, 200 * (shard + 1))
        vector_folder(tmp_path / f"s{shard}", IDS[part], VECTORS[part], block=50, dtype=dtype)
    block = tmp_path / "s2" / "block-00000.npy"
    damage(block, np.nan, VECTORS[DAMAGED], np.dtype(dtype))
    for folders in ([tmp_path / "s2"], sorted(tmp_path.glob("s?"))):
        with pytest.raises(DenserkError, match=NAME) as caught:
            denserk.Index.open(folders).search(QUERIES)
        assert "s2" in str(caught.value)


def test_the_error_is_one_line_and_a_hint_of_the_command(tmp_path):
    flat(tmp_path / "i")
    np.save(tmp_path / "q.npy", QUERIES)
    asked = ["--index", tmp_path / "i", "--query-reps", tmp_path / "q.npy"]
    done = command("search", *asked, "--output", tmp_path / "run.trec")
    assert done.returncode == 1
    assert NAME in done.stderr
    assert "--verify" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run.trec").exists()


def approximate(folder, options):
    """Build an approximate index of the vectors by the command."""
    lines = [json.dumps({"id": i, "vector": v.tolist()}) for i, v in zip(IDS, VECTORS, strict=True)]
    (folder / "v.jsonl").write_text("\n".join(lines))
    made = ["index", "--input", folder / "v.jsonl", "--output", folder / "i", "--threads", "1"]
    assert run([str(word) for word in [*made, *options]]) == 0
    return folder / "i"


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_vector_of_an_approximate_index(tmp_path, kind, value):
    pytest.importorskip("faiss")
    folder = approximate(tmp_path, TYPES[kind])
    dtype = np.float16 if kind == "sqfp16" else np.float32
    damage(folder / "index", value, VECTORS[DAMAGED], dtype)
    assert NAME in searched(folder)


@pytest.mark.parametrize("kind", ["ivf", "pq", "sq8", "hnswpq"])
def test_a_trained_number_of_an_approximate_index(tmp_path, kind):
    faiss = pytest.importorskip("faiss")
    small = ["--nlist", "8", "--set", "M=8", "--set", "pq-m=4", "--set", "pq-nbits=4"]
    folder = approximate(tmp_path, ["--type", kind, *small])
    made = faiss.read_index(str(folder / "index"))
    if kind == "ivf":
        trained = made.quantizer.reconstruct_n(0, 8)
    elif kind == "sq8":
        trained = faiss.vector_to_array(made.sq.trained)
    else:
        coded = faiss.downcast_index(made.storage) if kind == "hnswpq" else made
        trained = faiss.vector_to_array(coded.pq.centroids)
    damage(folder / "index", np.nan, trained.ravel()[:16])
    message = searched(folder)
    assert "not finite" in message
    assert str(folder / "index") in message


def test_too_large_scores_of_finite_vectors(tmp_path):
    large = VECTORS.copy()
    large[DAMAGED] = 3e38 * np.sign(QUERIES[0])
    flat_folder(tmp_path / "i", IDS, large)
    for queries in (QUERIES, QUERIES[:1]):
        assert NAME in searched(tmp_path / "i", queries=10 * queries)


def test_large_vectors_are_searched(tmp_path):
    flat_folder(tmp_path / "i", IDS, VECTORS * np.float32(1e25))
    hits = denserk.Index.open(tmp_path / "i").search(QUERIES, hits=5)
    expected = np.argsort(-(QUERIES @ VECTORS.T), axis=1)[:, :5]
    found = [[int(docid[1:]) for docid in of_query] for of_query in hits.values()]
    assert found == expected.tolist()


def test_scores_of_a_damaged_bm25_index(toy):
    pytest.importorskip("bm25s")
    index(corpus=str(toy / "corpus.jsonl"), type="bm25", output=str(toy / "i"))
    path = toy / "i" / "data.csc.index.npy"
    scores = np.load(path)
    scores[:] = np.nan
    np.save(path, scores)
    for query in ("river", "the river boat"):
        with pytest.raises(DenserkError, match=f"{toy / 'i'}.* passage d"):
            denserk.Index.open(toy / "i").search(query)


def test_queries_of_another_tool(tmp_path):
    flat_folder(tmp_path / "i", IDS, VECTORS)
    queries = QUERIES.copy()
    queries[7, 3] = np.nan
    assert "7" in searched(tmp_path / "i", queries=queries)
    with pytest.raises(DenserkError, match="query 7"):
        denserk.Index.open(tmp_path / "i").search(queries)


def test_encoded_queries_of_a_damaged_folder(tmp_path):
    flat_folder(tmp_path / "i", IDS, VECTORS)
    qids = [f"q{number}" for number in range(len(QUERIES))]
    vector_folder(tmp_path / "q", qids, QUERIES, model=None)
    damage(tmp_path / "q" / "block-00001.npy", np.nan, QUERIES[9])
    with pytest.raises(DenserkError, match="q9"):
        search(
            index=[str(tmp_path / "i")],
            encoded_queries=str(tmp_path / "q"),
            output=str(tmp_path / "run"),
        )


@pytest.fixture
def damaged_model(tiny, tmp_path):
    """A model whose first layer holds a number that is not finite."""
    from safetensors.numpy import load_file, save_file

    folder = tmp_path / "damaged"
    subprocess.run(["cp", "-r", str(tiny()), str(folder)], check=True)
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if name.endswith("layer.0.output.dense.weight"))
    weights[name] = weights[name].copy()
    weights[name][0, 0] = np.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_a_model_of_damaged_weights(damaged_model, tmp_path):
    encoder = denserk.Encoder.load(damaged_model, representation="mean", device="cpu")
    with pytest.raises(DenserkError, match="not finite"):
        encoder.encode_queries("the moon")
    with pytest.raises(DenserkError, match="not finite"):
        encoder.encode_passages(["the moon", "the sun"])
    vectors = np.ones((3, encoder.dimension), np.float32)
    opened = denserk.Index.build(vectors, output=tmp_path / "i")
    with pytest.raises(DenserkError, match="not finite"):
        opened.search({"q1": "the moon"}, model=encoder)
    (tmp_path / "q.tsv").write_text("q1\tthe moon\n")
    encode = ["encode", "--model", str(damaged_model), "--device", "cpu", "--representation", "cls"]
    assert run([*encode, "--topics", str(tmp_path / "q.tsv"), "--output", str(tmp_path / "e")]) == 1
    topics = ["--query", "the moon", "--model", str(damaged_model), "--device", "cpu"]
    asked = ["search", "--index", str(tmp_path / "i"), *topics, "--output", str(tmp_path / "run")]
    assert run(asked) == 1
    assert not (tmp_path / "run").exists()


def test_vectors_in_memory(tmp_path):
    vectors = VECTORS.astype(np.float64)
    vectors[DAMAGED, 0] = 1e39  # infinite in float32
    with pytest.raises(DenserkError, match=NAME):
        denserk.Index.build(vectors, ids=IDS)


def test_scores_of_runs_in_memory():
    runs = [{"q": {"d": 1.0}}, {"q": {"d": float("nan")}}]
    with pytest.raises(DenserkError, match="nan"):
        denserk.fuse(runs)
    with pytest.raises(DenserkError, match="nan"):
        denserk.evaluate(runs[1], {"q": {"d": 1}})


def test_milvus_takes_no_such_vector(tmp_path):
    require_milvus()
    vectors = VECTORS.copy()
    vectors[DAMAGED, 0] = np.nan
    np.save(tmp_path / "v.npy", vectors)
    made = ["index", "--engine", "milvus", "--uri", tmp_path / "a.db", "--collection", "c"]
    assert run([str(word) for word in [*made, "--input", tmp_path / "v.npy"]]) == 1
