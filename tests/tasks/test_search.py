import json
from typing import Any

import numpy as np
import pytest

from denserk.commands.app import run as command
from denserk.commands.retrieve import encode, index, search
from denserk.errors import InputError, MismatchError, UsageError
from denserk.io.manifest import Kind, file_sha256, read_manifest
from denserk.io.runs import read_run_scores
from tests.support.console import warnings_of
from tests.support.faults import contents
from tests.support.milvus import write_vectors
from tests.support.toy import PASSAGES, QUERIES


def encode_passages(toy, model, name, **options):
    encode(
        model=str(model),
        corpus=str(toy / "corpus.jsonl"),
        output=str(toy / name),
        device="cpu",
        **options,
    )
    return str(toy / name)


def encode_queries(toy, model, name, **options):
    encode(
        model=str(model),
        topics=str(toy / "queries.tsv"),
        output=str(toy / name),
        device="cpu",
        **options,
    )
    return str(toy / name)


def build_flat(toy, vectors):
    index(input=[vectors], output=str(toy / "index"))
    return str(toy / "index")


def build_bm25(toy):
    index(corpus=str(toy / "corpus.jsonl"), output=str(toy / "bm25"), type="bm25")
    return str(toy / "bm25")


@pytest.fixture
def flat(toy, model):
    """A flat index of the toy collection."""
    return build_flat(toy, encode_passages(toy, model, "v"))


def ranked(toy, folder, **options):
    """Search for the toy queries, or those of the options; return the hits by query."""
    if "encoded_queries" not in options:
        options.setdefault("topics", str(toy / "queries.tsv"))
    defaults: dict[str, Any] = {"hits": 4, "overwrite": True, "device": "cpu"}
    search(index=[folder], output=str(toy / "run.trec"), **(defaults | options))
    return {qid: list(hits.items()) for qid, hits in read_run_scores(toy / "run.trec").items()}


@pytest.fixture
def model(tiny):
    return tiny("bert")


MEAN = {"representation": "mean", "l2_norm": True}


def near(run):
    """The same passages in the same order; sums may be rounded otherwise in another batch."""
    near_run = {}
    for qid, hits in run.items():
        near_run[qid] = [(docid, pytest.approx(score, rel=1e-5)) for docid, score in hits]
    return near_run


def test_the_same_run_however_the_queries_come(toy, model, caplog):
    vectors = encode_passages(toy, model, "v", **MEAN)
    folder = build_flat(toy, vectors)
    encoded_queries = encode_queries(toy, model, "q", **MEAN)
    passage_vectors = np.load(toy / "v/block-00000.npy")
    query_vectors = np.load(toy / "q/block-00000.npy")
    exact_run = {}
    for qid, vector in zip(QUERIES, query_vectors, strict=True):
        scored = sorted(zip(passage_vectors @ vector, PASSAGES, strict=True), reverse=True)
        exact_run[qid] = [(docid, score) for score, docid in scored[:4]]
    expected = near(exact_run)

    caplog.clear()
    assert ranked(toy, folder) == expected
    assert f"queries are encoded by {model}, which encoded {folder}" in caplog.messages
    assert ranked(toy, folder, model=str(model)) == expected
    assert ranked(toy, folder, encoded_queries=encoded_queries) == expected
    assert ranked(toy, vectors) == expected
    lines = write_vectors(toy / "q.jsonl", list(QUERIES), query_vectors)
    assert ranked(toy, folder, encoded_queries=lines) == expected


def test_shards_are_searched_as_the_whole(toy, model):
    expected = near(ranked(toy, encode_passages(toy, model, "v")))
    encode_passages(toy, model, "s0", block_size=2, shard_id=0, shard_num=2)
    encode_passages(toy, model, "s1", block_size=2, shard_id=1, shard_num=2)
    assert ranked(toy, str(toy / "s?")) == expected
    shards = read_manifest(toy / "run.trec", Kind.RUN).made_from["index"]
    assert [shard["name"] for shard in shards] == [str(toy / "s0"), str(toy / "s1")]


def test_vectors_and_a_bm25_index_are_not_searched_together(toy, model):
    folders = [encode_passages(toy, model, "v"), build_bm25(toy)]
    with pytest.raises(MismatchError, match="is a BM25 index, not an index of vectors"):
        search(index=folders, topics=str(toy / "queries.tsv"), output="run")


