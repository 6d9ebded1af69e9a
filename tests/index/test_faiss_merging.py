import json
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from denserk.commands.app import run
from denserk.config.retrieval import Engine, IndexSettings, Metric, SearchSettings
from denserk.errors import DenserkError, InputError, MismatchError, OutputError
from denserk.index import faiss_build, memory
from denserk.index.faiss_index import FaissIndex
from denserk.index.faiss_library import mergeable_ivf
from denserk.index.faiss_templates import open_parts, read_template
from denserk.io.manifest import Kind, read_manifest
from tests.index.test_faiss import built
from tests.support.faults import Stopped, contents, stopped_at
from tests.support.index_folders import MODEL, bytes_of, index, vector_folder

faiss = pytest.importorskip("faiss")
COUNT = 1200
VECTORS = np.random.default_rng(11).normal(size=(COUNT, 8)).astype(np.float32)
# where one part ends and the next begins; the second is smaller than a block of BLAS
CUTS = (0, 500, 510, COUNT)
LISTS = ["IVF9,Flat", "IVF9,PQ4x4", "PCA4,IVF9_HNSW4,SQ8", "PCA4,IVF9,PQ2x4np"]
OTHERS = ["HNSW4_PQ4x4", "PQ4x4", "IVF9,PQ4x4fs", "IVF9,SQ8,RFlat", "IVF9(IVF3,Flat),Flat"]
QUERIES = np.random.default_rng(4).normal(size=(20, 8)).astype(np.float32)


def hits(folder, **settings):
    found = FaissIndex(Path(folder) / "index", SearchSettings(**settings)).search(QUERIES, 50)
    return [part.tolist() for part in found]


