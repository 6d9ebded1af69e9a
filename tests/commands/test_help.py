import os
import re
import shlex
import subprocess
import sys

import pytest

from denserk.commands.app import run
from denserk.commands.completion import completer
from denserk.config.encoding import PUBLISHED
from tests.benchmarks.size import commands
from tests.docs.test_readme import parse

FOUND = dict(commands())


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")


def shown(name, option, capsys):
    """The help of a command, and the options that it lists, by their first long name."""
    assert run([*name.split(), option]) == 0
    text = capsys.readouterr().out
    return text, re.findall(r"^  (?:-\w, )*(--[\w-]+)", text, re.MULTILINE)


@pytest.mark.parametrize("name", FOUND)
def test_help_fits_a_screen_with_all_options_on_request_and_examples_that_parse(name, capsys):
    text, options = shown(name, "--help", capsys)
    assert 3 <= len(options) <= 20
    assert len(text.splitlines()) <= 60
    assert max(map(len, text.splitlines())) <= 100
    examples = text.partition("\nExamples:\n")[2].splitlines()
    assert len(set(examples)) == 2
    for example in examples:
        assert f"{example} ".startswith(f"  denserk {name} ")
        parse(shlex.split(re.split(" [|>] ", example)[0])[1:])
    text, every = shown(name, "--help-all", capsys)
    assert set(options) <= set(every)
    for parameter in FOUND[name].params:
        for spelling in parameter.opts:
            assert not spelling.startswith("-") or re.search(rf"{spelling}(?![\w-])", text)


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("denserk encode --dtype b", ["bfloat16"]),
        ("denserk analyze layers --dep", ["--depth"]),
        ("denserk mine_negatives --corpus a --corpus b --relat", ["--relative-margin"]),
        ("denserk finetune --preset aggretriever-nq", ["aggretriever-nq", "aggretriever-nq-dpr"]),
        ("denserk finetune --show-preset mlr-b", ["mlr-beir"]),
        ("denserk pretrain --show-preset dup", ["dupmae", "dupmae-small"]),
        ("denserk pretrain --preset sm", ["small"]),
        ("denserk mine-negatives --preset nv", ["nv-retriever"]),
        ("denserk encode --model mini", ["minilm"]),
        ("denserk search --encoder agg", ["agg", "agg-distilbert"]),
        ("denserk finetune --guide co", ["cocondenser"]),
        ("denserk eval run.trec -m nD", ["nDCG@10", "nDCG@20", "nDCG@100"]),
        ("denserk eval run.trec --baseline prev", ["previous"]),
        ("denserk fuse a b --measure Success@2", ["Success@20"]),
        ("denserk benchmark beir/sci", ["beir/scidocs", "beir/scifact"]),
        ("denserk eval run.trec --set report-i", ["report-ids="]),
        ("denserk index --type hn", ["hnsw", "hnswpq"]),
        ("denserk index --language ger", ["german"]),
        ("denserk index --language au", ["auto"]),
    ],
)
def test_bash_completes(line, completed):
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    script = "import sys; from denserk.commands.app import run; run(); sys.exit(9)"
    process = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", script],
        env={**os.environ, **words, "_DENSERK_COMPLETE": "complete_bash"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0
    assert process.stdout.split() == completed
    assert not re.search(r"\| +(torch|numpy|rich)$", process.stderr, re.MULTILINE)


def test_files_follow_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agg-runs").mkdir()
    (tmp_path / "agg.txt").touch()
    complete = completer("models")
    assert complete("agg") == ["agg", "agg-distilbert", "agg-runs/", "agg.txt"]
    assert complete("runs") == []  # the shell completes files
    assert set(complete("")) == set(PUBLISHED)


@pytest.mark.parametrize("words", [[], ["search"], ["analyze", "layers"], ["mine_negatives"]])
def test_help_is_a_word_as_well_as_an_option(words, capsys):
    assert run(["help", *words]) == 0
    by_word = capsys.readouterr().out
    assert run([*words, "--help"]) == 0
    assert capsys.readouterr().out == by_word
