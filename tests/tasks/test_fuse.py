import random
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.commands.app import run
from denserk.config.evaluation import EvaluationSettings
from denserk.config.formats import RunFormat
from denserk.config.retrieval import (
    FusionMethod,
    FusionSettings,
    Missing,
    Normalization,
    RankingSettings,
    Ties,
)
from denserk.errors import InputError, MismatchError, UsageError
from denserk.index.fusion import score_contributions, weighted_scores
from denserk.index.fusion_weights import weight_grid
from denserk.index.searcher import Ranking
from denserk.io.manifest import Kind, read_manifest
from denserk.io.runs import read_run_scores, write_run
from denserk.records import best_first
from denserk.tasks.evaluate import evaluate
from denserk.tasks.fuse import fuse
from tests.support.console import warnings_of
from tests.support.peers import run_pyserini

LINEAR: dict[str, Any] = {"method": FusionMethod.LINEAR}
TERMS = [("d1", 12.0), ("d2", 8.0), ("d3", 4.0)]
DENSE = [("d3", 0.75), ("d1", 0.5), ("d4", 0.25)]


def test_reciprocal_ranks():
    assert weighted_scores(score_contributions([TERMS, DENSE], FusionSettings()), [1, 1]) == {
        "d1": 1 / (60 + 1) + 1 / (60 + 2),
        "d2": 1 / (60 + 2),
        "d3": 1 / (60 + 3) + 1 / (60 + 1),
        "d4": 1 / (60 + 3),
    }
    contributions = score_contributions([TERMS, DENSE], FusionSettings(rrf_k=0))
    assert weighted_scores(contributions, [0.5, 2])["d3"] == 0.5 / 3 + 2 / 1


@pytest.mark.parametrize(
    ("normalization", "missing", "expected"),
    [
        ("min-max", "lowest", [0.25 * 1 + 0.5, 0.25 * 0.5, 0.25 * 0 + 1, 0]),
        ("none", "zero", [0.25 * 12 + 0.5, 0.25 * 8, 0.25 * 4 + 0.75, 0.25]),
        ("none", "lowest", [0.25 * 12 + 0.5, 0.25 * 8 + 0.25, 0.25 * 4 + 0.75, 0.25 * 4 + 0.25]),
        ("zmuv", "zero", [0.25 * 1.5**0.5, 0, -0.25 * 1.5**0.5 + 1.5**0.5, -(1.5**0.5)]),
        ("zmuv", "lowest", [0.25 * 1.5**0.5, -(1.5**0.5), 0.75 * 1.5**0.5, -1.25 * 1.5**0.5]),
    ],
)
def test_weighted_scores(normalization, missing, expected):
    how: dict[str, Any] = {
        "normalization": Normalization(normalization),
        "missing": Missing(missing),
    }
    contributions = score_contributions([TERMS, DENSE], FusionSettings(**LINEAR, **how))
    fused = weighted_scores(contributions, [0.25, 1])
    assert [fused[f"d{n}"] for n in range(1, 5)] == pytest.approx(expected, abs=1e-12)


RUNS = st.lists(
    st.dictionaries(st.sampled_from([f"d{n}" for n in range(8)]), st.integers(-50, 50), max_size=8),
    min_size=2,
    max_size=5,
)


@given(RUNS, st.randoms(use_true_random=False))
def test_the_order_of_the_runs_changes_nothing(runs, random):
    pairs = [(best_first(run.items()), weight) for weight, run in enumerate(runs, start=1)]
    shuffled = random.sample(pairs, len(pairs))
    for method in FusionMethod:
        one, other = (
            weighted_scores(score_contributions(hits, FusionSettings(method=method)), weights)
            for hits, weights in (zip(*order, strict=True) for order in (pairs, shuffled))
        )
        assert one == other


WORDS = {"q1": {"d1": 9.0, "d2": 5.0}, "q2": {"d3": 2.0}, "q3": {"d1": 1.0}}
VECTORS = {"q4": {"d1": 0.5}, "q3": {"d1": 0.5, "d2": 0.25}, "q1": {"d2": 0.5, "d3": 0.25}}


def write(path, run, form=RunFormat.TREC):
    write_run(path, [(qid, list(hits.items())) for qid, hits in run.items()], form)
    return str(path)


@pytest.fixture
def fused(tmp_path):
    """Fuses two runs, given as mappings or paths; the new run as mappings, in its order."""

    def call(*runs, settings=RankingSettings(), **fusion):  # noqa: B008
        places = [tmp_path / f"{n}.trec" for n in range(len(runs))]
        pairs = zip(places, runs, strict=True)
        names = [run if isinstance(run, str) else write(place, run) for place, run in pairs]
        fuse(names, str(tmp_path / "fused"), FusionSettings(**fusion), settings)
        return read_run_scores(tmp_path / "fused")

    return call


def test_queries_come_in_the_order_of_the_first_run_then_of_the_others(fused):
    run = fused(WORDS, VECTORS)
    assert list(run) == ["q1", "q2", "q3", "q4"]
    assert list(run["q1"]) == ["d2", "d1", "d3"]
    assert run["q1"] == pytest.approx({"d2": 1 / 62 + 1 / 61, "d1": 1 / 61, "d3": 1 / 62})
    assert run["q4"] == pytest.approx({"d1": 1 / 61})


