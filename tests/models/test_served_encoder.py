"""Models behind a URL, openai:NAME, through the commands and the Python API."""

import json
import logging
import os
import pickle
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import denserk
from denserk.api.options import TextOptions
from denserk.commands.app import run
from denserk.errors import MismatchError, UsageError
from denserk.io.runs import read_run_scores
from denserk.io.vectors import open_vectors
from denserk.models.served_encoder import ServedEncoder
from tests.support.benchmark_copies import write_beir
from tests.support.console import warnings_of
from tests.support.embeddings_server import Reply
from tests.support.faults import contents
from tests.support.toy import PASSAGES, QUERIES
from tests.support.training_examples import jsonl

MODEL = "openai:acme/embed"


@pytest.fixture
def work(toy, monkeypatch):
    """The toy collection, which is the working folder."""
    monkeypatch.chdir(toy)
    return toy


def encode(server, output="vectors", *words, corpus="corpus.jsonl"):
    command = ["encode", "--model", MODEL, "--base-url", server.url, "--corpus", corpus]
    return run([*command, "--output", output, *words])


def index(vectors="vectors", output="index"):
    return run(["index", "--input", vectors, "--output", output])


def manifest_of(path):
    return json.loads(Path(path, "manifest.json").read_text())


def stored_vectors(folder):
    blocks = [block.vectors for block in open_vectors(folder).blocks()]
    return np.concatenate(blocks)


def passage_texts(prefix=""):
    return [prefix + " ".join(filter(None, passage)) for passage in PASSAGES.values()]


def server_vectors(server, texts):
    return np.stack([server.vector(text) for text in texts])


def test_passages_are_encoded_with_their_fields_and_prefix(work, embeddings):
    assert encode(embeddings, "vectors", "--passage-prefix", "passage: ") == 0
    expected = server_vectors(embeddings, passage_texts("passage: "))
    np.testing.assert_array_equal(stored_vectors("vectors"), expected)
    assert {request.model for request in embeddings.received} == {"acme/embed"}
    model = manifest_of("vectors")["made_from"]["model"]
    assert model["name"] == MODEL
    assert model["base_url"] == embeddings.url
    assert model["text"]["passage_prefix"] == "passage: "


def test_the_server_gets_the_texts_that_a_loaded_model_reads(embeddings, tiny, monkeypatch):
    """A model behind a URL has the vectors that it has when it is loaded, with the same options."""
    plain = denserk.Encoder.load(tiny(), device="cpu")
    monkeypatch.setattr(embeddings, "vector", lambda text: plain.encode_passages(text))
    options: TextOptions = {
        "passage_prefix": "the passage ",
        "query_prefix": "the query ",
        "fields": ["text", "title"],
        "join": " and ",
    }
    loaded = denserk.Encoder.load(tiny(), device="cpu", l2_norm=True, **options)
    served = denserk.Encoder.load(MODEL, base_url=embeddings.url, l2_norm=True, **options)
    passages = [
        {"id": docid, "title": f" {title}", "text": f"{text}\n"}
        for docid, (title, text) in PASSAGES.items()
    ]
    queries = list(QUERIES.values())
    expected = loaded.encode_passages(passages)
    np.testing.assert_allclose(served.encode_passages(passages), expected, atol=1e-5)
    expected = loaded.encode_queries(queries)
    np.testing.assert_allclose(served.encode_queries(queries), expected, atol=1e-5)


def test_vectors_are_cut_and_normalised(work, embeddings):
    embeddings.change = lambda items: [
        {**item, "embedding": [3 * value for value in item["embedding"]]} for item in items
    ]
    assert encode(embeddings, "vectors", "--truncate-dim", "8", "--l2-norm") == 0
    expected = server_vectors(embeddings, passage_texts())[:, :8]
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(stored_vectors("vectors"), expected, atol=1e-6)
    assert encode(embeddings, "as-they-are") == 0
    expected = 3 * server_vectors(embeddings, passage_texts())
    np.testing.assert_allclose(stored_vectors("as-they-are"), expected, rtol=1e-6)


