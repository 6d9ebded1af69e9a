"""Inputs that change while a command reads them are an error, whatever was read of them."""

import json
import logging
from pathlib import Path

import pytest

from denserk.commands.app import run
from tests.support.faults import contents
from tests.support.finetuning import write_examples
from tests.support.training_examples import jsonl

COUNT = 400


def passages(numbers):
    return ({"_id": f"d{n}", "title": "", "text": f"the cat sleeps {n}"} for n in numbers)


def replace_corpus(numbers):
    """Replace the corpus as editors do: who has opened it reads the old one to its end."""
    jsonl(Path("new"), passages(numbers))
    Path("new").replace("corpus.jsonl")


@pytest.fixture
def at_message():
    """`at_message("beir corpus", work)`: do some work once, when a message contains these words.

    A file's format is logged when its beginning has been read, at the first of several readings.
    """
    logger = logging.getLogger("denserk")
    handlers = []

    def listen(words, work):
        handler = OnceAtMessage(words, work)
        handlers.append(handler)
        logger.addHandler(handler)

    yield listen
    for handler in handlers:
        assert handler.done
        logger.removeHandler(handler)


class OnceAtMessage(logging.Handler):
    """Does some work at the first message that contains certain words."""

    def __init__(self, words, work):
        super().__init__()
        self.words = words
        self.work = work
        self.done = False

    def emit(self, record):
        if self.words in record.getMessage() and not self.done:
            self.done = True
            self.work()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    jsonl(tmp_path / "corpus.jsonl", passages(range(COUNT)))
    return tmp_path


