"""`denserk benchmark`: evaluate runs on benchmarks, and make the runs of a model.

With a model, each corpus is encoded and indexed once, and then searched per benchmark:

runs/scifact.trec                       a run per benchmark, its manifest beside it
runs/corpora/beir-scifact/vectors       the vectors of a corpus, resumable block by block
runs/corpora/beir-scifact/index         its exact index
runs/manifest.json                      the model and the settings that all runs share
"""

import logging
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from denserk.commands.app import app
from denserk.commands.console import print_table
from denserk.commands.evaluate import finish, show, with_baseline
from denserk.commands.options import Given, Overrides, command
from denserk.config.benchmarks import (
    COLUMNS,
    Benchmark,
    BenchmarkPaths,
    Corpus,
    MakeSettings,
    benchmarks,
    find_benchmark,
    find_benchmarks,
    list_benchmarks,
)
from denserk.config.encoding import (
    PUBLISHED_TEXT,
    ComputeSettings,
    EncodeSettings,
    RepresentationSettings,
    TextSettings,
)
from denserk.config.evaluation import (
    AnswerSettings,
    ComparisonSettings,
    EvaluationSettings,
    MeasureSettings,
    PageSettings,
    ReportSettings,
    ReportSources,
    reject_unused,
)
from denserk.config.formats import CorpusSettings
from denserk.config.options import as_json, given_fields, plain
from denserk.config.retrieval import IndexPaths, IndexSettings, SearchPaths, SearchSettings
from denserk.errors import MismatchError, UsageError
from denserk.io.data_sets import find_parts
from denserk.io.files import write_errors
from denserk.io.manifest import (
    NAME,
    Kind,
    Manifest,
    beside,
    differences,
    file_sha256,
    read_manifest,
    write_manifest,
)

logger = logging.getLogger(__name__)

CORPORA = "corpora"  # vectors and indexes, within the folder of runs
LENGTHS = ("query_max_length", "passage_max_length")
NOTHING: Mapping[str, Any] = {}


@command(
    app,
    "benchmark",
    common=(
        "list runs model output against measures baseline min per_query format report "
        "hits resume overwrite device dtype batch_tokens"
    ),
    examples=(
        "denserk benchmark dl19 --runs run.trec --against aggretriever",
        "denserk benchmark beir-small --model M --output runs/",
    ),
)
def benchmark(
    paths: BenchmarkPaths,
    measures: MeasureSettings,
    matching: AnswerSettings,
    comparison: ComparisonSettings,
    report: ReportSettings,
    page: PageSettings,
    make: Given[MakeSettings],
    representation: Overrides[RepresentationSettings],
    text: Overrides[TextSettings],
    corpus: Given[CorpusSettings],
    computing: Given[ComputeSettings],
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Benchmarks or groups (see --list).")
    ] = None,
) -> None:
    """Evaluate runs or a model on named benchmarks."""
    if paths.list:
        print_table(COLUMNS, list_benchmarks())
        return
    if not names:
        raise UsageError("no benchmark given", "denserk benchmark --list shows all")
    runs = _runs_of(paths, {**make, **representation, **text, **corpus, **computing})
    if not any(each.answers for each in find_benchmarks(names)):
        why = f"for benchmarks with answers; {' and '.join(names)} has qrels"
        reject_unused([matching], why, "leave it out")
    if page.report is not None:
        from denserk.evaluation.report import page_in

        page_in(page, runs)
    first = find_benchmark(names[0])
    folders = paths.output is not None or any(Path(path).is_dir() for path in runs)
    one = first if isinstance(first, Benchmark) and not folders and len(set(names)) == 1 else None
    if one is None:
        _reject_single([comparison, measures, report, matching, page])
    settings = EvaluationSettings(**vars(measures))
    if paths.model is not None and paths.output is not None:
        make_runs(
            *(names, paths.model, paths.output, MakeSettings(**make), representation, text),
            *(CorpusSettings(**corpus), ComputeSettings(**computing)),
        )
    if one is not None:
        _measure_one(runs, one, settings, paths, matching, comparison, report, page)
        return
    from denserk.evaluation.benchmarks import evaluate_benchmarks

    result = evaluate_benchmarks(runs, names, settings, paths.against, matching)
    show(result, report)
    if page.report is not None:
        from denserk.evaluation.report import write_benchmarks_report

        logger.info(f"{write_benchmarks_report(result, page)}: report")


