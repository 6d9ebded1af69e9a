"""The language that the letters of a corpus suggest."""

import pytest

from denserk.index.scripts import letters_by_script, suggest_language

SUGGESTED = {
    "the river runs 1821": "english",
    "床前明月光，疑是地上霜": "chinese",
    "データベースの正規化と標準化": "japanese",
    "ﾃﾞｰﾀ": "japanese",
    "도쿄는 일본의 수도이다": "korean",
    "กรุงเทพมหานคร ๑๒": "thai",
    "ភ្នំពេញ": "khmer",
    "ນະຄອນຫຼວງ": "lao",
    "မြန်မာနိုင်ငံ": "burmese",
    "عاصمة فرنسا": "arabic",
    "столица Франции": "russian",
    "Ελλάδα": "greek",
    "दिल्ली भारत": "hindi",
    "தமிழ்": "tamil",
    "తెలుగు": "telugu",
    "বাংলা": "bengali",
    "Հայաստան": "armenian",
    "ירושלים": "hebrew",
    "ᏣᎳᎩ": None,  # a script of no language that is named
    "moon 月": None,
    "12": None,
    "": None,
}


@pytest.mark.parametrize("text", SUGGESTED)
def test_languages_by_their_letters(text):
    assert suggested_name(text) == SUGGESTED[text]


def suggested_name(*texts):
    language = suggest_language(texts).language
    return None if language is None else language.name


def test_95_of_100_letters_decide():
    assert suggested_name("ก" * 95, "a" * 5) == "thai"
    assert suggested_name("ก" * 94, "a" * 6) is None


def test_shares_of_letters_by_script():
    assert suggest_language(["moon", "月"]).scripts == "80% Latin, 20% Chinese"
    assert suggest_language(["!"]).scripts == ""
    assert letters_by_script(["ーé_1ก\u0e38"]) == {"Latin": 1, "Thai": 1}
