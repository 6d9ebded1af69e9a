"""Indexes of the toy collection that are served, in this process or in one of its own."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from denserk.commands.app import run
from denserk.config.encoding import NO_SERVER, ComputeSettings, ServerSettings
from denserk.config.options import NOTHING
from denserk.config.serving import AnswerSettings, HttpSettings, ServedSettings
from denserk.serving.search import SearchService
from denserk.serving.server import open_service
from tests.support.toy import write_toy

LOCAL = "http://localhost"  # the address of a server without a socket
PATIENCE = 300  # seconds; a busy machine is no failure
CPU = ComputeSettings(device="cpu")


def write_indexes(folder: Path, model: Path) -> Path:
    """Write the toy collection, its BM25 index `bm25` and its vectors `dense` below a folder."""
    toy = write_toy(folder / "toy")
    corpus = ["--corpus", str(toy / "corpus.jsonl"), "--quiet"]
    encode = ["encode", "--model", str(model), "--device", "cpu", "--output", str(toy / "dense")]
    assert run(["index", "--type", "bm25", *corpus, "--output", str(toy / "bm25")]) == 0
    assert run([*encode, *corpus]) == 0
    return toy


@contextlib.contextmanager
def opened_service(
    *indexes: str,
    rerank: Path | None = None,
    answers: AnswerSettings | None = None,
    model_server: ServerSettings = NO_SERVER,
    **served: Any,
) -> Iterator[SearchService]:
    """Yield the service of some indexes."""
    settings = ServedSettings(
        index=tuple(indexes), rerank=None if rerank is None else str(rerank), **served
    )
    answers = answers or AnswerSettings()
    with open_service(settings, answers, (NOTHING, NOTHING), CPU, model_server) as service:
        yield service


@contextlib.contextmanager
def client_of(
    service: SearchService, answers: AnswerSettings | None = None, **settings: Any
) -> Iterator[Any]:
    """Yield a client of a server without a socket, which answers by a service."""
    from starlette.testclient import TestClient

    from denserk.serving.app import create_app

    app = create_app(service, answers or AnswerSettings(), HttpSettings(**settings))
    with TestClient(app, base_url=LOCAL) as client:
        yield client


class ServerProcess:
    """`denserk serve` in a process of its own, at a free port.

    Attributes:
        address: where it answers.
        log: the file of its messages.
    """

    def __init__(self, folder: Path, options: Sequence[str]) -> None:
        self.log = folder / "server.log"
        command = [sys.executable, "-m", "denserk", "serve", "--port", "0", "--device", "cpu"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, *options], cwd=folder, stdout=subprocess.DEVNULL, stderr=log
            )
        self.address = self._wait_for_address()

    def _wait_for_address(self) -> str:
        """Return the address that the server logs once it answers."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            match = re.search(r"search at (http://\S+)/ ", self.log.read_text("utf-8"))
            if match is not None:
                return match[1]
            assert self.process.poll() is None, self.log.read_text("utf-8")
            time.sleep(0.1)
        raise AssertionError(self.log.read_text("utf-8"))

    def memory(self) -> int:
        """Return the bytes of memory that the process holds."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def cpu_seconds(self) -> float:
        """Return the CPU time that the process has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])  # in user mode, and in the kernel
        return ticks / os.sysconf("SC_CLK_TCK")

    def stop(self, signum: int = signal.SIGTERM) -> int:
        """Send a signal, and return the status with which the server ends."""
        if self.process.poll() is None:
            self.process.send_signal(signum)
        return self.process.wait(PATIENCE)


@contextlib.contextmanager
def running_server(folder: Path, *options: str) -> Iterator[ServerProcess]:
    """Yield a server of indexes below a folder, which is stopped at the end."""
    server = ServerProcess(folder, options)
    try:
        yield server
    finally:
        server.stop()
