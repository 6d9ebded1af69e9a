"""docs/howto/hub.md: a model is published, and used by its name; the hub is a folder here."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import constants

import denserk
from denserk.api.options import EncoderOptions
from denserk.commands.app import run
from denserk.errors import ModelError
from denserk.io.model_files import find_model
from tests.support.finetuning import tune, write_examples

NAME = "me/retriever"
TEXTS = ["the old river", "a cat and a dog"]
CPU: EncoderOptions = {"device": "cpu", "backend": "torch"}


@pytest.fixture(scope="module")
def trained(tiny, tmp_path_factory):
    """Folders of two models: of one step, and of two."""
    top = tmp_path_factory.mktemp("runs")
    train = write_examples(top / "train.jsonl", range(8))
    for steps in (1, 2):
        options = {"representation": "mean", "max_steps": steps, "dev_data": train}
        tune(top / f"retriever-{steps}", tiny("bert"), train, **options, eval_steps=1)
    return [top / "retriever-1", top / "retriever-2"]


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The cache of the hub, an empty folder; nothing is fetched."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def upload(hub, folder, commit, *references):
    """Copy all files of a folder, as `hf upload` does, and have branches or tags lead there."""
    repository = hub / f"models--{NAME.replace('/', '--')}"
    shutil.copytree(folder, repository / "snapshots" / commit)
    for reference in references:
        path = repository / "refs" / reference
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(commit)


def encoded(model):
    return denserk.Encoder.load(str(model), **CPU).encode_passages(TEXTS)


def test_the_folder_holds_the_model_and_names_no_folder_of_this_machine(trained):
    for folder in trained:
        files = [path.relative_to(folder).as_posix() for path in folder.rglob("*")]
        page = (Path(__file__).parents[2] / "docs/howto/hub.md").read_text()
        for name in files:
            is_of_tokenizer = name.startswith("tokenizer")
            assert is_of_tokenizer or f"`{name.partition('/')[0]}" in page, name
        for path in folder.rglob("*.*"):
            if path.is_file():
                assert str(folder.parent).encode() not in path.read_bytes(), path


def test_it_is_used_by_its_name(trained, hub, tmp_path, monkeypatch, capsys):
    upload(hub, trained[0], "1" * 40, "main")
    monkeypatch.chdir(tmp_path)
    np.testing.assert_array_equal(encoded(NAME), encoded(trained[0]))
    Path("corpus.jsonl").write_text('{"_id": "d1", "text": "the river"}\n')
    Path("queries.tsv").write_text("q1\twater\n")
    cpu = ["--device", "cpu", "--set", "backend=torch", "--quiet"]
    encode = ["encode", "--model", NAME, "--corpus", "corpus.jsonl", "--output", "vectors", *cpu]
    assert run(encode) == 0
    search = ["search", "--index", "vectors", "--topics", "queries.tsv", "--overwrite", *cpu]
    assert run([*search, "--output", "run.trec"]) == 0
    # a newer version of the model does not search what an older one encoded
    upload(hub, trained[1], "2" * 40, "main")
    capsys.readouterr()
    assert run([*search, "--output", "run.trec"]) == 1
    assert NAME in capsys.readouterr().err


def test_a_revision_is_a_branch_a_tag_or_a_commit(trained, hub):
    upload(hub, trained[0], "1" * 40, "v1")
    upload(hub, trained[1], "2" * 40, "main", "for/ci")
    first, second = encoded(trained[0]), encoded(trained[1])
    assert not np.array_equal(first, second)
    for name, expected in (
        (NAME, second),
        (f"{NAME}@main", second),
        (f"{NAME}@for/ci", second),
        (f"{NAME}@v1", first),
        (f"{NAME}@{'1' * 40}", first),
    ):
        np.testing.assert_array_equal(encoded(name), expected)
        assert find_model(name)[0] == name
    with pytest.raises(ModelError, match="me/retriever@v2 is no folder") as caught:
        find_model(f"{NAME}@v2")
    assert f"hf download {NAME} --revision v2" in str(caught.value.hint)


def test_a_model_that_is_made_of_it_names_it_as_its_base(trained, hub, tmp_path):
    upload(hub, trained[0], "1" * 40, "main", "v1")
    train = write_examples(tmp_path / "train.jsonl", range(8))
    for name in (NAME, f"{NAME}@v1", str(next(hub.glob("*/snapshots/*")))):
        tune(tmp_path / "next", name, train, representation="mean", max_steps=1, overwrite=True)
        card = (tmp_path / "next" / "README.md").read_text()
        assert f"\nbase_model: {NAME}\n" in card
        assert f"https://huggingface.co/{NAME})" in card


@pytest.mark.peer
def test_sentence_transformers_opens_it_by_its_name(trained, hub):
    pytest.importorskip("sentence_transformers", minversion="6.0")
    upload(hub, trained[0], "1" * 40, "main")
    program = (
        "import sys, numpy\n"
        "from sentence_transformers import SentenceTransformer\n"
        f"vectors = SentenceTransformer({NAME!r}, device='cpu').encode({TEXTS!r})\n"
        "numpy.save(sys.argv[1], vectors)\n"
    )
    environment = os.environ | {"HF_HUB_CACHE": str(hub), "HF_HUB_OFFLINE": "1"}
    output = hub / "vectors.npy"
    command = [sys.executable, "-c", program, str(output)]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    np.testing.assert_allclose(np.load(output), encoded(trained[0]), rtol=0, atol=1e-5)
