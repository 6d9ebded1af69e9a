from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from denserk.config.mining import MiningSettings
from denserk.records import best_first
from denserk.tasks.mine_negatives import Drops, guard_hits, text_guard

RUN = st.dictionaries(
    st.sampled_from([f"d{number}" for number in range(12)]), st.integers(-3, 6).map(float)
)
OPTIONAL = st.none() | st.integers(-2, 6).map(float)
SETTINGS = st.builds(
    MiningSettings,
    depth=st.integers(3, 15),
    range_min=st.integers(0, 2),
    max_score=OPTIONAL,
    min_score=OPTIONAL,
    absolute_margin=OPTIONAL,
    relative_margin=st.none() | st.sampled_from([0.0, 0.5]),
)
POSITIVES = st.sets(st.sampled_from(["d1", "d2", "d3"]))


def slow_guard(run, positives, settings):
    """The law, hit by hit: -> (ids that pass, ids that are suspected, why the others fell)."""
    ranked = sorted(run, key=lambda docid: (run[docid], docid), reverse=True)
    best = max((run[docid] for docid in positives if docid in run), default=None)
    passed: list[str] = []
    suspected: list[str] = []
    drops: Drops = Counter()
    absolute, relative = settings.absolute_margin, settings.relative_margin
    for rank, docid in enumerate(ranked, start=1):
        score = run[docid]
        too_close = best is None and settings.has_margin
        if best is not None and absolute is not None:
            too_close |= score > best - absolute
        if best is not None and relative is not None:
            too_close |= score > best - abs(best) * relative
        if rank > settings.depth:
            break
        if docid in positives:
            drops["positives"] += 1
        elif rank <= settings.range_min:
            drops["range-min"] += 1
            suspected.append(docid)
        elif settings.max_score is not None and score > settings.max_score:
            drops["max-score"] += 1
            suspected.append(docid)
        elif too_close:
            drops["margin" if best is not None else "no positive's score"] += 1
            suspected.append(docid)
        elif settings.min_score is not None and score < settings.min_score:
            drops["min-score"] += 1
        else:
            passed.append(docid)
    return passed, suspected, drops


@given(st.lists(RUN, min_size=1, max_size=3), POSITIVES, SETTINGS)
def test_guards_hit_by_hit_and_each_passage_once_under_its_best_rank(runs, positives, settings):
    drops: Drops = Counter()
    rankings = [best_first(run.items()) for run in runs]
    hits = guard_hits(rankings, positives, settings, drops)
    guarded = [slow_guard(run, positives, settings) for run in runs]
    suspected = {docid for _, docids, _ in guarded for docid in docids}
    best: dict[str, tuple[int, int]] = {}
    for number, (passed, _, _) in enumerate(guarded):
        ranks = {docid: rank for rank, (docid, _) in enumerate(rankings[number], start=1)}
        for docid in set(passed) - suspected:
            best[docid] = min(best.get(docid, (99, 99)), (ranks[docid], number))
    order = sorted((rank, run, docid) for docid, (rank, run) in best.items())
    assert [(hit.rank, hit.run, hit.docid) for hit in hits] == order
    assert all(rankings[hit.run][hit.rank - 1] == (hit.docid, hit.score) for hit in hits)
    passed = sum(len(passed) for passed, _, _ in guarded)
    merged = drops.pop("suspected in another run", 0) + drops.pop("in several runs", 0)
    assert len(hits) + merged == passed
    assert drops == sum((dropped for _, _, dropped in guarded), Counter())


WORDS = st.lists(st.sampled_from(["the", "old", "river", "runs", "south"]), max_size=8).map(
    " ".join
)


@given(WORDS, WORDS)
def test_guards_of_texts(one, other):
    """A literal match is a contiguous part."""
    padded = f" {one} ", f" {other} "
    literal = bool(one and other) and (padded[0] in padded[1] or padded[1] in padded[0])
    guard = text_guard([one], MiningSettings(drop_literal=True))
    assert guard(other) == ("literal" if literal else None)
