"""Terms of every language, literally, and what no analyzer may do to any text."""

import gzip
import json
from random import Random
from typing import Any

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from denserk.config.languages import LANGUAGES, Terms
from denserk.config.retrieval import Bm25Settings, StopWords
from denserk.errors import UsageError
from denserk.index.lucene import require_lucene
from denserk.index.terms import analyzer_of, bigram_spans, normalized
from tests.support.peers import run_pyserini

PLAIN: dict[str, Any] = {"stemmer": "none", "stopwords": StopWords.NONE}

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
def test_terms(text):
    assert analyzer_of(Bm25Settings())(text) == EXAMPLES[text]


def test_stop_words_and_stemmers():
    assert analyzer_of(Bm25Settings(**PLAIN))("The houses of") == ["the", "houses", "of"]
    assert analyzer_of(Bm25Settings(stemmer="english"))("generously") == ["generous"]
    with pytest.raises(UsageError, match="klingon"):
        analyzer_of(Bm25Settings(stemmer="klingon"))
    with pytest.raises(UsageError, match="--engine lucene has porter, krovetz, none"):
        require_lucene(Bm25Settings(stemmer="french"))


ANALYSE = """
import json, sys
from pyserini.analysis import Analyzer, get_lucene_analyzer
analyzer = Analyzer(get_lucene_analyzer())
texts = json.load(open(sys.argv[1]))
json.dump([list(analyzer.analyze(text)) for text in texts], open(sys.argv[2], "w"))
"""


@pytest.mark.peer
@pytest.mark.slow
def test_lucene_finds_the_same_terms(tmp_path, shared_data):
    texts = list(EXAMPLES)
    for collection in ("cranfield", "cacm"):
        with gzip.open(shared_data / collection / "corpus.jsonl.gz") as lines:
            texts += [record["title"] + " " + record["text"] for record in map(json.loads, lines)]
    (tmp_path / "texts").write_text(json.dumps(texts))
    run_pyserini(ANALYSE, tmp_path / "texts", tmp_path / "terms", folder=tmp_path)
    analyze = analyzer_of(Bm25Settings())
    assert [analyze(text) for text in texts] == json.loads((tmp_path / "terms").read_text())


CJK = [
    "データベースの正規化 国際標準化に関する動向",
    "iPhone12 ﾊﾝｶｸ ＦＵＬＬ１２３ ｶﾞｷﾞ ｶﾞﾗｽ ABCデータDEF 3日 A大B コーヒー・カップ",
    "도쿄는 일본의 수도이다",
    "我 们 the ABC北京U.S.A.大学 3.14年,1,234元 http://x.org/月_火 ㄅㄆㄇ",
    "𠮷野家。漢字かなカナ한글！東\u200b京",
    "Über naïve Ελληνικά Ёлка don't",
    "床前明月光，疑是地上霜。举头望明月，低头思故乡。",
]


@pytest.mark.peer
@pytest.mark.slow
def test_lucenes_cjk_analyzer_finds_the_same_bigrams(tmp_path):
    """There, 々 and Hangul beside Latin letters are not of a run, and jamo stay apart."""
    random = Random(5)
    texts = ["".join(random.choices("aZé19 ，。-月東かカーｶﾊ", k=30)) for _ in range(300)]
    texts += CJK
    (tmp_path / "texts").write_text(json.dumps(texts))
    script = ANALYSE.replace("get_lucene_analyzer()", "get_lucene_analyzer(language='zh')")
    run_pyserini(script, tmp_path / "texts", tmp_path / "terms", folder=tmp_path)
    analyze = analyzer_of(Bm25Settings(language="chinese"))
    terms_of_texts = json.loads((tmp_path / "terms").read_text())
    assert [analyze(text) for text in texts] == terms_of_texts
    assert sum(map(len, terms_of_texts)) > 3000


