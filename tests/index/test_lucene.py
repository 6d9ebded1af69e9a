"""Java and Lucene: the formula over lengths in one byte, and every tool that opens the folder."""

import json

import numpy as np
import pytest

import denserk
from denserk.commands.app import run as command
from denserk.config.formats import ConversionSettings
from denserk.config.retrieval import (
    Bm25Settings,
    Engine,
    IndexPaths,
    IndexSettings,
    IndexType,
    SearchPaths,
    SearchSettings,
    StopWords,
)
from denserk.errors import InputError, MissingExtraError
from denserk.index import lucene
from denserk.index.lucene import LuceneIndex, build_lucene
from denserk.io.runs import read_run_scores
from denserk.tasks.build_index import build_index
from denserk.tasks.convert import convert
from denserk.tasks.search import search
from tests.index.test_bm25 import TEXTS, scores_of_formula
from tests.support.peers import java_home, run_anserini, run_pyserini
from tests.support.toy import PASSAGES

LUCENE = IndexSettings(type=IndexType.BM25, engine=Engine.LUCENE, threads=1)


def test_the_old_index_stays_where_java_is_missing(toy, monkeypatch):
    monkeypatch.setattr(lucene, "java_version", lambda program: 8)
    (toy / "index").mkdir()
    (toy / "index/old").touch()
    paths = IndexPaths(corpus=str(toy / "corpus.jsonl"), output=str(toy / "index"), overwrite=True)
    with pytest.raises(MissingExtraError, match="Java 21"):
        build_index(paths, LUCENE)
    assert (toy / "index/old").exists()


@pytest.fixture
def with_java(monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(java_home()))


def hits_of(index, *queries):
    """Return (id, score) of the hits of each query."""
    scores, rows = index.search(np.array(queries, dtype=object), 10)
    hits = []
    for query_scores, query_rows in zip(scores, rows, strict=True):
        docids = index.names(query_rows[query_rows >= 0])
        hits.append(list(zip(docids, query_scores.tolist(), strict=False)))
    return hits


@pytest.mark.peer
@pytest.mark.slow
def test_scores_are_those_of_the_formula_over_passages_with_text(tmp_path, with_java):
    settings = Bm25Settings(k1=1.2, b=0.75, stemmer="none", stopwords=StopWords.NONE)
    passages = [(f"d{number}", text) for number, text in enumerate(TEXTS)]
    assert build_lucene(tmp_path, iter(passages), settings, threads=1) == {
        "count": len(TEXTS) - 1,
        "without_text": 1,
    }
    index = LuceneIndex(tmp_path, settings, passages=None, threads=1)
    assert len(index) == len(TEXTS) - 1

    odd_query = 'a "cat" AND (\ud800 *:* ~\n fish'
    hits = hits_of(index, "cat dog", "", "unknown", odd_query)
    assert_hits_of_formula(hits[0], passages, "cat dog")
    assert hits[1] == []
    assert hits[2] == []
    assert_hits_of_formula(hits[3], passages, "a cat and fish")
    with pytest.raises(InputError, match="TooManyClauses"):
        hits_of(index, " ".join(f"word{number}" for number in range(1100)))


def assert_hits_of_formula(hits, passages, query):
    with_text = [(docid, text) for docid, text in passages if text]
    scores = scores_of_formula([text for _, text in with_text], query, k1=1.2, b=0.75)
    expected = {}
    for (docid, _), score in zip(with_text, scores, strict=True):
        if score > 0:
            expected[docid] = score
    order = sorted(expected, key=lambda docid: (-expected[docid], docid))
    assert [docid for docid, _ in hits] == order
    for docid, score in hits:
        assert score == pytest.approx(expected[docid], abs=1e-4)


PYSERINI_SEARCH = """
import json, sys
from pyserini.search.lucene import LuceneSearcher
folder, queries, output = sys.argv[1:]
searcher = LuceneSearcher(folder)
ranked = {
    qid: [(hit.docid, hit.score) for hit in searcher.search(text, k=20)]
    for qid, text in json.loads(queries).items()
}
json.dump(ranked, open(output, "w"))
"""


