"""How text becomes the terms of a BM25 index, in the language of --language.

English is analysed as by Lucene: words between Unicode's word boundaries (StandardTokenizer), in
lower case, without possessive 's, except stop words, stemmed by Porter. Other languages have their
stop words and stemmer. Where no spaces part words, terms are pairs of neighbouring characters, as
those of Lucene's CJKAnalyzer; words in other scripts stay words.
"""

import re
from collections.abc import Callable, Iterable
from operator import add
from typing import NamedTuple, Protocol
from unicodedata import normalize

import regex

from denserk.config.languages import ENGLISH, Language, Terms, find_language
from denserk.config.retrieval import Bm25Settings, StopWords
from denserk.errors import UsageError
from denserk.extras import require

_LUCENE_STOP_WORDS = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then "
    "there these they this to was will with"
)
STOP_WORDS = frozenset(_LUCENE_STOP_WORDS.split())  # English ones
_IDEOGRAPH = r"[\p{Han}\p{Hiragana}]"
_PICTOGRAPH = r"\p{Extended_Pictographic}"


def _word(border: str) -> str:
    """Return the pattern of words, none of which has a character of the pattern `border`.

    A word is of letters, digits and marks, with an apostrophe or stop between letters, a point or
    comma inside a number, a quotation mark inside a Hebrew acronym.
    """
    letters = rf"(?:(?!{border})\w)+"
    inside_letters = r"(?<=\p{L})['’＇.:·](?=\p{L})"
    inside_number = r"(?<=\p{N})[.,;'’＇⁄](?=\p{N})"
    inside_acronym = r"(?<=\p{Hebrew})[\"״](?=\p{Hebrew})"
    return f"{letters}(?:(?:{inside_letters}|{inside_number}|{inside_acronym}){letters})*"


# Chinese characters, hiragana and pictographs are terms of their own.
TERM = regex.compile(f"{_IDEOGRAPH}|{_PICTOGRAPH}|{_word(_IDEOGRAPH)}")
# The same for lower-case ASCII, which is most text: a few times faster, and `re` is faster than
# `regex`.
ASCII_TERM = re.compile(r"\w+(?:(?:(?<=[a-z])['.:](?=[a-z])|(?<=\d)[.,;'](?=\d))\w+)*", re.ASCII)
POSSESSIVE = regex.compile("['’＇]s$")
# found where the measure of a stem, as Porter defines it, is more than 0
VOWEL_CONSONANT = regex.compile("(?:[aeiou]|(?<=[^aeiou])y)(?:[^aeiouy]|(?<=[aeiou])y)")

# Letters of scripts without spaces between words, and of Korean, whose words have endings.
# The sound marks of katakana of half width and the prolonged sound mark are listed one by one, as
# Unicode has them in no script. Digits of these scripts stay words.
_UNSPACED = (
    r"(?V1:[\w&&[\p{Han}\p{Hiragana}\p{Katakana}ー\uFF70ﾞﾟ\p{Hangul}\p{Thai}\p{Lao}\p{Khmer}"
    r"\p{Myanmar}]--\p{Nd}])"
)
_MARKS = r"[\p{M}ﾞﾟ]*"
# A run of such letters, of which bigrams are made, or a word in another script.
RUN_OR_WORD = regex.compile(
    rf"(?P<run>(?:{_UNSPACED}{_MARKS})+)|(?P<word>{_PICTOGRAPH}|{_word(_UNSPACED)})"
)
CHARACTER = regex.compile(rf".{_MARKS}")  # of a run: a letter with its vowel and tone marks
# which glyph a character has (variation selectors), and where a line may or may not end (soft
# hyphen, word joiner, byte order mark)
_INVISIBLE = regex.compile(r"[\uFE00-\uFE0F\U000E0100-\U000E01EF\u00AD\u2060\uFEFF]")


class Analyzer(Protocol):
    """Splits a text into its terms, in order: into words, most of which have a term."""

    def __call__(self, text: str) -> list[str]:
        """Return the terms of a text, in order."""

    def words(self, text: str) -> list[str]:
        """Return the words of a text, in order."""

    def term(self, word: str) -> str:
        """Return the term of a word; "" for a stop word, and for underscores alone."""


