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


class SameHash(str):
    """An id whose hash is everybody's."""

    __slots__ = ()

    def __hash__(self):
        return 7


def taken(path, referred, corpus):
    texts = PassageTexts(path)
    for docids in referred:
        texts.refer(docids)
    texts.find(corpus, "corpus", Progress())
    return texts


@given(
    corpus=DOCIDS,
    referred=st.lists(DOCIDS, max_size=4),
    pending=st.integers(1, 5),
    kind=st.sampled_from([str, SameHash]),
)
def test_what_was_noted_is_given_back(corpus, referred, pending, kind, tmp_path_factory):
    passages = {kind(docid): Passage(kind(docid), f"text of {docid}", "title") for docid in corpus}
    referred = [[kind(docid) for docid in docids] for docids in referred]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passage_texts, "PENDING", pending)
        patch.setattr(passage_texts, "BLOCK", pending)
        path = tmp_path_factory.mktemp("texts") / "texts"
        texts = taken(path, referred, passages.values())
    wanted = [docid for docids in referred for docid in docids]
    assert texts.get(wanted) == [passages.get(docid) for docid in wanted]
    if kind is str:
        assert texts.missing == len(set(wanted) - passages.keys())
    texts.close()


def test_only_what_was_noted_is_kept(tmp_path):
    corpus = (Passage(f"d{number}", "text " * 100) for number in range(1000))
    texts = taken(tmp_path / "texts", [["d7", "d7", "d999"]], corpus)
    texts.close()
    assert 1000 < (tmp_path / "texts").stat().st_size < 1200
    assert texts.missing == 0


@pytest.mark.parametrize("kind", [str, SameHash])
def test_an_id_twice_is_refused_where_it_is_needed(kind, tmp_path):
    passages = [Passage(kind(docid), docid) for docid in ("d1", "d2", "d3", "d2")]
    for wanted, refused in (("d2", True), ("d1", False)):
        texts = PassageTexts(tmp_path / wanted)
        texts.refer([kind(wanted)])
        if refused or kind is SameHash:  # ids of one hash are all taken
            with pytest.raises(InputError, match="corpus: found the id d2 twice"):
                texts.find(passages, "corpus", Progress())
        else:
            texts.find(passages, "corpus", Progress())
        texts.close()


@given(written=st.lists(st.tuples(st.binary(max_size=9), st.integers(0, 99)), max_size=20))
def test_every_record_is_read_back_also_between_writes(written, tmp_path_factory):
    with closing(ScratchRecords(tmp_path_factory.mktemp("scratch") / "records")) as records:
        for number, (record, asked) in enumerate(written):
            assert records.append(record) == number
            assert records[asked % (number + 1)] == written[asked % (number + 1)][0]
        assert [records[n] for n in range(len(records))] == [record for record, _ in written]
