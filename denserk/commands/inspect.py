"""`denserk analyze`, with one subcommand per analysis, and `denserk doctor`."""

import os
import platform
import shutil
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from tempfile import gettempdir
from typing import Annotated, TypeVar

import typer

from denserk.commands.app import app
from denserk.commands.options import command
from denserk.config import analysis
from denserk.config.encoding import ComputeSettings, ModelOptions
from denserk.config.formats import CorpusSettings
from denserk.errors import GateError, MissingExtraError
from denserk.extras import installed
from denserk.io.outputs import scratch_folder
from denserk.reporting import print_table
from denserk.version import __version__

MoreModels = Annotated[
    list[str] | None, typer.Argument(metavar="[LABEL=]MODEL", help="More models, like --model.")
]
Several = TypeVar("Several", bound=analysis.SeveralModels)

analyze = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.add_typer(analyze, name="analyze", help="Analyze trained models.")


def _with(settings: Several, more: list[str] | None) -> Several:
    """Add the positional models to --model."""
    return replace(settings, model=(*settings.model, *(more or ())))


def _print(output: str | None, table: Sequence[Sequence[str]]) -> None:
    """Print a header and rows, unless standard output has the results as CSV."""
    if output != "-":
        print_table(table[0], table[1:])


@command(
    "sentence-similarity",
    app=analyze,
    common="model data output representation l2_norm passage_max_length passage_prefix device "
    "dtype batch_size overwrite",
)
def sentence_similarity(
    settings: analysis.SentenceSimilaritySettings, options: ModelOptions
) -> None:
    """Evaluate embeddings on labelled sentence pairs or on triplets.

    denserk analyze sentence-similarity --model minilm --data sts.tsv
    denserk analyze sentence-similarity --model model/ --data nli.jsonl --output out.csv
    """
    from denserk.tasks.analyze.results import as_table
    from denserk.tasks.analyze.sentence_similarity import sentence_similarity as task

    rows = task(settings, options)
    _print(settings.output, as_table(rows, digits=4))


@command(
    "attention-entropy",
    app=analyze,
    common="model corpus sample seed max_length output plot device dtype batch_size overwrite",
)
def attention_entropy(
    settings: analysis.AttentionEntropySettings,
    corpus: CorpusSettings,
    compute: ComputeSettings,
    more: MoreModels = None,
) -> None:
    """Measure the entropy of [CLS] attention per layer.

    denserk analyze attention-entropy --model bert-base-uncased --corpus corpus.jsonl
    denserk analyze attention-entropy --model a/ --model b/ --corpus corpus.jsonl
    """
    from denserk.tasks.analyze.attention_entropy import attention_entropy as task
    from denserk.tasks.analyze.attention_entropy import layer_table

    rows = task(_with(settings, more), corpus, compute)
    _print(settings.output, layer_table(rows))


@command(
    "query-latency",
    app=analyze,
    common="model topics sample warm_up output plot representation query_max_length query_prefix "
    "device dtype threads overwrite",
)
def query_latency(
    settings: analysis.QueryLatencySettings, options: ModelOptions, more: MoreModels = None
) -> None:
    """Measure the latency of query encoding, one query at a time.

    denserk analyze query-latency --model minilm --topics queries.tsv
    denserk analyze query-latency --model minilm --topics queries.tsv --threads 4
    """
    from denserk.tasks.analyze.query_latency import query_latency as task
    from denserk.tasks.analyze.results import as_table

    rows = task(_with(settings, more), options)
    columns = ("label", "device", "threads", "p1_ms", "p50_ms", "p99_ms")
    _print(settings.output, as_table(rows, columns, digits=2))


@command(
    "layers",
    app=analyze,
    common="model topics corpus qrels run depth sample seed output plot representation layers "
    "query_max_length passage_max_length device dtype batch_size overwrite",
)
def winning_vectors(
    settings: analysis.WinningVectorSettings,
    options: ModelOptions,
    corpus: CorpusSettings,
    more: MoreModels = None,
) -> None:
    """Count which vector of a passage scores best (for mlr: which layer).

    denserk analyze layers --model model/ --topics q.tsv --corpus c.jsonl --qrels qrels.txt
    denserk analyze layers --model model/ --topics q.tsv --corpus c.jsonl --run run.trec
    """
    from denserk.tasks.analyze.results import as_table
    from denserk.tasks.analyze.winning_vectors import winning_vectors as task

    rows = task(_with(settings, more), options, corpus)
    columns = ("label", "passages", "pairs", "kind", "vector", "wins", "share")
    _print(settings.output, as_table(rows, columns, digits=4))


# Groups of packages: no extra, and the extras without those for developers and alternatives.
EXTRAS = "core cpu int8 bm25 lucene benchmarks milvus report train demo"
# x86 and ARM CPU flags, as Linux names them, that matter for model speed.
FEATURES = "avx2 avx512f avx512_vnni avx512_bf16 amx_tile amx_bf16 amx_int8 asimd sve bf16 i8mm"
Facts = Iterator[tuple[str, str]]


def _requirements() -> list[str]:
    """Return the requirements of denserk: of the installation, or else of its source tree."""
    try:
        return requires("denserk") or []
    except PackageNotFoundError:
        pass
    project_file = Path(__file__).parents[2] / "pyproject.toml"
    if not project_file.is_file():
        return []
    project = tomllib.loads(project_file.read_text("utf-8"))["project"]
    needs = list(project["dependencies"])
    for extra, group in project["optional-dependencies"].items():
        needs += [f'{need}; extra == "{extra}"' for need in group]
    return needs


