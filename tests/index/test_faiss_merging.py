"""Indexes that outgrow memory, templates, and index folders that are merged."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from denserk.commands.app import run
from denserk.config.retrieval import Engine, IndexSettings, Metric, SearchSettings
from denserk.errors import DenserkError, InputError, MismatchError, OutputError
from denserk.index import faiss_build, memory
from denserk.index.faiss_index import FaissIndex
from denserk.index.faiss_library import mergeable_ivf
from denserk.index.faiss_templates import open_folders, read_template
from denserk.io.manifest import Kind, read_manifest
from tests.index.test_faiss import build_file
from tests.support.faults import Stopped, contents, stopped_at
from tests.support.index_folders import MODEL, bytes_of, index, vector_folder

faiss = pytest.importorskip("faiss")
COUNT = 1200
VECTORS = np.random.default_rng(11).normal(size=(COUNT, 8)).astype(np.float32)
QUERIES = np.random.default_rng(4).normal(size=(20, 8)).astype(np.float32)
# the rows of each shard; the second has less of them than a block of BLAS
SHARDS = [slice(0, 500), slice(500, 510), slice(510, COUNT)]
MERGEABLE = ["IVF9,Flat", "IVF9,PQ4x4", "PCA4,IVF9_HNSW4,SQ8", "PCA4,IVF9,PQ2x4np"]
NOT_MERGEABLE = ["HNSW4_PQ4x4", "PQ4x4", "IVF9,PQ4x4fs", "IVF9,SQ8,RFlat", "IVF9(IVF3,Flat),Flat"]


def hits(folder, **options):
    """Scores and rows of the 50 best vectors of each query."""
    searched_index = FaissIndex(Path(folder) / "index", SearchSettings(**options))
    scores, rows = searched_index.search(QUERIES, 50)
    return scores.tolist(), rows.tolist()


def write_shards(folder, size=1):
    """VECTORS as three folders shards/0..2, `size` vectors a passage."""
    folders = []
    for number, rows in enumerate(SHARDS):
        path = folder / "shards" / str(number)
        ids = [f"d{n}" for n in range(rows.start // size, rows.stop // size)]
        folders.append(vector_folder(path, ids, VECTORS[rows], size=size, block=COUNT))
    return folders


def write_parts(folder, factory="IVF9,SQ8", size=1, metric=Metric.INNER):
    """Indexes of the shards, parts/0..2: the first is trained, the others as the first."""
    parts = [folder / "parts" / str(number) for number in range(3)]
    template, *filled = parts
    shard, *further_shards = write_shards(folder, size)
    index(template, shard, settings=IndexSettings(factory=factory, metric=metric, threads=1))
    for part, shard in zip(filled, further_shards, strict=True):
        settings = IndexSettings(metric=metric, threads=1)
        index(part, shard, settings=settings, trained_as=str(template))
    return parts


def change_manifest(folder, **fields):
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, **fields}))


def forget_checksums(folder):
    """Take sizes and checksums out of an index's manifest, as older versions wrote it."""
    manifest = json.loads((folder / "manifest.json").read_text())
    change_manifest(folder, contents={**manifest["contents"], "bytes": {}, "sha256": {}})


@pytest.fixture
def on_disk(monkeypatch):
    """Too little memory for any merged index, and for more than 500 vectors of one."""
    monkeypatch.setattr(faiss_build, "check_memory", lambda *_: None)
    monkeypatch.setattr(memory, "available_bytes", lambda: 100)
    monkeypatch.setattr(faiss_build, "LEAST_SPILL", 3_000)
    monkeypatch.setattr(faiss_build, "ADD_ROWS", 250)


@pytest.fixture
def spilling(on_disk, monkeypatch):
    """Lists go to files, and fit in memory in the end."""
    monkeypatch.setattr(memory, "available_bytes", lambda: None)


