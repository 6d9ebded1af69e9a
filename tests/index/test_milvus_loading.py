import numpy as np
import pytest

from denserk.errors import InputError, MismatchError, ServerError
from denserk.index import milvus_loading
from denserk.index.milvus_collection import Collection
from denserk.index.milvus_connection import Connection
from denserk.index.milvus_index import MilvusIndex
from denserk.settings.retrieval import SearchSettings
from tests.faults import Stopped, stopped_at
from tests.milvus import collection, load, require_milvus, write_vectors

require_milvus()

IDS = [f"d{n}" for n in range(60)]
VECTORS = np.random.default_rng(3).normal(size=(60, 4)).astype(np.float32)


def rows_of(database, name):
    """Every row: its number, its passage, its vector."""
    with Connection(collection(database, name)) as connection:
        Collection(connection, collection(database, name)).load()
        found = connection.client.query(
            name, filter="row >= 0", output_fields=["row", "passage", "vector"], limit=1000
        )
    rows = sorted((hit["row"], hit["passage"], tuple(hit["vector"])) for hit in found)
    return [(row, passage, [float(x) for x in vector]) for row, passage, vector in rows]


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    return tmp_path_factory.mktemp("milvus") / "a.db"


@pytest.fixture
def source(tmp_path):
    return write_vectors(tmp_path / "v.jsonl", IDS, VECTORS)


@pytest.mark.parametrize("batch", [1, 7, None])
def test_every_vector_is_a_row_of_its_number(database, source, batch):
    name = f"batch_{batch}"
    result = load(source, database, name, milvus_batch=batch)
    assert (result.count, result.rows) == (60, 60)
    assert rows_of(database, name) == [
        (n, IDS[n], [float(x) for x in VECTORS[n]]) for n in range(60)
    ]


@pytest.mark.parametrize("step", [0, 1, 11, 12, 14])
def test_a_load_goes_on_where_it_was_stopped(database, source, monkeypatch, step):
    monkeypatch.setattr(milvus_loading, "KEPT_EVERY", 4)
    name = f"stopped_{step}"
    with pytest.raises(Stopped), stopped_at(step, [(Collection, "write")]):
        load(source, database, name, milvus_batch=4)
    with pytest.raises(MismatchError, match="is unfinished"):
        MilvusIndex(collection(database, name), SearchSettings())
    sent: list[int] = []
    write = Collection.write

    def counted(self, first, ids, vectors):
        sent.append(first)
        write(self, first, ids, vectors)

    monkeypatch.setattr(Collection, "write", counted)
    result = load(source, database, name, milvus_batch=4, resume=True)
    assert sent == list(range(step // 4 * 16, 60, 4))
    assert result.rows == 60
    assert [row for row, _, _ in rows_of(database, name)] == list(range(60))


def test_a_row_that_is_written_twice_is_one(database, source):
    load(source, database, "twice")
    with Connection(collection(database, "twice")) as connection:
        held = Collection(connection, collection(database, "twice"))
        held.load()
        held.write(0, IDS[:10], VECTORS[:10])
        assert held.count() == 60


def test_an_id_that_comes_twice(database, tmp_path):
    source = write_vectors(tmp_path / "v.jsonl", ["a", "b", "a"], VECTORS[:3])
    with pytest.raises(InputError, match=r"the id a again \(vector 3; first as vector 1"):
        load(source, database, "repeated")
    with pytest.raises(MismatchError, match="unfinished"):
        MilvusIndex(collection(database, "repeated"), SearchSettings())


def test_an_id_that_no_field_holds(database, tmp_path):
    source = write_vectors(tmp_path / "v.jsonl", ["a", "é" * 513], VECTORS[:2])
    with pytest.raises(
        InputError, match=r"an id of 1,026 bytes \(é+\.\.\.\); expected at most 1,024"
    ):
        load(source, database, "long")


def test_rows_that_the_server_lost_are_noticed(database, source, monkeypatch):
    monkeypatch.setattr(Collection, "count", lambda self: 59)
    with pytest.raises(ServerError, match="holds 59 rows where 60 were written"):
        load(source, database, "lost")
