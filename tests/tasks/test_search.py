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


def vectors_of(toy, model, name, side="corpus", **options):
    source = toy / ("corpus.jsonl" if side == "corpus" else "queries.tsv")
    given: dict[str, Any] = {side: str(source), "output": str(toy / name), **options}
    encode(model=str(model), device="cpu", **given)
    return str(toy / name)


def index_of(toy, vectors):
    index(input=[vectors], output=str(toy / "index"))
    return str(toy / "index")


def bm25_of(toy):
    index(corpus=str(toy / "corpus.jsonl"), output=str(toy / "bm25"), type="bm25")
    return str(toy / "bm25")


@pytest.fixture
def made(toy, model):
    return index_of(toy, vectors_of(toy, model, "v"))


def ranked(toy, folder, **options):
    if "encoded_queries" not in options:
        options.setdefault("topics", str(toy / "queries.tsv"))
    given: dict[str, Any] = {"hits": 4, "overwrite": True, "device": "cpu", **options}
    search(index=[folder], output=str(toy / "run.trec"), **given)
    return {qid: list(hits.items()) for qid, hits in read_run_scores(toy / "run.trec").items()}


@pytest.fixture
def model(tiny):
    return tiny("bert")


MEAN = {"representation": "mean", "l2_norm": True}


def near(run):
    """The same passages in the same order; sums may be rounded otherwise in another batch."""
    return {
        q: [(docid, pytest.approx(s, rel=1e-5)) for docid, s in hits] for q, hits in run.items()
    }


def test_the_same_run_however_the_queries_come(toy, model, caplog):
    vectors = vectors_of(toy, model, "v", **MEAN)
    made = index_of(toy, vectors)
    encoded = vectors_of(toy, model, "q", "topics", **MEAN)
    by_hand = {}
    passages, queries = (np.load(toy / name / "block-00000.npy") for name in "vq")
    for qid, query in zip(QUERIES, queries, strict=True):
        order = sorted(zip(passages @ query, PASSAGES, strict=True), reverse=True)[:4]
        by_hand[qid] = [(docid, score) for score, docid in order]
    caplog.clear()
    assert ranked(toy, made) == near(by_hand)
    assert f"queries are encoded by {model}, which encoded {made}" in caplog.messages
    assert ranked(toy, made, model=str(model)) == near(by_hand)
    assert ranked(toy, made, encoded_queries=encoded) == near(by_hand)
    assert ranked(toy, vectors) == near(by_hand)
    lines = write_vectors(toy / "q.jsonl", list(QUERIES), queries)
    assert ranked(toy, made, encoded_queries=lines) == near(by_hand)
    for shard in range(2):
        cut = {"block_size": 2, "shard_id": shard, "shard_num": 2}
        vectors_of(toy, model, f"s{shard}", **MEAN, **cut)
    assert ranked(toy, str(toy / "s?")) == near(by_hand)
    named = read_manifest(toy / "run.trec", Kind.RUN).made_from["index"]
    assert [part["name"] for part in named] == [str(toy / "s0"), str(toy / "s1")]
    with pytest.raises(MismatchError, match="is a BM25 index, not an index of vectors"):
        search(index=[vectors, bm25_of(toy)], topics=str(toy / "queries.tsv"), output="run")


def test_topics_say_which_encoded_queries_and_in_which_order(toy, model, made):
    encoded = vectors_of(toy, model, "q", "topics")
    everything = near(ranked(toy, made, encoded_queries=encoded))
    (toy / "some.tsv").write_text("q3\tx\nq1\ty\n")
    some = ranked(toy, made, encoded_queries=encoded, topics=str(toy / "some.tsv"))
    assert list(some) == ["q3", "q1"]
    assert some == {qid: everything[qid] for qid in some}
    (toy / "more.tsv").write_text("q1\tx\nq7\ty\n")
    with pytest.raises(InputError, match="no vector for 1 of 2 queries, the first q7"):
        ranked(toy, made, encoded_queries=encoded, topics=str(toy / "more.tsv"))


def test_bm25_needs_no_model(toy, caplog):
    made = bm25_of(toy)
    found = ranked(toy, made)
    assert {qid: hits[0][0] for qid, hits in found.items()} == {"q1": "d3", "q2": "d5", "q3": "d4"}
    assert [docid for docid, _ in found["q2"]] == ["d5", "d1"]  # equal scores
    with pytest.raises(UsageError, match=r"--model m: .* is a BM25 index"):
        ranked(toy, made, model="m")
    with pytest.raises(UsageError, match=r"ef-search 9: .* is a BM25 index"):
        ranked(toy, made, ef_search=9)
    with pytest.raises(UsageError, match="--prf average: the index does not return"):
        ranked(toy, made, prf="average")
    (toy / "queries.tsv").write_text("q1\tthe of\nq2\triver\nq3\tzebra\n")
    caplog.clear()
    assert list(ranked(toy, made)) == ["q2"]
    (warning,) = warnings_of(caplog)
    assert "2 queries have no hits and are missing from the run ('q1', 'q3')" in warning


