"""`denserk search --query` and `--interactive`: hits with their passages, on the terminal."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import chain, starmap, takewhile
from textwrap import wrap

from denserk.config.formats import DETECTED, CorpusSettings
from denserk.config.retrieval import SearchPaths
from denserk.errors import UsageError
from denserk.index.bm25 import STOP_WORDS, TERM
from denserk.index.opening import OpenedIndex
from denserk.index.searcher import Hits
from denserk.io.corpus import PassageTexts, read_passages
from denserk.io.files import STREAM, one_line, read_text_lines
from denserk.io.manifest import Manifest, corpora_of
from denserk.io.outputs import scratch_folder
from denserk.records import Passage, Query
from denserk.reporting import printable

EXCERPT = 320  # characters of a passage that are printed
Answer = Callable[[Sequence[Query]], list[tuple[str, Hits]]]


def print_hits(paths: SearchPaths, opened: OpenedIndex, answer: Answer) -> None:
    """Print the hits of `paths.query`, or of the queries that are typed.

    The corpus is read once, and the passages that may be printed are copied to a temporary file.
    """
    sources = _corpora(paths, opened)
    corpus, name = chain.from_iterable(starmap(read_passages, sources.items())), ", ".join(sources)
    asked: Iterable[Sequence[str]] = [paths.query]
    with scratch_folder("look-up") as scratch, closing(PassageTexts(scratch / "texts")) as texts:
        if paths.interactive:
            texts.find(corpus, name, everything=True)
            asked = ([line] for line in _typed())
        for batch in asked:
            queries = [Query(f"q{number}", text) for number, text in enumerate(batch, 1)]
            found = answer(queries)
            if not paths.interactive:
                texts.refer(docid for _, hits in found for docid, _ in hits)
                texts.find(corpus, name)
            for query, (_, hits) in zip(queries, found, strict=True):
                passages = texts.get([docid for docid, _ in hits])
                heading = not (paths.interactive and sys.stdin.isatty())
                _print(query.text, hits, passages, heading=heading)
                if not hits:
                    _print_no_hits(opened.hint_without_hits([query.text]))


def _corpora(paths: SearchPaths, opened: OpenedIndex) -> dict[str, CorpusSettings]:
    """Return the corpora of an index by name, or the one that is given, perhaps their new place."""
    sources = [source for manifest in opened.manifests for source in corpora_of(manifest)]
    settings = {source.name: source.settings for source in sources}
    if paths.corpus is not None:
        return {paths.corpus: next(iter(settings.values()), DETECTED)}
    hint = "give --corpus and the file of the passages"
    for source in sources:
        if source.absent is not None:
            raise UsageError(f"{opened.name}: {source.absent}", hint)
    if not sources:
        reasons = [absent for manifest in opened.manifests for absent in _absent_vectors(manifest)]
        raise UsageError("; ".join([f"{opened.name} names no corpus", *reasons]), hint)
    return settings


def _absent_vectors(manifest: Manifest | None) -> Iterator[str]:
    """Yield where the vectors of an index are not, whose manifests name the corpus."""
    if manifest is not None:
        for folder in manifest.made_from.get("vectors", ()):
            if folder in manifest.absent:
                yield manifest.absent[folder]


def _typed() -> Iterator[str]:
    """Yield lines of the terminal or of standard input, up to its end or an empty line."""
    import readline  # noqa: F401  (`input` then edits lines and has a history)

    typed = iter(partial(input, "query: "), None)
    lines = typed if sys.stdin.isatty() else (text for _, text in read_text_lines(STREAM))
    with suppress(EOFError):  # Ctrl-D
        yield from takewhile(str.strip, lines)
    sys.stdout.write("\n" * sys.stdin.isatty())  # the shell's prompt has its own line


def _print(query: str, hits: Hits, passages: Sequence[Passage | None], *, heading: bool) -> None:
    """Print rank, score, id, title and an excerpt of each hit; on a terminal with its terms."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 1 << 20  # no line is wrapped
    terms = set(TERM.findall(query.lower()))
    terms = terms - STOP_WORDS or terms

    def marked(text: str) -> Text:
        shown = Text(printable(one_line(text), None))
        for match in TERM.finditer(shown.plain):
            if match.group().lower() in terms:
                shown.stylize("bold yellow", *match.span())
        return shown

    if heading:
        console.print(Text(printable(query, None), "bold"))
    for rank, ((docid, score), passage) in enumerate(zip(hits, passages, strict=True), 1):
        _, text, title, _ = passage or Passage(docid, "(not in the corpus)")
        name = (printable(docid, None), "cyan")
        head = Text.assemble(f"{rank:>3}  {score:.4f}  ", name, "  ", marked(title))
        head.rstrip()
        console.print(head)
        # the part of the text that has most of the terms
        parts = wrap(text, EXCERPT) or [""]
        counts = [len(terms.intersection(TERM.findall(part.lower()))) for part in parts]
        best = counts.index(max(counts))
        excerpt = f"{'… ' * (best > 0)}{parts[best]}{' …' * (best < len(parts) - 1)}"
        console.print(Padding.indent(marked(excerpt), 5))
    if hits:
        console.print()


def _print_no_hits(hint: str) -> None:
    """Print that a query has no hits, and why that may be."""
    print("     no hits" + (f" ({hint})" if hint else "") + "\n")  # noqa: T201
