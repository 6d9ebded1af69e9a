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
    for number, name in enumerate(RUNS):
        ranks = {
            q: sorted(range(9), key=lambda d: d - (3 + number) * chance.random()) for q in range(40)
        }
        lines = [f"q{q} Q0 d{d} 1 {9 - r} t\n" for q, ds in ranks.items() for r, d in enumerate(ds)]
        (tmp_path / f"{name}.trec").write_text("".join(lines))
    qrels = "".join(f"q{q} 0 d{chance.randrange(4 + q // 10)} 1\n" for q in range(40))
    (tmp_path / "qrels").write_text(qrels)
    return [f"{name}.trec" for name in RUNS]


def evaluated(files, capsys, *options):
    assert run(["eval", *files, "qrels", "--quiet", "--overwrite", *options]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    return {(row[0], row[1]): float(row[2]) for row in rows}


def texts(path):
    elements = ElementTree.parse(path).iter()
    return ["".join(e.itertext()).strip() for e in elements if e.tag.endswith("text")]


@pytest.mark.parametrize("baseline", ["bm25", "previous"])
def test_panels_hold_every_value_and_p_as_text(files, baseline, capsys):
    measures = "nDCG@5 RR@10 P@1 NumRet"
    options = ["-m", measures, "--baseline", baseline]
    values = evaluated(files, capsys, *options, "--plot", "out.svg")
    found = texts("out.svg")
    assert found.count("bm25") == len(RUNS) - 1  # a label in each row of panels
    for name in RUNS:
        for measure in measures.split()[:3]:
            shown = f"{values[name, measure]:.3f}"
            if name != "bm25":
                p = values[name, f"{measure}:p"]
                shown += "\u2020" * (p < 0.05) + (f" p={p:.3f}" if p >= 5e-4 else " p<0.001")
            assert shown in found
        assert f"{values[name, 'NumRet']:.0f}" in found


def test_previous_is_each_pair_of_neighbours(files, capsys):
    options = ["-m", "RR@10", "--correction", "none", "--baseline"]
    of_all = evaluated(files, capsys, *options, "previous")
    for before, after in pairwise(files):
        for key, value in evaluated([before, after], capsys, *options, before).items():
            assert of_all[key] == value
    assert run(["eval", files[0], "qrels", "--baseline", "previous"]) == 2


def test_one_measure_at_cutoffs_is_a_curve_of_depth(files, capsys):
    for suffix, start in (("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")):
        evaluated(files, capsys, "-m", "R@1 R@3 R@5", "--baseline", "bm25", "--plot", f"c.{suffix}")
        assert Path(f"c.{suffix}").read_bytes().startswith(start)
    found = texts("c.svg")
    assert {"depth", "R", "1", "3", "5", "bm25", "agg"} <= {*found}
    assert "hollow marks" in " ".join(found)
    for number, measures in enumerate(["R@5 R@3 R@1", "R@1 R@3", "R@1 R@3 P@5"]):  # no curves
        evaluated(files, capsys, "-m", measures, "--plot", f"{number}.svg")
        assert "depth" not in texts(f"{number}.svg")
    assert run(["eval", *files, "qrels", "--plot", "c.svg"]) == 2  # it exists
    assert run(["eval", *files, "qrels", "--plot", "c.gif"]) == 2
    assert "the suffix must be one of .png, .pdf, .svg" in capsys.readouterr().err
