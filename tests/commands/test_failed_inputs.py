"""A command that fails on its input leaves nothing that is in the way of the next one."""

import errno
import io
import itertools
import json
import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from denserk.commands.app import run
from tests.support.benchmark_copies import write_beir
from tests.support.faults import contents
from tests.support.finetuning import write_examples
from tests.support.tiny_models import write_writer
from tests.support.toy import VOCABULARY, write_toy

GOOD = [json.dumps({"id": f"d{n}", "vector": [n, 1.0]}) for n in range(4)]
BROKEN_VECTORS = {
    "keys.jsonl": [*GOOD, json.dumps({"id": "d9", "embedding": [1, 2]})],
    "vectors.csv": ["id,vector", 'd1,"[1.0, 2.0]"'],
    "empty.jsonl": [],
    "twice.jsonl": [*GOOD, GOOD[0]],
    "cut.jsonl": [*GOOD, GOOD[0][:9]],
}
PRETRAIN = ["--device", "cpu", "--batch-size", "2", "--max-steps", "1", "--max-length", "16"]
TRAIN = ["--device", "cpu", "--batch-size", "2", "--max-steps", "1", "--group-size", "2"]


@pytest.fixture(scope="module")
def prepared_folder(tiny, tmp_path_factory):
    prepared = tmp_path_factory.mktemp("prepared") / "work"
    write_toy(prepared)
    shutil.copytree(tiny("bert", head=True), prepared / "model")
    write_examples(prepared / "train.jsonl", range(8))
    (prepared / "good.jsonl").write_text("".join(f"{line}\n" for line in GOOD))
    return prepared


def write(name, lines):
    Path(name).write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize("source", [*BROKEN_VECTORS, "- with other keys", "- that is cut"])
@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_an_index_of_broken_vectors(folder, monkeypatch, source, kind):
    for name, lines in BROKEN_VECTORS.items():
        write(name, lines)
    broken = source
    if source.startswith("-"):
        name = "cut.jsonl" if "cut" in source else "keys.jsonl"
        stream = io.BytesIO(Path(name).read_bytes())
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=stream))
        broken = "-"
    before = contents(folder)
    index = ["index", "--type", kind, "--output", "out", "--quiet", "--input"]
    assert run([*index, broken]) == 1
    assert contents(folder) == before
    assert run([*index, "good.jsonl"]) == 0
    built = contents(folder)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"{}\n")))
    assert run([*index, broken, "--overwrite"]) == 1
    assert contents(folder) == built
    search = ["search", "--index", "out", "--encoded-queries", "good.jsonl", "--output", "run"]
    assert run([*search, "--quiet"]) == 0


BROKEN_CORPORA = {
    "keys.jsonl": [json.dumps({"_id": "d1", "words": "x"})],
    "empty.jsonl": [],
    "twice.jsonl": [json.dumps({"_id": "d1", "text": "x"})] * 2,
    "cut.jsonl": ['{"_id": "d1", "text": "x"}', '{"_id": "d2", "te'],
}


READERS = {
    "bm25": ["index", "--type", "bm25"],
    "encode": ["encode", "--model", "model", "--device", "cpu"],
    "pretrain": ["pretrain", "--objective", "mlm", "--model", "model", *PRETRAIN],
    "new model": ["pretrain", "--objective", "mlm", "--architecture", "tiny", *PRETRAIN],
}
CASES = list(itertools.product(READERS, BROKEN_CORPORA))
for reader in ("pretrain", "new model"):  # documents to pre-train on need no ids
    CASES.remove((reader, "twice.jsonl"))


@pytest.mark.parametrize(("reader", "name"), CASES)
def test_what_is_made_of_a_broken_corpus(folder, reader, name):
    command = [*READERS[reader], "--corpus"]
    write("broken.jsonl", BROKEN_CORPORA[name])
    output = ["--output", "out", "--quiet"]
    before = contents(folder)
    assert run([*command, "broken.jsonl", *output]) in (1, 2)
    assert contents(folder) == before
    assert not Path("out").exists()
    assert run([*command, "corpus.jsonl", *output]) == 0
    built = contents(folder)
    assert run([*command, "broken.jsonl", *output, "--overwrite"]) in (1, 2)
    assert contents(folder) == built


