"""Training files, and the command line of tests that train."""

import re

import pytest

from denserk.commands.app import run
from denserk.training import run_folder
from tests.support.finetuning import write_examples
from tests.support.pretraining import write_corpus


@pytest.fixture(autouse=True)
def without_curves(request, monkeypatch):
    """Draw curves, which cost as much as a small run, only where a test asks for them."""
    if "curves" not in request.node.name:
        monkeypatch.setattr(run_folder, "save_if_installed", lambda *_: None)


@pytest.fixture(scope="session")
def train(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "train.jsonl"
    return write_examples(path, range(24), scored=True)


@pytest.fixture(scope="session")
def dev(tmp_path_factory):
    return write_examples(tmp_path_factory.mktemp("data") / "dev.jsonl", range(30, 36))


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """Twelve documents of two passages."""
    return write_corpus(tmp_path_factory.mktemp("data") / "corpus.jsonl")


@pytest.fixture
def denserk(capsys):
    """Run a command with options by name; return its status and what stood on stderr, one line."""

    def call(command, options, *flags):
        arguments = [command]
        for name, value in options.items():
            if value is not None:
                arguments += [f"--{name}", str(value)]
        status = run([*arguments, *flags])
        printed = capsys.readouterr()
        assert printed.out == ""
        assert not re.search("Traceback|internal error", printed.err)
        assert len(re.findall("^error: ", printed.err, re.MULTILINE)) == (status != 0)
        return status, " ".join(printed.err.split())

    return call
