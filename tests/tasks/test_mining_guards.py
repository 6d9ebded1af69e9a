from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from denserk.config.mining import MiningSettings
from denserk.records import best_first
from denserk.tasks.mining_guards import Drops, guard_hits, text_guard

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


def reason_by_the_law(docid, rank, run, positives, settings):
    """Return why a hit is no negative by one run alone."""
    score = run[docid]
    if docid in positives:
        return "positives"
    if rank <= settings.range_min:
        return "range-min"
    if settings.max_score is not None and score > settings.max_score:
        return "max-score"
    scores_of_positives = [run[positive] for positive in positives if positive in run]
    if settings.has_margin and not scores_of_positives:
        return "no positive's score"
    if settings.absolute_margin is not None:
        best = max(scores_of_positives)
        if score > best - settings.absolute_margin:
            return "margin"
    if settings.relative_margin is not None:
        best = max(scores_of_positives)
        if score > best - abs(best) * settings.relative_margin:
            return "margin"
    if settings.min_score is not None and score < settings.min_score:
        return "min-score"
    return None


@given(st.lists(RUN, min_size=1, max_size=3), POSITIVES, SETTINGS)
def test_guards_hit_by_hit_and_each_passage_once_under_its_best_rank(runs, positives, settings):
    rankings = [best_first(run.items()) for run in runs]
    expected_drops: Drops = Counter()
    suspected = set()
    passed = []  # (rank, number of the run, id)
    for number, run in enumerate(runs):
        docids = sorted(run, key=lambda docid: (run[docid], docid), reverse=True)
        for rank, docid in enumerate(docids[: settings.depth], start=1):
            reason = reason_by_the_law(docid, rank, run, positives, settings)
            if reason is None:
                passed.append((rank, number, docid))
                continue
            expected_drops[reason] += 1
            if reason not in ("positives", "min-score"):
                suspected.add(docid)
    expected_hits: dict[str, tuple[int, int, str]] = {}
    for rank, number, docid in sorted(passed):
        if docid not in suspected:
            expected_hits.setdefault(docid, (rank, number, docid))

    drops: Drops = Counter()
    hits = guard_hits(rankings, positives, settings, drops)
    assert [(hit.rank, hit.run, hit.docid) for hit in hits] == list(expected_hits.values())
    for hit in hits:
        assert rankings[hit.run][hit.rank - 1] == (hit.docid, hit.score)
    merged = drops.pop("suspected in another run", 0) + drops.pop("in several runs", 0)
    assert len(hits) + merged == len(passed)
    assert drops == expected_drops


WORDS = st.lists(st.sampled_from(["the", "old", "river", "runs", "south"]), max_size=8).map(
    " ".join
)


@given(positive=WORDS, text=WORDS)
def test_a_literal_match_is_of_whole_neighbouring_words(positive, text):
    repeats = f" {positive} " in f" {text} " or f" {text} " in f" {positive} "
    expected = "literal" if positive and text and repeats else None
    guard = text_guard([positive], MiningSettings(drop_literal=True))
    assert guard(text) == expected
