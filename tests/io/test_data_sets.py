import json
import os
from pathlib import Path
from types import SimpleNamespace
from zipfile import ZipFile

import pytest

from denserk.config.benchmarks import benchmarks, find_benchmarks
from denserk.config.formats import QrelsFormat, TopicsFormat
from denserk.errors import DenserkError, InputError, UsageError
from denserk.io import data_sets
from denserk.io.corpus import read_passages
from denserk.io.data_sets import find_parts
from denserk.io.qrels import read_qrels, read_qrels_map, write_qrels
from denserk.io.topics import read_queries, read_questions, write_queries
from denserk.records import Passage, Qrel, Query
from tests.support.faults import denserk
from tests.support.toy import PASSAGES, QRELS, QUERIES

NAME = "denserk-toy/test"


@pytest.fixture
def toy_irds(toy, tmp_path, monkeypatch):
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


def test_the_folder_of_downloads_is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.setenv("DENSERK_CACHE", str(tmp_path / "own"))
    assert data_sets.cache_folder() == tmp_path / "own"
    monkeypatch.delenv("DENSERK_CACHE")
    assert data_sets.cache_folder() == tmp_path / "caches" / "denserk"
    monkeypatch.setenv("XDG_CACHE_HOME", "caches")  # the standard: not absolute is ignored
    assert data_sets.cache_folder() == tmp_path / "home" / ".cache" / "denserk"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_sets.cache_folder() == tmp_path / "home" / ".cache" / "denserk"


def test_fields_of_a_record_become_those_of_passages_and_queries(monkeypatch):
    records = {
        "docs": [
            Record(doc_id="1", title="h", abstract="a", year=1999, links=["x"]),
            Record(doc_id="2", marked_up="m"),
        ],
        "queries": [
            Record(query_id="q", text="t", answers=("a",)),
            Record(query_id="r", lang="en"),
        ],
    }
    monkeypatch.setattr(data_sets, "irds_records", lambda name, entity: iter(records[entity]))
    assert list(read_passages("irds:x")) == [
        Passage("1", "a", "h", {"year": 1999}),
        Passage("2", "all of it", "", {"marked_up": "m"}),
    ]
    assert list(read_queries("irds:x")) == [
        Query("q", "t", ("a",)),
        Query("r", "all of it", (), {"lang": "en"}),
    ]


@pytest.mark.usefixtures("toy_irds")
def test_unknown_and_broken_data_sets_are_reported(tmp_path):
    with pytest.raises(UsageError, match=r"irds:no/such: ir_datasets has no dataset of that id"):
        list(data_sets.irds_passages("no/such"))
    assert not data_sets.knows_irds("no/such")
    with pytest.raises(UsageError, match=r"irds:beir/scifact has no qrels"):
        list(data_sets.irds_records("beir/scifact", "qrels"))
    (tmp_path / "corpus.tsv").unlink()
    with pytest.raises(InputError, match=r"denserk-toy/test: found a dataset that cannot be read"):
        list(data_sets.irds_passages(NAME))


@pytest.mark.parametrize("name", ["../secret", "a/../../secret", "..", "a\\b", ""])
def test_a_name_of_beir_leads_nowhere_else(cache, name):
    (cache / "secret").mkdir(parents=True)
    Path("secret").mkdir()
    with pytest.raises(UsageError, match="is no name of a dataset"):
        data_sets.beir_folder(name)


def test_what_needs_no_download_is_on_the_disk(cache):
    Path("queries.tsv").touch()
    Path("datasets/toy").mkdir(parents=True)
    for source in ("queries.tsv", "datasets", "beir:toy", "beir:toy/test"):
        assert data_sets.is_on_disk(source)
    for source in ("corpus.tsv", "beir:other", "beir:..", "irds:toy", "-"):
        assert not data_sets.is_on_disk(source)


class BeirUtil:
    """beir.util without a network: archives with one file, by name."""

    def __init__(self, **folders):
        self.folders = folders

    def download_url(self, url, path):
        name = Path(url).stem
        if name not in self.folders:
            raise ConnectionError("no\nroute")
        with ZipFile(path, "w") as archive:
            archive.writestr(f"{self.folders[name]}/corpus.jsonl", '{"_id": "d1", "text": "t"}\n')

    def unzip(self, path, folder):
        with ZipFile(path) as archive:
            archive.extractall(folder)


