"""The recipe for Ray Data in docs/howto/several-gpus.md runs with Ray, as the page has it.

Two workers stand for its eight, with small batches. Two GPUs that are not there are declared to
Ray, so that `num_gpus=1` finds one for each worker; the model then computes on the CPU.
"""

import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset
import pytest

import denserk
from denserk.io.vectors import open_vectors
from tests.docs.test_readme import ROOT, blocks, commands, write_hub
from tests.support import faults
from tests.support.toy import WORDS

PAGE = ROOT / "docs" / "howto" / "several-gpus.md"
PASSAGES = 300
SMALLER = {"batch_size=4096": "batch_size=50", "size=8": "size=2"}
SMALLER |= {'device="auto"': 'device="auto", dtype="float32"'}
START = """
import ray

ray.init(num_cpus=4, num_gpus=2, include_dashboard=False)
ray.data.DataContext.get_current().wait_for_min_actors_s = 300  # both workers take part
"""
TRACED = """
class Traced(Encode):
    def __call__(self, batch):
        Path(f"{TRACES}/{os.getpid()}").touch()
        return super().__call__(batch)


Encode = Traced
"""


def recipe(traces: Path) -> str:
    """Return the page's program, for two workers that each leave a trace in a folder."""
    (code,) = (
        code for _, language, _, code in blocks(PAGE) if language == "python" and "ray" in code
    )
    for found, smaller in SMALLER.items():
        assert code.count(found) == 1
        code = code.replace(found, smaller)
    end_of_class = code.index("\nfields = ")
    traced = f"import os\nfrom pathlib import Path\nTRACES = {str(traces)!r}\n{TRACED}"
    return START + code[:end_of_class] + traced + code[end_of_class:]


def write_passages(path: Path) -> None:
    """Write passages of all lengths; some lack a title, and ids would be numbers if read so."""
    drawn = random.Random(7)
    lines = []
    for number in range(PASSAGES):
        text = " ".join(drawn.choices(WORDS, k=1 + number % 60))
        passage: dict[str, Any] = {"_id": f"{number:04d}", "text": text}
        if number % 3:
            passage["title"] = drawn.choice(WORDS)
        if number % 5 == 0:
            passage["metadata"] = {"number": number}
        lines.append(json.dumps(passage) + "\n")
    path.write_text("".join(lines))


@pytest.mark.peer
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
def test_the_recipe_for_ray_writes_the_vectors_of_encode(toy, tmp_path):
    write_passages(toy / "corpus.jsonl")
    write_hub(tmp_path / "hub")
    traces = tmp_path / "traces"
    traces.mkdir()
    (toy / "recipe.py").write_text(recipe(traces))
    ray_files = tempfile.mkdtemp(prefix="ray-")  # the path of a socket is short
    environment = {
        **os.environ,
        "HF_HUB_CACHE": str(tmp_path / "hub"),
        "PYTHONPATH": str(ROOT),
        "RAY_TMPDIR": ray_files,
        "RAY_AUTH_MODE": "disabled",  # with it, Ray writes a token to the home folder
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    options = {"cwd": toy, "env": environment, "timeout": 600}
    program = [sys.executable, "recipe.py"]
    process = subprocess.run(program, capture_output=True, text=True, check=False, **options)
    shutil.rmtree(ray_files)
    assert process.returncode == 0, process.stderr[-4000:]
    assert "deprecated" not in process.stderr
    assert len(list(traces.iterdir())) == 2

    def run(*words: str) -> None:
        finished = faults.denserk(*words, **options)
        assert finished.returncode == 0, finished.stderr

    encode = ("encode", "--model", "minilm", "--corpus", "corpus.jsonl", "--dtype", "float32")
    run(*encode, "--output", "vectors")
    expected: dict[str, Any] = {}
    for block in open_vectors(toy / "vectors").blocks():
        expected |= zip(block.ids, block.vectors, strict=True)
    rows = pyarrow.dataset.dataset(toy / "vectors-parquet").to_table().to_pydict()
    assert len(rows["docid"]) == PASSAGES
    for docid, vector in zip(rows["docid"], rows["vector"], strict=True):
        np.testing.assert_allclose(np.array(vector), expected[docid], rtol=0, atol=1e-6)

    from_page = [words for words in commands(PAGE) if "ray-index" in words]
    assert [words[0] for words in from_page] == ["index", "search"]
    for words in from_page:
        run(*words)
    run("search", "--index", "vectors", "--topics", "queries.tsv", "--output", "expected.trec")
    expected_run = denserk.Run.load(toy / "expected.trec")
    found_run = denserk.Run.load(toy / "ray.trec")
    assert found_run.keys() == expected_run.keys()
    for qid, hits in expected_run.items():
        assert found_run[qid] == pytest.approx(hits, abs=1e-6)
