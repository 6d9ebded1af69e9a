"""The retrievers that `denserk choose` compares, one class for each kind.

A retriever builds what it lacks (`prepare`), searches for a block of queries (`search`), and knows
the commands that do the same outside of a choice (`rebuild`). The retrievers whose hits it needs,
such as the indexes of a hybrid, are its `parts`, which candidates share. The files of a retriever
are in the folder of the choice, under its name.
"""

import logging
import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from denserk.config import finetuning
from denserk.config.choosing import ChooseSettings
from denserk.config.encoding import (
    NO_SERVER,
    ComputeSettings,
    Dtype,
    DtypeChoice,
    EncodeSettings,
    ModelOptions,
    ServerSettings,
    is_served,
)
from denserk.config.formats import CorpusSettings, RunFormat
from denserk.config.languages import Language
from denserk.config.mining import MiningPaths, MiningSettings
from denserk.config.options import NOTHING, given_fields, spelled
from denserk.config.retrieval import (
    Bm25Settings,
    FusionMethod,
    FusionSettings,
    IndexPaths,
    IndexSettings,
    IndexType,
    RankingSettings,
    RerankSettings,
    SearchPaths,
    SearchSettings,
)
from denserk.config.values import plain
from denserk.errors import InputError, MismatchError
from denserk.evaluation.evaluator import unjudged_hit, unjudged_hit_sentence
from denserk.evaluation.measures import Measure
from denserk.evaluation.results import Grades, Run
from denserk.index.folder import folder_bytes
from denserk.index.fusion import Weights, score_contributions, weighted_scores
from denserk.index.fusion_weights import QueryContributions, values_by_weights, weight_grid
from denserk.index.language_hints import CommandOfLanguage
from denserk.index.ranking import Hits, Ranking
from denserk.io.corpus import PassageTexts, read_passages, with_used_fields
from denserk.io.manifest import (
    Description,
    Kind,
    beside,
    differences,
    file_sha256,
    indexes_of,
    model_of,
    read_any_manifest,
    read_manifest,
    runs_of,
)
from denserk.io.model_files import look_for_model
from denserk.io.outputs import JOURNAL, MANIFEST, training_folder
from denserk.io.runs import RunLookup
from denserk.io.scratch_records import ScratchRecords
from denserk.io.short_texts import first_names
from denserk.models.embeddings_client import parse_server_url
from denserk.records import Query, best_first
from denserk.tasks.choose_json import read_json, write_json

logger = logging.getLogger(__name__)

FLOAT32_DIGITS = ".9g"  # of the scores that a search computes
ALL_DIGITS = ".17g"  # of the scores in a run file
# how finetune:MODEL is trained, beside what `choose` has settings for
MINING_DEPTH = 30  # hits among which negatives are drawn
SEARCHED_DEPTH = 50  # hits of a training query: more, because relevant ones are no negatives
TRAINING: Mapping[str, Any] = {
    "group_size": 2,
    "lr": 5e-5,
    "temperature": 0.05,
}
BATCH_SIZE = 32  # queries; fewer where there are not so many
TRAINED_TOKENS = 128  # of a passage, at most; the trained model encodes as many as its base


@dataclass(frozen=True)
class SharedInputs:
    """What all retrievers of a choice read, and where they write."""

    settings: ChooseSettings
    corpus: CorpusSettings
    compute: ComputeSettings
    folder: Path  # of the choice
    scratch: Path  # a temporary folder
    measure: Measure
    opened: ExitStack  # closes what retrievers have opened
    server: ServerSettings = NO_SERVER  # of candidates behind a URL
    bm25: Bm25Settings = Bm25Settings()  # noqa: RUF009  (frozen)
    train_qrels: str | None = None  # the judgments that models are trained on
    # checksums of the topics and of the judgments that models are trained on
    training_queries: Mapping[str, str] = field(default_factory=dict)

    def compute_of(self, model: str | None) -> ComputeSettings:
        """Return the settings of a model's computation: a server takes few of them."""
        if is_served(model):
            return ComputeSettings(batch_size=self.compute.batch_size)
        return self.compute

    def server_of(self, model: str | None) -> ServerSettings:
        """Return the server of a model; nothing of it is for a model that is loaded here."""
        return self.server if is_served(model) else NO_SERVER


@dataclass(frozen=True)
class Block:
    """Queries that are searched for together."""

    queries: Sequence[Query]
    topics: str  # where their texts are from

    @property
    def qids(self) -> list[str]:
        """The ids of the queries."""
        return [query.qid for query in self.queries]


