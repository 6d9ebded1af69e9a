"""Runs of `denserk benchmark --model`.

Each corpus is encoded and indexed once, and then searched per benchmark:

runs/scifact.trec                       a run per benchmark, its manifest beside it
runs/corpora/beir-scifact/vectors       the vectors of a corpus, resumable block by block
runs/corpora/beir-scifact/index         its exact index
runs/manifest.json                      the model and the settings that all runs share
"""

import logging
import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from denserk.config import benchmarks, encoding, retrieval
from denserk.config import benchmarks as config
from denserk.config.benchmarks import Benchmark
from denserk.config.evaluation import EvalSettings
from denserk.config.formats import CorpusSettings
from denserk.config.options import as_json
from denserk.config.values import plain
from denserk.errors import MismatchError, UsageError
from denserk.evaluation.benchmarks import published_by, run_in_folder
from denserk.evaluation.evaluator import short_names
from denserk.evaluation.results import BenchmarksResult, EvaluationResult
from denserk.io import manifest as manifests
from denserk.io.blocks import refuse_other_run
from denserk.io.data_sets import find_parts
from denserk.io.durability import flush_names
from denserk.io.files import STREAM, write_errors
from denserk.io.manifest import Kind, Manifest, beside, file_sha256, read_manifest, write_manifest
from denserk.io.model_files import find_model
from denserk.io.outputs import refuse_occupied
from denserk.models.model_folder import read_model_folder
from denserk.tasks.build_index import build_index
from denserk.tasks.encode import encode
from denserk.tasks.evaluate import evaluate
from denserk.tasks.search import search

logger = logging.getLogger(__name__)

CORPORA = "corpora"  # vectors and indexes, within the folder of runs
LENGTHS = ("query_max_length", "passage_max_length")


def _origin(benchmark: Benchmark) -> dict[str, str]:
    return {"name": benchmark.name, "corpus": benchmark.corpus.name}


class RunMaker:
    """Makes the runs of one model."""

    def __init__(
        self,
        paths: benchmarks.BenchmarkPaths,
        choice: benchmarks.MakeSettings,
        options: encoding.ModelOptions,
        corpus: CorpusSettings,
    ) -> None:
        self.output, self.choice = Path(paths.output or ""), choice
        self.options, self.corpus = options, corpus
        self.model, folder = find_model(paths.model or "")
        self.stored = read_model_folder(folder)
        self.search = retrieval.SearchSettings(hits=choice.hits, index_device=choice.index_device)

    def make(self, asked: Sequence[Benchmark]) -> None:
        """Encode, index and search benchmarks, one after the other."""
        found = find_parts(asked)
        manifest = self._start()
        longest = self.stored.passage.max_length or math.inf
        published = encoding.PUBLISHED_TEXT.get(self.model, {})
        states_join = self.stored.has_settings or "join" in published
        for position, each in enumerate(asked, start=1):
            corpus, run = each.corpus, str(self._run_of(each))
            folder = self.output / CORPORA / corpus.name.replace("/", "-")
            if self.choice.resume and self._is_finished(each):
                logger.info(f"{each.name}: finished, kept")
            else:
                # the text settings given, else the benchmark's, at most the model's lengths
                lengths = {name: min(getattr(corpus, name), longest) for name in LENGTHS}
                join = {} if states_join else {"join": corpus.join}
                text = {**lengths, **join, **self.options.text}
                query, passage = (text[name] for name in LENGTHS)
                which = f"{each.name} ({position} of {len(asked)})"
                logger.info(f"{which}: queries of {query} tokens, passages of {passage}")
                options, parts = self.options._replace(text=text), found[each.name]
                index = self._index(folder, parts["corpus"], options)
                rules = replace(
                    self.search, remove_query=each.remove_query, max_passage=each.max_passage
                )
                paths = retrieval.SearchPaths(
                    index=(str(index),), topics=parts["topics"], model=self.model, output=run
                )
                search(paths, rules, *options, own_precision=True)
                made = read_manifest(run, Kind.RUN)
                made_from = {**made.made_from, "suite": _origin(each)}
                write_manifest(run, replace(made, made_from=made_from))
            later = {other.corpus.name for other in asked[position:]}
            if self.choice.discard_vectors and corpus.name not in later:
                shutil.rmtree(folder, ignore_errors=True)
        every = benchmarks.benchmarks().items()
        finished = sorted(name for name, one in every if self._is_finished(one))
        write_manifest(self.output, replace(manifest, complete=True, contents={"runs": finished}))

    def _run_of(self, benchmark: Benchmark) -> Path:
        return self.output / f"{benchmark.short}.trec"

    def _is_finished(self, benchmark: Benchmark) -> bool:
        """Return whether the run of a benchmark is complete and unchanged."""
        run = self._run_of(benchmark)
        if not run.is_file() or not beside(run).is_file():
            return False
        manifest = read_manifest(run, Kind.RUN, unfinished=True)
        return manifest.made_from.get("suite") == _origin(benchmark) and (
            manifest.contents.get("sha256") == file_sha256(run)
        )

    def _start(self) -> Manifest:
        """Write the unfinished manifest and return it; other settings are an error."""
        settings = {
            "search": as_json(self.search),
            "representation": {n: plain(value) for n, value in self.options.representation.items()},
            "text": {name: plain(value) for name, value in self.options.text.items()},
            "dtype": self.options.compute.dtype.value,
            **as_json(self.corpus),
        }
        model = {"name": self.model, "fingerprint": self.stored.fingerprint()}
        manifest = Manifest(Kind.RUNS, False, settings, {"model": model})
        exists = (self.output / manifests.NAME).is_file()
        if exists and self.choice.resume:
            started = read_manifest(self.output, Kind.RUNS, unfinished=True)
            refuse_other_run(self.output, started, manifest, ["model"])
        elif exists and self.choice.overwrite:  # what this command wrote there
            read_manifest(self.output, Kind.RUNS, unfinished=True)
            with write_errors(self.output):
                shutil.rmtree(self.output / CORPORA, ignore_errors=True)
                for run in map(self._run_of, benchmarks.benchmarks().values()):
                    if beside(run).is_file():
                        run.unlink(missing_ok=True)
                        beside(run).unlink()
                flush_names(self.output)  # before the manifest is of another choice
        else:
            refuse_occupied(self.output, overwrite=False)
        with write_errors(self.output):
            self.output.mkdir(parents=True, exist_ok=True)
        write_manifest(self.output, manifest)
        return manifest

    def _index(self, folder: Path, source: str, options: encoding.ModelOptions) -> Path:
        """Return the index of a corpus, building it if needed."""
        vectors, index = folder / "vectors", folder / "index"
        if (index / manifests.NAME).is_file() and read_manifest(
            index, Kind.INDEX, unfinished=True
        ).complete:
            return index
        paths = encoding.EncodeSettings(
            model=self.model, corpus=source, output=str(vectors), resume=vectors.is_dir()
        )
        encode(paths, self.corpus, options)
        inputs = retrieval.IndexPaths(input=(str(vectors),), output=str(index), resume=True)
        build_index(inputs, retrieval.IndexSettings())
        return index