def test_runs_of_shards_become_the_run_of_all(fused, tmp_path):
    rows = random.Random(1)
    scores = {f"d{n}": rows.choice((-1.5, 0.25, 2.0)) for n in range(60)}

    def rank(name, found, ties):
        ranking = Ranking(RankingSettings(ties=ties))
        write_run(tmp_path / name, [("q", ranking.final(ranking.best("q", *zip(*found))))])  # noqa: B905
        return str(tmp_path / name)

    whole = rank("whole", scores.items(), Ties.BREAK)
    thirds = [[hit for hit in scores.items() if int(hit[0][1:]) % 3 == n] for n in range(3)]
    names = [rank(f"node{n}", third, Ties.KEEP) for n, third in enumerate(thirds)]
    fused(*names, method=FusionMethod.LINEAR, normalization=Normalization.NONE)
    assert (tmp_path / "fused").read_bytes() == Path(whole).read_bytes()


def test_depths_and_filters_before_runs_are_fused(fused):
    assert list(fused(WORDS, VECTORS, settings=RankingSettings(hits=1))["q1"]) == ["d2"]
    assert set(fused(WORDS, VECTORS, depth=1)["q1"]) == {"d1", "d2"}
    own = {"q1": {"q1": 9.0, "d1": 5.0}}
    found = fused(own, VECTORS, settings=RankingSettings(remove_query=True))["q1"]
    assert found["d1"] == pytest.approx(1 / 61)
    assert "q1" not in found
    passages = {"q1": {"d1#3": 9.0, "d1#0": 8.0, "d2#0": 7.0}}
    documents = {"q1": {"d2": 3.0}}
    found = fused(passages, documents, settings=RankingSettings(max_passage=True))["q1"]
    assert found == pytest.approx({"d2": 1 / 62 + 1 / 61, "d1": 1 / 61})
    settings = RankingSettings(max_passage=True, max_passage_hits=1)
    assert list(fused(passages, documents, settings=settings)["q1"]) == ["d2"]


def test_the_manifest_and_the_queries_that_a_run_lacks(fused, tmp_path, caplog):
    fused(WORDS, VECTORS, alpha=0.25)
    manifest = read_manifest(tmp_path / "fused", Kind.RUN)
    assert manifest.settings["fusion"]["alpha"] == 0.25
    assert [run["queries"] for run in manifest.made_from["runs"]] == [3, 3]
    assert manifest.contents["queries"] == 4
    assert [re.findall(r"1 of 4 .*'(q\d)'", line) for line in warnings_of(caplog)] == [
        ["q4"],
        ["q2"],
    ]


def test_refused(fused, tmp_path):
    with pytest.raises(UsageError, match="only one of the runs"):
        fused("-", "-")
    with pytest.raises(InputError, match="an empty run"):
        fused(WORDS, {})
    ranks = write(tmp_path / "ranks", VECTORS, RunFormat.MSMARCO)
    with pytest.raises(InputError, match="ranks, no scores"):
        fused(WORDS, ranks, method=FusionMethod.LINEAR)
    with pytest.raises(UsageError, match="rrf uses ranks alone"):
        fused(WORDS, VECTORS, normalization="zmuv")


@pytest.mark.parametrize(
    ("count", "measure", "fusion"),
    [
        (2, "nDCG@10", {}),
        (2, "R@3", {"normalization": "zmuv", "depth": 7}),
        (2, "AP", {"method": "rrf", "rrf-k": 1}),
        (3, "RR@10", {"normalization": "none", "missing": "lowest"}),
    ],
)
def test_tuned_weights_are_the_best_of_fuse_and_eval(
    count, measure, fusion, tmp_path, capsys, caplog
):
    chance = random.Random(count)
    runs = [made(seed, 12, 15) for seed in range(count)]
    runs[0].pop("3")
    names = [write(tmp_path / f"{n}.trec", run) for n, run in enumerate(runs)]
    # "unasked" is judged but in no run, and two queries of the runs are not judged
    judged = {qid: chance.sample(range(30), 4) for qid in ("unasked", *map(str, range(10)))}
    qrels = str(tmp_path / "qrels")
    lines = [f"{qid} 0 d{docid} 1\n" for qid, docids in judged.items() for docid in docids]
    Path(qrels).write_text("".join(lines))
    given = [part for name, value in fusion.items() for part in (f"--{name}", str(value))]

    def measured(*options):
        out = str(tmp_path / "oracle")
        assert run(["fuse", *names, "--output", out, "--overwrite", "--quiet", *options]) == 0
        settings = EvaluationSettings(measures=(measure,), complete=False)
        return evaluate([out], qrels, settings).runs[0].summary[measure]

    method = [] if "method" in fusion else ["--method", "linear"]
    values = {
        weights: measured(*given, *method, "--weights", ",".join(map(str, weights)))
        for weights in weight_grid(count)
    }
    caplog.clear()
    tuned = [*names, "--tune", qrels, "-m", measure, *given]
    assert run(["fuse", *tuned]) == 0
    line = capsys.readouterr().out.strip()
    weights = tuple(map(float, line.split("--weights ")[1].split(",")))
    assert values[weights] == max(values.values())
    assert len(set(values.values())) > 3
    assert measured(*line.split()) == values[weights]
    assert any(f"{values[weights]:.4f}  --weights" in each for each in caplog.messages)
    assert measured(*tuned[count:]) == values[weights]
    found = read_manifest(tmp_path / "oracle", Kind.RUN).settings["fusion"]
    assert (found["tune"], tuple(found["weights"])) == (qrels, weights)


