import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from denserk.errors import UsageError
from denserk.evaluation.intervals import ConfidenceInterval
from denserk.evaluation.sequential import BETS, STAKES, SequentialComparison
from tests.benchmarks import choose_replays

# Sequential comparison

SYSTEMS = ("a", "b", "c")
GRADES = [0.0, 0.25, 0.5, 0.63, 1.0]
QUERY = st.tuples(*[st.sampled_from(GRADES) for _ in SYSTEMS])  # a value of each system
BLOCKS = st.lists(st.lists(QUERY, max_size=20), min_size=1, max_size=5)

Query = tuple[float, ...]


def values_of(block: Sequence[Query]) -> dict[str, NDArray[np.float64]]:
    """The values of each system on the queries of a block."""
    return {
        system: np.array([query[position] for query in block])
        for position, system in enumerate(SYSTEMS)
    }


def compared(blocks: Sequence[Sequence[Query]], alpha: float) -> SequentialComparison:
    """The systems, compared on blocks of queries."""
    comparison = SequentialComparison(SYSTEMS, alpha)
    for block in blocks:
        comparison.add(values_of(block))
    return comparison


def literal_capital(better: Sequence[float], worse: Sequence[float], mean: float = 0.0) -> float:
    """What bets on "better - worse has a mean above this" turn a capital of 1 into."""
    total = 0.0
    for bet, stake in zip(BETS, STAKES, strict=True):
        capital = stake
        for better_value, worse_value in zip(better, worse, strict=True):
            capital *= 1 + bet * (better_value - worse_value - mean) / (1 + mean)
        total += capital
    return total


def literal_comparison(
    blocks: Sequence[Sequence[Query]], alpha: float
) -> tuple[dict[str, float], dict[str, int]]:
    """The evidence against each system, and after how many queries each was dropped."""
    shown: dict[str, list[float]] = {system: [] for system in SYSTEMS}
    query_count = 0
    dropped: dict[str, int] = {}
    evidence = dict.fromkeys(SYSTEMS, 1.0)
    for block in blocks:
        query_count += len(block)
        remaining = [system for system in SYSTEMS if system not in dropped]
        for query in block:
            for position, system in enumerate(SYSTEMS):
                if system in remaining:
                    shown[system].append(query[position])
        for system in SYSTEMS:
            capitals = []
            for other in SYSTEMS:
                if other != system:
                    common = min(len(shown[system]), len(shown[other]))
                    capitals.append(literal_capital(shown[other][:common], shown[system][:common]))
            evidence[system] = sum(capitals) / len(capitals)
        leader = max(remaining, key=lambda system: round(math.fsum(shown[system]), 9))
        for system in remaining:
            if system != leader and evidence[system] >= 2 / alpha:
                dropped[system] = query_count
    return evidence, dropped


@given(BLOCKS, st.sampled_from([0.05, 0.5, 0.9]))
def test_evidence_is_capital_won_by_bets(blocks: list[list[Query]], alpha: float) -> None:
    evidence, dropped = literal_comparison(blocks, alpha)
    assume(all(abs(value * alpha / 2 - 1) > 1e-6 for value in evidence.values()))
    comparison = compared(blocks, alpha)
    assert comparison.dropped == dropped
    for system in SYSTEMS:
        assert comparison.evidence(system) == pytest.approx(evidence[system])
    assert set(comparison.remaining) | set(dropped) == set(SYSTEMS)
    assert comparison.leader in comparison.remaining


@given(BLOCKS, st.randoms(use_true_random=False))
def test_order_within_a_block_has_no_effect(blocks: list[list[Query]], random) -> None:
    shuffled = [random.sample(block, len(block)) for block in blocks]
    comparison = compared(blocks, 0.5)
    other_comparison = compared(shuffled, 0.5)
    assert comparison.dropped == other_comparison.dropped
    for system in SYSTEMS:
        evidence = other_comparison.evidence(system)
        assert comparison.evidence(system) == pytest.approx(evidence)


@given(BLOCKS)
def test_blocks_of_any_size_give_the_same_evidence(blocks: list[list[Query]]) -> None:
    alpha = 1e-300  # so that no system is dropped
    queries = [query for block in blocks for query in block]
    comparison = compared(blocks, alpha)
    whole = compared([queries], alpha)
    single = compared([[query] for query in queries], alpha)
    for system in SYSTEMS:
        assert comparison.evidence(system) == pytest.approx(whole.evidence(system))
        assert comparison.evidence(system) == pytest.approx(single.evidence(system))


def test_copies_are_never_dropped() -> None:
    values = np.random.default_rng(0).random(5000)
    comparison = SequentialComparison(["copy", "other copy"], alpha=0.5)
    for block in np.split(values, 50):
        comparison.add({"copy": block, "other copy": block})
    assert comparison.remaining == ("copy", "other copy")
    assert comparison.leader == "copy"
    assert comparison.evidence("copy") == pytest.approx(1)
    low, high = comparison.interval("other copy")
    assert -0.02 < low < 0 < high < 0.02


def test_bets_on_a_dropped_system_stay_as_they_were() -> None:
    comparison = SequentialComparison(SYSTEMS)
    comparison.add({"a": np.full(20, 0.9), "b": np.full(20, 0.9), "c": np.zeros(20)})
    assert comparison.dropped == {"c": 20}
    capital_of_c = literal_capital([0.0] * 20, [0.9] * 20)
    # values of c are ignored
    comparison.add({"a": np.zeros(5), "b": np.full(5, 0.5), "c": np.ones(3)})
    capital_of_b = literal_capital([0.9] * 20 + [0.5] * 5, [0.9] * 20 + [0.0] * 5)
    assert comparison.evidence("a") == pytest.approx((capital_of_b + capital_of_c) / 2)
    assert comparison.means == pytest.approx({"a": 18 / 25, "b": 20.5 / 25, "c": 0.0})
    assert comparison.leader == "b"
    assert comparison.query_count == 25


