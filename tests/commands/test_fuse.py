"""`denserk fuse`: runs that do not belong together, and scores that are no numbers."""

from pathlib import Path

import pytest

import denserk
from denserk.commands.app import run
from denserk.errors import MismatchError


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.trec").write_text("q1 Q0 d1 1 3 t\nq1 Q0 d2 2 1 t\n")
    Path("b.trec").write_text("q1 Q0 d3 1 3 t\nq1 Q0 d2 2 1 t\n")
    Path("c.trec").write_text("q9 Q0 d3 1 3 t\nq9 Q0 d2 2 1 t\n")
    Path("qrels.txt").write_text("q1 0 d1 1\n")


@pytest.mark.parametrize("runs", [["a.trec", "c.trec"], ["a.trec", "b.trec", "c.trec"]])
def test_runs_without_a_common_query_are_rejected(runs, capsys):
    assert run(["fuse", *runs, "--output", "fused.trec"]) == 1
    err = capsys.readouterr().err
    assert "'q1'" in err
    assert "'q9'" in err
    assert "none in common" in err
    assert not Path("fused.trec").exists()


def test_tuned_runs_without_a_common_query_are_rejected(capsys):
    assert run(["fuse", "a.trec", "c.trec", "--tune", "qrels.txt"]) == 1
    assert "none in common" in capsys.readouterr().err


def test_python_rejects_runs_without_a_common_query():
    with pytest.raises(MismatchError, match="'q1'"):
        denserk.fuse([{"q1": {"d1": 1.0}}, {"q2": {"d1": 1.0}}])


def test_qrels_in_place_of_a_run_are_named(capsys):
    assert run(["fuse", "a.trec", "qrels.txt", "--output", "fused.trec"]) == 1
    err = capsys.readouterr().err
    assert "qrels.txt, line 1" in err
    assert "four columns are qrels, and a run is expected" in err


@pytest.mark.parametrize("weights", ["nan,1", "inf,1", "1e400,1", "-1,1", "0,0"])
def test_weights_that_are_no_positive_numbers_are_rejected(weights, capsys):
    assert run(["fuse", "a.trec", "b.trec", f"--weights={weights}", "--output", "f.trec"]) == 2
    assert "--weights" in capsys.readouterr().err
    assert not Path("f.trec").exists()


@pytest.mark.parametrize("value", ["nan", "inf", "-1"])
@pytest.mark.parametrize("setting", ["rrf-k", "depth", "alpha"])
def test_settings_that_are_no_numbers_are_rejected(setting, value, capsys):
    command = ["fuse", "a.trec", "b.trec", "--output", "f.trec", "--set", f"{setting}={value}"]
    assert run(command) == 2
    assert setting in capsys.readouterr().err


def test_a_sum_that_is_no_number_names_query_and_passage(capsys):
    options = ["--method", "linear", "--normalization", "none", "--weights", "1e308,1e308"]
    assert run(["fuse", "a.trec", "b.trec", *options, "--output", "fused.trec"]) == 1
    err = capsys.readouterr().err
    assert "query q1: the score of passage d" in err
    assert not Path("fused.trec").exists()


@pytest.mark.parametrize("score", ["NaN", "Infinity", "1e999", "null", '"high"', "true"])
@pytest.mark.parametrize("command", ["eval", "fuse"])
def test_scores_that_are_no_numbers_are_rejected_in_every_format(score, command, capsys):
    further_arguments = ["qrels.txt"] if command == "eval" else ["a.trec", "--output", "fused.trec"]
    hit = f'{{"qid": "q1", "docid": "d1", "score": {score}}}\n'
    Path("hits.jsonl").write_text(hit)
    splits = f'{{"test": {{"q1": {{"d1": {score}}}}}}}'
    Path("hits.json").write_text(f'{{"mteb_model_meta": {{}}, "default": {splits}}}')
    Path("hits.trec").write_text(f"q1 Q0 d1 1 {score} t\n")
    for name in ("hits.jsonl", "hits.json", "hits.trec"):
        assert run([command, name, *further_arguments]) == 1
        out, err = capsys.readouterr()
        assert not out
        assert name in err
        assert "internal error" not in err
    assert not Path("fused.trec").exists()