def evaluate_benchmark(
    runs: Sequence[str],
    benchmark: config.Benchmark,
    settings: EvalSettings | None = None,
    against: Sequence[config.Paper] = (),
) -> EvaluationResult:
    """Evaluate runs on one benchmark, whose measures hold unless `settings` name some.

    The measures that the papers in `against` report are computed too.
    """
    settings = settings or EvalSettings()
    corpus = benchmark.corpus.name
    own = f"{benchmark.name} (corpus {corpus})"
    for path in runs:
        recorded = path != STREAM and beside(path).is_file()
        made = read_manifest(path, Kind.RUN).made_from.get("suite") if recorded else None
        if made is not None and (other := f"{made['name']} (corpus {made['corpus']})") != own:
            hint = f"denserk benchmark {made['name']} --runs {path}"
            raise MismatchError(f"{path} was made for {other}, not for {own}", hint)
        if made is None and corpus == "msmarco-passage-titled":
            logger.info(f"{path} has no manifest: assumed to be a run on the titled corpus")
    rows = published_by(against, [benchmark.name])
    reported = (measure for row in rows for measure in row.values)
    measures = settings.measures or (*benchmark.measures, *reported)
    remove = settings.remove_query or benchmark.remove_query
    regex = settings.regex or benchmark.regex
    settings = replace(settings, measures=measures, remove_query=remove, regex=regex)
    if benchmark.answers is None:
        qrels = find_parts([benchmark], ["qrels"])[benchmark.name]["qrels"]
        result = evaluate(runs, qrels, settings)
    else:
        from denserk.tasks.evaluate_answers import evaluate_answers

        parts = find_parts([benchmark], ["answers", "corpus"])[benchmark.name]
        result = evaluate_answers(runs, parts["answers"], parts["corpus"], settings)
    names = set(map(str, result.measures))
    cut = (replace(row, values={m: v for m, v in row.values.items() if m in names}) for row in rows)
    return replace(result, published=tuple(row for row in cut if row.values))


def evaluate_benchmarks(
    folders: Sequence[str],
    names: Sequence[str],
    settings: EvalSettings | None = None,
    against: Sequence[config.Paper] = (),
) -> BenchmarksResult:
    """Evaluate folders of runs, such as scifact.trec, on several benchmarks and groups."""
    asked, called = config.find_benchmarks(names), short_names(folders)
    paths: dict[str, dict[str, str]] = {benchmark.name: {} for benchmark in asked}
    for folder, name in zip(folders, called, strict=True):
        found = {each.name: run_in_folder(folder, each) for each in asked}
        for title, path in found.items():
            if path is not None:
                paths[title][name] = str(path)
        missing = [title for title, path in found.items() if path is None]
        if len(missing) == len(asked):
            hint = f"runs are named by benchmark, for example {asked[0].short}.trec"
            raise UsageError(f"{folder} holds no run of {', '.join(names)}", hint)
        if missing:
            logger.warning(f"{folder} has no run of {', '.join(missing)}: no mean that needs them")
    asked = tuple(benchmark for benchmark in asked if paths[benchmark.name])
    find_parts(asked, ["qrels", "answers"])  # reports all missing parts at once
    results = {}
    for benchmark in asked:
        runs = paths[benchmark.name]
        result = evaluate_benchmark(list(runs.values()), benchmark, settings)
        named = (replace(run, name=name) for name, run in zip(runs, result.runs, strict=True))
        results[benchmark.name] = replace(result, runs=tuple(named))
    shown = [*results, *(group.name for group in config.groups_within(results))]
    return BenchmarksResult(tuple(called), results, published_by(against, shown))
