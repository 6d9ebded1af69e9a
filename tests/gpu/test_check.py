"""The machinery of the GPU check; the check itself is no test of the suite."""

import json
import subprocess
import sys
import time

import pytest

from tests.gpu import plan
from tests.gpu.__main__ import main
from tests.gpu.sections import OutOfTime, Section, time_limit
from tests.gpu.setup import REPOSITORY


@pytest.fixture
def check(tmp_path, monkeypatch, capsys):
    """`check([Section(...)], "--budget", "9")`: exit code, what is printed, record and page."""

    def run(sections, *words):
        monkeypatch.setattr(plan, "SECTIONS", tuple(sections))
        code = main(["--rehearse", "--output", str(tmp_path), *words])
        record = json.loads((tmp_path / "gpu.json").read_text())
        return code, capsys.readouterr().out, record, (tmp_path / "gpu.md").read_text()

    return run


def measure_a_rate(setup):
    setup.report.measure("a rate", 23901.72, "passages/s", of_peak=0.42466)


def find_a_fault(setup):
    with setup.report.attempt("a fault"):
        int("a | b")
    setup.report.check("afterwards", 1.0, passed=True)


def break_off(setup):
    setup.report.check("before", 1.0, passed=True)
    raise SystemExit("a library ends the process")


def never_end(setup):
    """As a library does that takes every error of another for its own."""
    while True:
        try:
            time.sleep(60)
        except Exception:  # noqa: BLE001
            setup.report.check("swallowed", value=1, passed=False)


def test_all_that_passes_ends_well(check):
    code, printed, record, page = check([Section("speed", measure_a_rate, 5)])
    assert code == 0
    assert "measured  speed  a rate  23,902 passages/s  of_peak 0.42466" in printed
    assert "0 passed, 0 failed, 1 measured, 0 skipped" in printed
    assert "| speed | a rate | measured | 23,902 passages/s | of_peak 0.42466 |" in page
    assert record["checks"][0]["value"] == 23901.72


def test_what_fails_or_breaks_off_stops_nothing_else(check):
    sections = [
        Section("faulty", find_a_fault, 5),
        Section("broken", break_off, 5),
        Section("speed", measure_a_rate, 5),
    ]
    code, printed, record, page = check(sections)
    assert code == 1
    verdicts = {each["name"]: each["verdict"] for each in record["checks"]}
    assert verdicts == {
        "a fault": "FAIL",
        "afterwards": "pass",
        "before": "pass",
        "rest of broken": "FAIL",
        "a rate": "measured",
    }
    assert [each["ending"] for each in record["sections"]] == [
        "done",
        "SystemExit: a library ends the process",
        "done",
    ]
    error = "ValueError: invalid literal for int() with base 10: 'a | b'"
    assert f"FAIL      faulty  a fault         {error}" in printed
    cell = error.replace("|", r"\|")
    assert f"| faulty | a fault | FAIL | {cell} |  |" in page


def test_time_limits_hold_even_where_errors_are_swallowed(check, monkeypatch):
    monkeypatch.setattr("tests.gpu.sections.LEAST_SECONDS", 0.2)
    # in a rehearsal the limit is what the budget leaves: the next section is not started
    code, _, record, _ = check(
        [Section("endless", never_end, 5), Section("speed", measure_a_rate, 5)], "--budget", "0.5"
    )
    assert code == 0
    assert {each["name"]: each["verdict"] for each in record["checks"]} == {
        "rest of endless": "skipped",
        "speed": "skipped",
    }
    assert record["sections"][0]["ending"].startswith("stopped after 0.")
    with pytest.raises(OutOfTime), time_limit(0.05):
        time.sleep(10)
    time.sleep(0.1)  # the limit is over


def test_sections_are_chosen_by_name(check, capsys):
    sections = [Section("faulty", find_a_fault, 5), Section("speed", measure_a_rate, 5)]
    for words in (("--only", "speed"), ("--skip", "faulty")):
        code, _, record, _ = check(sections, *words)
        assert code == 0
        assert [each["name"] for each in record["sections"]] == ["speed"]
    with pytest.raises(SystemExit) as ended:
        check(sections, "--only", "spede")
    assert ended.value.code == 2
    assert "spede: no such section; found faulty, speed" in capsys.readouterr().err


@pytest.mark.slow
def test_every_section_runs_on_a_cpu(tmp_path):
    command = [sys.executable, "-m", "tests.gpu", "--rehearse", "--output", str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    sections = json.loads((tmp_path / "gpu.json").read_text())["sections"]
    assert [each["name"] for each in sections] == [section.name for section in plan.SECTIONS]
    assert {each["ending"] for each in sections} == {"done"}
