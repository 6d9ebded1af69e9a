"""`denserk analyze`, with one subcommand per analysis, `denserk reproduce` and `denserk doctor`."""

import os
import platform
import shutil
import tomllib
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from datetime import datetime
from importlib.metadata import PackageNotFoundError, requires, version
from math import isnan
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from denserk.commands.app import app
from denserk.commands.options import command
from denserk.config import analysis
from denserk.config.encoding import (
    PACKAGED,
    PUBLISHED,
    ComputeSettings,
    Dtype,
    DtypeChoice,
    ModelOptions,
    PackagedModel,
    default_batch_tokens,
)
from denserk.config.formats import CorpusSettings
from denserk.config.options import reject_given
from denserk.errors import GateError, MissingExtraError, UsageError
from denserk.extras import installed
from denserk.io.outputs import scratch_folder
from denserk.reporting import print_table
from denserk.version import __version__

if TYPE_CHECKING:
    import torch
    from packaging.requirements import Requirement

    from denserk.tasks.analyze.misses import MissesResult

# Extras whose packages `doctor` reports, without those for developers and alternatives. "core" is
# no extra, but the label of packages that are needed without any.
EXTRAS = "core cpu int8 bm25 lucene benchmarks milvus serve report train demo"
# x86 and ARM CPU flags, as Linux names them, that matter for model speed.
FEATURES = "avx2 avx512f avx512_vnni avx512_bf16 amx_tile amx_bf16 amx_int8 asimd sve bf16 i8mm"
Facts = Iterator[tuple[str, str]]  # name and value of each line of a section of `doctor`

MoreModels = Annotated[
    list[str] | None, typer.Argument(metavar="[LABEL=]MODEL", help="More models, like --model.")
]
SettingsOfModels = TypeVar("SettingsOfModels", bound=analysis.SeveralModels)

analyze = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.add_typer(analyze, name="analyze", help="Analyze trained models.")


def _add_models(
    settings: SettingsOfModels, positional_models: list[str] | None
) -> SettingsOfModels:
    """Add the positional models to --model."""
    if not positional_models:
        return settings
    return replace(settings, model=(*settings.model, *positional_models))


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

    rows = task(_add_models(settings, more), corpus, compute)
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

    rows = task(_add_models(settings, more), options)
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

    rows = task(_add_models(settings, more), options, corpus)
    columns = ("label", "passages", "pairs", "kind", "vector", "wins", "share")
    _print(settings.output, as_table(rows, columns, digits=4))


@command(
    "misses",
    app=analyze,
    common="run qrels corpus topics index model bm25 reranker k measure sample output device "
    "overwrite",
)
def misses(
    settings: analysis.MissesSettings, corpus: CorpusSettings, compute: ComputeSettings
) -> None:
    """Find why relevant passages are missed: the smallest change that brings each in.

    denserk analyze misses --run run.trec --qrels qrels.txt
    denserk analyze misses --run run.trec --qrels qrels.txt --bm25 bm25/ --output misses.csv
    """
    from denserk.tasks.analyze.misses import analyze_misses

    result = analyze_misses(settings, corpus, compute)
    if settings.output != "-":
        passages = f"{result.relevant:,} relevant passages"
        if settings.pairs is not None:
            passages = f"{len(result.passages):,} passages of --set pairs"
        _print_misses(result, passages)


def _print_misses(result: "MissesResult", passages: str) -> None:
    """Print the misses by cause, what was not tried, and the gains of the changes.

    `passages` says how many were looked for.
    """
    typer.echo(
        f"{result.run}: {result.measure} {result.value:.4f}; {result.missed:,} of {passages} "
        f"of {result.queries:,} queries are not among the first {result.k} hits"
    )
    _print_causes(result)
    _print_untried_causes(result)
    if result.unsearched_fields:
        choices = " or ".join(result.unsearched_fields)
        typer.echo(f"the topics have a field that was not searched: --set topics-field={choices}")
    if result.gains:
        _print_gains(result)


def _print_causes(result: "MissesResult") -> None:
    """Print how many passages were missed for each cause, and how many it brings in."""
    from denserk.io.misses import FOUND

    total = max(result.missed, 1)
    rows = []
    for cause in result.causes:
        brings_in = f"{cause.brings_in:,}"
        if cause.not_tried:
            brings_in = "not tried" if cause.applies else "-"
        share = "-" if cause.cause == FOUND else f"{100 * cause.misses / total:.1f}"
        rows.append((cause.cause, f"{cause.misses:,}", share, brings_in, cause.title))
    print_table(("cause", "misses", "%", "brings in", "what"), rows)


