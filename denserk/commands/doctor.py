"""`denserk doctor`."""

import os
import platform
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import typer

from denserk import __version__
from denserk.commands.app import app
from denserk.commands.options import command
from denserk.errors import MissingExtraError
from denserk.extras import installed

PURPOSES = {  # of the extras, without those for developers and alternatives
    "": "core",
    "cpu": "faiss indexes, OpenVINO",
    "int8": "encode --int8",
    "bm25": "BM25 indexes",
    "lucene": "Lucene indexes",
    "benchmarks": "datasets by name",
    "milvus": "Milvus collections",
    "report": "plots",
    "train": "training curves in TensorBoard",
    "demo": "the model of the quickstart",
}
# x86 and ARM CPU flags, as Linux names them, that matter for model speed.
FEATURES = "avx2 avx512f avx512_vnni avx512_bf16 amx_tile amx_bf16 amx_int8 asimd sve bf16 i8mm"


def _packages(fixes: list[str]) -> Iterator[tuple[str, str]]:
    try:
        from packaging.requirements import Requirement

        needs = [Requirement(line) for line in requires("denserk") or ()]
    except (ImportError, PackageNotFoundError) as error:
        fixes.append(f"pip install packaging denserk (requirements unknown: {error})")
        return
    for need in needs:
        extras = (e for e in PURPOSES if not need.marker or need.marker.evaluate({"extra": e}))
        purpose = PURPOSES.get(next(extras, "none"))
        if purpose is None:
            continue
        has = None
        for name in (need.name.replace("faiss-cpu", "faiss-gpu"), need.name):
            with suppress(PackageNotFoundError):
                has = version(name)
        if not has or not need.specifier.contains(has, prereleases=True):
            fixes.append(f"pip install '{need.name}{need.specifier}' ({purpose})")
        yield need.name, f"{has or 'missing'} ({purpose})"


def _cpu() -> tuple[int, list[tuple[str, str]]]:
    """Return the number of usable cores, and facts about the CPU."""
    cores = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):  # no control group, or no limit ("max")
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, max(1, int(quota) // int(period)))
    info: dict[str, str] = {}
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            info[line.partition(":")[0].strip()] = line.partition(":")[2].strip()
    flags = (info.get("flags") or info.get("Features", "")).split()
    known = " ".join(name for name in FEATURES.split() if name in flags)
    return cores, [
        ("model", info.get("model name", platform.machine())),
        ("cores", f"{cores} usable of {os.cpu_count()}"),
        ("features", known or "none of interest"),
    ]


def _torch(fixes: list[str]) -> tuple[int | None, list[tuple[str, str]]]:
    """Return the threads of torch (None if it cannot be imported) and the GPUs it sees."""
    try:
        import torch
    except (ImportError, OSError) as error:
        fixes.append("pip install --force-reinstall torch (it cannot be imported)")
        return None, [("GPU", f"unknown: torch cannot be imported ({error})")]
    gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    found = [(f"cuda:{i}", f"{g.name}, {g.total_memory >> 30} GiB") for i, g in enumerate(gpus)]
    if Path("/dev/nvidia0").exists() and not found and "CUDA_VISIBLE_DEVICES" not in os.environ:
        build = f"the installed build has CUDA {torch.version.cuda or 'support left out'}"
        fixes.append(f"install torch for this GPU's driver: pytorch.org/get-started ({build})")
    return torch.get_num_threads(), found or [("GPU", "none that torch can use")]


def _threads(threads: int | None, cores: int, fixes: list[str]) -> Iterator[tuple[str, str]]:
    policy = os.environ.get("OMP_WAIT_POLICY", "not set")
    yield "torch", str(threads or "unknown")
    yield "OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "not set")
    yield "OMP_WAIT_POLICY", f"{policy} (denserk sets PASSIVE unless you set how threads wait)"
    for name in ("GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OPENBLAS_THREAD_TIMEOUT"):
        if name in os.environ:
            yield name, os.environ[name]
    if threads and threads > cores:
        fixes.append(f"export OMP_NUM_THREADS={cores} (torch uses {threads} threads)")
    if policy.upper() == "ACTIVE":
        fixes.append("unset OMP_WAIT_POLICY (busy waiting slows down shared machines)")


def _java(fixes: list[str]) -> Iterator[tuple[str, str]]:
    from denserk.index.lucene import find_java, java_version  # numpy: not for --help

    home = os.environ.get("JAVA_HOME")
    yield "JAVA_HOME", home or "not set"
    if home and not java_version(Path(home, "bin", "java")):
        fixes.append(f"unset JAVA_HOME, or set it to a JDK ({home}/bin/java does not run)")
    try:
        program = find_java()
        yield "java", f"{java_version(program)}, {program}"
    except MissingExtraError as error:
        yield "java", "no recent version found"
        fixes.append(f"{error.hint} (Lucene indexes)")


@command(app, "doctor", examples=("denserk doctor", "denserk doctor > environment.txt"))
def doctor() -> None:
    """Check the installation and this machine."""
    fixes: list[str] = []
    own = [("denserk", __version__), ("python", platform.python_version())]
    packages = [*own, *_packages(fixes)]
    cores, cpu = _cpu()
    threads, gpus = _torch(fixes)
    sections = {
        "Packages": packages,
        "CPU": cpu,
        "GPU": gpus,
        "Threads": _threads(threads, cores, fixes),
        "Java": _java(fixes),
    }
    for section, facts in sections.items():
        typer.echo(section)
        for name, value in facts:
            typer.echo(f"  {name:<20} {value}")
    typer.echo("Fix" if fixes else "nothing to fix")
    for line in fixes:
        typer.echo(f"  {line}")
    if threads is None and not installed("faiss"):
        raise typer.Exit(1)
