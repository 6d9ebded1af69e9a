"""What a wheel and a source archive hold, and what names the version."""

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

import denserk

ROOT = Path(__file__).parents[1]


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

    module_path = run("-c", "import denserk; print(denserk.__file__)")
    assert Path(module_path.strip()).is_relative_to(site)
    command = ["-m", "denserk"]
    run(*command, "index", "--corpus", "corpus.tsv", "--type", "bm25", "--output", "bm25")
    run(*command, "search", "--index", "bm25", "--topics", "topics.tsv", "--output", "run.trec")
    values = run(*command, "eval", "run.trec", "qrels.txt", "-m", "RR", "--format", "json")
    assert json.loads(values)["runs"][0]["measures"]["RR"] == 1
    run(*command, "eval", "run.trec", "qrels.txt", "--report", "report")
    assert "p1" in (tmp_path / "report" / "index.html").read_text()
    assert "agg" in run(*command, "finetune", "--list-presets")


@pytest.mark.slow
def test_the_source_archive_contains_tests_and_docs(tmp_path):
    code = "import sys; from flit_core.buildapi import build_sdist; build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, tmp_path], cwd=ROOT, check=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        names = {Path(*Path(name).parts[1:]).as_posix() for name in file.getnames()}
    recipes = {path.relative_to(ROOT).as_posix() for path in (ROOT / "denserk").rglob("*.yaml")}
    assert recipes <= names
    assert {"tests/run.sh", "docs/index.md", "CHANGELOG.md", "LICENSE", "CITATION.cff"} <= names


def test_the_citation_and_the_readme_name_the_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == denserk.__version__
    assert f"version = {{{denserk.__version__}}}" in (ROOT / "README.md").read_text("utf-8")


def test_the_workflow_runs_what_ci_runs():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "check.yml").read_text("utf-8"))
    steps = workflow["jobs"]["check"]["steps"]
    assert "bash .ci/run" in [step.get("run") for step in steps]
