"""What the command line must not load: no help is worth a second of waiting for torch."""

import subprocess
import sys

from denserk.cli.app import app, run

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


def test_help_loads_nothing_heavy(capsys):
    run(["--version"])  # every command registers itself
    commands = [command.name for command in app.registered_commands]
    assert {"convert", "encode", "eval", "index", "search"} <= set(commands)
    assert not loaded(["--help"], *([name, "--help"] for name in commands))


def test_version_loads_nothing_heavy():
    assert not loaded(["--version"])


def test_eval_does_without_torch(toy):
    run_file = toy / "run.trec"
    run_file.write_text("q1 Q0 d3 1 2.0 x\nq2 Q0 d5 1 2.0 x\nq3 Q0 d1 1 1.0 x\n")
    assert not loaded(["eval", str(run_file), str(toy / "qrels.txt")])
