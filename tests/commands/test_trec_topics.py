"""Commands take TREC topics, and the fields that make their queries."""

import gzip
import json
from pathlib import Path

import pytest

import denserk
from denserk.commands.app import run
from denserk.io.manifest import Kind, read_manifest

TOPICS = """<topics>
<topic number="101"><title>moon</title><description>a river boat</description></topic>
<topic number="102"><title>boat</title><description>the moon rises</description></topic>
</topics>
"""
PASSAGES = {"d1": "the moon rises", "d2": "a boat on a river", "d3": "bread"}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("corpus.json").write_text(json.dumps(PASSAGES))
    Path("topics.xml.gz").write_bytes(gzip.compress(TOPICS.encode()))
    command = "index --type bm25 --corpus corpus.json --output bm25 --quiet"
    assert run(command.split()) == 0
    return tmp_path


def search(*options):
    command = "search --index bm25 --topics topics.xml.gz --overwrite --output run.trec"
    assert run([*command.split(), *options]) == 0
    return {qid: list(hits) for qid, hits in denserk.Run.load("run.trec").items()}


def test_search_takes_the_title_or_named_fields():
    assert search() == {"101": ["d1"], "102": ["d2"]}
    assert search("--set", "topics-field=description") == {"101": ["d2"], "102": ["d1"]}
    assert read_manifest("run.trec", Kind.RUN).made_from["topics"]["fields"] == ["description"]
    assert run(["reproduce", "run.trec"]) == 0
    docids_by_query = search("--set", "topics-field=title,description")
    topics = {qid: set(docids) for qid, docids in docids_by_query.items()}
    assert topics == {"101": {"d1", "d2"}, "102": {"d1", "d2"}}


def test_python_takes_the_fields():
    denserk.convert("topics.xml.gz", "queries.tsv", topics_field="description")
    assert Path("queries.tsv").read_text() == "101\ta river boat\n102\tthe moon rises\n"
    assert list(denserk.BM25.open("bm25").search("topics.xml.gz")["102"]) == ["d2"]


def test_a_field_that_is_not_there_is_named(capsys):
    command = "convert topics.xml.gz queries.tsv --set topics-field=narrative"
    assert run(command.split()) == 1
    message = "no field narrative in query 101 (there: text, description)"
    assert message in capsys.readouterr().err
