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
def here(toy, tiny, monkeypatch):
    monkeypatch.chdir(toy)
    quiet(f"encode --model {tiny()} --corpus corpus.jsonl --output vectors")
    quiet("index --type bm25 --corpus corpus.jsonl --output bm25")
    return toy


def quiet(line, *words, status=0):
    assert run([*line.split(), *words, "--quiet"]) == status


@pytest.mark.parametrize("engine", ["bm25", "vectors", "faiss", "milvus"])
@pytest.mark.usefixtures("here")
def test_every_engine_prints_the_passages_of_its_run(engine, capsys):
    where, queries = f"--index {engine}", ("moon and star", "river boat")
    if engine == "faiss":
        quiet("index --factory HNSW8 --input vectors --output faiss")
    if engine == "milvus":
        require_milvus()
        where = "--engine milvus --uri a.db --collection c"
        quiet(f"index {where} --input vectors")
    asked = [word for query in queries for word in ("--query", query)]
    quiet(f"search {where} --hits 3 --output run", *asked)
    lines, run_of = [], read_run_scores("run")
    for qid, query in zip(("q1", "q2"), queries, strict=True):
        lines.append(query)
        for rank, (docid, score) in enumerate(run_of[qid].items(), 1):
            title, text = PASSAGES[docid]
            lines += [f"  {rank}  {score:.4f}  {docid}  {title}".rstrip(), f"     {text}"]
        lines.append("")
    capsys.readouterr()
    quiet(f"search {where} --hits 3", *asked)
    assert capsys.readouterr() == ("\n".join([*lines, ""]), "")


@pytest.mark.usefixtures("here")
def test_questions_from_standard_input_up_to_an_empty_line(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"Moon?\nzebra\n\nboat\n")))
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setenv("COLUMNS", "44")
    quiet("search --index bm25 --interactive")
    query, head, first, second, *others = capsys.readouterr().out.splitlines()
    assert query == "\x1b[1mMoon?\x1b[0m"
    assert head.endswith("\x1b[36md4\x1b[0m  \x1b[1;33mMoon\x1b[0m")
    assert first.rstrip() == "     the \x1b[1;33mmoon\x1b[0m rises in the night and the"
    assert second.rstrip() == "     star falls"
    assert others[:2] == ["", "\x1b[1mzebra\x1b[0m"]
    assert others[2].startswith("     no hits (")
    assert "--language german" in others[2]


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
    found = re.findall(r"\x1b\[1;33m(.*?)\x1b\[0m", capsys.readouterr().out)
    assert found == marked


def test_the_corpus_is_found_or_named(here, capsys):
    lines = (here / "corpus.jsonl").read_text().splitlines(keepends=True)
    (here / "corpus.jsonl").unlink()
    (here / "moved.jsonl").write_text("".join(lines[:4]))
    for name in ("bm25", "vectors"):
        quiet(f"search --query moon --index {name}", status=2)
        message = capsys.readouterr().err
        assert f"{name}/manifest.json names ../corpus.jsonl, which is not at {here}" in message
        assert "--corpus" in message
    quiet("search --query moon --index vectors --corpus moved.jsonl")
    assert capsys.readouterr().out.count("(not in the corpus)") == 2


def test_documents_of_passages_are_printed_from_their_own_corpus(here, capsys):
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
    asked = ["index", "--type", "bm25", "--corpus", "corpus.jsonl", "--output", "index"]
    assert run([*asked, "--quiet"]) == 0


@pytest.mark.usefixtures("scifact")
@pytest.mark.parametrize(("split", "qids"), [("test", ["q1", "q2", "q3"]), ("train", ["unjudged"])])
def test_one_split_of_beirs_queries(tiny, capsys, split, qids):
    asked = ["--topics", "queries.jsonl", "--qrels", f"qrels/{split}.tsv", "--output"]
    assert run(["search", "--index", "index", *asked, "run.jsonl", "--output-format", "jsonl"]) == 0
    assert f"{len(qids)} of 4 queries are judged in qrels/{split}.tsv" in capsys.readouterr().err
    hits = map(json.loads, Path("run.jsonl").read_text().splitlines())
    assert list(dict.fromkeys(hit["qid"] for hit in hits)) == qids
    encoded = ["encode", "--model", str(tiny()), "--quiet", *asked, "vectors"]
    assert run(encoded) == 0
    assert Path("vectors/block-00000.docid").read_text().split() == qids
    encoded[encoded.index("--qrels") + 1] = "qrels/other.tsv"
    Path("qrels/other.tsv").write_text("q1 0 d1 1\n")
    assert run([*encoded, "--resume"]) == 1
    assert "qrels" in capsys.readouterr().err
