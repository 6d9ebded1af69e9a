import faiss
import numpy as np
import pytest
from scipy.stats import binomtest

from denserk.commands.app import run
from denserk.config.encoding import ComputeSettings
from denserk.config.retrieval import Engine, IndexSettings, IndexType, Metric, SearchSettings
from denserk.errors import UsageError
from denserk.index import tuning
from denserk.index.exact import ExactIndex
from denserk.index.opening import open_index
from denserk.index.tuning import mean_recall
from denserk.io.manifest import Kind, read_manifest
from tests.support.console import warnings_of
from tests.support.index_folders import index, vector_folder

RANDOM = np.random.default_rng(3)
CENTRES = RANDOM.normal(size=(40, 16))


def clustered(count):
    """Vectors about the centres."""
    centres = CENTRES[RANDOM.integers(0, 40, count)]
    return (centres + RANDOM.normal(size=(count, 16)) / 2).astype(np.float32)


VECTORS = clustered(3000)
QUERIES = clustered(1200)
IDS = [f"d{n}" for n in range(len(VECTORS))]


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    return vector_folder(tmp_path_factory.mktemp("vectors") / "v", IDS, VECTORS, block=1000)


@pytest.fixture(scope="module")
def queries(tmp_path_factory):
    folder = tmp_path_factory.mktemp("queries") / "q"
    return vector_folder(folder, IDS[: len(QUERIES)], QUERIES, block=400)


@pytest.fixture
def build(vectors, queries, tmp_path, monkeypatch):
    """Build an index for a recall, from a sample; return its contents in the manifest."""
    monkeypatch.setattr(tuning, "SAMPLE", 1500)
    monkeypatch.setattr(tuning, "QUERIES", 300)

    def build_for(target, encoded_queries=queries, **options):
        settings = IndexSettings(
            target_recall=target, encoded_queries=encoded_queries, threads=1, **options
        )
        index(tmp_path / "i", vectors, settings=settings, overwrite=True)
        return read_manifest(tmp_path / "i", Kind.INDEX).contents

    return build_for


def recall(path, metric=Metric.INNER, **options):
    """The recall@10 of a search with the index's own parameters, unless others are given."""
    opened = open_index([str(path)], SearchSettings(**options), ComputeSettings(threads=1))
    _, exact_rows = ExactIndex(VECTORS, metric).search(QUERIES, 10)
    _, rows = opened.index.search(QUERIES, 10)
    shares = []
    for rows_of_query, exact_rows_of_query in zip(rows, exact_rows, strict=True):
        shares.append(len(np.intersect1d(rows_of_query, exact_rows_of_query)) / 10)
    return np.mean(shares)


@pytest.mark.parametrize("metric", Metric)
@pytest.mark.parametrize(
    ("max_bytes", "largest"),
    [(None, 16 * len(VECTORS)), (60_000, 60_000)],  # SQ8 has 16 bytes per vector
)
def test_a_type_that_fits_reaches_the_target(build, tmp_path, metric, max_bytes, largest, capsys):
    contents = build(0.9, metric=metric, max_bytes=max_bytes)
    assert recall(tmp_path / "i", metric) >= 0.89
    assert (tmp_path / "i" / "index").stat().st_size < largest + 1000
    assert contents["queries"] == 300
    assert contents["sample"] == 1500
    low, high = contents["interval"]
    assert 0.9 <= low <= contents["recall"] <= high <= 1
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("factory", "parameters"),
    [("IVF{lists},RaBitQ,Refine(SQ8)", {"nprobe", "k_factor"}), ("HNSW8,Flat", {"ef_search"})],
)
def test_search_takes_the_stored_parameters_unless_others_are_given(
    build, tmp_path, factory, parameters
):
    stored = build(0.95, factory=factory)["search"]
    assert stored.keys() == parameters
    assert recall(tmp_path / "i") == recall(tmp_path / "i", **stored) >= 0.94
    assert recall(tmp_path / "i", **dict.fromkeys(parameters, 1)) < recall(tmp_path / "i")