class RebuildCommands:
    """The commands that build a retriever again, each once, outside the folder of the choice.

    `..._words` are options that several commands have in common.
    """

    def __init__(self, inputs: SharedInputs) -> None:
        self.settings = inputs.settings
        self.folder = "winner"
        self.corpus_words = [self.settings.corpus, *words_of_options(inputs.corpus)]
        self.compute_words = words_of_options(inputs.compute)
        self._inputs = inputs
        self.topics_words = self.words_of_topics(self.settings.topics)
        self.lines: list[str] = []

    def words_of_model(self, model: str | None) -> list[str]:
        """Return the options of a model's computation, and of its server; no secret is in them."""
        server = self._inputs.server_of(model)
        if server.base_url is not None:
            server = replace(server, base_url=parse_server_url(server.base_url).public)
        return [*words_of_options(self._inputs.compute_of(model)), *words_of_options(server)]

    def words_of_topics(self, topics: str) -> list[str]:
        """Return the value of --topics and the options by which topics are read."""
        words = [topics]
        if self.settings.topics_format is not None:
            words += ["--topics-format", self.settings.topics_format.value]
        if self.settings.topics_field is not None:
            words += ["--set", f"topics-field={','.join(self.settings.topics_field)}"]
        return words

    def path(self, name: str) -> str:
        """Return the path of an output."""
        return f"{self.folder}/{name}"

    def add(self, command: str, *words: str) -> None:
        """Add a command line, unless it is there."""
        line = shlex.join(["denserk", command, *words])
        if line not in self.lines:
            self.lines.append(line)


def words_of_options(settings: Any) -> list[str]:
    """Return the given options of a settings object as words of a command line.

    >>> words_of_options(ComputeSettings(threads=2))
    ['--threads', '2']
    """
    words = []
    for name in given_fields(settings):
        value = plain(getattr(settings, name))
        flag = spelled(name, type(settings))
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        if value is True:
            words.append(flag)
        elif flag.startswith("--set "):
            words += ["--set", f"{flag.removeprefix('--set ')}={text}"]
        else:
            words += [flag, text]
    return words


class Retriever(ABC):
    """One retriever. `name` is that of its files, `parts` are searched before it."""

    score_digits = FLOAT32_DIGITS
    # needed to build it, and not to search with it: the model that another is fine-tuned from
    built_from: tuple["Retriever", ...] = ()

    def __init__(self, name: str, inputs: SharedInputs, parts: Sequence["Retriever"] = ()) -> None:
        self.name = name
        self.inputs = inputs
        self.parts = tuple(parts)

    @abstractmethod
    def prepare(self) -> None:
        """Build what is missing, once the parts are prepared; continue what was interrupted."""

    @abstractmethod
    def search(self, block: Block, runs_of_parts: Sequence[Run]) -> Iterator[tuple[str, Hits]]:
        """Yield the hits of each query of a block, best first."""

    @abstractmethod
    def rebuild(self, commands: RebuildCommands) -> str:
        """Add the commands that build this and search with it; return the run that they write."""

    @property
    def description(self) -> Mapping[str, Any]:
        """What the manifest of a run records of this retriever, beside its topics."""
        return {}

    def existing_input(self) -> Description | None:
        """Return the name and checksums of the index or reranker that it reads and does not build.

        None: there is none, or it is checked in another way. Others that are under the same name
        when a comparison is resumed are recognised by this.
        """
        return None

    @property
    def bytes_per_passage(self) -> float | None:
        """The size of its own index, without those of the parts; None: it is not known.

        0 where a retriever has no index of its own.
        """
        return 0.0

    @property
    def weights(self) -> Weights | None:
        """The weights of a hybrid's parts at this time; None: it is no hybrid."""
        return None

    def retrievers_to_search(self) -> list["Retriever"]:
        """Return the retrievers that a query is searched with, each once, and this one last."""
        retrievers: dict[str, Retriever] = {}
        for part in self.parts:
            for retriever in part.retrievers_to_search():
                retrievers[retriever.name] = retriever
        return [*retrievers.values(), self]

    def retrievers_to_prepare(self) -> list["Retriever"]:
        """Return the retrievers that must be prepared, each once, and this one last."""
        retrievers: dict[str, Retriever] = {}
        for part in (*self.parts, *self.built_from):
            for retriever in part.retrievers_to_prepare():
                retrievers[retriever.name] = retriever
        return [*retrievers.values(), self]


