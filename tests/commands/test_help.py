"""The help of every command: short, with defaults and examples that work; shell completion."""

import os
import re
import shlex
import subprocess
import sys

import pytest

from denserk.commands.app import run
from tests.benchmarks.size import commands
from tests.test_readme import parse

FOUND = dict(commands())
EVERY = pytest.mark.parametrize("name", FOUND)


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")


def shown(name, option, capsys):
    """The help of a command, and the options that it lists, by their first long name."""
    assert run([*name.split(), option]) == 0
    text = capsys.readouterr().out
    return text, re.findall(r"^  (?:-\w, )*(--[\w-]+)", text, re.MULTILINE)


@EVERY
def test_the_help_of_a_command_is_short(name, capsys):
    text, options = shown(name, "--help", capsys)
    assert 3 <= len(options) <= 20
    assert len(text.splitlines()) <= 60
    assert max(map(len, text.splitlines())) <= 100


@EVERY
def test_every_option_is_listed_on_request(name, capsys):
    text, every = shown(name, "--help-all", capsys)
    _, some = shown(name, "--help", capsys)
    assert set(some) <= set(every)
    for parameter in FOUND[name].params:
        for spelling in parameter.opts:
            assert not spelling.startswith("-") or re.search(rf"{spelling}(?![\w-])", text)


@EVERY
def test_the_help_ends_with_two_examples_that_parse(name, capsys):
    examples = shown(name, "--help", capsys)[0].partition("\nExamples:\n")[2].splitlines()
    assert len(set(examples)) == 2
    for example in examples:
        assert f"{example} ".startswith(f"  denserk {name} ")
        parse(shlex.split(re.split(" [|>] ", example)[0])[1:])


def test_commands_are_listed_in_the_order_of_the_work(capsys):
    assert run(["--help"]) == 0
    listed = re.findall(r"^(?:  ([a-z][\w-]+)  |(\w+):$)", capsys.readouterr().out, re.MULTILINE)
    names = [name or group for name, group in listed]
    expected = ["Train", "pretrain", "finetune", "mine-negatives", "Retrieve", "encode", "index"]
    expected += ["search", "Evaluate", "eval", "Data", "convert", "Inspect", "analyze"]
    assert [name for name in names if name in expected] == expected


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("denserk en", ["encode"]),
        ("denserk encode --dtype b", ["bfloat16"]),
        ("denserk analyze layers --dep", ["--depth"]),
        ("denserk mine_negatives --corpus a --corpus b --relat", ["--relative-margin"]),
        ("denserk nothing --dep", []),
    ],
)
def test_bash_completes(line, completed):
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    script = "import sys; from denserk.commands.app import run; run(); sys.exit(9)"
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", script],
        env={**os.environ, **words, "_DENSERK_COMPLETE": "complete_bash"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert done.stdout.split() == completed
    assert not re.search(r"\| +(torch|numpy|rich)$", done.stderr, re.MULTILINE)


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_script_for_the_shell(shell):
    done = subprocess.run(
        [sys.executable, "-m", "denserk"],
        env={**os.environ, "_DENSERK_COMPLETE": f"source_{shell}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert "_DENSERK_COMPLETE" in done.stdout
