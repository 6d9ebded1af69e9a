import contextlib
import io
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from denserk.commands.app import run
from denserk.io.outputs import scratch_folder
from tests.support.faults import contents
from tests.support.finetuning import write_examples
from tests.support.toy import write_toy

DENSERK = [sys.executable, "-m", "denserk"]
FAST = ["--device", "cpu", "--batch-size", "4", "--max-steps", "2", "--save-steps", "1"]


@pytest.fixture(scope="module")
def prepared_folder(tmp_path_factory, tiny, tiny_reranker):
    """A folder with corpus.jsonl, queries.tsv, qrels.txt, a model, vectors, an index and runs."""
    prepared = tmp_path_factory.mktemp("prepared") / "work"
    write_toy(prepared)
    shutil.copytree(tiny(), prepared / "model")
    shutil.copytree(tiny_reranker(), prepared / "reranker")
    write_examples(prepared / "train.jsonl", range(8))
    with contextlib.chdir(prepared):
        assert run([*ENCODE, "--output", "vectors"]) == 0
        assert run(["index", "--input", "vectors", "--output", "index"]) == 0
        search = ["search", "--index", "index", "--topics", "queries.tsv", "--hits", "4"]
        assert run([*search, "--output", "a.trec"]) == 0
        assert run([*search, "--output", "b.trec", "--tag", "b"]) == 0
    return prepared


ENCODE = ["encode", "--model", "model", "--corpus", "corpus.jsonl"]
TRAIN = ["finetune", "--model", "model", "--train-data", "train.jsonl", "--group-size", "2", *FAST]
MINE = ["mine-negatives", "--topics", "queries.tsv", "--qrels", "qrels.txt", "--run", "a.trec"]
MINE += ["--corpus", "corpus.jsonl", "--depth", "4", "--num-negatives", "1", "--skip-missing"]
RERANK = ["rerank", "--model", "reranker", "--run", "a.trec", "--topics", "queries.tsv"]
RERANK += ["--corpus", "corpus.jsonl"]
CONVERT = ["convert", "model", "--kind", "model", "--representation", "cls"]
FOLDERS = {
    "encode": [*ENCODE, "--output"],
    "index": ["index", "--input", "vectors", "--output"],
    "bm25": ["index", "--corpus", "corpus.jsonl", "--type", "bm25", "--output"],
    "convert vectors": ["convert", "vectors", "--to", "pyserini-faiss"],
    "convert model": [*CONVERT, "--to", "denserk"],
    "finetune": [*TRAIN, "--output"],
}
FILES = {
    "search": ["search", "--index", "index", "--topics", "queries.tsv", "--output"],
    "fuse": ["fuse", "a.trec", "b.trec", "--output"],
    "rerank": [*RERANK, "--output"],
    "mine": [*MINE, "--output"],
    "convert": ["convert", "corpus.jsonl", "--to", "anserini"],
}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_is_replaced_only_if_denserk_made_all_of_it_and_it_holds_no_input(
    folder, name, capfd
):
    command = FOLDERS[name]
    foreign = folder / "thesis"
    (foreign / "logs").mkdir(parents=True)
    (foreign / "logs" / "letters.txt").write_text("x")
    before = contents(folder)
    capfd.readouterr()
    for flag in ([], ["--overwrite"]):
        assert run([*command, "thesis", *flag]) == 2
        assert "--overwrite" not in capfd.readouterr().err  # which would not help
    assert contents(folder) == before
    assert run([*command, "out"]) == 0
    assert run([*command, "out"]) == 2
    assert run([*command, "out", "--overwrite"]) == 0
    source = next(word for word in command if word in {"model", "vectors", "corpus.jsonl"})
    inside = folder / "out" / source
    if (folder / source).is_dir():
        shutil.copytree(folder / source, inside)
    else:
        shutil.copy(folder / source, inside)
    before = contents(folder)
    moved = [f"out/{word}" if word == source else word for word in command]
    assert run([*moved, "out", "--overwrite"]) == 2
    assert run([*command, source, "--overwrite"]) == 2
    capfd.readouterr()
    assert run([*command, "out", "--overwrite"]) == 2
    assert source in capfd.readouterr().err
    assert contents(folder) == before


