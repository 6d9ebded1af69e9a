import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.data.example_columns import Columns, ColumnsWriter, read_columns

EXAMPLES = st.lists(
    st.tuples(st.text("aé", max_size=3), st.integers(1, 3), st.integers(0, 4)), max_size=9
)


def columns(examples):
    """Examples of (qid, positives, negatives), their candidates numbered through."""
    counts = np.array([p + n for _, p, n in examples], dtype=np.int64)
    qids = [qid.encode() for qid, _, _ in examples]
    return Columns(
        np.arange(counts.sum()),
        (np.arange(counts.sum()) / 2).astype(np.float32),
        counts,
        np.array([p for _, p, _ in examples], dtype=np.int64),
        np.arange(len(examples)) + 100,
        np.frombuffer(b"".join(qids), np.uint8),
        np.array([len(qid) for qid in qids], dtype=np.int64),
    )


def rows(block):
    """(qid, query, positives, negatives, scores) of each example."""
    ends = np.cumsum(block.counts)
    found = []
    for number, (end, count) in enumerate(zip(ends, block.counts, strict=True)):
        candidates = block.candidates[end - count : end].tolist()
        cut = block.positive_counts[number]
        scores = block.scores[end - count : end].tolist()
        query = int(block.queries[number])
        found.append((block.qid(number), query, candidates[:cut], candidates[cut:], scores))
    return found


@pytest.mark.parametrize("size", [1, 2, 100])
@given(examples=EXAMPLES)
def test_what_was_written_comes_back_in_blocks(tmp_path_factory, size, examples):
    folder = tmp_path_factory.mktemp("columns")
    block = columns(examples)
    writer = ColumnsWriter(folder)
    writer.append(block)
    writer.close()
    read = list(read_columns(folder, size))
    assert [row for part in read for row in rows(part)] == rows(block)
    assert all(len(part.counts) <= size for part in read)


@given(EXAMPLES, st.data())
def test_what_goes_takes_what_hangs_on_it_along(examples, data):
    block = columns(examples)
    flags = st.lists(st.booleans(), min_size=len(block.candidates), max_size=len(block.candidates))
    gone = {n for n, goes in enumerate(data.draw(flags)) if goes}
    lost = data.draw(st.sets(st.sampled_from(range(len(examples))))) if examples else set()
    kept = block.keep(
        np.array([n not in gone for n in range(len(block.candidates))], dtype=bool),
        np.array([n not in lost for n in range(len(examples))], dtype=bool),
    )
    expected = []
    for number, (qid, query, positives, negatives, _) in enumerate(rows(block)):
        positives = [row for row in positives if row not in gone]
        negatives = [row for row in negatives if row not in gone]
        if positives and number not in lost:
            scores = [row / 2 for row in positives + negatives]
            expected.append((qid, query, positives, negatives, scores))
    assert rows(kept) == expected
