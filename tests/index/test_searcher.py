import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from denserk.config.retrieval import Metric, SearchSettings, Ties
from denserk.index.exact import ExactIndex
from denserk.index.mapped_files import Part, PassageIds
from denserk.index.ranking import strictly_decreasing
from denserk.index.searcher import Searcher
from denserk.io.vector_formats import map_flat
from tests.support.index_folders import flat_folder, found, names_of, whole_numbers


def by_hand(ids, vectors, query, settings, metric, qid, excluded=()):
    """Everything scored, renamed, deduplicated, sorted and cut."""
    best: dict[str, float] = {}
    for docid, vector in zip(ids, vectors, strict=True):
        name = docid.split("#")[0] if settings.max_passage else docid
        if docid in excluded or name in excluded:
            continue
        score = query @ vector if metric is Metric.INNER else -np.square(query - vector).sum()
        best[name] = max(best.get(name, -np.inf), float(score))
    if settings.remove_query:
        best.pop(qid, None)
    by_score_and_id = sorted(best.items(), key=lambda hit: hit[::-1], reverse=True)
    return by_score_and_id[: settings.kept]


@pytest.mark.parametrize("excludes", [False, True])
@pytest.mark.parametrize("metric", Metric)
@pytest.mark.parametrize(
    "options",
    [
        {"hits": 200},
        {"hits": 7, "query_batch": 3, "remove_query": True},
        {"hits": 9, "max_passage": True},
        {"hits": 2, "max_passage": True, "max_passage_hits": 20},
    ],
)
def test_every_option_ranks_as_by_hand(tmp_path, options, metric, excludes):
    vectors = whole_numbers(1, 120, 3)
    queries = whole_numbers(2, 10, 3)
    ids = [f"d{n % 40}#{n // 40}" for n in range(120)]
    qids = [f"d{n}#0" for n in range(10)]
    settings = SearchSettings(ties=Ties.KEEP, **options)
    flat_folder(tmp_path / "i", ids, vectors, metric=metric)
    stored_ids = PassageIds([Part("i", tmp_path / "i" / "docid", len(ids))])
    index = ExactIndex(*map_flat(tmp_path / "i" / "index"))
    searcher = Searcher(index, stored_ids, settings)
    excluded = {}
    if excludes:  # of every other query, its best passages and a document
        for qid, query in zip(qids[::2], queries[::2], strict=True):
            best = by_hand(ids, vectors, query, SearchSettings(hits=10), metric, qid)
            excluded[qid] = {*dict(best), "d3", "unknown"}
        searcher.exclude(excluded)
    hits = found(searcher, qids, queries)
    assert list(hits) == qids
    for qid, query in zip(qids, queries, strict=True):
        expected = by_hand(ids, vectors, query, settings, metric, qid, excluded.get(qid, ()))
        assert hits[qid] == expected


class ListedIndex:
    """An index that answers every query with its first rows, as Lucene does, in its own order."""

    is_exhaustive = False
    dimension = 0
    breadth = ()

    def __init__(self, size):
        self.scores = np.arange(size, 0, -1, dtype=np.float32)

    def __len__(self):
        return len(self.scores)

    def search(self, queries, depth):
        rows = np.tile(np.arange(depth), (len(queries), 1))
        return self.scores[rows], rows


@pytest.mark.parametrize(
    ("engine_order", "hits_without_query"),
    [
        (False, ["d1", "d3", "d4", "d5", "d6"]),
        # as in Pyserini's runs, the query itself is removed from the hits that Lucene returns
        (True, ["d1", "d3", "d4", "d5"]),
    ],
)
def test_excluded_passages_do_not_shorten_the_list(engine_order, hits_without_query):
    ids = [f"d{row}" for row in range(50)]
    settings = SearchSettings(hits=5, remove_query=True)
    searcher = Searcher(ListedIndex(50), names_of(ids), settings, engine_order=engine_order)
    searcher.exclude({"a": set(ids[:30]), "d2": {"d0"}})
    texts = np.array(["a", "b", "c"], object)
    hits = found(searcher, ["a", "b", "d2"], texts)
    assert [docid for docid, _ in hits["a"]] == ["d30", "d31", "d32", "d33", "d34"]
    assert [docid for docid, _ in hits["b"]] == ["d0", "d1", "d2", "d3", "d4"]
    assert [docid for docid, _ in hits["d2"]] == hits_without_query


def test_scores_of_ties():
    vectors = np.ones((3, 1), np.float32)
    searcher = Searcher(ExactIndex(vectors), names_of(["b", "a", "c"]), SearchSettings(hits=3))
    hits = found(searcher, ["q"], np.array([[2]], np.float32))["q"]
    next_lower = np.nextafter(np.float32(2), np.float32(0))
    assert hits == [("c", 2.0), ("b", next_lower), ("a", np.nextafter(next_lower, np.float32(0)))]
    assert searcher.ranking.tied_hits == 2
    assert searcher.ranking.tied_queries == 1


@given(hnp.arrays(np.float32, st.integers(1, 30), elements=st.sampled_from([-1, 0, 0.5, 90, 1e30])))
def test_lowered_scores_keep_their_order_in_float32(scores):
    scores = -np.sort(-scores)
    lowered = strictly_decreasing(scores)
    printed = np.array([np.float32(f"{score:.9g}") for score in lowered.tolist()])
    assert (printed == lowered).all()
    assert (lowered[1:] < lowered[:-1]).all()
    assert (lowered <= scores).all()
    assert lowered[0] == scores[0]