def test_the_next_type_is_built_if_one_misses_the_target(build, tmp_path, monkeypatch, caplog):
    def tune(self, path, point):
        """SQ8 reaches the target with the sample, and misses it with all vectors."""
        has_all_vectors = len(self.vectors) == len(VECTORS)
        misses = has_all_vectors and point.factory == "SQ8"
        return point._replace(low=0.5 if misses else 1)

    monkeypatch.setattr(tuning, "CANDIDATES", ["Flat", "SQ8", "Unknown"])
    monkeypatch.setattr(tuning.RecallMeter, "tune", tune)
    assert build(0.9)["factory"] == "Flat"
    assert warnings_of(caplog) == ["SQ8 does not reach recall 0.9 with all vectors"]
    assert any("Unknown is left out" in note for note in caplog.messages)
    assert (faiss.read_index(str(tmp_path / "i" / "index")).reconstruct_n() == VECTORS).all()


ALL_OR_NONE = (RANDOM.random(400) < 0.9).astype(float)  # of the hits of a query
INDEPENDENT = RANDOM.binomial(10, 0.9, 4000) / 10  # hits


@pytest.mark.parametrize(
    ("recalls", "trials"), [(ALL_OR_NONE, 400), (INDEPENDENT, 40_000), (np.ones(50), 500)]
)
def test_the_trials_of_the_interval_are_from_queries_to_hits(recalls, trials):
    test = binomtest(round(trials * recalls.mean()), trials)
    low, high = test.proportion_ci(method="wilson")
    assert mean_recall(recalls) == pytest.approx((recalls.mean(), low, high), abs=3e-4)


def test_a_target_that_no_type_reaches(build):
    with pytest.raises(UsageError, match=r"no index that fits reaches recall 0.99; the best has 0"):
        build(0.99, max_bytes=9 * len(VECTORS))


@pytest.mark.parametrize("unfit", [QUERIES[:1], QUERIES[:20, :8]], ids=["few", "narrow"])
def test_queries_that_do_not_fit(build, tmp_path, unfit):
    folder = vector_folder(tmp_path / "q", IDS[: len(unfit)], unfit)
    with pytest.raises(UsageError, match="20 or more of 16 dimensions are needed"):
        build(0.9, encoded_queries=folder)


def test_what_cannot_be_tuned(vectors, queries, tmp_path):
    settings = IndexSettings(target_recall=0.9, encoded_queries=queries)
    two_per_passage = vector_folder(tmp_path / "two", IDS[:9], VECTORS[:18], size=2)
    with pytest.raises(UsageError, match="2 vectors each"):
        index(tmp_path / "i", two_per_passage, settings=settings)
    ivf = str(tmp_path / "ivf")
    index(ivf, vectors, factory="IVF4,Flat")
    with pytest.raises(UsageError, match="target_recall None"):
        index(tmp_path / "i", vectors, settings=settings, trained_as=ivf)
    with pytest.raises(UsageError, match="target_recall None"):
        index(tmp_path / "i", ivf, settings=settings)


@pytest.mark.parametrize("engine", [{"type": IndexType.BM25}, {"engine": Engine.MILVUS}])
def test_engines_that_are_not_tuned(engine):
    with pytest.raises(UsageError, match="target-recall"):
        IndexSettings(target_recall=0.9, encoded_queries="q", **engine)


def test_the_command_prints_a_table_and_its_index_is_a_template(vectors, queries, tmp_path, capsys):
    tuned = str(tmp_path / "tuned")
    filled = str(tmp_path / "filled")
    target = ["--encoded-queries", queries, "--target-recall", "0.9"]
    index_type = ["--factory", "IVF{lists},SQ8"]
    assert run(["index", "--input", vectors, *target, *index_type, "--output", tuned]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == ["index", "IVF76,SQ8"]
    assert run(["index", "--input", vectors, "--trained-as", tuned, "--output", filled]) == 0
    assert read_manifest(filled, Kind.INDEX).contents["factory"] == "IVF76,SQ8"
