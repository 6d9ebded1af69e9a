"""A number that is not finite, in a vector, a query or a score, never gives a run with status 0."""

import json
import subprocess

import numpy as np
import pytest

import denserk
from denserk.commands.app import run
from denserk.commands.retrieve import index, search
from denserk.errors import DenserkError
from tests.support.faults import denserk as run_in_process
from tests.support.index_folders import flat_folder, vector_folder
from tests.support.milvus import require_milvus

COUNT = 600
DIMENSION = 16
DAMAGED = 417  # the row of a vector with a number that is not finite
NAME = "p417"  # its passage
IDS = [f"p{number}" for number in range(COUNT)]
RANDOM = np.random.default_rng(4)
VECTORS = RANDOM.normal(size=(COUNT, DIMENSION)).astype(np.float32)
QUERIES = RANDOM.normal(size=(40, DIMENSION)).astype(np.float32)
TYPES = {
    "hnsw": ["--type", "hnsw", "--set", "M=8"],
    "ivf": ["--type", "ivf", "--nlist", "8"],
    "sqfp16": ["--type", "sqfp16"],
    "refined": ["--factory", "PQ4x4,RFlat"],
}


def error_of_search(folder, hits=10, queries=QUERIES):
    """Search by the command; return its error's text, or fail."""
    np.save(folder.parent / "queries.npy", queries)
    with pytest.raises(DenserkError) as caught:
        search(
            index=[str(folder)],
            encoded_queries=str(folder.parent / "queries.npy"),
            output=str(folder.parent / "run.trec"),
            hits=hits,
            device="cpu",
        )
    assert not (folder.parent / "run.trec").exists()
    assert caught.value.exit_status == 1
    return str(caught.value)


def damage(path, value, vector, dtype=np.float32):
    """Replace a number of the vector, whose bytes stand once in a file."""
    data = path.read_bytes()
    vector = vector.astype(dtype)
    damaged_vector = vector.copy()
    damaged_vector[5] = value
    assert data.count(vector.tobytes()) == 1
    path.write_bytes(data.replace(vector.tobytes(), damaged_vector.tobytes()))