def test_topics_say_which_encoded_queries_and_in_which_order(toy, model, flat):
    encoded = encode_queries(toy, model, "q")
    run = near(ranked(toy, flat, encoded_queries=encoded))
    (toy / "some.tsv").write_text("q3\tx\nq1\ty\n")
    run_of_some = ranked(toy, flat, encoded_queries=encoded, topics=str(toy / "some.tsv"))
    assert list(run_of_some) == ["q3", "q1"]
    assert run_of_some == {"q3": run["q3"], "q1": run["q1"]}
    (toy / "more.tsv").write_text("q1\tx\nq7\ty\n")
    with pytest.raises(InputError, match="no vector for 1 of 2 queries, the first q7"):
        ranked(toy, flat, encoded_queries=encoded, topics=str(toy / "more.tsv"))
    with pytest.raises(UsageError, match="--query-max-length: --encoded-queries takes no model"):
        ranked(toy, flat, encoded_queries=encoded, query_max_length=9)


def test_bm25_needs_no_model(toy):
    folder = build_bm25(toy)
    run = ranked(toy, folder)
    best = {qid: hits[0][0] for qid, hits in run.items()}
    assert best == {"q1": "d3", "q2": "d5", "q3": "d4"}
    assert [docid for docid, _ in run["q2"]] == ["d5", "d1"]  # equal scores
    with pytest.raises(UsageError, match=r"--model m: .* is a BM25 index"):
        ranked(toy, folder, model="m")
    with pytest.raises(UsageError, match=r"ef-search 9: .* is a BM25 index"):
        ranked(toy, folder, ef_search=9)
    with pytest.raises(UsageError, match="--prf average: the index does not return"):
        ranked(toy, folder, prf="average")
    with pytest.raises(UsageError, match=r"--query-max-length: .* is a BM25 index"):
        ranked(toy, folder, query_max_length=9)


def test_queries_without_hits_are_named(toy, caplog):
    folder = build_bm25(toy)
    (toy / "queries.tsv").write_text("q1\tthe of\nq2\triver\nq3\tzebra\n")
    caplog.clear()
    assert list(ranked(toy, folder)) == ["q2"]
    (warning,) = warnings_of(caplog)
    assert "2 queries have no hits and are missing from the run ('q1', 'q3')" in warning


def test_the_run_has_a_manifest(toy, flat):
    ranked(toy, flat, tag="mine")
    assert all(line.endswith(" mine") for line in (toy / "run.trec").read_text().splitlines())
    manifest = read_manifest(toy / "run.trec", Kind.RUN)
    assert manifest.settings["hits"] == 4
    counts = dict(manifest.contents)
    assert counts.pop("seconds").keys() == {"encoding", "searching"}
    assert counts == {
        "queries": 3,
        "hits": 12,
        "ties": 0,
        "without_hits": 0,
        "sha256": file_sha256(toy / "run.trec"),
    }
    folder = toy / "index"
    assert manifest.made_from["index"]["sha256"]["index"] == file_sha256(folder / "index")
    assert manifest.made_from["index"]["bytes"] == sum(map(len, contents(folder).values()))
    encoder = read_manifest(folder, Kind.INDEX).made_from["model"]
    assert manifest.made_from["model"]["fingerprint"] == encoder["fingerprint"]


@pytest.mark.parametrize("output", ["-", "/dev/null"])
def test_streams_have_no_manifest(toy, output, capfdbinary):
    search(index=[build_bm25(toy)], topics=str(toy / "queries.tsv"), output=output)
    assert bool(capfdbinary.readouterr().out) == (output == "-")
    assert not list(toy.glob("*.manifest.json"))


def test_a_model_with_other_weights_or_settings_is_rejected(toy, tiny, model, flat):
    other_model = str(tiny("bert", seed=8))
    with pytest.raises(MismatchError, match="other weights"):
        ranked(toy, flat, model=other_model)
    with pytest.raises(MismatchError, match="other weights"):
        ranked(toy, flat, encoded_queries=encode_queries(toy, other_model, "q"))
    with pytest.raises(MismatchError, match="representation was 'cls', now 'mean'"):
        ranked(toy, flat, model=str(model), representation="mean")
    with pytest.raises(MismatchError, match="join was ' ', now 'sep'"):
        ranked(toy, flat, model=str(model), join="sep")
    assert not (toy / "run.trec").exists()
    assert len(ranked(toy, flat, model=str(model), query_max_length=20)) == 3
    assert len(ranked(toy, flat, model=other_model, force=True)) == 3


