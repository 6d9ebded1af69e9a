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
from tests.index.test_bm25 import TEXTS, by_hand
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


def found(index, *queries):
    scores, rows = index.search(np.array(queries, dtype=object), 10)
    return [
        list(zip(index.names(line[line >= 0]), scores.tolist(), strict=False))
        for line, scores in zip(rows, scores, strict=True)
    ]


@pytest.mark.peer
@pytest.mark.slow
def test_scores_are_those_of_the_formula_over_passages_with_text(tmp_path, with_java):
    settings = Bm25Settings(k1=1.2, b=0.75, stemmer="none", stopwords=StopWords.NONE)
    passages = [(f"d{n}", text) for n, text in enumerate(TEXTS)]
    assert build_lucene(tmp_path, iter(passages), settings, 1) == {
        "count": len(TEXTS) - 1,
        "without_text": 1,
    }
    index = LuceneIndex(tmp_path, settings, None, 1)
    assert len(index) == len(TEXTS) - 1
    queries = ["cat dog", "", "unknown", 'a "cat" AND (\ud800 *:* ~\n fish']
    hits = found(index, *queries)
    assert hits[1:3] == [[], []]
    for query, best in ((queries[0], hits[0]), ("a cat and fish", hits[3])):
        right = by_hand([text for text in TEXTS if text], query, 1.2, 0.75)
        ids = [docid for docid, text in passages if text]
        expected = sorted(zip(ids, right, strict=True), key=lambda hit: (-hit[1], hit[0]))
        expected = [hit for hit in expected if hit[1] > 0]
        assert [docid for docid, _ in best] == [docid for docid, _ in expected]
        np.testing.assert_allclose([s for _, s in best], [s for _, s in expected], atol=1e-4)
    with pytest.raises(InputError, match="TooManyClauses"):
        found(index, " ".join(f"word{n}" for n in range(1100)))


RUN = """
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
    index, topics, output = (str(folder / name) for name in ("index", "queries.tsv", "run.trec"))
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
    own = run_of(toy, hits=20)
    assert [*own] == ["q4", "q1"]
    assert sorted(own["q4"]) == ["d11", "d2", "q4"]
    without = run_of(toy, hits=3, remove_query=True)
    assert [*without["q4"]] == ["d11", "d2"]
    asked = {"q4": "money bank", "q1": "cat in the house"}
    run_pyserini(RUN, index, json.dumps(asked), toy / "theirs.json", folder=toy)
    theirs = {q: dict(hits) for q, hits in json.loads((toy / "theirs.json").read_text()).items()}
    for qid, hits in own.items():
        assert list(hits) == list(theirs[qid])
        assert list(hits.values()) == pytest.approx(list(theirs[qid].values()), abs=2e-6)
    (index / "manifest.json").unlink()
    assert run_of(toy, hits=20) == own
    next(index.glob("*.doc")).unlink()
    with pytest.raises(InputError, match="an index and queries for Lucene"):
        run_of(toy)


@pytest.mark.peer
@pytest.mark.slow
def test_an_index_of_anserini_is_searched_as_by_anserini(toy, with_java):
    (toy / "texts").mkdir()
    source, target = str(toy / "corpus.jsonl"), str(toy / "texts/corpus.jsonl")
    convert(source, target, ConversionSettings(to_format="anserini"))
    run_anserini(
        *("index.IndexCollection", "-collection", "JsonCollection", "-input", toy / "texts"),
        *("-index", toy / "index", "-threads", "1", "-optimize"),
        folder=toy,
    )
    run_anserini(
        *("search.SearchCollection", "-index", toy / "index", "-topics", toy / "queries.tsv"),
        *("-topicReader", "TsvString", "-output", toy / "theirs", "-bm25", "-hits", "1000"),
        folder=toy,
    )
    own, theirs = run_of(toy), read_run_scores(toy / "theirs")
    assert {q: [*hits] for q, hits in own.items()} == {q: [*hits] for q, hits in theirs.items()}


PYSERINI_RUN = """
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
    long_texts = [
        text(220) for _ in range(8)
    ]  # scores above 32, which float32 cannot lower by 1e-6
    texts += [*random.choice(texts, 780).tolist(), *long_texts, *long_texts, *long_texts[:4]]
    order = random.permutation(len(texts)).tolist()
    passages = {f"p{number}": texts[place] for number, place in enumerate(order)}
    with (tmp_path / "corpus.jsonl").open("w") as out:
        for docid, passage in passages.items():
            out.write(json.dumps({"_id": docid, "title": "", "text": passage}) + "\n")
    with (tmp_path / "queries.tsv").open("w") as out:
        for docid, passage in [*passages.items()][:30]:
            out.write(f"{docid}\t{passage}\n")
        for number, passage in enumerate(long_texts):
            docid = next(name for name, other in passages.items() if other == passage)
            out.write(f"{docid if number else 'none'}\t{passage}\n")
    return tmp_path