def test_the_run_has_a_manifest(toy, made):
    ranked(toy, made, tag="mine")
    assert all(line.endswith(" mine") for line in (toy / "run.trec").read_text().splitlines())
    manifest, folder = read_manifest(toy / "run.trec", Kind.RUN), toy / "index"
    counts = {"queries": 3, "hits": 12, "ties": 0, "without_hits": 0}
    expected = counts | {"sha256": file_sha256(toy / "run.trec")}
    assert manifest.contents == expected | {"seconds": manifest.contents["seconds"]}
    assert manifest.made_from["index"]["sha256"]["index"] == file_sha256(folder / "index")
    assert manifest.made_from["index"]["bytes"] == sum(map(len, contents(folder).values()))
    encoder = read_manifest(folder, Kind.INDEX).made_from["model"]
    assert manifest.made_from["model"]["fingerprint"] == encoder["fingerprint"]
    assert manifest.settings["hits"] == 4


@pytest.mark.parametrize("output", ["-", "/dev/null"])
def test_streams_have_no_manifest(toy, output, capfdbinary):
    search(index=[bm25_of(toy)], topics=str(toy / "queries.tsv"), output=output)
    assert bool(capfdbinary.readouterr().out) == (output == "-")
    assert not list(toy.glob("*.manifest.json"))


def test_queries_that_do_not_fit(toy, tiny, model, made, caplog):
    other, lines = str(tiny("bert", seed=8)), str(toy / "q.jsonl")
    with pytest.raises(MismatchError, match="other weights"):
        ranked(toy, made, model=other)
    for name, given, was in (("representation", "mean", "cls"), ("join", "sep", " ")):
        with pytest.raises(MismatchError, match=f"{name} was '{was}', now '{given}'"):
            ranked(toy, made, model=str(model), **{name: given})
    assert len(ranked(toy, made, model=str(model), query_max_length=20)) == 3
    (toy / "run.trec").unlink()
    with pytest.raises(MismatchError, match="other weights"):
        ranked(toy, made, encoded_queries=vectors_of(toy, other, "q", "topics"))
    (toy / "q.jsonl").write_text('{"qid": "q1", "vector": [1, 2]}\n' * 2)
    with pytest.raises(InputError, match="the query id q1 twice"):
        ranked(toy, made, encoded_queries=lines)
    (toy / "q.jsonl").write_text('{"qid": "q1", "vector": [1, 2, 3]}\n')
    with pytest.raises(MismatchError, match=r"of 16 dimensions, .*q.jsonl makes 3"):
        ranked(toy, made, encoded_queries=lines, force=True)
    assert not (toy / "run.trec").exists()
    assert len(ranked(toy, made, model=other, force=True)) == 3
    caplog.clear()
    found = ranked(toy, made, encoded_queries=str(toy / "v"), hits=6, remove_query=True)
    assert warnings_of(caplog) == [f"{toy / 'v'} was encoded as passages, not as queries"]
    assert all(qid not in dict(hits) and len(hits) == 5 for qid, hits in found.items())


def test_queries_are_cut_like_the_index(toy, tiny, model):
    cut = index_of(toy, vectors_of(toy, model, "cut", **MEAN, truncate_dim=5))
    ranked(toy, cut)
    described = read_manifest(toy / "run.trec", Kind.RUN).made_from["model"]
    assert described["representation"]["truncate_dim"] == described["dimension"] == 5
    whole, other = vectors_of(toy, model, "q", "topics", **MEAN), str(tiny("bert", seed=8))
    for given in ({"truncate_dim": 7}, {"encoded_queries": whole}, {"model": other}):
        with pytest.raises(MismatchError, match="holds vectors of 5 dimensions") as caught:
            ranked(toy, cut, **given)
        assert "--truncate-dim 5" in str(caught.value.hint)


def test_an_index_of_another_tool(toy, model, made):
    own = ranked(toy, made)
    (toy / "index" / "manifest.json").unlink()
    with pytest.raises(UsageError, match="names no model"):
        ranked(toy, made)
    assert ranked(toy, made, model=str(model)) == own


def in_precision(toy, folder, capsys, *options):
    """Search from the command line; return what is logged and the queries' precision."""
    capsys.readouterr()
    asked = ["search", "--index", str(folder), "--topics", str(toy / "queries.tsv")]
    asked += ["--device", "cpu", "--output", str(toy / "run.trec"), "--overwrite", *options]
    assert command(asked) == 0
    model = read_manifest(toy / "run.trec", Kind.RUN).made_from["model"]
    return capsys.readouterr().err, model["dtype"]


def test_queries_are_encoded_in_the_precision_of_the_index(toy, model, capsys, monkeypatch):
    monkeypatch.setattr("denserk.models.processor.has_bfloat16", lambda: True)
    made = index_of(toy, vectors_of(toy, model, "vectors", dtype="bfloat16"))
    for folder in (made, toy / "vectors"):
        said, dtype = in_precision(toy, folder, capsys)
        assert f"queries are encoded in bfloat16, as {folder} was" in said
        assert dtype == "bfloat16"
    assert in_precision(toy, made, capsys, "--dtype", "float32")[1] == "float32"
    manifest = toy / "index" / "manifest.json"
    record = json.loads(manifest.read_text())
    for precision in ("float16", "float32"):
        record["made_from"]["model"] |= {"dtype": precision, "head_dtype": precision}
        manifest.write_text(json.dumps(record))
        said, dtype = in_precision(toy, made, capsys)
        reason = f"{made} was encoded in float16, for which the CPU has no instructions"
        assert (f"in float32: {reason}" in said) == (precision == "float16")
        assert dtype == "float32"
    assert in_precision(toy, made, capsys, "--bf16")[1] == "bfloat16"
