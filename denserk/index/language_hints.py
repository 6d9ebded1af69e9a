"""What to type where the queries of a BM25 index have no hits: its language may be another one."""

import shlex
from collections.abc import Iterable

from denserk.config.languages import ENGLISH, MULTILINGUAL, Terms
from denserk.config.retrieval import Bm25Settings
from denserk.index.bm25 import recorded_bm25
from denserk.index.scripts import Suggestion, suggest_language
from denserk.index.terms import has_bigrams
from denserk.io.manifest import Manifest

ENGLISH_STEMMERS = ("porter", "krovetz", "english", "lovins")
EXAMPLE = "german"  # of a language in Latin letters


def language_hint(folder: str | None, manifest: Manifest | None, queries: Iterable[str]) -> str:
    """Return a command that indexes the language of queries, as far as their letters show it.

    Without the index's folder, the command is one of Python.
    """
    settings = recorded_bm25(manifest)
    language = indexed_language(settings)
    texts = list(queries)
    suggestion = suggest_language(texts)
    if language is None:
        return f"the index was made with --set stemmer={settings.stemmer}: is that the language?"
    if not suggestion.scripts:
        return ""
    if has_bigrams(settings) and any(len(text.strip()) == 1 for text in texts):
        return "a character that is a query of its own is found only where it stands alone"
    if language == MULTILINGUAL.name:
        return _hint_for_multilingual(suggestion)
    if suggestion.language is not None and suggestion.language.name == language:
        if language != ENGLISH.name:
            return ""
        command = _command(EXAMPLE, folder, manifest)
        return f"the index is for English; for another language, such as German: {command}"
    if language != ENGLISH.name and suggestion.is_shared:
        return f"the index was made with --language {language}: is that the queries' language?"
    proposed = suggestion.language or MULTILINGUAL
    command = _command(proposed.name, folder, manifest)
    letters = f"the queries' letters are {suggestion.scripts}"
    return f"the index is for {language.title()}, and {letters}: {command}"


def _hint_for_multilingual(suggestion: Suggestion) -> str:
    """Return the hint for an index of several languages; bigrams are those of any language."""
    language = suggestion.language
    if language is None or language.terms is Terms.BIGRAMS:
        return ""
    return "--language multilingual finds equal words only, not their other forms"


def indexed_language(settings: Bm25Settings) -> str | None:
    """Return the language of an index; None if only a stemmer other than English was given."""
    if settings.language is not None:
        return settings.language
    return ENGLISH.name if settings.stemmer in ENGLISH_STEMMERS else None


def _command(language: str, folder: str | None, manifest: Manifest | None) -> str:
    """Return the command that makes an index for a language."""
    if folder is None:
        return f'BM25.build(corpus, language="{language}")'
    corpus = "FILE"
    if manifest is not None:
        corpus = manifest.made_from.get("texts", corpus)
    words = ["denserk", "index", "--type", "bm25", "--language", language]
    words += ["--corpus", corpus, "--output", folder, "--overwrite"]
    return shlex.join(words)
