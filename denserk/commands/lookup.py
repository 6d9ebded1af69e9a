"""`denserk search --query` and `--interactive`: hits with their passages, on the terminal."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from textwrap import wrap
from typing import TYPE_CHECKING

from denserk.config.formats import DETECTED, CorpusSettings
from denserk.config.retrieval import SearchPaths
from denserk.errors import UsageError
from denserk.index.opening import OpenedIndex
from denserk.index.ranking import Hits
from denserk.index.terms import STOP_WORDS, TermSpan
from denserk.io.corpus import PassageTexts, fitting_settings, read_passages
from denserk.io.files import STREAM, read_text_lines
from denserk.io.manifest import CorpusSource, Manifest, corpora_of
from denserk.io.outputs import scratch_folder
from denserk.io.short_texts import one_line
from denserk.records import Passage, Query
from denserk.reporting import printable
from denserk.tasks.search import SearchSession

if TYPE_CHECKING:
    from rich.text import Text

SpansOf = Callable[[str], list[TermSpan]]  # of the terms of a text
EXCERPT = 320  # characters of a passage that are printed
UNWRAPPED = 1 << 20  # columns of an output that is no terminal


def print_hits(paths: SearchPaths, session: SearchSession) -> None:
    """Print the hits of `paths.query`, or of the queries that are typed.

    The corpus is read once, and the passages that may be printed are copied to a temporary file.
    """
    corpora = _corpora(paths, session.opened)
    corpora_names = ", ".join(corpora)
    with scratch_folder("look-up") as scratch, closing(PassageTexts(scratch / "texts")) as texts:
        if paths.interactive:
            texts.find(_passages(corpora), corpora_names, everything=True)
            for line in _typed_queries():
                answers = _answer(session, [line])
                heading = not sys.stdin.isatty()  # a terminal shows what was typed
                _print_answers(session, answers, texts, heading=heading)
        else:
            answers = _answer(session, paths.query)
            for _, hits in answers:
                texts.refer(docid for docid, _ in hits)
            texts.find(_passages(corpora), corpora_names)
            _print_answers(session, answers, texts, heading=True)
    session.searcher.warn_of_short_lists()


def _answer(session: SearchSession, query_texts: Sequence[str]) -> list[tuple[str, Hits]]:
    """Return each query's text and hits."""
    queries = [Query(f"q{number}", text) for number, text in enumerate(query_texts, start=1)]
    hits_of_queries = session.answer(queries)
    return [(query.text, hits) for query, (_, hits) in zip(queries, hits_of_queries, strict=True)]


def _print_answers(
    session: SearchSession,
    answers: Sequence[tuple[str, Hits]],
    texts: PassageTexts,
    *,
    heading: bool,
) -> None:
    """Print the hits of queries with their passages, and why there may be none."""
    absent_text = "(not in the corpus)"
    if session.searcher.settings.max_passage:
        absent_text = "(not in the corpus: --corpus FILE prints documents of that file)"
    for query_text, hits in answers:
        docids = [docid for docid, _ in hits]
        passages = [
            passage or Passage(docid, absent_text)
            for docid, passage in zip(docids, texts.get(docids), strict=True)
        ]
        _print_query(query_text, hits, passages, session.opened.spans, heading=heading)
        if not hits:
            hint = session.opened.hint_without_hits([query_text])
            reason = f" ({hint})" if hint else ""
            print(f"     no hits{reason}\n")  # noqa: T201


def _passages(corpora: dict[str, CorpusSettings]) -> Iterator[Passage]:
    """Yield the passages of corpora by name."""
    for name, settings in corpora.items():
        yield from read_passages(name, settings)


def _corpora(paths: SearchPaths, opened: OpenedIndex) -> dict[str, CorpusSettings]:
    """Return the corpora that the index was made from, by name, or --corpus in their place.

    --corpus is read with the settings of the index's corpus if they fit, as the file may only have
    moved.
    """
    sources: list[CorpusSource] = []
    for manifest in opened.manifests:
        sources += corpora_of(manifest)
    settings = {source.name: source.settings for source in sources}
    if paths.corpus is not None:
        recorded_settings = next(iter(settings.values()), DETECTED)
        return {paths.corpus: fitting_settings(paths.corpus, recorded_settings)}
    hint = "give --corpus and the file of the passages"
    for source in sources:
        if source.name == STREAM:
            raise UsageError(f"{opened.name} was made from standard input, which is gone", hint)
        if source.absent is not None:
            raise UsageError(f"{opened.name}: {source.absent}", hint)
    if not sources:
        problems = [f"{opened.name} names no corpus"]
        for manifest in opened.manifests:
            problems += _absent_vectors(manifest)
        raise UsageError("; ".join(problems), hint)
    return settings


