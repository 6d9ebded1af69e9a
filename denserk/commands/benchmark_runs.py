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
from denserk.config.benchmarks import Benchmark
from denserk.config.formats import CorpusSettings
from denserk.config.options import as_json, plain
from denserk.index.build import build_index
from denserk.index.search import search
from denserk.io import manifest as manifests
from denserk.io.blocks import refuse_other_run
from denserk.io.data_sets import find_parts
from denserk.io.durability import flush_names
from denserk.io.files import write_errors
from denserk.io.manifest import Kind, Manifest, beside, file_sha256, read_manifest, write_manifest
from denserk.io.model_files import find_model
from denserk.io.outputs import refuse_occupied
from denserk.models.encode import encode
from denserk.models.model_folder import read_model_folder

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