@given(BLOCKS)
def test_intervals_hold_what_bets_do_not_disprove(blocks: list[list[Query]]) -> None:
    comparison = compared(blocks, 0.05)
    leader_values = comparison._values[comparison.leader]
    for system in SYSTEMS:
        values = comparison._values[system]
        common = leader_values[: len(values)]
        interval = comparison.interval(system)
        if system == comparison.leader:
            assert interval == ConfidenceInterval(0, 0)
            continue
        if len(values) > 0:
            assert interval.low <= (values - common).mean() <= interval.high
        for mean in np.linspace(-0.99, 0.99, 23):
            below = literal_capital(values.tolist(), common.tolist(), mean)
            above = literal_capital(common.tolist(), values.tolist(), -mean)
            is_disproved = max(below, above) >= 3 * 2 / 0.05
            assert is_disproved == (not interval.low < mean < interval.high)


@given(st.lists(st.sampled_from(GRADES), max_size=60))
def test_of_two_systems_the_interval_excludes_0_if_one_is_dropped(values: list[float]) -> None:
    comparison = SequentialComparison(["system", "half"])
    comparison.add({"system": np.array(values), "half": np.full(len(values), 0.5)})
    other = "half" if comparison.leader == "system" else "system"
    assert (comparison.interval(other).high < 0) == (other in comparison.dropped)


def test_without_queries_nothing_is_known() -> None:
    comparison = SequentialComparison(SYSTEMS)
    comparison.add({system: np.empty(0) for system in SYSTEMS})
    assert comparison.remaining == SYSTEMS
    assert comparison.leader == "a"
    assert comparison.evidence("a") == pytest.approx(1)
    assert comparison.interval("b") == (-1, 1)
    assert all(math.isnan(mean) for mean in comparison.means.values())


def test_evidence_beyond_floating_point_is_the_largest_number() -> None:
    comparison = SequentialComparison(["good", "bad"])
    comparison.add({"good": np.ones(5000), "bad": np.zeros(5000)})
    assert comparison.evidence("bad") == pytest.approx(sys.float_info.max)
    assert comparison.evidence("good") < 1e-200
    low, high = comparison.interval("bad")
    assert low == -1
    assert high == pytest.approx(-1, abs=0.01)


def test_a_value_above_1_by_rounding_is_1() -> None:
    comparison = SequentialComparison(["good", "bad"])
    comparison.add({"good": np.array([1 + 1e-15]), "bad": np.array([0.0])})
    assert comparison.means["good"] == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"a": [0.5, 3.0], "b": [0.5, 0.5]}, "a has the value 3.0"),
        ({"a": [0.5, 0.5], "b": [0.5, math.nan]}, "b has the value nan"),
        ({"a": [-0.1, 0.5], "b": [0.5, 0.5]}, "a has the value -0.1"),
        ({"a": [0.5, 0.5]}, "no values of b"),
        ({"a": [0.5, 0.5], "b": [0.5]}, "different numbers of queries"),
    ],
)
def test_wrong_blocks_are_rejected(values: Mapping[str, list[float]], message: str) -> None:
    comparison = SequentialComparison(["a", "b"])
    block = {system: np.array(system_values) for system, system_values in values.items()}
    with pytest.raises(UsageError, match=message):
        comparison.add(block)
    assert comparison.query_count == 0


@pytest.mark.parametrize("systems", [[], ["a"], ["a", "b", "a"]])
def test_two_different_systems_are_needed(systems: list[str]) -> None:
    with pytest.raises(UsageError, match="two or more different systems"):
        SequentialComparison(systems)


@pytest.mark.parametrize("alpha", [0.0, 1.0, math.nan])
def test_alpha_is_a_probability(alpha: float) -> None:
    with pytest.raises(UsageError, match="alpha is between 0 and 1"):
        SequentialComparison(["a", "b"], alpha)


def test_equally_good_systems_rarely_end_with_a_winner() -> None:
    winners = 0
    for seed in range(200):
        random = np.random.default_rng(seed)
        comparison = SequentialComparison(["a", "b"])
        for _ in range(20):
            answered = random.random((2, 20)) < 0.5
            comparison.add(dict(zip("ab", answered.astype(float), strict=True)))
            if len(comparison.remaining) == 1:
                winners += 1
                break
    assert winners <= 200 * 0.05


def test_replays_read_runs_and_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "toy"
    folder.mkdir()
    qids = [f"q{number}" for number in range(40)]
    folder.joinpath("qrels.txt").write_text("".join(f"{qid} 0 d1 1\n" for qid in qids))
    folder.joinpath("good.trec").write_text("".join(f"{qid} Q0 d1 1 1 good\n" for qid in qids))
    folder.joinpath("bad.trec").write_text("".join(f"{qid} Q0 d2 1 1 bad\n" for qid in qids))
    options = argparse.Namespace(replays=3, block=10)
    totals = choose_replays.Totals()
    for name, values in choose_replays.read_collections(tmp_path):
        choose_replays.replay_collection(name, values, options, totals)
    choose_replays.replay_population(choose_replays.POPULATIONS[0], 30, options, totals)
    assert totals.used_by_clear_pairs == [0.25]
    assert max(totals.drop_rates) == 0
    assert min(totals.coverages) == 1
    assert "toy: 2 systems, 40 queries, best: good" in capsys.readouterr().out
