"""`denserk benchmark`: runs are made with a model, and evaluated, on benchmarks by name.

To make runs, each corpus is encoded and indexed once, and then searched for each benchmark:

runs/scifact.trec                       a run per benchmark, its manifest beside it
runs/corpora/beir-scifact/vectors       the vectors of a corpus, resumable block by block
runs/corpora/beir-scifact/index         its exact index
runs/manifest.json                      the model and the settings that all runs share
"""

import logging
import math
import shutil
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from pathlib import Path
from typing import Any

from denserk.config import benchmarks as config
from denserk.config import encoding, retrieval
from denserk.config.benchmarks import Benchmark
from denserk.config.evaluation import EvalSettings, RunOrder
from denserk.config.formats import CorpusSettings
from denserk.config.options import as_json
from denserk.config.values import plain
from denserk.errors import MismatchError, UsageError
from denserk.evaluation.benchmarks import published_by, run_in_folder
from denserk.evaluation.evaluator import short_names
from denserk.evaluation.results import BenchmarksResult, EvaluationResult, PublishedRow
from denserk.io import manifest as manifests
from denserk.io.blocks import reject_other_run
from denserk.io.data_sets import find_parts
from denserk.io.durability import flush_names
from denserk.io.exclusions import listed_exclusions
from denserk.io.file_errors import write_errors
from denserk.io.files import STREAM
from denserk.io.manifest import (
    Kind,
    Manifest,
    beside,
    file_sha256,
    read_manifest,
    started_manifest,
    write_manifest,
)
from denserk.io.model_files import find_model, without_revision
from denserk.io.outputs import MANIFEST
from denserk.io.runs import read_run_scores
from denserk.io.topics import read_queries
from denserk.models import devices
from denserk.models.model_folder import StoredModel, read_model_folder
from denserk.models.precision import is_bfloat16_tried
from denserk.models.served_encoder import fingerprint_of_name
from denserk.models.text_encoder import TextEncoder
from denserk.tasks.build_index import build_index
from denserk.tasks.encode import encode
from denserk.tasks.evaluate import (
    computed_measures,
    evaluate,
    evaluate_runs,
    read_relevance_judgments,
    read_runs,
)
from denserk.tasks.search import search

logger = logging.getLogger(__name__)

CORPORA = "corpora"  # vectors and indexes, within the folder of runs
SUITE = "suite"  # the key of the benchmark in a run's manifest
TITLED_CORPUS = "msmarco-passage-titled"  # runs on it look like those on msmarco-passage


def make_runs(
    paths: config.BenchmarkPaths,
    settings: config.MakeSettings,
    options: encoding.ModelOptions,
    corpus: CorpusSettings,
    benchmarks: Sequence[Benchmark],
    server: encoding.ServerSettings = encoding.NO_SERVER,
) -> None:
    """Encode, index and search benchmarks with a model, one after the other.

    `server` is for a model behind a URL.
    """
    maker = RunMaker(paths, settings, options, corpus, server)
    maker.make(benchmarks)


