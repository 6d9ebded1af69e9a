import io
import json
import subprocess
import sys

import pytest

from denserk.commands.app import run
from tests.support.toy import PASSAGES

RUN = "q1 Q0 d3 1 9 t\nq1 Q0 d10 2 8 t\nq2 Q0 d2 1 5 t\nq3 Q0 d1 1 3 t\n"
OTHER = "q1 Q0 d2 1 9 b\nq1 Q0 d3 2 8 b\n"
FUSED = "q1 Q0 d2 1 0.0325224735 x\nq1 Q0 d1 2 0.0163934417 x\nq1 Q0 d3 3 0.0161290318 x\n"


@pytest.fixture
def piped(toy, monkeypatch, capsysbinary):
    """`piped(line, text)`: what a command writes on standard output and error."""
    monkeypatch.chdir(toy)
    (toy / "run.trec").write_text(RUN)
    (toy / "a").write_text("q1 Q0 d1 1 3 a\nq1 Q0 d2 2 2 a\n")

    def pipe(line, text):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        assert run(line.split()) == 0
        return tuple(stream.decode() for stream in capsysbinary.readouterr())

    return pipe


def test_passages(piped, toy):
    text = (toy / "corpus.jsonl").read_text()
    out, err = piped("convert - - --kind corpus --to tevatron --quiet", text)
    assert err == ""
    assert len(out.splitlines()) == len(PASSAGES)
    assert out.splitlines()[1] == '{"docid":"d2","title":"Bank","text":"money in the bank"}'


def test_a_run_to_fuse(piped):
    out, err = piped("fuse a - --tag x --output -", OTHER)
    assert out == FUSED
    assert "standard input: trec run" in err


def test_a_run_to_mine_from(piped):
    line = "mine-negatives --topics queries.tsv --qrels qrels.txt --corpus corpus.jsonl --quiet"
    out, _ = piped(f"{line} --run - --output - --output_format negatives", RUN)
    assert out == "q1\td10\nq2\td2\nq3\td1\n"


def test_json_lines_carry_the_model_from_encode_to_search(piped, tiny, toy):
    encode = f"encode --model {tiny()} --corpus corpus.jsonl --output"
    search = "search --topics queries.tsv --output - --index"
    lines, _ = piped(f"{encode} - --output-format jsonl", "")
    piped("index --input - --output piped", lines)
    piped(f"{encode} v", "")
    piped("index --input v --output from-folder", "")
    run_of_piped, _ = piped(f"{search} piped", "")
    run_of_folder, _ = piped(f"{search} from-folder", "")
    assert run_of_piped == run_of_folder
    measures, _ = piped("eval --qrels qrels.txt --run - --format tsv", run_of_piped)
    assert len(measures.splitlines()) == 3
    piped("convert - npy --kind vectors --to npy", lines)
    converted_lines, _ = piped("convert npy - --to jsonl", "")
    for text in (lines, converted_lines):
        records = [json.loads(line) for line in text.splitlines()]
        assert [record.pop("id") for record in records] == [*PASSAGES]
        made_from = records[0].pop("denserk_manifest")["made_from"]
        assert (toy / made_from["model"]["name"]).samefile(tiny())
        assert {tuple(record) for record in records} == {("contents", "vector")}
    (toy / "broken").write_text(lines.replace('"vectors"', '"cake"', 1))
    assert run(["index", "--input", "broken", "--output", "none"]) == 1
    assert not (toy / "none").exists()


@pytest.mark.parametrize("name", ["run.trec", "qrels.txt"])
def test_a_run_or_its_qrels(piped, toy, name):
    files = "run.trec qrels.txt".replace(name, "-")
    out, _ = piped(f"eval {files} -m RR@10 --quiet", (toy / name).read_text())
    assert out == "RR@10\t0.3333\n"


def test_a_reader_that_leaves_early_is_no_failure(tmp_path):
    line = json.dumps({"_id": "d", "title": "", "text": "word " * 100}) + "\n"
    (tmp_path / "corpus.jsonl").write_text(line * 5000)
    command = [sys.executable, "-m", "denserk", "convert", "corpus.jsonl", "-", "--to", "marco"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().startswith("d\tword")
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 141
    assert "rror" not in err
