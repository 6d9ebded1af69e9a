import io
import json
import re
from pathlib import Path

import pytest

from denserk.commands.app import run
from denserk.io.runs import read_run_scores
from tests.support.benchmark_copies import write_beir
from tests.support.milvus import require_milvus
from tests.support.toy import PASSAGES


@pytest.fixture
def indexed_toy(toy, tiny, monkeypatch):
    """The working directory, with vectors and a BM25 index of the toy corpus."""
    monkeypatch.chdir(toy)
    quiet(f"encode --model {tiny()} --corpus corpus.jsonl --output vectors")
    quiet("index --type bm25 --corpus corpus.jsonl --output bm25")
    return toy


def quiet(line, *words, status=0):
    assert run([*line.split(), *words, "--quiet"]) == status


@pytest.mark.parametrize("engine", ["bm25", "vectors", "faiss", "milvus"])
@pytest.mark.usefixtures("indexed_toy")
def test_every_engine_prints_the_passages_of_its_run(engine, capsys):
    index = f"--index {engine}"
    queries = {"q1": "moon and star", "q2": "river boat"}
    if engine == "faiss":
        quiet("index --factory HNSW8 --input vectors --output faiss")
    if engine == "milvus":
        require_milvus()
        index = "--engine milvus --uri a.db --collection c"
        quiet(f"index {index} --input vectors")
    query_options = []
    for query in queries.values():
        query_options += ["--query", query]
    quiet(f"search {index} --hits 3 --output run", *query_options)
    hits_by_query = read_run_scores("run")
    lines = []
    for qid, query in queries.items():
        lines.append(query)
        for rank, (docid, score) in enumerate(hits_by_query[qid].items(), start=1):
            title, text = PASSAGES[docid]
            lines += [f"  {rank}  {score:.4f}  {docid}  {title}".rstrip(), f"     {text}"]
        lines.append("")
    capsys.readouterr()
    quiet(f"search {index} --hits 3", *query_options)
    assert capsys.readouterr() == ("\n".join([*lines, ""]), "")


@pytest.mark.usefixtures("indexed_toy")
def test_questions_from_standard_input_up_to_an_empty_line(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"Moon?\nzebra\n\nboat\n")))
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setenv("COLUMNS", "44")
    quiet("search --index bm25 --interactive")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "\x1b[1mMoon?\x1b[0m"
    assert lines[1].endswith("\x1b[36md4\x1b[0m  \x1b[1;33mMoon\x1b[0m")
    assert lines[2].rstrip() == "     the \x1b[1;33mmoon\x1b[0m rises in the night and the"
    assert lines[3].rstrip() == "     star falls"
    assert lines[4:6] == ["", "\x1b[1mzebra\x1b[0m"]
    assert lines[6].startswith("     no hits (")
    assert "--language german" in lines[6]


