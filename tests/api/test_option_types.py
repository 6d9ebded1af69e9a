"""The types of options (`denserk.api.options`) are held to the settings classes."""

import ast
from collections.abc import Sequence
from enum import Enum
from inspect import cleandoc, signature
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

import denserk
from denserk.api import options, signatures
from denserk.config.options import fields_of, spec_of
from denserk.config.values import as_type, type_hints, without_none

PathName = str | PathLike[str]
FUNCTIONS: dict[str, tuple[signatures.Signature, Any, Any]] = {
    "Encoder.load": (signatures.ENCODER, options.EncoderOptions, denserk.Encoder.load),
    "Encoder.encode_to": (
        signatures.ENCODE_TO,
        options.EncodeToOptions,
        denserk.Encoder.encode_to,
    ),
    "encode": (signatures.ENCODE, options.EncodeOptions, denserk.encode),
    "Index.build": (signatures.INDEX, options.IndexOptions, denserk.Index.build),
    "Index.open": (signatures.OPEN, options.OpenOptions, denserk.Index.open),
    "Index.search": (signatures.SEARCH, options.SearchOptions, denserk.Index.search),
    "BM25.build": (signatures.BM25_INDEX, options.BM25Options, denserk.BM25.build),
    "fuse": (signatures.FUSE, options.FuseOptions, denserk.fuse),
    "rerank": (signatures.RERANK, options.RerankOptions, denserk.rerank),
    "evaluate": (signatures.EVALUATE, options.EvaluateOptions, denserk.evaluate),
    "judgment_bounds": (
        signatures.JUDGMENT_BOUNDS,
        options.JudgmentBoundsOptions,
        denserk.judgment_bounds,
    ),
    "explain": (signatures.EXPLAIN, options.ExplainOptions, denserk.explain),
    "benchmark": (signatures.BENCHMARK, options.BenchmarkOptions, denserk.benchmark),
    "mine_negatives": (
        signatures.MINE_NEGATIVES,
        options.MineNegativesOptions,
        denserk.mine_negatives,
    ),
    "finetune": (signatures.FINETUNE, options.FinetuneOptions, denserk.finetune),
    "pretrain": (signatures.PRETRAIN, options.PretrainOptions, denserk.pretrain),
    "generate": (signatures.GENERATE, options.GenerateOptions, denserk.generate),
    "convert": (signatures.CONVERT, options.ConvertOptions, denserk.convert),
}
functions = pytest.mark.parametrize("name", FUNCTIONS)


