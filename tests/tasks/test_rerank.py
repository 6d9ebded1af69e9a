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
from tests.support.training_examples import jsonl

CPU = ComputeSettings(device="cpu")
FILES = {"run": "in.trec", "topics": "queries.tsv", "corpus": "corpus.jsonl", "output": "out.trec"}
RUN = {"q1": ["d3", "d2", "d10"], "q3": ["d4", "d1", "d2", "d5"], "q2": ["d5"]}


def write(path, run):
    hits = {qid: [(d, float(-n)) for n, d in enumerate(docids)] for qid, docids in run.items()}
    write_run(path, hits.items())
    return str(path)


def by_hand(model, run, **text):
    scorer = PairScorer(str(model), text, compute=CPU)
    expected = {}
    for qid, docids in run.items():
        hits = []
        for docid in docids:
            title, body = PASSAGES[docid]
            [score] = scorer.score([Query(qid, QUERIES[qid])], [Passage(docid, body, title)])
            hits.append((docid, pytest.approx(float(score), abs=1e-5)))
        expected[qid] = sorted(hits, key=lambda hit: -hit[1].expected)
    return expected


@pytest.fixture
def asked(toy, tiny_reranker):

    def reranked(**options):
        if "run" not in options:
            write(toy / "in.trec", RUN)
        given = {"model": tiny_reranker(), "device": "cpu", "overwrite": True} | {
            name: str(toy / file) for name, file in FILES.items()
        }
        result = rerank(**{**given, **options})
        assert result.pairs >= result.hits
        return {q: list(hits.items()) for q, hits in read_run_scores(toy / "out.trec").items()}

    return reranked


def test_every_hit_of_the_run_is_scored_in_the_order_of_its_queries(asked, toy, tiny_reranker):
    found, expected = asked(), by_hand(tiny_reranker(), RUN)
    assert found == expected
    assert list(found) == list(RUN)
    manifest = read_manifest(toy / "out.trec", Kind.RUN)
    assert manifest.made_from["model"]["name"] == str(tiny_reranker())
    assert manifest.made_from["run"]["sha256"] == file_sha256(toy / "in.trec")
    digest = file_sha256(toy / "out.trec")
    assert manifest.contents == {"queries": 3, "pairs": 8, "hits": 8, "sha256": digest}
    assert asked(hits=1) == {qid: hits[:1] for qid, hits in expected.items()}


def test_first_means_by_score_then_by_id(asked, toy, tiny_reranker):
    (toy / "in.trec").write_text(
        "q1 Q0 d5 1 1.5 t\nq1 Q0 d2 2 3 t\nq1 Q0 d10 3 3 t\nq1 Q0 d1 4 3 t\n"
    )
    expected = by_hand(tiny_reranker(), {"q1": ["d2", "d10"]})
    assert asked(depth=2, run=str(toy / "in.trec")) == expected


@pytest.mark.parametrize("stream", ["run", "topics", "corpus"])
def test_one_input_may_be_standard_input(asked, toy, stream, monkeypatch):
    expected = asked()
    data = io.BytesIO((toy / FILES[stream]).read_bytes())
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=data))
    given = {"run": str(toy / "in.trec"), stream: "-"}
    assert asked(**given) == expected


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ({"q1": ["d3", "d77", "d78"], "q2": ["d77"]}, r"no passages with 2 of .*\('d77', 'd78'\)"),
        ({f"x{n}": ["d1"] for n in range(7)} | RUN, r"7 queries .* not hold \('x0', 'x1', "),
        ({}, "found no hits"),
    ],
)
def test_runs_that_cannot_be_reranked(asked, toy, run, message):
    with pytest.raises(InputError, match=message):
        asked(run=write(toy / "bad.trec", run))
    assert not (toy / "out.trec").exists()


def test_the_query_itself_is_left_out(asked, toy):
    corpus = [{"_id": docid, "title": t, "text": x} for docid, (t, x) in PASSAGES.items()]
    corpus.append({"_id": "q1", "text": QUERIES["q1"]})
    run = write(toy / "in.trec", {"q1": ["q1", "d3", "d2"]})
    found = asked(remove_query=True, depth=2, run=run, corpus=jsonl(toy / "c.jsonl", corpus))
    assert sorted(docid for docid, _ in found["q1"]) == ["d2", "d3"]
