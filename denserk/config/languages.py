"""Languages of BM25 indexes: their names, codes and how their texts become terms."""

import unicodedata
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum

from denserk.errors import UsageError

NEAR = 0.75  # likeness of a name of which a misspelling is suspected, from 0 to 1
AUTO = "auto"  # in place of a language: the one that most letters of the corpus suggest


class Terms(StrEnum):
    """How text becomes terms."""

    STEMS = "stems"  # words, stemmed
    WORDS = "words"  # words as they are
    BIGRAMS = "bigrams"  # pairs of neighbouring characters, where no spaces part words


@dataclass(frozen=True)
class Language:
    """A language of --language."""

    name: str
    codes: tuple[str, ...]  # ISO 639-1, first the usual one
    terms: Terms = Terms.STEMS
    # the name of its list in bm25s.stopwords; of Lucene's English one where there are bigrams, as
    # Lucene's CJKAnalyzer has it
    stop_words: str | None = None
    in_lucene: bool = False  # whether Anserini has an analyzer for the first code

    @property
    def stemmer(self) -> str:
        """The name of its stemmer in Snowball, or none."""
        return self.name if self.terms is Terms.STEMS else "none"


ENGLISH = Language("english", ("en",), Terms.STEMS, "EN", in_lucene=True)
# texts in several languages: words as they are, and bigrams where no spaces part words
MULTILINGUAL = Language("multilingual", (), Terms.BIGRAMS)
LANGUAGES = (
    Language("arabic", ("ar",), in_lucene=True),
    Language("armenian", ("hy",)),
    Language("basque", ("eu",)),
    Language("bengali", ("bn",), Terms.WORDS, in_lucene=True),
    Language("burmese", ("my",), Terms.BIGRAMS, "EN"),
    Language("catalan", ("ca",)),
    Language("chinese", ("zh",), Terms.BIGRAMS, "EN", in_lucene=True),
    Language("czech", ("cs",)),
    Language("danish", ("da",), in_lucene=True),  # the oldest bm25s allowed has no list
    Language("dutch", ("nl",), Terms.STEMS, "DUTCH", in_lucene=True),
    ENGLISH,
    Language("esperanto", ("eo",)),
    Language("estonian", ("et",)),
    Language("finnish", ("fi",), in_lucene=True),
    Language("french", ("fr",), Terms.STEMS, "FRENCH", in_lucene=True),
    Language("german", ("de",), Terms.STEMS, "GERMAN", in_lucene=True),
    Language("greek", ("el",)),
    Language("hebrew", ("he", "iw"), Terms.WORDS),
    Language("hindi", ("hi",), in_lucene=True),
    Language("hungarian", ("hu",), in_lucene=True),
    Language("indonesian", ("id",), in_lucene=True),
    Language("irish", ("ga",)),
    Language("italian", ("it",), Terms.STEMS, "ITALIAN", in_lucene=True),
    Language("japanese", ("ja",), Terms.BIGRAMS, "EN", in_lucene=True),
    Language("khmer", ("km",), Terms.BIGRAMS, "EN"),
    Language("korean", ("ko",), Terms.BIGRAMS, "EN", in_lucene=True),
    Language("lao", ("lo",), Terms.BIGRAMS, "EN"),
    Language("lithuanian", ("lt",)),
    MULTILINGUAL,
    Language("nepali", ("ne",)),
    Language("norwegian", ("no", "nb", "nn"), Terms.STEMS, "NORWEGIAN", in_lucene=True),
    Language("persian", ("fa",), in_lucene=True),
    Language("polish", ("pl",), in_lucene=True),
    Language("portuguese", ("pt",), Terms.STEMS, "PORTUGUESE", in_lucene=True),
    Language("romanian", ("ro",)),
    Language("russian", ("ru",), Terms.STEMS, "RUSSIAN", in_lucene=True),
    Language("serbian", ("sr",)),
    Language("sesotho", ("st",)),
    Language("spanish", ("es",), Terms.STEMS, "SPANISH", in_lucene=True),
    Language("swedish", ("sv",), Terms.STEMS, "SWEDISH", in_lucene=True),
    Language("tamil", ("ta",)),
    Language("telugu", ("te",), Terms.WORDS, in_lucene=True),
    Language("thai", ("th",), Terms.BIGRAMS, "EN", in_lucene=True),
    Language("turkish", ("tr",), Terms.STEMS, "TURKISH", in_lucene=True),
    Language("ukrainian", ("uk",), Terms.WORDS, in_lucene=True),
    Language("yiddish", ("yi",)),
)
# further names of languages: their own, and codes of ISO 639-2 and 639-3
OTHER_NAMES = {
    "arabic": ("العربية", "ara"),
    "armenian": ("հայերեն",),
    "basque": ("euskara",),
    "bengali": ("বাংলা",),
    "catalan": ("català",),
    "chinese": ("中文", "zho", "chi"),
    "czech": ("čeština", "ces", "cze"),
    "danish": ("dansk", "dan"),
    "dutch": ("nederlands", "vlaams", "nld", "dut"),
    "english": ("eng",),
    "estonian": ("eesti",),
    "finnish": ("suomi", "fin"),
    "french": ("français", "fra", "fre"),
    "german": ("deutsch", "deu", "ger"),
    "greek": ("ελληνικά", "ell", "gre"),
    "hebrew": ("עברית", "heb"),
    "hindi": ("हिन्दी", "hin"),
    "hungarian": ("magyar", "hun"),
    "indonesian": ("bahasa indonesia", "indonesia", "ind"),
    "irish": ("gaeilge",),
    "italian": ("italiano", "ita"),
    "japanese": ("日本語", "jpn"),
    "korean": ("한국어", "kor"),
    "lithuanian": ("lietuvių",),
    "norwegian": ("norsk", "bokmål", "nynorsk", "nor", "nob", "nno"),
    "persian": ("فارسی", "farsi", "fas", "per"),
    "polish": ("polski", "pol"),
    "portuguese": ("português", "por"),
    "romanian": ("română", "ron", "rum"),
    "russian": ("русский", "rus"),
    "serbian": ("српски", "srpski"),
    "spanish": ("español", "castellano", "spa"),
    "swedish": ("svenska", "swe"),
    "tamil": ("தமிழ்",),
    "thai": ("ไทย", "tha"),
    "turkish": ("türkçe", "tur"),
    "ukrainian": ("українська", "ukr"),
    "yiddish": ("ייִדיש",),
}
_BY_NAME = {language.name: language for language in LANGUAGES}
_BY_CODE: dict[str, Language] = {}
for _language in LANGUAGES:
    _BY_CODE |= dict.fromkeys(_language.codes, _language)