def test_a_search_takes_model_url_and_settings_from_the_index(work, embeddings):
    assert encode(embeddings, "vectors", "--query-prefix", "query: ", "--l2-norm") == 0
    assert index() == 0
    command = ["search", "--index", "index", "--topics", "queries.tsv", "--output", "run.trec"]
    assert run(command) == 0
    passages = server_vectors(embeddings, passage_texts())
    scores = read_run_scores("run.trec")
    for qid, text in QUERIES.items():
        expected = passages @ embeddings.vector(f"query: {text}")
        for docid, score in zip(PASSAGES, expected, strict=True):
            assert scores[qid][docid] == pytest.approx(float(score), abs=1e-5)
    run_model = json.loads(Path("run.trec.manifest.json").read_text())["made_from"]["model"]
    assert run_model["base_url"] == embeddings.url


def test_a_query_on_the_command_line_is_encoded_by_the_server(work, embeddings, capsys):
    assert encode(embeddings) == 0
    assert run(["search", "--index", "vectors", "--query", "river boat"]) == 0
    assert "river boat" in embeddings.texts
    assert "a red boat on blue water" in capsys.readouterr().out


@pytest.mark.slow
def test_a_search_loads_no_torch(work, embeddings):
    assert encode(embeddings) == 0
    code = (
        "import sys; from denserk.commands.app import run\n"
        "assert run(['search', '--index', 'vectors', '--query', 'moon']) == 0\n"
        "assert 'torch' not in sys.modules"
    )
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def test_encoded_queries_are_those_of_the_search(work, embeddings):
    assert encode(embeddings) == 0
    command = ["encode", "--model", MODEL, "--base-url", embeddings.url]
    assert run([*command, "--topics", "queries.tsv", "--output", "queries"]) == 0
    search = ["search", "--index", "vectors", "--topics", "queries.tsv", "--output"]
    assert run([*search, "a.trec", "--encoded-queries", "queries"]) == 0
    assert run([*search, "b.trec"]) == 0
    assert Path("a.trec").read_text() == Path("b.trec").read_text()


def test_shards_together_are_the_whole(work, embeddings):
    assert encode(embeddings, "whole", "--block-size", "2") == 0
    for shard in ("0", "1"):
        words = ("--block-size", "2", "--shard-num", "2", "--shard-id", shard)
        assert encode(embeddings, f"shard{shard}", *words) == 0
    parts = [stored_vectors(f"shard{shard}") for shard in (0, 1)]
    np.testing.assert_array_equal(np.concatenate(parts), stored_vectors("whole"))
    assert run(["index", "--input", "shard*", "--output", "index"]) == 0
    assert run(["search", "--index", "index", "--query", "moon"]) == 0


def write_numbered(path, count):
    records = ({"_id": f"d{n}", "text": f"text number {n}"} for n in range(count))
    return jsonl(path, records)


@pytest.mark.slow
def test_a_killed_command_is_resumed_without_sending_finished_blocks(work, embeddings):
    write_numbered(work / "many.jsonl", 60)
    assert encode(embeddings, "whole", "--block-size", "5", corpus="many.jsonl") == 0
    embeddings.received.clear()

    words = ["encode", "--model", MODEL, "--base-url", embeddings.url, "--corpus", "many.jsonl"]
    words += ["--output", "vectors", "--block-size", "5", "--batch-size", "5"]
    embeddings.reply_to = lambda texts: time.sleep(0.1)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.Popen([sys.executable, "-m", "denserk", *words], env=environment)
    while sum("text number" in text for text in embeddings.texts) < 25:
        time.sleep(0.01)
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    sent = [text for text in embeddings.texts if "text number" in text]
    assert 25 <= len(sent) < 60

    embeddings.received.clear()
    embeddings.reply_to = lambda texts: None
    assert run([*words, "--resume"]) == 0
    sent_again = [text for text in embeddings.texts if "text number" in text]
    assert 0 < len(sent_again) < 60
    assert len(sent) + len(sent_again) <= 60 + 15  # blocks that were not written yet
    # --batch-size does not change vectors, nor what is recorded
    assert contents(Path("vectors")) == contents(Path("whole"))


@pytest.mark.slow
def test_an_interrupted_command_does_not_wait_for_the_server(work, embeddings):
    released = threading.Event()
    hanging = threading.Event()

    def hang(texts):
        if texts[-1] in passage_texts():
            hanging.set()
            released.wait(120)

    embeddings.reply_to = hang
    words = ["encode", "--model", MODEL, "--base-url", embeddings.url, "--corpus", "corpus.jsonl"]
    command = [sys.executable, "-m", "denserk", *words, "--output", "vectors"]
    process = subprocess.Popen(command, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert hanging.wait(120)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=50) == 128 + signal.SIGINT  # a request would last 60 s
    released.set()