class RunMaker:
    """Makes the runs of one model, for which `paths` name a model and an output."""

    def __init__(
        self,
        paths: config.BenchmarkPaths,
        settings: config.MakeSettings,
        options: encoding.ModelOptions,
        corpus: CorpusSettings,
        server: encoding.ServerSettings,
    ) -> None:
        encoding.reject_server(server, paths.model)
        self._server = server
        self._output = Path(paths.output or "")
        self._settings = settings
        self._options = options
        self._corpus_settings = corpus
        self._model = paths.model or ""
        self._stored_model: StoredModel | None = None  # a model behind a URL has no folder
        if not encoding.is_served(self._model):
            self._model, folder = find_model(self._model)
            self._stored_model = read_model_folder(folder)
        # that the model may compute in bfloat16 on a CPU, if `--dtype auto` has tried
        self._certificate: Mapping[str, Any] | None = None
        self._search_settings = retrieval.SearchSettings(
            hits=settings.hits, index_device=settings.index_device
        )

    def make(self, benchmarks: Sequence[Benchmark]) -> None:
        """Make the runs of benchmarks that are not finished; complete the manifest of all runs."""
        earlier = started_manifest(  # first, as datasets may be downloaded
            self._output,
            Kind.RUNS,
            overwrite=self._settings.overwrite,
            resume=self._settings.resume,
        )
        parts_by_benchmark = find_parts(benchmarks)
        manifest = self._start(earlier)
        for number, benchmark in enumerate(benchmarks, start=1):
            if self._settings.resume and self._is_finished(benchmark):
                logger.info(f"{benchmark.name}: finished, kept")
            else:
                position = f"{number} of {len(benchmarks)}"
                self._make_run(benchmark, parts_by_benchmark[benchmark.name], position)
            if self._settings.discard_vectors:
                self._discard_corpus(benchmark, remaining=benchmarks[number:])
        # of earlier calls, too
        finished_names = [
            name for name, benchmark in config.benchmarks().items() if self._is_finished(benchmark)
        ]
        contents = {"runs": sorted(finished_names)}
        write_manifest(self._output, replace(manifest, complete=True, contents=contents))

    def _discard_corpus(self, benchmark: Benchmark, remaining: Sequence[Benchmark]) -> None:
        """Delete the vectors and the index of a corpus, unless remaining benchmarks need them."""
        if benchmark.corpus.name not in {later.corpus.name for later in remaining}:
            shutil.rmtree(self._corpus_folder(benchmark), ignore_errors=True)

    def _make_run(self, benchmark: Benchmark, parts: Mapping[str, str], position: str) -> None:
        """Encode and index the corpus of a benchmark, unless that is done, and search it.

        `parts` are the paths, or names, of its corpus and topics.
        """
        text = dict(self._options.text)
        lengths = ""
        if self._stored_model is not None:
            text = self._text_settings(benchmark, self._stored_model)
            lengths = (
                f": queries of {text['query_max_length']} tokens, passages of "
                f"{text['passage_max_length']}"
            )
        logger.info(f"{benchmark.name} ({position}){lengths}")
        options = self._options._replace(text=text)
        index = self._build_index(benchmark, parts["corpus"], options)
        run = str(self._run_of(benchmark))
        search_settings = replace(
            self._search_settings,
            remove_query=benchmark.remove_query,
            max_passage=benchmark.max_passage,
        )
        search_paths = retrieval.SearchPaths(
            index=(str(index),), topics=parts["topics"], model=self._model, output=run
        )
        search(
            search_paths,
            search_settings,
            options.representation,
            options.text,
            options.compute,
            server=self._server,
        )
        manifest = read_manifest(run, Kind.RUN)
        made_from = {**manifest.made_from, SUITE: _origin(benchmark)}
        write_manifest(run, replace(manifest, made_from=made_from))

    def _text_settings(self, benchmark: Benchmark, stored: StoredModel) -> dict[str, Any]:
        """Return the text settings: those given, else the benchmark's within the model's lengths.

        How title and text are joined is the benchmark's only if neither the model's folder has
        settings, nor denserk has those that it was published with.
        """
        corpus = benchmark.corpus
        longest = longest_text(stored)
        text: dict[str, Any] = {
            "query_max_length": min(corpus.query_max_length, longest),
            "passage_max_length": min(corpus.passage_max_length, longest),
        }
        published = encoding.PUBLISHED_TEXT.get(without_revision(self._model), {})
        if not stored.has_settings and "join" not in published:
            text["join"] = corpus.join
        return {**text, **self._options.text}

    def _corpus_folder(self, benchmark: Benchmark) -> Path:
        """Return the folder of a corpus' vectors and index."""
        return self._output / CORPORA / benchmark.corpus.name.replace("/", "-")

    def _run_of(self, benchmark: Benchmark) -> Path:
        """Return the path of a benchmark's run."""
        return self._output / f"{benchmark.short}.trec"

    def _is_finished(self, benchmark: Benchmark) -> bool:
        """Return whether the run of a benchmark is complete and unchanged."""
        run = self._run_of(benchmark)
        if not run.is_file() or not beside(run).is_file():
            return False
        manifest = read_manifest(run, Kind.RUN, unfinished=True)
        if manifest.made_from.get(SUITE) != _origin(benchmark):
            return False
        return manifest.contents.get("sha256") == file_sha256(run)

    def _start(self, earlier: Manifest | None) -> Manifest:
        """Create or continue the output, and return its unfinished manifest.

        `earlier` is that of an earlier call. Runs by other settings are an error, unless they are
        replaced.
        """
        resumed = earlier if self._settings.resume else None
        if self._stored_model is not None:
            self._choose_precision(resumed, self._stored_model)
        manifest = self._unfinished_manifest()
        if resumed is not None:
            reject_other_run(self._output, resumed, manifest, ["model"])
        elif earlier is not None:
            self._remove_runs()
        with write_errors(self._output):
            self._output.mkdir(parents=True, exist_ok=True)
        write_manifest(self._output, manifest)
        return manifest

    def _choose_precision(self, resumed: Manifest | None, stored: StoredModel) -> None:
        """Decide `--dtype auto` for all corpora and queries, so that all runs share a precision.

        It is that of the runs that are resumed, or chosen by device and model.
        """
        if resumed is not None:
            self._certificate = resumed.made_from["model"].get("certificate")
        if self._options.compute.dtype is not encoding.DtypeChoice.AUTO:
            return
        if resumed is not None:
            dtype = manifests.recorded_dtype(resumed)
        else:
            dtype = self._automatic_precision(stored)
        compute = replace(self._options.compute, dtype=encoding.DtypeChoice(dtype))
        self._options = self._options._replace(compute=compute)

    def _automatic_precision(self, stored: StoredModel) -> encoding.Dtype:
        """Return the precision that the device is fast in, and that the model is certified for."""
        compute = self._options.compute
        device = devices.use_device(compute.device)
        backbone = stored.passage.architecture.model_type
        if not is_bfloat16_tried(compute.dtype, device, backbone):
            return devices.choose_precision(compute.dtype, device)
        encoder = TextEncoder(self._model, *self._options)  # compares bfloat16 with float32
        self._certificate = encoder.certificate
        return encoder.dtype

    def _unfinished_manifest(self) -> Manifest:
        """Return the manifest of the model and the settings that all runs share."""
        representation = self._options.representation
        settings = {
            "search": as_json(self._search_settings),
            "representation": {name: plain(value) for name, value in representation.items()},
            "text": {name: plain(value) for name, value in self._options.text.items()},
            **as_json(self._corpus_settings),
        }
        if self._stored_model is None:
            fingerprint = fingerprint_of_name(self._model)
        else:
            fingerprint = self._stored_model.fingerprint()
            settings["dtype"] = self._options.compute.dtype.value
        model: dict[str, Any] = {"name": self._model, "fingerprint": fingerprint}
        if self._certificate is not None:
            model["certificate"] = self._certificate
        return Manifest(Kind.RUNS, False, settings, {"model": model})

    def _remove_runs(self) -> None:
        """Remove what this command wrote to the output before, and no other files."""
        with write_errors(self._output):
            shutil.rmtree(self._output / CORPORA, ignore_errors=True)
            for benchmark in config.benchmarks().values():
                run = self._run_of(benchmark)
                if beside(run).is_file():
                    run.unlink(missing_ok=True)
                    beside(run).unlink()
            flush_names(self._output)  # before the new manifest, which is not that of old runs

    def _settings_of_corpus(self, benchmark: Benchmark, source: str) -> CorpusSettings:
        """Return how a corpus is read: of a local copy, the key of the ids may be the recipe's."""
        id_field = benchmark.corpus.id_field
        is_local = Path(source).exists()
        if id_field is None or not is_local or self._corpus_settings.id_field is not None:
            return self._corpus_settings
        return replace(self._corpus_settings, id_field=id_field)

    def _build_index(
        self, benchmark: Benchmark, source: str, options: encoding.ModelOptions
    ) -> Path:
        """Encode a corpus and build its index, unless that is done; return the index's folder."""
        folder = self._corpus_folder(benchmark)
        index = folder / "index"
        is_started = (index / MANIFEST).is_file()
        if is_started and read_manifest(index, Kind.INDEX, unfinished=True).complete:
            return index
        vectors = folder / "vectors"
        encode_settings = encoding.EncodeSettings(
            model=self._model, corpus=source, output=str(vectors), resume=vectors.is_dir()
        )
        corpus_settings = self._settings_of_corpus(benchmark, source)
        encode(encode_settings, corpus_settings, options, self._server)
        paths = retrieval.IndexPaths(input=(str(vectors),), output=str(index), resume=True)
        build_index(paths, retrieval.IndexSettings())  # exact, by default
        return index