def _plain(name: str) -> str:
    """Return a name in lower case and without accents.

    >>> _plain("Français")
    'francais'
    """
    letters = unicodedata.normalize("NFKD", name.strip().casefold())
    return "".join(letter for letter in letters if not unicodedata.combining(letter))


_BY_OTHER_NAME: dict[str, Language] = {}
for _name, _other_names in OTHER_NAMES.items():
    _BY_OTHER_NAME |= dict.fromkeys(map(_plain, _other_names), _BY_NAME[_name])


def find_language(name: str) -> Language:
    """Return a language by its name, in English or its own, or code, whose region does not count.

    >>> find_language("german") is find_language("de") is find_language("de_AT")
    True
    >>> find_language("Chinese") is find_language("zh-Hant")
    True
    >>> find_language("Français") is find_language("francais") is find_language("fra")
    True
    """
    spelling = name.strip().lower().replace("_", "-")
    language = _BY_NAME.get(spelling) or _BY_CODE.get(spelling.partition("-")[0])
    if language is None:
        plain_name = _plain(name)
        language = _BY_OTHER_NAME.get(plain_name)
    if language is None:
        known_names = [*_BY_NAME, *_BY_OTHER_NAME, AUTO]
        nearest = get_close_matches(plain_name, known_names, n=1, cutoff=NEAR)
        question = ""
        if nearest:
            meant = _BY_OTHER_NAME.get(nearest[0])
            question = f"did you mean {nearest[0] if meant is None else meant.name}? "
        names = ", ".join(_BY_NAME)
        hint = f"{question}one of {names}, or {AUTO}; {MULTILINGUAL.name} is for any other"
        raise UsageError(f"--language {name}: no such language", hint)
    return language
