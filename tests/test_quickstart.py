"""The quickstart takes every stage, by commands that parse; `.ci/run` runs it."""

import shlex

from tests.test_readme import ROOT, parse

STAGES = {"pretrain", "finetune", "fuse", "mine-negatives", "encode", "index", "search", "eval"}


def test_the_walk_takes_every_stage():
    script = (ROOT / "docs" / "quickstart.sh").read_text().replace("\\\n", " ")
    lines = [line for line in script.splitlines() if line.startswith(("run denserk", "denserk"))]
    commands = [shlex.split(line.removeprefix("run ").split(" | ")[0])[1:] for line in lines]
    for command in commands:
        parse(command)
    assert {command[0] for command in commands} == STAGES