def _packages(fixes: list[str]) -> Facts:
    from packaging.requirements import Requirement

    yield "denserk", __version__
    yield "python", platform.python_version()
    for need in map(Requirement, _requirements()):
        marker = need.marker
        extras = (e for e in EXTRAS.split() if not marker or marker.evaluate({"extra": e}))
        if (extra := next(extras, None)) is None:
            continue
        has = None
        for name in (need.name.replace("faiss-cpu", "faiss-gpu"), need.name):
            with suppress(PackageNotFoundError):
                has = version(name)
        if not has or not need.specifier.contains(has, prereleases=True):
            fixes.append(f"pip install '{need.name}{need.specifier}' ({extra})")
        yield need.name, f"{has or 'missing'} ({extra})"


def _machine(fixes: list[str]) -> Facts:
    info: dict[str, str] = {}
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            info[line.partition(":")[0].strip()] = line.partition(":")[2].strip()
    flags = (info.get("flags") or info.get("Features", "")).split()
    cores = len(os.sched_getaffinity(0))
    yield "CPU", info.get("model name", platform.machine())
    yield "features", " ".join(name for name in FEATURES.split() if name in flags) or "none known"
    yield "cores", f"{cores} usable of {os.cpu_count()}"
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY"):
        yield name, os.environ.get(name, "not set")
    try:
        import torch
    except (ImportError, OSError) as error:
        fixes.append("pip install --force-reinstall torch (it cannot be imported)")
        yield "torch", f"cannot be imported ({error})"
        return
    if (threads := torch.get_num_threads()) > cores:
        fixes.append(f"export OMP_NUM_THREADS={cores} (torch uses {threads} threads)")
    yield "threads of torch", str(threads)
    for i in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(i)
        yield f"cuda:{i}", f"{found.name}, {found.total_memory >> 30} GiB"
    if not torch.cuda.device_count():
        yield "GPU", f"none that torch can use (built for CUDA {torch.version.cuda or 'none'})"


def _storage(fixes: list[str]) -> Facts:
    """Memory, and the folders that denserk writes to unasked, with the room on their disks."""
    from denserk.index.faiss_index import available_bytes
    from denserk.io.data_sets import cache_folder

    available = available_bytes()
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = "unknown" if available is None else f"{available / 2**30:.1f} GiB available"
    yield "memory", f"{free} of {total / 2**30:.1f} GiB"
    hub = Path.home() / ".cache" / "huggingface" / "hub"
    with suppress(ImportError):
        from huggingface_hub.constants import HF_HUB_CACHE

        hub = Path(HF_HUB_CACHE)
    ir_datasets = os.environ.get("IR_DATASETS_HOME") or Path.home() / ".ir_datasets"
    folders = {
        "working folder": Path.cwd(),
        "temporary files": Path(gettempdir()),
        "datasets": cache_folder(),
        "ir_datasets": Path(ir_datasets),
        "models": hub,
    }
    for name, folder in folders.items():
        disk = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        room = f"{shutil.disk_usage(disk).free / 2**30:.1f} GiB free"
        if not os.access(disk, os.W_OK):
            fixes.append(f"choose another folder for {name}: {disk} cannot be written")
            room += ", cannot be written"
        yield name, f"{folder} ({room}{'' if folder.exists() else ', not there yet'})"


def _java(fixes: list[str]) -> Facts:
    from denserk.index.bm25 import find_java, java_version  # numpy: not for --help

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


@command("reproduce")
def reproduce(
    settings: analysis.ReproduceSettings,
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run that denserk wrote.")],
) -> None:
    """Follow a run's manifests back, re-make it and compare.

    denserk reproduce run.trec
    denserk reproduce run.trec --from-step vectors --output again/
    """
    from denserk.tasks.reproduce import reproduce as task

    place: AbstractContextManager[Path] = scratch_folder("reproduce")
    if settings.output is not None:
        place = nullcontext(Path(settings.output))
    with place as work:
        steps = task(
            run,
            work,
            settings.from_step,
            settings.tolerance,
            overwrite=settings.overwrite,
            resume=settings.resume,
        )
    rows = [(s.step, s.path, ", ".join(s.changed) or "as recorded", s.remade) for s in steps]
    print_table(("step", "path", "inputs", "re-made"), rows)
    for number, step in enumerate(steps, 1):
        if step.changed or not step.equal:
            why = "; ".join([*step.changed, *([] if step.equal else [step.remade])])
            raise GateError(f"step {number}, the {step.step} {step.path}: {why}")


@command("doctor")
def doctor() -> None:
    """Check the installation and this machine.

    denserk doctor
    denserk doctor > environment.txt
    """
    fixes: list[str] = []
    sections = {"Packages": _packages, "Machine": _machine, "Storage": _storage, "Java": _java}
    for section, facts in sections.items():
        typer.echo(section)
        for name, value in facts(fixes):
            typer.echo(f"  {name:<20} {value}")
    typer.echo("Fix" if fixes else "nothing to fix")
    for line in fixes:
        typer.echo(f"  {line}")
    if not installed("torch") and not installed("faiss"):
        raise typer.Exit(1)
