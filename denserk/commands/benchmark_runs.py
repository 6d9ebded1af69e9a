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
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from denserk.config import benchmarks, encoding, retrieval
from denserk.config.benchmarks import Benchmark, Corpus
from denserk.config.formats import CorpusSettings
from denserk.config.options import as_json, plain
from denserk.index.build import build_index
from denserk.index.search import search
from denserk.io.blocks import refuse_other_run
from denserk.io.data_sets import find_parts
from denserk.io.files import write_errors
from denserk.io.manifest import (
    NAME,
    Kind,
    Manifest,
    beside,
    file_sha256,
    read_manifest,
    write_manifest,
)
from denserk.io.outputs import refuse_occupied
from denserk.models.checkpoints import find_model
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
        for position, benchmark in enumerate(asked):
            if self.choice.resume and self._is_finished(benchmark):
                logger.info(f"{benchmark.name}: finished, kept")
            else:
                text = self._text_for(benchmark.corpus)
                query, passage = (text[name] for name in LENGTHS)
                logger.info(
                    f"{benchmark.name} ({position + 1} of {len(asked)}): queries of {query} "
                    f"tokens, passages of {passage}"
                )
                self._search(benchmark, found[benchmark.name], text)
            later = {other.corpus.name for other in asked[position + 1 :]}
            if self.choice.discard_vectors and benchmark.corpus.name not in later:
                shutil.rmtree(self._folder_of(benchmark.corpus), ignore_errors=True)
        every = benchmarks.benchmarks().items()
        finished = sorted(name for name, one in every if self._is_finished(one))
        write_manifest(self.output, replace(manifest, complete=True, contents={"runs": finished}))

    def _run_of(self, benchmark: Benchmark) -> Path:
        return self.output / f"{benchmark.short}.trec"

    def _folder_of(self, corpus: Corpus) -> Path:
        return self.output / CORPORA / corpus.name.replace("/", "-")

    def _text_for(self, corpus: Corpus) -> dict[str, Any]:
        """Return the text settings given, else the benchmark's, at most the model's lengths."""
        longest = self.stored.passage.max_length or math.inf
        lengths = {name: min(getattr(corpus, name), longest) for name in LENGTHS}
        published = encoding.PUBLISHED_TEXT.get(self.model, {})
        states_join = self.stored.has_settings or "join" in published
        return {**lengths, **({} if states_join else {"join": corpus.join}), **self.options.text}

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
        exists = (self.output / NAME).is_file()
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
        else:
            refuse_occupied(self.output, overwrite=False)
        with write_errors(self.output):
            self.output.mkdir(parents=True, exist_ok=True)
        write_manifest(self.output, manifest)
        return manifest

    def _search(
        self, benchmark: Benchmark, parts: Mapping[str, str], text: Mapping[str, Any]
    ) -> None:
        index, run = self._index(benchmark, parts["corpus"], text), str(self._run_of(benchmark))
        rules = replace(
            self.search, remove_query=benchmark.remove_query, max_passage=benchmark.max_passage
        )
        paths = retrieval.SearchPaths(
            index=(str(index),), topics=parts["topics"], model=self.model, output=run
        )
        search(paths, rules, *self.options._replace(text=text), own_precision=True)
        made = read_manifest(run, Kind.RUN)
        made_from = {**made.made_from, "suite": _origin(benchmark)}
        write_manifest(run, replace(made, made_from=made_from))

    def _index(self, benchmark: Benchmark, source: str, text: Mapping[str, Any]) -> Path:
        """Return the index of a benchmark's corpus, building it if needed."""
        folder = self._folder_of(benchmark.corpus)
        vectors, index = folder / "vectors", folder / "index"
        if (index / NAME).is_file() and read_manifest(index, Kind.INDEX, unfinished=True).complete:
            return index
        paths = encoding.EncodeSettings(
            model=self.model, corpus=source, output=str(vectors), resume=vectors.is_dir()
        )
        encode(paths, self.corpus, self.options._replace(text=text))
        inputs = retrieval.IndexPaths(input=(str(vectors),), output=str(index), resume=True)
        build_index(inputs, retrieval.IndexSettings())
        return index
