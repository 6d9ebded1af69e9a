import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from denserk.config.retrieval import FusionMethod, FusionSettings, Missing, Normalization
from denserk.index.fused_columns import exact_sums, fuse_columns
from denserk.index.fusion import score_contributions, weighted_scores
from denserk.io.run_columns import NO_HITS, RankedWords
from denserk.io.run_text import id_words
from denserk.records import best_first

IDS = st.one_of(st.integers(0, 20).map(str), st.sampled_from(["passage-1", "passage-10", "b" * 30]))
SCORES = st.one_of(st.integers(0, 4).map(float), st.floats(-90, 90), st.sampled_from([-0.0, 1e308]))
DEPTHS = st.sampled_from([None, 1, 5])
RUNS = st.lists(st.dictionaries(IDS, SCORES, max_size=12), min_size=2, max_size=4)


def columns_of(hits):
    """Return the hits of a query (id -> score) as columns."""
    words = id_words(list(hits))
    if words is None:
        return NO_HITS
    return RankedWords(words, np.array(list(hits.values())))


@given(
    runs=RUNS.filter(any),
    fusion=st.one_of(
        st.builds(FusionSettings, rrf_k=st.sampled_from([0, 60]), depth=DEPTHS),
        st.builds(
            FusionSettings,
            method=st.just(FusionMethod.LINEAR),
            normalization=st.sampled_from([*Normalization]),
            missing=st.sampled_from([None, Missing.ZERO]),
            depth=DEPTHS,
        ),
        st.builds(
            FusionSettings,
            method=st.just(FusionMethod.LINEAR),
            normalization=st.sampled_from([Normalization.NONE, Normalization.ZMUV]),
            missing=st.just(Missing.LOWEST),
            depth=DEPTHS,
        ),
    ),
    weights=st.lists(st.sampled_from([1.0, 0.3, 0.0, 1e300]), min_size=4, max_size=4),
)
def test_columns_are_fused_as_hits_are(runs, fusion, weights):
    weights = weights[: len(runs)]
    rankings = [best_first(hits.items())[: fusion.depth] for hits in runs]
    with np.errstate(over="ignore", invalid="ignore"):
        scores = weighted_scores(score_contributions(rankings, fusion), weights)
        expected = best_first(scores.items())
        fused = fuse_columns([columns_of(hits) for hits in runs], fusion, weights)
    if fused is None:
        assert not all(math.isfinite(score) for _, score in expected)
    else:
        assert fused.as_list() == expected


TERMS = st.one_of(
    st.floats(-1, 1),
    st.floats(),
    st.integers(1, 99).map(lambda rank: 1 / (60 + rank)),
    st.just(0.0),
)


@given(hnp.arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(1, 8)), elements=TERMS))
def test_sums_are_rounded_once(terms):
    for total, column in zip(exact_sums(terms).tolist(), terms.T.tolist(), strict=True):
        try:
            expected = math.fsum(column)
        except (OverflowError, ValueError):
            assert not math.isfinite(total)
            continue
        assert total == expected or (math.isnan(total) and math.isnan(expected))