class RunFile(Retriever):
    """A run that exists: a fixed list for each query."""

    score_digits = ALL_DIGITS

    def __init__(self, name: str, inputs: SharedInputs, path: str) -> None:
        super().__init__(name, inputs)
        self.path = path
        self._run: RunLookup | None = None

    def prepare(self) -> None:
        """Read the run, unless that is done."""
        if self._run is not None:
            return
        hits = ScratchRecords(self.inputs.scratch / f"{self.name}.hits")
        self.inputs.opened.enter_context(closing(hits))
        self._run = RunLookup(self.path, hits)

    @property
    def has_scores(self) -> bool:
        """Whether the run has scores, and not ranks alone."""
        return self._run is not None and self._run.format is not RunFormat.MSMARCO

    def check_queries(self, qids: Sequence[str], qrels: str) -> None:
        """Raise a MismatchError if the run has none of the queries; warn if it lacks some."""
        assert self._run is not None  # it is prepared
        present = set(self._run.queries)
        missing = [qid for qid in qids if qid not in present]
        if len(missing) == len(qids):
            raise MismatchError(
                f"{self.path} answers queries {first_names(self._run.queries)}; {qrels} judges "
                f"queries {first_names(qids)}: none in common"
            )
        if missing:
            logger.warning(
                f"{self.path} lacks {len(missing):,} of the {len(qids):,} queries that {qrels} "
                f"judges ({first_names(missing)}); they count as 0"
            )

    def warn_of_unjudged_hits(self, judgments: Grades) -> None:
        """Warn if no hit is judged: the run may be of another corpus."""
        assert self._run is not None  # it is prepared
        example = None
        for qid, grades in judgments.items():
            docids, scores = self._run.hits(qid)
            hits = dict(zip(docids, scores, strict=True))
            if not grades.keys().isdisjoint(hits):
                return
            if example is None:
                example = unjudged_hit({qid: hits}, judgments)
        if example is not None:
            logger.warning(unjudged_hit_sentence(self.path, *example))

    def search(self, block: Block, runs_of_parts: Sequence[Run]) -> Iterator[tuple[str, Hits]]:
        """Yield the hits of the file."""
        assert self._run is not None  # it is prepared
        for qid in block.qids:
            docids, scores = self._run.hits(qid)
            yield qid, best_first(zip(docids, scores, strict=True))

    def rebuild(self, commands: RebuildCommands) -> str:
        """Return the file; where it has a manifest, add the command that makes it again."""
        if beside(self.path).is_file():
            output = commands.path(self.name)
            commands.add("reproduce", self.path, "--from-step", "vectors", "--output", output)
        return self.path

    @property
    def description(self) -> Mapping[str, Any]:
        """The file."""
        return {"run": {"name": self.path}}

    @property
    def bytes_per_passage(self) -> float | None:
        """The size of the indexes that the manifests of the run lead to."""
        return recorded_bytes_per_passage(self.path)


def recorded_bytes_per_passage(run: str) -> float | None:
    """Return the size of a run's indexes for each passage, where manifests record it."""
    manifest_file = beside(run)
    if not manifest_file.is_file():
        return None
    made_from = read_any_manifest(manifest_file).made_from
    size = 0.0
    for index in indexes_of(made_from):
        index_manifest = beside(index.get("name") or "")
        if not index.get("bytes") or not index_manifest.is_file():
            return None
        count = read_any_manifest(index_manifest).contents.get("count")
        if not count:
            return None
        size += index["bytes"] / count
    for source in runs_of(made_from):
        size_of_source = recorded_bytes_per_passage(source.get("name") or "")
        if size_of_source is None:
            return None
        size += size_of_source
    return size


def recorded_seconds_per_query(run: str) -> float | None:
    """Return the time of a query that the manifests of a run record, its sources included.

    None: a manifest is absent, or one of a search or of a reranker records no time.
    """
    manifest_file = beside(run)
    if not manifest_file.is_file():
        return None
    manifest = read_any_manifest(manifest_file)
    seconds = 0.0
    recorded_seconds = manifest.contents.get("seconds")
    query_count = manifest.contents.get("queries")
    is_fused = "runs" in manifest.made_from
    if recorded_seconds and query_count:
        seconds += sum(recorded_seconds.values()) / query_count
    elif not is_fused:
        return None
    for source in runs_of(manifest.made_from):
        seconds_of_source = recorded_seconds_per_query(source.get("name") or "")
        if seconds_of_source is None:
            return None
        seconds += seconds_of_source
    return seconds


