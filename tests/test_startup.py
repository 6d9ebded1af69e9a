"""What the command line must not load: no help is worth a second of waiting for torch."""

import subprocess
import sys

import pytest
import typer

from denserk.cli.app import COMMANDS, app, register

DRIVER = """
import sys
from denserk.cli.app import run

for arguments in {lines!r}:
    assert run(arguments) == 0, arguments
sys.stderr.write("loaded: " + " ".join(sorted(sys.modules.keys() & {heavy!r})))
"""


def loaded(*lines, heavy=("faiss", "torch", "transformers")):
    """Which heavy modules a fresh process has loaded after it ran these command lines."""
    script = DRIVER.format(lines=lines, heavy=set(heavy))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stderr.rpartition("loaded: ")[2].split()


def test_help_loads_nothing_heavy():
    assert {"convert", "encode", "eval", "index", "search"} <= set(COMMANDS)
    assert not loaded(["--help"], *([name, "--help"] for name in COMMANDS))


@pytest.mark.parametrize(
    ("line", "modules"),
    [
        (["--help"], set()),
        (["--version"], set()),
        (["mine_negatives", "--help"], {"denserk.cli.mine_negatives"}),
        (["encode", "-h"], {"denserk.cli.encode"}),
    ],
)
def test_only_the_command_that_is_typed_is_imported(line, modules):
    every = {f"denserk.cli.{row.module}" for row in COMMANDS.values()}
    assert set(loaded(line, heavy=every)) == modules
    assert not loaded(line, heavy={"numpy", "ir_measures", "rich"})


def test_the_lines_of_the_help_are_the_commands_own():
    register()
    group = typer.main.get_group(app)
    assert {name: row.line for name, row in COMMANDS.items()} == {
        name: str(command.help).partition("\n")[0] for name, command in group.commands.items()
    }


def test_version_loads_nothing_heavy():
    assert not loaded(["--version"])


def test_eval_does_without_torch(toy):
    run_file = toy / "run.trec"
    run_file.write_text("q1 Q0 d3 1 2.0 x\nq2 Q0 d5 1 2.0 x\nq3 Q0 d1 1 1.0 x\n")
    heavy = {"faiss", "torch", "transformers", "scipy", "pandas", "rich"}
    assert not loaded(["eval", str(run_file), str(toy / "qrels.txt")], heavy=heavy)
