"""The command that queries without hits bring, for each language of index and queries."""

import shlex
from pathlib import Path

import pytest

from denserk.commands.app import run
from denserk.config.formats import CorpusSettings
from denserk.config.options import as_json
from denserk.config.retrieval import Bm25Settings, StopWords
from denserk.index.language_hints import language_hint
from denserk.io.manifest import Kind, Manifest


def hint(queries, folder="my index", language_of_auto=None, **settings):
    """Return the hint for an index of c.jsonl."""
    recorded_settings = {"bm25": as_json(Bm25Settings(**settings))}
    contents = {}
    if language_of_auto is not None:
        contents["language"] = language_of_auto
    manifest = Manifest(Kind.INDEX, True, recorded_settings, {"texts": "c.jsonl"}, contents)
    return language_hint(folder, manifest, queries)


@pytest.mark.parametrize(
    ("language", "queries", "proposed"),
    [
        (None, ["แมว"], "thai"),
        (None, ["Häuser"], "german"),
        (None, ["แมว", "データ"], "multilingual"),
        ("english", ["столица"], "russian"),
        ("german", ["東京"], "chinese"),
        ("german", ["Haus", "แมว"], "multilingual"),
    ],
)
def test_the_command_names_the_language_of_the_queries(language, queries, proposed):
    command = "denserk index --type bm25 --language {} --corpus c.jsonl --output 'my index'"
    assert command.format(proposed) in hint(queries, language=language)


@pytest.mark.parametrize(
    ("language", "query", "words"),
    [
        ("thai", "แมว", ""),
        ("chinese", "月", "alone"),
        ("multilingual", "月", "alone"),
        ("multilingual", "แมว cat", ""),
        ("multilingual", "แมว", ""),
        ("multilingual", "Häuser", "equal words"),
        ("persian", "کتاب", "--language persian"),
        ("german", "house", "--language german"),
        (None, "12", ""),
    ],
)
def test_no_command_where_no_other_language_is_likely(language, query, words):
    text = hint([query], language=language)
    assert words in text
    assert "denserk index" not in text
    if not words:
        assert text == ""


def test_what_auto_has_found_counts():
    assert hint(["แมว"], language="auto", language_of_auto="thai") == ""
    assert "--language thai" in hint(["แมว"], language="auto", language_of_auto="english")


def test_indexes_by_a_stemmer_and_those_of_other_tools():
    assert "--set stemmer=french" in hint(["maison"], stemmer="french")
    assert "--language thai --corpus FILE" in language_hint("i", None, ["แมว"])
    assert hint(["แมว"], folder=None).endswith('BM25.build(corpus, language="thai")')


def test_the_command_keeps_the_other_options_of_the_index():
    bm25 = as_json(Bm25Settings(k1=1.2, fields=("text",), stopwords=StopWords.NONE))
    corpus = as_json(CorpusSettings(text_field="body"))
    settings = {"engine": "lucene", "bm25": bm25, "corpus": corpus}
    manifest = Manifest(Kind.INDEX, True, settings, {"texts": "c.jsonl"}, {})
    words = shlex.split(language_hint("i", manifest, ["แมว"]).partition(": ")[2])
    options = "--engine lucene --fields text --k1 1.2 --set stopwords=none"
    expected = f"--language thai {options} --corpus c.jsonl --text-field body --output i"
    assert expected in shlex.join(words)
    assert "--engine" not in language_hint("i", manifest, ["Ελλάς", "แมว"])


def test_a_corpus_from_standard_input_is_a_file_in_the_command():
    manifest = Manifest(Kind.INDEX, True, {}, {"texts": "-"}, {})
    assert "--corpus FILE" in language_hint("i", manifest, ["แมว"])


def test_one_query_of_one_character_does_not_hide_the_language_of_the_others():
    assert "--language thai" in hint(["กรุงเทพ", "แ"], language="japanese")
    assert "alone" in hint(["月", "京"], language="japanese")


def test_the_command_that_is_named_helps(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("c.tsv").write_text("d1\tแมวนอนในบ้าน\nd2\tกรุงเทพ\n")
    assert run(["index", "--type", "bm25", "--corpus", "c.tsv", "--output", "i"]) == 0
    capsys.readouterr()
    assert run(["search", "--index", "i", "--query", "แมว"]) == 0
    command = capsys.readouterr().out.partition("denserk ")[2].strip().removesuffix(")")
    assert run(shlex.split(command)) == 0
    assert run(["search", "--index", "i", "--query", "แมว"]) == 0
    assert "d1" in capsys.readouterr().out