def test_an_error_in_the_middle_keeps_finished_blocks(work, embeddings, caplog):
    def fail_late(texts):
        return Reply(503, "down") if "a red boat" in " ".join(texts) else None

    embeddings.reply_to = fail_late
    words = ("--block-size", "2", "--set", "request-retries=1")
    assert encode(embeddings, "vectors", *words) == 1
    assert "passages d5 to d10 after 2 attempts: 503: down" in caplog.text
    embeddings.reply_to = lambda texts: None
    embeddings.received.clear()
    # the server moved, and the folder knows another URL
    assert encode(embeddings, "vectors", "--resume") == 0
    sent = [text for text in embeddings.texts if text in passage_texts()]
    assert sent == passage_texts()[4:]


def test_resume_without_a_url_takes_the_recorded_one(work, embeddings):
    embeddings.reply_to = lambda texts: Reply(400, "no") if "big dog" in texts[-1] else None
    assert encode(embeddings, "vectors", "--block-size", "2") == 1
    embeddings.reply_to = lambda texts: None
    words = ["encode", "--model", MODEL, "--corpus", "corpus.jsonl", "--output", "vectors"]
    assert run([*words, "--resume"]) == 0


def test_resume_with_another_model_behind_the_name_is_an_error(work, embeddings, caplog):
    embeddings.reply_to = lambda texts: Reply(400, "no") if "big dog" in texts[-1] else None
    assert encode(embeddings, "vectors", "--block-size", "2") == 1
    embeddings.reply_to = lambda texts: None
    embeddings.seed = 1
    assert encode(embeddings, "vectors", "--resume") == 1
    assert "is not the model that encoded vectors" in caplog.text


def test_resume_with_other_settings_is_an_error(work, embeddings, caplog):
    embeddings.reply_to = lambda texts: Reply(400, "no") if "big dog" in texts[-1] else None
    assert encode(embeddings, "vectors", "--block-size", "2") == 1
    embeddings.reply_to = lambda texts: None
    assert encode(embeddings, "vectors", "--resume", "--passage-prefix", "p: ") == 1
    assert "model.text.passage_prefix was '', now 'p: '" in caplog.text


def test_update_sends_new_texts_alone(work, embeddings):
    assert encode(embeddings, "yesterday") == 0
    corpus = Path("corpus.jsonl")
    corpus.write_text(corpus.read_text() + '{"_id": "new", "text": "a new passage"}\n')
    embeddings.received.clear()
    assert encode(embeddings, "today", "--update", "yesterday") == 0
    sent = [text for text in embeddings.texts if text in [*passage_texts(), "a new passage"]]
    assert sent == ["a new passage"]
    expected = server_vectors(embeddings, [*passage_texts(), "a new passage"])
    np.testing.assert_array_equal(stored_vectors("today"), expected)


def test_update_from_another_model_behind_the_name_is_an_error(work, embeddings, caplog):
    assert encode(embeddings, "yesterday") == 0
    embeddings.seed = 1
    assert encode(embeddings, "today", "--update", "yesterday") == 1
    assert "is not the model that encoded yesterday" in caplog.text
    assert not Path("today").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "cosines to the vectors of control texts are down to"),
        ({"dimension": 16}, "holds vectors of 32 dimensions"),
    ],
)
def test_a_search_notices_another_model_behind_the_name(work, embeddings, caplog, change, message):
    assert encode(embeddings) == 0
    assert index() == 0
    for name, value in change.items():
        setattr(embeddings, name, value)
    assert run(["search", "--index", "index", "--query", "moon"]) == 1
    assert message in caplog.text


def test_a_search_notices_vectors_that_are_no_longer_normalised(work, embeddings, caplog):
    assert encode(embeddings) == 0
    embeddings.change = lambda items: [
        {**item, "embedding": [2 * value for value in item["embedding"]]} for item in items
    ]
    assert run(["search", "--index", "vectors", "--query", "moon"]) == 1
    assert "a vector has the length 2, and had 1" in caplog.text


def test_rounding_as_in_16_bits_is_the_same_model(work, embeddings):
    assert encode(embeddings) == 0
    noise = np.random.default_rng(0)
    embeddings.change = lambda items: [
        {**item, "embedding": (np.array(item["embedding"]) + noise.normal(0, 2e-3, 32)).tolist()}
        for item in items
    ]
    assert run(["search", "--index", "vectors", "--query", "moon"]) == 0


