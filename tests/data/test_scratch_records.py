from contextlib import closing

from hypothesis import given
from hypothesis import strategies as st

from denserk.data.scratch_records import ScratchRecords


@given(written=st.lists(st.tuples(st.binary(max_size=9), st.integers(0, 99)), max_size=20))
def test_every_record_is_read_back_also_between_writes(written, tmp_path_factory):
    with closing(ScratchRecords(tmp_path_factory.mktemp("scratch") / "records")) as records:
        for number, (record, asked) in enumerate(written):
            assert records.append(record) == number
            assert records[asked % (number + 1)] == written[asked % (number + 1)][0]
        assert [records[n] for n in range(len(records))] == [record for record, _ in written]
