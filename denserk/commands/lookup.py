"""`denserk search --query` and `--interactive`: hits with their passages, on the terminal."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from denserk.config.formats import RunFormat
from denserk.config.retrieval import SearchPaths
from denserk.index.excerpts import SpansOf, excerpt_of, marked_spans, query_terms
from denserk.index.passage_sources import corpora_of_index, passages_of
from denserk.index.ranking import Hits
from denserk.io.corpus import PassageTexts
from denserk.io.files import STREAM, read_text_lines
from denserk.io.json_records import dump_json
from denserk.io.outputs import scratch_folder
from denserk.io.short_texts import one_line
from denserk.records import Passage, Query
from denserk.reporting import printable
from denserk.tasks.search import SearchSession

if TYPE_CHECKING:
    from rich.text import Text

UNWRAPPED = 1 << 20  # columns of an output that is no terminal


def print_hits(paths: SearchPaths, session: SearchSession) -> None:
    """Print the hits of `paths.query`, or of the queries that are typed.

    The corpus is read once, and the passages that may be printed are copied to a temporary file.
    """
    corpora = corpora_of_index(session.opened, paths.corpus)
    corpora_names = ", ".join(corpora)
    with scratch_folder("look-up") as scratch, closing(PassageTexts(scratch / "texts")) as texts:
        if paths.interactive:
            texts.find(passages_of(corpora), corpora_names, everything=True)
            for line in _typed_queries():
                answers = _answer(session, [line])
                heading = not sys.stdin.isatty()  # a terminal shows what was typed
                _print_answers(session, answers, texts, heading=heading)
        else:
            answers = _answer(session, paths.query)
            for _, hits in answers:
                texts.refer(docid for docid, _ in hits)
            texts.find(passages_of(corpora), corpora_names)
            _print_answers(session, answers, texts, heading=True)
    session.searcher.warn_of_short_lists()


def _answer(session: SearchSession, query_texts: Sequence[str]) -> list[tuple[Query, Hits]]:
    """Return each query, with an id, and its hits."""
    queries = [Query(f"q{number}", text) for number, text in enumerate(query_texts, start=1)]
    hits_of_queries = session.answer(queries)
    return [(query, hits) for query, (_, hits) in zip(queries, hits_of_queries, strict=True)]


def _print_answers(
    session: SearchSession,
    answers: Sequence[tuple[Query, Hits]],
    texts: PassageTexts,
    *,
    heading: bool,
) -> None:
    """Print the hits of queries with their passages, and why there may be none."""
    absent_text = "(not in the corpus)"
    if session.searcher.settings.max_passage:
        absent_text = "(not in the corpus: --corpus FILE prints documents of that file)"
    for query, hits in answers:
        docids = [docid for docid, _ in hits]
        passages = [
            passage or Passage(docid, absent_text)
            for docid, passage in zip(docids, texts.get(docids), strict=True)
        ]
        if session.searcher.settings.output_format is RunFormat.JSONL:
            _print_json(query, hits, passages)
            continue
        _print_query(query.text, hits, passages, session.opened.spans, heading=heading)
        if not hits:
            hint = session.opened.hint_without_hits([query.text])
            reason = f" ({hint})" if hint else ""
            print(f"     no hits{reason}\n")  # noqa: T201


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
    terms = query_terms(query_text, spans_of)
    if heading:
        console.print(Text(printable(query_text, None), "bold"))
    for rank, ((docid, score), passage) in enumerate(zip(hits, passages, strict=True), start=1):
        docid_cell = (printable(docid, None), "cyan")
        title = _with_marks(passage.title, terms, spans_of)
        line = Text.assemble(f"{rank:>3}  {score:.4f}  ", docid_cell, "  ", title)
        line.rstrip()
        console.print(line)
        excerpt = excerpt_of(passage.text, terms, spans_of)
        console.print(Padding.indent(_with_marks(excerpt, terms, spans_of), 5))
    if hits:
        console.print()


def _print_json(query: Query, hits: Hits, passages: Sequence[Passage]) -> None:
    """Print the hits of a query as JSON lines: those of a run, with query, title and text."""
    for rank, ((docid, score), passage) in enumerate(zip(hits, passages, strict=True), start=1):
        line = {
            "qid": query.qid,
            "query": query.text,
            "docid": docid,
            "rank": rank,
            "score": score,
            "title": passage.title,
            "text": passage.text,
        }
        sys.stdout.write(dump_json(line).decode())


def _with_marks(text: str, terms: Iterable[str], spans_of: SpansOf) -> "Text":
    """Return a text whose terms of the query stand out on a terminal."""
    from rich.text import Text

    marked = Text(printable(one_line(text), None))
    for start, end in marked_spans(marked.plain, terms, spans_of):
        marked.stylize("bold yellow", start, end)
    return marked
