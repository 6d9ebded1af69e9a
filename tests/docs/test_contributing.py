"""What docs/contributing.md and tests/README.md say is so: paths exist, and the example passes."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTRIBUTING = ROOT / "docs" / "contributing.md"
TESTS = ROOT / "tests" / "README.md"
PATH = re.compile(r"(?:denserk|docs|tests|\.ci|\.github)/[\w./-]*\w/?|[A-Z]+\.(?:md|cff)")
MODULE = re.compile(r"python -m (tests\.[\w.]+)")


@pytest.mark.parametrize("page", [CONTRIBUTING, TESTS], ids=lambda page: page.name)
def test_paths_and_modules_that_are_named_exist(page):
    text = page.read_text("utf-8")
    code = [*re.findall(r"`([^`\n]+)`", text), *re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S)]
    paths = set(PATH.findall("\n".join(code)))
    for module in MODULE.findall(text):
        name = module.replace(".", "/")
        paths.add(f"{name}/__main__.py" if (ROOT / name).is_dir() else f"{name}.py")
    assert len(paths) > 5
    assert not [path for path in sorted(paths) if not (ROOT / path).exists()]


def test_every_helper_of_tests_has_a_line():
    modules = {path.name for path in (ROOT / "tests" / "support").glob("[!_]*.py")}
    table = TESTS.read_text("utf-8").partition("## tests/support")[2]
    assert set(re.findall(r"`(\w+\.py)`", table)) == modules


def example():
    (code,) = re.findall(r"^```python\n(.*?)^```", TESTS.read_text("utf-8"), re.M | re.S)
    return code


@pytest.mark.skipif(shutil.which("ruff") is None, reason="ruff is not installed")
@pytest.mark.parametrize("command", [["check", "--quiet"], ["format", "--diff"]])
def test_the_example_of_a_test_is_clean(command):
    name = str(ROOT / "tests" / "test_example.py")  # whose settings count
    ruff = ["ruff", *command, "--stdin-filename", name, "-"]
    process = subprocess.run(ruff, input=example(), capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr


def test_the_example_of_a_test_passes(toy, monkeypatch, caplog):
    pytest.importorskip("bm25s")
    names: dict[str, object] = {}
    exec(example(), names)
    (test,) = [value for name, value in names.items() if name.startswith("test_")]
    assert callable(test)
    test(toy, monkeypatch, caplog)