def test_an_output_may_have_the_name_of_a_choice(folder):
    command = [*FOLDERS["bm25"], "bm25"]
    assert run(command) == 0
    assert run([*command, "--overwrite"]) == 0


@pytest.mark.parametrize("listed", [3, None, {"index": 1}, [3]])
def test_a_broken_list_of_an_export_names_the_file_that_is_not_in_it(folder, listed, capfd):
    command = [*FOLDERS["convert vectors"], "out"]
    assert run(command) == 0
    Path("out/.denserk").write_text(json.dumps({"files": listed}))
    before = contents(folder)
    capfd.readouterr()
    assert run([*command, "--overwrite"]) == 2
    assert "out holds docid, which denserk did not write" in capfd.readouterr().err
    assert contents(folder) == before


def test_a_file_that_is_replaced_loses_its_manifest(folder):
    """It was made from something else."""
    manifest = Path("a.trec.manifest.json")
    before = manifest.read_bytes()
    assert run(["fuse", "b.trec", "absent.trec", "--output", "a.trec", "--overwrite"]) == 2
    assert manifest.read_bytes() == before
    assert run(["convert", "b.trec", "a.trec", "--overwrite"]) == 0
    assert not manifest.exists()
    manifest.write_text('{"name": "of another tool"}')
    assert run(["convert", "b.trec", "a.trec", "--overwrite"]) == 0
    assert manifest.exists()


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_replaced_only_when_asked_and_never_an_input(folder, name, capfd):
    command = FILES[name]
    source = next(word for word in command if word in {"a.trec", "queries.tsv", "corpus.jsonl"})
    (folder / "out").write_text("mine")
    assert run([*command, "out"]) == 2
    assert "--overwrite" in capfd.readouterr().err
    assert (folder / "out").read_text() == "mine"
    assert run([*command, "out", "--overwrite"]) == 0
    assert (folder / "out").read_text() != "mine"
    before = contents(folder)
    assert run([*command, source, "--overwrite"]) == 2
    os.link(source, "another-name")
    assert run([*command, "another-name", "--overwrite"]) == 2
    Path("another-name").unlink()
    assert contents(folder) == before


PICTURE = ["eval", "a.trec", "qrels.txt", "--quiet", "--plot"]
SINGLE_FILES = {
    **FILES,
    "encode to tevatron": [*ENCODE, "--output-format", "tevatron", "--output"],
    "convert vectors to tevatron": ["convert", "vectors", "--to", "tevatron"],
    "generate": ["generate", "--queries-model", "model", "--corpus", "corpus.jsonl", "--output"],
    "plot": PICTURE,
}


@pytest.mark.parametrize("flags", [[], ["--overwrite"]], ids=["", "overwrite"])
@pytest.mark.parametrize("name", SINGLE_FILES)
def test_a_folder_in_the_place_of_an_output_file_is_named_before_the_work(
    folder, name, flags, capfd
):
    suffix = ".png" if name == "plot" else ".jsonl"
    occupied = folder / f"out{suffix}"
    occupied.mkdir()
    before = contents(folder)
    assert run([*SINGLE_FILES[name], occupied.name, *flags]) == 2
    error = capfd.readouterr().err.splitlines()[-2:]
    assert error[0] == f"error: {occupied.name} is a folder; a file is expected"
    assert "room on the disk" not in error[1]
    assert occupied.is_dir()
    assert contents(folder) == before


@pytest.mark.parametrize("option", ["--report", "--plot"])
def test_a_command_that_fails_leaves_no_empty_folders(folder, option):
    (folder / "broken.trec").write_text("q1 Q0 d1 1 no x\n")
    before = contents(folder)
    command = ["eval", "broken.trec", "qrels.txt", "--quiet", option, "new/folder/out.png"]
    assert run(command) == 1
    assert contents(folder) == before
    assert not (folder / "new").exists()


def test_an_empty_folder_that_was_there_stays(folder):
    (folder / "broken.trec").write_text("q1 Q0 d1 1 no x\n")
    (folder / "mine").mkdir()
    assert run(["eval", "broken.trec", "qrels.txt", "--quiet", "--report", "mine/page"]) == 1
    assert (folder / "mine").is_dir()
    assert not (folder / "mine" / "page").exists()


