"""The JSON interface, by the requests and fields of Pyserini's clients."""

import json

import pytest

from denserk.commands.app import run
from denserk.config.retrieval import Normalization
from denserk.config.serving import AnswerSettings
from denserk.index.fusion import normalized
from denserk.io.runs import read_run_scores
from denserk.version import __version__
from tests.support.serving import client_of, opened_service
from tests.support.toy import PASSAGES


def search(client, index="bm25", **parameters):
    """Return the answer of a search as Pyserini's clients ask for it."""
    response = client.get(f"/v1/{index}/search", params=parameters)
    assert response.status_code == 200, response.text
    return response.json()


def error_of(client, path, status=400, **parameters):
    """Return the message of a request that is rejected."""
    response = client.get(path, params=parameters)
    assert response.status_code == status, response.text
    (name,) = response.json()
    assert name == "error"
    return response.json()["error"]


def test_a_search_answers_with_the_fields_of_pyserini(client):
    answer = search(client, query="river boat", hits=2)
    assert list(answer) == ["api", "index", "query", "candidates"]
    assert answer["api"] == "v1"
    assert answer["index"] == "bm25"
    assert answer["query"] == {"text": "river boat"}
    first, second = answer["candidates"]
    assert list(first) == ["docid", "score", "rank", "doc"]
    assert (first["docid"], first["rank"], second["docid"], second["rank"]) == ("d5", 1, "d1", 2)
    assert first["score"] > second["score"] > 0
    assert first["doc"] == {"title": "Boat", "text": "a red boat on blue water"}


@pytest.mark.parametrize("index", ["bm25", "dense"])
def test_hits_are_those_of_the_search_command(client, served, index, tmp_path):
    run_path = tmp_path / "run.trec"
    folder = ["--index", str(served / index), "--topics", str(served / "queries.tsv")]
    options = ["--hits", "4", "--output", str(run_path), "--device", "cpu", "--quiet"]
    assert run(["search", *folder, *options]) == 0
    hits_by_query = read_run_scores(run_path)
    for line in (served / "queries.tsv").read_text().splitlines():
        qid, text = line.split("\t")
        candidates = search(client, index, query=text, hits=4)["candidates"]
        hits = {candidate["docid"]: candidate["score"] for candidate in candidates}
        assert list(hits) == list(hits_by_query[qid])
        assert hits == pytest.approx(hits_by_query[qid], abs=1e-6)


def test_a_document_is_fetched_by_its_id(client):
    answer = client.get("/v1/dense/doc/d10").json()
    expected_document = {"title": "Dog", "text": "the big dog eats fish"}
    assert answer == {"api": "v1", "index": "dense", "docid": "d10", "doc": expected_document}


def test_documents_are_cut_or_raw_as_a_request_asks(client):
    cut = search(client, query="cat", max_doc_length=7)["candidates"][0]
    assert cut["doc"] == {"title": "", "text": "the cat"}
    raw = search(client, query="moon", parse="false")["candidates"][0]["doc"]
    title, text = PASSAGES["d4"]
    assert json.loads(raw) == {"id": "d4", "title": title, "text": text}
    document = client.get("/v1/bm25/doc/d4", params={"parse": "FALSE"}).json()["doc"]
    assert document == raw
    message = error_of(client, "/v1/bm25/doc/d4", parse="false", max_doc_length="3")
    assert message == "Parameter 'max_doc_length' requires parse=true"


def test_the_words_of_a_query_are_marked_on_request(client):
    (candidate,) = search(client, query="the moon and STARS", highlight="true")["candidates"]
    excerpt = candidate["excerpt"]
    marked_words = [excerpt["text"][start:end] for start, end in excerpt["highlights"]]
    assert excerpt["text"] == PASSAGES["d4"][1]
    assert marked_words == ["moon"]