def _print_untried_causes(result: "MissesResult") -> None:
    """Print why causes were not tried, and what that means for the cause that is left."""
    from denserk.io.misses import MODEL

    untried_count = 0
    for cause in result.causes:
        if not cause.not_tried:
            continue
        status = "does not apply"
        if cause.applies:
            status = "not tried"
            untried_count += 1
        typer.echo(f"{status}: {cause.cause}: {cause.not_tried}")
    if untried_count:
        causes = "1 cause was" if untried_count == 1 else f"{untried_count} causes were"
        typer.echo(f"{causes} not tried: misses of the cause {MODEL} may have one of these")


def _print_gains(result: "MissesResult") -> None:
    """Print what each change adds to the measure."""
    rows = []
    for gain in result.gains:
        interval = "" if isnan(gain.low) else f"{gain.low:+.4f} to {gain.high:+.4f}"
        rows.append((gain.cause, gain.change, f"{gain.mean:+.4f}", interval, gain.scope))
    print_table(("cause", "change", result.measure, "95 % interval", "of"), rows)


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

    work_folder: AbstractContextManager[Path] = scratch_folder("reproduce")
    if settings.output is not None:
        work_folder = nullcontext(Path(settings.output))
    with work_folder as work:
        steps = task(
            run,
            work,
            settings.from_step,
            settings.tolerance,
            overwrite=settings.overwrite,
            resume=settings.resume,
        )
    rows = []
    for step in steps:
        inputs = ", ".join(step.changed) or "as recorded"
        rows.append((step.step, step.path, inputs, step.remade))
    print_table(("step", "path", "inputs", "re-made"), rows)
    # inputs come before what is made from them, so the first step that differs is the cause
    for number, step in enumerate(steps, start=1):
        differences = list(step.changed)
        if not step.equal:
            differences.append(step.remade)
        if differences:
            message = f"step {number}, the {step.step} {step.path}: {'; '.join(differences)}"
            raise GateError(message)


@command("doctor", common="model clear_compiled device dtype backend")
def doctor(settings: analysis.DoctorSettings, compute: ComputeSettings) -> None:
    """Check the installation and this machine, or whether a model is the one that was saved.

    denserk doctor
    denserk doctor --model model/
    """
    if settings.model is not None:
        _compare_with_canary(settings.model, compute)
        return
    reject_given(compute, why="only for --model", hint="add --model DIR")
    if settings.clear_compiled:
        _clear_compiled()
        return
    fixes: list[str] = []
    sections = {
        "Packages": _packages,
        "Machine": _machine,
        "Storage": _storage,
        "Compiled models": _compiled_models,
        "Java": _java,
    }
    for section, facts in sections.items():
        typer.echo(section)
        for name, value in facts(fixes):
            typer.echo(f"  {name:<20} {value}")
    typer.echo("Fix" if fixes else "nothing to fix")
    for fix in fixes:
        typer.echo(f"  {fix}")
    can_encode_or_search = installed("torch") or installed("faiss")
    if not can_encode_or_search:
        raise typer.Exit(1)


def _compare_with_canary(model: str, compute: ComputeSettings) -> None:
    """Print how far a model's vectors are from those it was saved with.

    A MismatchError beyond the tolerances.
    """
    from denserk.io.canary import CANARY_FILE, KINDS, read_canary
    from denserk.io.model_files import find_model, require_model

    name, folder = find_model(model)
    require_model(folder)
    if read_canary(folder) is None:  # before torch is imported
        typer.echo(f"{name} has no {CANARY_FILE}: there is nothing to compare it with")
        typer.echo(
            f"  denserk convert {model} NEW_FOLDER --kind model --to denserk writes the model with "
            "one; cross-encoders have none"
        )
        return
    from denserk.models.canary import first_difference, reject_difference
    from denserk.models.text_encoder import TextEncoder

    if compute.dtype is DtypeChoice.AUTO:  # float32 shows most
        compute = replace(compute, dtype=DtypeChoice.FLOAT32)
    encoder = TextEncoder(model, compute=compute)
    comparisons = encoder.compare_with_canary()
    if not comparisons:  # a file of another tool
        typer.echo(
            f"the {CANARY_FILE} of {name} has no texts of the kinds {' or '.join(KINDS)}: there is "
            "nothing to compare the model with"
        )
        return
    rows = []
    for comparison in comparisons:
        difference = comparison.difference
        rows.append(
            (
                comparison.kind,
                str(len(comparison.texts)),
                f"{comparison.precision}, {encoder.backend}",
                f"{max(comparison.distances):.1e}" if comparison.distances else "-",
                f"{comparison.tolerance:.0e}",
                "none" if difference is None else difference.stage.value,
            )
        )
    print_table(("texts", "number", "computed in", "1 - cosine", "at most", "differs"), rows)
    reject_difference(first_difference(comparisons), name)
    typer.echo(f"{name} is the model that was saved, by these texts")


