import json

import numpy as np
import pytest

from denserk.errors import DenserkError, InputError, MismatchError, UsageError
from denserk.index import inverted_lists, memory_needs
from denserk.index.index_merging import is_filled, look_at_parts
from denserk.settings.retrieval import Metric
from tests.index.merging import (
    VECTORS,
    forget_checks,
    index,
    settings_for,
    write_parts,
    write_shards,
)
from tests.reporters import Heard

faiss = pytest.importorskip("faiss")
LISTS = ["IVF9,Flat", "IVF9,PQ4x4", "PCA4,IVF9_HNSW4,SQ8"]


def names(parts):
    return [str(part) for part in parts]


@pytest.mark.parametrize("joined", [1 << 26, 1_000])
@pytest.mark.parametrize("metric", Metric)
@pytest.mark.parametrize("factory", LISTS)
def test_merged_parts_have_the_bytes_of_one_index(tmp_path, monkeypatch, factory, metric, joined):
    """With 1,000 bytes at once, some lists are longer than what is held."""
    monkeypatch.setattr(inverted_lists, "JOINED_BYTES", joined)
    parts = write_parts(tmp_path, settings_for(factory, metric=metric))
    (tmp_path / "whole").mkdir()
    look_at_parts(names(parts)).join(tmp_path / "whole")
    trained = faiss.read_index(str(parts[0] / "index"))
    trained.reset()
    trained.add(VECTORS)
    merged = (tmp_path / "whole" / "index").read_bytes()
    assert merged == faiss.serialize_index(trained).tobytes()
    ids = (tmp_path / "whole" / "docid").read_text().split()
    assert ids == [f"d{n}" for n in range(len(VECTORS))]


def test_folders_keep_the_order_given(tmp_path):
    parts = write_parts(tmp_path, settings_for("IVF9,Flat"))
    (tmp_path / "whole").mkdir()
    look_at_parts(names([parts[2], parts[0]])).join(tmp_path / "whole")
    trained = faiss.read_index(str(parts[0] / "index"))
    trained.reset()
    trained.add(np.concatenate([VECTORS[510:], VECTORS[:500]]))
    assert (tmp_path / "whole" / "index").read_bytes() == faiss.serialize_index(trained).tobytes()


@pytest.mark.parametrize("size", [1, 2])
def test_an_id_that_comes_twice_is_named_with_both_places(tmp_path, size):
    parts = write_parts(tmp_path, settings_for("IVF9,SQ8"), size)
    lines = (forget_checks(parts[2]) / "docid").read_text().splitlines()
    ends = ["#0", "#1"][:size] if size > 1 else [""]
    lines[4 * size : 5 * size] = [f"d3{end}" for end in ends]
    (parts[2] / "docid").write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "whole").mkdir()
    before = 510 // size
    found = rf"{parts[2]}: found the id d3 again \(vector {before + 5}; first as vector 4, in "
    with pytest.raises(InputError, match=found + str(parts[0])):
        look_at_parts(names(parts)).join(tmp_path / "whole")
    assert not list((tmp_path / "whole").iterdir())


def test_other_numbers_of_ids_are_refused(tmp_path):
    parts = write_parts(tmp_path, settings_for("IVF9,SQ8"))
    (forget_checks(parts[1]) / "docid").write_text("d0\n")
    with pytest.raises(InputError, match="parts/1/docid: found 1 ids; expected 10 ids"):
        look_at_parts(names(parts))
    manifest = json.loads((parts[1] / "manifest.json").read_text())
    manifest["contents"]["count"] = 1
    (parts[1] / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(MismatchError, match="parts/1 holds 10 vectors but 1 ids"):
        look_at_parts(names(parts))


def test_parts_that_were_trained_apart_are_refused(tmp_path):
    shards = write_shards(tmp_path)
    for name, shard in (("a", shards[0]), ("b", shards[2])):
        index(tmp_path / name, (shard,), settings_for("IVF9,SQ8"))
    with pytest.raises(MismatchError, match=r"a and .*b were not trained alike") as refused:
        look_at_parts(names([tmp_path / "a", tmp_path / "b"]))
    assert refused.value.hint == f"build {tmp_path}/b again with --trained-as {tmp_path}/a"


@pytest.mark.parametrize("factory", ["HNSW4,Flat", "PQ4x4", "IVF9,PQ4x4fs", "IVF9,SQ8,RFlat"])
def test_kinds_without_lists_to_join_are_refused(tmp_path, factory):
    parts = write_shards(tmp_path)
    index(tmp_path / "a", (parts[0],), settings_for(factory))
    with pytest.raises(UsageError, match=f"a is {factory}, of which parts cannot be joined"):
        look_at_parts([str(tmp_path / "a")])


def test_what_is_no_such_index_is_refused(tmp_path):
    parts = write_parts(tmp_path, settings_for("IVF9,SQ8"))
    shard = str(tmp_path / "shards" / "1")
    index(tmp_path / "flat", (shard,))
    assert is_filled(str(parts[0]))
    for other in (shard, str(tmp_path / "flat"), str(tmp_path / "absent")):
        assert not is_filled(other)
        with pytest.raises(UsageError, match=f"{other} is no index of IVF9,SQ8"):
            look_at_parts([other, *names(parts)])
    manifest = json.loads((parts[1] / "manifest.json").read_text())
    (parts[1] / "manifest.json").write_text(json.dumps({**manifest, "complete": False}))
    (parts[1] / "index").unlink()
    with pytest.raises(MismatchError, match="parts/1 is unfinished"):
        look_at_parts(names(parts))


def test_other_numbers_of_vectors_are_refused(tmp_path):
    parts = write_parts(tmp_path, settings_for("IVF9,SQ8"))
    others = write_parts(tmp_path / "two", settings_for("IVF9,SQ8"), size=2)
    with pytest.raises(MismatchError, match=r"has 1 vectors a passage, .* has 2"):
        look_at_parts(names([parts[0], others[0]]))


def test_a_part_that_shrinks_while_it_is_read(tmp_path):
    parts = write_parts(tmp_path, settings_for("IVF9,SQ8"))
    merged = look_at_parts(names(parts))
    path = parts[2] / "index"
    path.write_bytes(path.read_bytes()[: -16 * 690])
    (tmp_path / "whole").mkdir()
    with pytest.raises(DenserkError, match="cut short"):
        merged.join(tmp_path / "whole")
    assert not (tmp_path / "whole" / "index").exists()


def test_the_memory_is_told_and_what_does_not_fit_is_refused(tmp_path, monkeypatch):
    parts = write_parts(tmp_path, settings_for("IVF9,SQ8"))
    reporter = Heard()
    look_at_parts(names(parts))
    (told,) = reporter.notes
    assert told.startswith("merging 3 indexes of IVF9,SQ8 needs 67.1 MB of memory")
    monkeypatch.setattr(memory_needs, "available_bytes", lambda: 100)
    with pytest.raises(UsageError, match="can be had") as refused:
        look_at_parts(names(parts))
    assert "denserk search --index takes several" in (refused.value.hint or "")