def test_a_beir_archive_is_fetched_into_the_cache(cache, monkeypatch):
    util = BeirUtil(cake="half", toy="toy/android")
    monkeypatch.setattr(data_sets, "require", lambda module, purpose: util)
    folder = cache / "beir"
    messages = {
        "none": "beir:none cannot be fetched: no route",
        "cake": "the archive of cake holds no such dataset",
    }
    for name, message in messages.items():
        with pytest.raises(DenserkError, match=message) as failure:
            list(read_passages(f"beir:{name}"))
        assert f"so that {folder / name} holds corpus.jsonl" in str(failure.value.hint)
    assert not list(folder.iterdir())
    assert list(read_passages("beir:toy/android")) == [Passage("d1", "t")]
    assert [path.name for path in folder.iterdir()] == ["toy"]


def test_a_beir_archive_with_another_checksum_is_an_error(cache, monkeypatch):
    util = BeirUtil(scifact="scifact")
    monkeypatch.setattr(data_sets, "require", lambda module, purpose: util)
    listed = "5f7d1de60b170fc8027bb7898e2efca1"  # in BEIR's README
    with pytest.raises(InputError, match=rf"scifact\.zip: found .*expected {listed}") as failure:
        list(read_passages("beir:scifact"))
    assert "corpus.jsonl" in str(failure.value.hint)
    assert not list((cache / "beir").iterdir())


def test_the_checksums_of_beir_are_those_of_ir_datasets():
    package = pytest.importorskip("ir_datasets")
    listed = json.loads((Path(package.__file__).parent / "etc" / "downloads.json").read_text())
    archives = {
        Path(archive["url"]).stem: archive["expected_md5"]
        for archive in listed["beir"].values()
        if archive["url"] == data_sets.BEIR_ARCHIVE.format(name=Path(archive["url"]).stem)
    }
    checksums = data_sets.beir_checksums()
    assert len(archives) == 15
    assert {name: checksums[name] for name in archives} == archives


@pytest.mark.parametrize("home", ["empty", "a file", "absent/folder"])
def test_files_of_a_run_are_evaluated_without_touching_the_home(toy, tmp_path, home):
    (tmp_path / "empty").mkdir()
    (tmp_path / "a file").touch()
    (toy / "run").write_text("q1 Q0 d3 1 2.0 t\n")
    environment = {**os.environ, "HOME": str(tmp_path / home)}
    environment.pop("IR_DATASETS_HOME", None)
    options = {"cwd": tmp_path, "env": environment}
    result = denserk("eval", "toy/run", "toy/qrels.txt", "-m", "RR", **options)
    assert result.returncode == 0, result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a file", "empty", "toy"]
    assert not list((tmp_path / "empty").iterdir())
    if home == "a file":  # ir_datasets makes a folder there
        missing = denserk("eval", "toy/run", "toy/none", **options)
        assert missing.returncode == 2
        assert "toy/none: no such file" in missing.stderr
        by_name = denserk("eval", "toy/run", "irds:beir/scifact/test", **options)
        assert by_name.returncode == 1
        assert "IR_DATASETS_HOME" in by_name.stderr


DEV = benchmarks()["msmarco-dev"]


def test_parts_of_benchmarks_are_found_or_listed_all_at_once(cache, monkeypatch):
    monkeypatch.setattr(data_sets, "installed", lambda module: True)
    assert find_parts([DEV]) == {
        "msmarco-dev": {
            "corpus": "irds:msmarco-passage",
            "topics": "irds:msmarco-passage/dev/small",
            "qrels": "irds:msmarco-passage/dev/small",
        }
    }
    local_qrels = cache / "msmarco" / "qrels.dev.small.tsv.gz"
    local_qrels.parent.mkdir(parents=True)
    local_qrels.touch()
    assert find_parts([DEV], ["qrels"]) == {"msmarco-dev": {"qrels": str(local_qrels)}}
    with pytest.raises(UsageError) as caught:
        find_parts(find_benchmarks(["squad-test", "dl20-titled"]))
    assert caught.value.message == (
        f"not on this disk: {cache}/dpr/squad1-test.qa.csv (topics of squad-test, answers of "
        f"squad-test), {cache}/msmarco-titled/corpus.tsv (corpus of dl20-titled)"
    )
    monkeypatch.setattr(data_sets, "installed", lambda module: False)
    with pytest.raises(UsageError, match=r"collection\.tsv .corpus of msmarco-dev") as caught:
        find_parts([DEV])
    assert "pip install ir_datasets beir" in str(caught.value.hint)