def analyzer_of(settings: Bm25Settings) -> Analyzer:
    """Return the analyzer of an index, whose language is not `auto` any more."""
    if settings.language is None:  # English, by the stemmer that --set stemmer names
        return EnglishAnalyzer(settings.stemmer, settings.stopwords)
    language = find_language(settings.language)
    if language is ENGLISH:
        return EnglishAnalyzer("porter", settings.stopwords)
    stop_words: frozenset[str] = frozenset()
    if settings.stopwords is StopWords.LUCENE:
        stop_words = stop_words_of(language)
    if language.terms is Terms.BIGRAMS:
        return BigramAnalyzer(stop_words)
    return WordAnalyzer(language, stop_words)


def has_bigrams(settings: Bm25Settings) -> bool:
    """Return whether the terms of an index are bigrams where no spaces part words."""
    if settings.language is None:
        return False
    return find_language(settings.language).terms is Terms.BIGRAMS


def stop_words_of(language: Language) -> frozenset[str]:
    """Return the stop words of a language: those of bm25s, which has lists for a few languages."""
    if language.stop_words is None:
        return frozenset()
    lists = require("bm25s.stopwords", "BM25")
    return frozenset(getattr(lists, f"STOPWORDS_{language.stop_words}"))


class EnglishAnalyzer:
    """Terms of Lucene's English analysis, but by any stemmer of Snowball."""

    def __init__(self, stemmer: str, stop_words: StopWords) -> None:
        self._stop_words = STOP_WORDS if stop_words is StopWords.LUCENE else frozenset()
        self._stem = _stemmer(stemmer)

    def __call__(self, text: str) -> list[str]:
        """Return the terms of a text, in order."""
        terms = map(self.term, self.words(text))
        return [term for term in terms if term]

    def words(self, text: str) -> list[str]:
        """Return the words of a text, in order."""
        lowered = text.lower()
        pattern = ASCII_TERM if lowered.isascii() else TERM
        words: list[str] = pattern.findall(lowered)
        return words

    def term(self, word: str) -> str:
        """Return the term of a word; "" for a stop word, and for underscores alone."""
        without_possessive = POSSESSIVE.sub("", word)
        has_only_underscores = not without_possessive.strip("_")
        if has_only_underscores or without_possessive in self._stop_words:
            return ""
        return self._stem(without_possessive)


class WordAnalyzer:
    """Terms of a language: words except its stop words, stemmed if there is a stemmer."""

    def __init__(self, language: Language, stop_words: frozenset[str]) -> None:
        self._lower: Callable[[str], str] = str.lower
        if language.name == "turkish":
            self._lower = lower_turkish
        self._stop_words = stop_words
        self._stem: Callable[[str], str] = _stemmer_of(language)

    def __call__(self, text: str) -> list[str]:
        """Return the terms of a text, in order."""
        terms = map(self.term, self.words(text))
        return [term for term in terms if term]

    def words(self, text: str) -> list[str]:
        """Return the words of a text, in order."""
        lowered = self._lower(normalized(text))
        pattern = ASCII_TERM if lowered.isascii() else TERM
        words: list[str] = pattern.findall(lowered)
        return words

    def term(self, word: str) -> str:
        """Return the term of a word; "" for a stop word, and for underscores alone."""
        # stemmers know elisions (l'eau) by this apostrophe; Hebrew acronyms have either mark
        with_ascii_marks = word.replace("’", "'").replace("״", '"')
        has_only_underscores = not with_ascii_marks.strip("_")
        if has_only_underscores or with_ascii_marks in self._stop_words:
            return ""
        return self._stem(with_ascii_marks)


class BigramAnalyzer:
    """Bigrams of characters where no spaces part words, and words in other scripts.

    >>> BigramAnalyzer(frozenset())("データ と iPhone 12")
    ['デー', 'ータ', 'と', 'iphone', '12']
    """

    def __init__(self, stop_words: frozenset[str]) -> None:
        self._stop_words = stop_words

    def __call__(self, text: str) -> list[str]:
        """Return the terms of a text, in order."""
        lowered = normalized(text).lower()
        if lowered.isascii():
            return [word for word in ASCII_TERM.findall(lowered) if self._is_term(word)]
        terms: list[str] = []
        for run, word in RUN_OR_WORD.findall(lowered):
            if run:
                terms += bigrams(run)
            elif self._is_term(word):
                terms.append(word)
        return terms

    def words(self, text: str) -> list[str]:
        """Return the terms of a text, which are its words here."""
        return self(text)

    def term(self, word: str) -> str:
        """Return the word, which is a term."""
        return word

    def _is_term(self, word: str) -> bool:
        """Return whether a word is no stop word, and not of underscores alone."""
        return word not in self._stop_words and word.strip("_") != ""


