"""Training, training data and conversion of files."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import orjson

from denserk.api.inputs import (
    RunLike,
    TextsLike,
    TrainingLike,
    is_path,
    opened_runs,
    path_text,
    read_qrels_of,
    run_names,
    stored_inputs,
)
from denserk.api.options import (
    ConvertOptions,
    FinetuneOptions,
    GenerateOptions,
    MineNegativesOptions,
    PathName,
    PretrainOptions,
)
from denserk.api.signatures import (
    CONVERT,
    FINETUNE,
    GENERATE,
    MINE_NEGATIVES,
    PRETRAIN,
    Typed,
    documented,
    model_options,
)
from denserk.config import finetuning, pretraining
from denserk.config.encoding import ComputeSettings, ServerSettings, TextSettings
from denserk.config.formats import (
    ConversionSettings,
    CorpusSettings,
    GenerateSettings,
    TrainingFormat,
)
from denserk.config.mining import MiningPaths, MiningSettings, resolve_mining
from denserk.config.options import build, select
from denserk.config.training import CLASSES
from denserk.errors import UsageError
from denserk.io.corpus import read_passages
from denserk.io.json_records import dump_json, read_objects
from denserk.io.qrels import read_qrels
from denserk.io.topics import read_queries
from denserk.io.training import read_training, training_records
from denserk.python_inputs import read_passages_of, read_queries_of
from denserk.records import TrainingExample

if TYPE_CHECKING:
    from denserk.tasks.convert import ConversionResult
    from denserk.tasks.mine_negatives import MiningInputs

# Names of the columns in formats without a header.
COLUMN_NAMES = {
    TrainingFormat.TRIPLES: ("query", "positive", "negative"),
    TrainingFormat.TEXT_TRIPLES: ("query", "positive", "negative"),
    TrainingFormat.NEGATIVES: ("query", "negatives"),
}


@documented(MINE_NEGATIVES)
def mine_negatives(
    run: "RunLike | Sequence[RunLike]",
    *,
    topics: "TextsLike | None" = None,
    qrels: "RunLike | None" = None,
    train: "TrainingLike | None" = None,
    corpus: "TextsLike | None" = None,
    output: PathName | None = None,
    **options: Unpack[MineNegativesOptions],
) -> list[dict[str, Any]]:
    """Mine hard negatives from runs; return training examples for `finetune`.

    The queries are `topics` with `qrels`, or training data (`train`); `output` keeps the file.
    """
    runs = list(run) if isinstance(run, list | tuple) else [run]
    if not runs:
        raise UsageError("run: found no run; expected one, or a list of runs")
    if output is None:
        return _mine_in_memory(runs, topics, qrels, train, corpus, options)
    inputs = {"runs": runs, "topics": topics, "qrels": qrels, "train": train, "corpus": corpus}
    with stored_inputs(options, **inputs) as (files, _):
        run_paths = files.pop("runs")
        typed = MINE_NEGATIVES.typed(options, output=output, run=run_paths, **files)
        paths = build(MiningPaths, typed)
        settings = _mining_settings(typed)
        from denserk.tasks.mine_negatives import mine_negatives as task

        with MINE_NEGATIVES.claimed(typed):
            task(
                paths,
                settings,
                build(CorpusSettings, typed),
                select(typed, TextSettings),
                build(ComputeSettings, typed),
                build(ServerSettings, typed),
            )
    examples = read_training(paths.output, paths.output_format)
    return _as_records(examples, paths.output_format)


def _mining_settings(typed: Typed) -> MiningSettings:
    """Return the settings of a preset, or the default ones, with the options that are given."""
    return resolve_mining(typed.get("preset"), select(typed, MiningSettings))


def _as_records(
    examples: Iterable[TrainingExample], training_format: TrainingFormat
) -> list[dict[str, Any]]:
    """Return training examples as a file has them; columns without names get some."""
    names = COLUMN_NAMES.get(training_format, ())
    records = []
    for record in training_records(examples, training_format):
        if names:
            record = dict(zip(names, record.values(), strict=True))
        records.append(orjson.loads(dump_json(record)))  # lists for tuples
    return records


def _mine_in_memory(
    runs: Sequence[Any],
    topics: Any,
    qrels: Any,
    train: Any,
    corpus: Any,
    options: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Mine negatives without an output file; of objects, training data alone is stored in one.

    Where an input is an object, the paths of the task have the name of its argument instead: the
    task checks which inputs there are, and names them in messages.
    """
    topics = _loaded(topics, read_queries_of)
    qrels = _loaded(qrels, partial(read_qrels_of, argument="qrels"))
    corpus = _loaded(corpus, read_passages_of)
    with stored_inputs(train=train) as (files, _):
        typed = MINE_NEGATIVES.typed(
            options,
            run=run_names(runs),
            topics=_name_in_messages(topics, "topics"),
            qrels=_name_in_messages(qrels, "qrels"),
            train=files.get("train"),
            corpus=_name_in_messages(corpus, "corpus"),
            output="",  # nothing is written
        )
        paths = build(MiningPaths, typed)
        settings = _mining_settings(typed)
        from denserk.tasks.mine_negatives import mine_in_memory

        with (
            MINE_NEGATIVES.claimed(typed),
            opened_runs(runs, paths.run_format) as runs_by_query,
        ):
            examples = mine_in_memory(
                paths,
                settings,
                _mining_inputs(paths, settings, topics, qrels, corpus, typed),
                runs_by_query,
                select(typed, TextSettings),
                build(ComputeSettings, typed),
                build(ServerSettings, typed),
            )
    return _as_records(examples, paths.output_format)


