from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.data.passage_texts import PassageTexts
from denserk.errors import InputError, MismatchError
from denserk.records import Passage
from denserk.reporting import Progress
from denserk.tasks.answer_hits import AnswerHits, best_hits, refuse_lacking

RUN = "q1 Q0 a 1 3 t\nq1 Q0 b 2 2 t\nq1 Q0 c 3 1 t\nx Q0 a 1 3 t\nq3 Q0 c 1 1 t\n"


@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers(0, 5), min_size=1),
    st.integers(1, 6),
)
def test_whatever_the_order_of_ties_the_first_are_kept(hits, depth):
    kept = best_hits(list(hits), list(map(float, hits.values())), depth)
    for last in (False, True):
        by_id = sorted(hits, reverse=last)
        first = sorted(by_id, key=lambda docid: -hits[docid])[:depth]
        assert set(first) <= set(kept)
    assert list(kept) == sorted(kept, key=lambda docid: (kept[docid], docid), reverse=True)
    assert len(kept) == len(hits) or min(kept.values()) >= sorted(hits.values())[-depth]


@pytest.fixture
def taken(tmp_path):
    """Hits of a run for q1, q2 and q3, two of each; the corpus has a and b."""
    (tmp_path / "run.trec").write_text(RUN)
    texts = PassageTexts(tmp_path / "passages")
    hits = AnswerHits(tmp_path / "hits", {"q1": 0, "q2": 1, "q3": 2}, 2)
    with closing(texts), closing(hits):
        hits.read(str(tmp_path / "run.trec"), "run", texts)
        texts.find([Passage("a", "A"), Passage("b", "B"), Passage("d", "D")], "c", Progress())
        yield hits, texts


def test_hits_by_question(taken):
    hits, _ = taken
    assert [hits[number] for number in range(3)] == [{"a": 3.0, "b": 2.0}, {}, {"c": 1.0}]
    assert hits.unanswered == ["x"]
    assert list(hits.docids()) == ["a", "b", "c"]


def test_what_the_corpus_lacks_is_named(taken):
    hits, texts = taken
    with pytest.raises(InputError, match=r"c: found no passages with 1 of the ids .* \('c'\)"):
        refuse_lacking("c", texts, hits.docids())


@pytest.mark.parametrize(
    ("run", "told"),
    [
        (RUN, r"mine answers queries 'q1', 'x', 'q3'; the answers are for '0', '1': none in comm"),
        ("\n", "mine holds no hit at all; the answers are for '0', '1'"),
    ],
)
def test_a_run_over_other_questions(tmp_path, run, told):
    (tmp_path / "run.trec").write_text(run)
    with (
        closing(PassageTexts(tmp_path / "passages")) as texts,
        closing(AnswerHits(tmp_path / "hits", {"0": 0, "1": 1}, 2)) as hits,
        pytest.raises(MismatchError, match=told),
    ):
        hits.read(str(tmp_path / "run.trec"), "mine", texts)