def normalized(text: str) -> str:
    """Return a text whose characters have one form, width and glyph (Unicode's NFKC).

    Soft hyphens and other invisible characters inside words are left out.

    >>> normalized("ＡＢＣ ﾊﾟ"), len("u\u0308"), len(normalized("u\u0308"))
    ('ABC パ', 2, 1)
    """
    if text.isascii():
        return text
    return str(_INVISIBLE.sub("", normalize("NFKC", text)))


def lower_turkish(text: str) -> str:
    """Return a text in lower case, in which each i keeps or lacks its dot.

    >>> lower_turkish("ISI İzmir")
    'ısı izmir'
    """
    return text.replace("İ", "i").replace("I", "ı").lower()


def bigrams(run: str) -> Iterable[str]:
    """Return the pairs of neighbouring characters of a run; one that is alone, as it is.

    >>> list(bigrams("東京都")), list(bigrams("東"))
    (['東京', '京都'], ['東'])
    """
    # letters alone are characters; otherwise, vowel and tone marks belong to the letter before them
    characters = run if run.isalpha() else CHARACTER.findall(run)
    if len(characters) == 1:
        return characters
    return map(add, characters, characters[1:])  # add joins two strings


class TermSpan(NamedTuple):
    """A term where it stands in a text, so that a text is shown with its terms marked."""

    start: int
    end: int
    term: str  # in lower case, not stemmed; that of a bigram is normalised too


def word_spans(text: str) -> list[TermSpan]:
    """Return the words of a text, stop words too.

    >>> word_spans("The Moon")
    [TermSpan(start=0, end=3, term='the'), TermSpan(start=4, end=8, term='moon')]
    """
    matches = TERM.finditer(text)
    return [TermSpan(match.start(), match.end(), match.group().lower()) for match in matches]


def bigram_spans(text: str) -> list[TermSpan]:
    """Return the bigrams of a text, and the words in other scripts.

    >>> bigram_spans("ﾃﾞｰﾀ")
    [TermSpan(start=0, end=3, term='デー'), TermSpan(start=2, end=4, term='ータ')]
    """
    spans = []
    for match in RUN_OR_WORD.finditer(text):
        if match["word"]:
            spans.append(_span(text, *match.span()))
            continue
        starts = [character.start() for character in CHARACTER.finditer(text, *match.span())]
        if len(starts) == 1:
            spans.append(_span(text, *match.span()))
            continue
        # A bigram ends where the character after its second one starts. The last character begins
        # none.
        ends = [*starts[2:], match.end()]
        for start, end in zip(starts[:-1], ends, strict=True):
            spans.append(_span(text, start, end))
    return spans


def _span(text: str, start: int, end: int) -> TermSpan:
    """Return the term between two offsets in a text, normalised and in lower case."""
    return TermSpan(start, end, normalized(text[start:end]).lower())


def _stemmer_of(language: Language) -> Callable[[str], str]:
    """Return the stemmer of a language; words stay as they are where it has none."""
    name = language.stemmer
    if name != "none" and name not in require("Stemmer", "BM25").algorithms():
        message = f"--language {language.name}: this version of PyStemmer has no such stemmer"
        raise UsageError(message, "pip install --upgrade PyStemmer")
    return _stemmer(name)


def _stemmer(name: str) -> Callable[[str], str]:
    """Return a Snowball stemmer; `porter` is Porter's as his own program and Lucene have it.

    The program departs from the paper in three places, which Snowball does not follow: words of one
    or two letters stay; step 2 turns any "bli" into "ble"; and it turns "logi" into "log".

    >>> stem = _stemmer("porter")
    >>> [stem(word) for word in ("us", "possibly", "technology", "apologies", "logic", "houses")]
    ['us', 'possibl', 'technolog', 'apolog', 'logic', 'hous']
    """
    if name == "none":
        return str
    snowball = require("Stemmer", "BM25")
    if name not in snowball.algorithms():
        hint = f"one of none, {', '.join(sorted(snowball.algorithms()))}"
        raise UsageError(f"--set stemmer={name}: no such stemmer", hint)
    snowball_stem: Callable[[str], str] = snowball.Stemmer(name).stemWord
    if name != "porter":
        return snowball_stem

    def porter_stem(word: str) -> str:
        if len(word) <= 2:
            return word
        stem = snowball_stem(word)
        if stem.endswith("bli") and VOWEL_CONSONANT.search(stem[:-3]):
            return snowball_stem(f"{stem[:-1]}e")  # with the steps behind 2, which shorten "ble"
        if stem.endswith("logi") and VOWEL_CONSONANT.search(stem[:-4]):
            return stem[:-1]
        return stem

    return porter_stem