def longest_text(stored: StoredModel) -> float:
    """Return the most tokens of a text: the model's positions, or fewer if its authors say so.

    A folder of sentence-transformers names the length at which its published figures are measured.
    """
    longest = stored.passage.max_length or math.inf
    foreign = stored.foreign
    if foreign is not None and foreign.has_length:
        longest = min(longest, foreign.text.passage_max_length)
    return longest


def _origin(benchmark: Benchmark) -> dict[str, str]:
    """Return what a run's manifest records of its benchmark."""
    return {"name": benchmark.name, "corpus": benchmark.corpus.name}


def check_measures(benchmarks: Sequence[Benchmark], settings: EvalSettings) -> None:
    """Raise an error for measures that benchmarks cannot be evaluated by, before runs are made."""
    if any(benchmark.answers is None for benchmark in benchmarks):
        computed_measures(settings)
    if any(benchmark.answers is not None for benchmark in benchmarks):
        from denserk.tasks.evaluate_answers import requested_measures

        requested_measures(settings)


def evaluate_benchmark(
    runs: Sequence[str],
    benchmark: Benchmark,
    settings: EvalSettings | None = None,
    against: Sequence[config.Paper] = (),
) -> EvaluationResult:
    """Evaluate runs on one benchmark.

    The measures are those that `settings` name. If they name none, they are the benchmark's and
    those that the papers in `against` report.
    """
    published_rows = published_by(against, [benchmark.name])
    result = _evaluate_beside(published_rows, runs, benchmark, settings or EvalSettings())
    computed_rows = _computed_rows(published_rows, result)
    return replace(result, published=_mark_evaluated(computed_rows, runs))


