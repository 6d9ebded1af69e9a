"""What to type where the queries of a BM25 index have no hits: its language may be another one."""

import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from denserk.config.formats import CorpusSettings
from denserk.config.languages import ENGLISH, MULTILINGUAL, Language, Terms, find_language
from denserk.config.options import fields_of, given_fields, spec_of
from denserk.config.retrieval import Bm25Settings, Engine
from denserk.config.values import plain
from denserk.index.bm25 import recorded_bm25
from denserk.index.scripts import Suggestion, suggest_language
from denserk.index.terms import has_bigrams
from denserk.io.files import STREAM
from denserk.io.manifest import Manifest, corpora_of

ENGLISH_STEMMERS = ("porter", "krovetz", "english", "lovins")
GERMAN = find_language("german")  # an example of another language in Latin letters


class IndexOrigin(NamedTuple):
    """What an index was made from, so that it can be made again for another language."""

    folder: str | None  # None in Python
    manifest: Manifest | None  # None of an index of another tool

    def command(self, language: Language) -> str:
        """Return the command that makes the index for a language, with its other options."""
        if self.folder is None:
            return f'BM25.build(corpus, language="{language.name}")'
        words = ["denserk", "index", "--type", "bm25", "--language", language.name]
        words += self._engine_option(language)
        words += _as_options(recorded_bm25(self.manifest), without=("language", "stemmer"))
        words += self._corpus_options()
        words += ["--output", self.folder, "--overwrite"]
        return shlex.join(words)

    def _engine_option(self, language: Language) -> list[str]:
        """Return --engine for an index of Lucene, if Lucene has the language."""
        engine = None if self.manifest is None else self.manifest.settings.get("engine")
        if engine == Engine.LUCENE and language.in_lucene:
            return ["--engine", "lucene"]
        return []

    def _corpus_options(self) -> list[str]:
        """Return --corpus and how the corpus was read; FILE if it was a stream or is not known."""
        source = next(corpora_of(self.manifest), None)
        if source is None:
            return ["--corpus", "FILE"]
        name = "FILE" if source.name == STREAM else source.name
        return ["--corpus", name, *_as_options(source.settings)]


def _as_options(
    settings: Bm25Settings | CorpusSettings, *, without: Sequence[str] = ()
) -> list[str]:
    """Return the options that differ from their defaults, as words of a command line.

    Those of the fields `without` are left out.
    """
    fields = fields_of(settings)
    words = []
    for name in given_fields(settings):
        if name in without:
            continue
        value = plain(getattr(settings, name))
        text = ",".join(value) if isinstance(value, list) else str(value)
        option = spec_of(fields[name])
        if option.rare:
            words += ["--set", f"{name.replace('_', '-')}={text}"]
        else:
            words += [option.flag(name), text]
    return words


CommandOfLanguage: TypeAlias = Callable[[Language], str]


def language_hint(
    folder: str | None,
    manifest: Manifest | None,
    queries: Iterable[str],
    command_of: CommandOfLanguage | None = None,
) -> str:
    """Return a command that indexes the language of queries, as far as their letters show it.

    Without the index's folder, the command is one of Python. `command_of` returns another one than
    that which makes the index again.
    """
    if command_of is None:
        command_of = IndexOrigin(folder, manifest).command
    settings = recorded_bm25(manifest)
    language = indexed_language(settings)
    if language is None:
        return f"the index was made with --set stemmer={settings.stemmer}: is that the language?"
    texts = list(queries)
    suggestion = suggest_language(texts)
    if not suggestion.scripts:
        return ""
    if has_bigrams(settings) and all(len(text.strip()) == 1 for text in texts):
        return "a character that is a query of its own is found only where it stands alone"
    if language is MULTILINGUAL:
        return _hint_for_multilingual(suggestion)
    return _hint_for_one_language(language, suggestion, command_of)


def indexed_language(settings: Bm25Settings) -> Language | None:
    """Return the language of an index; None if only a stemmer other than English was given."""
    if settings.language is not None:
        return find_language(settings.language)
    return ENGLISH if settings.stemmer in ENGLISH_STEMMERS else None


def _hint_for_multilingual(suggestion: Suggestion) -> str:
    """Return the hint for an index of several languages; bigrams are those of any language."""
    language = suggestion.language
    if language is None or language.terms is Terms.BIGRAMS:
        return ""
    return "--language multilingual finds equal words only, not their other forms"


def _hint_for_one_language(
    language: Language, suggestion: Suggestion, command_of: CommandOfLanguage
) -> str:
    """Return the hint for an index of one language, which may be that of the queries."""
    if language is ENGLISH and suggestion.language is ENGLISH:
        command = command_of(GERMAN)
        return (
            "the index, which is for English, has none of the words; if they are of another "
            f"language, such as German: {command}"
        )
    if suggestion.language is language:
        return ""
    if language is not ENGLISH and suggestion.is_shared:
        return f"the index was made with --language {language.name}: is that the queries' language?"
    command = command_of(suggestion.language or MULTILINGUAL)
    return (
        f"the index is for {language.name.title()}, and the queries' letters are "
        f"{suggestion.scripts}: {command}"
    )