def test_force_searches_with_another_model(work, embeddings, caplog):
    assert encode(embeddings) == 0
    embeddings.seed = 1
    assert run(["search", "--index", "vectors", "--query", "moon", "--force"]) == 0
    assert any("searched all the same" in warning for warning in warnings_of(caplog))


def test_a_query_model_of_another_name_is_an_error(work, embeddings, caplog):
    assert encode(embeddings) == 0
    search = ["search", "--index", "vectors", "--query", "moon", "--base-url", embeddings.url]
    assert run([*search, "--model", "openai:other"]) == 1
    assert f"other weights: {MODEL} and openai:other" in caplog.text


def test_the_key_and_user_information_are_in_no_file_and_no_message(
    work, embeddings, monkeypatch, caplog, capfd
):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-topsecret")
    with_password = embeddings.url.replace("//", "//me:hunter2@") + "?token=tok123"
    for url in (embeddings.url, with_password):
        words = ["--model", MODEL, "--base-url", url, "--overwrite"]
        assert run(["encode", *words, "--corpus", "corpus.jsonl", "--output", "vectors"]) == 0
        assert run(["index", "--input", "vectors", "--output", "index", "--overwrite"]) == 0
        search = ["search", "--index", "index", *words]
        assert run([*search, "--topics", "queries.tsv", "--output", "run.trec"]) == 0
        sent = url.replace("//", " ").replace("@", " ") + " sk-topsecret"
        embeddings.replies.append(Reply(401, f"you sent {sent}"))
        assert run([*search, "--topics", "queries.tsv", "--output", "run.trec"]) == 1
        assert "rejects the request of control texts 1 to 8 (401): you sent" in caplog.text
    headers = {request.authorization for request in embeddings.received}
    assert headers == {"Bearer sk-topsecret", "Basic bWU6aHVudGVyMg=="}
    printed = capfd.readouterr()
    written = b"".join(contents(work).values()).decode("latin-1")
    for secret in ("topsecret", "hunter2", "tok123", "bWU6aHVudGVyMg"):
        assert secret not in caplog.text
        assert secret not in printed.out
        assert secret not in printed.err
        assert secret not in written


def test_the_key_goes_to_no_url_that_an_index_names(work, embeddings, monkeypatch):
    assert encode(embeddings) == 0
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    embeddings.received.clear()
    assert run(["search", "--index", "vectors", "--query", "moon"]) == 0
    assert {request.authorization for request in embeddings.received} == {None}
    search = ["search", "--index", "vectors", "--query", "moon", "--base-url", embeddings.url]
    assert run(search) == 0
    assert embeddings.received[-1].authorization == "Bearer sk-secret"


def test_a_text_over_the_limit_is_named_by_its_passage(work, embeddings, caplog):
    limit = Reply(413, {"error": "`inputs` must have less than 9 tokens. Given: 10"})
    embeddings.reply_to = lambda texts: (
        limit if any(text.startswith("Moon") for text in texts) else None
    )
    assert encode(embeddings) == 1
    assert "passage d4 (51 characters)" in caplog.text
    assert "(413): `inputs` must have less than 9 tokens. Given: 10" in caplog.text
    assert not Path("vectors/manifest.json").exists() or not manifest_of("vectors")["complete"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--passage-max-length", "64"], "--passage-max-length: the server computes"),
        (["--representation", "mean"], "--representation: the server computes"),
        (["--set", "join=sep"], "--set join=sep: the tokenizer of"),
        (["--device", "cuda"], "--device: the server computes"),
        (["--dtype", "float32"], "--dtype: the server computes"),
        (["--threads", "2"], "--threads: the server computes"),
        (["--int8"], "--int8: the server computes"),
        (["--truncate-dim", "64"], "--truncate-dim 64: the model's vectors have 32 dimensions"),
        (["--base-url", "localhost:8000"], "--base-url: an http or https URL"),
    ],
)
def test_settings_without_an_effect_are_usage_errors(work, embeddings, caplog, words, message):
    assert encode(embeddings, "vectors", *words) == 2
    assert message in caplog.text
    assert not Path("vectors").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["encode", "--model", MODEL, "--corpus", "corpus.jsonl"], "needs the URL of its server"),
        (
            ["encode", "--model", "openai:", "--base-url", "URL", "--corpus", "corpus.jsonl"],
            "the name of a model is expected",
        ),
        (
            ["encode", "--model", "minilm", "--base-url", "URL", "--corpus", "corpus.jsonl"],
            "--base-url: only for a model openai:NAME, and --model is minilm",
        ),
        (
            ["finetune", "--model", MODEL, "--train-data", "train.jsonl"],
            f"--model {MODEL}: the files of a model are needed here",
        ),
        (
            ["convert", MODEL, "copy", "--kind", "model", "--to", "denserk"],
            "the files of a model are needed here",
        ),
        (["doctor", "--model", MODEL], "the files of a model are needed here"),
    ],
)
def test_wrong_uses_are_usage_errors(work, embeddings, caplog, words, message):
    jsonl(work / "train.jsonl", [{"query": "a", "positive_passages": [], "query_id": "1"}])
    words = [embeddings.url if word == "URL" else word for word in words]
    output = [] if words[0] in ("convert", "doctor") else ["--output", "new"]
    assert run([*words, *output]) == 2
    assert message in caplog.text
    assert not Path("new").exists()