class IndexFolder(Retriever):
    """An index, or a folder of vectors, that exists."""

    # what to type to index another language; None: the command that makes the index again
    command_of: CommandOfLanguage | None = None

    def __init__(self, name: str, inputs: SharedInputs, index: str) -> None:
        super().__init__(name, inputs)
        self.index = index
        self._sessions: dict[str, Any] = {}  # by topics
        self._has_warned_of_no_hits = False

    def existing_input(self) -> Description | None:
        """Return the index."""
        return {"name": self.index, "sha256": index_checksums(self.index)}

    def prepare(self) -> None:
        """Open the index."""
        self._session(self.inputs.settings.topics)

    def search(self, block: Block, runs_of_parts: Sequence[Run]) -> Iterator[tuple[str, Hits]]:
        """Yield the hits of the index."""
        session = self._session(block.topics)
        results = session.answer(block.queries)
        if not self._has_warned_of_no_hits:
            self._warn_without_hits(block, results, session.opened)
        yield from results

    def _warn_without_hits(
        self, block: Block, results: Sequence[tuple[str, Hits]], opened: Any
    ) -> None:
        """Warn of the queries of a block that have no hits, and say why that may be."""
        qids_with_hits = {qid for qid, hits in results if hits}
        without_hits = {
            query.qid: query.text for query in block.queries if query.qid not in qids_with_hits
        }
        if without_hits:
            self._has_warned_of_no_hits = True
            missing = f" in {self.name}, of a block of {len(block.queries):,}"
            opened.warn_without_hits(without_hits, missing=missing, command_of=self.command_of)

    def _session(self, topics: str) -> Any:
        """Return the index, opened for queries of some topics.

        It is opened for each topics on its own, because topics may list passages to leave out.
        """
        if topics not in self._sessions:
            from denserk.tasks.search import open_search

            settings = self.inputs.settings
            paths = SearchPaths(
                index=(self.index,),
                topics=topics,
                topics_format=settings.topics_format,
                topics_field=settings.topics_field,
                output=f"{self.name}.trec",  # required, and not written
            )
            search_settings = SearchSettings(hits=settings.hits)
            model = self.encoding_model
            session = open_search(
                paths,
                search_settings,
                compute=self.inputs.compute_of(model),
                server=self.inputs.server_of(model),
            )
            self._sessions[topics] = self.inputs.opened.enter_context(session)
        return self._sessions[topics]

    @property
    def description(self) -> Mapping[str, Any]:
        """The index and the model."""
        session = self._session(self.inputs.settings.topics)
        [index] = session.opened.descriptions()
        return {"index": index, "model": session.prepared.model}

    @property
    def encoding_model(self) -> str | None:
        """The name of the model that encoded the index, if its manifest has one."""
        return encoding_model_of(self.index)

    @property
    def bytes_per_passage(self) -> float | None:
        """The size of the folder."""
        manifest_file = beside(self.index)
        if not manifest_file.is_file():
            return None
        count = read_any_manifest(manifest_file).contents.get("count")
        return folder_bytes(Path(self.index)) / count if count else None

    def rebuild(self, commands: RebuildCommands) -> str:
        """Add the search."""
        return self._add_search(commands, self.index)

    def _add_search(self, commands: RebuildCommands, index: str) -> str:
        """Add the search of an index; return the run."""
        run = commands.path(f"{self.name}.trec")
        hits = str(commands.settings.hits)
        model_words = commands.words_of_model(self.encoding_model)
        words = ["--topics", *commands.topics_words, "--hits", hits, *model_words]
        commands.add("search", "--index", index, *words, "--output", run)
        return run


def encoding_model_of(index: str) -> str | None:
    """Return the name of the model that encoded an index or vectors, if a manifest has one."""
    manifest_file = beside(index)
    if not manifest_file.is_file():
        return None
    model = model_of(read_any_manifest(manifest_file)) or {}
    return model.get("name")


def index_checksums(index: str) -> dict[str, str]:
    """Return checksums that tell an index, or a folder of vectors, from others, by file.

    They are those of its manifest. Of an index of another tool, which may be large, they are the
    checksum of the ids and the size of the folder.
    """
    manifest_file = beside(index)
    if not manifest_file.is_file():
        ids = Path(index) / "docid"
        return {"docid": file_sha256(ids), "size": f"{folder_bytes(Path(index))} bytes"}
    contents = read_any_manifest(manifest_file).contents
    if "journal_sha256" in contents:
        return {JOURNAL: contents["journal_sha256"]}
    return contents.get("sha256") or {MANIFEST: file_sha256(manifest_file)}


@contextmanager
def keeping_what_is_built(folder: Path) -> Iterator[None]:
    """Give errors about an index of another corpus or model a hint that helps in a choice.

    The hint of a single command, --overwrite, would not: that of `choose` keeps what is built.
    """
    try:
        yield
    except MismatchError as error:
        hint = f"{folder} keeps what is built in it: choose another --output"
        raise MismatchError(error.message, hint) from error


class BuiltIndex(IndexFolder):
    """An index, or a folder of vectors, that is built in the folder of the choice."""

    def existing_input(self) -> Description | None:
        """Return None: what builds an index checks that it was built of the same inputs."""
        return None


