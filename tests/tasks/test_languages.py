"""`denserk index --language`: what is recorded, used for queries, and logged of `auto`."""

import json

import pytest

from denserk import BM25
from denserk.commands.app import run
from denserk.config.languages import find_language
from denserk.config.retrieval import Bm25Settings, IndexPaths, IndexSettings, IndexType
from denserk.errors import MismatchError, UsageError
from denserk.index.terms import analyzer_of
from denserk.io.manifest import Kind, read_manifest
from denserk.tasks.build_index import build_index


def build(output, corpus, language, *, resume=False):
    paths = IndexPaths(corpus=str(corpus), output=str(output), resume=resume)
    build_index(paths, IndexSettings(type=IndexType.BM25), Bm25Settings(language=language))


def write_corpus(path, texts):
    with path.open("w") as out:
        for number, text in enumerate(texts):
            out.write(json.dumps({"_id": f"d{number}", "text": text}) + "\n")
    return path


def language_of(folder):
    """Return what is recorded of a language: the option, and what `auto` has found."""
    manifest = read_manifest(folder, Kind.INDEX)
    return manifest.settings["bm25"]["language"], manifest.contents.get("language")


THAI = ["แมวนอนในบ้าน", "กรุงเทพเป็นเมืองหลวง"]


def test_the_language_is_recorded_and_used_for_queries(tmp_path):
    corpus = write_corpus(tmp_path / "c.jsonl", THAI)
    for option, recorded in {"th": ("thai", None), "auto": ("auto", "thai")}.items():
        output = tmp_path / option
        build(output, corpus, option)
        assert language_of(output) == recorded
        assert list(BM25.open(output).search(["กรุงเทพ"])["0"]) == ["d1"]
        build(output, corpus, option, resume=True)
        with pytest.raises(MismatchError, match="language"):
            build(output, corpus, "lao", resume=True)
    in_memory = BM25.build(THAI, language="thai")
    assert list(in_memory.search(["กรุงเทพ"])["0"]) == ["1"]


@pytest.mark.parametrize(
    ("texts", "language"),
    [
        (THAI, "thai"),
        (["the moon", "die Häuser"], "english"),
        (["the moon", *THAI], "english"),
        (["12", "34"], "english"),
        ([*["the moon"] * 1000, *THAI * 1000], "english"),
    ],
    ids=["thai", "latin", "mixed", "digits", "only the first passages"],
)
def test_auto_logs_which_language_it_takes(tmp_path, caplog, texts, language):
    caplog.set_level("INFO")
    corpus = write_corpus(tmp_path / "c.jsonl", texts)
    build(tmp_path / "i", corpus, "auto")
    assert language_of(tmp_path / "i") == ("auto", language)
    (message,) = [message for message in caplog.messages if "--language auto" in message]
    assert language in message
    if texts == ["the moon", *THAI]:
        assert "--language multilingual" in message
    terms = json.loads((tmp_path / "i" / "vocab.index.json").read_text())
    assert ("moon" in terms) == ("the moon" in texts)


def test_an_index_without_a_language_in_its_manifest_is_english(tmp_path):
    """As those of earlier versions: it is opened, searched and resumed."""
    corpus = write_corpus(tmp_path / "c.jsonl", ["two houses", "a moon"])
    build(tmp_path / "i", corpus, None)
    path = tmp_path / "i" / "manifest.json"
    manifest = json.loads(path.read_text())
    assert manifest["settings"]["bm25"].pop("language") is None
    path.write_text(json.dumps(manifest))
    assert list(BM25.open(tmp_path / "i").search(["the house"])["0"]) == ["d0"]
    build(tmp_path / "i", corpus, None, resume=True)


@pytest.mark.parametrize(
    ("section", "language", "message"),
    [
        ("settings", "klingon", "--language klingon: no such language"),
        ("settings", 5, "language"),
        ("contents", "klingon", "--language klingon: no such language"),
        ("contents", 5, "contents.language that is 5"),
    ],
)
def test_a_mangled_manifest_is_one_error(tmp_path, capsys, section, language, message):
    build(tmp_path / "i", write_corpus(tmp_path / "c.jsonl", THAI), "thai")
    path = tmp_path / "i" / "manifest.json"
    manifest = json.loads(path.read_text())
    if section == "contents":
        manifest["contents"]["language"] = language
    else:
        manifest["settings"]["bm25"]["language"] = language
    path.write_text(json.dumps(manifest))
    capsys.readouterr()
    assert run(["search", "--index", str(tmp_path / "i"), "--query", "แมว"]) in (1, 2)
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_a_stemmer_that_an_older_pystemmer_lacks(monkeypatch):
    stemmers = pytest.importorskip("Stemmer")
    monkeypatch.setattr(stemmers, "algorithms", lambda: ["porter", "german"])
    with pytest.raises(UsageError, match="--language polish") as error:
        analyzer_of(Bm25Settings(language="polish"))
    assert "PyStemmer" in str(error.value.hint)


@pytest.mark.parametrize("engine", ["faiss", "torch", "milvus"])
def test_options_of_bm25_are_rejected_for_vectors(tmp_path, capsys, engine):
    output = ["--output", str(tmp_path / "i")]
    if engine == "milvus":
        output = ["--uri", str(tmp_path / "a.db"), "--collection", "c"]
    options = ["--input", str(tmp_path), "--engine", engine, "--language", "de"]
    assert run(["index", *options, *output]) == 2
    assert "--language: only for BM25" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "language"),
    [
        ("deutsch", "german"),
        ("Français", "french"),
        ("espanol", "spanish"),
        ("Русский", "russian"),
        ("TÜRKÇE", "turkish"),
        ("中文", "chinese"),
        ("nob", "norwegian"),
    ],
)
def test_languages_by_their_own_names(name, language):
    assert find_language(name).name == language


@pytest.mark.parametrize(
    ("name", "language"), [("germna", "german"), ("duetsch", "german"), ("frensh", "french")]
)
def test_a_misspelled_language_is_suggested(name, language):
    with pytest.raises(UsageError) as caught:
        find_language(name)
    assert str(caught.value.hint).startswith(f"did you mean {language}?")