def _loaded(value: Any, read: Callable[[Any], Any]) -> Any:
    """Return an object as records; a path, or None, stays."""
    if value is None or is_path(value):
        return value
    return read(value)


def _name_in_messages(value: Any, argument: str) -> str | None:
    """Return the path of an input, or else the name of its argument; None if it is not given."""
    if value is None:
        return None
    return str(value) if is_path(value) else argument


def _mining_inputs(
    paths: MiningPaths,
    settings: MiningSettings,
    topics: Any,
    qrels: Any,
    corpus: Any,
    typed: Typed,
) -> "MiningInputs":
    """Return the inputs of the task; topics, qrels and corpus are read if they are paths."""
    from denserk.tasks.mine_negatives import mining_inputs

    if is_path(topics):
        topics = read_queries(str(topics), paths.topics_format, fields=paths.topics_field)
    if is_path(qrels):
        qrels = read_qrels(str(qrels), paths.qrels_format)
    if is_path(corpus):
        corpus = read_passages(str(corpus), build(CorpusSettings, typed))
    return mining_inputs(paths, settings, topics or (), qrels or (), corpus)


@documented(FINETUNE)
def finetune(
    model: PathName,
    train_data: "TrainingLike",
    output: PathName,
    *,
    corpus: "TextsLike | None" = None,
    queries: "TextsLike | None" = None,
    **options: Unpack[FinetuneOptions],
) -> Path:
    """Train a retriever or a cross-encoder; return `output`, which `Encoder.load` takes.

    `corpus` and `queries` hold the texts that training data names by id.
    """
    with stored_inputs(options, train_data=train_data, corpus=corpus, queries=queries) as (
        files,
        _,
    ):
        typed = FINETUNE.typed(options, model=model, output=output, **files)
        run = finetuning.resolve_run(
            typed.get("preset"), build(CorpusSettings, typed), select(typed, *CLASSES)
        )
        from denserk.tasks.finetune import finetune as task

        with FINETUNE.claimed(typed):
            task(run)
    return Path(output)


@documented(PRETRAIN)
def pretrain(
    objective: str,
    corpus: "TextsLike",
    output: PathName,
    *,
    model: PathName | None = None,
    **options: Unpack[PretrainOptions],
) -> Path:
    """Pre-train a backbone by an objective such as condenser or retromae; return `output`.

    Without a model to start from, architecture="tiny" is a randomly initialised BERT.
    """
    with stored_inputs(options, corpus=corpus) as (files, _):
        typed = PRETRAIN.typed(options, objective=objective, output=output, model=model, **files)
        run = pretraining.resolve_run(
            build(pretraining.PretrainSettings, typed),
            build(CorpusSettings, typed),
            select(typed, *pretraining.CLASSES),
        )
        from denserk.tasks.pretrain import pretrain as task

        with PRETRAIN.claimed(typed):
            task(run)
    return Path(output)


@documented(GENERATE)
def generate(
    corpus: "TextsLike",
    output: PathName | None = None,
    **options: Unpack[GenerateOptions],
) -> list[dict[str, Any]]:
    """Generate queries and continuations for passages; return a dict for each.

    A dict has `docid`, `queries` and `next`, the continuations; with `queries_from`, which needs no
    model, also `sources` and `positives`. `output` keeps the file, which `convert` makes training
    data of.
    """
    with stored_inputs(options, corpus=corpus) as (files, folder):
        target = output or folder / "generated.jsonl"
        typed = GENERATE.typed(options, output=target, **files)
        settings = build(GenerateSettings, typed)
        from denserk.tasks.generate import generate as task

        with GENERATE.claimed(typed):
            task(settings, build(CorpusSettings, typed), build(ComputeSettings, typed))
        return [record for _, record in read_objects(str(target))]


@documented(CONVERT)
def convert(
    source: PathName, target: PathName, **options: Unpack[ConvertOptions]
) -> "ConversionResult":
    """Convert a file or folder between formats; options as in `denserk convert`.

    The result has `kind`, `format`, and `count` of what its `unit` says.
    """
    typed = CONVERT.typed(options)
    source_name = path_text(source, "source")
    target_name = path_text(target, "target")
    settings = build(ConversionSettings, typed)
    from denserk.tasks.convert import convert as task

    with CONVERT.claimed({**typed, "source": source_name, "target": target_name}):
        return task(source_name, target_name, settings, model_options(typed))