CHANGES = {
    "cut": range(COUNT // 2),
    "grown": range(COUNT + 100),
    "repeated": [*range(COUNT - 1), 0],
    "other": [*range(COUNT - 1), 9999],
}


def encode(tiny, output, *flags):
    words = ["encode", "--model", tiny("bert"), "--corpus", "corpus.jsonl", "--output", output]
    return run([*map(str, words), "--device", "cpu", "--block-size", "64", *flags])


@pytest.mark.parametrize("change", CHANGES)
def test_encode_notices_a_corpus_that_is_another_than_the_counted_one(
    tiny, folder, at_message, capsys, change
):
    at_message("beir corpus", lambda: replace_corpus(CHANGES[change]))
    assert encode(tiny, "vectors") == 1
    printed = capsys.readouterr().err
    assert "corpus.jsonl changed while it was read" in printed
    assert "Traceback" not in printed
    manifest = json.loads((folder / "vectors" / "manifest.json").read_text())
    assert not manifest["complete"]


@pytest.mark.parametrize("change", ["cut", "grown"])
def test_encode_of_another_format_writes_nothing_of_a_corpus_that_changed(
    tiny, folder, at_message, change
):
    at_message("beir corpus", lambda: replace_corpus(CHANGES[change]))
    assert encode(tiny, "vectors.jsonl", "--output-format", "jsonl") == 1
    assert not (folder / "vectors.jsonl").exists()


def test_what_was_encoded_of_a_changed_corpus_is_resumed_where_it_fits(
    tiny, folder, at_message, capsys
):
    at_message("beir corpus", lambda: replace_corpus(CHANGES["cut"]))
    assert encode(tiny, "vectors") == 1
    assert encode(tiny, "vectors", "--resume") == 0
    assert encode(tiny, "uninterrupted") == 0
    resumed = contents(folder / "vectors")
    uninterrupted = contents(folder / "uninterrupted")
    for name in uninterrupted:
        if name.endswith((".npy", ".docid", "blocks.jsonl")):
            assert resumed[name] == uninterrupted[name], name


def test_a_shard_notices_a_change_of_its_part(tiny, folder, at_message, capsys):
    at_message("beir corpus", lambda: replace_corpus(CHANGES["cut"]))
    assert encode(tiny, "vectors", "--shard-num", "2", "--shard-id", "1") == 1
    assert "changed while it was read" in capsys.readouterr().err


def test_generate_notices_a_corpus_that_changed(writer, folder, at_message, capsys):
    jsonl(folder / "corpus.jsonl", passages(range(6)))
    at_message("beir corpus", lambda: replace_corpus(range(4)))
    words = ["generate", "--corpus", "corpus.jsonl", "--queries-model", str(writer("t5"))]
    words += ["--output", "expansions.jsonl", "--num-queries", "1", "--device", "cpu"]
    assert run(words) == 1
    assert "changed while it was read" in capsys.readouterr().err
    assert not (folder / "expansions.jsonl").exists()


def test_training_data_that_changed_is_not_trained_on(tiny, folder, at_message, capsys):
    """Its checksum would be that of other data, and a later run would take one for the other."""
    train = folder / "train.jsonl"
    write_examples(train, range(8))
    at_message("training data in the format", lambda: write_examples(train, range(9)))
    words = ["finetune", "--model", tiny("bert"), "--train-data", train, "--output", "out"]
    words += ["--max-steps", "1", "--batch-size", "4", "--group-size", "2", "--device", "cpu"]
    assert run([*map(str, words)]) == 1
    assert "train.jsonl changed while it was read" in capsys.readouterr().err
    assert not list((folder / "out").rglob("*.safetensors"))


def test_pretraining_text_that_changed_is_not_trained_on(folder, at_message, capsys):
    at_message("a vocabulary of", lambda: replace_corpus(range(9)))
    words = ["pretrain", "--architecture", "tiny", "--set", "vocabulary-size=200"]
    words += ["--objective", "mlm", "--corpus", "corpus.jsonl", "--output", "out"]
    assert run([*words, "--max-steps", "1", "--batch-size", "2", "--device", "cpu"]) == 1
    assert "corpus.jsonl changed while it was read" in capsys.readouterr().err


@pytest.fixture
def retrieved(toy, monkeypatch):
    """The toy collection with a run of one hit a query."""
    monkeypatch.chdir(toy)
    lines = [f"q{n} Q0 d{n} 1 1.5 t\n" for n in (1, 2, 3)]
    (toy / "run.trec").write_text("".join(lines))
    return toy


@pytest.mark.parametrize("line", ["q1 Q0 d5 1 1.5 t\n", "q9 Q0 d1 1 1.5 t\n"])
def test_rerank_notices_a_run_that_changed(tiny_reranker, retrieved, at_message, capsys, line):
    at_message("beir corpus", lambda: (retrieved / "run.trec").write_text(line))
    words = ["rerank", "--model", tiny_reranker(), "--run", "run.trec", "--topics", "queries.tsv"]
    words += ["--corpus", "corpus.jsonl", "--output", "out.trec", "--device", "cpu"]
    assert run([*map(str, words)]) == 1
    printed = capsys.readouterr().err
    assert "run.trec is being rewritten" in printed
    assert not (retrieved / "out.trec").exists()


def test_mining_notices_an_input_that_changed(retrieved, at_message, capsys):
    (retrieved / "run.trec").write_text("q1 Q0 d2 1 1.5 t\n")
    at_message("beir corpus", lambda: (retrieved / "run.trec").write_text("q1 Q0 d1 1 1 t\n"))
    words = ["mine-negatives", "--topics", "queries.tsv", "--qrels", "qrels.txt", "--skip-missing"]
    words += ["--run", "run.trec", "--corpus", "corpus.jsonl", "--output", "mined.jsonl"]
    assert run(words) == 1
    assert "run.trec changed while it was read" in capsys.readouterr().err
    assert not (retrieved / "mined.jsonl").exists()


def test_convert_notices_training_data_that_changed(retrieved, at_message, capsys):
    triples = retrieved / "triples.tsv"
    triples.write_text("q1\td1\td2\n")
    at_message("beir corpus", lambda: triples.write_text("q1\td1\td2\nq1\td1\td3\n"))
    words = ["convert", "triples.tsv", "out.jsonl", "--kind", "training", "--to", "tevatron"]
    assert run([*words, "--corpus", "corpus.jsonl", "--queries", "queries.tsv"]) == 1
    assert "triples.tsv changed while it was read" in capsys.readouterr().err
    assert not (retrieved / "out.jsonl").exists()