def _evaluate_beside(
    published_rows: Sequence[PublishedRow],
    runs: Sequence[str],
    benchmark: Benchmark,
    settings: EvalSettings,
) -> EvaluationResult:
    """Evaluate runs on one benchmark, by the measures of published rows, too."""
    for run in runs:
        _reject_other_benchmark(run, benchmark)
    settings = _settings_of(benchmark, settings, published_rows)
    if benchmark.exclude_listed:
        parts = find_parts([benchmark], ["qrels", "topics"])[benchmark.name]
        return _evaluate_without_listed(runs, parts["qrels"], parts["topics"], settings)
    if benchmark.answers is None:
        qrels = find_parts([benchmark], ["qrels"])[benchmark.name]["qrels"]
        return evaluate(runs, qrels, settings)
    from denserk.tasks.evaluate_answers import evaluate_answers

    parts = find_parts([benchmark], ["answers", "corpus"])[benchmark.name]
    return evaluate_answers(runs, parts["answers"], parts["corpus"], settings)


def _evaluate_without_listed(
    runs: Sequence[str], qrels: str, topics: str, settings: EvalSettings
) -> EvaluationResult:
    """Evaluate runs without the hits that topics list as excluded.

    Runs of denserk do not have them; those of other tools may.
    """
    excluded = listed_exclusions(read_queries(topics), topics)
    judgments = read_relevance_judgments(qrels, settings)
    by_rank = settings.order is RunOrder.RANK
    named_hits = []
    for name, run in zip(short_names(runs), runs, strict=True):
        hits_by_query = read_run_scores(run, by_rank=by_rank)
        kept_hits = {}
        removed_count = 0
        for qid, hits in hits_by_query.items():
            kept_hits[qid] = without_docids(hits, excluded.get(qid, frozenset()))
            removed_count += len(hits) - len(kept_hits[qid])
        if removed_count:
            logger.info(f"{run}: {removed_count:,} hits that {topics} excludes do not count")
        named_hits.append((name, kept_hits))
    named_runs = read_runs(named_hits, judgments.grades, settings)
    return evaluate_runs(named_runs, judgments, settings)


def without_docids(hits: Mapping[str, float], docids: AbstractSet[str]) -> dict[str, float]:
    """Return the hits of a query without some passages."""
    return {docid: score for docid, score in hits.items() if docid not in docids}


def _reject_other_benchmark(run: str, benchmark: Benchmark) -> None:
    """Raise a MismatchError if a run was made for another benchmark, by its manifest."""
    corpus = benchmark.corpus.name
    origin = None
    if run != STREAM and beside(run).is_file():
        origin = read_manifest(run, Kind.RUN).made_from.get(SUITE)
    if origin is None:
        if corpus == TITLED_CORPUS:
            logger.info(f"{run} has no manifest: assumed to be a run on the titled corpus")
        return
    if origin["name"] != benchmark.name or origin["corpus"] != corpus:
        raise MismatchError(
            f"{run} was made for {origin['name']} (corpus {origin['corpus']}), "
            f"not for {benchmark.name} (corpus {corpus})",
            f"denserk benchmark {origin['name']} --runs {run}",
        )


