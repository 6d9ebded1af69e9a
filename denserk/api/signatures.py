"""The options of each function of the Python API: fields of settings classes.

Options have the names of the command line, with underscores. `denserk.api.options` holds the same
as types, which editors and mypy read.
"""

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from textwrap import fill
from typing import Any, TypeVar

from denserk.api.inputs import path_text
from denserk.config import analysis, encoding, evaluation, formats, pretraining, retrieval
from denserk.config.benchmarks import BenchmarkPaths, MakeSettings
from denserk.config.choosing import ChooseSettings
from denserk.config.help_texts import python_help_text
from denserk.config.mining import MiningPaths, MiningSettings
from denserk.config.options import build, fields_of, select
from denserk.config.presets import PresetSettings
from denserk.config.shared import OverwriteSettings
from denserk.config.training import CLASSES as TRAINING
from denserk.config.yaml_files import typed_options
from denserk.errors import UsageError
from denserk.io.claims import claimed_files, file_outputs

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Typed = dict[str, Any]  # options by name, in their types

MODEL = (encoding.RepresentationSettings, encoding.TextSettings, encoding.ComputeSettings)
# of functions whose model may be behind a URL
ANY_MODEL = (*MODEL, encoding.ServerSettings)
CONFIG_HELP = "YAML file of options, e.g. the config.yaml of an earlier run; others override it."
# Options of a run's file, which a run in memory does not have.
OF_RUN_FILES = "output_format tag ir_metadata"
WIDTH = 88


@dataclass(frozen=True)
class Signature:
    """The options that a function takes by name."""

    source: str  # what messages name: the command, or the function
    classes: tuple[type, ...]
    excluded: str = ""  # fields that are parameters of the function, or of no use in Python
    has_config: bool = False  # `config` names a YAML file of options

    @property
    def names(self) -> list[str]:
        """The names of the options."""
        excluded = self.excluded.split()
        return [name for name in fields_of(*self.classes) if name not in excluded]

    def typed(self, options: Mapping[str, Any], **parameters: Any) -> Typed:
        """Return options, and parameters that are fields, in the types of the settings classes.

        None is what is not given. A UsageError lists all mistakes.
        """
        excluded = self.excluded.split()
        for name in options:
            if name in excluded:
                raise UsageError(f"{self.source}: {name} is not an option in Python")
        config = options.get("config")
        if config is not None:
            if not self.has_config:
                raise UsageError(f"{self.source}: config is not an option in Python")
            path_text(config, "config")
        arguments = {**options, **parameters}
        given = {name: value for name, value in arguments.items() if value is not None}
        return typed_options(self.source, given, *self.classes)

    def claimed(self, typed: Typed) -> AbstractContextManager[None]:
        """Check and lock the outputs among typed options, and copy the pipes among the inputs."""
        return claimed_files(typed, file_outputs(*self.classes))

    def help_texts(self) -> dict[str, str]:
        """Return the help text of each option, with its default."""
        texts = {"config": CONFIG_HELP} if self.has_config else {}
        names = self.names
        for cls in self.classes:
            for name in fields_of(cls):
                if name in names:
                    texts[name] = python_help_text(cls, name)
        return texts


def model_options(typed: Typed) -> encoding.ModelOptions:
    """Return the options of a model and of its computation."""
    return encoding.ModelOptions(
        select(typed, encoding.RepresentationSettings),
        select(typed, encoding.TextSettings),
        build(encoding.ComputeSettings, typed),
    )


def documented(signature: Signature) -> Callable[[F], F]:
    """Add the options of a function to its docstring, which `help` shows."""

    def add(function: F) -> F:
        if function.__doc__ is not None:  # python -OO
            summary = inspect.cleandoc(function.__doc__)
            function.__doc__ = f"{summary}\n\n{options_section(signature)}\n"
        return function

    return add


def options_section(signature: Signature) -> str:
    """Return the options and their help texts as a section of a docstring."""
    lines = ["Options:"]
    for name, text in signature.help_texts().items():
        lines.append(
            fill(
                f"{name}: {text}",
                WIDTH,
                initial_indent=" " * 4,
                subsequent_indent=" " * 8,
                break_long_words=False,
                break_on_hyphens=False,
            )
        )
    return "\n".join(lines)


def _all_but(cls: type, names: str) -> str:
    """Return the fields of a class other than some, separated by spaces."""
    kept = names.split()
    return " ".join(name for name in fields_of(cls) if name not in kept)


