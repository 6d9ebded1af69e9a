"""The documentation as a site: it builds without a warning, and options are filled in."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs")
    build = ["mkdocs", "build", "-f", ".mkdocs.yml", "--strict", "-d", str(tmp_path / "site")]
    process = subprocess.run(
        [sys.executable, "-m", *build], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    page = (tmp_path / "site" / "commands" / "finetune.html").read_text("utf-8")
    common, rare = page.split("All options and settings")
    assert "<code>--group-size &lt;int&gt;</code></td><td>" in common
    assert "<code>negatives-x-device=yes|no</code></td><td>" not in common
    assert "<code>negatives-x-device=yes|no</code></td><td>" in rare
    assert not list((tmp_path / "site").rglob("*.sh"))