def test_several_indexes_are_fused_by_ranks(client):
    bm25 = search(client, "bm25", query="river boat")["candidates"]
    dense = search(client, "dense", query="river boat")["candidates"]
    expected_scores: dict[str, float] = {}
    for candidates in (bm25, dense):
        for candidate in candidates:
            docid = candidate["docid"]
            share = 1 / (60 + candidate["rank"])
            expected_scores[docid] = expected_scores.get(docid, 0) + share
    fused = search(client, "bm25+dense", query="river boat")
    assert fused["index"] == "bm25+dense"
    scores = {candidate["docid"]: candidate["score"] for candidate in fused["candidates"]}
    assert scores == pytest.approx(expected_scores)


def test_several_indexes_are_fused_by_weighted_scores(client):
    expected_scores = dict.fromkeys(PASSAGES, 0.0)
    for index, weight in (("bm25", 0.25), ("dense", 2)):
        candidates = search(client, index, query="river boat")["candidates"]
        raw_scores = [candidate["score"] for candidate in candidates]
        normalized_scores = normalized(raw_scores, Normalization.MIN_MAX)
        for candidate, score in zip(candidates, normalized_scores, strict=True):
            expected_scores[candidate["docid"]] += weight * score
    options = {"query": "river boat", "method": "linear", "weights": "0.25,2"}
    fused = search(client, "bm25+dense", **options)["candidates"]
    scores = {candidate["docid"]: candidate["score"] for candidate in fused}
    assert scores == pytest.approx(expected_scores, abs=1e-6)


def test_a_cross_encoder_orders_the_first_hits(served, tiny_reranker):
    answers = AnswerSettings(rerank_depth=4)
    indexes = [f"dense={served}/dense"]
    with (
        opened_service(*indexes, rerank=tiny_reranker(), answers=answers) as service,
        client_of(service, answers) as client,
    ):
        options = {"query": "river boat", "hits": 4}
        reranked = search(client, "dense", **options)["candidates"]
        searched = search(client, "dense", **options, rerank="false")["candidates"]
        message = error_of(client, "/v1/dense/search", query="moon", hits="5")
        search(client, "dense", query="moon", hits=5, rerank="false")
        two = search(client, "dense", query="river boat", hits=2)["candidates"]
    assert {hit["docid"] for hit in reranked} == {hit["docid"] for hit in searched}
    assert [hit["docid"] for hit in two] == [hit["docid"] for hit in reranked[:2]]
    assert [hit["score"] for hit in reranked] != [hit["score"] for hit in searched]
    assert message == "Parameter 'hits' is 5: at most 4 with reranking"


@pytest.mark.parametrize(
    ("parameters", "expected_message"),
    [
        ({}, "'query' is required"),
        ({"query": "  "}, "'query' is required"),
        ({"query": "a" * 2001}, "at most 2,000"),
        ({"query": "moon", "hits": "ten"}, "'hits' must be an integer"),
        ({"query": "moon", "hits": "0"}, "'hits' must be positive"),
        ({"query": "moon", "hits": "1001"}, "at most 1000"),
        ({"query": "moon", "hits": "9" * 5000}, "'hits' must be an integer"),
        ({"query": "moon", "parse": "maybe"}, "'parse' must be 'true' or 'false'"),
        ({"query": "moon", "rerank": "true"}, "without --rerank"),
        ({"query": "moon", "weights": "1,2"}, "'weights' needs several indexes"),
        ({"query": "moon", "method": "rrf"}, "'method' needs several indexes"),
        ({"query": "moon", "k1": "0.9"}, "must be set together"),
        ({"query": "moon", "k1": "2", "b": "0.4"}, "was built with k1=0.9 and b=0.4"),
        ({"query": "moon", "k1": "nan", "b": "0.4"}, "'k1' must be a finite number"),
        ({"query": "moon", "hit": "3"}, "'hit' is unknown"),
    ],
)
def test_a_request_that_is_wrong_names_its_parameter(client, parameters, expected_message):
    assert expected_message in error_of(client, "/v1/bm25/search", **parameters)


@pytest.mark.parametrize(
    ("parameters", "expected_message"),
    [
        ({"weights": "1"}, "1 numbers for 2 indexes"),
        ({"weights": "1,x"}, "'weights' must be a number"),
        ({"weights": "0,0"}, "one above 0"),
        ({"weights": "-1,2"}, "from 0"),
        ({"weights": "1e300,1"}, "from 0 to 1,000,000"),
        ({"method": "best"}, "one of rrf, linear"),
    ],
)
def test_weights_that_are_wrong_are_named(client, parameters, expected_message):
    message = error_of(client, "/v1/bm25+dense/search", query="moon", **parameters)
    assert expected_message in message


