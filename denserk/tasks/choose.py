"""`denserk choose`: from documents and judged queries to the retriever that is best on them.

What candidates lack is built, and they are compared block by block (`choose_comparison.py`). The
decision is written (`choose_result.py`), and test queries are opened (`choose_sealed.py`).
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from denserk.config.choosing import ChooseSettings
from denserk.config.encoding import NO_SERVER, ComputeSettings, ServerSettings
from denserk.config.formats import DETECTED, CorpusSettings
from denserk.config.options import as_json
from denserk.config.retrieval import Bm25Settings
from denserk.errors import UsageError
from denserk.evaluation.choice import Choice
from denserk.io.manifest import Kind, Manifest, beside, started_manifest
from denserk.io.outputs import scratch_folder
from denserk.io.topics import topics_sha256
from denserk.reporting import warning_of_deadline
from denserk.tasks.choose_candidates import BuiltIndex, SharedInputs
from denserk.tasks.choose_comparison import (
    BlockwiseComparison,
    all_retrievers,
    prepare_retrievers,
)
from denserk.tasks.choose_folder import EXISTING_INPUTS, TRAINING_QRELS, ChoiceFolder
from denserk.tasks.choose_inputs import (
    JudgedQueries,
    RetrieverFactory,
    System,
    check_bm25,
    check_judged_passages,
    check_relevant_passages,
    check_server,
    deciding_measure,
    parse_candidates,
    read_judged_queries,
    read_run_files,
    reject_overlap,
    warn_of_unused_training,
    without_shared,
)
from denserk.tasks.choose_result import choice_of, write_choice, write_choice_page
from denserk.tasks.choose_runs import COSTS, Costs
from denserk.tasks.choose_sealed import SealedQueries

# settings that decide what the comparison computes
COMPARED_SETTINGS = (
    "topics_format",
    "topics_field",
    "measure",
    "alpha",
    "block_size",
    "seed",
    "hits",
    "rerank_depth",
    "finetune_steps",
    "finetune_negatives",
)


def choose(
    settings: ChooseSettings,
    corpus: CorpusSettings = DETECTED,
    compute: ComputeSettings = ComputeSettings(),  # noqa: B008  (frozen)
    server: ServerSettings = NO_SERVER,
    bm25: Bm25Settings = Bm25Settings(),  # noqa: B008  (frozen)
) -> Choice:
    """Build and compare retrievers on judged queries; write the decision to a folder.

    `server` is that of all candidates behind a URL, `bm25` how the candidate bm25 is indexed.
    """
    deadline = None
    if settings.budget_seconds is not None:
        deadline = time.monotonic() + settings.budget_seconds
    measure = deciding_measure(settings.measure)
    candidates = parse_candidates(settings)
    check_server(candidates, server, settings)
    check_bm25(candidates, bm25)
    warn_of_unused_training(candidates, settings)
    started_manifest(  # an output that cannot be used is an error before anything is read
        settings.output, Kind.CHOICE, overwrite=settings.overwrite, resume=settings.resume
    )
    queries = _read_queries(settings)
    with scratch_folder("choose") as scratch, ExitStack() as opened:
        inputs = SharedInputs(
            settings=settings,
            corpus=corpus,
            compute=compute,
            server=server,
            bm25=bm25,
            folder=Path(settings.output),
            scratch=scratch,
            measure=measure,
            opened=opened,
            train_qrels=_qrels_to_train_on(settings),
            training_queries=_checksums(queries.training),
        )
        factory = RetrieverFactory(inputs)
        systems = []
        for label, expression in candidates:
            systems.append(System(label, str(expression), factory.make(expression)))
        run_checksums = read_run_files(systems, queries.deciding, queries.test)
        if _builds_from_corpus(systems) and not _is_resumed(settings):
            check_judged_passages(settings.corpus, corpus, queries.all_purposes())
        folder = ChoiceFolder(settings, _manifest(inputs, systems, queries, run_checksums))
        folder.prepare()
        if queries.training is not None and settings.drop_shared_training:
            folder.write_training_qrels(queries.training.judgments)
        costs = _costs_so_far(folder.path, overwrite=settings.overwrite)
        comparison = BlockwiseComparison(inputs, systems, queries.deciding, folder, costs)
        with warning_of_deadline(deadline, f"--budget {settings.budget}"):
            prepare_retrievers(systems, costs)
        comparison.compare(deadline)
        choice = choice_of(comparison, costs)
        write_choice(choice, comparison, folder)
        if queries.test is not None:
            sealed = SealedQueries(queries.test, measure, folder)
            opening = sealed.open(choice, comparison.systems, again=settings.open_again)
            choice = replace(choice, test=opening)
            write_choice_page(choice, folder)
    return choice


class QueriesByPurpose(NamedTuple):
    """Judged queries, no two of which are the same."""

    deciding: JudgedQueries
    training: JudgedQueries | None
    test: JudgedQueries | None

    def all_purposes(self) -> list[JudgedQueries]:
        """Return those that are given."""
        return [queries for queries in self if queries is not None]


def _read_queries(settings: ChooseSettings) -> QueriesByPurpose:
    """Return the queries; raise an error for too few, and for those that have two purposes."""
    deciding = read_judged_queries(settings.topics, settings.qrels, settings)
    if len(deciding.queries) < 2:
        raise UsageError(
            f"{settings.qrels} judges one query, which decides nothing",
            "give judgments of some hundred queries",
        )
    check_relevant_passages(deciding)
    test = None
    if settings.test_qrels is not None:
        topics = settings.test_topics or settings.topics
        test = read_judged_queries(topics, settings.test_qrels, settings)
        reject_overlap(deciding, test, "test queries must not decide")
    training = None
    if settings.train_qrels is not None:
        training = _read_training_queries(settings, settings.train_qrels, deciding, test)
    return QueriesByPurpose(deciding, training, test)


def _read_training_queries(
    settings: ChooseSettings, qrels: str, deciding: JudgedQueries, test: JudgedQueries | None
) -> JudgedQueries:
    """Return the training queries; those that are evaluated are left out, or raise an error."""
    training = read_judged_queries(settings.train_topics or settings.topics, qrels, settings)
    if settings.drop_shared_training:
        evaluated = [deciding] if test is None else [deciding, test]
        return without_shared(training, evaluated)
    hint = (
        "give judgments of other queries, or leave them out of the training: "
        "--set drop-shared-training=yes"
    )
    reason = "what a model was trained on says nothing about new queries"
    reject_overlap(deciding, training, reason, hint)
    if test is not None:
        reject_overlap(training, test, "test queries must not train a model", hint)
    return training


def _qrels_to_train_on(settings: ChooseSettings) -> str | None:
    """Return the file with the judgments of training queries; None: there are no such queries."""
    if settings.drop_shared_training:
        return str(Path(settings.output) / TRAINING_QRELS)
    return settings.train_qrels


def _checksums(training: JudgedQueries | None) -> Mapping[str, str]:
    """Return the checksums of training queries and of their judgments."""
    if training is None:
        return {}
    return {
        "train_topics_sha256": topics_sha256(training.queries),
        "train_qrels_sha256": training.sha256(),
    }


def _manifest(
    inputs: SharedInputs,
    systems: Sequence[System],
    queries: QueriesByPurpose,
    run_checksums: Sequence[str],
) -> Manifest:
    """Return the manifest of an unfinished choice."""
    settings = inputs.settings
    all_settings = as_json(settings)
    recorded_settings: dict[str, Any] = {"candidates": list(settings.expressions)}
    for name in COMPARED_SETTINGS:
        recorded_settings[name] = all_settings[name]
    recorded_settings["runs_sha256"] = run_checksums
    recorded_settings["corpus_settings"] = as_json(inputs.corpus)
    if inputs.bm25 != Bm25Settings():  # choices of before these options can be resumed
        recorded_settings["bm25"] = as_json(inputs.bm25)
    recorded_settings["dtype"] = inputs.compute.dtype.value
    made_from = {
        "corpus": {"name": settings.corpus},
        **_description("topics", "qrels", queries.deciding),
    }
    if queries.training is not None:
        made_from |= _description("train_topics", "train_qrels", queries.training)
        if queries.training.dropped:
            made_from["train_qrels"]["dropped_queries"] = queries.training.dropped
    made_from[EXISTING_INPUTS] = _existing_inputs(systems)
    contents = {"files": list(all_retrievers(systems))}
    return Manifest(Kind.CHOICE, False, recorded_settings, made_from, contents)


def _existing_inputs(systems: Sequence[System]) -> dict[str, Any]:
    """Return the indexes and rerankers that systems read and do not build, by retriever."""
    inputs = {}
    for name, retriever in all_retrievers(systems).items():
        existing_input = retriever.existing_input()
        if existing_input is not None:
            inputs[name] = existing_input
    return inputs


def _description(topics_key: str, qrels_key: str, queries: JudgedQueries) -> dict[str, Any]:
    """Return what the manifest records of queries and of their judgments."""
    return {
        topics_key: {"name": queries.topics, "sha256": topics_sha256(queries.queries)},
        qrels_key: {"name": queries.qrels, "sha256": queries.sha256()},
    }


def _builds_from_corpus(systems: Sequence[System]) -> bool:
    """Return whether an index, or a folder of vectors, is built."""
    return any(isinstance(retriever, BuiltIndex) for retriever in all_retrievers(systems).values())


def _is_resumed(settings: ChooseSettings) -> bool:
    """Return whether an earlier call has checked the inputs and started."""
    return settings.resume and beside(settings.output).is_file()


def _costs_so_far(folder: Path, *, overwrite: bool) -> Costs:
    """Return what earlier calls have cost; a comparison that starts over searches again."""
    costs = Costs(folder / COSTS)
    costs.read()
    if overwrite:
        costs.forget_searches()
    return costs