def _runs_of(paths: BenchmarkPaths, making: Mapping[str, Any]) -> list[str]:
    """Return the runs to evaluate; `making` holds the given options for making runs."""
    unused = [f"--{name.replace('_', '-')}" for name in making if name != "overwrite"]
    if paths.model is None and unused:
        raise UsageError(f"{', '.join(unused)}: only with --model", "add --model and --output")
    runs = [*paths.runs, *filter(None, [paths.output])]
    if not runs:
        raise UsageError("no runs given", "add --runs run.trec, or --model MODEL --output DIR")
    return runs


def _reject_single(groups: Sequence[Any]) -> None:
    """Raise a UsageError for options that need the runs of one benchmark."""
    single = ("baseline", "min", "per_query", "topics", "write_dpr_json", "write_pyserini_json")
    given = [name for group in groups for name in given_fields(group) if name in single]
    if given:
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(f"{flags}: only for run files of one benchmark", "give one benchmark")


def _measure_one(
    runs: Sequence[str],
    benchmark: Benchmark,
    settings: EvaluationSettings,
    paths: BenchmarkPaths,
    matching: AnswerSettings,
    comparison: ComparisonSettings,
    report: ReportSettings,
    page: PageSettings,
) -> None:
    from denserk.evaluation.benchmarks import evaluate_benchmark

    comparison, runs = with_baseline(comparison, runs)
    result = evaluate_benchmark(runs, benchmark, settings, paths.against, matching)
    sources = None
    if page.report is not None:
        from denserk.evaluation.report import sources_of

        sources = sources_of(benchmark, ReportSources(benchmark.title, topics=page.topics))
        settings = replace(settings, remove_query=benchmark.remove_query)
    finish(result, runs, settings, comparison, report, page, sources)


@dataclass(frozen=True)
class _Job:
    """The model and the settings shared by the benchmarks of one call."""

    output: Path
    model: str
    fingerprint: str
    positions: int | None  # the longest input of the model
    states_join: bool  # the model records the separator between title and text
    choice: MakeSettings
    representation: Mapping[str, Any]
    text: Mapping[str, Any]
    corpus: CorpusSettings
    compute: ComputeSettings

    @property
    def search(self) -> SearchSettings:
        return SearchSettings(hits=self.choice.hits, index_device=self.choice.index_device)

    def run_of(self, benchmark: Benchmark) -> Path:
        """Return the path of a benchmark's run."""
        return self.output / f"{benchmark.short}.trec"

    def folder_of(self, corpus: Corpus) -> Path:
        """Return the folder of a corpus's vectors and index."""
        return self.output / CORPORA / corpus.name.replace("/", "-")

    def text_for(self, corpus: Corpus) -> dict[str, Any]:
        """Return the text settings of a corpus: those given, the benchmark's, the model's.

        A benchmark's lengths are cut to the model's longest input.
        """
        lengths = {n: min(getattr(corpus, n), self.positions or math.inf) for n in LENGTHS}
        join = {} if self.states_join else {"join": corpus.join}
        return {**lengths, **join, **self.text}

    def is_finished(self, benchmark: Benchmark) -> bool:
        """Return whether the run of a benchmark is complete and unchanged."""
        run = self.run_of(benchmark)
        if not run.is_file() or not beside(run).is_file():
            return False
        manifest = read_manifest(run, Kind.RUN, unfinished=True)
        return manifest.made_from.get("suite") == _origin(benchmark) and (
            manifest.contents.get("sha256") == file_sha256(run)
        )


def make_runs(
    names: Sequence[str],
    model: str,
    output: str,
    choice: MakeSettings = MakeSettings(),  # noqa: B008  (frozen)
    representation: Mapping[str, Any] = NOTHING,
    text: Mapping[str, Any] = NOTHING,
    corpus: CorpusSettings = CorpusSettings(),  # noqa: B008
    compute: ComputeSettings = ComputeSettings(),  # noqa: B008
) -> None:
    """Encode, index and search benchmarks, one after the other.

    `representation` and `text` override the model's settings, `text` also the benchmarks'.

    Raises:
        UsageError: parts of benchmarks are missing (all are named), or the folder is not empty and
            neither --resume nor --overwrite was given.
        MismatchError: the folder's runs were made with another model or other settings.
    """
    from denserk.models.checkpoints import find_model
    from denserk.models.stored_model import read_model_folder

    asked = find_benchmarks(names)
    found = find_parts(asked)
    name, folder = find_model(model)
    stored = read_model_folder(folder)
    states_join = stored.told or "join" in PUBLISHED_TEXT.get(name, NOTHING)
    job = _Job(
        *(Path(output), name, stored.fingerprint(), stored.passage.max_length, states_join),
        *(choice, representation, text, corpus, compute),
    )
    manifest = _start(job)
    for position, benchmark in enumerate(asked):
        if choice.resume and job.is_finished(benchmark):
            logger.info(f"{benchmark.name}: finished, kept")
        else:
            query, passage = (job.text_for(benchmark.corpus)[name] for name in LENGTHS)
            logger.info(
                f"{benchmark.name} ({position + 1} of {len(asked)}): queries of {query} tokens, "
                f"passages of {passage}"
            )
            _search(job, benchmark, found[benchmark.name])
        later = {other.corpus.name for other in asked[position + 1 :]}
        if choice.discard_vectors and benchmark.corpus.name not in later:
            shutil.rmtree(job.folder_of(benchmark.corpus), ignore_errors=True)
    finished = sorted(one.name for one in benchmarks().values() if job.is_finished(one))
    write_manifest(job.output, replace(manifest, complete=True, contents={"runs": finished}))