def test_a_file_in_the_place_of_a_folder_is_named(folder, capfd):
    command = ["eval", "a.trec", "qrels.txt", "--quiet", "--report", "a.trec/page"]
    assert run(command) == 1
    error, hint = capfd.readouterr().err.splitlines()[-2:]
    assert error == "error: a.trec/page/index.html cannot be written: Not a directory"
    assert "a file stands where" in hint


def test_a_report_is_an_output_too(folder):
    command = ["eval", "a.trec", "qrels.txt", "--quiet", "--report", "page"]
    page = folder / "page" / "index.html"
    page.parent.mkdir()
    page.write_text("mine")
    assert run(command) == 2
    assert page.read_text() == "mine"
    assert run([*command, "--overwrite"]) == 0
    assert page.read_text() != "mine"


def test_pipes_and_devices_stay_what_they_are(folder):
    os.mkfifo("pipe")
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(Path("pipe").read_bytes()))
    reader.start()
    assert run([*FILES["search"], "pipe"]) == 0
    reader.join()
    assert len(received[0].splitlines()) == 18
    assert stat.S_ISFIFO(Path("pipe").stat().st_mode)
    assert run([*FILES["search"], "/dev/null"]) == 0


@pytest.mark.parametrize("command", [FOLDERS["encode"], FILES["search"], FOLDERS["finetune"]])
def test_the_second_writer_stops_and_names_the_first(folder, command, capfd):
    code = """
import sys, time
from denserk.io.outputs import claim
with claim([sys.argv[1]]):
    print("held", flush=True)
    time.sleep(60)
"""
    holder = subprocess.Popen(
        [sys.executable, "-c", code, "out"], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    assert run([*command, "out"]) == 1
    err = capfd.readouterr().err
    assert f"process {holder.pid}" in err
    assert len([line for line in err.splitlines() if line.startswith("error: ")]) == 1
    holder.kill()
    holder.communicate()
    # a killed process leaves its lock, and the next one takes it over
    assert (folder / ".out.denserk.lock").exists()
    assert run([*command, "out"]) == 0
    assert not list(folder.glob(".*"))


@pytest.mark.parametrize(
    ("signum", "status", "name", "vector_format"),
    [
        (signal.SIGTERM, 143, "SIGTERM", "npy"),
        pytest.param(signal.SIGINT, 130, "Ctrl-C", "jsonl", marks=pytest.mark.slow),
    ],
)
def test_a_signal_says_what_was_kept_and_leaves_nothing_behind(
    folder, monkeypatch, signum, status, name, vector_format
):
    text = "the old river " * 2000  # together more than is read ahead to detect the format
    lines = "".join(f'{{"_id": "p{n}", "text": "{text}"}}\n' for n in range(64)).encode()
    command = ["encode", "--model", "model", "--corpus", "-", "--output", "out"]
    command += ["--output-format", vector_format, "--block-size", "2", "--backend", "torch"]
    process = subprocess.Popen(
        [*DENSERK, *command],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signum, signal.SIG_DFL),  # also under nohup
    )
    assert process.stdin is not None
    process.stdin.write(lines)  # it stays open: the command waits for more
    deadline = time.monotonic() + 60
    work_in_progress = "out/block-00003.npy" if vector_format == "npy" else ".out.*.part"
    while not list(folder.glob(work_in_progress)):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signum)
    err = process.communicate(timeout=60)[1].decode()
    assert process.returncode == status, err
    (message,) = (line for line in err.splitlines() if "interrupted" in line)
    assert name in message
    assert not list(folder.rglob(".*"))
    if vector_format != "npy":
        assert "no output" in message
        assert not (folder / "out").exists()
        return
    assert "kept in out" in message
    assert "--resume" in err
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(lines)))
    assert run([*command, "--resume"]) == 0
    assert json.loads((folder / "out/manifest.json").read_text())["contents"]["count"] == 64


def test_temporary_folders_of_killed_processes_go(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("denserk.io.outputs.gettempdir", lambda: str(tmp_path))
    code = "from denserk.io.outputs import *\nwith scratch_folder('x'): os._exit(9)"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=False)
    assert len(list(tmp_path.iterdir())) == 1
    with scratch_folder("y") as folder_y, scratch_folder("z") as folder_z:
        assert set(tmp_path.iterdir()) == {folder_y.parent, folder_z.parent}
