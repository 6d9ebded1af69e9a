import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from denserk.config.benchmarks import benchmarks, find_benchmarks
from denserk.errors import DenserkError, InputError, MissingExtraError, UsageError
from denserk.io import data_sets
from denserk.io.data_sets import find_parts
from denserk.records import Passage, Query
from tests.reporters import Heard

NAME = "denserk-toy/test"


@pytest.fixture
def toy_irds(toy, tmp_path, monkeypatch):
    """The toy collection as a data set of ir_datasets."""
    package = pytest.importorskip("ir_datasets")
    corpus = tmp_path / "corpus.tsv"
    corpus.write_text("d1\tthe old river\nd3\tthe cat sleeps\n")
    dataset = package.create_dataset(str(corpus), str(toy / "queries.tsv"), str(toy / "qrels.txt"))
    monkeypatch.setitem(package.registry._registered, NAME, dataset)
    return package


class Record(SimpleNamespace):
    def _asdict(self):
        return dict(self.__dict__)

    def default_text(self):
        return "all of it"


def test_fields_of_a_record_find_their_places(monkeypatch):
    docs = [
        Record(doc_id="1", title="h", abstract="a", year=1999, links=["x"]),
        Record(doc_id="2", marked_up="m"),
    ]
    queries = [Record(query_id="q", text="t", answers=("a",)), Record(query_id="r", lang="en")]
    dataset = SimpleNamespace(docs_iter=lambda: docs, queries_iter=lambda: queries)
    monkeypatch.setattr(data_sets, "load_irds", lambda name, what: dataset)
    assert list(data_sets.irds_passages("x")) == [
        Passage("1", "a", "h", {"year": 1999}),
        Passage("2", "all of it", "", {"marked_up": "m"}),
    ]
    assert list(data_sets.irds_queries("x")) == [
        Query("q", "t", ("a",)),
        Query("r", "all of it", (), {"lang": "en"}),
    ]


@pytest.mark.usefixtures("toy_irds")
def test_unknown_and_broken_data_sets_are_reported(tmp_path):
    with pytest.raises(UsageError, match=r"irds:no/such: ir_datasets has no dataset of that id"):
        list(data_sets.irds_passages("no/such"))
    assert not data_sets.knows_irds("no/such")
    with pytest.raises(UsageError, match=r"irds:beir/scifact has no qrels"):
        list(data_sets.irds_qrels("beir/scifact"))
    (tmp_path / "corpus.tsv").unlink()
    with pytest.raises(InputError, match=r"denserk-toy/test: found a dataset that cannot be read"):
        list(data_sets.irds_passages(NAME))


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working folder, with a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DENSERK_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.parametrize("place", ["cache/beir/toy", "datasets/toy"])
def test_a_beir_folder_is_found(here, place):
    (here / place).mkdir(parents=True)
    notes = Heard()
    assert data_sets.beir_folder("toy").resolve() == here / place
    assert notes.notes[0].startswith("beir:toy: ")


@pytest.mark.parametrize("parts", ["toy", "toy/android"])
def test_a_beir_archive_is_fetched_into_the_cache(here, monkeypatch, parts):
    def download_and_unzip(url, folder):
        assert url.endswith("/toy.zip")
        (Path(folder) / parts).mkdir(parents=True)
        (Path(folder) / "toy.zip").write_text("")

    util = SimpleNamespace(download_and_unzip=download_and_unzip)
    monkeypatch.setattr(data_sets, "require", lambda module, purpose: util)
    assert data_sets.beir_folder(parts) == here / "cache" / "beir" / parts
    assert [path.name for path in (here / "cache" / "beir").iterdir()] == ["toy"]


@pytest.mark.parametrize("name", ["../secret", "a/../../secret", "..", "a\\b", ""])
def test_a_name_of_beir_leads_nowhere_else(here, name):
    (here / "cache" / "secret").mkdir(parents=True)
    (here / "secret").mkdir()
    with pytest.raises(UsageError, match="is no name of a dataset"):
        data_sets.beir_folder(name)


@pytest.mark.parametrize(
    ("name", "told"),
    [("toy", "beir:toy cannot be fetched: no route"), ("cake", "cake holds no such dataset")],
)
def test_a_beir_archive_that_cannot_be_fetched(here, monkeypatch, name, told):
    def download_and_unzip(url, folder):
        (Path(folder) / "half").mkdir()
        if "toy" in url:
            raise ConnectionError("no\nroute")

    util = SimpleNamespace(download_and_unzip=download_and_unzip)
    monkeypatch.setattr(data_sets, "require", lambda module, purpose: util)
    notes = Heard()
    with pytest.raises(DenserkError, match=told) as failure:
        data_sets.beir_folder(name)
    assert failure.value.exit_status == 1
    assert notes.notes == [f"beir:{name}: fetching into {here}/cache/beir"]
    assert not list((here / "cache" / "beir").iterdir())
    assert f"so that {here}/cache/beir/{name} holds corpus.jsonl" in str(failure.value.hint)


def test_packages_that_are_missing(here, monkeypatch):
    for package in ("ir_datasets", "beir.util"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError) as refusal:
        list(data_sets.irds_passages("msmarco-passage"))
    assert refusal.value.hint == "pip install ir_datasets"
    with pytest.raises(MissingExtraError, match=f"not in {here}/cache/beir/toy .* package beir"):
        data_sets.beir_folder("toy")


DEV = benchmarks()["msmarco-dev"]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DENSERK_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(data_sets, "installed", lambda module: True)
    return tmp_path


def test_a_local_copy_goes_before_the_name(cache):
    names = find_parts([DEV])["msmarco-dev"]
    assert names == {
        "corpus": "irds:msmarco-passage",
        "topics": "irds:msmarco-passage/dev/small",
        "qrels": "irds:msmarco-passage/dev/small",
    }
    local = cache / "msmarco" / "qrels.dev.small.tsv.gz"
    local.parent.mkdir()
    local.touch()
    assert find_parts([DEV], ["qrels"]) == {"msmarco-dev": {"qrels": str(local)}}


def test_what_nobody_fetches_is_listed_all_at_once(cache, monkeypatch):
    with pytest.raises(UsageError) as refused:
        find_parts(find_benchmarks(["beir/robust04", "squad-test", "dl20-titled"]))
    robust = "corpus of beir/robust04, topics of beir/robust04, qrels of beir/robust04"
    assert refused.value.message == (
        f"not on this disk: {cache}/beir/robust04 ({robust}), {cache}/dpr/squad1-test.qa.csv "
        f"(topics of squad-test, answers of squad-test), {cache}/msmarco-titled/corpus.tsv "
        "(corpus of dl20-titled)"
    )
    assert refused.value.hint == "put them there"
    monkeypatch.setattr(data_sets, "installed", lambda module: False)
    with pytest.raises(UsageError, match=r"collection\.tsv .corpus of msmarco-dev") as refused:
        find_parts([DEV])
    assert "pip install ir_datasets beir" in (refused.value.hint or "")