def _start(job: _Job) -> Manifest:
    """Write the unfinished manifest and return it; other settings are an error."""
    from denserk.io.outputs import refuse_occupied

    manifest = Manifest(
        Kind.RUNS,
        False,
        {
            "search": as_json(job.search),
            "representation": {name: plain(value) for name, value in job.representation.items()},
            "text": {name: plain(value) for name, value in job.text.items()},
            "dtype": job.compute.dtype.value,
            **as_json(job.corpus),
        },
        {"model": {"name": job.model, "fingerprint": job.fingerprint}},
    )
    exists = (job.output / NAME).is_file()
    if job.choice.resume and exists:
        _check_same(job.output, manifest)
    elif job.choice.overwrite and exists:
        _clear(job)
    else:
        refuse_occupied(job.output, overwrite=False, resumable=exists)
    with write_errors(job.output):
        job.output.mkdir(parents=True, exist_ok=True)
    write_manifest(job.output, manifest)
    return manifest


def _check_same(output: Path, manifest: Manifest) -> None:
    """Raise a MismatchError if the folder's runs were made with another model or other settings."""
    existing = read_manifest(output, Kind.RUNS, unfinished=True)
    found = differences(existing.settings, manifest.settings)
    before, now = (m.made_from["model"] for m in (existing, manifest))
    if before["fingerprint"] != now["fingerprint"]:
        found.append(f"the model was {before['name']}, now {now['name']} with other weights")
    if found:
        raise MismatchError(
            f"the runs in {output} were made with other settings: {'; '.join(found)}",
            "choose another --output, or remake all runs with --overwrite",
        )


def _clear(job: _Job) -> None:
    """Remove the files that this command wrote in the folder."""
    read_manifest(job.output, Kind.RUNS, unfinished=True)
    with write_errors(job.output):
        shutil.rmtree(job.output / CORPORA, ignore_errors=True)
        for one in benchmarks().values():
            for run in (job.output / f"{one.short}.{end}" for end in ("trec", "tsv", "jsonl")):
                if beside(run).is_file():
                    run.unlink(missing_ok=True)
                    beside(run).unlink()


def _origin(benchmark: Benchmark) -> dict[str, str]:
    """Return the entry of a benchmark in a run's manifest."""
    return {"name": benchmark.name, "corpus": benchmark.corpus.name}


def _search(job: _Job, benchmark: Benchmark, parts: Mapping[str, str]) -> None:
    """Write the run of one benchmark, encoding and indexing its corpus if needed."""
    from denserk.index.search import search

    text = job.text_for(benchmark.corpus)
    index = _index(job, benchmark, parts["corpus"], text)
    run = job.run_of(benchmark)
    rules = replace(
        job.search, remove_query=benchmark.remove_query, max_passage=benchmark.max_passage
    )
    asked = SearchPaths(
        index=(str(index),), topics=parts["topics"], model=job.model, output=str(run)
    )
    search(asked, rules, job.representation, text, job.compute, own_precision=True)
    made = read_manifest(run, Kind.RUN)
    write_manifest(run, replace(made, made_from={**made.made_from, "suite": _origin(benchmark)}))


def _index(job: _Job, benchmark: Benchmark, source: str, text: Mapping[str, Any]) -> Path:
    """Return the index of a benchmark's corpus, building it if needed."""
    from denserk.index.build import build_index
    from denserk.models.encode import encode

    folder = job.folder_of(benchmark.corpus)
    vectors, index = folder / "vectors", folder / "index"
    if (index / NAME).is_file() and read_manifest(index, Kind.INDEX, unfinished=True).complete:
        return index
    asked = EncodeSettings(
        model=job.model, corpus=source, output=str(vectors), resume=vectors.is_dir()
    )
    encode(asked, job.corpus, job.representation, text, job.compute)
    build_index(IndexPaths(input=(str(vectors),), output=str(index), resume=True), IndexSettings())
    return index