ENCODER = Signature("Encoder.load", ANY_MODEL)
ENCODE = Signature(
    "denserk encode",
    (encoding.EncodeSettings, formats.CorpusSettings, *ANY_MODEL),
    excluded="model corpus topics output",
)
ENCODE_TO = Signature(
    "Encoder.encode_to",
    (encoding.EncodeSettings, formats.CorpusSettings),
    excluded="model corpus topics output",
)
INDEX = Signature(
    "denserk index",
    (retrieval.IndexPaths, retrieval.IndexSettings),
    excluded="input corpus output type",
)
BM25_INDEX = Signature(
    "denserk index --type bm25",
    (
        retrieval.IndexPaths,
        retrieval.IndexSettings,
        retrieval.Bm25Settings,
        formats.CorpusSettings,
    ),
    excluded=f"{_all_but(retrieval.IndexPaths, 'overwrite resume')} "
    f"{_all_but(retrieval.IndexSettings, 'engine threads')}",
)
OPEN = Signature(
    "Index.open",
    (encoding.ComputeSettings,),
    excluded=_all_but(encoding.ComputeSettings, "device threads"),
)
SEARCH = Signature(
    "denserk search",
    (retrieval.SearchSettings,),
    excluded=f"hits index_device {OF_RUN_FILES}",
)
RERANK = Signature(
    "denserk rerank",
    (
        retrieval.RerankPaths,
        retrieval.RerankSettings,
        encoding.TextSettings,
        formats.CorpusSettings,
        encoding.ComputeSettings,
    ),
    excluded=f"model run topics corpus output overwrite {OF_RUN_FILES}",
)
FUSE = Signature(
    "denserk fuse",
    (retrieval.FusionSettings, retrieval.RankingSettings),
    excluded=f"tune {OF_RUN_FILES}",
)
EVALUATE = Signature(
    "denserk eval",
    (
        evaluation.EvaluationSettings,
        evaluation.ComparisonSettings,
        evaluation.PageSettings,
        evaluation.PredictedSettings,
        OverwriteSettings,
        formats.CorpusSettings,
    ),
    excluded="measures baseline seeds topics predicted",
)
JUDGMENT_BOUNDS = Signature(
    "judgment_bounds",
    (evaluation.EvaluationSettings,),
    excluded="measures min",
)
CHOOSE = Signature(
    "denserk choose",
    (
        ChooseSettings,
        formats.CorpusSettings,
        encoding.ComputeSettings,
        encoding.ServerSettings,
        retrieval.Bm25Settings,
    ),
    excluded="corpus topics qrels output candidates",
)
EXPLAIN = Signature(
    "denserk eval --explain",
    (evaluation.EvaluationSettings,),
    excluded=_all_but(evaluation.EvaluationSettings, "relevance_level"),
)
BENCHMARK = Signature(
    "denserk benchmark",
    (
        BenchmarkPaths,
        evaluation.EvaluationSettings,
        evaluation.AnswerSettings,
        MakeSettings,
        *ANY_MODEL,
        formats.CorpusSettings,
    ),
    excluded="runs model output list measures write_dpr_json write_pyserini_json",
)
ANALYZE_MISSES = Signature(
    "denserk analyze misses",
    (analysis.MissesSettings, formats.CorpusSettings, encoding.ComputeSettings),
    excluded="run qrels topics corpus output",
)
MINE_NEGATIVES = Signature(
    "denserk mine-negatives",
    (
        MiningPaths,
        MiningSettings,
        formats.CorpusSettings,
        encoding.TextSettings,
        encoding.ComputeSettings,
        encoding.ServerSettings,
    ),
    excluded="run topics qrels train corpus output",
)
FINETUNE = Signature(
    "denserk finetune",
    (PresetSettings, *TRAINING, formats.CorpusSettings),
    excluded="model train_data output corpus queries list_presets show_preset",
    has_config=True,
)
PRETRAIN = Signature(
    "denserk pretrain",
    (pretraining.PretrainSettings, *pretraining.CLASSES, formats.CorpusSettings),
    excluded="objective model corpus output",
    has_config=True,
)
GENERATE = Signature(
    "denserk generate",
    (formats.GenerateSettings, formats.CorpusSettings, encoding.ComputeSettings),
    excluded="corpus output",
)
CONVERT = Signature("denserk convert", (formats.ConversionSettings, *MODEL))