def option_of_language(language: Language) -> str:
    """Return what to type to compare BM25 of another language; built indexes are kept."""
    return f"add --language {language.name}, and choose another --output"


class Bm25(BuiltIndex):
    """BM25 of the corpus."""

    def __init__(self, name: str, inputs: SharedInputs) -> None:
        super().__init__(name, inputs, str(inputs.folder / "indexes" / name))
        self.command_of = option_of_language

    def prepare(self) -> None:
        """Build the index, unless that is done."""
        from denserk.tasks.build_index import build_index

        paths = IndexPaths(corpus=self.inputs.settings.corpus, output=self.index, resume=True)
        settings = IndexSettings(type=IndexType.BM25)
        with keeping_what_is_built(self.inputs.folder):
            build_index(paths, settings, self.inputs.bm25, self.inputs.corpus)
        super().prepare()

    def rebuild(self, commands: RebuildCommands) -> str:
        """Add the index and its search."""
        index = commands.path(self.name)
        words = ["--type", "bm25", *words_of_options(self.inputs.bm25)]
        commands.add("index", *words, "--corpus", *commands.corpus_words, "--output", index)
        return self._add_search(commands, index)


class Encoder(BuiltIndex):
    """Exact search over the vectors of a model."""

    def __init__(self, name: str, inputs: SharedInputs, model: str) -> None:
        super().__init__(name, inputs, str(inputs.folder / "vectors" / name))
        self.model = model

    @property
    def text_options(self) -> Mapping[str, Any]:
        """Settings of texts that replace the model's own when passages are encoded."""
        return NOTHING

    def prepare(self) -> None:
        """Encode the corpus, unless that is done."""
        from denserk.tasks.encode import encode

        settings = EncodeSettings(
            model=self.model,
            corpus=self.inputs.settings.corpus,
            output=self.index,
            resume=beside(self.index).is_file(),
        )
        compute = self.inputs.compute_of(self.model)
        options = ModelOptions(text=self.text_options, compute=compute)
        server = self.inputs.server_of(self.model)
        with keeping_what_is_built(self.inputs.folder):
            encode(settings, self.inputs.corpus, options, server)
        super().prepare()

    def rebuild(self, commands: RebuildCommands) -> str:
        """Add the encoding and its search."""
        vectors = self.add_encoding(commands, self.model)
        return self._add_search(commands, vectors)

    def add_encoding(self, commands: RebuildCommands, model: str) -> str:
        """Add the encoding of the corpus by a model; return the folder of vectors."""
        vectors = commands.path(self.name)
        words = ["--model", model, "--corpus", *commands.corpus_words]
        words += commands.words_of_model(model)
        for name, value in self.text_options.items():
            words += [f"--{name.replace('_', '-')}", str(value)]
        commands.add("encode", *words, "--output", vectors)
        return vectors


