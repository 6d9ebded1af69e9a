import io

import numpy as np
import pytest

from denserk.errors import InputError
from denserk.formats.flat_file import HEADER, FlatWriter, is_flat, map_flat
from denserk.settings.retrieval import Metric

ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.mark.parametrize("metric", Metric)
def test_what_is_written_block_by_block_is_mapped(metric, tmp_path):
    with (tmp_path / "index").open("wb") as handle:
        writer = FlatWriter(handle, metric)
        writer.add(ROWS[:3].astype(np.float16))
        writer.add(ROWS[3:])
        writer.finish()
    assert HEADER.size == 45
    assert (tmp_path / "index").stat().st_size == 45 + ROWS.nbytes
    assert is_flat(tmp_path / "index")
    rows, found = map_flat(tmp_path / "index")
    assert found is metric
    np.testing.assert_array_equal(rows, ROWS)


@pytest.mark.parametrize("metric", Metric)
def test_faiss_reads_it(metric, tmp_path):
    faiss = pytest.importorskip("faiss")
    memory = io.BytesIO()
    writer = FlatWriter(memory, metric)
    writer.add(ROWS)
    writer.finish()
    index = faiss.deserialize_index(np.frombuffer(memory.getvalue(), np.uint8))
    np.testing.assert_array_equal(index.reconstruct_n(0, 4), ROWS)
    inner = metric is Metric.INNER
    assert index.metric_type == (faiss.METRIC_INNER_PRODUCT if inner else faiss.METRIC_L2)


@pytest.mark.parametrize("data", [b"", b"IxFI", b"IHNf" + bytes(60)])
def test_other_files_are_refused(data, tmp_path):
    (tmp_path / "index").write_bytes(data)
    with pytest.raises(InputError, match="expected a flat index"):
        map_flat(tmp_path / "index")
