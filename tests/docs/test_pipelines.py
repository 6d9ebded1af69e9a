"""docs/howto/pipelines.md: its Makefile and Snakefile make measures, and again what has changed."""

import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.docs.test_frameworks import python_of
from tests.docs.test_readme import ROOT, blocks, fast_denserk, write_hub

PAGE = ROOT / "docs" / "howto" / "pipelines.md"
RUNS = ("sparse.trec", "dense.trec", "hybrid.trec")
OUTPUTS = ("sparse.stamp", "dense.stamp", *RUNS, "measures.txt")

pytestmark = [pytest.mark.peer, pytest.mark.slow]


def file_of(language: str) -> str:
    """Return the only block of the page in a language: its Makefile or its Snakefile."""
    (code,) = (block.code for block in blocks(PAGE) if block.language == language)
    return code


def lines_of(program: str) -> str:
    """Return the shell block of the page that calls a program."""
    (code,) = (
        block.code
        for block in blocks(PAGE)
        if block.language == "sh" and block.code.split()[0] == program
    )
    return code


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    hub = tmp_path_factory.mktemp("pipelines") / "hub"
    write_hub(hub)
    with fast_denserk(hub) as variables:
        yield variables


@pytest.fixture
def shell(toy, environment, tmp_path) -> Callable[..., Any]:
    """Run a script in the toy collection's folder, as a reader does; return the process."""

    def run_script(script: str, *folders: Path) -> subprocess.CompletedProcess[str]:
        path = ":".join([*map(str, folders), environment["PATH"]])
        variables = {**environment, "PATH": path, "HOME": str(tmp_path)}
        command = ["bash", "-euc", script]
        return subprocess.run(
            command, cwd=toy, env=variables, capture_output=True, text=True, check=False
        )

    return run_script


def times(toy: Path) -> dict[str, int]:
    return {name: (toy / name).stat().st_mtime_ns for name in OUTPUTS}


def made_between(before: dict[str, int], after: dict[str, int]) -> set[str]:
    return {name for name in OUTPUTS if before[name] != after[name]}


def assert_measures_of_three_runs(text: str) -> None:
    first_words = {line.split()[0] for line in text.splitlines() if line}
    assert {"sparse", "dense", "hybrid"} <= first_words, text


def make_and_change(toy: Path, shell: Callable[..., Any], script: str, again: str) -> None:
    """Check that what depends on a changed file is made again, and nothing else.

    `script` is the page's; `again` is the program alone.
    """
    process = shell(script)
    assert process.returncode == 0, process.stderr
    measures = (toy / "measures.txt").read_text()
    assert process.stdout.endswith(measures)
    assert_measures_of_three_runs(measures)
    first_times = times(toy)

    assert shell(again).returncode == 0
    assert times(toy) == first_times  # nothing was to do

    time.sleep(1.1)  # file systems and tools that count in seconds
    with (toy / "queries.tsv").open("a") as queries:
        queries.write("q4\tfish and dog\n")
    process = shell(again)
    assert process.returncode == 0, process.stderr
    second_times = times(toy)
    assert made_between(first_times, second_times) == {*RUNS, "measures.txt"}
    for name in RUNS:
        assert "q4 " in (toy / name).read_text()

    # a corpus that cannot be read leaves the runs as they are, and no stamp that claims more
    time.sleep(1.1)
    corpus = (toy / "corpus.jsonl").read_text()
    (toy / "corpus.jsonl").write_text(corpus + "{broken\n")
    dense_run = (toy / "dense.trec").read_bytes()
    process = shell(again)
    assert process.returncode != 0
    assert "corpus.jsonl" in process.stderr
    assert (toy / "dense.trec").read_bytes() == dense_run

    (toy / "corpus.jsonl").write_text(corpus + '{"_id": "d11", "text": "a cat in a tree"}\n')
    process = shell(again)
    assert process.returncode == 0, process.stderr
    assert made_between(second_times, times(toy)) == set(OUTPUTS)
    assert " d11 " in (toy / "hybrid.trec").read_text()


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make(toy, shell):
    (toy / "Makefile").write_text(file_of("make"))
    make_and_change(toy, shell, lines_of("make"), "make")

    # qrels that cannot be read leave no half of measures.txt
    (toy / "qrels.txt").write_text("q1 0 d3\n")
    assert shell("make").returncode != 0
    assert not (toy / "measures.txt").exists()


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_that_resumes_starts_new_work_too_and_rejects_a_changed_corpus(toy, shell):
    (toy / "Makefile").write_text(file_of("make"))
    process = shell("make --jobs 2 MODE=--resume")
    assert process.returncode == 0, process.stderr
    time.sleep(1.1)
    with (toy / "corpus.jsonl").open("a") as corpus:
        corpus.write('{"_id": "d11", "text": "a cat in a tree"}\n')
    process = shell("make MODE=--resume dense.stamp")
    assert process.returncode != 0
    assert "--overwrite" in process.stderr
    assert shell("make").returncode == 0
    assert " d11 " in (toy / "dense.trec").read_text()


def test_snakemake(toy, shell):
    bin_folder = python_of("snakemake").parent
    (toy / "Snakefile").write_text(file_of("python"))

    def shell_with_snakemake(script):
        return shell(script, bin_folder)

    again = "snakemake --cores 2"
    make_and_change(toy, shell_with_snakemake, lines_of("snakemake"), again)
    times_before = times(toy)
    process = shell_with_snakemake(f"{again} --config model=bert-base-uncased")
    assert process.returncode == 0, process.stderr
    assert made_between(times_before, times(toy)) == set(OUTPUTS) - {"sparse.stamp", "sparse.trec"}
