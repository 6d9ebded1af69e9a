"""Tools in processes of their own, which encode the same texts in turn: see `peer_worker.py`."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

REPOSITORY = Path(__file__).parents[2]
PEERS = REPOSITORY / "build" / "peers"
WORKER = Path(__file__).with_name("peer_worker.py")
# The environment of a tool, as `peers.sh` names it; without a row, the one that runs denserk.
ENVIRONMENTS = {
    "openvino": "openvino",
    "onnx": "onnx",
    "fastembed": "fastembed",
    "ctranslate2": "ctranslate2",
}


class Failed(Exception):
    """A tool cannot be measured here; the message says why."""


class Way(NamedTuple):
    """A tool and the precision that it computes in: "default" is what it takes by itself."""

    tool: str
    precision: str

    def __str__(self) -> str:
        return f"{self.tool} {self.precision}"


class Timing(NamedTuple):
    """A tool's version, the medians of its rounds, and its vectors (N, D)."""

    version: str
    cpu: float
    clock: float
    vectors: NDArray[np.float32]


def python_of(tool: str, peers: Path) -> str:
    """Return the interpreter that has a tool."""
    name = ENVIRONMENTS.get(tool)
    if name is None:
        return sys.executable
    python = peers / name / "bin" / "python"
    if not python.exists():
        raise Failed(f"no environment {peers / name}: bash tests/benchmarks/peers.sh {peers}")
    return str(python)


class Worker:
    """A tool that has loaded a model, in a process that has `threads` cores for itself."""

    def __init__(self, way: Way, model: Path, texts: Path, peers: Path, threads: int) -> None:
        """Start a process, and wait until the tool has loaded the model.

        Raises:
            Failed: the tool is not installed, or does not compute in this precision here.
        """
        self._files = tempfile.TemporaryDirectory()
        self._vectors = Path(self._files.name, "vectors.npy")
        self._errors = Path(self._files.name, "errors")
        cores = sorted(os.sched_getaffinity(0))[-threads:]
        command = ["taskset", "--cpu-list", ",".join(map(str, cores))]
        command += [python_of(way.tool, peers), str(WORKER), *way, str(model), str(texts)]
        settings = {"OMP_NUM_THREADS": str(threads), "TMPDIR": self._files.name}
        settings["HF_HUB_OFFLINE"] = "1"  # all files are there
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [*command, str(self._vectors)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **settings},
            )
        self.version = str(self._answer()["version"])

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            lines = self._errors.read_text().strip().splitlines()
            raise Failed(lines[-1] if lines else f"exit status {self._process.returncode}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def encode(self) -> dict[str, float]:
        """Encode all texts, and return the seconds: "cpu" and "clock"."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._answer()

    def vectors(self) -> NDArray[np.float32]:
        """Return the vectors (N, D) that were encoded last."""
        vectors: NDArray[np.float32] = np.load(self._vectors)
        return vectors

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()
        self._files.cleanup()


def export_for_fastembed(model: Path, target: Path, peers: Path) -> None:
    """Write a folder with the ONNX file of a model, by the environment that can export it.

    Raises:
        Failed: the environment is not there, or cannot export the model.
    """
    command = [python_of("onnx", peers), str(WORKER), "onnx", "export", str(model), "", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(done.stderr.strip().splitlines()[-1])


def compare(
    ways: Mapping[Way, Path], texts: Path, peers: Path, threads: int, rounds: int
) -> dict[Way, Timing]:
    """Time ways, each with its folder of the model, in turn, after a round that is not counted.

    A way that cannot be measured here is printed with the reason, and is not in the result.
    """
    seconds: dict[Way, list[dict[str, float]]] = {}
    timings = {}
    with ExitStack() as workers:
        running: dict[Way, Worker] = {}
        for way, model in ways.items():
            try:
                worker = workers.enter_context(Worker(way, model, texts, peers, threads))
                worker.encode()
            except Failed as reason:
                print(f"{way}: not measured: {reason}", flush=True)
                continue
            running[way] = worker
            seconds[way] = []
        for _ in range(rounds):
            for way, worker in running.items():
                seconds[way].append(worker.encode())
        for way, worker in running.items():
            cpu, clock = (
                statistics.median(each[name] for each in seconds[way]) for name in ("cpu", "clock")
            )
            timings[way] = Timing(worker.version, cpu, clock, worker.vectors())
    return timings
