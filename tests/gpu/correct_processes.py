"""Section `processes`: two processes on one card beside one process, and NCCL with one."""

import os
import socket
from pathlib import Path

import torch
import torch.distributed as dist

from denserk.commands.app import run
from tests.gpu.models import random_bert
from tests.gpu.setup import Setup, last_lines, run_python
from tests.gpu.texts import timed_passages, training_collection, training_file, write_corpus
from tests.gpu.training_runs import losses, relative_difference

LARGEST_DIFFERENCE = 1e-4  # of losses, relative: sums over a batch are taken in another order


def processes(setup: Setup) -> None:
    """Encode, fine-tune and pre-train by torchrun."""
    if setup.device == "cuda" and dist.is_nccl_available():
        with setup.report.attempt("NCCL, one process"):
            check_nccl(setup)
    else:
        setup.report.skip("NCCL, one process", "no card, or a torch without NCCL")
    if setup.rehearsal:
        setup.report.skip("two processes: encode", "a rehearsal on the CPU")
    else:
        with setup.report.attempt("two processes: encode"):
            check_encoding(setup)
    for name, words in training_commands(setup).items():
        with setup.report.attempt(f"two processes: {name}"):
            check_training(setup, name, words)


def free_port() -> str:
    """Return a port of this machine that nothing listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def check_nccl(setup: Setup) -> None:
    """The collectives that denserk calls, through NCCL, in a group of one process."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port())
    dist.init_process_group("cpu:gloo,cuda:nccl", rank=0, world_size=1)
    try:
        rows = torch.arange(6.0, device="cuda").view(2, 3)
        parts = [torch.empty_like(rows)]
        dist.all_gather(parts, rows)
        counts = torch.ones(3, dtype=torch.int32, device="cuda")
        dist.all_reduce(counts)
        objects = [{"a": 1}]
        dist.broadcast_object_list(objects, src=0)
        dist.barrier()
        passed = torch.equal(parts[0], rows) and counts.tolist() == [1, 1, 1]
        setup.report.check("NCCL, one process", passed, passed, version=torch.cuda.nccl.version())
    finally:
        dist.destroy_process_group()


def run_one(words: list[str], output: Path) -> None:
    """Run a command in this process; one that fails is a RuntimeError."""
    code = run([*words, "--output", str(output)])
    if code:
        raise RuntimeError(f"one process: exit code {code}")


def run_two(setup: Setup, words: list[str], output: Path) -> None:
    """Run a command by torchrun in two processes; one that fails is a RuntimeError."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    launcher += ["--master-port", free_port()]
    command = [*launcher, "-m", "tests.gpu.shared_card", *words, "--output", str(output)]
    variables = {"OMP_NUM_THREADS": "1"} if setup.device == "cpu" else {}
    done = run_python(command, seconds=setup.choose(90, 400), variables=variables)
    if done.returncode:
        print(done.stderr[-4000:], flush=True)
        raise RuntimeError(f"two processes: {last_lines(done.stderr)}")


def check_encoding(setup: Setup) -> None:
    """Two processes write the vectors of one, byte for byte."""
    passages = timed_passages(setup, setup.choose(4096, 40))
    words = ["encode", "--model", random_bert(setup, "small"), "--representation", "cls"]
    words += ["--corpus", write_corpus(setup, "shared", passages), "--device", setup.device]
    words += ["--dtype", "float32", "--block-size", setup.choose("512", "8")]
    words += ["--backend", "torch"]
    by_one = setup.work / "encoded-by-one"
    by_two = setup.work / "encoded-by-two"
    run_one(words, by_one)
    run_two(setup, words, by_two)
    expected = stored_bytes(by_one)
    same = stored_bytes(by_two) == expected and len(expected) > 0
    setup.report.check("two processes: encode", same, same, "same bytes", bytes=len(expected))


def stored_bytes(folder: Path) -> bytes:
    """Return the bytes of a folder's vectors."""
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.npy")))


def training_commands(setup: Setup) -> dict[str, list[str]]:
    """Return commands that train, without their output."""
    common = ["--model", random_bert(setup, "small"), "--device", setup.device, "--batch-size", "4"]
    common += ["--max-steps", "4", "--lr", "2e-4", "--set", "logging-steps=1"]
    data = training_file(setup, setup.choose(200, 20), 4)
    finetune = ["finetune", "--train-data", data, "--group-size", "2", *common]
    corpus = write_corpus(setup, "shared-text", training_collection(setup).passages[:60])
    pretrain = ["pretrain", "--objective", "cocondenser", "--corpus", corpus, *common]
    pretrain += ["--max-length", "32"]
    cached = ["--representation", "mlr", "--grad-cache"]
    cached += ["--set", "q-chunk=2", "--set", "p-chunk=2"]
    commands = {
        "finetune agg": [*finetune, "--representation", "agg"],
        "finetune mlr, gradient cache": [*finetune, *cached],
        "pretrain cocondenser": pretrain,
    }
    if setup.rehearsal:  # each starts three processes
        return {"finetune agg": commands["finetune agg"]}
    return commands


def check_training(setup: Setup, name: str, words: list[str]) -> None:
    """Two processes have the losses of one."""
    folder = setup.work / f"by-one-{name.replace(' ', '-')}"
    other = setup.work / f"by-two-{name.replace(' ', '-')}"
    run_one(words, folder)
    run_two(setup, words, other)
    difference = relative_difference(losses(folder), losses(other))
    setup.report.check(
        f"two processes: {name}",
        difference,
        difference < LARGEST_DIFFERENCE,
        "largest relative difference of the losses",
    )
