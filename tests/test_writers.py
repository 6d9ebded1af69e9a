"""The short version of `python -m tests.support.writers`: three writers for each command."""

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_writers_of_one_output_do_not_mix_it(tmp_path):
    command = [sys.executable, "-m", "tests.support.writers", str(tmp_path / "work"), "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
