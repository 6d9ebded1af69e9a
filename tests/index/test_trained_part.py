import pytest

from denserk.errors import DenserkError, InputError, MismatchError, UsageError
from denserk.formats.manifest import Kind, read_manifest
from denserk.index.trained_part import read_trained
from denserk.settings.retrieval import Engine, IndexSettings, IndexType, Metric
from tests.index.merging import VECTORS, forget_checks, index, settings_for, write_shards
from tests.index.test_vector_inputs import vector_folder
from tests.reporters import Heard

pytest.importorskip("faiss")
LISTS = ["IVF9,Flat", "IVF9,PQ4x4", "PCA4,IVF9_HNSW4,SQ8"]
OTHERS = ["PQ4x4", "SQ8", "HNSW4_PQ4x4", "IVF9,PQ4x4fs", "IVF9,SQ8,RFlat", "IVF9(IVF3,Flat),Flat"]


@pytest.mark.parametrize("factory", [*LISTS, *OTHERS])
def test_what_was_trained_gives_the_bytes_of_its_index_again(tmp_path, factory):
    shards = write_shards(tmp_path)
    index(tmp_path / "first", (shards[0],), settings_for(factory))
    index(tmp_path / "other", (shards[2],), trained_as=str(tmp_path / "first"))
    index(tmp_path / "again", (shards[0],), trained_as=str(tmp_path / "other"))
    for name in ("index", "docid"):
        again = (tmp_path / "again" / name).read_bytes()
        assert again == (tmp_path / "first" / name).read_bytes()
        assert again != (tmp_path / "other" / name).read_bytes()


@pytest.mark.parametrize("factory", LISTS)
def test_equal_training_has_an_equal_digest(tmp_path, factory):
    shards = write_shards(tmp_path)
    index(tmp_path / "one", (shards[0],), settings_for(factory))
    index(tmp_path / "two", (shards[2],), settings_for(factory))
    index(tmp_path / "three", (shards[2],), trained_as=str(tmp_path / "one"))
    one, two, three = (read_trained(str(tmp_path / n)) for n in ("one", "two", "three"))
    assert one.digest() == three.digest() != two.digest()
    assert (one.index.ntotal, one.dimension, one.factory) == (0, 8, factory)


def test_what_is_told_and_kept(tmp_path):
    shards = write_shards(tmp_path)
    kind = settings_for(type=IndexType.IVF, nlist=9)
    index(tmp_path / "first", (shards[0],), kind)
    reporter = Heard()
    first = str(tmp_path / "first")
    result = index(tmp_path / "other", (shards[2],), settings_for(), trained_as=first)
    assert result.recall is not None
    assert any(note.endswith("to fill from") for note in reporter.notes)
    assert not any("training" in note for note in reporter.notes)
    manifest = read_manifest(tmp_path / "other", Kind.INDEX)
    digest = read_trained(first).digest()
    assert manifest.made_from["trained_as"] == {"name": first, "sha256": digest}
    assert (manifest.settings["type"], manifest.settings["nlist"]) == ("ivf", 9)
    assert manifest.contents["factory"] == "IVF9,Flat"
    index(tmp_path / "third", (shards[1],), kind, trained_as=str(tmp_path / "other"))
    named = settings_for("IVF9,Flat")
    index(tmp_path / "fourth", (shards[1],), named, trained_as=str(tmp_path / "other"))
    third, fourth = (tmp_path / name / "index" for name in ("third", "fourth"))
    assert third.read_bytes() == fourth.read_bytes()


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"factory": "IVF8,SQ8"}, UsageError, "--factory IVF8,SQ8: .* was trained as IVF9,SQ8"),
        ({"type": IndexType.PQ}, UsageError, "--type pq: "),
        ({"nlist": 8}, UsageError, "--nlist 8: "),
        ({"train_size": 70}, UsageError, "--train-size 70: "),
        ({"metric": Metric.L2}, MismatchError, "compares by inner, and --metric is l2"),
        ({"engine": Engine.TORCH}, UsageError, "builds --type flat, not IVF9,SQ8"),
    ],
)
def test_another_kind_is_refused(tmp_path, given, error, message):
    shards = write_shards(tmp_path)
    index(tmp_path / "first", (shards[0],), settings_for("IVF9,SQ8"))
    with pytest.raises(error, match=message):
        index(
            tmp_path / "other",
            (shards[1],),
            IndexSettings(**given),
            trained_as=str(tmp_path / "first"),
        )
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("factory", "kind"), [(None, "flat"), ("HNSW4,Flat", "HNSW4,Flat"), ("SQfp16", "SQfp16")]
)
def test_kinds_that_need_no_training_are_refused(tmp_path, factory, kind):
    shards = write_shards(tmp_path)
    index(tmp_path / "first", (shards[0],), settings_for(factory))
    with pytest.raises(UsageError, match=f"first is {kind}, which needs no training"):
        index(tmp_path / "other", (shards[1],), trained_as=str(tmp_path / "first"))


def test_other_vectors_are_refused(tmp_path):
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
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("name", ["absent", "shards/0"])
def test_what_is_no_index_is_refused(tmp_path, name):
    shards = write_shards(tmp_path)
    with pytest.raises(DenserkError, match=r"no such file|holds vectors, not index"):
        index(tmp_path / "i", (shards[0],), trained_as=str(tmp_path / name))


@pytest.mark.parametrize("left", [0.3, 0.9])
def test_a_file_that_is_cut_short_is_refused(tmp_path, left):
    shards = write_shards(tmp_path)
    index(tmp_path / "first", (shards[0],), settings_for("IVF9,SQ8"))
    path = tmp_path / "first" / "index"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(left * len(whole))])
    with pytest.raises(InputError, match="index: found"):
        read_trained(str(tmp_path / "first"))
    forget_checks(tmp_path / "first")
    path.write_bytes(whole[: int(left * len(whole))])
    with pytest.raises(InputError, match="index: found"):
        read_trained(str(tmp_path / "first"))
    path.write_bytes(whole + b"more")
    with pytest.raises(InputError, match="not all among them"):
        read_trained(str(tmp_path / "first"))