@pytest.mark.parametrize("blocks", [0, 6])
def test_a_stream_that_breaks_off_leaves_its_finished_blocks_alone(folder, monkeypatch, blocks):
    lines = [json.dumps({"_id": f"d{n}", "text": "the river"}) for n in range(2 * blocks)]
    stream = "".join(f"{line}\n" for line in [*lines, '{"_id": "d9", "te']).encode()
    encode = ["encode", "--model", "model", "--device", "cpu", "--block-size", "2", "--quiet"]
    encode += ["--workers", "1", "--output", "out"]
    assert run([*encode, "--corpus", "corpus.jsonl"]) == 0
    before = contents(folder)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(stream)))
    assert run([*encode, "--corpus", "-", "--overwrite"]) == 1
    assert not list(folder.glob(".*"))
    if blocks == 0:
        assert contents(folder) == before
        return
    assert json.loads(Path("out/manifest.json").read_text())["complete"] is False
    whole_stream = "".join(f"{line}\n" for line in lines).encode()
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(whole_stream)))
    assert run([*encode, "--corpus", "-", "--resume"]) == 0


@pytest.mark.parametrize("broken", ["train", "dev"])
@pytest.mark.parametrize("kind", ["retriever", "cross-encoder"])
def test_a_training_on_broken_examples(folder, broken, kind):
    write("broken.jsonl", ['{"query": "x", "answers": ["y"]}'])
    finetune = ["finetune", "--model", "model", *TRAIN, "--output", "out", "--quiet"]
    if kind == "cross-encoder":
        finetune += ["--representation", "cross-encoder"]
    data = ["--train-data", "train.jsonl"]
    if broken == "train":
        broken_data = ["--train-data", "broken.jsonl"]
    else:
        broken_data = [*data, "--dev-data", "broken.jsonl", "--eval-steps", "1"]
    before = contents(folder)
    assert run([*finetune, *broken_data]) in (1, 2)
    assert contents(folder) == before
    assert run([*finetune, *data]) == 0
    built = contents(folder)
    assert run([*finetune, *broken_data, "--overwrite"]) in (1, 2)
    assert contents(folder) == built


def test_vectors_that_cannot_be_converted(folder):
    write("broken.jsonl", BROKEN_VECTORS["keys.jsonl"])
    before = contents(folder)
    convert = ["convert", "broken.jsonl", "out", "--kind", "vectors", "--quiet", "--to"]
    for vector_format in ("npy", "pyserini-faiss", "parquet", "jsonl"):
        assert run([*convert, vector_format]) == 1
        assert contents(folder) == before


def test_passages_that_no_text_can_be_generated_for(folder):
    write_writer(folder / "generator", "t5", VOCABULARY)
    write("broken.jsonl", ['{"_id": "d1", "text": "x"}', '{"_id": "d1", "text": "x"}'])
    before = contents(folder)
    generate = ["generate", "--queries-model", "generator", "--output", "out", "--quiet"]
    assert run([*generate, "--corpus", "broken.jsonl"]) == 1
    assert contents(folder) == before


@pytest.mark.parametrize("content", ["mine\n", ""])
def test_a_lock_of_another_program_stays(folder, content):
    lock = Path(".out.lock")
    lock.write_text(content)
    assert run(["index", "--input", "good.jsonl", "--output", "out", "--quiet"]) == 0
    assert lock.read_text() == content
    lock_of_denserks_name = Path(".new.denserk.lock")
    lock_of_denserks_name.write_text("mine\n")
    assert run(["index", "--input", "good.jsonl", "--output", "new", "--quiet"]) == 2
    assert lock_of_denserks_name.read_text() == "mine\n"
    assert not Path("new").exists()


def test_a_lock_of_another_program_within_an_output_is_not_removed(folder):
    index = ["index", "--input", "good.jsonl", "--output", "out", "--quiet"]
    assert run(index) == 0
    lock = Path("out/.db.lock")
    lock.write_text("mine\n")
    assert run([*index, "--overwrite"]) == 2
    assert lock.read_text() == "mine\n"


def test_an_index_is_replaced_where_a_link_leads(folder):
    Path("disk").mkdir()
    Path("out").symlink_to("disk")
    index = ["index", "--input", "good.jsonl", "--output", "out", "--quiet"]
    assert run(index) == 0
    assert run([*index, "--type", "hnsw", "--overwrite"]) == 0
    assert Path("out").is_symlink()
    assert json.loads(Path("disk/manifest.json").read_text())["settings"]["type"] == "hnsw"
    assert not list(folder.glob(".*"))


def test_outputs_that_are_mount_points_are_filled_in_place(folder, monkeypatch):
    """A folder that cannot be renamed, as that of a container's volume."""
    output = folder / "out"
    output.mkdir()
    inode = output.stat().st_ino
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == output)
    index = ["index", "--input", "good.jsonl", "--output", "out", "--quiet"]
    assert run(index) == 0
    assert run([*index, "--type", "hnsw", "--overwrite"]) == 0
    assert output.stat().st_ino == inode
    assert sorted(path.name for path in output.iterdir()) == ["docid", "index", "manifest.json"]
    search = ["search", "--index", "out", "--encoded-queries", "good.jsonl", "--output", "run"]
    assert run([*search, "--quiet"]) == 0


