"""`denserk choose`: from documents and judged queries to the retriever that is best on them.

What candidates lack is built. Queries then come in blocks, in a random order, and after each block
the candidates that are not the best are dropped (`SequentialComparison`).
"""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from denserk.config.choosing import ChooseSettings
from denserk.config.encoding import NO_SERVER, ComputeSettings, ServerSettings
from denserk.config.formats import DETECTED, CorpusSettings
from denserk.config.options import as_json
from denserk.config.retrieval import Bm25Settings
from denserk.errors import UsageError
from denserk.evaluation.choice import (
    Choice,
    Outcome,
    SystemResult,
    TestOpening,
    UndecidedDifference,
)
from denserk.evaluation.evaluator import Evaluator, unjudged_hit, unjudged_hit_sentence
from denserk.evaluation.inference import (
    DIGITS,
    SequentialComparison,
    is_rough,
    needed_queries,
    roughness,
)
from denserk.evaluation.measures import Measure
from denserk.evaluation.results import Grades, Run
from denserk.io.files import write_rows
from denserk.io.manifest import Kind, Manifest, beside
from denserk.io.outputs import scratch_folder
from denserk.io.topics import topics_sha256
from denserk.records import Query
from denserk.reporting import track, warning_of_deadline
from denserk.tasks.choose_candidates import (
    Block,
    BuiltIndex,
    FinetunedEncoder,
    FittedHybrid,
    IndexFolder,
    RebuildCommands,
    Retriever,
    SharedInputs,
)
from denserk.tasks.choose_folder import (
    EXISTING_INPUTS,
    TRAINING_QRELS,
    BlockRecord,
    ChoiceFolder,
    write_hits,
)
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
    refuse_overlap,
    warn_of_unused_training,
    without_shared,
)
from denserk.tasks.choose_json import write_json
from denserk.tasks.choose_runs import COSTS, Costs, RunsOfBlock

logger = logging.getLogger(__name__)

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
        comparison = BlockwiseComparison(inputs, systems, queries.deciding, folder)
        with warning_of_deadline(deadline, f"--budget {settings.budget}"):
            comparison.prepare()
        comparison.compare(deadline)
        choice = comparison.choice()
        comparison.write(choice)
        if queries.test is not None:
            choice = replace(choice, test=comparison.open_test(queries.test, choice))
            comparison.write_report(choice)
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
        refuse_overlap(deciding, test, "test queries must not decide")
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
    refuse_overlap(deciding, training, reason, hint)
    if test is not None:
        refuse_overlap(training, test, "test queries must not train a model", hint)
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
    contents = {"files": list(_all_retrievers(systems))}
    return Manifest(Kind.CHOICE, False, recorded_settings, made_from, contents)


def _existing_inputs(systems: Sequence[System]) -> dict[str, Any]:
    """Return the indexes and rerankers that systems read and do not build, by retriever."""
    inputs = {}
    for name, retriever in _all_retrievers(systems).items():
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


def _all_retrievers(systems: Sequence[System]) -> dict[str, Retriever]:
    """Return all that systems are made of, by name; parts come before what needs them."""
    retrievers: dict[str, Retriever] = {}
    for system in systems:
        for retriever in system.retriever.retrievers_to_prepare():
            retrievers[retriever.name] = retriever
    return retrievers


def _builds_from_corpus(systems: Sequence[System]) -> bool:
    """Return whether an index, or a folder of vectors, is built."""
    return any(isinstance(retriever, BuiltIndex) for retriever in _all_retrievers(systems).values())


def _is_resumed(settings: ChooseSettings) -> bool:
    """Return whether an earlier call has checked the inputs and started."""
    return settings.resume and beside(settings.output).is_file()