class FinetunedEncoder(Encoder):
    """A model that is fine-tuned on training queries, with hard negatives among its own hits."""

    def __init__(self, name: str, inputs: SharedInputs, base: Encoder) -> None:
        super().__init__(name, inputs, str(inputs.folder / "models" / name))
        self.built_from = (base,)
        self._base = base
        work = inputs.folder / "training"
        self._run = str(work / f"{name}.trec")
        self._examples = str(work / f"{name}.jsonl")
        self._record = work / f"{name}.json"

    @property
    def text_options(self) -> Mapping[str, Any]:
        """The length of passages that the base was encoded with."""
        model = model_of(read_manifest(self._base.index, Kind.VECTORS)) or {}
        return {"passage_max_length": model["text"]["passage_max_length"]}

    @property
    def _training_options(self) -> Mapping[str, Any]:
        """How the model is trained."""
        length = min(TRAINED_TOKENS, self.text_options["passage_max_length"])
        with Path(self._examples).open("rb") as lines:
            example_count = sum(1 for _ in lines)
        return {
            **TRAINING,
            "batch_size": min(BATCH_SIZE, example_count),
            "passage_max_length": length,
        }

    @property
    def _dtype(self) -> Dtype:
        """The precision of the training: --dtype, and as in `finetune` float32 by default."""
        dtype = self.inputs.compute.dtype
        return Dtype.FLOAT32 if dtype is DtypeChoice.AUTO else Dtype(dtype)

    def prepare(self) -> None:
        """Mine negatives, train and encode, each unless that is done."""
        self._check_record()
        if not (Path(self.model) / "training.json").is_file():
            self._mine()
            self._train()
        super().prepare()

    def _check_record(self) -> None:
        """Record what the model is trained from; raise a MismatchError if it was something else.

        An earlier comparison in the folder may have trained it on queries that now decide. A
        training that did not begin has left nothing that is kept.
        """
        settings = self.inputs.settings
        record = {
            "base": self._base.model,
            "corpus": settings.corpus,
            **self.inputs.training_queries,
            "steps": settings.finetune_steps,
            "negatives": settings.finetune_negatives,
            "seed": settings.seed,
        }
        if self._dtype is not Dtype.FLOAT32:  # absent from records of earlier versions
            record["dtype"] = self._dtype.value
        has_begun = Path(self.model).exists() or training_folder(self.model).exists()
        if not has_begun or not self._record.is_file():
            write_json(self._record, record)
        phrases = differences(read_json(self._record), record)
        if phrases:
            message = f"{self.model} was trained in another way: {'; '.join(phrases)}"
            hint = f"{self.inputs.folder} keeps what is built in it: choose another --output"
            raise MismatchError(message, hint)

    def _mine(self) -> None:
        """Search for the training queries, and draw wrong passages from their hits."""
        from denserk.tasks.mine_negatives import mine_negatives
        from denserk.tasks.search import search

        inputs = self.inputs
        settings = inputs.settings
        topics = settings.train_topics or settings.topics
        search_paths = SearchPaths(
            index=(self._base.index,),
            topics=topics,
            topics_format=settings.topics_format,
            topics_field=settings.topics_field,
            qrels=inputs.train_qrels,
            output=self._run,
        )
        search(search_paths, SearchSettings(hits=SEARCHED_DEPTH), compute=inputs.compute)
        mining_paths = MiningPaths(
            topics=topics,
            topics_format=settings.topics_format,
            topics_field=settings.topics_field,
            qrels=inputs.train_qrels,
            run=(self._run,),
            corpus=settings.corpus,
            output=self._examples,
        )
        mining = MiningSettings(
            depth=MINING_DEPTH, num_negatives=settings.finetune_negatives, skip_missing=True
        )
        try:
            mine_negatives(mining_paths, mining, inputs.corpus)
        except MismatchError as error:
            hint = f"check that {inputs.train_qrels} judges passages of {settings.corpus}"
            raise MismatchError(error.message, hint) from error

    def _train(self) -> None:
        """Train the model, or continue its training."""
        from denserk.tasks.finetune import finetune

        settings = self.inputs.settings
        options = {
            **self._training_options,
            "model": self._base.model,
            "train_data": [self._examples],
            "output": self.model,
            "max_steps": settings.finetune_steps,
            "seed": settings.seed,
            "device": self.inputs.compute.device,
            "dtype": self._dtype.value,
            "resume": training_folder(self.model).is_dir(),
        }
        finetune(finetuning.run_of_options(options))

    def rebuild(self, commands: RebuildCommands) -> str:
        """Add mining, training, encoding and search."""
        base_vectors = self._base.add_encoding(commands, self._base.model)
        run = self._add_training_search(commands, base_vectors)
        examples = self._add_mining(commands, run)
        model = self._add_training(commands, examples)
        vectors = self.add_encoding(commands, model)
        return self._add_search(commands, vectors)

    def _training_queries_words(self, commands: RebuildCommands) -> list[str]:
        """Return the options that name the training queries and their judgments."""
        settings = commands.settings
        topics_words = commands.words_of_topics(settings.train_topics or settings.topics)
        return ["--topics", *topics_words, "--qrels", self.inputs.train_qrels or ""]

    def _add_training_search(self, commands: RebuildCommands, vectors: str) -> str:
        """Add the search for the training queries in the base model's vectors; return the run."""
        run = commands.path(f"{self.name}-train.trec")
        words = ["--index", vectors, *self._training_queries_words(commands)]
        words += ["--hits", str(SEARCHED_DEPTH), *commands.compute_words]
        commands.add("search", *words, "--output", run)
        return run

    def _add_mining(self, commands: RebuildCommands, run: str) -> str:
        """Add the mining of negatives from the hits of a run; return the training examples."""
        examples = commands.path(f"{self.name}.jsonl")
        words = [*self._training_queries_words(commands), "--run", run]
        words += ["--corpus", *commands.corpus_words, "--depth", str(MINING_DEPTH)]
        words += ["--num-negatives", str(commands.settings.finetune_negatives), "--skip-missing"]
        commands.add("mine-negatives", *words, "--output", examples)
        return examples

    def _add_training(self, commands: RebuildCommands, examples: str) -> str:
        """Add the training on examples; return the model."""
        settings = commands.settings
        model = commands.path(f"{self.name}-model")
        words = ["--model", self._base.model, "--train-data", examples]
        for name, value in self._training_options.items():
            words += [f"--{name.replace('_', '-')}", f"{value:g}"]
        if self._dtype is not Dtype.FLOAT32:
            words += ["--dtype", self._dtype.value]
        words += ["--max-steps", str(settings.finetune_steps), "--seed", str(settings.seed)]
        commands.add("finetune", *words, "--output", model)
        return model


