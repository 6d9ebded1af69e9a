"""The installation by the two commands."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / "tests" / "constraints.txt"
TORCH = re.findall(r"^torch==(\S+)", CONSTRAINTS.read_text(), re.MULTILINE)
PIP = """
import sys
from pathlib import Path
words = sys.argv[1:]
print(Path(words[words.index("-c") + 1]).read_text())
print("install", *words[words.index("-c") + 2:])
"""


def fake_torch(python, version):
    """An interpreter gets a package that looks like torch to pip."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    where = Path(subprocess.check_output([python, "-c", code], text=True).strip())
    (where / "torch.py").write_text(f"__version__ = '{version}'")
    folder = where / f"torch-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")


@pytest.fixture
def checkout(tmp_path):
    """A checkout in whose environments pip only prints its constraints and what it is given."""
    folder = tmp_path / "a checkout"
    (folder / "tests").mkdir(parents=True)
    for name in ("pyproject.toml", "tests/environment.sh", "tests/constraints.txt"):
        shutil.copy(ROOT / name, folder / name)
    (tmp_path / "path" / "pip").mkdir(parents=True)
    (tmp_path / "path" / "pip" / "__main__.py").write_text(PIP)
    return folder


def environment(checkout, python=sys.executable):
    """What pip is given, and the version of torch in the environment afterwards."""
    show = "python -c 'import torch; print(torch.__version__)'"
    done = subprocess.run(
        ["bash", "-c", f"source tests/environment.sh; environment cpu; {show}"],
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": str(checkout.parent / "path"), "PYTHON": str(python)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("found", "used"),
    [("2.99.0+cpu", "2.99.0+cpu"), (f"{TORCH[0]}+cpu", TORCH[0]), ("2.5.1", TORCH[0])],
)
def test_a_torch_in_the_environment_is_used(checkout, found, used):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", checkout / ".venv"], check=True)
    fake_torch(checkout / ".venv/bin/python", found)
    printed = environment(checkout)
    assert [line for line in printed if line.startswith("torch==")] == [f"torch=={used}"] * 2
    assert next(line for line in printed if line.startswith("install")) == (
        "install torch setuptools>=77"
    )
    own = used == TORCH[0]
    assert any(line.startswith("triton==") for line in printed) is own
    assert any(line.startswith("numpy==") for line in printed)


def command_requirements(script):
    """What a script installs: denserk's requirements, those of the extras, and further packages."""
    text = (ROOT / script).read_text()
    (extras,) = re.findall(r"^(?:environment |extras=)([\w,]+)$", text, re.MULTILINE)
    peers = re.findall(r"^ +peers=\((.+)\)$", text, re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    chosen = [requirement for extra in extras.split(",") for requirement in optional[extra]]
    return [*project["dependencies"], *chosen, *" ".join(peers).split(), "setuptools>=77"]


@pytest.mark.network
@pytest.mark.parametrize("script", ["docs/quickstart.sh", "tests/run.sh"])
def test_the_constraints_resolve_from_the_package_index(script, tmp_path):
    environment = os.environ | {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""}
    environment.pop("PIP_EXTRA_INDEX_URL", None)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    pip = [tmp_path / "venv/bin/python", "-m", "pip", "-q", "install"]
    # since 23.3 a dry run downloads no wheels
    subprocess.run([*pip, "pip>=23.3"], env=environment, check=True)
    done = subprocess.run(
        [*pip, "--dry-run", "-c", CONSTRAINTS, *command_requirements(script)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
