"""Section `gpu-tests`: the tests of the suite that need a card."""

from pathlib import Path

from tests.gpu.setup import REPOSITORY, Setup, last_lines, run_python


def gpu_tests(setup: Setup) -> None:
    """Run `pytest -m gpu` on the files that have such tests; a rehearsal only collects them."""
    files = files_with_gpu_tests()
    words = ["-m", "pytest", "-q", "-ra", "--tb=short", "-p", "no:cacheprovider", "-m", "gpu"]
    if setup.rehearsal:
        words.append("--collect-only")
    done = run_python([*words, *files], seconds=setup.choose(110, 600))
    (setup.report.folder / "pytest-gpu.txt").write_text(done.stdout + done.stderr, "utf-8")
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    skipped = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    details = {"failed": "; ".join(failed), "skipped": "; ".join(skipped)}
    setup.report.check(
        "pytest -m gpu",
        last_lines(done.stdout, 1) or last_lines(done.stderr),
        done.returncode == 0,
        exit_code=done.returncode,
        **{name: text for name, text in details.items() if text},
    )


def files_with_gpu_tests() -> list[str]:
    """Return the test files that mark a test with `gpu`, from the repository's root."""
    tests = REPOSITORY / "tests"
    paths = [path for path in sorted(tests.glob("**/test_*.py")) if "mark.gpu" in path.read_text()]
    return [str(Path(path).relative_to(REPOSITORY)) for path in paths]