def test_a_bm25_index_takes_no_server(work, embeddings, caplog):
    bm25 = ["index", "--type", "bm25", "--corpus", "corpus.jsonl", "--output", "bm25"]
    assert run(bm25) == 0
    search = ["search", "--index", "bm25", "--query", "moon", "--base-url", embeddings.url]
    assert run(search) == 2
    assert "--base-url: bm25 is a BM25 index" in caplog.text


def test_a_teacher_behind_a_url_scores_candidates(work, embeddings):
    Path("run.trec").write_text("q1 Q0 d3 1 2 r\nq1 Q0 d2 2 1 r\n")
    command = ["mine-negatives", "--topics", "queries.tsv", "--qrels", "qrels.txt"]
    command += ["--run", "run.trec", "--corpus", "corpus.jsonl", "--output", "mined.jsonl"]
    command += ["--teacher", MODEL, "--base-url", embeddings.url, "--skip-missing"]
    assert run(command) == 0
    [example] = [json.loads(line) for line in Path("mined.jsonl").read_text().splitlines()]
    [negative] = example["negative_passages"]
    query = embeddings.vector(QUERIES["q1"])
    expected = float(query @ embeddings.vector(" ".join(PASSAGES["d2"])))
    assert negative["docid"] == "d2"
    assert negative["score"] == pytest.approx(expected, abs=1e-5)
    assert embeddings.texts.count(QUERIES["q1"]) == 1


def test_a_benchmark_is_made_with_a_model_behind_a_url(cache, embeddings, capsys):
    write_beir(cache, "scifact")
    command = ["benchmark", "beir/scifact", "--model", MODEL, "--base-url", embeddings.url]
    assert run([*command, "--output", "runs"]) == 0
    assert "nDCG@10" in capsys.readouterr().out
    model = manifest_of("runs")["made_from"]["model"]
    assert model["name"] == MODEL
    embeddings.received.clear()
    assert run([*command, "--output", "runs", "--resume"]) == 0
    assert embeddings.received == []


def test_commands_behind_a_search_say_what_they_need(work, embeddings, caplog, capsys):
    assert encode(embeddings) == 0
    assert run(["search", "--index", "vectors", "--topics", "queries.tsv", "--output", "r"]) == 0
    assert run(["reproduce", "r", "--output", "again"]) == 1
    assert f"{MODEL} is behind a URL: what it computes is not made again" in caplog.text
    misses = ["analyze", "misses", "--run", "r", "--qrels", "qrels.txt", "--output", "misses"]
    assert run([*misses, "-k", "1"]) == 0
    assert "is behind a URL, and its files are needed" in capsys.readouterr().out


def test_generated_queries_are_searched_for_by_the_server(work, embeddings):
    assert encode(embeddings) == 0
    command = ["generate", "--corpus", "corpus.jsonl", "--output", "generated.jsonl"]
    command += ["--queries-from", "title", "--round-trip", "vectors", "--dtype", "float32"]
    assert run(command) == 0
    assert "River" in embeddings.texts


def test_choose_compares_models_behind_a_url(work, embeddings, monkeypatch):
    monkeypatch.setattr("denserk.plots.save_if_installed", lambda *arguments: None)
    with_password = embeddings.url.replace("//", "//me:hunter2@")
    command = ["choose", "--corpus", "corpus.jsonl", "--topics", "queries.tsv", "--qrels"]
    command += ["qrels.txt", "--output", "choice", "--set", "block-size=2"]
    command += ["--candidates", MODEL, "--candidates", f"bm25+{MODEL}"]
    assert run(command) == 2
    assert run([*command, "--base-url", with_password, "--device", "cpu"]) == 0
    assert "hunter2" not in b"".join(contents(Path("choice")).values()).decode("latin-1")
    choice = json.loads(Path("choice/choice.json").read_text())
    encoding = next(line for line in choice["commands"] if "encode" in line)
    words = shlex.split(encoding)
    assert words[words.index("--base-url") + 1] == embeddings.url
    for line in choice["commands"]:
        assert run(shlex.split(line)[1:]) == 0