class BlockwiseComparison:
    """Compares systems block by block, from where an earlier call has stopped."""

    def __init__(
        self,
        inputs: SharedInputs,
        systems: Sequence[System],
        queries: JudgedQueries,
        folder: ChoiceFolder,
    ) -> None:
        self._inputs = inputs
        self._settings = inputs.settings
        self._systems = {system.name: system for system in systems}
        self._judgments = queries.judgments
        self._query_count = len(queries.queries)
        self._blocks = draw_blocks(queries, self._settings)
        self._folder = folder
        self._costs = Costs(folder.path / COSTS)
        self._costs.read()
        if inputs.settings.overwrite:
            self._costs.forget_searches()
        self._comparison = SequentialComparison(list(self._systems), self._settings.alpha)
        self._records: list[BlockRecord] = []
        self._fitted_hybrids: dict[str, FittedHybrid] = {}
        for system in systems:
            for hybrid in fitted_hybrids(system.retriever):
                self._fitted_hybrids[hybrid.name] = hybrid

    def prepare(self) -> None:
        """Build what is missing, and log how far that is."""
        retrievers = _all_retrievers([*self._systems.values()])
        to_build = [
            retriever
            for name, retriever in retrievers.items()
            if isinstance(retriever, BuiltIndex) and not self._costs.is_built.get(name)
        ]
        if to_build:
            logger.info(f"to build before the first block of queries: {_names(to_build)}")
        for name, retriever in retrievers.items():
            if self._costs.is_built.get(name):
                retriever.prepare()
                continue
            seconds = self._prepare_timed(retriever)
            if retriever in to_build:
                to_build.remove(retriever)
                self._log_built(retriever, seconds, to_build)

    def _prepare_timed(self, retriever: Retriever) -> float:
        """Prepare a retriever and return the seconds; they count also where it is interrupted."""
        started = time.perf_counter()
        try:
            retriever.prepare()
            self._costs.is_built[retriever.name] = True
        finally:
            seconds = time.perf_counter() - started
            self._costs.add_build(retriever.name, seconds)
            self._costs.write()
        return seconds

    def _log_built(
        self, retriever: Retriever, seconds: float, to_build: Sequence[Retriever]
    ) -> None:
        """Log that a retriever is built, what is still to build, and what is known of its time."""
        message = f"{retriever.name} is built ({seconds:,.0f} s)"
        if to_build:
            message += f"; still to build: {_names(to_build)}"
        logger.info(message)
        for trained in to_build:
            if isinstance(trained, FinetunedEncoder) and retriever in trained.built_from:
                logger.info(
                    f"{trained.name} encodes the same passages once it is trained, for about as "
                    f"long as {retriever.name}"
                )

    def compare(self, deadline: float | None) -> None:
        """Evaluate block after block until one system is left, or queries or time are used up.

        Even without time, one block is evaluated, so that every call brings the comparison forward.
        Blocks that an earlier call has evaluated are read.
        """
        if len(self._blocks) == 1:
            logger.warning(
                f"{self._query_count:,} queries are one block: no system can be dropped before "
                "all are evaluated, and fitted hybrids have equal weights; --set block-size=N "
                "makes smaller blocks"
            )
        evaluated_blocks = 0
        with track("comparing", self._query_count, "queries") as progress:
            for number, block in enumerate(self._blocks, start=1):
                record = self._folder.read_block(number, block.qids)
                if record is not None:
                    self._recall(record)
                else:
                    if _is_over(deadline):
                        if evaluated_blocks > 0:
                            return
                        self._warn_of_used_budget()
                    record = self._evaluate(number, block)
                    self._costs.write()  # first: a block that is written is never searched again
                    self._folder.write_block(number, record)
                    evaluated_blocks += 1
                self._add(record)
                progress.advance(len(block.queries))
                progress.note(f"{len(self._comparison.remaining)} candidates")
                if len(self._comparison.remaining) == 1:
                    return

    def _warn_of_used_budget(self) -> None:
        """Warn that building has taken all the time of a budget."""
        logger.warning(
            f"--budget {self._settings.budget} was used up before this call evaluated a block of "
            "queries: one is evaluated all the same; --resume continues, with what is built"
        )

    def _evaluate(self, number: int, block: Block) -> BlockRecord:
        """Search and evaluate a block with the remaining systems.

        Fitted hybrids learn from it afterwards, so that it has no part in its own weights.
        """
        runs = RunsOfBlock(block, self._folder.block_folder(number), self._costs)
        judgments = {qid: self._judgments[qid] for qid in block.qids}
        values = {}
        weights = {}
        hybrids: dict[str, FittedHybrid] = {}
        for name in self._comparison.remaining:
            retriever = self._systems[name].retriever
            values[name] = values_of_run(runs.run_of(retriever), judgments, self._inputs.measure)
            if retriever.weights is not None:
                weights[name] = list(retriever.weights)
            for hybrid in fitted_hybrids(retriever):
                hybrids[hybrid.name] = hybrid
        if number == 1:
            self._warn_of_unjudged_hits(runs, judgments)
        learned = {}
        for name, hybrid in hybrids.items():
            learned[name] = hybrid.learn(runs.runs_of_parts(hybrid), judgments)
        return BlockRecord(block.qids, values, weights, learned)

    def _warn_of_unjudged_hits(self, runs: RunsOfBlock, judgments: Grades) -> None:
        """Warn of existing indexes that may be of another corpus than the judgments."""
        for retriever in _all_retrievers([*self._systems.values()]).values():
            if not isinstance(retriever, IndexFolder) or isinstance(retriever, BuiltIndex):
                continue
            example = unjudged_hit(runs.run_of(retriever), judgments)
            if example is not None:
                name = f"{retriever.index}, {len(judgments):,} queries"
                logger.warning(unjudged_hit_sentence(name, *example))

    def _recall(self, record: BlockRecord) -> None:
        """Let fitted hybrids learn what they learned before the interruption."""
        for name, learned in record.learned.items():
            self._fitted_hybrids[name].recall(learned)

    def _add(self, record: BlockRecord) -> None:
        """Compare the systems with one more block, and log which ones are dropped."""
        names = self._comparison.remaining
        self._records.append(record)
        self._comparison.add({name: np.array(values) for name, values in record.values.items()})
        for name in names:
            if name not in self._comparison.remaining:
                logger.info(f"{name} is dropped after {self._comparison.dropped[name]:,} queries")

    def choice(self) -> Choice:
        """Return the decision as it is now."""
        comparison = self._comparison
        outcome = Outcome.BUDGET
        if len(comparison.remaining) == 1:
            outcome = Outcome.DECIDED
        elif len(self._records) == len(self._blocks):
            outcome = Outcome.UNDECIDED
        leader = self._systems[comparison.leader]
        commands = RebuildCommands(self._inputs)
        leader.retriever.rebuild(commands)
        systems = [self._result_of(system) for system in self._systems.values()]
        systems.sort(key=self._order)
        undecided = [
            self._undecided_difference(name) for name in comparison.remaining if name != leader.name
        ]
        return Choice(
            measure=str(self._inputs.measure),
            alpha=self._settings.alpha,
            outcome=outcome,
            blocks=len(self._records),
            queries=comparison.query_count,
            available_queries=self._query_count,
            systems=tuple(systems),
            undecided=tuple(undecided),
            commands=tuple(commands.lines),
        )

    def _result_of(self, system: System) -> SystemResult:
        """Return the result of a system: a dropped one, on the queries before that."""
        comparison = self._comparison
        low, high = comparison.interval(system.name)
        values = self._values(system.name)
        leader_values = self._values(comparison.leader)[: len(values)]
        return SystemResult(
            name=system.name,
            retriever=system.expression,
            may_be_best=system.name in comparison.remaining,
            queries=len(values),
            mean=_mean(values),
            difference=_mean(values - leader_values),
            low=low,
            high=high,
            weights=system.retriever.weights,
            cost=self._costs.of_system(system.retriever),
        )

    def _order(self, system: SystemResult) -> tuple[bool, bool, int, float]:
        """Return a sort key: first the leader, then what may be the best, then what fell late."""
        is_leader = system.name == self._comparison.leader
        return not is_leader, not system.may_be_best, -system.queries, -system.mean

    def _values(self, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the values (N,) of a system, in the order of the queries."""
        values: list[float] = []
        for record in self._records:
            values += record.values.get(name, [])
        return np.array(values)

    def _undecided_difference(self, name: str) -> UndecidedDifference:
        """Return what would decide between the leader and another system that remains."""
        differences = self._values(self._comparison.leader) - self._values(name)
        difference = round(_mean(differences), DIGITS)
        deviation = math.nan
        if len(differences) > 1:
            deviation = float(np.std(differences, ddof=1))
        level = self._settings.alpha / (len(self._systems) - 1)
        try:
            needed = needed_queries(difference, deviation, level)
        except ValueError:
            return UndecidedDifference(name, difference, deviation, None)
        if needed <= len(differences):  # which did not suffice for the sequential comparison
            needed = self._queries_by_evidence(name)
        is_estimate_rough = is_rough(roughness(differences), len(differences), needed)
        return UndecidedDifference(name, difference, deviation, needed, is_estimate_rough)

    def _queries_by_evidence(self, name: str) -> int:
        """Return the number of queries at which the evidence against a system would drop it.

        It is a product over queries, so that its logarithm is taken to grow with their number.
        """
        queries = self._comparison.query_count
        evidence = self._comparison.evidence(name)
        if evidence <= 1:
            return 2 * queries
        log_threshold = math.log(2) - math.log(self._settings.alpha)  # 2 / alpha may be infinite
        return math.ceil(queries * log_threshold / math.log(evidence))

    def open_test(self, test_queries: JudgedQueries, choice: Choice) -> TestOpening | None:
        """Evaluate the systems that may be the best on the sealed test queries, once.

        None: nothing is decided, and they stay sealed. If an earlier opening is recorded, it is
        returned, and they are opened again only with --open-again.
        """
        sha256 = test_queries.sha256()
        if choice.outcome is Outcome.BUDGET:
            logger.warning(f"{test_queries.qrels} stays sealed: nothing is decided yet")
            return None
        openings = [opening for opening in self._folder.openings() if opening.sha256 == sha256]
        if openings and not self._settings.open_again:
            return self._recorded_opening(openings, choice)
        if openings:
            logger.warning(
                f"opening number {len(openings) + 1} of {test_queries.qrels}: a choice made after "
                "an earlier opening is no longer independent of these queries"
            )
        return self._evaluate_test(test_queries, choice, number=len(openings) + 1)

    def _evaluate_test(
        self, test_queries: JudgedQueries, choice: Choice, number: int
    ) -> TestOpening:
        """Evaluate systems on test queries; record that, and only then write their runs."""
        block = Block(test_queries.queries, test_queries.topics)
        means = {}
        with scratch_folder("sealed") as scratch:
            runs = RunsOfBlock(block, scratch, Costs(scratch / COSTS))
            for name in choice.best:
                run = runs.run_of(self._systems[name].retriever)
                values = values_of_run(run, test_queries.judgments, self._inputs.measure)
                means[name] = _mean(values)
            opening = TestOpening(
                opening=number,
                time=datetime.now(UTC).isoformat(timespec="seconds"),
                qrels=test_queries.qrels,
                sha256=test_queries.sha256(),
                comparison_sha256=self._folder.comparison_sha256(),
                measure=choice.measure,
                queries=len(test_queries.queries),
                means=means,
            )
            self._folder.add_opening(opening)
            for name in choice.best:
                self._copy_test_run(runs, self._systems[name].retriever)
        return opening

    def _copy_test_run(self, runs: RunsOfBlock, retriever: Retriever) -> None:
        """Write the run of a system on the test queries."""
        target = self._folder.path / "test" / f"{retriever.name}.trec"
        results = ((qid, list(hits.items())) for qid, hits in runs.run_of(retriever).items())
        write_hits(target, results, retriever.name, retriever.score_digits)

    def _recorded_opening(self, openings: Sequence[TestOpening], choice: Choice) -> TestOpening:
        """Return the last opening by this comparison; raise a UsageError if there is none.

        Another comparison may give the same names to other systems.
        """
        sha256 = self._folder.comparison_sha256()
        openings_here = [
            opening
            for opening in openings
            if opening.comparison_sha256 == sha256 and set(opening.means) == set(choice.best)
        ]
        if not openings_here:
            opening = openings[-1]
            raise UsageError(
                f"{opening.qrels} was opened at {opening.time} for {opening.measure} of "
                f"{', '.join(opening.means)}, in a comparison with other candidates, queries or "
                f"settings; {', '.join(choice.best)} may now be the best",
                "--open-again opens it once more, which is recorded",
            )
        opening = openings_here[-1]
        logger.warning(
            f"{opening.qrels} was opened at {opening.time}: its recorded values are shown"
        )
        return replace(opening, was_recorded=True)

    def write(self, choice: Choice) -> None:
        """Write the decision, the values of queries, the runs, the picture and the page."""
        from denserk.evaluation.choice_page import draw_choice
        from denserk.plots import save_if_installed

        path = self._folder.path
        for system in self._systems.values():
            self._write_run(system)
        self._write_values()
        write_json(path / "choice.json", choice.as_json())
        for suffix in ("svg", "png"):
            save_if_installed(
                lambda: draw_choice(choice), "quality and cost", path / f"choice.{suffix}"
            )
        self.write_report(choice)
        state = {
            "outcome": choice.outcome.value,
            "blocks": choice.blocks,
            "queries": choice.queries,
        }
        if choice.outcome is Outcome.BUDGET:
            self._folder.interrupt(**state)
        else:
            self._folder.complete(**state)

    def write_report(self, choice: Choice) -> None:
        """Write the page."""
        from denserk.evaluation.choice_page import write_page

        write_page(self._folder.path / "index.html", choice)

    def _write_run(self, system: System) -> None:
        """Write the hits of all blocks that a system was evaluated on as one run."""
        retriever = system.retriever
        paths = []
        queries: list[Query] = []
        blocks = zip(self._blocks, self._records, strict=False)
        for number, (block, record) in enumerate(blocks, start=1):
            if system.name in record.values:
                paths.append(self._folder.block_folder(number) / f"{retriever.name}.trec")
                queries += block.queries
        topics = {"name": self._settings.topics, "sha256": topics_sha256(queries)}
        made_from = {**retriever.description, "topics": topics}
        self._folder.write_joined_run(
            retriever.name, paths, self._settings.hits, made_from, len(queries)
        )

    def _write_values(self) -> None:
        """Write the value of each query and system; empty where a system was dropped."""
        rows = [["block", "query", *self._systems]]
        for number, record in enumerate(self._records, start=1):
            for row, qid in enumerate(record.queries):
                cells = []
                for name in self._systems:
                    values = record.values.get(name)
                    cells.append("" if values is None else repr(values[row]))
                rows.append([str(number), qid, *cells])
        write_rows(self._folder.path / "queries.tsv", rows, delimiter="\t")


def fitted_hybrids(retriever: Retriever) -> list[FittedHybrid]:
    """Return the hybrids with fitted weights that a retriever is made of, or is."""
    return [part for part in retriever.retrievers_to_search() if isinstance(part, FittedHybrid)]


def draw_blocks(queries: JudgedQueries, settings: ChooseSettings) -> list[Block]:
    """Return the queries in a random order that depends on the seed alone, in blocks.

    The last block may be smaller.
    """
    order = np.random.default_rng(settings.seed).permutation(len(queries.queries))
    shuffled = [queries.queries[row] for row in order]
    size = settings.block_size
    starts = range(0, len(shuffled), size)
    return [Block(shuffled[start : start + size], queries.topics) for start in starts]


def values_of_run(run: Run, judgments: Any, measure: Measure) -> list[float]:
    """Return the values of a measure, in the order of the judged queries; 0 without hits."""
    runs_with_hits = {qid: hits for qid, hits in run.items() if hits}
    if runs_with_hits.keys().isdisjoint(judgments):
        return [0.0] * len(judgments)
    result = Evaluator([measure], judgments).evaluate("run", runs_with_hits)
    value_by_qid = result.per_query[str(measure)]
    return [value_by_qid[qid] for qid in judgments]


def _names(retrievers: Sequence[Retriever]) -> str:
    """Return the names of retrievers in a sentence."""
    return ", ".join(retriever.name for retriever in retrievers)


def _is_over(deadline: float | None) -> bool:
    """Return whether a time of the monotonic clock is past; None is never."""
    return deadline is not None and time.monotonic() > deadline


def _mean(values: Any) -> float:
    """Return the mean of numbers, rounded once."""
    return math.fsum(values) / len(values)
