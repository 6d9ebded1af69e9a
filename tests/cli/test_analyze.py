import pytest

from denserk.cli.app import run
from tests.tasks.test_analyze import write_pairs, write_triplets
from tests.test_startup import loaded


def test_help_names_every_analysis(capsys):
    assert run(["analyze", "--help"]) == 0
    assert "\n  sentence-similarity " in capsys.readouterr().out


def test_help_loads_nothing_heavy():
    assert not loaded(["analyze", "--help"], ["analyze", "sentence-similarity", "--help"])


@pytest.mark.parametrize("command", ["sentence-similarity", "sentence_similarity"])
def test_pairs(tiny, tmp_path, capsys, command):
    data = write_pairs(tmp_path / "pairs.tsv")
    model = str(tiny())
    assert run(["analyze", command, "--model", model, "--data", data, "--pooling", "mean"]) == 0
    header, row = (line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert header == ["model", "data", "kind", "count", "measure", "value"]
    assert row[:5] == [model, data, "pairs", "5", "spearman"]
    assert -1 <= float(row[5]) <= 1


def test_a_table_as_csv_on_standard_output(tiny, tmp_path, capsys):
    data, model = write_triplets(tmp_path / "t.jsonl"), str(tiny())
    line = ["analyze", "sentence-similarity", "--model", model, "--data", data, "--output", "-"]
    assert run([*line, "--quiet"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "model,data,kind,count,measure,value"
    assert out[1].startswith(f"{model},{data},triplets,3,accuracy,0.")
    assert len(out) == 2


@pytest.mark.parametrize(
    ("content", "status", "said"),
    [
        (None, 2, "no such file"),
        ("just a text\n", 1, "line 1: found 1 column without a header"),
        ("sentence1\tsentence2\tlabel\na\tb\tnan\n", 1, "found label 'nan'"),
        ("sentence1\tsentence2\na\tb\n", 1, "line 2: found no label among the columns"),
    ],
)
def test_data_that_cannot_be_measured(tiny, tmp_path, capsys, content, status, said):
    path = tmp_path / "data.tsv"
    if content is not None:
        path.write_text(content)
    arguments = ["--model", str(tiny()), "--data", str(path), "--quiet"]
    assert run(["analyze", "sentence-similarity", *arguments]) == status
    assert said in capsys.readouterr().err
