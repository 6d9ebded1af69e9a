import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denserk.commands.app import run as command
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
from denserk.index.ranking import Ranking
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
    fusion = FusionSettings(
        method=FusionMethod.LINEAR,
        normalization=Normalization(normalization),
        missing=Missing(missing),
    )
    scores = weighted_scores(score_contributions([TERMS, DENSE], fusion), [0.25, 1])
    scores_in_order = [scores["d1"], scores["d2"], scores["d3"], scores["d4"]]
    assert scores_in_order == pytest.approx(expected, abs=1e-12)


RUNS = st.lists(
    st.dictionaries(st.sampled_from([f"d{n}" for n in range(8)]), st.integers(-50, 50), max_size=8),
    min_size=2,
    max_size=5,
)


@given(RUNS, st.randoms(use_true_random=False))
def test_the_order_of_the_runs_changes_nothing(runs, random):
    rankings = [best_first(run.items()) for run in runs]
    weights = range(1, len(runs) + 1)
    order = random.sample(range(len(runs)), len(runs))
    other_rankings = [rankings[number] for number in order]
    other_weights = [weights[number] for number in order]
    for method in FusionMethod:
        fusion = FusionSettings(method=method)
        scores = weighted_scores(score_contributions(rankings, fusion), weights)
        contributions = score_contributions(other_rankings, fusion)
        assert weighted_scores(contributions, other_weights) == scores


WORDS = {"q1": {"d1": 9.0, "d2": 5.0}, "q2": {"d3": 2.0}, "q3": {"d1": 1.0}}
VECTORS = {"q4": {"d1": 0.5}, "q3": {"d1": 0.5, "d2": 0.25}, "q1": {"d2": 0.5, "d3": 0.25}}


def write(path, run, run_format=RunFormat.TREC):
    write_run(path, [(qid, list(hits.items())) for qid, hits in run.items()], run_format)
    return str(path)


@pytest.fixture
def fused(tmp_path):
    """Fuses runs, given as mappings or paths; the new run as mappings, in its order."""

    def fuse_runs(*runs, settings=RankingSettings(), **fusion):  # noqa: B008
        paths = []
        for number, run in enumerate(runs):
            is_path = isinstance(run, str)
            paths.append(run if is_path else write(tmp_path / f"{number}.trec", run))
        fuse(paths, str(tmp_path / "fused"), FusionSettings(**fusion), settings)
        return read_run_scores(tmp_path / "fused")

    return fuse_runs


def test_queries_come_in_the_order_of_the_first_run_then_of_the_others(fused):
    run = fused(WORDS, VECTORS)
    assert list(run) == ["q1", "q2", "q3", "q4"]
    assert list(run["q1"]) == ["d2", "d1", "d3"]
    assert run["q1"] == pytest.approx({"d2": 1 / 62 + 1 / 61, "d1": 1 / 61, "d3": 1 / 62})
    assert run["q4"] == pytest.approx({"d1": 1 / 61})


def test_runs_of_shards_become_the_run_of_all(fused, tmp_path):
    generator = random.Random(1)
    docids = [f"d{number}" for number in range(60)]
    scores = generator.choices((-1.5, 0.25, 2.0), k=60)

    def write_ranked(name, docids, scores, ties):
        ranking = Ranking(RankingSettings(ties=ties))
        hits = ranking.final(ranking.best("q", docids, scores))
        write_run(tmp_path / name, [("q", hits)])
        return str(tmp_path / name)

    whole = write_ranked("whole", docids, scores, Ties.BREAK)
    shards = []
    for shard in range(3):
        shards.append(write_ranked(f"shard{shard}", docids[shard::3], scores[shard::3], Ties.KEEP))
    fused(*shards, method=FusionMethod.LINEAR, normalization=Normalization.NONE)
    assert (tmp_path / "fused").read_bytes() == Path(whole).read_bytes()


def test_depths_and_filters_before_runs_are_fused(fused):
    assert list(fused(WORDS, VECTORS, settings=RankingSettings(hits=1))["q1"]) == ["d2"]
    assert set(fused(WORDS, VECTORS, depth=1)["q1"]) == {"d1", "d2"}
    run_with_query = {"q1": {"q1": 9.0, "d1": 5.0}}
    hits = fused(run_with_query, VECTORS, settings=RankingSettings(remove_query=True))["q1"]
    assert hits["d1"] == pytest.approx(1 / 61)
    assert "q1" not in hits
    passages = {"q1": {"d1#3": 9.0, "d1#0": 8.0, "d2#0": 7.0}}
    documents = {"q1": {"d2": 3.0}}
    hits = fused(passages, documents, settings=RankingSettings(max_passage=True))["q1"]
    assert hits == pytest.approx({"d2": 1 / 62 + 1 / 61, "d1": 1 / 61})
    settings = RankingSettings(max_passage=True, max_passage_hits=1)
    assert list(fused(passages, documents, settings=settings)["q1"]) == ["d2"]


def test_the_manifest_and_the_queries_that_a_run_lacks(fused, tmp_path, caplog):
    fused(WORDS, VECTORS, alpha=0.25)
    manifest = read_manifest(tmp_path / "fused", Kind.RUN)
    assert manifest.settings["fusion"]["alpha"] == 0.25
    assert [run["queries"] for run in manifest.made_from["runs"]] == [3, 3]
    assert manifest.contents["queries"] == 4
    of_words, of_vectors = warnings_of(caplog)
    assert "lacks 1 of 4 queries" in of_words
    assert "'q4'" in of_words
    assert "lacks 1 of 4 queries" in of_vectors
    assert "'q2'" in of_vectors


