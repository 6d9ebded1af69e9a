from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from denserk.config.mining import MiningSettings
from denserk.mining.mining import Drops, Hit, guard_hits, merge_hits, text_guard
from denserk.records import best_first

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


@given(RUN, POSITIVES, SETTINGS)
def test_guards_hit_by_hit(run, positives, settings):
    drops: Drops = Counter()
    ranked = best_first(run.items())
    hits, suspected = guard_hits(ranked, positives, settings, drops)
    expected = slow_guard(run, positives, settings)
    assert ([hit.docid for hit in hits], suspected, +drops) == expected
    assert all(ranked[hit.rank - 1] == (hit.docid, hit.score) for hit in hits)


DOCIDS = st.lists(st.sampled_from("abcdef"), unique=True)


@given(st.lists(DOCIDS, min_size=1, max_size=3), st.sets(st.sampled_from("abcdef"), max_size=2))
def test_merged_hits_hold_each_passage_once_under_its_best_rank(runs, suspected):
    hits = [
        [Hit(docid, rank, -rank, run) for rank, docid in enumerate(docids, start=1)]
        for run, docids in enumerate(runs)
    ]
    drops: Drops = Counter()
    merged = merge_hits(hits, suspected, drops)
    best: dict[str, tuple[int, int]] = {}
    for hit in (hit for of in hits for hit in of if hit.docid not in suspected):
        best[hit.docid] = min(best.get(hit.docid, (99, 99)), (hit.rank, hit.run))
    order = sorted((rank, run, docid) for docid, (rank, run) in best.items())
    assert [(hit.rank, hit.run, hit.docid) for hit in merged] == order
    assert len(merged) + drops.total() == sum(map(len, runs))


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