@pytest.mark.parametrize("metric", Metric)
@pytest.mark.parametrize("factory", MERGEABLE)
@pytest.mark.parametrize(
    ("little_memory", "files"), [("spilling", ["index"]), ("on_disk", ["index", "index.ivfdata"])]
)
def test_an_index_larger_than_memory_finds_what_one_in_memory_finds(
    tmp_path, request, factory, metric, little_memory, files
):
    whole = tmp_path / "whole"
    whole.mkdir()
    build_file(whole / "index", VECTORS, factory=factory, metric=metric, threads=1)
    expected = hits(whole, nprobe=4)
    request.getfixturevalue(little_memory)
    large = tmp_path / "large"
    large.mkdir()
    build_file(large / "index", VECTORS, factory=factory, metric=metric, threads=1)
    assert hits(large, nprobe=4) == expected
    assert sorted(item.name for item in large.iterdir()) == files
    moved = large.rename(tmp_path / "moved")
    assert hits(moved, nprobe=4) == expected
    _mapped = FaissIndex(moved / "index", SearchSettings())
    assert str(moved / files[-1]) in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize(
    ("size", "metric", "little_memory"),
    [(1, Metric.L2, None), (2, Metric.INNER, None), (1, Metric.INNER, "on_disk")],
)
def test_a_merged_index_is_that_of_one_build(tmp_path, request, metric, size, little_memory):
    parts = write_parts(tmp_path, "IVF9,PQ4x4", size, metric)
    shards = tmp_path / "shards" / "*"
    settings = IndexSettings(threads=1)
    index(tmp_path / "built", shards, settings=settings, trained_as=str(parts[0]))
    if little_memory:
        request.getfixturevalue(little_memory)
    result = index(tmp_path / "merged", tmp_path / "parts" / "*", settings=settings)
    assert result.count == COUNT // size
    assert hits(tmp_path / "merged") == hits(tmp_path / "built")
    assert bytes_of(tmp_path / "merged", "docid") == bytes_of(tmp_path / "built", "docid")
    # other tools read it, too
    flags = faiss.IO_FLAG_ONDISK_SAME_DIR if little_memory else 0
    assert faiss.read_index(str(tmp_path / "merged/index"), flags).ntotal == COUNT

    merged = read_manifest(tmp_path / "merged", Kind.INDEX)
    built = read_manifest(tmp_path / "built", Kind.INDEX)
    for field in ("count", "dimension", "vectors_per_passage", "factory"):
        assert merged.contents[field] == built.contents[field]
    assert ("index.ivfdata" in merged.contents["sha256"]) == (little_memory == "on_disk")
    assert merged.settings == {**built.settings, "metric": metric}
    assert merged.made_from["vectors"] == built.made_from["vectors"]
    assert merged.made_from["model"] == MODEL
    assert [part["name"] for part in merged.made_from["indexes"]] == list(map(str, parts))
    # a folder with a second file is denserk's own, and can be replaced
    index(tmp_path / "merged", tmp_path / "parts" / "*", overwrite=True)


@pytest.mark.parametrize("factory", [*MERGEABLE, *NOT_MERGEABLE])
def test_a_template_gives_the_bytes_of_its_index_again(tmp_path, factory):
    shards = write_shards(tmp_path)
    trained = tmp_path / "trained"
    filled = tmp_path / "filled"
    rebuilt = tmp_path / "rebuilt"
    index(trained, shards[0], factory=factory)
    index(filled, shards[2], trained_as=str(trained))
    index(rebuilt, shards[0], trained_as=str(filled))
    assert bytes_of(rebuilt, "index", "docid") == bytes_of(trained, "index", "docid")
    assert bytes_of(filled, "index", "docid") != bytes_of(trained, "index", "docid")
    template = read_template(str(trained))
    assert template.sha256 == read_template(str(filled)).sha256
    manifest = read_manifest(filled, Kind.INDEX)
    assert manifest.made_from["trained_as"] == {"name": str(trained), "sha256": template.sha256}
    assert manifest.contents["factory"] == factory