def _packages(fixes: list[str]) -> Facts:
    """Yield the version of each package with its extra; add to `fixes` what to install."""
    yield "denserk", __version__
    yield "python", platform.python_version()
    for requirement in _requirements():
        extra = _extra_of(requirement)
        if extra is None:
            continue
        package_version = _installed_version(requirement.name)
        if not _is_met(requirement, package_version):
            fixes.append(f"pip install '{requirement.name}{requirement.specifier}' ({extra})")
        yield requirement.name, f"{package_version or 'missing'} ({extra})"
    if _is_installed("faiss-cpu") and _is_installed("faiss-gpu"):
        fixes.append(
            "pip uninstall faiss-cpu faiss-gpu, then pip install one of them (both are the module "
            "faiss, and overwrite each other's files)"
        )


def _requirements() -> "list[Requirement]":
    """Return the requirements of denserk: of the installation, or else of its source tree."""
    from packaging.requirements import Requirement

    try:
        return [Requirement(line) for line in requires("denserk") or []]
    except PackageNotFoundError:
        pass
    project_file = Path(__file__).parents[2] / "pyproject.toml"
    if not project_file.is_file():
        return []
    project = tomllib.loads(project_file.read_text("utf-8"))["project"]
    lines = list(project["dependencies"])
    for extra, group in project["optional-dependencies"].items():
        lines += [f'{line}; extra == "{extra}"' for line in group]
    return [Requirement(line) for line in lines]


def _extra_of(requirement: "Requirement") -> str | None:
    """Return the first of the reported extras that needs a package; None if it is of others."""
    for extra in EXTRAS.split():
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            return extra
    return None


def _installed_version(package: str) -> str | None:
    """Return the version of a package, or of faiss-gpu in place of faiss-cpu."""
    for name in (package, package.replace("faiss-cpu", "faiss-gpu")):
        with suppress(PackageNotFoundError):
            return version(name)
    return None


def _is_installed(package: str) -> bool:
    """Return whether a package is installed under this very name."""
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def _is_met(requirement: "Requirement", package_version: str | None) -> bool:
    """Return whether a version of a package is one that denserk needs."""
    if not package_version:
        return False
    return requirement.specifier.contains(package_version, prereleases=True)


def _machine(fixes: list[str]) -> Facts:
    """Yield CPU, threads and GPUs; add to `fixes` what torch needs."""
    cpu = _cpu_info()
    yield "CPU", cpu.get("model name", platform.machine())
    yield "features", _cpu_features(cpu)
    cores = len(os.sched_getaffinity(0))
    yield "cores", f"{cores} usable of {os.cpu_count()}"
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY"):
        yield name, os.environ.get(name, "not set")
    try:
        import torch
    except (ImportError, OSError) as error:
        fixes.append("pip install --force-reinstall torch (it cannot be imported)")
        yield "torch", f"cannot be imported ({error})"
        return
    threads = torch.get_num_threads()
    if threads > cores:
        fixes.append(f"export OMP_NUM_THREADS={cores} (torch uses {threads} threads)")
    yield "threads of torch", str(threads)
    gpu_count, problem = _count_gpus()
    for number in range(gpu_count):
        gpu = torch.cuda.get_device_properties(number)
        yield f"cuda:{number}", f"{gpu.name}, {gpu.total_memory >> 30} GiB"
    if not gpu_count:
        yield "GPU", f"none that torch can use (built for CUDA {torch.version.cuda or 'none'})"
    if problem:
        fixes.append(
            f"update the GPU's driver, or install a torch that is built for it ({problem})"
        )
    yield "encode", _encoding_defaults(torch.device("cuda" if gpu_count else "cpu"))


def _count_gpus() -> tuple[int, str]:
    """Return how many GPUs torch can use, and why it cannot use those that are installed."""
    import torch

    installed_gpus = torch.cuda.device_count()
    with warnings.catch_warnings(record=True) as driver_warnings:  # of a driver that is too old
        warnings.simplefilter("always")
        if torch.cuda.is_available():
            return installed_gpus, ""
    if installed_gpus and driver_warnings:
        first_sentence, _, _ = str(driver_warnings[0].message).partition(". ")
        return 0, first_sentence
    if installed_gpus:
        return 0, "CUDA does not start"
    return 0, ""


def _encoding_defaults(device: "torch.device") -> str:
    """Return how `denserk encode` computes on a device without options."""
    from denserk.models import devices
    from denserk.models.precision import is_bfloat16_tried

    dtype = devices.automatic_dtype(device)
    batch_tokens = default_batch_tokens(device.type, dtype)
    workers = devices.default_workers(device)
    threads = f"{workers} threads tokenise" if workers > 1 else "1 thread tokenises"
    if is_bfloat16_tried(DtypeChoice.AUTO, device, backbone=""):  # of any architecture
        precision = f"{Dtype.BFLOAT16} (or {dtype}, where vectors would differ)"
    else:
        precision = dtype.value
    return f"{precision} on {device}, batches of {batch_tokens:,} tokens, {threads}"


