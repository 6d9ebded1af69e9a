"""The command itself: presets shown, options that win, a terminal."""

import os
import pty
import subprocess
import sys

import orjson
import pytest

from denserk.cli.app import run
from denserk.settings.presets import PRESETS
from denserk.tasks import finetune as task
from denserk.tasks.finetune import FinetuneResult
from tests.tasks.finetuning import write_examples

BASIC = ("--model", "m", "--train-data", "t.jsonl", "--output", "o")


@pytest.fixture
def asked(monkeypatch):
    """What the task would have been asked to do."""
    runs = []

    def stand_in(run, reporter):
        runs.append(run)
        return FinetuneResult(steps=1234, first_step=0, loss=0.5, best=None)

    monkeypatch.setattr(task, "finetune", stand_in)
    return runs


def test_the_preset_is_told_before_it_starts(asked, capsys):
    assert run(["finetune", *BASIC, "--preset", "aggretriever-marco", "--lr", "0.1"]) == 0
    told = capsys.readouterr()
    lines = told.err.splitlines()
    assert told.out == ""
    assert lines[0] == "preset aggretriever-marco: MS MARCO: BM25 negatives, all training queries"
    assert any(line.split() == ["*", "lr", "0.1", "preset:", "5e-06"] for line in lines)
    assert lines[-1] == "o: 1,234 steps, loss 0.5000"
    assert asked[0].optimizer.lr == 0.1
    assert asked[0].representation["agg_dim"] == 640


@pytest.mark.parametrize(
    ("words", "section", "field", "value"),
    [
        (("--learning-rate", "0.1"), "optimizer", "lr", 0.1),
        (("--per-device-train-batch-size", "16"), "optimizer", "batch_size", 16),
        (("--train-n-passages", "4"), "sampling", "group_size", 4),
        (("--untie-encoder",), "finetune", "untie", True),
        (("--gc-p-chunk-size", "9"), "cache", "p_chunk", 9),
        (("--no-negatives-x-device",), "finetune", "negatives_x_device", False),
        (("--num-train-epochs", "7"), "optimizer", "epochs", 7.0),
    ],
)
def test_options_win_under_the_names_that_users_know(asked, words, section, field, value):
    assert run(["finetune", *BASIC, "--preset", "aggretriever-marco", *words]) == 0
    assert getattr(getattr(asked[0], section), field) == value


def test_several_files_one_after_another(asked):
    assert run(["finetune", *BASIC, "--train-data", "u.jsonl"]) == 0
    assert asked[0].finetune.train_data == ("t.jsonl", "u.jsonl")


def test_other_processes_tell_nothing(asked, capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert run(["finetune", *BASIC, "--preset", "aggretriever-marco"]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.delenv("RANK")
    assert run(["finetune", *BASIC]) == 0  # and the next command of this process speaks again
    assert capsys.readouterr().err != ""


def test_presets_are_tab_separated_elsewhere(capsys):
    assert run(["finetune", "--list-presets"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split("\t")[:3] == ["preset", "what", "settings"]
    assert [row.split("\t")[0] for row in rows] == [preset.name for preset in PRESETS]
    assert {row.count("\t") for row in rows} == {header.count("\t")}


def in_a_terminal(words, columns):
    """What a command writes on a terminal of that width, as text."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "denserk", *words],
        stdout=follower,
        stderr=follower,
        env={**os.environ, "COLUMNS": str(columns), "TERM": "xterm", "NO_COLOR": "1"},
    )
    os.close(follower)
    chunks = []
    while True:
        try:
            chunk = os.read(leader, 1 << 16)
        except OSError:  # the terminal is gone with its last writer
            break
        if not chunk:
            break
        chunks.append(chunk)
    os.close(leader)
    assert process.wait() == 0
    return b"".join(chunks).decode()


@pytest.mark.slow
@pytest.mark.parametrize("columns", [80, 100])
def test_presets_fit_a_terminal(columns):
    lines = in_a_terminal(["finetune", "--list-presets"], columns).splitlines()
    names = {preset.name for preset in PRESETS}
    plain = [line.replace("\x1b[1m", "").replace("\x1b[0m", "").rstrip() for line in lines]
    assert names <= set(plain)
    assert max(map(len, plain)) <= columns


@pytest.mark.slow
def test_a_terminal_sees_the_bar_and_the_parts(tiny, tmp_path):
    train = write_examples(tmp_path / "train.jsonl", range(24))
    shown = in_a_terminal(
        [
            *("finetune", "--model", str(tiny("bert")), "--train-data", train),
            *("--output", str(tmp_path / "out"), "--representation", "agg", "--agg-dim", "20"),
            *("--cls-dim", "6", "--batch-size", "4", "--group-size", "3", "--max-steps", "4"),
            *("--logging-steps", "1", "--device", "cpu"),
        ],
        80,
    )
    assert "4/4" in shown
    assert "contrastive" in shown
    assert "Writing model shards" not in shown
    told = orjson.loads((tmp_path / "out" / "training.json").read_bytes())
    last = [entry for entry in told["log"] if "loss" in entry][-1]
    assert f"loss {last['loss']:.4f} (contrastive {last['loss_contrastive']:.4f}" in shown
