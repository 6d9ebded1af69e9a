"""The house stands as docs/house.md draws it: every module in place, every import pointing down."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HOUSE = ROOT / "docs" / "house.md"

GROUND = {"denserk", "records", "errors", "reporting", "extras"}
"""What every floor may import."""
BELOW = {
    "denserk": set(),
    "records": set(),
    "errors": set(),
    "reporting": set(),
    "extras": {"errors"},
    "settings": GROUND,
    "formats": (plain := GROUND | {"settings"}),
    "evaluation": (files := plain | {"formats"}),
    "index": files | {"data", "modeling"},
    "data": files,
    "modeling": (tensors := files | {"data"}),
    "integrations": tensors | {"modeling"},
    "objectives": (losses := tensors | {"modeling"}),
    "training": losses | {"objectives"},
    "analysis": tensors | {"modeling", "index"},
    "tasks": (work := losses | {"objectives", "training", "index", "evaluation", "analysis"}),
    "cli": work | {"tasks"},
    "__main__": {"cli", "errors"},
}
"""Floor -> the floors it may import; its own modules too, as long as they form no circle."""
LIGHT = ("settings", "formats", "evaluation", "cli")
"""Floors that the command line stands on before a command has begun."""
HEAVY = {"torch", "transformers", "faiss"}
LATE = {
    "denserk.__main__": {"denserk.cli.app"},  # signals are caught while it is imported
    "denserk.tasks.convert": {"denserk.modeling.model_conversion", "denserk.tasks.teacher_scores"},
    "denserk.modeling.fused_aggregation": {"denserk.modeling.lexical_kernels"},
    "denserk.tasks.mine_negatives": {"denserk.tasks.teacher_scores"},
    # torch, which takes a second, only where vectors are compared by it or a model encodes
    "denserk.index.faiss_index": {"denserk.index.exact"},
    "denserk.index.opening": {"denserk.index.exact", "denserk.modeling.devices"},
    "denserk.tasks.search": {"denserk.modeling.devices"},
}
"""Imports inside functions below the command line; docs/house.md says why."""

MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "denserk").rglob("*.py"))
}


@cache
def imported(module: str, *, at_top: bool) -> frozenset[str]:
    """The modules that a module names in its imports, wherever they stand or only at the top."""
    tree = ast.parse(MODULES[module].read_text("utf-8"))
    found: set[str] = set()
    for node in _outside_functions(tree) if at_top else ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            assert node.module
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in MODULES else node.module)
    return frozenset(found)


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
            yield from _outside_functions(child)


def floor(module: str) -> str:
    """`denserk.formats.tsv` stands on `formats`."""
    return module.split(".")[1] if "." in module else module


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down(module):
    allowed = BELOW[floor(module)] | {floor(module)}
    up = {m for m in imported(module, at_top=False) if m in MODULES and floor(m) not in allowed}
    assert not up, f"{module} looks up at {sorted(up)}"


def test_no_two_modules_need_each_other():
    hub = "denserk.cli.app"  # commands register themselves there, and it imports them when it runs
    graph = {m: MODULES.keys() & imported(m, at_top=m == hub) for m in MODULES}
    TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("module", [m for m in MODULES if floor(m) in LIGHT])
def test_light_floors_import_nothing_heavy_at_their_top(module):
    packages = {name.partition(".")[0] for name in imported(module, at_top=True)}
    assert not packages & HEAVY


@pytest.mark.parametrize("module", [m for m in MODULES if floor(m) == "cli"])
def test_commands_import_their_task_when_they_run(module):
    assert not {m for m in imported(module, at_top=True) if floor(m) == "tasks"}


@pytest.mark.parametrize("module", [m for m in MODULES if floor(m) != "cli"])
def test_below_the_commands_imports_stand_at_the_top(module):
    hidden = imported(module, at_top=False) - imported(module, at_top=True)
    assert MODULES.keys() & hidden == LATE.get(module, set())


def drawn() -> set[str]:
    """The modules that docs/house.md draws: `name.py` under the last folder that was named."""
    folder = ""
    found: set[str] = set()
    for line in HOUSE.read_text("utf-8").splitlines():
        if head := re.match(r" *(\w+)/(?: |$)", line):
            folder = "" if head[1] == "denserk" else f"{head[1]}/"
        for name in re.findall(r"^ +((?:\w+\.py +)+)", line):
            found.update(f"denserk/{folder}{part}" for part in name.split())
    return found


def test_house_md_draws_what_stands():
    stands = {
        str(path.relative_to(ROOT))
        for path in MODULES.values()
        if path.name != "__init__.py" or path.parent.name == "denserk"
    }
    assert drawn() == stands


def test_init_files_are_empty():
    assert not [
        str(path)
        for path in MODULES.values()
        if path.name == "__init__.py" and path.parent.name != "denserk" and path.read_text()
    ]