def _cpu_features(cpu: dict[str, str]) -> str:
    """Return the CPU's flags that matter for the speed of models."""
    flags = cpu.get("flags") or cpu.get("Features", "")  # of x86, or of ARM
    known_flags = [name for name in FEATURES.split() if name in flags.split()]
    return " ".join(known_flags) or "none known"


def _cpu_info() -> dict[str, str]:
    """Return what Linux tells of the last core, by its names; nothing on other systems."""
    info: dict[str, str] = {}
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            info[name.strip()] = value.strip()
    return info


def _storage(fixes: list[str]) -> Facts:
    """Yield memory, and the folders that denserk writes to unasked, with the room on their disks.

    Models that a package holds follow, each with where it would be taken from. Add to `fixes` the
    folders that cannot be written.
    """
    from denserk.index.memory import available_bytes

    available = available_bytes()
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    available_memory = "unknown" if available is None else f"{available / 2**30:.1f} GiB available"
    yield "memory", f"{available_memory} of {total / 2**30:.1f} GiB"
    for name, folder in _written_folders(fixes).items():
        existing_folder = _existing_folder(folder)
        free_bytes = shutil.disk_usage(existing_folder).free
        notes = [f"{free_bytes / 2**30:.1f} GiB free"]
        if not os.access(existing_folder, os.W_OK):
            fixes.append(f"choose another folder for {name}: {existing_folder} cannot be written")
            notes.append("cannot be written")
        if not folder.exists():
            notes.append("not there yet")
        yield name, f"{folder} ({', '.join(notes)})"
    for short_name, model in PUBLISHED.items():
        if model in PACKAGED:
            yield short_name, _source_of_packaged(model, PACKAGED[model])


def _existing_folder(folder: Path) -> Path:
    """Return a folder, or the nearest one above it that exists."""
    while not folder.exists():
        folder = folder.absolute().parent
    return folder


def _source_of_packaged(model: str, packaged: PackagedModel) -> str:
    """Return where a model of the hub that a package holds would be taken from."""
    from denserk.io.packaged_models import is_cached, label, package_folder

    if is_cached(model):
        return f"{model}, from the hub's cache"
    if package_folder(packaged) is not None:
        return f"{model}, from the package {label(packaged)}"
    return f"{model}, from the hub (needs network, or pip install {packaged.package})"


def _written_folders(fixes: list[str]) -> dict[str, Path]:
    """Return the folders that denserk and its libraries write to unasked.

    Add to `fixes` what a user without a home has to set.
    """
    from denserk.io.data_sets import cache_folder

    folders = {"working folder": Path.cwd(), "temporary files": Path(gettempdir())}
    try:
        folders["datasets"] = cache_folder()
    except UsageError as error:
        fixes.append(f"{error.hint}: {error.message}")
    home = _home_folder()
    hub = home / ".cache" / "huggingface" / "hub"
    with suppress(ImportError):
        from huggingface_hub.constants import HF_HUB_CACHE

        hub = Path(HF_HUB_CACHE)
    folders["ir_datasets"] = Path(os.environ.get("IR_DATASETS_HOME") or home / ".ir_datasets")
    folders["models"] = hub
    return folders


def _home_folder() -> Path:
    """Return the user's home; of a user without one `~`, which the libraries then write to."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("~")


def _compiled_models(fixes: list[str]) -> Facts:
    """Yield the folder of models kept compiled for queries, and each of them, last used first."""
    from denserk.models import compiled_cache

    entries = sorted(compiled_cache.entries(), key=lambda entry: entry.used, reverse=True)
    total_gb = sum(entry.size for entry in entries) / 1e9
    limit_gb = compiled_cache.limit_bytes() / 1e9
    models = "1 model" if len(entries) == 1 else f"{len(entries):,} models"
    try:
        folder = compiled_cache.compiled_folder()
    except UsageError:
        yield "folder", "none"
        return
    yield "folder", f"{folder} ({models}, {total_gb:.2f} of {limit_gb:g} GB)"
    for entry in entries:
        used = datetime.fromtimestamp(entry.used).strftime("%Y-%m-%d %H:%M")
        yield f"{entry.size / 1e6:,.0f} MB", f"{entry.model}, used {used}"


def _clear_compiled() -> None:
    """Remove all compiled models, and print how many there were."""
    from denserk.models import compiled_cache

    count, removed_bytes = compiled_cache.clear()
    models = "1 compiled model" if count == 1 else f"{count:,} compiled models"
    folder = compiled_cache.compiled_folder()
    typer.echo(f"removed {models} ({removed_bytes / 1e9:.2f} GB) from {folder}")


def _java(fixes: list[str]) -> Facts:
    """Yield which Java there is; add to `fixes` what Lucene indexes need of it."""
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