def lines_of(path):
    """Return the lines of a run by query, without the tag."""
    lines: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        lines.setdefault(line.split()[0], []).append(line.rpartition(" ")[0])
    return lines


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--remove-query"]], ids=["all", "remove-query"])
@pytest.mark.parametrize("hits", ["20", "1000"])
def test_the_run_is_that_of_pyserini_line_by_line(tied_collection, with_java, hits, more):
    folder = tied_collection
    index, topics = str(folder / "index"), str(folder / "queries.tsv")
    made = ["index", "--type", "bm25", "--engine", "lucene", "--output", index]
    assert command([*made, "--corpus", str(folder / "corpus.jsonl")]) == 0
    asked = ["--index", index, "--topics", topics, "--hits", hits, *more]
    assert command(["search", *asked, "--output", str(folder / "own.trec")]) == 0
    run_pyserini(PYSERINI_RUN, *asked, "--output", folder / "theirs.trec", folder=folder)
    own, theirs = lines_of(folder / "own.trec"), lines_of(folder / "theirs.trec")
    assert own == theirs
    scores = [line.split()[-1] for lines in theirs.values() for line in lines]
    tied = sum(one == other for one, other in zip(scores[1:], scores, strict=False))
    assert tied > len(scores) / 50
    in_python = denserk.Index.open(index).search(topics, hits=int(hits), remove_query=bool(more))
    for qid, lines in theirs.items():
        expected = [(line.split()[2], float(line.split()[4])) for line in lines]
        assert list(in_python[qid].items()) == expected
    in_python.save(folder / "saved.trec")
    saved = [line.split()[2] for line in (folder / "saved.trec").read_text().splitlines()]
    assert saved == [line.split()[2] for lines in own.values() for line in lines]


@pytest.mark.peer
@pytest.mark.slow
def test_ties_of_lucene_are_lowered_on_request(tied_collection, with_java):
    folder = tied_collection
    index, topics = str(folder / "index"), str(folder / "queries.tsv")
    made = ["index", "--type", "bm25", "--engine", "lucene", "--output", index]
    assert command([*made, "--corpus", str(folder / "corpus.jsonl")]) == 0
    asked = ["search", "--index", index, "--topics", topics, "--hits", "20"]
    assert command([*asked, "--output", str(folder / "kept.trec")]) == 0
    broken = ["--set", "ties=break", "--output", str(folder / "broken.trec")]
    assert command([*asked, *broken]) == 0
    kept, lowered = (read_run_scores(folder / name) for name in ("kept.trec", "broken.trec"))
    for qid, hits in kept.items():
        assert list(lowered[qid]) == list(hits)
        scores = np.array(list(lowered[qid].values()), np.float32)
        assert (scores[1:] < scores[:-1]).all()
    for name, ties in (("kept", "keep"), ("broken", "break")):
        manifest = json.loads((folder / f"{name}.trec.manifest.json").read_text())
        assert manifest["settings"]["ties"] == ties
