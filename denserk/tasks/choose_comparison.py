"""How `denserk choose` compares: what systems lack is built, and queries come in blocks.

After each block, the systems that are not the best are dropped (`SequentialComparison`).
"""

import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from denserk.config.choosing import ChooseSettings
from denserk.evaluation.evaluator import unjudged_hit, unjudged_hit_sentence
from denserk.evaluation.results import Grades
from denserk.evaluation.sequential import SequentialComparison
from denserk.reporting import track
from denserk.tasks.choose_candidates import (
    Block,
    BuiltIndex,
    FinetunedEncoder,
    FittedHybrid,
    IndexFolder,
    Retriever,
    SharedInputs,
)
from denserk.tasks.choose_folder import BlockRecord, ChoiceFolder
from denserk.tasks.choose_inputs import JudgedQueries, System
from denserk.tasks.choose_runs import Costs, RunsOfBlock, values_of_run

logger = logging.getLogger(__name__)


def all_retrievers(systems: Iterable[System]) -> dict[str, Retriever]:
    """Return all that systems are made of, by name; parts come before what needs them."""
    retrievers: dict[str, Retriever] = {}
    for system in systems:
        for retriever in system.retriever.retrievers_to_prepare():
            retrievers[retriever.name] = retriever
    return retrievers


def prepare_retrievers(systems: Sequence[System], costs: Costs) -> None:
    """Build what systems lack, add to `costs` how long that takes, and log how far it is."""
    retrievers = all_retrievers(systems)
    to_build = [
        retriever
        for name, retriever in retrievers.items()
        if isinstance(retriever, BuiltIndex) and not costs.is_built.get(name)
    ]
    if to_build:
        logger.info(f"to build before the first block of queries: {_names(to_build)}")
    for name, retriever in retrievers.items():
        if costs.is_built.get(name):
            retriever.prepare()
            continue
        seconds = _prepare_timed(retriever, costs)
        if retriever in to_build:
            to_build.remove(retriever)
            _log_built(retriever, seconds, to_build)


def _prepare_timed(retriever: Retriever, costs: Costs) -> float:
    """Prepare a retriever and return the seconds; they count also where it is interrupted."""
    started = time.perf_counter()
    try:
        retriever.prepare()
        costs.is_built[retriever.name] = True
    finally:
        seconds = time.perf_counter() - started
        costs.add_build(retriever.name, seconds)
        costs.write()
    return seconds


def _log_built(retriever: Retriever, seconds: float, to_build: Sequence[Retriever]) -> None:
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


def _names(retrievers: Sequence[Retriever]) -> str:
    """Return the names of retrievers in a sentence."""
    return ", ".join(retriever.name for retriever in retrievers)


class BlockwiseComparison:
    """Compares systems block by block, from where an earlier call has stopped.

    Attributes:
        inputs: what all retrievers read.
        systems: the candidates by name.
        topics: where the queries are from.
        available_queries: number of queries, whether they are evaluated or not.
        blocks: the queries in their random order.
        records: the blocks that are evaluated, now or in earlier calls.
        sequential: the statistics of these blocks.
    """

    def __init__(
        self,
        inputs: SharedInputs,
        systems: Sequence[System],
        queries: JudgedQueries,
        folder: ChoiceFolder,
        costs: Costs,
    ) -> None:
        self.inputs = inputs
        self.systems = {system.name: system for system in systems}
        self.topics = queries.topics
        self.available_queries = len(queries.queries)
        self.blocks = draw_blocks(queries, inputs.settings)
        self.records: list[BlockRecord] = []
        self.sequential = SequentialComparison(list(self.systems), inputs.settings.alpha)
        self._judgments = queries.judgments
        self._folder = folder
        self._costs = costs
        self._fitted_hybrids: dict[str, FittedHybrid] = {}
        for system in systems:
            for hybrid in fitted_hybrids(system.retriever):
                self._fitted_hybrids[hybrid.name] = hybrid

    def compare(self, deadline: float | None) -> None:
        """Evaluate block after block until one system is left, or queries or time are used up.

        Even without time, one block is evaluated, so that every call brings the comparison forward.
        Blocks that an earlier call has evaluated are read.
        """
        if len(self.blocks) == 1:
            logger.warning(
                f"{self.available_queries:,} queries are one block: no system can be dropped "
                "before all are evaluated, and fitted hybrids have equal weights; "
                "--set block-size=N makes smaller blocks"
            )
        evaluated_blocks = 0
        with track("comparing", self.available_queries, "queries") as progress:
            for number, block in enumerate(self.blocks, start=1):
                record = self._folder.read_block(number, block.qids)
                if record is None and _is_over(deadline):
                    if evaluated_blocks > 0:
                        return
                    self._warn_of_used_budget()
                if record is None:
                    record = self._evaluate(number, block)
                    self._costs.write()  # first: a block that is written is never searched again
                    self._folder.write_block(number, record)
                    evaluated_blocks += 1
                else:
                    self._recall(record)
                self._add(record)
                progress.advance(len(block.queries))
                progress.note(f"{len(self.sequential.remaining)} candidates")
                if len(self.sequential.remaining) == 1:
                    return

    def _warn_of_used_budget(self) -> None:
        """Warn that building has taken all the time of a budget."""
        logger.warning(
            f"--budget {self.inputs.settings.budget} was used up before this call evaluated a "
            "block of queries: one is evaluated all the same; --resume continues, with what is "
            "built"
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
        for name in self.sequential.remaining:
            retriever = self.systems[name].retriever
            values[name] = values_of_run(runs.run_of(retriever), judgments, self.inputs.measure)
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
        for retriever in all_retrievers(self.systems.values()).values():
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
        names = self.sequential.remaining
        self.records.append(record)
        self.sequential.add({name: np.array(values) for name, values in record.values.items()})
        for name in names:
            if name not in self.sequential.remaining:
                logger.info(f"{name} is dropped after {self.sequential.dropped[name]:,} queries")

    def values_of(self, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the values (N,) of a system, in the order of the queries."""
        values: list[float] = []
        for record in self.records:
            values += record.values.get(name, [])
        return np.array(values)


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


def _is_over(deadline: float | None) -> bool:
    """Return whether a time of the monotonic clock is past; None is never."""
    return deadline is not None and time.monotonic() > deadline