def qrels_of(*qids):
    qrels = []
    for qid in qids:
        qrels += [Qrel(qid, docid, grade) for docid, grade in QRELS[qid].items()]
    return qrels


def test_a_beir_folder_and_its_name(cache, toy):
    folder = Path("datasets/toy").absolute()
    (folder / "qrels").mkdir(parents=True)
    (toy / "corpus.jsonl").rename(folder / "corpus.jsonl")
    queries = [Query(qid, text) for qid, text in QUERIES.items()]
    write_queries(folder / "queries.jsonl.gz", queries, TopicsFormat.BEIR)
    write_qrels(folder / "qrels" / "test.tsv", qrels_of("q1", "q2"), QrelsFormat.BEIR)
    write_qrels(folder / "qrels" / "dev.tsv", qrels_of("q3"), QrelsFormat.BEIR)
    for source in (str(folder), "beir:toy"):
        assert [passage.docid for passage in read_passages(source)] == list(PASSAGES)
        assert {query.qid: query.text for query in read_queries(source)} == QUERIES
        with pytest.raises(UsageError, match=r"several splits .there: test, dev") as caught:
            read_qrels_map(source)
        assert (caught.value.hint or "").endswith("datasets/toy/qrels/test.tsv")
    assert [query.qid for query in read_queries("beir:toy/dev")] == ["q3"]
    assert list(read_qrels("beir:toy/dev")) == [Qrel("q3", "d4", 1)]
    with pytest.raises(UsageError, match=r"no split train .there: test, dev"):
        read_qrels_map("beir:toy/train")
    (folder / "qrels" / "dev.tsv").unlink()
    assert read_qrels_map(folder) == {"q1": QRELS["q1"], "q2": QRELS["q2"]}


@pytest.mark.usefixtures("toy_irds")
@pytest.mark.parametrize("source", [NAME, f"irds:{NAME}"])
def test_a_data_set_by_its_id(source):
    assert len(list(read_passages(source))) == 2
    assert {query.qid: query.text for query in read_queries(source)} == QUERIES
    assert read_qrels_map(source) == QRELS


def test_entity_questions(tmp_path):
    for relation in ("P170", "P17"):
        (tmp_path / f"{relation}.test.json").write_text('[{"question": "who", "answers": ["a"]}]')
    queries = list(read_queries(str(tmp_path)))
    assert queries == [
        Query("P17-0", "who", ("a",), {"relation": "P17"}),
        Query("P170-0", "who", ("a",), {"relation": "P170"}),
    ]
    assert list(read_queries(str(tmp_path / "P17.test.json"))) == queries[:1]
    (tmp_path / "P17.dev.json").write_text('[{"question": "who", "answers": ["a"]}]')
    with pytest.raises(InputError, match=r"found the query id P17-0 twice"):
        list(read_queries(str(tmp_path)))


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (read_passages, "found no passages"),
        (read_queries, "found no queries"),
        (read_qrels, "found no judgments"),
        (read_questions, "found no answers"),
    ],
)
def test_sources_that_hold_nothing(tmp_path, read, message):
    (tmp_path / "f").write_text("\n")
    with pytest.raises(InputError, match=message):
        list(read(str(tmp_path / "f")))
    with pytest.raises(UsageError, match=r"none/f: no such file or folder") as caught:
        list(read("none/f"))
    assert "write irds:none/f, or of the hub, hf:none/f" in str(caught.value.hint)
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=r"holds no|no qrels"):
        list(read(str(tmp_path / "folder")))