def test_runs_that_cannot_be_fused(fused, tmp_path):
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
    ("count", "measure", "options"),
    [
        (2, "nDCG@10", "--method linear"),
        (2, "R@3", "--method linear --normalization zmuv --depth 7"),
        (2, "AP", "--method rrf --rrf-k 1"),
        (3, "RR@10", "--method linear --normalization none --missing lowest"),
    ],
)
def test_tuned_weights_are_the_best_of_fuse_and_eval(
    count, measure, options, tmp_path, capsys, caplog
):
    runs = [random_run(seed, queries=12, depth=15) for seed in range(count)]
    runs[0].pop("3")
    paths = [write(tmp_path / f"{number}.trec", run) for number, run in enumerate(runs)]
    # "unasked" is judged but in no run, and two queries of the runs are not judged
    generator = random.Random(count)
    qrels = tmp_path / "qrels"
    with qrels.open("w") as out:
        for qid in ["unasked", *map(str, range(10))]:
            for number in generator.sample(range(30), 4):
                out.write(f"{qid} 0 d{number} 1\n")

    def value_of_fused(*words):
        output = str(tmp_path / "fused")
        assert command(["fuse", *paths, "--output", output, "--overwrite", "--quiet", *words]) == 0
        settings = EvaluationSettings(measures=(measure,), complete=False)
        return evaluate([output], str(qrels), settings).runs[0].summary[measure]

    values = {}
    for weights in weight_grid(count):
        listed = ",".join(map(str, weights))
        values[weights] = value_of_fused(*options.split(), "--weights", listed)
    assert len(set(values.values())) > 3

    caplog.clear()
    tuning = ["--tune", str(qrels), "-m", measure, *options.split()]
    assert command(["fuse", *paths, *tuning]) == 0
    proposed = capsys.readouterr().out.split()
    listed = proposed[proposed.index("--weights") + 1]
    weights = tuple(map(float, listed.split(",")))
    assert values[weights] == max(values.values())
    assert value_of_fused(*proposed) == values[weights]
    assert any(f"{values[weights]:.4f}  --weights" in message for message in caplog.messages)

    assert value_of_fused(*tuning) == values[weights]
    recorded = read_manifest(tmp_path / "fused", Kind.RUN).settings["fusion"]
    assert recorded["tune"] == str(qrels)
    assert tuple(recorded["weights"]) == weights


def test_the_method_is_linear_where_weights_are_tuned(tmp_path, capsys):
    paths = [write(tmp_path / "words", WORDS), write(tmp_path / "vectors", VECTORS)]
    qrels = tmp_path / "qrels"
    qrels.write_text("q1 0 d1 1\n")
    assert command(["fuse", *paths, "--tune", str(qrels)]) == 0
    assert "--method linear" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--tune {qrels}", "the runs answer 'q1', 'q2', 'q3', ..., the qrels judge 'q9'"),
        ("--tune {qrels} -m nDCG@10,AP", "one measure is expected"),
        ("--tune {qrels} --alpha 0.5", "exclude each other"),
        ("-m AP --output out", "--measure needs --tune"),
        ("", "give --output, or --tune"),
    ],
)
def test_tuning_needs_common_queries_one_measure_and_an_output_or_qrels(
    tmp_path, capsys, options, message
):
    paths = [write(tmp_path / "words", WORDS), write(tmp_path / "vectors", VECTORS)]
    qrels = tmp_path / "qrels"
    qrels.write_text("q9 0 d1 1\n")
    words = options.format(qrels=qrels).split()
    assert command(["fuse", *paths, *words, "--quiet"]) in (1, 2)
    assert message in capsys.readouterr().err


def random_run(seed, queries, depth):
    generator = random.Random(seed)
    run: dict[str, dict[str, float]] = {}
    for qid in generator.sample(range(queries), queries):
        hits = {}
        for rank, number in enumerate(generator.sample(range(2 * depth), depth)):
            hits[f"d{number}"] = depth - rank + generator.random()
        run[str(qid)] = hits
    return run


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
    paths = []
    for seed in (1, 2):
        run = random_run(seed, queries=12, depth=40)
        paths.append(write(tmp_path / f"{seed}.trec", run))
    run_pyserini(PYSERINI, *paths, tmp_path, folder=tmp_path)
    for name, fusion in AS_PYSERINI.items():
        settings = RankingSettings(hits=20, ties=Ties.KEEP)
        run = fused(*paths, settings=settings, **fusion)
        run_of_pyserini = read_run_scores(tmp_path / name)
        assert run.keys() == run_of_pyserini.keys()
        for qid, hits in run.items():
            expected = run_of_pyserini[qid]
            scores = list(hits.values())
            assert scores == pytest.approx(list(expected.values()), abs=1e-6)
            for docid, score in hits.items():
                if score > min(scores):  # Pyserini orders ties otherwise
                    assert expected[docid] == pytest.approx(score, abs=1e-6), (name, qid)


def test_tuning_leaves_out_a_query_whose_hits_are_all_removed(tmp_path):
    """`remove_query` drops the only hit of q1: it tells nothing about the weights."""
    better_run = {"q1": {"q1": 2.0}, "q2": {"d1": 2.0, "d2": 1.0}}
    worse_run = {"q1": {"q1": 2.0}, "q2": {"d2": 2.0, "d1": 1.0}}
    paths = [write(tmp_path / "better", better_run), write(tmp_path / "worse", worse_run)]
    qrels = tmp_path / "qrels.txt"
    fusion = FusionSettings(tune=str(qrels))
    ranking = RankingSettings(remove_query=True)
    qrels.write_text("q1 0 d1 1\nq2 0 d1 1\n")
    result = fuse(paths, "", fusion, ranking)
    assert result.weights == (0.55, 0.45)
    qrels.write_text("q1 0 d1 1\n")
    with pytest.raises(MismatchError, match="no judged query has a passage left"):
        fuse(paths, "", fusion, ranking)
