from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.errors import InputError
from denserk.io import passage_texts
from denserk.io.passage_texts import PassageTexts, ScratchRecords
from denserk.records import Passage
from denserk.reporting import Progress

DOCIDS = st.lists(st.text("abc", min_size=1, max_size=3), unique=True)


@given(corpus=DOCIDS, referred=st.lists(DOCIDS, max_size=4), pending=st.integers(1, 5))
def test_what_was_noted_is_given_back(corpus, referred, pending, tmp_path_factory):
    passages = {docid: Passage(docid, f"text of {docid}", "title") for docid in corpus}
    wanted = [docid for docids in referred for docid in docids]
    path = tmp_path_factory.mktemp("texts") / "texts"
    with pytest.MonkeyPatch.context() as patch, closing(PassageTexts(path)) as texts:
        patch.setattr(passage_texts, "PENDING", pending)
        patch.setattr(passage_texts, "BLOCK", pending)
        for docids in referred:
            texts.refer(docids)
        texts.find(passages.values(), "corpus", Progress())
        assert texts.get(wanted) == [passages.get(docid) for docid in wanted]
        assert texts.missing == len(set(wanted) - passages.keys())
    kept = sum(len(passages[docid].text) for docid in set(wanted) & passages.keys())
    assert kept <= path.stat().st_size <= 8 * kept


def test_an_id_twice_is_rejected_where_it_is_needed(tmp_path):
    passages = [Passage(docid, docid) for docid in ("d1", "d2", "d3", "d2")]
    with closing(PassageTexts(tmp_path / "texts")) as texts:
        texts.refer(["d1"])
        texts.find(passages, "corpus", Progress())
        texts.refer(["d2"])
        with pytest.raises(InputError, match="corpus: found the id d2 twice"):
            texts.find(passages, "corpus", Progress())


@given(written=st.lists(st.tuples(st.binary(max_size=9), st.integers(0, 99)), max_size=20))
def test_every_record_is_read_back_also_between_writes(written, tmp_path_factory):
    with closing(ScratchRecords(tmp_path_factory.mktemp("scratch") / "records")) as records:
        for number, (record, asked) in enumerate(written):
            assert records.append(record) == number
            assert records[asked % (number + 1)] == written[asked % (number + 1)][0]
        assert [records[n] for n in range(len(records))] == [record for record, _ in written]