def item_type(kind: Any, metavar: str | None) -> Any:
    """The type of one value: names of an enumeration, paths where files and folders are named."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return Literal[tuple(str(choice.value) for choice in kind)]
    if kind is str and metavar and any(word in metavar for word in ("FILE", "DIR", "QRELS")):
        return PathName
    return kind


def expected_type(cls: type, name: str) -> Any:
    """What a field accepts: see `denserk.config.values`."""
    kind = type_hints(cls)[name]
    spec = spec_of(fields_of(cls)[name])
    is_optional = type(None) in get_args(kind)
    kind = without_none(kind)
    if get_origin(kind) is tuple:
        item: Any = item_type(get_args(kind)[0], spec.metavar)
        expected: Any = Sequence[item]
        if spec.repeat or item in (str, PathName):
            expected = Union[item, Sequence[item]]  # noqa: UP007  (Literal has no |)
        elif get_origin(item) is not Literal:
            expected = str | Sequence[item]
    else:
        expected = item_type(kind, spec.metavar)
    return Union[expected, None] if is_optional else expected  # noqa: UP007


def owner(functions_signature: signatures.Signature, name: str) -> type:
    """The last class with a field."""
    owners = [cls for cls in functions_signature.classes if name in fields_of(cls)]
    return owners[-1]


@functions
def test_names_and_types_are_those_of_the_settings(name):
    functions_signature, options_of_function, _ = FUNCTIONS[name]
    types = get_type_hints(options_of_function)
    expected = {
        option: expected_type(owner(functions_signature, option), option)
        for option in functions_signature.names
    }
    if functions_signature.has_config:
        expected["config"] = PathName
    assert types == expected
    assert not options_of_function.__required_keys__


def docs_of(options_of_function: Any) -> dict[str, str]:
    """The strings under the keys of a TypedDict and its bases."""
    classes = {
        node.name: node
        for node in ast.parse(Path(str(options.__file__)).read_text("utf-8")).body
        if isinstance(node, ast.ClassDef)
    }

    def docs(cls: ast.ClassDef) -> dict[str, str]:
        texts: dict[str, str] = {}
        for base in cls.bases:
            assert isinstance(base, ast.Name)
            if base.id in classes:
                texts |= docs(classes[base.id])
        key = ""
        for statement in cls.body:
            match statement:
                case ast.AnnAssign(target=ast.Name(id=key)):
                    texts[key] = ""
                case ast.Expr(value=ast.Constant(value=str(text))) if key:
                    texts[key] = " ".join(text.split())
        return texts

    return docs(classes[options_of_function.__name__])


@functions
def test_every_key_has_the_help_text_and_default_of_its_option(name):
    functions_signature, options_of_function, _ = FUNCTIONS[name]
    texts = functions_signature.help_texts()
    assert docs_of(options_of_function) == texts
    for option, text in texts.items():
        assert "--" not in text, text
        assert option == "config" or "[default: " in text, text


@functions
def test_the_function_takes_these_options_and_names_none_of_them_itself(name):
    _, options_of_function, function = FUNCTIONS[name]
    parameters = signature(function).parameters
    assert parameters["options"].kind is parameters["options"].VAR_KEYWORD
    assert get_args(parameters["options"].annotation) == (options_of_function,)
    assert not parameters.keys() & get_type_hints(options_of_function).keys()


SAMPLES: dict[Any, list[Any]] = {
    int: [3],
    float: [0.5, 2],
    bool: [True],
    str: ["1,2"],
    type(None): [None],
}


def samples(kind: Any) -> list[Any]:
    """Values of a type."""
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    if get_origin(kind) is Sequence:
        return [samples(get_args(kind)[0]), tuple(samples(get_args(kind)[0]))]
    if len(get_args(kind)) > 1:
        return list(chain.from_iterable(map(samples, get_args(kind))))
    return SAMPLES.get(kind, [Path("file")])


@functions
def test_settings_take_values_of_the_types(name):
    functions_signature, options_of_function, _ = FUNCTIONS[name]
    for option, kind in get_type_hints(options_of_function).items():
        if option == "config":
            continue
        cls = owner(functions_signature, option)
        for value in samples(kind):
            repeated = spec_of(fields_of(cls)[option]).repeat
            listed = [value] if repeated and isinstance(value, str | PathLike) else value
            as_type(type_hints(cls)[option], listed)


@functions
def test_help_shows_every_option_with_its_text_and_default(name):
    functions_signature, _, function = FUNCTIONS[name]
    shown = " ".join(cleandoc(function.__doc__).split())
    for option, text in functions_signature.help_texts().items():
        assert f"{option}: {' '.join(text.split())}" in shown


SCRIPT = """import denserk

denserk.finetune("model", [], "out", representation="agg", layers=[11, 12], lr=1)
denserk.finetune("model", [], "out", lerning_rate=1e-5)
denserk.finetune("model", [], "out", lr="high")
denserk.finetune("model", [], "out", representation="aggg")
denserk.evaluate({}, {}).per_query
denserk.evaluate({}, {}, details=True).per_query
"""
ERRORS = {
    4: 'Unexpected keyword argument "lerning_rate" for "finetune"',
    5: 'Argument "lr" to "finetune" has incompatible type "str"; expected "float"',
    6: 'Argument "representation" to "finetune" has incompatible type',
    7: 'has no attribute "per_query"',
}


@pytest.mark.slow
def test_mypy_finds_wrong_options(tmp_path):
    mypy = pytest.importorskip("mypy.api")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, "utf-8")
    project = Path(denserk.__file__).parents[1] / "pyproject.toml"
    report, _, _ = mypy.run(["--config-file", str(project), str(script)])
    errors = [line for line in report.splitlines() if "error: " in line]
    lines = [int(error.removeprefix(str(script)).split(":")[1]) for error in errors]
    assert lines == list(ERRORS), report
    for error, message in zip(errors, ERRORS.values(), strict=True):
        assert message in error
