import random
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from denserk.commands.app import run

pytest.importorskip("matplotlib")
RUNS = ["bm25", "a-name-of-$more$-than-thirty-characters_in-a-row", "agg"]


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    chance = random.Random(3)
    for disorder, name in enumerate(RUNS, start=3):
        with Path(f"{name}.trec").open("w") as out:
            for query in range(40):
                ranked = sorted(range(9), key=lambda d: d - disorder * chance.random())
                for rank, passage in enumerate(ranked):
                    out.write(f"q{query} Q0 d{passage} 1 {9 - rank} t\n")
    with Path("qrels").open("w") as out:
        for query in range(40):
            out.write(f"q{query} 0 d{chance.randrange(4 + query // 10)} 1\n")
    return [f"{name}.trec" for name in RUNS]


def evaluated(files, capsys, *options):
    assert run(["eval", *files, "qrels", "--quiet", "--overwrite", *options]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    return {(row[0], row[1]): float(row[2]) for row in rows}


def texts_of(path):
    """The texts of a plot."""
    texts = []
    for element in ElementTree.parse(path).iter():
        if element.tag.endswith("text"):
            texts.append("".join(element.itertext()).strip())
    return texts


def label(value, p):
    """What stands beside a value that was tested."""
    dagger = "\u2020" if p < 0.05 else ""
    p_text = "p<0.001" if p < 5e-4 else f"p={p:.3f}"
    return f"{value:.3f}{dagger} {p_text}"


@pytest.mark.parametrize("baseline", ["bm25", "previous"])
def test_panels_hold_every_value_and_p_as_text(files, baseline, capsys):
    options = ["-m", "nDCG@5 RR@10 P@1 NumRet", "--baseline", baseline, "--plot", "out.svg"]
    values = evaluated(files, capsys, *options)
    texts = texts_of("out.svg")
    assert texts.count("bm25") == 2  # a label in each row of panels
    for measure in ("nDCG@5", "RR@10", "P@1"):
        assert f"{values['bm25', measure]:.3f}" in texts
        for name in RUNS[1:]:
            assert label(values[name, measure], values[name, f"{measure}:p"]) in texts
    for name in RUNS:
        assert f"{values[name, 'NumRet']:.0f}" in texts


def test_a_difference_that_cannot_be_tested_has_no_p(files):
    Path("one").write_text("q0 0 d0 1\n")
    options = ["--baseline", "bm25", "--plot", "out.svg", "--quiet"]
    assert run(["eval", *files, "one", "-m", "RR@10", *options]) == 0
    assert not [text for text in texts_of("out.svg") if "nan" in text]


def test_a_plot_says_that_its_intervals_are_not_corrected(files):
    options = ["-m", "nDCG@5 RR@10", "--baseline", "bm25", "--plot", "out.svg", "--quiet"]
    assert run(["eval", *files, "qrels", *options]) == 0
    note = " ".join(texts_of("out.svg"))
    assert "Holm correction of p for 4 tests" in note


def test_previous_is_each_pair_of_neighbours(files, capsys):
    options = ["-m", "RR@10", "--correction", "none", "--baseline"]
    values = evaluated(files, capsys, *options, "previous")
    for baseline, run_file in pairwise(files):
        values_of_pair = evaluated([baseline, run_file], capsys, *options, baseline)
        assert values_of_pair.items() <= values.items()
    assert run(["eval", files[0], "qrels", "--baseline", "previous"]) == 2


def test_one_measure_at_cutoffs_is_a_curve_of_depth(files, capsys):
    evaluated(files, capsys, "-m", "R@1 R@3 R@5", "--baseline", "bm25", "--plot", "curve.svg")
    texts = texts_of("curve.svg")
    assert {"depth", "R", "1", "3", "5", "bm25", "agg"} <= set(texts)
    assert "hollow marks" in " ".join(texts)


@pytest.mark.parametrize("measures", ["R@5 R@3 R@1", "R@1 R@3", "R@1 R@3 P@5"])
def test_other_measures_are_no_curve(files, capsys, measures):
    evaluated(files, capsys, "-m", measures, "--plot", "panels.svg")
    assert "depth" not in texts_of("panels.svg")


@pytest.mark.parametrize(
    ("name", "beginning"), [("a.png", b"\x89PNG"), ("a.pdf", b"%PDF"), ("a.svg", b"<?xml")]
)
def test_the_suffix_is_the_format(files, capsys, name, beginning):
    evaluated(files, capsys, "-m", "R@1 R@3 R@5", "--plot", name)
    assert Path(name).read_bytes().startswith(beginning)


def test_another_suffix_and_a_file_that_exists_are_rejected(files, capsys):
    Path("old.svg").touch()
    assert run(["eval", *files, "qrels", "--plot", "old.svg"]) == 2
    assert run(["eval", *files, "qrels", "--plot", "a.gif"]) == 2
    assert "the suffix must be one of .png, .pdf, .svg" in capsys.readouterr().err
