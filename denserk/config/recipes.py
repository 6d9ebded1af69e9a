"""Reading of YAML files: recipes of the package (`denserk/recipes/`) and users' files."""

from collections.abc import Container, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from denserk.config.options import plain
from denserk.errors import InputError, UsageError

FOLDER = Path(__file__).parents[1] / "recipes"


@cache
def _loader() -> Any:
    """Return PyYAML's safe loader; it also reads 5e-6 as a number and rejects repeated keys."""
    import re

    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        def flatten_mapping(self, node: Any) -> None:
            # Called before `<<:` is resolved, and again for each mapping that merges this one.
            seen: set[str] = set()
            for key, _ in () if hasattr(node, "checked") else node.value:
                if str(key.value) in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"the key {key.value!r} is repeated", problem_mark=key.start_mark
                    )
                seen.add(str(key.value))
            node.checked = True
            super().flatten_mapping(node)

    number = re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+0123456789"))
    return Loader


def read_yaml(path: str | Path) -> Mapping[str, Any]:
    """Read a YAML file with a mapping at the top level.

    Raises:
        InputError: invalid YAML, or no mapping of names.
        UsageError: the file cannot be read.
    """
    import yaml

    expected = "lines of the form 'name: value'"
    try:
        values = yaml.load(Path(path).read_text("utf-8"), _loader())
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or error
        line = mark.line + 1 if mark else None
        raise InputError(path, line, f"invalid YAML ({problem})", expected) from error
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        kind = "nothing" if values is None else f"a {type(values).__name__}"
        raise InputError(path, None, kind, expected)
    return values


# Settings of one run that its configuration does not record.
_OF_ONE_RUN = ("output", "resume", "overwrite", "preset", "fp16", "bf16")


def flatten(groups: Iterable[Mapping[str, Any]], without: Container[str] = ()) -> dict[str, Any]:
    """Return settings in the format of --config: name -> value, without unset ones."""
    return {
        name.replace("_", "-"): plain(value)
        for group in groups
        for name, value in group.items()
        if value is not None and name not in _OF_ONE_RUN and name not in without
    }


@cache
def paper_sections(section: str) -> Mapping[str, tuple[Path, Mapping[str, Any]]]:
    """Return the entries of `section` in all recipes: name -> (file, values)."""
    return {
        name: (path, values)
        for path in sorted(FOLDER.glob("*.yaml"))
        for name, values in read_yaml(path).get(section, {}).items()
    }
