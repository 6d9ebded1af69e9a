"""Template indexes and merged indexes find what one build finds."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from denserk.config.retrieval import Engine, IndexSettings, IndexType, Metric, SearchSettings
from denserk.errors import DenserkError, InputError, MismatchError, OutputError, UsageError
from denserk.index import faiss_building, faiss_merging
from denserk.index.faiss_building import build
from denserk.index.faiss_index import FaissIndex
from denserk.index.faiss_merging import is_approximate, mergeable_ivf, open_parts, read_template
from denserk.io.manifest import Kind, file_sha256, read_manifest
from tests.faults import Stopped, contents, stopped_at
from tests.index.merging import (
    VECTORS,
    forget_checks,
    index,
    settings_for,
    write_parts,
    write_shards,
)
from tests.index.test_vector_inputs import vector_folder
from tests.reporters import Heard

faiss = pytest.importorskip("faiss")
IVF = settings_for("IVF9,PQ4x4")
LISTS = ["IVF9,Flat", "IVF9,PQ4x4", "PCA4,IVF9_HNSW4,SQ8", "PCA4,IVF9,PQ2x4np"]
OTHERS = ["HNSW4_PQ4x4", "PQ4x4", "IVF9,PQ4x4fs", "IVF9,SQ8,RFlat", "IVF9(IVF3,Flat),Flat"]
QUERIES = np.random.default_rng(4).normal(size=(20, 8)).astype(np.float32)


def hits(folder, **settings):
    """Scores and rows of QUERIES."""
    found = FaissIndex(Path(folder) / "index", SearchSettings(**settings)).search(QUERIES, 50)
    return [part.tolist() for part in found]


@pytest.fixture
def on_disk(monkeypatch):
    """Too little memory for any merged index, and for more than 500 vectors of one."""
    monkeypatch.setattr(faiss_merging, "available_bytes", lambda: 100)
    monkeypatch.setattr(faiss_building, "available_bytes", lambda: 100)
    monkeypatch.setattr(faiss_building, "LEAST_SPILL", 3_000)
    monkeypatch.setattr(faiss_building, "ADD_ROWS", 250)


@pytest.fixture
def spilling(on_disk, monkeypatch):
    """Lists go to files, and fit in memory in the end."""
    monkeypatch.setattr(faiss_merging, "available_bytes", lambda: None)


@pytest.mark.parametrize("metric", Metric)
@pytest.mark.parametrize("factory", LISTS)
@pytest.mark.parametrize("memory", ["spilling", "on_disk"])
def test_an_index_larger_than_memory_finds_what_one_in_memory_finds(
    tmp_path, request, factory, metric, memory
):
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    settings = settings_for(factory, metric=metric)
    build(VECTORS, tmp_path / "whole" / "index", settings)
    request.getfixturevalue(memory)
    build(VECTORS, tmp_path / "parts" / "index", settings)
    expected = hits(tmp_path / "whole", nprobe=4)
    assert hits(tmp_path / "parts", nprobe=4) == expected
    files = ["index", "index.ivfdata"] if memory == "on_disk" else ["index"]
    assert sorted(item.name for item in (tmp_path / "parts").iterdir()) == files
    (tmp_path / "parts").rename(tmp_path / "moved")
    assert hits(tmp_path / "moved", nprobe=4) == expected
    _moved = FaissIndex(tmp_path / "moved" / "index", SearchSettings())
    assert str(tmp_path / "moved" / files[-1]) in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("metric", Metric)
@pytest.mark.parametrize("memory", [None, "on_disk"])
def test_a_merged_index_finds_what_one_build_finds(tmp_path, request, metric, size, memory):
    parts = write_parts(tmp_path, settings_for("IVF9,PQ4x4", metric=metric), size)
    shards = [tmp_path / "shards" / part.name for part in parts]
    plain = settings_for(metric=metric)
    whole = index(tmp_path / "one", tuple(shards), plain, trained_as=str(parts[0]))
    if memory:
        request.getfixturevalue(memory)
    reporter = Heard()
    merged = index(tmp_path / "merged", (tmp_path / "parts" / "*",), plain)
    assert hits(tmp_path / "merged") == hits(tmp_path / "one")
    flags = faiss.IO_FLAG_ONDISK_SAME_DIR if memory else 0  # what other tools need
    assert faiss.read_index(str(tmp_path / "merged/index"), flags).ntotal == len(VECTORS)
    assert (tmp_path / "merged/docid").read_bytes() == (tmp_path / "one/docid").read_bytes()
    assert (merged.count, merged.recall) == (whole.count, whole.recall)
    assert merged.count == len(VECTORS) // size
    assert "of its own vectors as queries" in reporter.notes[-1]
    told, expected = (read_manifest(tmp_path / n, Kind.INDEX) for n in ("merged", "one"))
    assert {**told.contents, "sha256": {}, "bytes": {}} == {
        **expected.contents,
        "sha256": {},
        "bytes": {},
    }
    assert set(told.contents["sha256"]) == {"docid", "index", "index.ivfdata"} - (
        set() if memory else {"index.ivfdata"}
    )
    assert told.settings == expected.settings
    assert told.made_from["vectors"] == expected.made_from["vectors"]
    assert told.made_from["model"] == {"name": "m", "fingerprint": "1"}
    assert [part["name"] for part in told.made_from["indexes"]] == [str(part) for part in parts]


@pytest.mark.parametrize("memory", [None, "on_disk"])
def test_merged_indexes_are_merged_again_and_templates(tmp_path, request, memory):
    parts = write_parts(tmp_path, IVF)
    whole = index(tmp_path / "whole", tuple(parts))
    if memory:
        request.getfixturevalue(memory)
    index(tmp_path / "half", tuple(parts[:2]))
    (tmp_path / "half").rename(tmp_path / "moved")
    again = index(tmp_path / "again", (tmp_path / "moved", parts[2]))
    assert again.recall == whole.recall
    assert hits(tmp_path / "again") == hits(tmp_path / "whole")
    index(tmp_path / "filled", (tmp_path / "shards/0",), trained_as=str(tmp_path / "moved"))
    assert hits(tmp_path / "filled") == hits(parts[0])


def test_folders_keep_the_order_given(tmp_path):
    parts = write_parts(tmp_path, IVF)
    index(tmp_path / "merged", (parts[2], parts[0]))
    shards = tmp_path / "shards"
    index(tmp_path / "one", (shards / "2", shards / "0"), trained_as=str(parts[0]))
    assert hits(tmp_path / "merged") == hits(tmp_path / "one")


@pytest.mark.parametrize("factory", [*LISTS, *OTHERS])
def test_which_indexes_have_nothing_but_lists_that_grow(factory):
    trained = faiss.index_factory(8, factory)
    assert (mergeable_ivf(trained) is not None) == (factory in LISTS)


@pytest.mark.parametrize("factory", [*LISTS, *OTHERS])
def test_a_template_gives_the_bytes_of_its_index_again(tmp_path, factory):
    shards = write_shards(tmp_path)
    index(tmp_path / "first", (shards[0],), settings_for(factory))
    index(tmp_path / "other", (shards[2],), trained_as=str(tmp_path / "first"))
    index(tmp_path / "again", (shards[0],), trained_as=str(tmp_path / "other"))
    for name in ("index", "docid"):
        again = (tmp_path / "again" / name).read_bytes()
        assert again == (tmp_path / "first" / name).read_bytes()
        assert again != (tmp_path / "other" / name).read_bytes()
    first, other = (read_template(str(tmp_path / name)) for name in ("first", "other"))
    assert first.sha256 == other.sha256
    manifest = read_manifest(tmp_path / "other", Kind.INDEX)
    expected = {"name": str(tmp_path / "first"), "sha256": first.sha256}
    assert manifest.made_from["trained_as"] == expected
    assert manifest.contents["factory"] == factory


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"factory": "IVF8,SQ8"}, UsageError, "--factory IVF8,SQ8: .* was trained as IVF9,SQ8"),
        ({"type": IndexType.PQ}, UsageError, "--type pq: "),
        ({"nlist": 8}, UsageError, "--nlist 8: "),
        ({"train_size": 70}, UsageError, "--set train-size 70: "),
        ({"metric": Metric.L2}, MismatchError, "compares by inner, and --metric is l2"),
        ({"engine": Engine.TORCH}, UsageError, "not IVF9,SQ8"),
    ],
)
def test_options_that_contradict_the_template(tmp_path, given, error, message):
    parts = write_parts(tmp_path, settings_for("IVF9,SQ8"))
    for inputs, paths in (
        ((tmp_path / "shards/1",), {"trained_as": str(parts[0])}),
        (tuple(parts), {}),
    ):
        with pytest.raises(error, match=message):
            index(tmp_path / "other", inputs, IndexSettings(**given), **paths)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("factory", "kind"), [(None, "flat"), ("HNSW4,Flat", "HNSW4,Flat"), ("SQfp16", "SQfp16")]
)
def test_types_without_training_are_no_templates(tmp_path, factory, kind):
    shards = write_shards(tmp_path)
    index(tmp_path / "first", (shards[0],), settings_for(factory))
    with pytest.raises(UsageError, match=f"first is {kind}, which has no training"):
        index(tmp_path / "other", (shards[1],), trained_as=str(tmp_path / "first"))


def test_vectors_that_do_not_fit_the_template(tmp_path):
    shards = write_shards(tmp_path)
    index(tmp_path / "first", (shards[0],), settings_for("IVF9,SQ8"))
    first = str(tmp_path / "first")
    vector_folder(tmp_path / "narrow", ["a"], VECTORS[:1, :4])
    with pytest.raises(MismatchError, match="of 8 dimensions, and the input has 4"):
        index(tmp_path / "other", (tmp_path / "narrow",), trained_as=first)
    model = {"name": "n", "fingerprint": "2"}
    vector_folder(tmp_path / "foreign", ["a"], VECTORS[:1], model=model)
    with pytest.raises(MismatchError, match="other weights: m and n"):
        index(tmp_path / "other", (tmp_path / "foreign",), trained_as=first)
    with pytest.raises(UsageError, match="both input and output"):
        index(tmp_path / "first", (shards[1],), trained_as=first, overwrite=True)
    with pytest.raises(UsageError, match=r"--trained-as .*first is for vectors"):
        index(tmp_path / "other", (tmp_path / "first",), trained_as=first)
    for name in ("absent", "shards/0"):
        with pytest.raises(DenserkError, match=r"no such file|holds vectors, not index"):
            index(tmp_path / "other", (shards[0],), trained_as=str(tmp_path / name))
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("left", [0.3, 0.9])
def test_a_part_that_is_cut_short(tmp_path, left):
    parts = write_parts(tmp_path, settings_for("IVF9,SQ8"))
    forget_checks(parts[2])
    path = parts[2] / "index"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(left * len(whole))])
    with pytest.raises(InputError, match="index: found"):
        read_template(str(parts[2]))
    with pytest.raises(InputError, match="index: found"):
        index(tmp_path / "whole", tuple(parts))


def test_lists_that_are_missing_or_cut_short(tmp_path, on_disk):
    build(VECTORS, tmp_path / "index", IVF)
    lists = tmp_path / "index.ivfdata"
    lists.write_bytes(lists.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"index\.ivfdata has [1-9]"):
        hits(tmp_path)
    lists.unlink()
    with pytest.raises(InputError, match=r"index\.ivfdata has 0 bytes"):
        hits(tmp_path)


def test_a_disk_without_room_for_the_lists(tmp_path, on_disk, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(OutputError, match=r"index\.ivfdata cannot be written: .* free"):
        build(VECTORS, tmp_path / "index", IVF)
    assert not list(tmp_path.iterdir())


def test_what_a_killed_build_left_goes_when_it_is_resumed(tmp_path, on_disk, monkeypatch):
    shard = write_shards(tmp_path)[2]
    index(tmp_path / "whole", (shard,), IVF)
    with monkeypatch.context() as patch, stopped_at(1, [(faiss_building, "write_index")]):
        patch.setattr(Path, "unlink", lambda *_, **__: None)  # a killed process removes nothing
        with pytest.raises(Stopped):
            index(tmp_path / "killed", (shard,), IVF)
    assert list((tmp_path / "killed").glob(".*.part"))
    with pytest.raises(MismatchError, match="unfinished"):
        read_manifest(tmp_path / "killed", Kind.INDEX)
    index(tmp_path / "killed", (shard,), IVF, resume=True)
    assert hits(tmp_path / "killed") == hits(tmp_path / "whole")
    assert set(contents(tmp_path / "killed")) == set(contents(tmp_path / "whole"))


@pytest.mark.parametrize("size", [1, 2])
def test_an_id_that_occurs_twice(tmp_path, size):
    parts = write_parts(tmp_path, settings_for("IVF9,SQ8"), size)
    lines = (forget_checks(parts[2]) / "docid").read_text().splitlines()
    ends = ["#0", "#1"][:size] if size > 1 else [""]
    lines[4 * size : 5 * size] = [f"d3{end}" for end in ends]
    (parts[2] / "docid").write_text("".join(f"{line}\n" for line in lines))
    before = 510 // size
    found = rf"{parts[2]}: found the id d3 again \(vector {before + 5}; first as vector 4, in "
    with pytest.raises(InputError, match=found + str(parts[0])):
        index(tmp_path / "whole", tuple(parts))
    assert [item.name for item in (tmp_path / "whole").iterdir()] == ["manifest.json"]


def test_numbers_of_ids_and_vectors_that_differ(tmp_path):
    parts = write_parts(tmp_path, settings_for("IVF9,SQ8"))
    (forget_checks(parts[1]) / "docid").write_text("d0\n")
    with pytest.raises(InputError, match="parts/1/docid: found 1 ids; expected 10 ids"):
        open_parts([str(part) for part in parts])
    manifest = json.loads((parts[1] / "manifest.json").read_text())
    manifest["contents"]["count"] = 1
    (parts[1] / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="parts/1/index: found 10 vectors; expected 1"):
        open_parts([str(part) for part in parts])


def test_parts_that_cannot_be_merged(tmp_path):
    parts = [str(part) for part in write_parts(tmp_path, settings_for("IVF9,SQ8"))]
    shards = [str(tmp_path / "shards" / name) for name in ("1", "2")]
    index(tmp_path / "apart", (shards[1],), settings_for("IVF9,SQ8"))
    with pytest.raises(MismatchError, match="have different training") as caught:
        open_parts([*parts, str(tmp_path / "apart")])
    assert caught.value.hint == f"build {tmp_path}/apart again with --trained-as {parts[0]}"
    index(tmp_path / "flat", (shards[0],))
    assert is_approximate(parts[0])
    for other in (shards[0], str(tmp_path / "flat"), str(tmp_path / "absent")):
        assert not is_approximate(other)
        with pytest.raises(DenserkError, match=f"{other}(:| holds vectors| is flat)"):
            open_parts([other, *parts])
    index(tmp_path / "graph", (shards[0],), settings_for("HNSW4,Flat"))
    with pytest.raises(UsageError, match="graph is HNSW4,Flat, which cannot be merged"):
        open_parts([str(tmp_path / "graph")])
    others = write_parts(tmp_path / "two", settings_for("IVF9,SQ8"), size=2)
    with pytest.raises(MismatchError, match=r"has 1 vectors per passage, .* has 2"):
        open_parts([parts[0], str(others[0])])
    path = Path(parts[1]) / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"made_from": {"model": {"fingerprint": "2"}}}))
    with pytest.raises(MismatchError, match="other weights: m and"):
        index(tmp_path / "whole", tuple(parts))
    path.write_text(json.dumps({**manifest, "complete": False}))
    (Path(parts[1]) / "index").unlink()
    with pytest.raises(MismatchError, match="parts/1 is unfinished"):
        open_parts(parts)


def move(tmp_path):
    (tmp_path / "shards" / "1").rename(tmp_path / "elsewhere")


def rename_a_passage(tmp_path):
    shard = tmp_path / "shards" / "1"
    (shard / "block-00000.docid").write_text("".join(f"x{n}\n" for n in range(10)))
    journal = shard / "blocks.jsonl"
    lines = [json.loads(line) | {"sha256": {}} for line in journal.read_text().splitlines()]
    journal.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    told = json.loads((shard / "manifest.json").read_text())
    told["contents"]["journal_sha256"] = file_sha256(journal)
    (shard / "manifest.json").write_text(json.dumps(told))


def name_vectors(tmp_path, part, *names):
    path = tmp_path / "parts" / part / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["made_from"]["vectors"] = names
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (move, "shards/1: no such file"),
        (rename_a_passage, "shards/1 has changed since it was indexed"),
        (lambda folder: name_vectors(folder, "0", "-"), "the vectors were read from a stream"),
        (lambda folder: name_vectors(folder, "2"), "some of the indexed vectors are missing"),
    ],
)
def test_recall_where_the_vectors_are_gone(tmp_path, change, reason):
    parts = write_parts(tmp_path, IVF)
    change(tmp_path)
    reporter = Heard()
    merged = index(tmp_path / "merged", (tmp_path / "parts" / "*",))
    assert merged.recall is None
    told = [read_manifest(part, Kind.INDEX).contents["recall"] for part in parts]
    assert reporter.notes[-1].startswith("recall is not measured: ")
    assert reason in reporter.notes[-1]
    assert str(told) in reporter.notes[-1]
    kept = read_manifest(tmp_path / "merged", Kind.INDEX).contents
    assert kept["recall_of_parts"] == told
    assert "recall" not in kept


def test_stopped_and_resumed_replaced_and_left_alone(tmp_path):
    parts = write_parts(tmp_path, IVF)
    index(tmp_path / "whole", tuple(parts))
    for step in range(4):  # manifest, ids, index, manifest
        folder = tmp_path / f"stopped{step}"
        with stopped_at(step), pytest.raises(Stopped):
            index(folder, tuple(parts))
        if step:
            with pytest.raises(MismatchError, match="unfinished"):
                read_manifest(folder, Kind.INDEX)
        index(folder, tuple(parts), resume=True)
        assert contents(folder) == contents(tmp_path / "whole")
    with pytest.raises(UsageError, match="not empty"):
        index(tmp_path / "whole", tuple(parts))
    with pytest.raises(MismatchError, match="made with other settings"):
        index(tmp_path / "whole", tuple(parts[:2]), resume=True)
    assert index(tmp_path / "whole", tuple(parts[:2]), overwrite=True).count == 510
    index(tmp_path / "parts" / "3", (parts[0], parts[2]))
    with pytest.raises(UsageError, match="both input and output"):
        index(tmp_path / "parts" / "3", (tmp_path / "parts" / "*",), overwrite=True)


@pytest.mark.parametrize("size", [1, 2])
def test_flat_indexes_are_vectors(tmp_path, size):
    shards = write_shards(tmp_path, size)
    for shard in shards:
        index(tmp_path / "flat" / shard.name, (shard,))
    index(tmp_path / "merged", (tmp_path / "flat" / "*",))
    index(tmp_path / "one", tuple(shards))
    for name in ("index", "docid"):
        assert (tmp_path / "merged" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()
    merged, one = (read_manifest(tmp_path / n, Kind.INDEX) for n in ("merged", "one"))
    assert merged.contents == one.contents
    assert merged.made_from["model"] == one.made_from["model"]


@pytest.mark.slow
def test_machines_index_their_shards_and_one_merges_them(tmp_path):
    """Each command is a process of its own, as on machines that share a file system."""
    shards = write_shards(tmp_path)
    index(tmp_path / "trained", (shards[2],), settings_for("PCA4,IVF9,SQ8"))
    command = [sys.executable, "-m", "denserk", "index", "--threads", "1"]
    filling = ["--trained-as", "trained"]
    for n in range(3):
        line = [*command, *filling, "--input", f"shards/{n}", "--output", f"parts/{n}"]
        subprocess.run(line, cwd=tmp_path, check=True, stderr=subprocess.DEVNULL)
    merging = [*command, "--input", "parts/*", "--output", "whole"]
    done = subprocess.run(merging, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert "recall@10" in done.stderr
    line = [*command, *filling, "--input", "shards/*", "--output", "one"]
    subprocess.run(line, cwd=tmp_path, check=True, stderr=subprocess.DEVNULL)
    assert hits(tmp_path / "whole") == hits(tmp_path / "one")