def run_of(folder, **settings):
    """Search `index` for the topics `queries.tsv` of a folder."""
    index = str(folder / "index")
    topics = str(folder / "queries.tsv")
    output = str(folder / "run.trec")
    search(SearchPaths(index=(index,), topics=topics, output=output), SearchSettings(**settings))
    return read_run_scores(output)


@pytest.mark.peer
@pytest.mark.slow
def test_other_tools_open_the_folder_and_theirs_is_opened(toy, with_java):
    with (toy / "corpus.jsonl").open("a") as out:
        out.write(json.dumps({"_id": "d11", "text": PASSAGES["d2"][1], "title": "Bank"}) + "\n")
        out.write(json.dumps({"_id": "q4", "text": "bank of money", "title": ""}) + "\n")
        out.write(json.dumps({"_id": "none", "text": "", "title": ""}) + "\n")
    (toy / "queries.tsv").write_text("q4\tmoney bank\nq1\tcat in the house\nq5\tof the\n")
    index = toy / "index"
    result = build_index(IndexPaths(corpus=str(toy / "corpus.jsonl"), output=str(index)), LUCENE)
    assert result.count == len(PASSAGES) + 2

    run = run_of(toy, hits=20)
    assert list(run) == ["q4", "q1"]
    assert sorted(run["q4"]) == ["d11", "d2", "q4"]
    without_query = run_of(toy, hits=3, remove_query=True)
    assert list(without_query["q4"]) == ["d11", "d2"]

    queries = {"q4": "money bank", "q1": "cat in the house"}
    run_pyserini(PYSERINI_SEARCH, index, json.dumps(queries), toy / "pyserini.json", folder=toy)
    run_of_pyserini = json.loads((toy / "pyserini.json").read_text())
    for qid, hits in run.items():
        docids, scores = zip(*run_of_pyserini[qid], strict=True)
        assert list(hits) == list(docids)
        assert list(hits.values()) == pytest.approx(scores, abs=2e-6)

    (index / "manifest.json").unlink()
    assert run_of(toy, hits=20) == run
    next(index.glob("*.doc")).unlink()
    with pytest.raises(InputError, match="an index and queries for Lucene"):
        run_of(toy)


@pytest.mark.peer
@pytest.mark.slow
def test_an_index_of_anserini_is_searched_as_by_anserini(toy, with_java):
    (toy / "texts").mkdir()
    source = str(toy / "corpus.jsonl")
    target = str(toy / "texts/corpus.jsonl")
    convert(source, target, ConversionSettings(to_format="anserini"))
    run_anserini(
        *("index.IndexCollection", "-collection", "JsonCollection", "-input", toy / "texts"),
        *("-index", toy / "index", "-threads", "1", "-optimize"),
        folder=toy,
    )
    run_anserini(
        *("search.SearchCollection", "-index", toy / "index", "-topics", toy / "queries.tsv"),
        *("-topicReader", "TsvString", "-output", toy / "anserini.trec", "-bm25", "-hits", "1000"),
        folder=toy,
    )
    run = run_of(toy)
    run_of_anserini = read_run_scores(toy / "anserini.trec")
    assert run.keys() == run_of_anserini.keys()
    for qid, hits in run.items():
        assert list(hits) == list(run_of_anserini[qid])


PYSERINI_COMMAND = """
import runpy, sys
sys.argv = ["search", *sys.argv[1:]]
runpy.run_module("pyserini.search.lucene", run_name="__main__")
"""


