import gzip

import pytest

from denserk.errors import DenserkError, InputError, UsageError
from denserk.formats import suite_sources
from denserk.formats.suite_sources import find_parts, where_it_goes
from denserk.settings.suites import benchmarks, find_suites

DEV = benchmarks()["msmarco-dev"]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DENSERK_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(suite_sources, "installed", lambda module: True)
    return tmp_path


def put(cache, path, text=""):
    (cache / path).parent.mkdir(parents=True, exist_ok=True)
    (cache / path).write_text(text)
    return str(cache / path)


def test_a_local_copy_goes_before_the_name(cache):
    names = find_parts([DEV])["msmarco-dev"]
    assert names == {
        "corpus": "irds:msmarco-passage",
        "topics": "irds:msmarco-passage/dev/small",
        "qrels": "irds:msmarco-passage/dev/small",
    }
    local = put(cache, "msmarco/qrels.dev.small.tsv")
    assert find_parts([DEV], ["qrels"]) == {"msmarco-dev": {"qrels": local}}


def test_a_compressed_copy_is_found(cache):
    (cache / "msmarco").mkdir()
    with gzip.open(cache / "msmarco" / "collection.tsv.gz", "wb"):
        pass
    found = find_parts([DEV], ["corpus"])["msmarco-dev"]["corpus"]
    assert found == str(cache / "msmarco" / "collection.tsv.gz")


def test_dprs_files_are_found_under_either_name(cache):
    corpus = put(cache, "dpr/psgs_w100.tsv")
    questions = put(cache, "dpr/nq-test.csv")
    assert find_parts([benchmarks()["nq-test"]]) == {
        "nq-test": {"corpus": corpus, "topics": questions, "answers": questions}
    }


@pytest.mark.parametrize("folder", ["beir/robust04", "datasets/robust04"])
def test_a_beir_folder_is_found_where_beirs_reader_looks(cache, folder):
    (cache / folder).mkdir(parents=True)
    found = find_parts([benchmarks()["beir/robust04"]])["beir/robust04"]
    assert found["qrels"] == "beir:robust04/test"


def test_what_nobody_fetches_is_told_all_at_once(cache):
    with pytest.raises(UsageError) as refused:
        find_parts(find_suites(["beir", "squad-test", "dl20-titled"]))
    sets = ("beir/bioasq", "beir/signal1m", "beir/trec-news", "beir/robust04")
    places = (*sets, "dpr/squad1-test.qa.csv", "msmarco-titled/corpus.tsv")
    assert refused.value.message == "not on this disk: " + ", ".join(
        f"{cache / place} ({whose})"
        for place, whose in zip(
            places,
            (
                *(f"corpus, topics and qrels of {place}" for place in sets),
                "topics and answers of squad-test",
                "corpus of dl20-titled",
            ),
            strict=True,
        )
    )
    assert refused.value.hint == "put them there"


def test_a_package_that_would_fetch_is_told(cache, monkeypatch):
    monkeypatch.setattr(suite_sources, "installed", lambda module: False)
    with pytest.raises(UsageError, match=r"corpus\.|collection\.tsv") as refused:
        find_parts([DEV, benchmarks()["beir/scifact"]])
    assert "pip install 'denserk[benchmarks]'" in (refused.value.hint or "")


def test_only_what_could_not_be_fetched_is_told_with_its_place(cache):
    source = "irds:msmarco-passage/dev/small"
    broken = InputError("msmarco-passage/dev/small", None, "an id with a space", "one without")
    with pytest.raises(InputError), where_it_goes(DEV, "qrels", source):
        raise broken
    with pytest.raises(InputError), where_it_goes(DEV, "qrels", source):
        raise InputError("run.trec", 3, "5 columns", "6 columns") from OSError()
    with (
        pytest.raises(DenserkError, match=r"qrels of msmarco-dev: not at .*qrels\.dev\.small\.tsv"),
        where_it_goes(DEV, "qrels", source),
    ):
        raise broken from ConnectionError()
