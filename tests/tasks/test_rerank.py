import io
from types import SimpleNamespace

import pytest

from denserk.commands.retrieve import rerank
from denserk.config.encoding import ComputeSettings
from denserk.errors import InputError
from denserk.io.manifest import Kind, file_sha256, read_manifest
from denserk.io.runs import read_run_scores, write_run
from denserk.models.cross_encoder import PairScorer
from denserk.records import Passage, Query
from tests.support.toy import PASSAGES, QUERIES

CPU = ComputeSettings(device="cpu")
FILES = {"run": "in.trec", "topics": "queries.tsv", "corpus": "corpus.jsonl", "output": "out.trec"}
RUN = {"q1": ["d3", "d2", "d10"], "q3": ["d4", "d1", "d2", "d5"], "q2": ["d5"]}


def write(path, run):
    """Write a run of ids by query, the best first."""
    rankings = []
    for qid, docids in run.items():
        rankings.append((qid, [(docid, float(-rank)) for rank, docid in enumerate(docids)]))
    write_run(path, rankings)
    return str(path)


def scored_one_by_one(model, run):
    """Return the hits of a run with the scores of their pairs, the best first."""
    scorer = PairScorer(str(model), {}, compute=CPU)
    expected = {}
    for qid, docids in run.items():
        hits = []
        for docid in docids:
            title, text = PASSAGES[docid]
            [score] = scorer.score([Query(qid, QUERIES[qid])], [Passage(docid, text, title)])
            hits.append((docid, float(score)))
        hits.sort(key=lambda hit: -hit[1])
        expected[qid] = [(docid, pytest.approx(score, abs=1e-5)) for docid, score in hits]
    return expected


@pytest.fixture
def reranked(toy, tiny_reranker):
    """Reranks RUN, or the run of the option; returns the hits by query."""

    def rerank_toy(**options):
        if "run" not in options:
            write(toy / "in.trec", RUN)
        paths = {name: str(toy / file) for name, file in FILES.items()}
        defaults = {"model": tiny_reranker(), "device": "cpu", "overwrite": True, **paths}
        result = rerank(**(defaults | options))
        assert result.pairs >= result.hits
        run = read_run_scores(toy / "out.trec")
        return {qid: list(hits.items()) for qid, hits in run.items()}

    return rerank_toy


def test_every_hit_of_the_run_is_scored_in_the_order_of_its_queries(reranked, toy, tiny_reranker):
    run = reranked()
    expected = scored_one_by_one(tiny_reranker(), RUN)
    assert run == expected
    assert list(run) == list(RUN)
    manifest = read_manifest(toy / "out.trec", Kind.RUN)
    assert manifest.made_from["model"]["name"] == str(tiny_reranker())
    assert manifest.made_from["run"]["sha256"] == file_sha256(toy / "in.trec")
    sha256 = file_sha256(toy / "out.trec")
    assert manifest.contents == {"queries": 3, "pairs": 8, "hits": 8, "sha256": sha256}
    assert reranked(hits=1) == {qid: hits[:1] for qid, hits in expected.items()}


def test_the_first_hits_are_those_by_score_then_by_id(reranked, toy, tiny_reranker):
    (toy / "in.trec").write_text(
        "q1 Q0 d5 1 1.5 t\nq1 Q0 d2 2 3 t\nq1 Q0 d10 3 3 t\nq1 Q0 d1 4 3 t\n"
    )
    expected = scored_one_by_one(tiny_reranker(), {"q1": ["d2", "d10"]})
    assert reranked(depth=2, run=str(toy / "in.trec")) == expected


@pytest.mark.parametrize("stream", ["run", "topics", "corpus"])
def test_one_input_may_be_standard_input(reranked, toy, stream, monkeypatch):
    expected = reranked()
    standard_input = io.BytesIO((toy / FILES[stream]).read_bytes())
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=standard_input))
    options = {"run": str(toy / "in.trec"), stream: "-"}
    assert reranked(**options) == expected


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ({"q1": ["d3", "d77", "d78"], "q2": ["d77"]}, r"no passages with 2 of .*\('d77', 'd78'\)"),
        ({f"x{n}": ["d1"] for n in range(7)} | RUN, r"7 queries .* not hold \('x0', 'x1', "),
        ({}, "found no hits"),
    ],
)
def test_runs_that_cannot_be_reranked(reranked, toy, run, message):
    with pytest.raises(InputError, match=message):
        reranked(run=write(toy / "bad.trec", run))
    assert not (toy / "out.trec").exists()


def test_the_query_itself_is_left_out(reranked, toy):
    with (toy / "corpus.jsonl").open("a") as corpus:
        corpus.write('{"_id": "q1", "text": "a query"}\n')
    run = write(toy / "in.trec", {"q1": ["q1", "d3", "d2"]})
    hits = reranked(remove_query=True, depth=2, run=run)["q1"]
    assert sorted(docid for docid, _ in hits) == ["d2", "d3"]