def test_the_working_folder_is_filled_in_place(folder, monkeypatch):
    """With --output ., the shell stays in a folder that is there."""
    output = folder / "out"
    output.mkdir()
    inode = output.stat().st_ino
    monkeypatch.chdir(output)
    index = ["index", "--input", "../good.jsonl", "--output", ".", "--quiet"]
    assert run(index) == 0
    assert run([*index, "--type", "hnsw", "--overwrite"]) == 0
    assert json.loads(Path("manifest.json").read_text())["settings"]["type"] == "hnsw"
    assert output.stat().st_ino == inode
    encode = ["encode", "--model", "../model", "--device", "cpu", "--output", ".", "--quiet"]
    for _ in range(2):
        assert run([*encode, "--corpus", "../corpus.jsonl", "--overwrite"]) == 0
        assert output.stat().st_ino == inode
    assert not list(output.glob(".*.part"))


def test_a_real_mount_point(folder):
    """The same with a volume, where the system lets the test mount one."""
    output = folder / "out"
    output.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "none", output], check=False)
    if mounted.returncode != 0:
        pytest.skip("mounting needs rights that this user does not have")
    try:
        index = ["index", "--input", "good.jsonl", "--output", "out", "--quiet"]
        assert run(index) == 0
        assert run([*index, "--type", "hnsw", "--overwrite"]) == 0
        encode = ["encode", "--model", "model", "--device", "cpu", "--output", "out", "--quiet"]
        assert run([*encode, "--corpus", "corpus.jsonl", "--overwrite"]) == 0
        assert run([*encode, "--corpus", "corpus.jsonl", "--overwrite"]) == 0
        assert output.is_mount()
        assert not [path for path in output.iterdir() if path.name.startswith(".")]
    finally:
        subprocess.run(["umount", output], check=True)


def test_an_old_folder_that_cannot_be_put_back_at_once_is_there_after_the_next_command(
    folder, monkeypatch
):
    encode = ["encode", "--model", "model", "--device", "cpu", "--output", "out", "--quiet"]
    assert run([*encode, "--corpus", "corpus.jsonl"]) == 0
    before = contents(folder)
    broken = SimpleNamespace(buffer=io.BytesIO(b'{"_id": "d9", "te'))
    copymode = shutil.copymode
    calls: list[str] = []

    def fail_after_the_first(source, target):
        calls.append(target)
        if len(calls) > 1:
            raise OSError(errno.EIO, "Input/output error")
        copymode(source, target)

    with monkeypatch.context() as patch:
        patch.setattr("sys.stdin", broken)
        patch.setattr(shutil, "copymode", fail_after_the_first)
        assert run([*encode, "--corpus", "-", "--overwrite"]) == 1
    assert len(calls) == 2
    assert run([*encode, "--corpus", "corpus.jsonl"]) == 2
    assert contents(folder) == before


def test_a_benchmark_of_a_broken_corpus(cache, tiny):
    write_beir(cache, "scifact")
    corpus = next(cache.rglob("corpus.jsonl"))
    whole_corpus = corpus.read_text()
    corpus.write_text(whole_corpus + '{"_id": "d9", "te')
    benchmark = ["benchmark", "beir/scifact", "--model", str(tiny()), "--device", "cpu", "--quiet"]
    assert run([*benchmark, "--output", "runs"]) == 1
    assert not Path("runs").exists()
    corpus.write_text(whole_corpus)
    assert run([*benchmark, "--output", "runs"]) == 0


def test_what_a_killed_command_was_to_replace_comes_back(folder):
    """The state between the moment at which an old folder is put aside and the first block."""
    encode = ["encode", "--model", "model", "--device", "cpu", "--corpus", "corpus.jsonl"]
    encode += ["--output", "out", "--quiet"]
    assert run(encode) == 0
    before = contents(folder)
    aside = folder / ".out.00000000.part"
    Path("out").rename(aside)
    Path("out").mkdir()
    shutil.copy(aside / "manifest.json", "out")
    manifest = json.loads(Path("out/manifest.json").read_text())
    Path("out/manifest.json").write_text(json.dumps({**manifest, "complete": False}))
    assert run([*encode, "--resume"]) == 0
    assert contents(folder) == before
    shutil.copytree("out", aside)
    shutil.rmtree("out")
    Path("out").mkdir()
    Path("out/thesis.tex").write_text("mine")
    assert run([*encode, "--overwrite"]) == 2
    assert Path("out/thesis.tex").read_text() == "mine"
