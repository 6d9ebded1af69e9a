"""The choice of a retriever."""

import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from denserk.api.inputs import RunLike, TextsLike, is_path, path_text, store_input
from denserk.api.options import ChooseOptions, PathName
from denserk.api.signatures import CHOOSE, documented
from denserk.config.candidate_expressions import LABEL
from denserk.config.choosing import ChooseSettings
from denserk.config.encoding import ComputeSettings, ServerSettings
from denserk.config.formats import CorpusSettings
from denserk.config.options import NOTHING, build
from denserk.config.retrieval import Bm25Settings
from denserk.errors import UsageError
from denserk.io.manifest import Kind, beside, started_manifest

if TYPE_CHECKING:
    from denserk.evaluation.choice import Choice

logger = logging.getLogger(__name__)

Candidates = Sequence[str] | Mapping[str, RunLike]


@documented(CHOOSE)
def choose(
    corpus: "TextsLike",
    topics: "TextsLike",
    qrels: "RunLike",
    *,
    output: PathName,
    candidates: "Candidates" = (),
    **options: Unpack[ChooseOptions],
) -> "Choice":
    """Build and compare retrievers on judged queries; return the decision.

    `candidates` are retrievers such as "bm25", "bm25+minilm" or "run.trec", or {name: retriever or
    run in memory}. The result has the `systems` with mean, interval and cost, the names of those
    that may be the `best`, the `leader`, the `outcome` and the `commands` that build the leader
    again. What is in memory is written to a folder beside the output, OUTPUT.inputs, which
    `resume` and the commands need; it is removed if the call fails before it begins OUTPUT.
    """
    output_name = path_text(output, "output")
    inputs = Path(f"{output_name}.inputs")
    started_manifest(  # before the inputs of the choice that is there are replaced
        output_name,
        Kind.CHOICE,
        overwrite=bool(options.get("overwrite")),
        resume=bool(options.get("resume")),
    )
    with removed_unless_started(inputs, Path(output_name)):
        return _choose(corpus, topics, qrels, output_name, candidates, inputs, options)


@contextmanager
def removed_unless_started(inputs: Path, output: Path) -> Iterator[None]:
    """Context manager that removes new inputs if an error leaves no choice in the output folder."""
    were_there = inputs.exists()
    try:
        yield
    except BaseException:
        if not were_there and not beside(output).is_file():
            shutil.rmtree(inputs, ignore_errors=True)
        raise


def _choose(
    corpus: "TextsLike",
    topics: "TextsLike",
    qrels: "RunLike",
    output_name: str,
    candidates: "Candidates",
    inputs: Path,
    options: Mapping[str, Any],
) -> "Choice":
    """Write what is in memory to the folder of inputs, and choose."""
    files = {
        "corpus": stored(corpus, "corpus", inputs / "corpus.jsonl", options),
        "topics": stored(topics, "topics", inputs / "topics.jsonl"),
        "qrels": stored(qrels, "qrels", inputs / "qrels.txt"),
    }
    expressions = stored_candidates(candidates, inputs)
    typed = CHOOSE.typed(options, output=output_name, candidates=expressions, **files)
    settings = build(ChooseSettings, typed)
    from denserk.tasks.choose import choose as task

    with CHOOSE.claimed(typed):
        choice = task(
            settings,
            build(CorpusSettings, typed),
            build(ComputeSettings, typed),
            build(ServerSettings, typed),
            build(Bm25Settings, typed),
        )
    if inputs.is_dir():
        logger.info(f"{inputs}: what was in memory; keep it beside {output_name}, which reads it")
    return choice


def stored(value: Any, option: str, path: Path, options: Mapping[str, Any] = NOTHING) -> str:
    """Return the path of an input; write an object to `path` first."""
    if is_path(value):
        return str(value)
    path.parent.mkdir(parents=True, exist_ok=True)
    return str(store_input(option, value, path, options))


def stored_candidates(candidates: Any, folder: Path) -> list[str]:
    """Return candidates as expressions; runs in memory are written to a folder.

    Raise a UsageError for a name that an expression could not have in front.
    """
    if isinstance(candidates, str):
        return [candidates]
    if not isinstance(candidates, Mapping):
        return [path_text(candidate, "candidates") for candidate in candidates]
    expressions = []
    for number, (name, candidate) in enumerate(candidates.items(), start=1):
        if not isinstance(name, str) or LABEL.fullmatch(name) is None:
            raise UsageError(
                f"candidates: {name!r} is no name: it has letters, digits and . _ - alone",
                "for example {'hybrid': 'bm25+minilm'}",
            )
        path = stored(candidate, "run", folder / f"run{number}.trec")
        expressions.append(f"{name}={path}")
    return expressions