@pytest.fixture
def tied_collection(tmp_path):
    """2,400 passages, of which a third repeat another; the queries are passages, short and long."""
    random = np.random.default_rng(5)
    words = [f"word{number}" for number in range(300)]
    weights = 1 / np.arange(1, 301)

    def text(length):
        return " ".join(random.choice(words, length, p=weights / weights.sum()))

    texts = [text(random.integers(3, 40)) for _ in range(1600)]
    # their scores are above 32, which float32 cannot lower by 1e-6
    long_texts = [text(220) for _ in range(8)]
    texts += random.choice(texts, 780).tolist()
    texts += long_texts + long_texts + long_texts[:4]
    order = random.permutation(len(texts)).tolist()
    passages = {f"p{number}": texts[row] for number, row in enumerate(order)}
    with (tmp_path / "corpus.jsonl").open("w") as out:
        for docid, passage in passages.items():
            out.write(json.dumps({"_id": docid, "title": "", "text": passage}) + "\n")
    docids_by_text = {passage: docid for docid, passage in reversed(passages.items())}
    with (tmp_path / "queries.tsv").open("w") as out:
        for docid, passage in list(passages.items())[:30]:
            out.write(f"{docid}\t{passage}\n")
        out.write(f"none\t{long_texts[0]}\n")
        for passage in long_texts[1:]:
            out.write(f"{docids_by_text[passage]}\t{passage}\n")
    return tmp_path


@pytest.fixture
def tied_index(tied_collection, with_java):
    """The folder of an index of Lucene of `tied_collection`."""
    folder = str(tied_collection / "index")
    corpus = str(tied_collection / "corpus.jsonl")
    words = ["index", "--type", "bm25", "--engine", "lucene", "--corpus", corpus]
    assert command([*words, "--output", folder]) == 0
    return folder


def lines_of(path):
    """Return the lines of a run by query, without the tag."""
    lines: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        lines.setdefault(line.split()[0], []).append(line.rpartition(" ")[0])
    return lines


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.parametrize("remove_query", [False, True], ids=["all", "remove-query"])
@pytest.mark.parametrize("hits", [20, 1000])
def test_the_run_is_that_of_pyserini_line_by_line(tied_collection, tied_index, hits, remove_query):
    folder = tied_collection
    topics = str(folder / "queries.tsv")
    options = ["--index", tied_index, "--topics", topics, "--hits", str(hits)]
    if remove_query:
        options.append("--remove-query")
    assert command(["search", *options, "--output", str(folder / "denserk.trec")]) == 0
    run_pyserini(PYSERINI_COMMAND, *options, "--output", folder / "pyserini.trec", folder=folder)
    lines_of_queries = lines_of(folder / "denserk.trec")
    assert lines_of_queries == lines_of(folder / "pyserini.trec")
    assert count_ties(lines_of_queries) > sum(map(len, lines_of_queries.values())) / 50

    run = denserk.Index.open(tied_index).search(topics, hits=hits, remove_query=remove_query)
    for qid, lines in lines_of_queries.items():
        expected = [(line.split()[2], float(line.split()[4])) for line in lines]
        assert list(run[qid].items()) == expected
    run.save(folder / "saved.trec")
    saved_lines = lines_of(folder / "saved.trec")
    assert list(saved_lines) == list(lines_of_queries)
    for qid, lines in lines_of_queries.items():
        assert docids_of(saved_lines[qid]) == docids_of(lines)


def docids_of(lines):
    return [line.split()[2] for line in lines]


def count_ties(lines_of_queries):
    """Return how many hits score as the hit above."""
    ties = 0
    for lines in lines_of_queries.values():
        scores = [line.split()[-1] for line in lines]
        ties += sum(score == above for score, above in zip(scores[1:], scores, strict=False))
    return ties


@pytest.mark.peer
@pytest.mark.slow
def test_ties_of_lucene_are_lowered_on_request(tied_collection, tied_index):
    folder = tied_collection
    topics = str(folder / "queries.tsv")
    words = ["search", "--index", tied_index, "--topics", topics, "--hits", "20"]
    assert command([*words, "--output", str(folder / "keep.trec")]) == 0
    breaking = ["--set", "ties=break"]
    assert command([*words, *breaking, "--output", str(folder / "break.trec")]) == 0

    run_with_ties = read_run_scores(folder / "keep.trec")
    run_without_ties = read_run_scores(folder / "break.trec")
    for qid, hits in run_with_ties.items():
        assert list(run_without_ties[qid]) == list(hits)
        scores = np.array(list(run_without_ties[qid].values()), np.float32)
        assert (scores[1:] < scores[:-1]).all()
    for ties in ("keep", "break"):
        manifest = json.loads((folder / f"{ties}.trec.manifest.json").read_text())
        assert manifest["settings"]["ties"] == ties
