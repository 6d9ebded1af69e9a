"""YAML files: the package's recipes (`denserk/recipes/`), and users' files of options."""

from collections.abc import Mapping
from functools import cache, partial
from itertools import combinations
from pathlib import Path
from typing import Any

from denserk.config import recorded
from denserk.errors import InputError, UsageError

# Recipes of the package.
FOLDER = Path(__file__).parents[1] / "recipes"


def read_yaml(path: str | Path) -> Mapping[str, Any]:
    """Read a YAML file: a mapping of names, without repeated ones."""
    import yaml

    expected = "lines of the form 'name: value'"
    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(Path(path).read_text("utf-8"))
        node = loader.get_single_node()
        keys = [key for key, _ in node.value] if isinstance(node, yaml.MappingNode) else []
        for key, other in combinations(keys, 2):
            if key.value == other.value:
                problem = f"the key {other.value!r} is repeated"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=other.start_mark)
        values = loader.construct_document(node) if keys else node
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        line = error.problem_mark.line + 1 if isinstance(error, yaml.MarkedYAMLError) else None
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        found = f"invalid YAML ({problem})"
        raise InputError(path, line, found, expected) from error
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise InputError(path, None, "no mapping", expected)
    return values


def read_options(path: str | Path) -> dict[str, Any]:
    """Read options from a YAML file; the config.yaml of a model names files relative to itself."""
    values = dict(read_yaml(path))
    if values.get(recorded.MARK) != recorded.RELATIVE:
        return values
    del values[recorded.MARK]
    return recorded.change_names(values, partial(recorded.locate_name, folder=Path(path).parent))


@cache
def paper_sections(section: str) -> Mapping[str, tuple[Path, Mapping[str, Any]]]:
    """Return the entries of `section` in all recipes: name -> (file, values)."""
    return {
        name: (path, values)
        for path in sorted(FOLDER.glob("*.yaml"))
        for name, values in read_yaml(path).get(section, {}).items()
    }
