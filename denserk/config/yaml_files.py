"""YAML files: the package's recipes (`denserk/recipes/`), and users' files of options."""

from collections.abc import Mapping, Sequence
from functools import cache, partial
from itertools import combinations
from pathlib import Path
from typing import Any

from denserk.config import recorded
from denserk.config.options import Given, typed_values
from denserk.errors import InputError, UsageError

RECIPES = Path(__file__).parents[1] / "recipes"


def read_yaml(path: str | Path) -> Mapping[str, Any]:
    """Read a YAML file: a mapping of names, without repeated ones."""
    import yaml

    expected = "lines of the form 'name: value'"
    try:
        values = _parse(Path(path).read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1
        problem = _in_one_line(error.problem or error)
        raise InputError(path, line, f"invalid YAML ({problem})", expected) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        found = f"invalid YAML ({_in_one_line(error)})"
        raise InputError(path, None, found, expected) from error
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise InputError(path, None, "no mapping", expected)
    return values


def _parse(text: str) -> Any:
    """Parse YAML; None if it has no names, a YAMLError for a repeated one of the outer mapping."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
    node = loader.get_single_node()
    if not isinstance(node, yaml.MappingNode) or not node.value:
        return None
    keys = [key for key, _ in node.value]
    for key, later_key in combinations(keys, 2):
        if later_key.value == key.value:
            problem = f"the key {later_key.value!r} is repeated"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=later_key.start_mark)
    return loader.construct_document(node)


def comments_of_values(path: str | Path, *keys: str) -> dict[str, str]:
    """Return the comment behind each value of a mapping in a YAML file, without "#"; "" for none.

    `keys` lead to the mapping: none, to the outer one. Merged values (`<<:`) have the comments of
    the place where they stand. Hyphens of names become underscores.
    """
    import yaml

    text = Path(path).read_text("utf-8-sig")  # a byte order mark would count as a column
    node = yaml.compose(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    for key in keys:
        node = next(value for name, value in node.value if name.value == key)
    return _comments(node, text.splitlines())


def _comments(mapping: Any, lines: Sequence[str]) -> dict[str, str]:
    """Return the comment behind each value of a mapping's node."""
    import yaml

    merged_comments: dict[str, str] = {}
    comments = {}
    for key, value in mapping.value:
        if key.value == "<<":
            mappings = value.value if isinstance(value, yaml.SequenceNode) else [value]
            for merged in reversed(mappings):  # the first one wins
                merged_comments |= _comments(merged, lines)
        else:
            comments[key.value.replace("-", "_")] = _comment_behind(value, lines)
    return merged_comments | comments


def _comment_behind(value: Any, lines: Sequence[str]) -> str:
    """Return the comment behind the node of a value, without "#"; empty without one."""
    end = value.end_mark
    if end.line >= len(lines):
        return ""
    text = lines[end.line][end.column :].strip()
    return text.lstrip("# ") if text.startswith("#") else ""


def _in_one_line(problem: object) -> str:
    return " ".join(str(problem).split())


def read_options(path: str | Path) -> dict[str, Any]:
    """Read options from a YAML file; the config.yaml of a model names files relative to itself."""
    values = dict(read_yaml(path))
    if values.get(recorded.MARK) != recorded.RELATIVE:
        return values
    del values[recorded.MARK]
    return recorded.change_names(values, partial(recorded.locate_name, folder=Path(path).parent))


def typed_options(source: str, given_options: Given, *classes: type) -> dict[str, Any]:
    """Convert options by name to the types of the classes' fields.

    They win over those in the YAML file that the option `config` names. A UsageError, which begins
    with `source` or the name of the file, lists all mistakes.
    """
    values = dict(given_options)
    path = values.pop("config", None)
    typed = typed_values(str(path), read_options(path), *classes) if path else {}
    return typed | typed_values(source, values, *classes)


@cache
def paper_sections(section: str) -> Mapping[str, tuple[Path, Mapping[str, Any]]]:
    """Return the entries of `section` in all recipes: name -> (file, values)."""
    sections = {}
    for path in sorted(RECIPES.glob("*.yaml")):
        for name, values in read_yaml(path).get(section, {}).items():
            sections[name] = (path, values)
    return sections
