from hypothesis import given
from hypothesis import strategies as st

from denserk.io.id_ledger import IdLedger


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


def test_many_ids():
    ids = [str(n) for n in range(300_000)]
    with IdLedger() as ledger:
        ledger.extend(ids)
        assert ledger.first_repeat() is None
        ledger.add("299997")
        assert ledger.first_repeat() == (299_997, 300_000)
        assert ledger.count == 300_001