def _settings_of(
    benchmark: Benchmark, settings: EvalSettings, published_rows: Sequence[PublishedRow]
) -> EvalSettings:
    """Return the settings of an evaluation with the rules of a benchmark.

    Unless measures are given, they are those of the benchmark and of published rows.
    """
    measures = settings.measures
    if not measures:
        measures = benchmark.measures
        for row in published_rows:
            measures = (*measures, *row.values)
    return replace(
        settings,
        measures=measures,
        remove_query=settings.remove_query or benchmark.remove_query,
        regex=settings.regex or benchmark.regex,
    )


def _computed_rows(
    published_rows: Sequence[PublishedRow], result: EvaluationResult
) -> tuple[PublishedRow, ...]:
    """Return the published rows with those of their values whose measures are computed."""
    computed = {str(measure) for measure in result.measures}
    rows = []
    for row in published_rows:
        values = {name: value for name, value in row.values.items() if name in computed}
        if values:
            rows.append(replace(row, values=values))
    return tuple(rows)


def _mark_evaluated(
    published_rows: Sequence[PublishedRow], runs: Sequence[str]
) -> tuple[PublishedRow, ...]:
    """Return published rows, marked where their system is a model that made one of the runs."""
    models = {_model_of(run) for run in runs}
    rows = []
    for row in published_rows:
        _, _, model = row.system.rpartition("/")
        rows.append(replace(row, is_evaluated=model in models))
    return tuple(rows)


def _model_of(run: str) -> str | None:
    """Return the model that a run's manifest names, without the folder or account before it."""
    if run == STREAM or not beside(run).is_file():
        return None
    model = read_manifest(run, Kind.RUN).made_from.get("model")
    if model is None:
        return None
    return Path(without_revision(model["name"])).name


def evaluate_benchmarks(
    folders: Sequence[str],
    names: Sequence[str],
    settings: EvalSettings | None = None,
    against: Sequence[config.Paper] = (),
) -> BenchmarksResult:
    """Evaluate folders of runs, such as scifact.trec, on several benchmarks and groups.

    `names` are those of benchmarks and groups; a folder may lack runs of some. Measures are those
    of `evaluate_benchmark`.
    """
    requested = config.find_benchmarks(names)
    folder_names = short_names(folders)
    runs_by_benchmark: dict[str, dict[str, str]] = {benchmark.name: {} for benchmark in requested}
    for folder, folder_name in zip(folders, folder_names, strict=True):
        for benchmark_name, run in _runs_in(folder, requested, names).items():
            runs_by_benchmark[benchmark_name][folder_name] = run
    with_runs = [benchmark for benchmark in requested if runs_by_benchmark[benchmark.name]]
    find_parts(with_runs, ["qrels", "answers"])  # reports all missing parts at once
    names_with_runs = [benchmark.name for benchmark in with_runs]
    groups = [group.name for group in config.groups_within(names_with_runs)]
    published_rows = published_by(against, [*names_with_runs, *groups])
    results = {}
    for benchmark in with_runs:
        runs = runs_by_benchmark[benchmark.name]
        rows_of_benchmark = [row for row in published_rows if row.benchmark == benchmark.name]
        result = _evaluate_beside(
            rows_of_benchmark, [*runs.values()], benchmark, settings or EvalSettings()
        )
        named_runs = [
            replace(run, name=folder_name)
            for folder_name, run in zip(runs, result.runs, strict=True)
        ]
        results[benchmark.name] = replace(result, runs=tuple(named_runs))
    all_runs: list[str] = []
    for runs in runs_by_benchmark.values():
        all_runs += runs.values()
    return BenchmarksResult(tuple(folder_names), results, _mark_evaluated(published_rows, all_runs))


def _runs_in(folder: str, requested: Sequence[Benchmark], names: Sequence[str]) -> dict[str, str]:
    """Return the run of each benchmark in a folder; warn of those that it lacks."""
    runs = {}
    missing = []
    for benchmark in requested:
        run = run_in_folder(folder, benchmark)
        if run is None:
            missing.append(benchmark.name)
        else:
            runs[benchmark.name] = str(run)
    if not runs:
        hint = f"runs are named by benchmark, for example {requested[0].short}.trec"
        raise UsageError(f"{folder} holds no run of {', '.join(names)}", hint)
    if missing:
        logger.warning(f"{folder} has no run of {', '.join(missing)}: no mean that needs them")
    return runs