def test_the_k1_and_b_of_the_index_may_be_given(client):
    given = search(client, query="moon", k1="0.9", b="0.4")
    assert given == search(client, query="moon")
    message = error_of(client, "/v1/dense/search", query="moon", k1="0.9", b="0.4")
    assert "dense, an index of vectors" in message


def test_what_is_not_there_is_named(client):
    assert "there are bm25, dense" in error_of(client, "/v1/sparse/search", query="moon")
    assert "named twice" in error_of(client, "/v1/bm25+bm25/search", query="moon")
    assert error_of(client, "/v1/bm25/doc/d99", 404) == "Document not found: d99"
    expected_message = "Expected route /v1/{index}/search or /v1/{index}/doc/{docid}"
    assert error_of(client, "/v1/bm25", 404) == expected_message
    response = client.post("/v1/bm25/search", json={"query": "moon"})
    assert (response.status_code, response.json()) == (405, {"error": "Only GET is supported"})


def test_indexes_health_and_metrics(client):
    search(client, query="moon")
    error_of(client, "/v1/bm25/search")
    bm25, dense = client.get("/v1/indexes").json()["indexes"]
    assert bm25 == {"name": "bm25", "type": "bm25", "passages": 6, "k1": 0.9, "b": 0.4}
    assert (dense["type"], dense["passages"], dense["dimension"]) == ("vectors", 6, 16)
    health = client.get("/health").json()
    assert health == {"status": "ok", "version": __version__, "outdated": []}
    metrics = client.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    values = dict(line.rsplit(" ", 1) for line in metrics.text.splitlines() if line[0] != "#")
    assert values['denserk_requests_total{route="search",status="200"}'] == "1"
    assert values['denserk_requests_total{route="search",status="400"}'] == "1"
    assert values['denserk_request_seconds_count{route="search"}'] == "2"
    assert float(values['denserk_request_seconds_sum{route="search"}']) > 0
    assert values["denserk_waiting"] == "0"
    assert values["denserk_batched_queries_total"] == "1"


def test_every_answer_is_as_it_is_described(client):
    jsonschema = pytest.importorskip("jsonschema")
    components = client.get("/openapi.json").json()["components"]

    def check(schema, path, **parameters):
        reference = {"$ref": f"#/components/schemas/{schema}", "components": components}
        jsonschema.validate(client.get(path, params=parameters).json(), reference)

    for parameters in ({}, {"parse": "false"}, {"highlight": "true"}, {"max_doc_length": "3"}):
        check("SearchResponse", "/v1/bm25+dense/search", query="moon", **parameters)
    check("DocumentResponse", "/v1/bm25/doc/d1")
    check("IndexesResponse", "/v1/indexes")
    check("HealthResponse", "/health")
    for path in ("/v1/bm25/search", "/v1/bm25/doc/d99", "/v1/nothing"):
        check("ErrorResponse", path)


def test_the_description_has_what_the_server_has(client):
    document = client.get("/openapi.json").json()
    assert document["info"]["version"] == __version__
    parameters = document["paths"]["/v1/{index}/search"]["get"]["parameters"]
    names = set()
    for parameter in parameters:
        if "$ref" in parameter:
            name = parameter["$ref"].rpartition("/")[2]
            parameter = document["components"]["parameters"][name]
        names.add(parameter["name"])
    message = error_of(client, "/v1/bm25/search", query="moon", nix="1")
    known_names = set(message.rpartition("there are ")[2].split(", "))
    assert names == known_names | {"index"}
    for path in document["paths"]:
        concrete_path = path.replace("{index}", "bm25").replace("{docid}", "d1")
        assert client.get(concrete_path, params={"query": "moon"}).status_code in (200, 400)
    assert client.get("/openapi.yaml").text.startswith("openapi: 3.1")
