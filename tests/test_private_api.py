"""No private name of another package is used."""

import ast
from pathlib import Path

import denserk

PUBLIC = {"_exit", "_fields"}  # documented: os._exit, namedtuple._fields
# Methods that earlier versions called or overrode.
KNOWN = {"_iter_calc", "_reorder_linear_weight", "_wrap_model", "mkldnn"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC


def private_uses(tree: ast.Module) -> list[str]:
    """Names such as `torch._C`, `from x import _y`, `from x._y import z`."""
    imported, found = set(), []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {(each.asname or each.name).partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported |= {each.asname or each.name for each in node.names}
            if node.module.partition(".")[0] != "denserk":
                names = [*node.module.split("."), *(each.name for each in node.names)]
                found += [name for name in names if is_private(name)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            root: ast.expr = node
            while isinstance(root, ast.Attribute):
                root = root.value
            foreign = isinstance(root, ast.Name) and root.id in imported
            if (foreign and is_private(node.attr)) or node.attr in KNOWN:
                found.append(f"{node.lineno}: {ast.unparse(node)}")
    return found


def test_the_package_uses_no_private_names():
    root = Path(denserk.__file__).parent
    found = {
        str(path.relative_to(root)): uses
        for path in sorted(root.rglob("*.py"))
        if (uses := private_uses(ast.parse(path.read_text())))
    }
    assert found == {}