@pytest.mark.parametrize(
    ("language", "query", "marked"),
    [
        ("ja", "データの山", ["ﾃﾞｰﾀ"]),
        ("th", "กรุงเทพ", ["กรุงเทพ"]),
        ("multilingual", "ベース ABC", ["ABC", "ﾍﾞｰｽ"]),
        ("english", "abc 山", ["ABC"]),
    ],
)
def test_the_terms_of_the_index_stand_out(language, query, marked, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORCE_COLOR", "1")
    Path("c.tsv").write_text("d1\tABC ﾃﾞｰﾀﾍﾞｰｽと กรุงเทพมหานคร\n")
    quiet(f"index --type bm25 --corpus c.tsv --output i --language {language}")
    quiet("search --index i --query", query)
    assert re.findall(r"\x1b\[1;33m(.*?)\x1b\[0m", capsys.readouterr().out) == marked


@pytest.mark.usefixtures("indexed_toy")
def test_printed_hits_as_json_are_a_run_with_passages(capsys):
    command = "search --index bm25 --hits 2 --output-format jsonl"
    quiet(command, "--query", "moon", "--query", "zebra", "--query", "river")
    text = capsys.readouterr().out
    lines = [json.loads(line) for line in text.splitlines()]
    moon = lines[0]
    assert (moon["qid"], moon["query"], moon["docid"], moon["rank"]) == ("q1", "moon", "d4", 1)
    assert (moon["title"], moon["text"]) == (
        "Moon",
        "the moon rises in the night and the star falls",
    )
    Path("hits.jsonl").write_text(text)
    assert list(read_run_scores("hits.jsonl")) == ["q1", "q3"]  # without hits there is no line
    quiet("search --index bm25 --query moon --output-format msmarco", status=2)
    assert "--output-format jsonl prints hits as JSON" in capsys.readouterr().err


def test_the_corpus_is_found_or_named(indexed_toy, capsys):
    lines = (indexed_toy / "corpus.jsonl").read_text().splitlines(keepends=True)
    (indexed_toy / "corpus.jsonl").unlink()
    (indexed_toy / "moved.jsonl").write_text("".join(lines[:4]))
    for name in ("bm25", "vectors"):
        quiet(f"search --query moon --index {name}", status=2)
        message = capsys.readouterr().err
        assert (
            f"{name}/manifest.json names ../corpus.jsonl, which is not at {indexed_toy}" in message
        )
        assert "--corpus" in message
    quiet("search --query moon --index vectors --corpus moved.jsonl")
    assert capsys.readouterr().out.count("(not in the corpus)") == 2


@pytest.mark.usefixtures("indexed_toy")
def test_documents_of_passages_are_printed_from_their_own_corpus(capsys):
    quiet("convert corpus.jsonl passages.jsonl --split-words 3")
    quiet("index --type bm25 --corpus passages.jsonl --output passages")
    search = "search --index passages --query moon --max-passage"
    quiet(search)
    hit, text = capsys.readouterr().out.splitlines()[1:3]
    assert hit.split()[2] == "d4"
    assert text == "     (not in the corpus: --corpus FILE prints documents of that file)"
    quiet(f"{search} --corpus corpus.jsonl")
    hit, text = capsys.readouterr().out.splitlines()[1:3]
    assert hit.split()[2:] == ["d4", "Moon"]
    assert text == "     the moon rises in the night and the star falls"


@pytest.fixture
def scifact(tmp_path, monkeypatch):
    """A BEIR folder whose queries.jsonl holds more queries than its test split judges."""
    monkeypatch.chdir(write_beir(tmp_path, "scifact"))
    Path("qrels/train.tsv").write_text("query-id\tcorpus-id\tscore\nunjudged\td10\t1\n")
    quiet("index --type bm25 --corpus corpus.jsonl --output index")


@pytest.mark.usefixtures("scifact")
@pytest.mark.parametrize(("split", "qids"), [("test", ["q1", "q2", "q3"]), ("train", ["unjudged"])])
def test_one_split_of_beirs_queries(tiny, capsys, split, qids):
    topics = f"--topics queries.jsonl --qrels qrels/{split}.tsv"
    search = f"search --index index {topics} --output run.jsonl"
    assert run(search.split()) == 0
    assert f"{len(qids)} of 4 queries are judged in qrels/{split}.tsv" in capsys.readouterr().err
    hits = map(json.loads, Path("run.jsonl").read_text().splitlines())
    assert list(dict.fromkeys(hit["qid"] for hit in hits)) == qids
    encode = f"encode --model {tiny()} --topics queries.jsonl --output vectors --qrels"
    quiet(f"{encode} qrels/{split}.tsv")
    assert Path("vectors/block-00000.docid").read_text().split() == qids
    Path("qrels/other.tsv").write_text("q1 0 d1 1\n")
    quiet(f"{encode} qrels/other.tsv --resume", status=1)
    assert "qrels" in capsys.readouterr().err