def test_choose_takes_a_server_for_candidates_behind_a_url_alone(work, embeddings, caplog):
    command = ["choose", "--corpus", "corpus.jsonl", "--topics", "queries.tsv", "--qrels"]
    command += ["qrels.txt", "--output", "choice", "--base-url", embeddings.url]
    Path("run.trec").write_text("q1 Q0 d3 1 2 r\n")
    assert run([*command, "--candidates", "bm25", "--candidates", "run.trec"]) == 2
    assert "--base-url: only for a model openai:NAME" in caplog.text


def test_an_encoder_in_python(work, embeddings):
    encoder = denserk.Encoder.load(MODEL, base_url=embeddings.url, query_prefix="q: ")
    assert encoder.dimension == 32
    assert encoder.metric == "inner"
    assert repr(encoder) == f"<Encoder {MODEL}: 32 dimensions, inner, {embeddings.url}>"
    np.testing.assert_array_equal(encoder.encode_queries("moon"), embeddings.vector("q: moon"))
    texts = ["moon", "star", "moon"]
    np.testing.assert_array_equal(encoder.encode_passages(texts), server_vectors(embeddings, texts))
    folder = encoder.encode_to("vectors", corpus="corpus.jsonl")
    by_recorded_model = denserk.Index.open(folder).search("river boat")
    by_encoder = denserk.Index.open(folder).search("river boat", model=encoder)
    assert dict(by_recorded_model) == dict(by_encoder)
    assert list(by_encoder)
    assert encoder.check() == 0


def test_a_pickled_encoder_has_no_password(embeddings):
    url = embeddings.url.replace("//", "//me:hunter2@")
    encoder = denserk.Encoder.load(MODEL, base_url=url)
    pickled = pickle.dumps(encoder)
    assert b"hunter2" not in pickled
    with pickle.loads(pickled) as again:
        np.testing.assert_array_equal(again.encode_queries("a"), embeddings.vector("a"))


def test_options_in_python_are_checked(embeddings, tiny):
    with pytest.raises(UsageError, match="needs the URL"):
        denserk.Encoder.load(MODEL)
    with pytest.raises(UsageError, match="only for a model openai:NAME"):
        denserk.Encoder.load(tiny(), base_url=embeddings.url)
    with pytest.raises(UsageError, match="the server computes"):
        denserk.Encoder.load(MODEL, base_url=embeddings.url, device="cpu:0")


def test_a_broken_file_of_control_vectors_is_an_error(work, embeddings, caplog):
    assert encode(embeddings) == 0
    control = Path("vectors/control-vectors.json")
    search = ["search", "--index", "vectors", "--query", "moon"]
    record = json.loads(control.read_text())
    record["texts"][0]["vector"] = "AAAA"
    control.write_text(json.dumps(record))
    assert run(search) == 1
    assert "in text 1 a vector of 3 bytes" in caplog.text
    record["texts"] = []
    control.write_text(json.dumps(record))
    assert run(search) == 1
    assert "found no texts" in caplog.text
    control.write_text("{")
    assert run(search) == 1
    assert "text that is not JSON" in caplog.text
    control.write_text('{"version": 2}')
    assert run(search) == 0
    assert any("has version 2" in warning for warning in warnings_of(caplog))
    control.unlink()
    assert run(search) == 0


def test_control_texts_of_another_version_are_sent_as_they_are(work, embeddings):
    assert encode(embeddings) == 0
    control = Path("vectors/control-vectors.json")
    record = json.loads(control.read_text())
    del record["texts"][3:]
    control.write_text(json.dumps(record))
    loaded = denserk.Encoder.load(MODEL, base_url=embeddings.url)
    encoder = loaded.any_encoder
    assert isinstance(encoder, ServedEncoder)
    with pytest.raises(UsageError, match="is behind a URL"):
        _ = loaded.text_encoder
    encoder.compare_with_folder(Path("vectors"))
    embeddings.seed = 1
    with pytest.raises(MismatchError):
        encoder.compare_with_folder(Path("vectors"))