TERMS = [
    ("german", "Die Häuser der Universitäten", ["haus", "universitat"]),
    ("german", "Straße STRASSE", ["strass", "strass"]),
    ("german", "u\u0308ber Mu\u0308ller", ["mull"]),  # über is a stop word, its marks apart
    ("french", "l’eau d'un château", ["eau", "un", "château"]),
    ("turkish", "ISIRGAN İstanbul’da", ["ısırga", "istanbul"]),
    ("russian", "Ёлка и елки", ["елк", "елк"]),
    ("arabic", "عاصمة فرنسا هي باريس", ["عاصم", "رنس", "هي", "باريس"]),
    ("hindi", "दिल्ली भारत की राजधानियाँ", ["दिल्ल", "भारत", "क", "राजधान"]),
    ("greek", "ΕΛΛΗΝΙΚΑ ελληνικά", ["ελλην", "ελλην"]),
    ("hebrew", "ספרים הספרים", ["ספרים", "הספרים"]),
    ("hebrew", 'צה״ל צה"ל "ספר"', ['צה"ל', 'צה"ל', "ספר"]),  # an acronym, and a quotation
    ("german", "Donau\u00adschiff Donauschiff", ["donauschiff", "donauschiff"]),
    (
        "chinese",
        "床前明月光,the ABC和3.5年",
        ["床前", "前明", "明月", "月光", "abc", "和", "3.5", "年"],
    ),
    (
        "japanese",
        "データベースの正規化",
        ["デー", "ータ", "タベ", "ベー", "ース", "スの", "の正", "正規", "規化"],
    ),
    ("japanese", "ﾊﾟﾝ ＦＵＬＬ１２ は\u309aん", ["パン", "full12", "ぱん"]),
    ("japanese", "コーヒー・カップ", ["コー", "ーヒ", "ヒー", "カッ", "ップ"]),
    ("korean", "도쿄는 일본의 수도", ["도쿄", "쿄는", "일본", "본의", "수도"]),
    ("korean", "\u1103\u1169\u110f\u116d", ["도쿄"]),  # syllables in parts
    ("thai", "กรุงเทพ 12 ๑๒", ["กรุ", "รุง", "งเ", "เท", "ทพ", "12", "๑๒"]),
    ("thai", "น้ำ", ["น้ํา"]),
    ("khmer", "ភ្នំពេញ", ["ភ្នំ", "នំពេ", "ពេញ"]),
    ("lao", "ລາວ", ["ລາ", "າວ"]),
    ("burmese", "မြန်မာ ၁၂", ["မြန်", "န်မာ", "၁၂"]),
    ("multilingual", "The houses 明月光 กรุง", ["the", "houses", "明月", "月光", "กรุ", "รุง"]),
    ("multilingual", "葛\U000e0100城 𠮷野家", ["葛城", "𠮷野", "野家"]),
    ("english", "The houses 明月", ["hous", "明", "月"]),
]


@pytest.mark.parametrize(("language", "text", "terms"), TERMS)
def test_terms_of_languages(language, text, terms):
    assert analyzer_of(Bm25Settings(language=language))(text) == terms


def test_stop_words_of_a_language_are_kept_on_request():
    german = Bm25Settings(language="german", stopwords=StopWords.NONE)
    assert analyzer_of(german)("Die Häuser") == ["die", "haus"]
    chinese = Bm25Settings(language="zh", stopwords=StopWords.NONE)
    assert analyzer_of(chinese)("the 月") == ["the", "月"]


@pytest.mark.parametrize("language", [language.name for language in LANGUAGES])
def test_every_language_finds_a_word_again(language):
    analyze = analyzer_of(Bm25Settings(language=language))
    (term,) = analyze("Zebra")
    assert term
    assert analyze("(zebra)") == [term]


SCRIPTS = "aZé1_'. ß月東かカー々ﾊﾟ한กุ้ำលន់ລາမြ٣عд\u200b\u0301\ufe00\U00020bb7\ud800"
BIGRAMS = [language.name for language in LANGUAGES if language.terms is Terms.BIGRAMS]
LETTER = regex.compile(r"[\p{L}\p{Nd}]")


@given(st.text(st.one_of(st.sampled_from(SCRIPTS), st.characters()), max_size=30))
@settings(max_examples=300, deadline=None)
def test_no_letter_is_lost(text):
    """A letter is in one bigram or in two; no term is longer than what it comes from."""
    terms = analyzer_of(Bm25Settings(language="multilingual"))(text)
    lowered = normalized(text).lower()
    assert set(LETTER.findall(lowered)) == set(LETTER.findall("".join(terms)))
    assert all(term in lowered for term in terms)
    assert len(terms) <= len(lowered)


@given(st.text(st.sampled_from("月東かカ한กล"), min_size=2, max_size=30))
def test_bigrams_overlap(run):
    terms = analyzer_of(Bm25Settings(language="thai"))(run)
    assert [run[0]] + [term[1] for term in terms] == list(run)


@given(st.text(st.sampled_from("aZ1_'. ß月東かカー々ﾊﾟ한กุ้ำលន់ລາမြ٣д\u0301"), max_size=30))
@settings(deadline=None)
def test_spans_of_bigrams_are_those_of_the_terms(text):
    """Where letters have one form already, a text is displayed in the terms of its index."""
    text = normalized(text).lower()
    spans = bigram_spans(text)
    assert [text[span.start : span.end] for span in spans] == [span.term for span in spans]
    terms = analyzer_of(Bm25Settings(language="multilingual"))(text)
    assert [span.term for span in spans if span.term.strip("_")] == terms


def test_languages_that_do_not_exist_or_exclude_a_stemmer():
    with pytest.raises(UsageError, match="--language klingon"):
        Bm25Settings(language="klingon")
    with pytest.raises(UsageError) as error:
        Bm25Settings(language="germam")
    assert "did you mean german?" in str(error.value.hint)
    with pytest.raises(UsageError, match="--language and --set stemmer exclude each other"):
        Bm25Settings(language="german", stemmer="french")


def test_languages_that_lucene_lacks():
    with pytest.raises(UsageError, match="--language khmer: --engine lucene has arabic, "):
        require_lucene(Bm25Settings(language="khmer"))
    with pytest.raises(UsageError, match="--set stopwords=none and --language german"):
        require_lucene(Bm25Settings(language="german", stopwords=StopWords.NONE))
