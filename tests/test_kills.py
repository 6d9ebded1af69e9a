"""The short version of `python -m tests.support.kills`: a few signals for each command."""

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_killed_commands_come_to_the_same_bytes(tmp_path):
    command = [sys.executable, "-m", "tests.support.kills", str(tmp_path / "work"), "15"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