def write_shards(folder, size=1):
    """VECTORS as three folders shards/0..2, `size` vectors a passage."""
    return [
        vector_folder(
            folder / "shards" / str(number),
            [f"d{n}" for n in range(first // size, last // size)],
            VECTORS[first:last],
            size=size,
            block=COUNT,
        )
        for number, (first, last) in enumerate(pairwise(CUTS))
    ]


def write_parts(folder, factory="IVF9,SQ8", size=1, metric=Metric.INNER):
    """Indexes of the shards, parts/0..2: the first is trained, the others as the first."""
    parts = [folder / "parts" / str(n) for n in range(3)]
    for part, shard in zip(parts, write_shards(folder, size), strict=True):
        first = part is parts[0]
        settings = IndexSettings(factory=factory if first else None, metric=metric, threads=1)
        index(part, shard, settings=settings, trained_as=None if first else str(parts[0]))
    return parts


def change(folder, **fields):
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def forget_checks(folder):
    """Take sizes and checksums out of an index's manifest, as older versions wrote it."""
    contents = json.loads((folder / "manifest.json").read_text())["contents"]
    change(folder, contents=contents | {"bytes": {}, "sha256": {}})
    return folder


@pytest.fixture
def on_disk(monkeypatch):
    """Too little memory for any merged index, and for more than 500 vectors of one."""
    monkeypatch.setattr("denserk.index.faiss_build.check_memory", lambda *_: None)
    monkeypatch.setattr(memory, "available_bytes", lambda: 100)
    monkeypatch.setattr(faiss_build, "LEAST_SPILL", 3_000)
    monkeypatch.setattr(faiss_build, "ADD_ROWS", 250)


@pytest.fixture
def spilling(on_disk, monkeypatch):
    """Lists go to files, and fit in memory in the end."""
    monkeypatch.setattr(memory, "available_bytes", lambda: None)


@pytest.mark.parametrize("metric", Metric)
@pytest.mark.parametrize("factory", LISTS)
@pytest.mark.parametrize("memory", ["spilling", "on_disk"])
def test_an_index_larger_than_memory_finds_what_one_in_memory_finds(
    tmp_path, request, factory, metric, memory
):
    given = {"factory": factory, "metric": metric, "threads": 1}
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
        built(tmp_path / name / "index", VECTORS, **given)
        request.getfixturevalue(memory)
    expected = hits(tmp_path / "whole", nprobe=4)
    assert hits(tmp_path / "parts", nprobe=4) == expected
    files = ["index", "index.ivfdata"] if memory == "on_disk" else ["index"]
    assert sorted(item.name for item in (tmp_path / "parts").iterdir()) == files
    (tmp_path / "parts").rename(tmp_path / "moved")
    assert hits(tmp_path / "moved", nprobe=4) == expected
    _moved = FaissIndex(tmp_path / "moved" / "index", SearchSettings())
    assert str(tmp_path / "moved" / files[-1]) in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize(
    ("size", "metric", "memory"),
    [(1, Metric.L2, None), (2, Metric.INNER, None), (1, Metric.INNER, "on_disk")],
)
def test_a_merged_index_finds_what_one_build_finds(tmp_path, request, metric, size, memory):
    parts = write_parts(tmp_path, "IVF9,PQ4x4", size, metric)
    shards = tmp_path / "shards" / "*"
    index(tmp_path / "one", shards, settings=IndexSettings(threads=1), trained_as=str(parts[0]))
    if memory:
        request.getfixturevalue(memory)
    merged = index(tmp_path / "merged", tmp_path / "parts" / "*", settings=IndexSettings(threads=1))
    assert hits(tmp_path / "merged") == hits(tmp_path / "one")
    flags = faiss.IO_FLAG_ONDISK_SAME_DIR if memory else 0  # what other tools need
    assert faiss.read_index(str(tmp_path / "merged/index"), flags).ntotal == COUNT
    assert bytes_of(tmp_path / "merged", "docid") == bytes_of(tmp_path / "one", "docid")
    assert merged.count == COUNT // size
    found, expected = (read_manifest(tmp_path / n, Kind.INDEX) for n in ("merged", "one"))
    same = ("count", "dimension", "vectors_per_passage", "factory")
    assert [found.contents[n] for n in same] == [expected.contents[n] for n in same]
    assert ("index.ivfdata" in found.contents["sha256"]) == (memory == "on_disk")
    assert found.settings == {**expected.settings, "metric": metric}
    assert found.made_from["vectors"] == expected.made_from["vectors"]
    assert found.made_from["model"] == MODEL
    assert [part["name"] for part in found.made_from["indexes"]] == [str(part) for part in parts]
    # a folder with a second file is denserk's own, and can be replaced
    index(tmp_path / "merged", tmp_path / "parts" / "*", overwrite=True)


@pytest.mark.parametrize("factory", [*LISTS, *OTHERS])
def test_a_template_gives_the_bytes_of_its_index_again(tmp_path, factory):
    assert (mergeable_ivf(faiss.index_factory(8, factory)) is not None) == (factory in LISTS)
    shards = write_shards(tmp_path)
    index(tmp_path / "first", shards[0], factory=factory)
    index(tmp_path / "other", shards[2], trained_as=str(tmp_path / "first"))
    index(tmp_path / "again", shards[0], trained_as=str(tmp_path / "other"))
    names = ("first", "other", "again")
    first, other, again = (bytes_of(tmp_path / name, "index", "docid") for name in names)
    assert other != first == again
    template = read_template(str(tmp_path / "first"))
    assert template.sha256 == read_template(str(tmp_path / "other")).sha256
    manifest = read_manifest(tmp_path / "other", Kind.INDEX)
    expected = {"name": str(tmp_path / "first"), "sha256": template.sha256}
    assert manifest.made_from["trained_as"] == expected
    assert manifest.contents["factory"] == factory


def test_templates_options_and_vectors_that_do_not_fit(tmp_path):
    write_parts(tmp_path)
    index(tmp_path / "graph", tmp_path / "shards/0", factory="HNSW4,Flat")
    vector_folder(tmp_path / "narrow", ["a"], VECTORS[:1, :4])
    for source, template, given, message in (
        ("shards/1", "parts/0", {"factory": "IVF8,SQ8"}, "IVF8,SQ8: .* was trained as IVF9,SQ8"),
        ("shards/1", "parts/0", {"metric": Metric.L2}, "--metric l2: .* with metric inner"),
        ("shards/1", "parts/0", {"engine": Engine.TORCH}, "--engine torch supports"),
        ("narrow", "parts/0", {}, "of 8 dimensions, and the input has 4"),
        ("parts/0", "parts/0", {}, r"--trained-as .*parts/0 is for vectors"),
        ("shards/1", "graph", {}, "graph is HNSW4,Flat, which has no training"),
        ("shards/1", "shards/0", {}, "is a folder of vectors, not an index"),
    ):
        settings, trained_as = IndexSettings(**given), str(tmp_path / template)
        with pytest.raises(DenserkError, match=message):
            index(tmp_path / "i", tmp_path / source, settings=settings, trained_as=trained_as)
        if given:
            with pytest.raises(DenserkError, match=message):
                index(tmp_path / "i", tmp_path / "parts/*", settings=settings)
    assert not (tmp_path / "i").exists()


def test_lists_that_are_cut_short_or_missing_or_do_not_fit(tmp_path, on_disk, monkeypatch):
    built(tmp_path / "index", VECTORS, factory="IVF9,PQ4x4")
    lists = tmp_path / "index.ivfdata"
    lists.write_bytes(lists.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"index\.ivfdata has [1-9]"):
        hits(tmp_path)
    lists.unlink()
    with pytest.raises(InputError, match=r"could not open index\.ivfdata"):
        hits(tmp_path)
    (tmp_path / "index").unlink()
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(OutputError, match=r"index\.ivfdata cannot be written: .* free"):
        built(tmp_path / "index", VECTORS, factory="IVF9,PQ4x4")
    assert not list(tmp_path.iterdir())


def test_what_a_killed_build_left_goes_when_the_command_runs_again(tmp_path, on_disk, monkeypatch):
    shard = write_shards(tmp_path)[2]
    index(tmp_path / "whole", shard, factory="IVF9,PQ4x4")
    with monkeypatch.context() as patch, stopped_at(1, [(faiss_build, "write_index")]):
        # a killed process removes nothing
        patch.setattr(Path, "unlink", lambda *_, **__: None)
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(Stopped):
            index(tmp_path / "killed", shard, factory="IVF9,PQ4x4")
    assert list(tmp_path.glob(".killed.*.part/.*.part"))
    assert not (tmp_path / "killed").exists()
    command = ["index", "--input", str(shard), "--factory", "IVF9,PQ4x4", "--threads", "1"]
    assert run([*command, "--output", str(tmp_path / "killed"), "--quiet"]) == 0
    assert not list(tmp_path.glob(".*"))
    assert hits(tmp_path / "killed") == hits(tmp_path / "whole")
    assert set(contents(tmp_path / "killed")) == set(contents(tmp_path / "whole"))


def test_parts_that_cannot_be_merged(tmp_path):
    write_parts(tmp_path)
    for name, factory in (("apart", "IVF9,SQ8"), ("flat", None), ("codes", "PQ4x4")):
        index(tmp_path / name, tmp_path / "shards/2", factory=factory)
    for names, message in (
        (["parts/*", "apart"], "have different training"),
        (["parts/*", "flat"], "flat is flat"),
        (["parts/*", "shards/0"], "is a folder of vectors"),
        (["codes"], "codes is PQ4x4, which cannot be merged"),
    ):
        with pytest.raises(DenserkError, match=message):
            index(tmp_path / "whole", *(tmp_path / name for name in names))
    second = forget_checks(tmp_path / "parts/1")
    change(second, made_from={"model": {"fingerprint": "2"}})
    with pytest.raises(MismatchError, match="other weights: m and"):
        index(tmp_path / "whole", tmp_path / "parts/*")
    (second / "docid").write_text("d0\n")
    with pytest.raises(InputError, match="parts/1/docid: found 1 ids; expected 10 ids"):
        open_parts([str(second)])


@pytest.mark.parametrize("size", [1, 2])
def test_flat_indexes_are_vectors(tmp_path, size):
    shards = write_shards(tmp_path, size)
    for number, shard in enumerate(shards):
        index(tmp_path / "flat" / str(number), shard)
    index(tmp_path / "merged", tmp_path / "flat" / "*")
    index(tmp_path / "one", *shards)
    merged, one = (read_manifest(tmp_path / n, Kind.INDEX) for n in ("merged", "one"))
    assert merged.contents == one.contents  # with the checksums of index and docid
    assert merged.made_from["model"] == one.made_from["model"]
