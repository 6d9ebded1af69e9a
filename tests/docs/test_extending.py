"""What docs/extending.md shows is so: each diff applies to a copy of the package, and works."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import transformers

from tests.support.tiny_models import tiny_config, tiny_tokenizer, write_tiny
from tests.support.toy import VOCABULARY

ROOT = Path(__file__).parents[2]
TITLE = re.compile(r"^## (.*)$", re.MULTILINE)
_, *PARTS = TITLE.split((ROOT / "docs/extending.md").read_text("utf-8"))
SECTIONS = dict(zip(PARTS[::2], PARTS[1::2], strict=True))
MOST_LINES = {  # that an addition may need
    "A pooling": 25,
    "A backbone": 20,
    "A loss": 40,
    "A file format": 60,
    "An index engine": 150,
    "A benchmark, a preset": 20,
}


def blocks(section: str, language: str) -> list[str]:
    """The code blocks of a section."""
    return re.findall(rf"^```{language}\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("title", SECTIONS)
def test_a_diff_applies_and_works(title, tmp_path):
    section, copy, work = SECTIONS[title], tmp_path / "copy", tmp_path / "work"
    shutil.copytree(
        ROOT / "denserk", copy / "denserk", ignore=shutil.ignore_patterns("__pycache__")
    )
    for diff in blocks(section, "diff"):
        subprocess.run(["git", "apply", "-"], input=diff, text=True, cwd=copy, check=True)
        added = sum(line.startswith("+") and line[:3] != "+++" for line in diff.splitlines())
        assert added <= MOST_LINES[title]
    write_tiny(work / "model", "bert", VOCABULARY)
    tokenizer = tiny_tokenizer("roberta", VOCABULARY)
    settings = tiny_config("roberta", len(tokenizer)).to_dict() | {"model_type": "camembert"}
    config = transformers.CamembertConfig(**settings)
    transformers.CamembertForMaskedLM(config).save_pretrained(work / "camembert")
    tokenizer.save_pretrained(work / "camembert")
    environment = os.environ | {"PYTHONPATH": str(copy), "CUDA_VISIBLE_DEVICES": ""}
    for code in blocks(section, "python"):
        checked = f"import denserk\nassert denserk.__file__.startswith({str(copy)!r})\n{code}"
        ran = subprocess.run(
            [sys.executable, "-c", checked],
            cwd=work,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert ran.returncode == 0, ran.stderr