class Hybrid(Retriever):
    """A weighted sum of the normalised scores of other retrievers, with fixed weights."""

    def __init__(
        self, name: str, inputs: SharedInputs, parts: Sequence[Retriever], weights: Weights
    ) -> None:
        super().__init__(name, inputs, parts)
        self._weights = weights
        self.fusion = FusionSettings(method=FusionMethod.LINEAR)
        self.ranking_settings = RankingSettings(hits=inputs.settings.hits)

    @property
    def weights(self) -> Weights:
        """The weights of the parts."""
        return self._weights

    def prepare(self) -> None:
        """Check that the parts, which are prepared, have scores."""
        for part in self.retrievers_to_search():
            if isinstance(part, RunFile) and not part.has_scores:
                hint = "a hybrid adds scores: leave this run out of it"
                raise InputError(part.path, None, "ranks, no scores", "scores", hint)

    def search(self, block: Block, runs_of_parts: Sequence[Run]) -> Iterator[tuple[str, Hits]]:
        """Yield the fused hits."""
        ranking = Ranking(self.ranking_settings)
        for qid in block.qids:
            contributions = self._contributions(qid, runs_of_parts)
            scores = weighted_scores(contributions, self.weights)
            yield qid, ranking.final(best_first(scores.items()))

    def _contributions(self, qid: str, runs: Sequence[Run]) -> dict[str, list[float]]:
        """Return what each part adds to the score of a query's passages, with weight 1."""
        hits_of_runs = [best_first(run.get(qid, {}).items()) for run in runs]
        return score_contributions(hits_of_runs, self.fusion)

    @property
    def description(self) -> Mapping[str, Any]:
        """The weights."""
        return {"weights": list(self.weights)}

    def rebuild(self, commands: RebuildCommands) -> str:
        """Add the fusion."""
        runs = [part.rebuild(commands) for part in self.parts]
        weights = ",".join(f"{weight:g}" for weight in self.weights)
        run = commands.path(f"{self.name}.trec")
        options = ["--method", "linear", "--weights", weights]
        hits = ["--hits", str(commands.settings.hits)]
        commands.add("fuse", *runs, *options, *hits, "--output", run)
        return run


class LearnedValues(NamedTuple):
    """What a block says about the weights of a hybrid."""

    query_count: int  # queries with hits
    sums: Mapping[str, float]  # of the measure over the queries, by weights ("0.3,0.7")


class FittedHybrid(Hybrid):
    """A hybrid whose weights are fitted on the blocks before the one that is searched.

    No query has a part in the weights that it is evaluated with; the first block has equal weights.
    """

    def __init__(self, name: str, inputs: SharedInputs, parts: Sequence[Retriever]) -> None:
        equal_weights = (round(1 / len(parts), 4),) * len(parts)
        super().__init__(name, inputs, parts, equal_weights)
        self._query_count = 0
        self._sums = dict.fromkeys(weight_grid(len(parts)), 0.0)

    def learn(self, runs_of_parts: Sequence[Run], judgments: Grades) -> LearnedValues:
        """Return the values that each choice of weights has on a block, after `recall` of them."""
        queries = []
        for qid in judgments:
            contributions = self._contributions(qid, runs_of_parts)
            if contributions:
                values_of_passages = np.array(list(contributions.values()))
                queries.append(QueryContributions(qid, list(contributions), values_of_passages))
        sums = {}
        if queries:
            ranking = Ranking(self.ranking_settings)
            values = values_by_weights(queries, self.inputs.measure, judgments, ranking)
            sums = {_weights_text(weights): sum(values[weights]) for weights in values}
        learned = LearnedValues(len(queries), sums)
        self.recall(learned)
        return learned

    def recall(self, values: LearnedValues) -> None:
        """Add what was learned of a block, now or in an earlier call, and choose weights anew.

        The best ones of the grid by all blocks so far, and of equals the most even ones.
        """
        self._query_count += values.query_count
        for weights in self._sums:
            self._sums[weights] += values.sums.get(_weights_text(weights), 0.0)
        if self._query_count:
            self._weights = min(self._sums, key=self._order)

    def _order(self, weights: Weights) -> tuple[float, float]:
        """Return a key by which better weights come first, and of equals more even ones."""
        return -self._sums[weights], sum(weight**2 for weight in weights)


def _weights_text(weights: Weights) -> str:
    """Return weights as JSON has them for a key.

    >>> _weights_text((0.3, 0.7))
    '0.3,0.7'
    """
    return ",".join(f"{weight:g}" for weight in weights)


