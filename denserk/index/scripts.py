"""The scripts that texts are written in, and the language that they suggest."""

import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import regex

from denserk.config.languages import ENGLISH, MULTILINGUAL, Language, find_language

logger = logging.getLogger(__name__)

SAMPLE = 1000  # passages whose letters are counted
MAJORITY = 0.95  # share of the letters that suggest one language

# scripts by their names in messages; kana is of two scripts
SCRIPTS = {
    "Latin": r"\p{Latin}",
    "Arabic": r"\p{Arabic}",
    "Armenian": r"\p{Armenian}",
    "Bengali": r"\p{Bengali}",
    "Burmese": r"\p{Myanmar}",
    "Chinese": r"\p{Han}",
    "Cyrillic": r"\p{Cyrillic}",
    "Devanagari": r"\p{Devanagari}",
    "Greek": r"\p{Greek}",
    "Hangul": r"\p{Hangul}",
    "Hebrew": r"\p{Hebrew}",
    "kana": r"[\p{Hiragana}\p{Katakana}]",
    "Khmer": r"\p{Khmer}",
    "Lao": r"\p{Lao}",
    "Tamil": r"\p{Tamil}",
    "Telugu": r"\p{Telugu}",
    "Thai": r"\p{Thai}",
}
JAPANESE = ("kana", "Chinese")  # scripts that are written together
# the usual language of a script
LANGUAGE_OF_SCRIPT = {
    "Latin": ENGLISH.name,
    "Arabic": "arabic",
    "Armenian": "armenian",
    "Bengali": "bengali",
    "Burmese": "burmese",
    "Chinese": "chinese",
    "Cyrillic": "russian",
    "Devanagari": "hindi",
    "Greek": "greek",
    "Hangul": "korean",
    "Hebrew": "hebrew",
    "kana": "japanese",
    "Khmer": "khmer",
    "Lao": "lao",
    "Tamil": "tamil",
    "Telugu": "telugu",
    "Thai": "thai",
}
# scripts of several languages that --language names
SHARED = ("Latin", "Arabic", "Cyrillic", "Devanagari")
_PATTERNS = {**SCRIPTS, "other": r"[^\p{Common}\p{Inherited}]"}  # marks of many scripts have none
_SCRIPT = regex.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in _PATTERNS.items()))


@dataclass(frozen=True)
class Suggestion:
    """The language that the letters of some texts suggest."""

    language: Language | None  # None if no script has the majority of the letters
    scripts: str  # "Thai", or the shares of the most frequent ones; empty without letters
    is_shared: bool = False  # whether other languages have the script, too


def suggest_language(texts: Iterable[str]) -> Suggestion:
    """Return the language that the letters of texts suggest.

    >>> suggest_language(["กรุงเทพ", "ประเทศไทย 2026"]).language.name
    'thai'
    >>> suggest_language(["データベースの正規化"]).language.name
    'japanese'
    >>> suggest_language(["床前明月光", "moon light"])
    Suggestion(language=None, scripts='64% Latin, 36% Chinese', is_shared=False)
    """
    counts = letters_by_script(texts)
    letters = counts.total()
    for script, count in counts.most_common():
        if count >= MAJORITY * letters and script in LANGUAGE_OF_SCRIPT:
            language = find_language(LANGUAGE_OF_SCRIPT[script])
            return Suggestion(language, script, script in SHARED)
    japanese_letters = sum(counts[script] for script in JAPANESE)
    if letters and japanese_letters >= MAJORITY * letters:
        return Suggestion(find_language("japanese"), "kana and Chinese characters")
    shares = [f"{count / letters:.0%} {script}" for script, count in counts.most_common(3)]
    return Suggestion(None, ", ".join(shares))


def letters_by_script(texts: Iterable[str]) -> Counter[str]:
    """Count letters by script.

    >>> letters_by_script(["Ελλάς and Ελλάδα, 1821"])
    Counter({'Greek': 11, 'Latin': 3})
    """
    characters: Counter[str] = Counter()
    for text in texts:
        characters.update(text)
    counts: Counter[str] = Counter()
    for character, count in characters.items():
        script = _SCRIPT.match(character)
        if script is not None and character.isalpha():
            counts[str(script.lastgroup)] += count
    return counts


def language_of_corpus(passages: Iterable[str]) -> Language:
    """Return the language of --language auto, by the first passages of a corpus, and log it."""
    suggestion = suggest_language(passages)
    if suggestion.language is None:
        logger.info(
            f"--language auto: no script has {MAJORITY:.0%} of the letters of the first "
            f"{SAMPLE:,} passages ({suggestion.scripts or 'no letters'}): {ENGLISH.name}; "
            f"for texts in several languages, --language {MULTILINGUAL.name}"
        )
        return ENGLISH
    message = (
        f"--language auto: at least {MAJORITY:.0%} of the letters of the first {SAMPLE:,} passages "
        f"are {suggestion.scripts}: {suggestion.language.name}"
    )
    if suggestion.is_shared:
        message += "; for another language of this script, name it"
    logger.info(message)
    return suggestion.language