def test_tuning_needs_common_queries_one_measure_and_an_output_or_qrels(tmp_path, capsys):
    names = [write(tmp_path / f"{n}", run) for n, run in enumerate((WORDS, VECTORS))]
    (tmp_path / "qrels").write_text("q9 0 d1 1\n")
    for options, said in {
        "--tune qrels": "the runs answer 'q1', 'q2', 'q3', ..., the qrels judge 'q9'",
        "--tune qrels -m nDCG@10,AP": "one measure is expected",
        "--tune qrels --alpha 0.5": "exclude each other",
        "-m AP --output out": "--measure needs --tune",
        "": "give --output, or --tune",
    }.items():
        given = options.replace("qrels", str(tmp_path / "qrels")).split()
        assert run(["fuse", *names, *given, "--quiet"]) in (1, 2)
        assert said in capsys.readouterr().err


def made(seed, queries, depth):
    chance = random.Random(seed)
    return {
        str(qid): {
            f"d{docid}": depth - rank + chance.random()
            for rank, docid in enumerate(chance.sample(range(2 * depth), depth))
        }
        for qid in chance.sample(range(queries), queries)
    }


PYSERINI = """
import sys
from pyserini.fusion import average, interpolation, normalize, reciprocal_rank_fusion
from pyserini.trectools import TrecRun
a, b, folder = sys.argv[1:]
runs = [TrecRun(a), TrecRun(b)]
fused = {
    "rrf": reciprocal_rank_fusion(runs, rrf_k=60, depth=30, k=20),
    "rrf-k": reciprocal_rank_fusion(runs, rrf_k=5, k=20),
    "interpolation": interpolation(runs, alpha=0.3, depth=30, k=20),
    "average": average(runs, k=20),
    "normalize": normalize(runs, k=20),
}
for name, run in fused.items():
    run.save_to_txt(f"{folder}/{name}", tag="pyserini")
"""
NONE: dict[str, Any] = {**LINEAR, "normalization": Normalization.NONE}
AS_PYSERINI: dict[str, dict[str, Any]] = {
    "rrf": {"depth": 30},
    "rrf-k": {"rrf_k": 5},
    "interpolation": {**NONE, "alpha": 0.3, "depth": 30},
    "average": {**NONE, "weights": (0.5, 0.5)},
    "normalize": LINEAR,
}


@pytest.mark.peer
@pytest.mark.slow
def test_pyserini_fuses_alike(fused, tmp_path):
    names = [write(tmp_path / f"{seed}.trec", made(seed, 12, 40)) for seed in (1, 2)]
    run_pyserini(PYSERINI, *names, tmp_path, folder=tmp_path)
    for name, fusion in AS_PYSERINI.items():
        settings = RankingSettings(hits=20, ties=Ties.KEEP)
        own = fused(*names, settings=settings, **fusion)
        theirs = read_run_scores(tmp_path / name)
        assert own.keys() == theirs.keys()
        for qid, hits in own.items():
            above = [docid for docid, score in hits.items() if score > min(hits.values())]
            assert set(above) <= theirs[qid].keys(), (name, qid)  # Pyserini orders ties otherwise
            assert all(theirs[qid][d] == pytest.approx(hits[d], abs=1e-6) for d in above)
            assert list(hits.values()) == pytest.approx(list(theirs[qid].values()), abs=1e-6)


def test_tuning_leaves_out_a_query_whose_hits_are_all_removed(tmp_path):
    """`remove_query` drops the only hit of q1: it tells nothing about the weights."""
    first = tmp_path / "first.trec"
    first.write_text("q1 Q0 q1 1 2.0 a\nq2 Q0 d1 1 2.0 a\nq2 Q0 d2 2 1.0 a\n")
    second = tmp_path / "second.trec"
    second.write_text("q1 Q0 q1 1 2.0 b\nq2 Q0 d2 1 2.0 b\nq2 Q0 d1 2 1.0 b\n")
    qrels = tmp_path / "qrels.txt"
    qrels.write_text("q1 0 d1 1\nq2 0 d1 1\n")
    runs = [str(first), str(second)]
    ranking = RankingSettings(remove_query=True)
    tuned = fuse(runs, "", FusionSettings(tune=str(qrels)), ranking)
    assert tuned.weights == (0.55, 0.45)
    qrels.write_text("q1 0 d1 1\n")
    with pytest.raises(MismatchError, match="no judged query has a passage left"):
        fuse(runs, "", FusionSettings(tune=str(qrels)), ranking)