class CutRetriever(Retriever):
    """The first hits of another retriever."""

    def __init__(self, name: str, inputs: SharedInputs, part: Retriever, depth: int) -> None:
        super().__init__(name, inputs, [part])
        self.depth = depth
        self.score_digits = part.score_digits

    def prepare(self) -> None:
        """Do nothing: the part is prepared."""

    def search(self, block: Block, runs_of_parts: Sequence[Run]) -> Iterator[tuple[str, Hits]]:
        """Yield the first hits."""
        [run] = runs_of_parts
        for qid in block.qids:
            yield qid, best_first(run.get(qid, {}).items())[: self.depth]

    def rebuild(self, commands: RebuildCommands) -> str:
        """Add the part, and a fusion of its run with itself: weights 1 and 0 cut it and no more."""
        [part] = self.parts
        part_run = part.rebuild(commands)
        run = commands.path(f"{self.name}.trec")
        options = ["--method", "linear", "--weights", "1,0", "--hits", str(self.depth)]
        commands.add("fuse", part_run, part_run, *options, "--output", run)
        return run


@dataclass
class CorpusTexts:
    """The texts of all passages, copied to a temporary file when the first reranker needs them."""

    inputs: SharedInputs
    _texts: PassageTexts | None = field(default=None, init=False)

    def get(self) -> PassageTexts:
        """Return the texts."""
        if self._texts is None:
            source = self.inputs.settings.corpus
            texts = PassageTexts(self.inputs.scratch / "passages")
            self.inputs.opened.enter_context(closing(texts))
            corpus = with_used_fields(source, self.inputs.corpus)
            texts.find(read_passages(source, corpus), source, everything=True)
            self._texts = texts
        return self._texts


class RerankedRetriever(Retriever):
    """A cross-encoder that scores the first hits of another retriever."""

    def __init__(
        self, name: str, inputs: SharedInputs, part: Retriever, model: str, texts: CorpusTexts
    ) -> None:
        super().__init__(name, inputs, [part])
        self.model = model
        self._texts = texts
        self._scorer: Any = None
        self.depth = inputs.settings.rerank_depth
        if isinstance(part, CutRetriever):
            self.depth = part.depth

    def existing_input(self) -> Description | None:
        """Return the cross-encoder."""
        from denserk.models.cross_encoder import reranker_fingerprint

        fingerprint = reranker_fingerprint(look_for_model(self.model))
        return {"name": self.model, "fingerprint": fingerprint}

    def prepare(self) -> None:
        """Load the cross-encoder, and copy the texts of the corpus."""
        from denserk.models.cross_encoder import PairScorer

        self._scorer = PairScorer(self.model, compute=self.inputs.compute)
        self._texts.get()

    def search(self, block: Block, runs_of_parts: Sequence[Run]) -> Iterator[tuple[str, Hits]]:
        """Yield the reranked hits."""
        from denserk.tasks.rerank import Candidates, RunReranker

        [run] = runs_of_parts
        candidates = []
        for qid in block.qids:
            ranked = best_first(run.get(qid, {}).items())[: self.depth]
            if ranked:
                candidates.append(Candidates(qid, [docid for docid, _ in ranked]))
        texts = self._texts.get()
        self._require_texts(candidates, texts)
        queries = {query.qid: query for query in block.queries}
        settings = RerankSettings(hits=self.inputs.settings.hits)
        reranker = RunReranker(self._scorer, queries, settings, self.parts[0].name)
        yield from reranker.rankings(candidates, texts, lambda pair_count: None)

    def _require_texts(self, candidates: Iterable[Any], texts: PassageTexts) -> None:
        """Raise a MismatchError for a hit that the corpus does not have."""
        for _, docids in candidates:
            for docid, passage in zip(docids, texts.get(docids), strict=True):
                if passage is None:
                    corpus = self.inputs.settings.corpus
                    message = f"{corpus} has no passage {docid}, a hit of {self.parts[0].name}"
                    raise MismatchError(message, "name the --corpus that the run was made from")

    @property
    def description(self) -> Mapping[str, Any]:
        """The cross-encoder."""
        model: Description = self._scorer.description()
        return {"model": model}

    def rebuild(self, commands: RebuildCommands) -> str:
        """Add the reranking."""
        [part] = self.parts
        if isinstance(part, CutRetriever):  # --depth cuts, too
            [part] = part.parts
        first_run = part.rebuild(commands)
        run = commands.path(f"{self.name}.trec")
        words = ["--run", first_run, "--topics", *commands.topics_words]
        words += ["--corpus", *commands.corpus_words, "--depth", str(self.depth)]
        words += [*commands.compute_words, "--output", run]
        commands.add("rerank", "--model", self.model, *words)
        return run
