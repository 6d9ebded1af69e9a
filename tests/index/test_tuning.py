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

DRAW = np.random.default_rng(3)
CENTRES = DRAW.normal(size=(40, 16))
VECTORS, QUERIES = (
    (CENTRES[DRAW.integers(0, 40, n)] + DRAW.normal(size=(n, 16)) / 2).astype(np.float32)
    for n in (3000, 1200)
)
IDS = [f"d{n}" for n in range(len(VECTORS))]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    queries = vector_folder(folder / "q", IDS[: len(QUERIES)], QUERIES, block=400)
    return vector_folder(folder / "v", IDS, VECTORS, block=1000), queries


@pytest.fixture
def build(inputs, tmp_path, monkeypatch):
    """Build an index for a recall, from a sample; return its contents in the manifest."""
    monkeypatch.setattr(tuning, "SAMPLE", 1500)
    monkeypatch.setattr(tuning, "QUERIES", 300)

    def built(target=0.9, candidates=tuning.CANDIDATES, queries=inputs[1], **settings):
        monkeypatch.setattr(tuning, "CANDIDATES", candidates)
        chosen = IndexSettings(target_recall=target, encoded_queries=queries, threads=1, **settings)
        index(tmp_path / "i", inputs[0], settings=chosen, overwrite=True)
        return read_manifest(tmp_path / "i", Kind.INDEX).contents

    return built


def recall(path, metric=Metric.INNER, **search):
    """The recall@10 of a search with the index's own parameters, unless others are given."""
    opened = open_index([str(path)], SearchSettings(**search), ComputeSettings(threads=1))
    _, exact = ExactIndex(VECTORS, metric).search(QUERIES, 10)
    _, rows = opened.index.search(QUERIES, 10)
    return np.mean([len({*one} & {*other}) / 10 for one, other in zip(rows, exact, strict=True)])


@pytest.mark.parametrize("metric", Metric)
@pytest.mark.parametrize("max_bytes", [None, 60_000])
def test_a_type_that_fits_reaches_the_target(build, tmp_path, metric, max_bytes, capsys):
    found = build(0.9, metric=metric, max_bytes=max_bytes)
    assert recall(tmp_path / "i", metric) >= 0.89
    size = (tmp_path / "i" / "index").stat().st_size
    assert size < (max_bytes or 16 * len(VECTORS)) + 1000  # SQ8 has 16 bytes per vector
    assert (found["queries"], found["sample"]) == (300, 1500)
    assert 0.9 <= found["interval"][0] <= found["recall"] <= found["interval"][1] <= 1
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("factory", ["IVF{lists},RaBitQ,Refine(SQ8)", "HNSW8,Flat"])
def test_search_takes_the_stored_parameters_unless_others_are_given(build, tmp_path, factory):
    names = build(0.95, factory=factory)["search"]
    assert names.keys() == ({"nprobe", "k_factor"} if "IVF" in factory else {"ef_search"})
    assert recall(tmp_path / "i") == recall(tmp_path / "i", **names) >= 0.94
    assert recall(tmp_path / "i", **dict.fromkeys(names, 1)) < recall(tmp_path / "i")


def test_the_next_type_is_built_if_one_misses_the_target(build, tmp_path, monkeypatch, caplog):
    def tuned(self, path, point):  # half of the vectors are the sample
        is_whole = len(self.vectors) == len(VECTORS) and point.factory == "SQ8"
        return point._replace(low=0.5 if is_whole else 1)

    monkeypatch.setattr(tuning.Judge, "tuned", tuned)
    assert build(0.9, ["Flat", "SQ8", "Unknown"])["factory"] == "Flat"
    assert warnings_of(caplog) == ["SQ8 does not reach recall 0.9 with all vectors"]
    assert any("Unknown is left out" in note for note in caplog.messages)
    assert (faiss.read_index(str(tmp_path / "i" / "index")).reconstruct_n() == VECTORS).all()


def test_the_trials_of_the_interval_are_from_queries_to_hits():
    whole = (DRAW.random(400) < 0.9).astype(float)  # all hits of a query, or none
    alone = DRAW.binomial(10, 0.9, 4000) / 10  # independent hits
    for recalls, trials in ((whole, 400), (alone, 40_000), (np.ones(50), 500)):
        low, high = binomtest(round(trials * recalls.mean()), trials).proportion_ci(method="wilson")
        assert mean_recall(recalls) == pytest.approx((recalls.mean(), low, high), abs=3e-4)


def test_what_is_rejected(build, inputs, tmp_path):
    with pytest.raises(UsageError, match=r"no index that fits reaches recall 0.99; the best has 0"):
        build(0.99, max_bytes=9 * len(VECTORS))
    for vectors in (QUERIES[:1], QUERIES[:20, :8]):
        queries = vector_folder(tmp_path / str(vectors.shape), IDS[: len(vectors)], vectors)
        with pytest.raises(UsageError, match="20 or more of 16 dimensions are needed"):
            build(queries=queries)
    several = vector_folder(tmp_path / "several", IDS[:9], VECTORS[:18], size=2)
    index(tmp_path / "ivf", inputs[0], factory="IVF4,Flat")
    tuned = {"target_recall": 0.9, "encoded_queries": inputs[1]}
    for source, template in ((several, None), (inputs[0], "ivf"), (tmp_path / "ivf", None)):
        paths = {"trained_as": str(tmp_path / template)} if template else {}
        with pytest.raises(UsageError, match=r"2 vectors each|target_recall None"):
            index(tmp_path / "j", source, settings=IndexSettings(**tuned), **paths)
    for given in ({"type": IndexType.BM25}, {"engine": Engine.MILVUS}):
        with pytest.raises(UsageError, match="target-recall"):
            IndexSettings(**tuned, **given)


def test_the_command_prints_a_table_and_its_index_is_a_template(inputs, tmp_path, capsys):
    line = f"index --input {inputs[0]} --encoded-queries {inputs[1]} --target-recall 0.9"
    chosen, filled = (str(tmp_path / name) for name in ("i", "j"))
    assert run([*line.split(), "--factory", "IVF{lists},SQ8", "--output", chosen]) == 0
    rows = [row.split("\t") for row in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == ["index", "IVF76,SQ8"]
    assert run(["index", "--input", inputs[0], "--trained-as", chosen, "--output", filled]) == 0
    assert read_manifest(filled, Kind.INDEX).contents["factory"] == "IVF76,SQ8"
