"""The installation by the two commands."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
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
        "install torch flit_core>=3.12"
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
    return [*project["dependencies"], *chosen, *" ".join(peers).split(), "flit_core>=3.12"]


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


@pytest.mark.slow
def test_the_wheel_indexes_searches_and_evaluates_alone(tmp_path):
    build = [sys.executable, "-m", "flit_core.wheel", "--outdir", tmp_path]
    subprocess.run(build, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    (tmp_path / "corpus.tsv").write_text("p1\tdense passage retrieval\np2\ta faiss index\n")
    (tmp_path / "topics.tsv").write_text("q1\tpassage\n")
    (tmp_path / "qrels.txt").write_text("q1 0 p1 1\n")

    def run(*words):
        return subprocess.check_output(
            [sys.executable, *words], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(site)}
        ).decode()

    where = run("-c", "import denserk; print(denserk.__file__)")
    assert Path(where.strip()).is_relative_to(site)
    denserk = ["-m", "denserk"]
    run(*denserk, "index", "--corpus", "corpus.tsv", "--type", "bm25", "--output", "bm25")
    run(*denserk, "search", "--index", "bm25", "--topics", "topics.tsv", "--output", "run.trec")
    values = run(*denserk, "eval", "run.trec", "qrels.txt", "-m", "RR", "--format", "json")
    assert json.loads(values)["runs"][0]["measures"]["RR"] == 1
    run(*denserk, "eval", "run.trec", "qrels.txt", "--report", "report")
    assert "p1" in (tmp_path / "report" / "index.html").read_text()
    assert "agg" in run(*denserk, "finetune", "--list-presets")


@pytest.mark.slow
def test_the_source_archive_contains_tests_and_docs(tmp_path):
    code = "import sys; from flit_core.buildapi import build_sdist; build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, tmp_path], cwd=ROOT, check=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        names = {Path(*Path(name).parts[1:]).as_posix() for name in file.getnames()}
    kept = {path.relative_to(ROOT).as_posix() for path in (ROOT / "denserk").rglob("*.yaml")}
    assert kept | {"tests/run.sh", "docs/README.md", "CHANGELOG.md"} <= names
