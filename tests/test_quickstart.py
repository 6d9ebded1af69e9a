"""The quickstart's collection: what asks, what answers, what is left out."""

import importlib.util
import json
import shlex

import pytest

from tests.test_readme import ROOT, parse

STAGES = {"pretrain", "finetune", "fuse", "mine-negatives", "encode", "index", "search", "eval"}
LIBRARY = '''
"""Draw with a pen on paper.

No body of work is needed; a point, a line and a colour are enough for it.
"""

class Pen:
    """Too short.

    What follows is long enough to answer, yet nobody asks for it in so few words.
    """

    def lift(self):
        """Stop leaving a trace on paper.
        Later moves are invisible until the tip touches down once more.
        """

    def drop(self):
        """Move the pen to the paper again.

        Move the pen to the paper, and from there draw again as before.
        """

    def run_on(self):
        """A first line that is not a whole
        sentence has no question in it, whatever else may follow below.
        """

    async def wait(self):
        """Stop leaving a trace on paper.

        Here the same words ask for another passage, so that both of them are right.
        """
'''


def load(name):
    """One of the quickstart's own scripts, as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs/quickstart" / f"{name}.py")
    assert spec
    assert spec.loader
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture
def module():
    return load("collect")


def test_collection(module, tmp_path):
    library = tmp_path / "library"
    (library / "art").mkdir(parents=True)
    (library / "art" / "__init__.py").write_text(LIBRARY)
    (library / "test").mkdir()
    (library / "test" / "left_out.py").write_text(LIBRARY.replace("pen", "brush"))
    assert module.collect(library, tmp_path / "demo") == (3, 2, 0)
    corpus = (tmp_path / "demo" / "corpus.jsonl").read_text().splitlines()
    assert [(p["_id"], p["title"]) for p in map(json.loads, corpus)] == [
        ("art", ""),
        ("art.Pen.lift", ""),
        ("art.Pen.wait", ""),
    ]
    assert (tmp_path / "demo" / "queries.tsv").read_text() == (
        "q1\tDraw with a pen on paper.\nq2\tStop leaving a trace on paper.\n"
    )
    assert (tmp_path / "demo" / "qrels.txt").read_text() == (
        "q1 0 art 1\nq2 0 art.Pen.lift 1\nq2 0 art.Pen.wait 1\n"
    )


def test_the_walk_takes_every_stage():
    script = (ROOT / "docs" / "quickstart.sh").read_text().replace("\\\n", " ")
    lines = [line for line in script.splitlines() if line.startswith(("run denserk", "denserk"))]
    commands = [shlex.split(line.removeprefix("run ").split(" | ")[0])[1:] for line in lines]
    for command in commands:
        parse(command)
    assert {command[0] for command in commands} == STAGES