@pytest.mark.parametrize("factory", [*MERGEABLE, *NOT_MERGEABLE])
def test_inverted_lists_that_hold_everything_can_be_merged(factory):
    empty_index = faiss.index_factory(8, factory)
    can_be_merged = mergeable_ivf(empty_index) is not None
    assert can_be_merged == (factory in MERGEABLE)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Shards and their indexes, an index without training, and vectors of another dimension."""
    folder = tmp_path_factory.mktemp("folders")
    write_parts(folder)
    index(folder / "graph", folder / "shards/0", factory="HNSW4,Flat")
    vector_folder(folder / "narrow", ["a"], VECTORS[:1, :4])
    return folder


@pytest.mark.parametrize(
    ("source", "template", "message"),
    [
        ("narrow", "parts/0", "of 8 dimensions, and the input has 4"),
        ("parts/0", "parts/0", r"--trained-as .*parts/0 is for vectors"),
        ("shards/1", "graph", "graph is HNSW4,Flat, which has no training"),
        ("shards/1", "shards/0", "is a folder of vectors, not an index"),
    ],
)
def test_templates_that_do_not_fit(folders, tmp_path, source, template, message):
    with pytest.raises(DenserkError, match=message):
        index(tmp_path / "i", folders / source, trained_as=str(folders / template))
    assert not (tmp_path / "i").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"factory": "IVF8,SQ8"}, "IVF8,SQ8: .* was trained as IVF9,SQ8"),
        ({"metric": Metric.L2}, "--metric l2: .* with metric inner"),
        ({"engine": Engine.TORCH}, "--engine torch supports"),
    ],
)
def test_options_that_the_training_contradicts(folders, tmp_path, options, message):
    settings = IndexSettings(**options)
    template = str(folders / "parts/0")
    with pytest.raises(DenserkError, match=message):
        index(tmp_path / "i", folders / "shards/1", settings=settings, trained_as=template)
    with pytest.raises(DenserkError, match=message):
        index(tmp_path / "i", folders / "parts/*", settings=settings)
    assert not (tmp_path / "i").exists()


def test_lists_that_are_cut_short_or_missing(tmp_path, on_disk):
    build_file(tmp_path / "index", VECTORS, factory="IVF9,PQ4x4")
    lists = tmp_path / "index.ivfdata"
    lists.write_bytes(lists.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"index\.ivfdata has [1-9]"):
        hits(tmp_path)
    lists.unlink()
    with pytest.raises(InputError, match=r"could not open index\.ivfdata"):
        hits(tmp_path)


def test_lists_that_do_not_fit_on_the_disk(tmp_path, on_disk, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(OutputError, match=r"index\.ivfdata cannot be written: .* free"):
        build_file(tmp_path / "index", VECTORS, factory="IVF9,PQ4x4")
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
    command = ["index", "--input", shard, "--factory", "IVF9,PQ4x4", "--threads", "1"]
    assert run([*command, "--output", str(tmp_path / "killed"), "--quiet"]) == 0
    assert not list(tmp_path.glob(".*"))
    assert hits(tmp_path / "killed") == hits(tmp_path / "whole")
    assert set(contents(tmp_path / "killed")) == set(contents(tmp_path / "whole"))


@pytest.mark.parametrize(
    ("inputs", "factory", "message"),
    [
        (["parts/*", "i"], "IVF9,SQ8", "have different training"),
        (["parts/*", "i"], None, "i is flat"),
        (["i"], "PQ4x4", "i is PQ4x4, which cannot be merged"),
        (["parts/*", "shards/0"], None, "is a folder of vectors"),
    ],
)
def test_indexes_that_cannot_be_merged(tmp_path, inputs, factory, message):
    write_parts(tmp_path)
    index(tmp_path / "i", tmp_path / "shards/2", factory=factory)
    with pytest.raises(DenserkError, match=message):
        index(tmp_path / "merged", *(tmp_path / name for name in inputs))


def test_parts_of_another_model_or_with_other_ids_are_not_merged(tmp_path):
    second = write_parts(tmp_path)[1]
    forget_checksums(second)
    change_manifest(second, made_from={"model": {"fingerprint": "2"}})
    with pytest.raises(MismatchError, match="other weights: m and"):
        index(tmp_path / "merged", tmp_path / "parts/*")
    (second / "docid").write_text("d0\n")
    with pytest.raises(InputError, match="parts/1/docid: found 1 ids; expected 10 ids"):
        open_folders([str(second)])


@pytest.mark.parametrize("size", [1, 2])
def test_flat_indexes_are_merged_as_vectors(tmp_path, size):
    shards = write_shards(tmp_path, size)
    for number, shard in enumerate(shards):
        index(tmp_path / "flat" / str(number), shard)
    index(tmp_path / "merged", tmp_path / "flat" / "*")
    index(tmp_path / "built", *shards)
    merged = read_manifest(tmp_path / "merged", Kind.INDEX)
    built = read_manifest(tmp_path / "built", Kind.INDEX)
    assert merged.contents == built.contents  # with the checksums of index and docid
    assert merged.made_from["model"] == built.made_from["model"]
