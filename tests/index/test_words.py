"""Words as Lucene's English analysis has them."""

import gzip
import json

import pytest

from denserk.errors import UsageError
from denserk.index.words import LUCENE_STOP_WORDS, Words
from denserk.settings.retrieval import StopWords
from tests.peers import run_pyserini

EXAMPLES = {
    "": [],
    "The AND of": [],
    "don't stop, it's Mary's U.S. dollar": ["don't", "stop", "mari", "u.", "dollar"],
    "1,234.5 3.14 a.b 1.a snake_case __ _x_": ["1,234.5", "3.14", "a.b", "1", "snake_cas", "_x_"],
    "Wi-Fi/Bluetooth e-mail@x.org": ["wi", "fi", "bluetooth", "e", "mail", "x.org"],
    "Mary’s naïve Ελληνικά": ["mari", "naïv", "ελληνικά"],
    "我们 とても テスト": ["我", "们", "と", "て", "も", "テスト"],
    "us vs possibly technology sky": ["us", "vs", "possibl", "technolog", "sky"],
}


@pytest.mark.parametrize("text", EXAMPLES)
def test_words(text):
    assert Words("porter", StopWords.LUCENE)(text) == EXAMPLES[text]


def test_lucene_has_33_stop_words():
    assert len(LUCENE_STOP_WORDS) == 33


def test_without_stop_words_and_stemmer():
    assert Words("none", StopWords.NONE)("The houses of") == ["the", "houses", "of"]
    assert Words("english", StopWords.LUCENE)("generously") == ["generous"]


def test_an_unknown_stemmer_is_refused():
    with pytest.raises(UsageError, match="klingon"):
        Words("klingon", StopWords.NONE)


ANALYSE = """
import json, sys
from pyserini.analysis import Analyzer, get_lucene_analyzer
analyzer = Analyzer(get_lucene_analyzer())
texts = json.load(open(sys.argv[1]))
json.dump([list(analyzer.analyze(text)) for text in texts], open(sys.argv[2], "w"))
"""


@pytest.mark.peer
@pytest.mark.slow
def test_lucene_finds_the_same_words(tmp_path, shared_data):
    texts = list(EXAMPLES)
    for collection in ("cranfield", "cacm"):
        with gzip.open(shared_data / collection / "corpus.jsonl.gz") as lines:
            texts += [record["title"] + " " + record["text"] for record in map(json.loads, lines)]
    (tmp_path / "texts").write_text(json.dumps(texts))
    run_pyserini(ANALYSE, tmp_path / "texts", tmp_path / "words", folder=tmp_path)
    words = Words("porter", StopWords.LUCENE)
    assert [words(text) for text in texts] == json.loads((tmp_path / "words").read_text())
