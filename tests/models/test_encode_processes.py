"""Several processes encode into one folder; those of the fast tests are threads."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Barrier, BrokenBarrierError, Thread, current_thread
from typing import Any

import pytest

from denserk.config.encoding import ComputeSettings, EncodeSettings, VectorFormat
from denserk.config.formats import CorpusSettings
from denserk.errors import InputError, MismatchError, UsageError
from denserk.io.blocks import journal_of, read_journal
from denserk.models import encode as encode_module
from denserk.models.encode import encode
from denserk.models.text_encoder import TextEncoder
from tests.faults import Stopped, contents, ranks, stopped_at
from tests.models.encoding import StandIn


class Threads:
    """Stands for a process group whose processes are threads around a table."""

    def __init__(self, size):
        self.table: list[Any] = [None] * size
        self.barrier = Barrier(size)

    def world(self):
        return int(current_thread().name.partition("-")[2]), len(self.table)

    def from_main_process(self, work):
        if self.world()[0] == 0:
            try:
                self.table[0] = (work(), None)
            except Exception as error:  # noqa: BLE001 - raised again by all
                self.table[0] = (None, error)
        made, failure = self._at_the_table()[0]
        if failure is not None:
            raise failure
        return made

    def gather_objects(self, item):
        self.table[self.world()[0]] = item
        everybody = self._at_the_table()
        return everybody if self.world()[0] == 0 else []

    def _at_the_table(self):
        self.barrier.wait()
        seen = list(self.table)
        self.barrier.wait()
        return seen


def together(size, work):
    """What each of several processes made; raises the first error that is not a lost process."""
    group = Threads(size)
    made, errors = [None] * size, []

    def member(rank):
        try:
            made[rank] = work()
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)
            group.barrier.abort()

    threads = [Thread(target=member, args=[rank], name=f"member-{rank}") for rank in range(size)]
    with pytest.MonkeyPatch.context() as patch:
        for name in ("world", "from_main_process", "gather_objects"):
            patch.setattr(encode_module, name, getattr(group, name))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for error in errors:
        if not isinstance(error, BrokenBarrierError):
            raise error
    return made


def run(output, corpus, size=1, model="m", **settings):
    settings = {"block_size": 4, "corpus": str(corpus), **settings}

    def work():
        asked = EncodeSettings(model=model, output=str(output), **settings)
        return encode(asked, CorpusSettings(), {}, {}, ComputeSettings())

    return [work()] if size == 1 else together(size, work)


@pytest.fixture
def stand_in(monkeypatch):
    def load(model, representation, text, compute):
        return StandIn(
            f"{model}{current_thread().name if model == 'differs' else ''}", text, compute
        )

    monkeypatch.setattr(TextEncoder, "load", load)


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    lines = [json.dumps({"_id": f"d{n}", "title": "", "text": f"text {n}"}) for n in range(39)]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.mark.parametrize("size", [3, 12])
def test_several_write_the_bytes_of_one(stand_in, corpus, tmp_path, size):
    run(tmp_path / "one", corpus)
    results = run(tmp_path / "v", corpus, size)
    assert contents(tmp_path / "v") == contents(tmp_path / "one")
    assert {(r.count, r.encoded, r.tokens) for r in results} == {(39, 39, 156)}


@pytest.mark.parametrize("step", sorted(random.Random(42).sample(range(24), 6)))
@pytest.mark.parametrize("size", [1, 2])
def test_all_stopped_anywhere_and_resumed_by_any_number(stand_in, corpus, tmp_path, step, size):
    run(tmp_path / "one", corpus)
    with stopped_at(step), pytest.raises(Stopped):
        run(tmp_path / "v", corpus, 3)
    run(tmp_path / "v", corpus, size, resume=True)
    assert contents(tmp_path / "v") == contents(tmp_path / "one")


@pytest.mark.parametrize("size", [1, 3])
def test_a_lost_one_leaves_its_blocks_to_the_others(stand_in, corpus, tmp_path, monkeypatch, size):
    run(tmp_path / "one", corpus)
    encode_planned = StandIn.encode_planned

    def lost(self, side, planned, advance):
        if current_thread().name == "member-1":
            while not (tmp_path / "v" / "block-00000.docid").exists():
                time.sleep(0.01)
            raise RuntimeError("lost")
        return encode_planned(self, side, planned)

    monkeypatch.setattr(StandIn, "encode_planned", lost)
    with pytest.raises(RuntimeError, match="lost"):
        run(tmp_path / "v", corpus, 2)
    with pytest.raises(MismatchError, match="started with other settings"):
        run(tmp_path / "v", corpus, 2, resume=True, block_size=5)
    monkeypatch.setattr(StandIn, "encode_planned", encode_planned)
    assert run(tmp_path / "v", corpus, size, resume=True)[0].encoded == 5 * 4 - 1
    assert contents(tmp_path / "v") == contents(tmp_path / "one")


def test_what_the_first_refuses_all_refuse(stand_in, corpus, tmp_path):
    with corpus.open("a") as out:
        out.write("{broken\n")
    with pytest.raises(InputError, match="line 40"):
        run(tmp_path / "v", corpus, 2)
    assert not (tmp_path / "v").exists()


def test_another_model_in_one_of_them(stand_in, corpus, tmp_path):
    with pytest.raises(MismatchError, match="fingerprint was 'differsmember-0'"):
        run(tmp_path / "v", corpus, 2, model="differs")


@pytest.mark.parametrize("settings", [{"corpus": "-"}, {"output_format": VectorFormat.JSONL}])
def test_what_only_one_process_can_do(monkeypatch, settings):
    monkeypatch.setattr(encode_module, "launched", lambda: True)
    settings = EncodeSettings(**{"model": "m", "corpus": "c", "output": "o", **settings})
    with pytest.raises(UsageError, match="by one process only"):
        encode(settings, CorpusSettings(), {}, {}, ComputeSettings())


OPTIONS = ("--corpus", "corpus.jsonl", "--block-size", "3", "--threads", "1")
TORCHRUN = (
    *(str(Path(sys.executable).with_name("torchrun")), "--standalone"),
    *("--nproc-per-node", "2"),
)
BLOCKS = 200  # enough to kill a process in the middle


def command(model, output, *launch):
    """`denserk encode`, as a process of its own or under torchrun."""
    options = ["--model", str(model), *OPTIONS, "--output", output, "--device", "cpu"]
    return [*(launch or [sys.executable]), "-m", "denserk", "encode", *options]


@pytest.mark.slow
def test_torchrun_writes_the_bytes_of_one(tiny, corpus, tmp_path):
    subprocess.run(command(tiny(), "one"), cwd=tmp_path, check=True)
    two = subprocess.run(
        command(tiny(), "two", *TORCHRUN), cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert contents(tmp_path / "two") == contents(tmp_path / "one")
    assert two.stderr.count("39 encoded") == 1  # only the main process reports


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_of_torchrun_is_made_up_for(tiny, corpus, tmp_path, rank):
    lines = [json.dumps({"_id": f"d{n}", "text": f"the river {n}"}) for n in range(3 * BLOCKS)]
    corpus.write_text("".join(f"{line}\n" for line in lines))
    several = command(tiny(), "v", *TORCHRUN)
    process = subprocess.Popen(several, cwd=tmp_path)
    journal = tmp_path / "v" / journal_of(rank)
    while not journal.exists() or not journal.stat().st_size:
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(ranks(process.pid)[rank], signal.SIGKILL)
    assert process.wait() == 1
    assert 0 < len(read_journal(tmp_path / "v")) < BLOCKS
    shutil.copytree(tmp_path / "v", tmp_path / "again")
    subprocess.run([*several, "--resume"], cwd=tmp_path, check=True)
    subprocess.run([*command(tiny(), "again"), "--resume"], cwd=tmp_path, check=True)
    subprocess.run(command(tiny(), "one"), cwd=tmp_path, check=True)
    assert contents(tmp_path / "v") == contents(tmp_path / "one")
    assert contents(tmp_path / "again") == contents(tmp_path / "one")