def test_encoded_queries_that_do_not_fit(toy, flat):
    lines = toy / "q.jsonl"
    lines.write_text('{"qid": "q1", "vector": [1, 2]}\n' * 2)
    with pytest.raises(InputError, match="the query id q1 twice"):
        ranked(toy, flat, encoded_queries=str(lines))
    lines.write_text('{"qid": "q1", "vector": [1, 2, 3]}\n')
    with pytest.raises(MismatchError, match=r"of 16 dimensions, .*q.jsonl makes 3"):
        ranked(toy, flat, encoded_queries=str(lines), force=True)
    assert not (toy / "run.trec").exists()


def test_encoded_passages_may_be_the_queries(toy, flat, caplog):
    passages = str(toy / "v")
    caplog.clear()
    run = ranked(toy, flat, encoded_queries=passages, hits=6, remove_query=True)
    assert warnings_of(caplog) == [f"{passages} was encoded as passages, not as queries"]
    for docid, hits in run.items():
        assert docid not in dict(hits)
        assert len(hits) == 5


def test_queries_are_cut_like_the_index(toy, tiny, model):
    cut_index = build_flat(toy, encode_passages(toy, model, "cut", **MEAN, truncate_dim=5))
    ranked(toy, cut_index)
    encoder = read_manifest(toy / "run.trec", Kind.RUN).made_from["model"]
    assert encoder["representation"]["truncate_dim"] == 5
    assert encoder["dimension"] == 5
    uncut_queries = encode_queries(toy, model, "q", **MEAN)
    other_model = str(tiny("bert", seed=8))
    options: dict[str, Any]
    for options in (
        {"truncate_dim": 7},
        {"encoded_queries": uncut_queries},
        {"model": other_model},
    ):
        with pytest.raises(MismatchError, match="holds vectors of 5 dimensions") as error:
            ranked(toy, cut_index, **options)
        assert "--truncate-dim 5" in str(error.value.hint)


def test_an_index_of_another_tool(toy, model, flat):
    run = ranked(toy, flat)
    (toy / "index" / "manifest.json").unlink()
    with pytest.raises(UsageError, match="names no model"):
        ranked(toy, flat)
    assert ranked(toy, flat, model=str(model)) == run


def log_and_precision(toy, folder, capsys, *options):
    """Search from the command line; return what is logged and the queries' precision."""
    capsys.readouterr()
    words = ["search", "--index", str(folder), "--topics", str(toy / "queries.tsv")]
    words += ["--device", "cpu", "--output", str(toy / "run.trec"), "--overwrite", *options]
    assert command(words) == 0
    model = read_manifest(toy / "run.trec", Kind.RUN).made_from["model"]
    return capsys.readouterr().err, model["dtype"]


def test_queries_are_encoded_in_the_precision_of_the_index(toy, model, capsys, monkeypatch):
    monkeypatch.setattr("denserk.models.processor.has_bfloat16", lambda: True)
    vectors = encode_passages(toy, model, "vectors", dtype="bfloat16")
    for folder in (build_flat(toy, vectors), vectors):
        log, dtype = log_and_precision(toy, folder, capsys)
        assert f"queries are encoded in bfloat16, as {folder} was" in log
        assert dtype == "bfloat16"
        _, dtype = log_and_precision(toy, folder, capsys, "--dtype", "float32")
        assert dtype == "float32"


@pytest.mark.parametrize("precision", ["float16", "float32"])
def test_queries_are_encoded_in_float32_where_the_cpu_has_no_float16(
    toy, flat, capsys, monkeypatch, precision
):
    monkeypatch.setattr("denserk.models.processor.has_bfloat16", lambda: True)
    manifest = toy / "index" / "manifest.json"
    record = json.loads(manifest.read_text())
    record["made_from"]["model"] |= {"dtype": precision, "head_dtype": precision}
    manifest.write_text(json.dumps(record))
    log, dtype = log_and_precision(toy, flat, capsys)
    assert dtype == "float32"
    message = f"in float32: {flat} was encoded in float16, for which the CPU has no instructions"
    assert (message in log) == (precision == "float16")
    _, dtype = log_and_precision(toy, flat, capsys, "--bf16")
    assert dtype == "bfloat16"