def write_damaged_flat(folder, value=np.nan, metric="inner", size=1):
    """Write a flat index as another tool does, with many copies of its vectors."""
    vectors = np.tile(VECTORS, (10, 1))  # more than a block
    vectors[size * DAMAGED, 5] = value
    ids = [f"p{number}" for number in range(len(vectors) // size)]
    return flat_folder(folder, ids, vectors, size=size, metric=metric)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("queries", [1, 3, 40])
@pytest.mark.parametrize("hits", [1, 10, 5000])
def test_a_vector_of_a_flat_index(tmp_path, value, queries, hits):
    write_damaged_flat(tmp_path / "i", value)
    message = error_of_search(tmp_path / "i", hits, QUERIES[:queries])
    assert NAME in message
    assert str(tmp_path / "i") in message


@pytest.mark.parametrize("metric", ["inner", "l2"])
@pytest.mark.parametrize("size", [1, 4])
def test_passages_of_several_vectors_and_distances(tmp_path, metric, size):
    write_damaged_flat(tmp_path / "i", metric=metric, size=size)
    for queries in (QUERIES, QUERIES[:2]):
        assert f"passage {NAME} " in error_of_search(tmp_path / "i", queries=queries)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_folders_of_vectors_and_shards(tmp_path, dtype):
    folders = [tmp_path / "s0", tmp_path / "s1", tmp_path / "s2"]
    for number, folder in enumerate(folders):
        rows = slice(200 * number, 200 * (number + 1))
        vector_folder(folder, IDS[rows], VECTORS[rows], block=50, dtype=dtype)
    block = tmp_path / "s2" / "block-00000.npy"  # rows 400 to 449
    damage(block, np.nan, VECTORS[DAMAGED], np.dtype(dtype))
    for searched_folders in ([tmp_path / "s2"], folders):
        with pytest.raises(DenserkError, match=NAME) as caught:
            denserk.Index.open(searched_folders).search(QUERIES)
        assert "s2" in str(caught.value)


def test_the_error_is_one_line_and_a_hint_of_the_command(tmp_path):
    write_damaged_flat(tmp_path / "i")
    np.save(tmp_path / "q.npy", QUERIES)
    inputs = ["--index", tmp_path / "i", "--query-reps", tmp_path / "q.npy"]
    process = run_in_process("search", *inputs, "--output", tmp_path / "run.trec")
    assert process.returncode == 1
    assert NAME in process.stderr
    assert "--verify" in process.stderr
    assert "Traceback" not in process.stderr
    assert not (tmp_path / "run.trec").exists()


def build_approximate(folder, options):
    """Build an approximate index of the vectors by the command."""
    with (folder / "v.jsonl").open("w") as file:
        for docid, vector in zip(IDS, VECTORS, strict=True):
            file.write(json.dumps({"id": docid, "vector": vector.tolist()}) + "\n")
    files = ["--input", str(folder / "v.jsonl"), "--output", str(folder / "i")]
    assert run(["index", *files, "--threads", "1", *options]) == 0
    return folder / "i"


@pytest.mark.parametrize("index_type", TYPES)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_vector_of_an_approximate_index(tmp_path, index_type, value):
    pytest.importorskip("faiss")
    folder = build_approximate(tmp_path, TYPES[index_type])
    dtype = np.float16 if index_type == "sqfp16" else np.float32
    damage(folder / "index", value, VECTORS[DAMAGED], dtype)
    assert NAME in error_of_search(folder)


def trained_numbers(path, index_type):
    """The numbers that an index has learned: centroids, scales or codebooks."""
    faiss = pytest.importorskip("faiss")
    index = faiss.read_index(str(path))
    if index_type == "ivf":
        return index.quantizer.reconstruct_n(0, 8).ravel()
    if index_type == "sq8":
        return faiss.vector_to_array(index.sq.trained)
    if index_type == "hnswpq":
        return faiss.vector_to_array(faiss.downcast_index(index.storage).pq.centroids)
    return faiss.vector_to_array(index.pq.centroids)


@pytest.mark.parametrize("index_type", ["ivf", "pq", "sq8", "hnswpq"])
def test_a_trained_number_of_an_approximate_index(tmp_path, index_type):
    pytest.importorskip("faiss")
    small = ["--nlist", "8", "--set", "M=8", "--set", "pq-m=4", "--set", "pq-nbits=4"]
    folder = build_approximate(tmp_path, ["--type", index_type, *small])
    damage(folder / "index", np.nan, trained_numbers(folder / "index", index_type)[:16])
    message = error_of_search(folder)
    assert "not finite" in message
    assert str(folder / "index") in message


def test_too_large_scores_of_finite_vectors(tmp_path):
    vectors = VECTORS.copy()
    vectors[DAMAGED] = 3e38 * np.sign(QUERIES[0])
    flat_folder(tmp_path / "i", IDS, vectors)
    for queries in (QUERIES, QUERIES[:1]):
        assert NAME in error_of_search(tmp_path / "i", queries=10 * queries)


def test_large_vectors_are_searched(tmp_path):
    flat_folder(tmp_path / "i", IDS, VECTORS * np.float32(1e25))
    run_of_queries = denserk.Index.open(tmp_path / "i").search(QUERIES, hits=5)
    expected_rows = np.argsort(-(QUERIES @ VECTORS.T), axis=1)[:, :5]
    for hits, rows in zip(run_of_queries.values(), expected_rows, strict=True):
        assert list(hits) == [IDS[row] for row in rows]


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
    assert "7" in error_of_search(tmp_path / "i", queries=queries)
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
    index_of_ones = denserk.Index.build(vectors, output=tmp_path / "i")
    with pytest.raises(DenserkError, match="not finite"):
        index_of_ones.search({"q1": "the moon"}, model=encoder)


def test_commands_with_a_model_of_damaged_weights(damaged_model, tmp_path):
    encoder = denserk.Encoder.load(damaged_model, representation="mean", device="cpu")
    denserk.Index.build(np.ones((3, encoder.dimension), np.float32), output=tmp_path / "i")
    (tmp_path / "q.tsv").write_text("q1\tthe moon\n")
    encode = ["encode", "--model", str(damaged_model), "--device", "cpu", "--representation", "cls"]
    assert run([*encode, "--topics", str(tmp_path / "q.tsv"), "--output", str(tmp_path / "e")]) == 1
    queries = ["--query", "the moon", "--model", str(damaged_model), "--device", "cpu"]
    files = ["--index", str(tmp_path / "i"), "--output", str(tmp_path / "run")]
    assert run(["search", *files, *queries]) == 1
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
    in_milvus = ["--engine", "milvus", "--uri", str(tmp_path / "a.db"), "--collection", "c"]
    assert run(["index", *in_milvus, "--input", str(tmp_path / "v.npy")]) == 1
