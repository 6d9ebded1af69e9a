"""The decision of `denserk choose`: what the compared blocks say, and the files with the result."""

import math
from statistics import fmean

import numpy as np

from denserk.evaluation.choice import Choice, Outcome, SystemResult, UndecidedDifference
from denserk.evaluation.intervals import DIGITS
from denserk.evaluation.t_test_power import is_rough, needed_queries, roughness
from denserk.io.topics import topics_sha256
from denserk.io.written_files import write_rows
from denserk.records import Query
from denserk.tasks.choose_candidates import RebuildCommands
from denserk.tasks.choose_comparison import BlockwiseComparison
from denserk.tasks.choose_folder import ChoiceFolder
from denserk.tasks.choose_inputs import System
from denserk.tasks.choose_json import write_json
from denserk.tasks.choose_runs import Costs


def choice_of(comparison: BlockwiseComparison, costs: Costs) -> Choice:
    """Return the decision as it is now."""
    sequential = comparison.sequential
    leader = comparison.systems[sequential.leader]
    commands = RebuildCommands(comparison.inputs)
    leader.retriever.rebuild(commands)
    systems = [_result_of(system, comparison, costs) for system in comparison.systems.values()]
    systems.sort(key=lambda system: _order(system, leader.name))
    undecided = [
        _undecided_difference(name, comparison)
        for name in sequential.remaining
        if name != leader.name
    ]
    return Choice(
        measure=str(comparison.inputs.measure),
        alpha=comparison.inputs.settings.alpha,
        outcome=_outcome(comparison),
        blocks=len(comparison.records),
        queries=sequential.query_count,
        available_queries=comparison.available_queries,
        systems=tuple(systems),
        undecided=tuple(undecided),
        commands=tuple(commands.lines),
    )


def _outcome(comparison: BlockwiseComparison) -> Outcome:
    """Return whether one system is left, and if not, whether all queries were used."""
    if len(comparison.sequential.remaining) == 1:
        return Outcome.DECIDED
    if len(comparison.records) == len(comparison.blocks):
        return Outcome.UNDECIDED
    return Outcome.BUDGET


def _result_of(system: System, comparison: BlockwiseComparison, costs: Costs) -> SystemResult:
    """Return the result of a system: a dropped one, on the queries before that."""
    sequential = comparison.sequential
    low, high = sequential.interval(system.name)
    values = comparison.values_of(system.name)
    leader_values = comparison.values_of(sequential.leader)[: len(values)]
    return SystemResult(
        name=system.name,
        retriever=system.expression,
        may_be_best=system.name in sequential.remaining,
        queries=len(values),
        mean=fmean(values),
        difference=fmean(values - leader_values),
        low=low,
        high=high,
        weights=system.retriever.weights,
        cost=costs.of_system(system.retriever),
    )


def _order(system: SystemResult, leader: str) -> tuple[bool, bool, int, float]:
    """Return a sort key: first the leader, then what may be the best, then what fell late."""
    return system.name != leader, not system.may_be_best, -system.queries, -system.mean


def _undecided_difference(name: str, comparison: BlockwiseComparison) -> UndecidedDifference:
    """Return what would decide between the leader and another system that remains."""
    differences = comparison.values_of(comparison.sequential.leader) - comparison.values_of(name)
    difference = round(fmean(differences), DIGITS)
    deviation = math.nan
    if len(differences) > 1:
        deviation = float(np.std(differences, ddof=1))
    level = comparison.inputs.settings.alpha / (len(comparison.systems) - 1)
    try:
        needed = needed_queries(difference, deviation, level)
    except ValueError:
        return UndecidedDifference(name, difference, deviation, None)
    if needed <= len(differences):  # which did not suffice for the sequential comparison
        needed = _queries_by_evidence(name, comparison)
    is_estimate_rough = is_rough(roughness(differences), len(differences), needed)
    return UndecidedDifference(name, difference, deviation, needed, is_estimate_rough)


def _queries_by_evidence(name: str, comparison: BlockwiseComparison) -> int:
    """Return the number of queries at which the evidence against a system would drop it.

    It is a product over queries, so that its logarithm is taken to grow with their number.
    """
    queries = comparison.sequential.query_count
    evidence = comparison.sequential.evidence(name)
    if evidence <= 1:
        return 2 * queries
    alpha = comparison.inputs.settings.alpha
    log_threshold = math.log(2) - math.log(alpha)  # 2 / alpha may be infinite
    return math.ceil(queries * log_threshold / math.log(evidence))


def write_choice(choice: Choice, comparison: BlockwiseComparison, folder: ChoiceFolder) -> None:
    """Write the decision, the values of queries, the runs, the picture and the page."""
    from denserk.evaluation.choice_page import draw_choice
    from denserk.plots import save_if_installed

    for system in comparison.systems.values():
        _write_run(system, comparison, folder)
    _write_values(comparison, folder)
    write_json(folder.path / "choice.json", choice.as_json())
    for suffix in ("svg", "png"):
        save_if_installed(
            lambda: draw_choice(choice), "quality and cost", folder.path / f"choice.{suffix}"
        )
    write_choice_page(choice, folder)
    state = {
        "outcome": choice.outcome.value,
        "blocks": choice.blocks,
        "queries": choice.queries,
    }
    if choice.outcome is Outcome.BUDGET:
        folder.interrupt(**state)
    else:
        folder.complete(**state)


def write_choice_page(choice: Choice, folder: ChoiceFolder) -> None:
    """Write the page."""
    from denserk.evaluation.choice_page import write_page

    write_page(folder.path / "index.html", choice)


def _write_run(system: System, comparison: BlockwiseComparison, folder: ChoiceFolder) -> None:
    """Write the hits of all blocks that a system was evaluated on as one run."""
    retriever = system.retriever
    paths = []
    queries: list[Query] = []
    blocks = zip(comparison.blocks, comparison.records, strict=False)
    for number, (block, record) in enumerate(blocks, start=1):
        if system.name in record.values:
            paths.append(folder.block_folder(number) / f"{retriever.name}.trec")
            queries += block.queries
    topics = {"name": comparison.topics, "sha256": topics_sha256(queries)}
    made_from = {**retriever.description, "topics": topics}
    folder.write_joined_run(
        retriever.name, paths, comparison.inputs.settings.hits, made_from, len(queries)
    )


def _write_values(comparison: BlockwiseComparison, folder: ChoiceFolder) -> None:
    """Write the value of each query and system; empty where a system was dropped."""
    rows = [["block", "query", *comparison.systems]]
    for number, record in enumerate(comparison.records, start=1):
        for row, qid in enumerate(record.queries):
            cells = []
            for name in comparison.systems:
                values = record.values.get(name)
                cells.append("" if values is None else repr(values[row]))
            rows.append([str(number), qid, *cells])
    write_rows(folder.path / "queries.tsv", rows, delimiter="\t")
