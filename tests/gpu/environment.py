"""Section `environment`: versions, card, driver, cores, rate of products, `denserk doctor`."""

import os
import platform
import shutil
import subprocess

import numpy
import torch
import transformers

import denserk
from tests.gpu.measuring import matrix_rates
from tests.gpu.setup import Setup, last_lines, run_python


def environment(setup: Setup) -> None:
    """Record what the check ran on."""
    report = setup.report
    report.measure("denserk", denserk.__version__, folder=os.path.dirname(denserk.__file__))  # noqa: PTH120
    report.measure("Python", platform.python_version())
    for module in (torch, transformers, numpy):
        report.measure(module.__name__, module.__version__)
    report.measure("CPU cores", len(os.sched_getaffinity(0)))
    report.measure("memory", host_memory() / 2**30, "GiB")
    if setup.device == "cuda":
        card(setup)
    else:
        report.skip("card", "a rehearsal on the CPU")
    for precision, rate in matrix_rates(setup.device, setup.choose(8192, 256)).items():
        report.measure(f"matrix rate, {precision}", rate / 1e12, "TFLOP/s")
    with report.attempt("denserk doctor"):
        doctor(setup)


def host_memory() -> int:
    """Return the bytes of the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def card(setup: Setup) -> None:
    """Record the card, its memory and its driver."""
    properties = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info()
    setup.report.measure(
        "card",
        properties.name,
        compute_capability=f"{properties.major}.{properties.minor}",
        multiprocessors=properties.multi_processor_count,
        cards=torch.cuda.device_count(),
    )
    setup.report.measure("card's memory", total / 2**30, "GiB", free=free / 2**30)
    setup.report.measure("driver", driver_version(), cuda_of_torch=torch.version.cuda)


def driver_version() -> str:
    """Return the version of the card's driver, as nvidia-smi prints it."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return "unknown: there is no nvidia-smi"
    query = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True, check=False, timeout=20)
    return last_lines(answer.stdout + answer.stderr, 1)


def doctor(setup: Setup) -> None:
    """`denserk doctor` ends well, and sees the card."""
    done = run_python(["-m", "denserk", "doctor"], seconds=60)
    passed = done.returncode == 0
    said = last_lines(done.stdout, 1) if passed else last_lines(done.stderr, 6)
    setup.report.check("denserk doctor", said, passed, exit_code=done.returncode)
    if not passed:
        print(done.stdout[-2000:], done.stderr[-4000:], sep="\n", flush=True)