def _absent_vectors(manifest: Manifest | None) -> list[str]:
    """Return messages of the folders of vectors that are gone: they would name the corpus."""
    if manifest is None:
        return []
    folders = manifest.made_from.get("vectors", ())
    return [manifest.absent[folder] for folder in folders if folder in manifest.absent]


def _typed_queries() -> Iterator[str]:
    """Yield lines of the terminal or of standard input, up to its end or an empty line."""
    is_terminal = sys.stdin.isatty()
    lines = _terminal_lines() if is_terminal else _stream_lines()
    with suppress(EOFError):  # Ctrl-D
        for line in lines:
            if not line.strip():
                break
            yield line
    if is_terminal:
        sys.stdout.write("\n")  # the shell's prompt has its own line


def _terminal_lines() -> Iterator[str]:
    """Yield the lines that are typed after a prompt."""
    import readline  # noqa: F401  (`input` then edits lines and has a history)

    while True:
        yield input("query: ")


def _stream_lines() -> Iterator[str]:
    """Yield the lines of standard input."""
    for _, text in read_text_lines(STREAM):
        yield text


def _print_query(
    query_text: str, hits: Hits, passages: Sequence[Passage], spans_of: SpansOf, *, heading: bool
) -> None:
    """Print rank, score, id, title and an excerpt of each hit; on a terminal with its terms."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = UNWRAPPED
    terms = _query_terms(query_text, spans_of)
    if heading:
        console.print(Text(printable(query_text, None), "bold"))
    for rank, ((docid, score), passage) in enumerate(zip(hits, passages, strict=True), start=1):
        docid_cell = (printable(docid, None), "cyan")
        title = _with_marks(passage.title, terms, spans_of)
        line = Text.assemble(f"{rank:>3}  {score:.4f}  ", docid_cell, "  ", title)
        line.rstrip()
        console.print(line)
        excerpt = _excerpt(passage.text, terms, spans_of)
        console.print(Padding.indent(_with_marks(excerpt, terms, spans_of), 5))
    if hits:
        console.print()


def _query_terms(query_text: str, spans_of: SpansOf) -> set[str]:
    """Return the terms of a query without stop words; all, if there are no others.

    >>> from denserk.index.terms import word_spans
    >>> sorted(_query_terms("When does the moon rise?", word_spans))
    ['does', 'moon', 'rise', 'when']
    >>> sorted(_query_terms("to be", word_spans))
    ['be', 'to']
    """
    terms = {span.term for span in spans_of(query_text)}
    return terms - STOP_WORDS or terms


def _with_marks(text: str, terms: Iterable[str], spans_of: SpansOf) -> "Text":
    """Return a text whose terms of the query stand out on a terminal."""
    from rich.text import Text

    marked = Text(printable(one_line(text), None))
    matches = [span for span in spans_of(marked.plain) if span.term in terms]
    for start, end in _joined(matches):
        marked.stylize("bold yellow", start, end)
    return marked


def _joined(spans: Iterable[TermSpan]) -> Iterator[tuple[int, int]]:
    """Yield where spans begin and end, as one those that overlap or touch, as bigrams do.

    >>> list(_joined([TermSpan(0, 2, "東京"), TermSpan(1, 3, "京都"), TermSpan(5, 8, "and")]))
    [(0, 3), (5, 8)]
    """
    start = end = 0
    for span in spans:
        if span.start > end:
            if end > start:
                yield start, end
            start = span.start
        end = span.end
    if end > start:
        yield start, end


def _excerpt(text: str, terms: set[str], spans_of: SpansOf) -> str:
    """Return the part of a text that has most of the terms.

    >>> from denserk.index.terms import word_spans
    >>> _excerpt("the moon rises", {"moon"}, word_spans)
    'the moon rises'
    """
    excerpts = wrap(text, EXCERPT) or [""]
    counts = []
    for excerpt in excerpts:
        terms_of_excerpt = {span.term for span in spans_of(excerpt)}
        counts.append(len(terms & terms_of_excerpt))
    best = counts.index(max(counts))
    before = "… " if best > 0 else ""
    after = " …" if best < len(excerpts) - 1 else ""
    return f"{before}{excerpts[best]}{after}"
