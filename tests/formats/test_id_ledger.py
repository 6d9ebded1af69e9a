from hypothesis import given
from hypothesis import strategies as st

from denserk.formats import id_ledger
from denserk.formats.id_ledger import IdLedger


def first_repeat_in_memory(ids):
    seen: dict[str, int] = {}
    for position, docid in enumerate(ids):
        if docid in seen:
            return seen[docid], position
        seen[docid] = position
    return None


@given(st.lists(st.text(max_size=2), max_size=40))
def test_tells_the_first_repeat(ids):
    with IdLedger() as ledger:
        assert list(ledger.watch(ids)) == ids
        found = ledger.first_repeat()
    assert found == first_repeat_in_memory(ids)


def test_spills_and_still_finds_it(monkeypatch):
    monkeypatch.setattr(id_ledger, "BUFFER", 10)
    ids = [str(n) for n in range(1000)]
    with IdLedger() as ledger:
        for docid in [*ids, "997"]:
            ledger.add(docid)
        assert ledger.first_repeat() == (997, 1000)
        assert ledger.count == 1001
